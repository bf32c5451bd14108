"""The next epoch: an old log that must not go on is closed, and the new one names it and what it lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit import edge, epochs
from audit.command import main
from audit.errors import LogBehind, LogDamaged, LogFrozen, ProofRefused, ReadRefused, SecondWriter, SettingsUnsafe
from audit.events import Actor, JobSubmitted, Purpose
from audit.findings import Verdict
from audit.opening import open_store
from audit.places import Places
from audit.proof_file import ProofFile
from audit.proving import prove_in_an_earlier_epoch
from audit.reading import find_entry, find_log, origin_of
from audit.round_gate import check_round_gate
from audit.trust import TrustPolicy, parse_policy
from tests.support.audit_logs import (
    HASH,
    HandClock,
    alter,
    closed_home,
    create,
    draft,
    event_id,
    events_in,
    leaves_of,
    log_settings,
    reopen,
    rewrite,
    sql,
    verified,
)

Become = Callable[[str], None]
BY = Actor(kind="service", id="daemon")


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONFIDE_HOME", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Act as another account from now on."""

    def to(account: str) -> None:
        monkeypatch.setattr(edge, "account", lambda: account)

    to("alice")
    return to


def begin_next(home: Path, **changed: Any) -> None:
    epochs.begin_next(
        home / "audit", reason="because", commit=lambda _: "c1:" + "A" * 43, actor=BY, clock=HandClock(), **changed
    )


def test_a_closed_log_says_that_it_ends_and_the_next_names_it(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    begin_next(home)
    old = find_log(home / "audit" / "1")
    with old.moment() as (snapshot, _):
        head = snapshot.head()
    assert head is not None
    assert (find_entry(old, "9").event["action"], head.size) == ("log.frozen", 10)
    (opened,) = events_in(home / "audit")
    assert opened["origin"] == "heart.example.org/cleveland/audit/2"
    root = "sha256:" + head.root.hex()
    assert opened["previous"] == {"origin": "heart.example.org/cleveland/audit/1", "size": 10, "root": root}
    assert "lost" not in opened
    assert opened["private"] == {"reason": "c1:" + "A" * 43}
    result = verified(home)
    assert (result.flaws, result.verdict) == ([], Verdict.VERIFIED)


def test_the_next_epoch_is_the_one_that_opens_and_appends(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    begin_next(home)
    with reopen(home) as log:
        assert log.origin.endswith("/audit/2")
        log.append(draft())
    actions = [event["action"] for event in events_in(home / "audit")]
    assert actions == ["log.opened", "log.booted", "data.retired", "log.closed"]
    begin_next(home)
    assert origin_of(find_log(home)).endswith("/audit/3")
    assert verified(home).flaws == []


def restored(home: Path) -> None:
    """Put an older copy of the database back, beside the checkpoint file of a longer log."""
    backup = home.with_name("backup")
    shutil.copytree(home / "audit" / "1", backup)
    with reopen(home) as log:
        for _ in range(5):
            log.append(draft())
    for path in backup.iterdir():
        if path.name != "checkpoint":
            shutil.copyfile(path, home / "audit" / "1" / path.name)


def test_a_restored_backup_does_not_start_until_an_epoch_names_both_roots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], become: Become
) -> None:
    home = closed_home(tmp_path / "home")
    restored(home)
    signed = (home / "audit" / "1" / "checkpoint").read_bytes()
    with pytest.raises(LogBehind) as refused:
        reopen(home)
    assert "new-epoch" in refused.value.hint
    assert (home / "audit" / "1" / "checkpoint").read_bytes() == signed
    assert main(["new-epoch", str(home), "--reason", "the disk died"]) == 0
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    assert "a tree of 16 entries" in capsys.readouterr().err
    opened = events_in(home / "audit")[0]
    assert (opened["origin"], opened["previous"]["size"]) == ("heart.example.org/cleveland/audit/2", 9)
    assert (opened["lost"]["size"], opened["lost"]["cause"]) == (16, "shorter-than-signed")
    assert b"the disk died" not in leaves_of(home)[0]
    with reopen(home) as log:
        log.append(draft())
    assert main(["verify", str(home), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["flaws"] == []
    assert [(note["code"], note["where"]) for note in report["notes"]] == [("CFD-A07", "epoch 1, file checkpoint")]
    main(["query", str(home), "--action", "data", "--format", "jsonl"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["entry"] for row in rows] == [*(f"1/{index}" for index in range(2, 8)), "2/3"]


@pytest.mark.parametrize("what", ["an entry", "the tree", "the file"])
def test_a_damaged_log_is_left_and_the_next_begins(tmp_path: Path, what: str) -> None:
    home = closed_home(tmp_path)
    match what:
        case "an entry":
            alter(home, 4)
        case "the tree":
            leaves = leaves_of(home)
            leaves[4] = leaves[4].replace(b"data.retired", b"data.verified")
            rewrite(home, leaves)
        case _:
            (home / "audit" / "1" / "log.db").write_bytes(b"nothing")
    with pytest.raises(LogDamaged):
        reopen(home)
    begin_next(home)
    opened = events_in(home / "audit")[0]
    assert opened["previous"]["origin"] == "heart.example.org/cleveland/audit/1"
    assert opened["previous"]["size"] == (0 if what == "the file" else 9)
    if what != "an entry":
        assert (opened["lost"]["size"], opened["previous"]["root"] != opened["lost"]["root"]) == (9, True)
    with pytest.raises(LogFrozen):
        open_store(Places(home / "audit", 1))
    reopen(home).close()


def test_an_epoch_that_was_not_left_so_is_a_flaw(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    begin_next(home)
    leaves = [row[0] for row in sql(home, "SELECT leaf FROM entry ORDER BY idx")]
    rewrite(home, leaves[:9])  # without the entry that froze the old one
    (home / "audit" / "1" / "checkpoint").unlink()
    assert ("CFD-A08", "epoch 2, entry 0") in [(flaw.code, flaw.where) for flaw in verified(home).flaws]


def test_a_running_process_keeps_its_epoch(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        with pytest.raises(SecondWriter):
            begin_next(tmp_path)
        log.append(draft())
    assert not (tmp_path / "audit" / "1" / "frozen").exists()


def test_a_run_that_was_cut_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = closed_home(tmp_path)

    def cut(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("audit.epochs.pin_another_log_key", cut)
        with pytest.raises(KeyboardInterrupt):
            begin_next(home)
    assert origin_of(find_log(home)).endswith("/audit/1")
    begin_next(home)
    assert origin_of(find_log(home)).endswith("/audit/2")
    assert not list((home / "audit").glob(".*.new"))
    assert verified(home).flaws == []


def test_a_paged_list_goes_on_from_one_epoch_to_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = closed_home(tmp_path / "home", entries=3)
    begin_next(home)
    with reopen(home) as log:
        log.append(draft())
    copied = tmp_path / "copy"
    shutil.copytree(home, copied)
    names: list[str] = []
    after: list[str] = []
    while True:
        main(["query", str(copied), "--limit", "4", "--format", "json", *after])
        page = json.loads(capsys.readouterr().out)
        names += [row["entry"] for row in page["rows"]]
        if "after" not in page:
            break
        after = ["--after", page["after"]]
    assert names == [*(f"1/{index}" for index in range(7)), *(f"2/{index}" for index in range(4))]


def test_an_epoch_may_move_to_a_server(tmp_path: Path, database_url: str) -> None:
    home = closed_home(tmp_path)
    begin_next(home, settings=log_settings(database_url))
    with reopen(home) as log:
        log.append(draft())
    assert verified(home, complete=True).flaws == []
    if "postgresql" in database_url:  # the setting and the place agree, or it doesn't start
        reopen(home, settings=log_settings(database_url)).close()
    begin_next(home)
    assert verified(home).flaws == []
    assert (home / "audit" / "3" / "log.db").exists()
    if "postgresql" in database_url:
        with pytest.raises(SettingsUnsafe, match=r"audit\.database"):
            reopen(home, settings=log_settings(database_url))


def request_of(home: Path) -> str:
    (path,) = (home / "audit" / "requests").glob("*.request")
    return path.stem


def test_a_second_person_confirms_the_next_epoch_and_the_record_names_both(
    tmp_path: Path, become: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    home = closed_home(tmp_path)
    assert main(["new-epoch", str(home), "--reason", "the key was stolen"]) == 0
    request = request_of(home)
    with pytest.raises(ReadRefused, match="can't confirm"):
        main(["approve", str(home), request])
    assert origin_of(find_log(home)).endswith("/audit/1")
    assert main(["requests", str(home)]) == 0
    assert "new-epoch reason the key was stolen" in capsys.readouterr().out
    become("bob")
    assert main(["approve", str(home), request]) == 0
    opened = events_in(home / "audit")[0]
    assert len(set(opened["approval"]["by"])) == 2
    assert opened["actor"]["id"] == opened["approval"]["by"][1]
    assert all(person.startswith("p1:") for person in opened["approval"]["by"])
    assert not list((home / "audit" / "requests").iterdir())
    assert main(["verify", str(home)]) == 0
    assert "epoch 2 follows epoch 1 as it was left, with 10 entries; begun by two people" in capsys.readouterr().out


def test_one_person_alone_begins_an_epoch_where_the_home_says_so_and_verify_tells(
    tmp_path: Path, become: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    home = closed_home(tmp_path)
    (home / "site.yaml").write_text("audit: {two_people: false}\n")
    assert main(["new-epoch", str(home), "--reason", "x", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["log"], told["previous"]["size"]) == ("heart.example.org/cleveland/audit/2", 10)
    assert len(events_in(home / "audit")[0]["approval"]["by"]) == 1
    assert main(["verify", str(home)]) == 0
    assert "begun by one person alone" in capsys.readouterr().out


def test_a_reader_without_that_right_begins_no_epoch_even_of_a_damaged_log(tmp_path: Path, become: Become) -> None:
    home = closed_home(tmp_path)
    (home / "site.yaml").write_text("audit: {readers: {alice: viewer}}\n")
    for damaged in (False, True):
        if damaged:
            (home / "audit" / "1" / "log.db").write_bytes(b"nothing")
        with pytest.raises(ReadRefused, match="may not new-epoch"):
            main(["new-epoch", str(home), "--reason", "x"])
    assert not (home / "audit" / "requests").exists()


def test_a_log_whose_first_entry_can_not_be_read_ends_by_two_people_too(tmp_path: Path, become: Become) -> None:
    home = closed_home(tmp_path)
    (home / "audit" / "1" / "log.db").write_bytes(b"nothing")
    assert main(["new-epoch", str(home), "--reason", "the disk died"]) == 0
    become("bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    assert origin_of(find_log(home)).endswith("/audit/2")


def test_a_round_may_open_on_an_entry_of_the_epoch_before(tmp_path: Path) -> None:
    """A job was submitted, then the log had to go on in a new epoch: its round opens on the old one's last word."""
    submitted = JobSubmitted(
        id=event_id(),
        decision="allowed",
        actor=BY,
        job="j-1",
        plan=HASH,
        purpose=Purpose(code="DUO:0000007"),
        priority=50,
        invited_count=2,
        invited=HASH,
    )
    with create(tmp_path, party="coordinator") as log:
        log.append(submitted)
    begin_next(tmp_path)
    policy = parse_policy((tmp_path / "trust" / "coordinator.policy").read_text())
    data = prove_in_an_earlier_epoch(tmp_path / "audit", submitted.id, policy)
    assert data is not None
    found = check_round_gate(ProofFile.parse(data), policy, job="j-1", round_number=0)
    assert (found.checkpoint.origin, found.index) == ("heart.example.org/coordinator/audit/1", 2)
    only_new = parse_policy("\n".join(line for line in format_lines(policy) if "/audit/1+" not in line))
    with pytest.raises(ProofRefused):
        check_round_gate(ProofFile.parse(data), only_new, job="j-1", round_number=0)
    assert prove_in_an_earlier_epoch(tmp_path / "audit", event_id(), policy) is None
    assert prove_in_an_earlier_epoch(closed_home(tmp_path / "one") / "audit", submitted.id, policy) is None


def format_lines(policy: TrustPolicy) -> list[str]:
    return [*(f"log {key}" for key in policy.logs), "quorum none"]
