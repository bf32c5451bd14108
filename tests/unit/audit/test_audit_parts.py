"""The smaller parts: keys by index, trust policies, the side store, rules of order, drafts from other processes."""

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit import canonical, edge, key_files, note
from audit.entry import write_leaf
from audit.errors import AppendFailed, AuditError, EntryRefused, LogDamaged, NoteRefused, SecondWriter, SettingsUnsafe
from audit.events import (
    BudgetLeased,
    BudgetReserved,
    BudgetSpent,
    DataClosed,
    DataRegistered,
    Draft,
    Egress,
    JobAccepted,
    KeyAdded,
    KeyRevoked,
    Purpose,
    UpdateSent,
)
from audit.findings import Flaw, Verdict
from audit.frame import hash_text
from audit.hand_over import hand_over
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.names import Origin
from audit.places import SOCKET
from audit.private import PrivateStore
from audit.reading import find_log, read_rows
from audit.recording import record
from audit.trust import format_policy, parse_policy
from tests.support.audit_logs import (
    DAEMON,
    FEDERATION,
    HASH,
    HEART,
    ORIGIN,
    PARTY,
    HandClock,
    budget,
    closed_home,
    create,
    draft,
    event_id,
    killed_home,
    opening,
    reopen,
    rewrite,
    verified,
)

JOB = "heart-risk-7f3a91"
WRITER = note.Ed25519Signer("f/p/writer/daemon", bytes(31) + b"\x01").key
LATER = note.Ed25519Signer("f/p/writer/daemon", bytes(31) + b"\x02").key
LOG = note.Ed25519Signer("f/p/audit/1", bytes(31) + b"\x03").key
WITNESS = note.VerifierKey("f/q/witness", note.COSIGNATURE, WRITER.public)
OTHER_WITNESS = note.Ed25519Signer("f/r/witness", bytes(31) + b"\x04", note.COSIGNATURE).key


def renamed(key: note.VerifierKey, name: str) -> note.VerifierKey:
    return note.VerifierKey(name, key.kind, key.public)


# --- keys -----------------------------------------------------------------------------------------------------


def keyring_after(*events: dict[str, Any]) -> Keyring:
    keyring = Keyring.opened({"log_key": str(LOG), "writer_keys": [str(WRITER)]})
    for index, event in enumerate(events, 1):
        keyring = keyring.after(index, {"decision": "allowed", "role": "writer", **event})
    return keyring


def test_keys_are_valid_by_index() -> None:
    keyring = keyring_after(
        {"action": "key.added", "vkey": str(LATER)},
        {"action": "key.revoked", "vkey": str(WRITER), "suspect_from": 1},
    )
    assert keyring.writer(WRITER.name, WRITER.id, 0) == WRITER
    assert keyring.writer(WRITER.name, WRITER.id, 2) == WRITER
    assert keyring.writer(LATER.name, LATER.id, 2) == LATER
    for key, index in ((WRITER, 3), (LATER, 1), (LOG, 0)):
        with pytest.raises(EntryRefused) as refused:
            keyring.writer(key.name, key.id, index)
        assert refused.value.code == "CFD-A10"


def test_a_key_that_was_never_added_cannot_be_revoked() -> None:
    with pytest.raises(EntryRefused):
        keyring_after({"action": "key.revoked", "vkey": str(LATER)})
    with pytest.raises(EntryRefused):
        keyring_after({"action": "key.added", "vkey": "nonsense"})


def test_a_revocation_stands_whatever_comes_later() -> None:
    """A second revocation, or adding the key again, gives it none of the entries in between."""
    added = {"action": "key.added", "vkey": str(LATER)}
    revoked = {"action": "key.revoked", "vkey": str(LATER)}
    for events in ([added, revoked, revoked], [added, added]):
        with pytest.raises(EntryRefused, match="in force"):
            keyring_after(*events)
    keyring = keyring_after(added, revoked, {"action": "job.started"}, added)
    for index, valid in enumerate([False, False, True, False, False, True, True]):
        with contextlib.nullcontext() if valid else pytest.raises(EntryRefused):
            keyring.writer(LATER.name, LATER.id, index)


def test_log_keys_sign_the_sizes_between_their_entries() -> None:
    later = renamed(LATER, LOG.name)
    rotation = [{"action": "key.added", "vkey": str(later)}, {"action": "key.revoked", "vkey": str(LOG)}]
    keyring = keyring_after(*({**event, "role": "log"} for event in rotation))
    assert [keyring.log_keys_at(size) for size in range(5)] == [(LOG,), (LOG,), (LOG, later), (later,), (later,)]
    assert keyring.log_keys() == (LOG, later)
    assert keyring_after({"action": "key.added", "role": "witness", "vkey": str(WITNESS)}).logs == keyring_after().logs


@pytest.mark.parametrize("vkey", [str(WITNESS), str(note.VerifierKey("f/p/writer/daemon", note.MLDSA44, bytes(1312)))])
def test_a_key_of_another_kind_signs_no_entry(vkey: str) -> None:
    with pytest.raises(EntryRefused):
        Keyring.opened({"log_key": str(LOG), "writer_keys": [vkey]})
    with pytest.raises(EntryRefused):
        Keyring.opened({"log_key": vkey, "writer_keys": [str(WRITER)]})
    with pytest.raises(EntryRefused):
        Keyring.opened({"writer_keys": 3})
    with pytest.raises(EntryRefused):
        keyring_after({"action": "key.added", "vkey": vkey})
    assert not note.VerifierKey.parse(vkey).check(b"message", bytes(64))


def test_a_refused_key_event_changes_nothing() -> None:
    added = {"action": "key.added", "vkey": str(LATER), "decision": "refused"}
    with pytest.raises(EntryRefused):
        keyring_after(added).writer(LATER.name, LATER.id, 5)


def write_by_hand(home: Path, *events: dict[str, Any]) -> None:
    """Add entries as a program of another version might: signed and chained, but not through the committer."""
    rows = list(read_rows(find_log(home)))
    signer = key_files.read_key(home / "audit" / "keys" / "writer-daemon.key", rows[0].event["writer"])
    leaves = [row.leaf for row in rows]
    common = {name: rows[-1].event[name] for name in ("actor", "boot", "mono_us", "site", "t_us", "v", "writer")}
    for changed in events:
        prev = hash_text(leaf_hash(leaves[-1]))
        event = {**common, "id": event_id(), "decision": "allowed", "seq": len(leaves), "prev": prev, **changed}
        leaves.append(write_leaf(ORIGIN, event, signer))
    rewrite(home, leaves)


def test_an_entry_by_a_revoked_key_stops_the_start_and_is_named(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    vkey = str(
        key_files.read_key(home / "audit" / "keys" / "writer-daemon.key", f"{FEDERATION}/{PARTY}/writer/daemon").key
    )
    revoked = {"action": "key.revoked", "role": "writer", "vkey": vkey, "reason": "stolen", "suspect_from": 5}
    write_by_hand(home, revoked, {"action": "data.verified", "dataset": {"id": "heart", "version": HASH}})
    result = verified(home)
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A10", "entry 9")]
    assert [(found.code, found.where) for found in result.notes if found.code == "CFD-A43"] == [
        ("CFD-A43", "entries 5 to 8")
    ]
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.code == "CFD-A10"


def test_a_process_cannot_revoke_the_key_that_it_signs_with(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        for role, vkey in (("writer", log.writer_key), ("log", log.checkpoint_key)):
            with pytest.raises(EntryRefused):
                log.append(
                    KeyRevoked(id=event_id(), decision="allowed", actor=DAEMON, role=role, vkey=vkey, reason="rotated")
                )
        cli = key_files.read_key(tmp_path / "audit" / "keys" / "writer-cli.key", f"{FEDERATION}/{PARTY}/writer/cli").key
        log.append(
            KeyRevoked(id=event_id(), decision="allowed", actor=DAEMON, role="writer", vkey=str(cli), reason="lost")
        )
    with pytest.raises(SettingsUnsafe):
        record(tmp_path / "audit", draft(), clock=HandClock())
    with reopen(tmp_path) as log:
        log.append(KeyAdded(id=event_id(), decision="allowed", actor=DAEMON, role="writer", vkey=str(cli)))
    record(tmp_path / "audit", draft(), clock=HandClock())
    assert verified(tmp_path).flaws == []


@pytest.mark.parametrize("text", ["", "PRIVATE+KEY+x", "PRIVATE+KEY+f/p/audit/1+00000000+AQ==", "PRIVATE+KEY+a+b+%%"])
def test_a_malformed_key_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SettingsUnsafe):
        key_files.read_key(path, "f/p/audit/1")


def test_a_private_key_is_never_shown(tmp_path: Path) -> None:
    signer = key_files.create_key(tmp_path / "key", "f/p/audit/1", os.urandom)
    assert repr(signer) == "Ed25519Signer(f/p/audit/1, <hidden>)"
    assert key_files.read_key(tmp_path / "key", "f/p/audit/1").key == signer.key


@pytest.mark.parametrize(
    "text", ["", "f/p/audit", "f/p/audit/0", "f/p/audit/01", "F/p/audit/1", "f/P/audit/1", "f/p/log/1"]
)
def test_only_the_one_form_is_a_logs_name(text: str) -> None:
    with pytest.raises(EntryRefused):
        Origin.parse(text)


# --- trust ----------------------------------------------------------------------------------------------------


def test_a_policy_is_written_as_it_is_read() -> None:
    text = format_policy([str(LOG)], {"q": str(WITNESS), "r": str(OTHER_WITNESS)}, {"clinic": ["q", "r"]}, 1)
    policy = parse_policy(text)
    assert policy.for_origin(LOG.name) == (LOG,)
    assert policy.for_origin("other") == ()
    assert text.endswith("group clinic any q r\ngroup others 1 clinic\nquorum others\n")
    assert policy.needed() == 1
    assert policy.voices() == ("clinic",)
    assert policy.heard([WITNESS, OTHER_WITNESS]) == ("clinic",)
    assert policy.is_met([WITNESS])
    assert not policy.is_met([])
    assert parse_policy(f"log {LOG}\nwitness q {WITNESS}\nquorum q\n").voices() == ("q",)
    assert parse_policy(f"log {LOG}\n\twitness q {WITNESS} https://q.example.org \nquorum q").needed() == 1
    assert parse_policy(format_policy([str(LOG)], {}, {}, 0)).is_met([])


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"log {LOG}\n",
        "quorum none\n",
        f"log {WITNESS}\nquorum none\n",
        f"log {LOG}\nquorum nobody\n",
        f"log {LOG}\nwitness q {LOG}\nquorum q\n",
        f"log {LOG}\nwitness none {WITNESS}\nquorum none\n",
        f"log {LOG}\nwitness q {WITNESS}\nwitness q {WITNESS}\nquorum q\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 2 q\nquorum g\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 2 q q\nquorum g\n",
        f"log {LOG}\ngroup g 1 q\nwitness q {WITNESS}\nquorum g\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 0 q\nquorum g\n",
        f"log {LOG}\nquorum none\nquorum none\n",
        f"log {LOG}\nlogs {LOG}\nquorum none\n",
        f"log {LOG}\nlog {LOG}\nquorum none\n",
        f"log {LOG}\nwitness q {WITNESS}\nwitness r {WITNESS}\nquorum q\n",
        f"log {LOG}\nwitness q {WITNESS}\nwitness r {renamed(WITNESS, 'h/r/witness')}\nquorum q\n",
        f"log {LOG}\nwitness q {renamed(WITNESS, LOG.name)}\nquorum q\n",
        f"log {LOG}\nwitness q {renamed(WITNESS, 'f/p/witness')}\nquorum q\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 1 q\ngroup h 1 q\nquorum g\n",
        f"log {LOG}\u00a0\nquorum none\n",
        f"log {LOG}\vquorum none\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 1\nquorum g\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g {'9' * 5000} q\nquorum g\n",
        f"log {LOG}\nwitness q {WITNESS}\ngroup g 01 q\nquorum g\n",
        "log nonsense\nquorum none\n",
    ],
)
def test_a_policy_that_is_not_understood_is_refused_whole(text: str) -> None:
    with pytest.raises(NoteRefused):
        parse_policy(text)


# --- the side store -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> PrivateStore:
    (tmp_path / "keys").mkdir()
    return PrivateStore(tmp_path, clock=HandClock(), random_bytes=os.urandom)


def test_a_person_keeps_one_pseudonym_and_another_home_gives_another(tmp_path: Path, store: PrivateStore) -> None:
    alice = store.pseudonym("alice", mail="alice@example.org")
    assert store.pseudonym("alice") == alice == store.find("alice")
    assert store.pseudonym("bob") != alice
    assert store.find("carol") is None
    assert (store.name_of(alice), store.name_of("p1:unknown")) == ("alice", None)
    (tmp_path / "other" / "keys").mkdir(parents=True)
    other = PrivateStore(tmp_path / "other", clock=HandClock(), random_bytes=os.urandom)
    assert other.pseudonym("alice") != alice
    store.close()
    other.close()


def test_one_value_has_a_new_commitment_each_time(store: PrivateStore) -> None:
    first, second = store.commit("records", "303"), store.commit("records", "303")
    assert first != second
    assert store.value_of(first) == store.value_of(second) == b"303"
    assert store.value_of("c1:unknown") is None
    with pytest.raises(EntryRefused):
        store.commit("reason", b"x" * 65_537)
    store.close()


def test_nothing_personal_is_readable_in_the_database(tmp_path: Path, store: PrivateStore) -> None:
    store.pseudonym("alice", mail="alice@example.org")
    store.commit("reason", "because alice said so")
    store.close()
    data = (tmp_path / "private.db").read_bytes()
    assert b"alice" not in data
    assert b"because" not in data


def test_a_value_under_another_months_key_does_not_open(tmp_path: Path, store: PrivateStore) -> None:
    committed = store.commit("reason", "because")
    (tmp_path / "keys" / "private-2026-01.key").write_bytes(bytes(32))
    with pytest.raises(AuditError) as refused:
        store.value_of(committed)
    assert refused.value.code == "CFD-A15"
    store.close()


# --- rules of order -------------------------------------------------------------------------------------------


def accepted() -> Draft:
    return JobAccepted(
        id=event_id(),
        decision="allowed",
        actor=DAEMON,
        rule="rules/0",
        job=JOB,
        plan=HASH,
        purpose=Purpose(code="DUO:0000007"),
        dataset=HEART,
        policy=HASH,
    )


def spending(model: type[BudgetLeased] | type[BudgetSpent], eps_nano: int) -> Draft:
    return model(
        id=event_id(), decision="allowed", actor=DAEMON, job=JOB, round=7, dataset=HEART, budget=budget(eps_nano)
    )


def reserved(eps_nano: int) -> Draft:
    return BudgetReserved(
        id=event_id(), decision="allowed", actor=DAEMON, job=JOB, dataset=HEART, budget=budget(eps_nano)
    )


def closing(opened: int, **changed: Any) -> Draft:
    fields = {"dataset": HEART, "job": JOB, "round": 7, **changed}
    return DataClosed(id=event_id(), decision="allowed", actor=DAEMON, opened=opened, **fields)


def sent(round_number: int) -> Draft:
    egress = Egress(what="update", hash=HASH, bytes=10, to="coordinator", encrypted=True)
    return UpdateSent(id=event_id(), decision="allowed", actor=DAEMON, job=JOB, round=round_number, egress=egress)


def registered() -> Draft:
    return DataRegistered(
        id=event_id(), decision="allowed", actor=DAEMON, dataset=HEART, contract="heart/v1", budget=budget(8)
    )


def a_whole_round() -> list[Draft]:
    # The log's own two entries come first, so the opening is entry 6.
    return [
        accepted(),
        reserved(100),
        spending(BudgetLeased, 60),
        spending(BudgetLeased, 80),
        opening(),
        closing(6),
        sent(7),
        spending(BudgetSpent, 80),
    ]


SEQUENCES: list[tuple[str, Callable[[], list[Draft]], list[str]]] = [
    ("a whole round", a_whole_round, []),
    ("retired, then registered again", lambda: [accepted(), draft(), registered(), opening(), closing(5)], []),
    ("opened without acceptance", lambda: [opening(), closing(2)], ["entry 2"]),
    ("never closed", lambda: [accepted(), opening()], ["entry 3"]),
    ("closed twice", lambda: [accepted(), opening(), closing(3), closing(3)], ["entry 5"]),
    ("closed what wasn't opened", lambda: [closing(1)], ["entry 2"]),
    ("closed something else", lambda: [accepted(), opening(), closing(3, round=8)], ["entry 4"]),
    ("sent without opening", lambda: [accepted(), sent(7)], ["entry 3"]),
    ("sent for another round", lambda: [accepted(), opening(), closing(3), sent(8)], ["entry 5"]),
    ("opened after retirement", lambda: [accepted(), draft(), opening(), closing(4)], ["entry 4"]),
    ("leased more than reserved", lambda: [reserved(10), spending(BudgetLeased, 11)], ["entry 3"]),
    ("spent what wasn't leased", lambda: [reserved(10), spending(BudgetSpent, 1)], ["entry 3"]),
]


@pytest.mark.parametrize(("drafts", "wrong"), [case[1:] for case in SEQUENCES], ids=[case[0] for case in SEQUENCES])
def test_what_breaks_a_rule_of_order_is_named(
    tmp_path: Path, drafts: Callable[[], list[Draft]], wrong: list[str]
) -> None:
    with create(tmp_path) as log:
        for each in drafts():
            log.append(each)
    result = verified(tmp_path, complete=True)
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A17", where) for where in wrong]
    assert verified(tmp_path).flaws == []


def test_what_the_running_process_has_open_is_no_flaw(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(accepted())
        log.append(opening())
        shutil.copytree(tmp_path, tmp_path / "copy")
        assert verified(tmp_path / "copy", complete=True).flaws == []


# --- notes ----------------------------------------------------------------------------------------------------


def test_an_unclean_end_and_unsigned_entries_are_notes(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    result = verified(home)
    assert result.notes == [Flaw("CFD-A45", "entries 1 to 7", "not yet in a signed checkpoint")]
    reopen(home).close()
    result = verified(home)
    assert [(found.code, found.where) for found in result.notes] == [("CFD-A40", "entry 8")]
    assert result.verdict is Verdict.VERIFIED


def test_an_entry_of_a_newer_version_is_checked_and_shown_raw(tmp_path: Path) -> None:
    home = killed_home(tmp_path)
    dataset = {"id": "heart", "version": HASH}
    write_by_hand(
        home,
        {"action": "data.shared", "dataset": dataset},
        {"action": "data.verified", "dataset": dataset, "shared_with": "hungary"},
        {"action": "data.verified", "dataset": dataset, "v": 2},
    )
    result = verified(home)
    assert result.flaws == []
    assert [found.where for found in result.notes if found.code == "CFD-A44"] == ["entry 8", "entry 9", "entry 10"]
    assert [row.interpreted for row in read_rows(find_log(home))][-3:] == [False, False, False]
    reopen(home).close()


# --- drafts from other processes ------------------------------------------------------------------------------


def test_a_command_hands_its_draft_to_the_process_that_holds_the_log(tmp_path: Path) -> None:
    with create(tmp_path, serve_socket=True) as log:
        handed = draft()
        index, leaf = record(tmp_path / "audit", handed, clock=HandClock())
        assert log.append(handed).leaf == leaf
        assert log.append(handed).index == index
    assert hand_over(tmp_path / "audit", draft().body()) is None


def test_a_command_takes_the_lock_where_nobody_holds_it(tmp_path: Path) -> None:
    create(tmp_path).close()
    index, _ = record(tmp_path / "audit", draft(), clock=HandClock())
    assert index == 3
    assert [row.event["action"] for row in read_rows(find_log(tmp_path))][-1] == "data.retired"
    with reopen(tmp_path):
        pass
    assert verified(tmp_path).notes == []


def test_a_command_says_when_the_holder_of_the_log_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.recording.WAIT_S", 0.0)
    with create(tmp_path), pytest.raises(SecondWriter):
        record(tmp_path / "audit", draft(), clock=HandClock())


def test_what_comes_over_the_socket_is_checked_like_any_draft(tmp_path: Path) -> None:
    with create(tmp_path, serve_socket=True) as log:
        before = log.size
        for body in ({"action": "nothing"}, {**draft().body(), "name": "alice"}, {**draft().body(), "site": "hungary"}):
            with pytest.raises(EntryRefused):
                hand_over(tmp_path / "audit", body)
        same = draft()
        log.append(same)
        with pytest.raises(AppendFailed):
            hand_over(tmp_path / "audit", {**same.body(), "dataset": {"id": "lungs", "version": HASH}})
        assert log.size == before + 1


def test_a_broken_request_leaves_the_socket_working(tmp_path: Path) -> None:
    with create(tmp_path, serve_socket=True):
        for sent_bytes in (b"", b"\x00", struct.pack(">I", 1 << 31), struct.pack(">I", 5) + b"hello"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(tmp_path / "audit" / SOCKET))
                connection.sendall(sent_bytes)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(4096)
            if len(sent_bytes) > 4:
                assert canonical.decode(answer[4:])["code"] == "CFD-A09"
        record(tmp_path / "audit", draft(), clock=HandClock())


def test_a_home_too_deep_for_a_socket_address_still_serves(tmp_path: Path) -> None:
    home = tmp_path / ("d" * 100) / ("e" * 100)
    home.mkdir(parents=True)
    with create(home, serve_socket=True):
        record(home / "audit", draft(), clock=HandClock())


# --- the machine ----------------------------------------------------------------------------------------------


def test_the_innermost_mount_decides_about_a_folder(tmp_path: Path) -> None:
    inner = str(tmp_path).replace(" ", "\\040")
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {inner} nfs4 rw 0 0\n"
    assert edge.network_file_system(tmp_path / "audit", mounts) == "nfs4"
    assert edge.network_file_system(Path("/"), mounts) == ""
    assert edge.network_file_system(tmp_path, f"sshfs {inner} fuse.sshfs rw 0 0\n") == "fuse.sshfs"
    assert edge.network_file_system(tmp_path) == edge.network_file_system(tmp_path, Path("/proc/mounts").read_text())


def test_a_closed_log_has_nothing_to_add(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    assert verified(home, complete=True).proved[0].startswith("9 entries")


def test_a_full_disk_under_the_private_store_is_an_append_that_failed_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    store = PrivateStore(tmp_path, clock=HandClock(), random_bytes=os.urandom)
    known = store.pseudonym("alice")
    store._database.execute("PRAGMA max_page_count = 1")  # SQLite then says what it says of a full disk
    people = iter(range(10_000))

    def fill() -> None:
        for number in people:
            store.pseudonym(f"bob-{number}")

    with pytest.raises(AppendFailed, match="full"):
        fill()
    assert store.pseudonym("alice") == known
    store._database.execute("PRAGMA max_page_count = 1000000")
    assert store.pseudonym("carol") != known
    store.close()
