"""Who may read, and what may go: erasure, redaction, and the two people that it takes."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from audit import commitments, edge
from audit.access import Grant
from audit.command import main
from audit.errors import AuditError, LogUnreadable, ReadRefused
from audit.events import (
    Actor,
    Approval,
    AuditRedacted,
    Egress,
    JobDenied,
    JobSubmitted,
    Purpose,
    SubjectErased,
    UpdateSent,
)
from audit.key_files import read_key
from audit.note import Ed25519Signer, sign_note
from audit.private import PrivateStore
from audit.readers_file import read_readers
from tests.support.audit_logs import (
    DAEMON,
    FEDERATION,
    HASH,
    PARTY,
    HandClock,
    bytes_of,
    create,
    draft,
    event_id,
    events_in,
    kill,
    leaves_of,
    no_home_of_the_machine,
    opening,
    reopen,
    sql,
    stored,
    verified,
)

Captured = pytest.CaptureFixture[str]
Become = Callable[[str], None]
SLIPPED = "job-of-john-doe"


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Act as another account from now on."""

    def to(account: str) -> None:
        monkeypatch.setattr(edge, "account", lambda: account)

    to("alice")
    return to


def home_of(tmp_path: Path, readers: str = "", entries: int = 12) -> Path:
    """A home in which a person's name slipped into the job of entry 5."""
    home = tmp_path / "home"
    log = create(home)
    for number in range(entries):
        log.append(draft(dataset_id=f"d{number}") if number != 3 else opening(job=SLIPPED, rule="rules/0"))
    log.close()
    if readers:
        (home / "site.yaml").write_text(f"site: cleveland\naudit:\n  {readers}\n")
    return home


def redacted(tmp_path: Path, become: Become) -> Path:
    home = home_of(tmp_path)
    assert main(["redact", str(home), "5", "--basis", "gdpr-17"]) == 0
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    return home


def request_of(home: Path) -> str:
    (path,) = (home / "audit" / "requests").glob("*.request")
    return path.stem


# --- redaction ---------------------------------------------------------------------------------------------------


def test_redaction_keeps_every_proof(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home = home_of(tmp_path)
    policy = str(home / "trust" / f"{PARTY}.policy")
    for index in (0, 4, 5, 6):
        assert main(["prove", str(home), str(index), "--out", str(tmp_path / f"before{index}")]) == 0
    before = verified(home)
    assert main(["redact", str(home), "5", "--basis", "gdpr-17"]) == 0
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    assert SLIPPED.encode() not in bytes_of(home / "audit")
    assert stored(home / "audit")[5].leaf == b""
    found = verified(home, complete=True)
    assert [flaw for flaw in found.flaws if flaw.code != "CFD-A17"] == []
    assert [(note.code, note.where) for note in found.notes if note.code == "CFD-A41"] == [("CFD-A41", "entry 5")]
    assert found.size > before.size
    for index in (0, 4, 5, 6):  # proofs from before, and the leaf that they were made with, stay true
        assert main(["check", str(tmp_path / f"before{index}"), "--trust", policy]) == 0
    for index in (0, 4, 6):
        assert main(["prove", str(home), str(index), "--out", str(tmp_path / f"after{index}")]) == 0
        assert main(["check", str(tmp_path / f"after{index}"), "--trust", policy]) == 0
    with pytest.raises(AuditError, match="redacted") as gone:
        main(["show", str(home), "5"])
    assert gone.value.code == "CFD-A41"
    record = next(event for event in events_in(home / "audit") if event["action"] == "audit.redacted")
    assert len(record["approval"]["by"]) == 2
    assert record["target_seq"] == 5
    capsys.readouterr()
    assert main(["query", str(home), "--format", "jsonl"]) == 0
    assert SLIPPED not in capsys.readouterr().out
    reopen(home).close()


@pytest.mark.parametrize(("slipped", "explains"), [("d0", False), ("the opening", True)])
def test_a_redacted_entry_explains_only_what_its_own_action_could(
    tmp_path: Path, become: Become, slipped: str, explains: bool
) -> None:
    """An update left without an opening; emptying another entry doesn't hide that, emptying the opening would."""
    home = tmp_path / "home"
    egress = Egress(what="update", hash=HASH, bytes=10, to="coordinator", encrypted=True)
    with create(home) as log:
        common: dict[str, Any] = {"decision": "allowed", "actor": DAEMON}
        gone = log.append(draft(dataset_id="d0") if slipped == "d0" else opening())
        log.append(UpdateSent(id=event_id(), **common, job="j", round=1, egress=egress))
    assert main(["redact", str(home), str(gone.index), "--basis", "gdpr-17"]) == 0
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    flaws = [(flaw.code, flaw.where) for flaw in verified(home, complete=True).flaws]
    assert flaws == ([] if explains else [("CFD-A17", f"entry {gone.index + 1}")])


def test_a_bundle_with_a_redacted_entry_is_verified_and_one_blanked_without_a_record_is_not(
    tmp_path: Path, become: Become, capsys: Captured
) -> None:
    home = redacted(tmp_path, become)
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["export", str(home), "--out", str(tmp_path / "b.zip")]) == 0
    assert main(["verify", str(tmp_path / "b.zip"), "--trust", policy, "--complete"]) == 0
    assert "CFD-A41 entry 5: redacted" in capsys.readouterr().out
    sql(home, "UPDATE entry SET leaf = x'' WHERE idx = 7")
    assert ("CFD-A02", "entry 7") in {(flaw.code, flaw.where) for flaw in verified(home).flaws}
    with pytest.raises(AuditError):
        main(["query", str(home)])


def test_the_one_who_asks_cannot_confirm(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home = home_of(tmp_path)
    assert main(["redact", str(home), "5", "--basis", "gdpr-17"]) == 0
    before = leaves_of(home)
    with pytest.raises(ReadRefused, match="can't confirm") as refused:
        main(["approve", str(home), request_of(home)])
    assert refused.value.exit_status == 4
    assert leaves_of(home) == before
    assert main(["requests", str(home)]) == 0
    assert "redact index 5 basis gdpr-17" in capsys.readouterr().out
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    assert main(["requests", str(home)]) == 0
    assert capsys.readouterr().out == ""


def test_one_person_alone_redacts_where_the_home_says_so_and_every_statement_tells(
    tmp_path: Path, become: Become, capsys: Captured
) -> None:
    home = home_of(tmp_path, "two_people: false")
    assert main(["redact", str(home), "5", "--basis", "gdpr-17"]) == 0
    assert "one person alone" in capsys.readouterr().err
    main(["verify", str(home)])
    assert "CFD-A41 entry 5: redacted, record" in (said := capsys.readouterr().out)
    assert "approved by one person alone" in said
    assert main(["report", str(home), "--out", str(tmp_path / "r.json")]) == 0
    assert "(one person alone)" in (tmp_path / "r.json").read_text()


def test_what_judges_others_is_not_redacted(tmp_path: Path, become: Become) -> None:
    home = home_of(tmp_path)
    with pytest.raises(LogUnreadable, match="judges others"):
        main(["redact", str(home), "0", "--basis", "gdpr-17"])


def test_a_request_that_was_altered_or_is_none_is_not_done(tmp_path: Path, become: Become) -> None:
    home = home_of(tmp_path)
    main(["redact", str(home), "5", "--basis", "gdpr-17"])
    path = home / "audit" / "requests" / f"{request_of(home)}.request"
    become("bob")
    whole = path.read_bytes()
    for changed in (whole[:-2], whole.replace(b'"index":5', b'"index":6')):
        path.write_bytes(changed)
        with pytest.raises(AuditError):
            main(["approve", str(home), path.stem])
    with pytest.raises(LogUnreadable, match="no request"):
        main(["approve", str(home), "../r-000000000000"])


@pytest.mark.parametrize("by", ["a key of the forger's own", "another home's key", "nobody"])
def test_a_request_that_no_command_of_this_home_made_is_not_done(tmp_path: Path, become: Become, by: str) -> None:
    """Who can write into the folder, and not read the home's key, confirms nothing in another's name."""
    home = home_of(tmp_path)
    main(["redact", str(home), "5", "--basis", "gdpr-17"])
    path = home / "audit" / "requests" / f"{request_of(home)}.request"
    text = path.read_bytes().partition(b"\n\n")[0].decode() + "\n"
    name = f"{FEDERATION}/{PARTY}/writer/cli"
    match by:
        case "nobody":
            path.write_text(text)
        case "another home's key":
            create(tmp_path / "other").close()
            key = read_key(tmp_path / "other" / "audit" / "keys" / "writer-cli.key", name)
            path.write_bytes(sign_note(text, key))
        case _:
            path.write_bytes(sign_note(text, Ed25519Signer(name, bytes(32))))
    before = leaves_of(home)
    become("bob")
    for arguments in (["approve", str(home), path.stem], ["requests", str(home)]):
        with pytest.raises(LogUnreadable, match="not made by a command of this home"):
            main(arguments)
    assert leaves_of(home) == before


# --- erasure -----------------------------------------------------------------------------------------------------


def person_home(tmp_path: Path) -> tuple[Path, str, str]:
    """A home with an act by the person `carol`, her pseudonym, and the commitment to her reason."""
    home = tmp_path / "home"
    log = create(home)
    carol = log.private.pseudonym("carol", mail="carol@example.org")
    reason = log.private.commit("reason", "because carol said so", subject=carol)
    approval = Approval(id="a-1", by=[carol], meaning="review")
    fields: dict[str, Any] = {"job": "j", "plan": HASH, "policy": HASH, "approval": approval}
    actor = Actor(kind="person", id=carol, auth="local")
    log.append(JobDenied(id=event_id(), decision="allowed", actor=actor, **fields, private={"reason": reason}))
    log.close()
    return home, carol, reason


def private_store(home: Path) -> PrivateStore:
    return PrivateStore(home / "audit", clock=HandClock(), random_bytes=bytes)


def test_an_erased_person_cannot_be_linked(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home, carol, reason = person_home(tmp_path)
    rows = sqlite3.connect(home / "audit" / "private.db").execute("SELECT k_subject, name FROM subject").fetchall()
    assert main(["erase", str(home), "carol", "--basis", "gdpr-17"]) == 0
    store = private_store(home)
    assert store.find("carol") is None
    assert store.name_of(carol) is None
    assert store.value_of(reason) is None
    again = store.pseudonym("carol")
    store.close()
    assert again != carol
    on_disk = b"".join(path.read_bytes() for path in (home / "audit").glob("private.db*"))
    kept = [sealed for sealed, _ in rows if sealed in on_disk]
    assert len(kept) == len(rows) - 1  # alice's, who asked, and not carol's
    for guess in ("carol", "alice", "bob", "carol@example.org"):
        for key in (b"", bytes(32), carol.encode()[:32]):
            assert commitments.pseudonym_of(key, guess) != carol
    last = [event for event in events_in(home / "audit") if event["action"] == "subject.erased"]
    assert [(event["subject"], event["basis"]) for event in last] == [(carol, "gdpr-17")]
    assert verified(home).flaws == []
    capsys.readouterr()
    main(["show", str(home), "2"])
    assert "erased" in capsys.readouterr().out


def test_nobody_erases_a_stranger_or_themselves(tmp_path: Path, become: Become) -> None:
    home, _, _ = person_home(tmp_path)
    with pytest.raises(LogUnreadable, match="no such person"):
        main(["erase", str(home), "mallory", "--basis", "x"])
    become("carol")
    with pytest.raises(ReadRefused, match="themselves"):
        main(["erase", str(home), "carol", "--basis", "x"])


def test_half_done_erasure_and_redaction_are_finished_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, carol, _ = person_home(tmp_path)
    log = reopen(home)
    monkeypatch.setattr(type(log), "_done", lambda _self, receipt, _body: receipt)  # the crash: recorded, not done
    target = stored(home / "audit")[2]
    log.append(SubjectErased(id=event_id(), decision="allowed", actor=DAEMON, subject=carol, basis="gdpr-17"))
    log.append(
        AuditRedacted(
            id=event_id(),
            decision="allowed",
            actor=DAEMON,
            index=2,
            leaf_hash="sha256:" + target.leaf_hash.hex(),
            target_writer=events_in(home / "audit")[2]["writer"],
            target_seq=2,
            basis="gdpr-17",
            approval=Approval(id="r-1", by=[carol]),
        )
    )
    kill(log, home)
    assert private_store(home).find("carol") == carol
    assert stored(home / "audit")[2].leaf != b""
    monkeypatch.undo()
    reopen(home).close()
    assert private_store(home).find("carol") is None
    assert stored(home / "audit")[2].leaf == b""
    assert verified(home).flaws == []


# --- readers -----------------------------------------------------------------------------------------------------


READERS = (
    "readers: {alice: compliance, olga: operator, vera: viewer, rita: {role: regulator, datasets: [heart],"
    " since: 2026-01-01, until: 2027-01-01, expires: 2099-01-01}, rolf: {role: regulator, expires: 2020-01-01}}"
)


def rows_for(home: Path, capsys: Captured) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["query", str(home), "--format", "jsonl"]) == 0
    return [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]


def test_a_role_sees_its_own_and_a_refusal_is_recorded(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home = home_of(tmp_path, READERS)
    everything = rows_for(home, capsys)
    become("rita")
    assert {event["dataset"]["id"] for event in rows_for(home, capsys)} == {"heart"}
    with pytest.raises(LogUnreadable, match="you may see"):
        main(["show", str(home), "0"])
    become("vera")
    assert rows_for(home, capsys) == []
    main(["query", str(home)])
    own = rows_for(home, capsys)
    assert {event["action"] for event in own} == {"audit.read"}
    assert len({event["actor"]["id"] for event in own}) == 1
    become("olga")
    assert len(rows_for(home, capsys)) > len(everything)
    for account, verb in (
        ("mallory", ["query"]),
        ("vera", ["report", "--out", str(tmp_path / "x.html")]),
        ("olga", ["export", "--out", str(tmp_path / "x.zip")]),
        ("rita", ["redact", "3", "--basis", "x"]),
        ("rolf", ["query"]),
    ):
        become(account)
        size = len(leaves_of(home))
        with pytest.raises(ReadRefused) as refused:
            main([verb[0], str(home), *verb[1:]])
        assert (refused.value.code, refused.value.exit_status) == ("CFD-A27", 4)
        last = events_in(home / "audit")[-1]
        assert len(leaves_of(home)) == size + 1
        assert (last["action"], last["decision"], last["code"], last["cause"]) == (
            "audit.read",
            "refused",
            "CFD-A27",
            verb[0],
        )
    assert not list(tmp_path.glob("x.*"))
    assert capsys.readouterr().out.count("data.") == 0


def test_a_regulators_export_has_nothing_of_other_data_sets(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home = home_of(tmp_path, READERS)
    become("rita")
    out = tmp_path / "rita"
    assert main(["export", str(home), "--since", "2026-01-01", "--out", str(out)]) == 0
    whole = b"".join(path.read_bytes() for path in out.rglob("*.entry") if path.parent.name == "entries")
    assert b'"id":"heart"' in whole
    assert b'"id":"d1"' not in whole
    for more in (["--complete"], ["--as", "tiles"]):
        with pytest.raises(SystemExit):
            main(["export", str(home), "--dataset", "heart", "--out", str(tmp_path / "all"), *more])
    assert not (tmp_path / "all").exists()


def test_a_coordinators_reader_sees_the_jobs_that_it_launched(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home = tmp_path / "home"
    log = create(home, party="coordinator")
    people = {name: log.private.pseudonym(name) for name in ("alice", "bob")}
    for name, pseudonym in people.items():
        log.append(
            JobSubmitted(
                id=event_id(),
                decision="allowed",
                actor=Actor(kind="person", id=pseudonym),
                job=f"job-{name}",
                plan=HASH,
                purpose=Purpose(code="DUO:0000007"),
                priority=1,
                invited_count=1,
                invited=HASH,
            )
        )
    log.close()
    (home / "coordinator.yaml").write_text("audit:\n  readers: {bob: coordinator}\n")
    become("bob")
    assert {event["job"] for event in rows_for(home, capsys)} == {"job-bob"}


@pytest.mark.parametrize(
    "section",
    [
        "readers: {alice: king}",
        "readers: [alice]",
        "readers: {alice: {role: regulator}}",
        "readers: {alice: {role: regulator, expires: soon}}",
        "readers: {alice: {role: viewer, more: 1}}",
        "two_people: perhaps",
        "readers: !!python/object:os.system {}",
    ],
)
def test_a_section_that_is_not_understood_lets_nobody_in(tmp_path: Path, become: Become, section: str) -> None:
    home = home_of(tmp_path, section, entries=1)
    with pytest.raises(AuditError) as refused:
        main(["query", str(home)])
    assert refused.value.code == "CFD-A25"


def test_the_section_of_the_readme_is_one_that_the_roles_take(tmp_path: Path) -> None:
    from federation.edge.audit_settings import AuditSection

    page = (Path(edge.__file__).parent / "README.md").read_text()
    block = page.split("    audit:\n", 1)[1].split("\n\n", 1)[0]
    text = "audit:\n" + "\n".join(line.removeprefix("    ") for line in block.split("\n"))
    (tmp_path / "site.yaml").write_text(text)
    AuditSection.model_validate(yaml.safe_load(text)["audit"])
    readers = read_readers(tmp_path)
    assert readers.of("alice") == Grant("compliance")
    assert (readers.of("bob") or Grant("")).datasets == {"heart"}
    assert readers.of("mallory") is None


def test_everything_shown_is_covered_or_marked(tmp_path: Path, become: Become, capsys: Captured) -> None:
    home, _, _ = person_home(tmp_path)
    capsys.readouterr()
    main(["show", str(home), "2"])
    shown = capsys.readouterr().out
    assert "carol (not verified: from the side store)" in shown
    assert "because carol said so (opens its commitment)" in shown
    # a projected column, a name and a private value, altered by somebody with the file
    copied = tmp_path / "copy"
    shutil.copytree(home, copied)
    sql(copied, "UPDATE event SET job = 'other' WHERE idx = 2")
    with pytest.raises(AuditError) as otherwise:
        main(["query", str(copied), "--job", "other"])
    assert otherwise.value.code == "CFD-A14"
    assert "CFD-A14" in {flaw.code for flaw in verified(copied, complete=True).flaws}
    database = sqlite3.connect(home / "audit" / "private.db", isolation_level=None)
    database.execute("UPDATE private_value SET salt = value, value = salt")
    database.close()
    with pytest.raises(AuditError) as unopened:
        main(["show", str(home), "2"])
    assert unopened.value.code == "CFD-A15"
