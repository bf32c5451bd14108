"""Entries that went to an archive: what still proves, what answers that it is gone, and what a crash leaves."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from audit import edge
from audit.command import main
from audit.errors import AuditError, LogUnreadable, ReadRefused
from audit.events import Approval, AuditPruned, AuditRedacted, KeyAdded
from audit.note import Ed25519Signer
from tests.support.audit_logs import (
    DAEMON,
    FEDERATION,
    HASH,
    PARTY,
    HandClock,
    create,
    draft,
    event_id,
    events_in,
    kill,
    log_settings,
    no_home_of_the_machine,
    reopen,
    sql,
    stored,
    verified,
)

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


def old_home(home: Path, entries: int = 700) -> Path:
    """A home whose entries are of 2015, and a second key among the first of them."""
    clock = HandClock()
    clock.wall = datetime(2015, 1, 1, tzinfo=UTC)
    log = create(home, clock)
    key = Ed25519Signer(f"{FEDERATION}/{PARTY}/writer/other", bytes([9]) * 32).key
    log.append(KeyAdded(id=event_id(), decision="allowed", actor=DAEMON, role="writer", vkey=str(key)))
    pending = [log.submit(draft(dataset_id=f"d{number}")) for number in range(entries)]
    for one in pending:
        one.result()
    log.close()
    return home


def request_of(home: Path) -> str:
    (path,) = (home / "audit" / "requests").glob("*.request")
    return path.stem


def pruned(home: Path, below: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(edge, "account", lambda: "alice")
    assert main(["prune", str(home), "--below", str(below)]) == 0
    monkeypatch.setattr(edge, "account", lambda: "bob")
    assert main(["approve", str(home), request_of(home)]) == 0
    return home


def test_pruning_keeps_proofs_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    home = old_home(tmp_path / "home")
    policy = str(home / "trust" / f"{PARTY}.policy")
    for index in (0, 2, 100, 511, 512, 600):
        assert main(["prove", str(home), str(index), "--out", str(tmp_path / f"before{index}")]) == 0
    shutil.copy(home / "audit" / "1" / "checkpoint", tmp_path / "earlier")
    pruned(home, 512, monkeypatch)
    assert stored(home / "audit")[0].index == 512
    for index in (0, 2, 100, 511, 512, 600):
        assert main(["check", str(tmp_path / f"before{index}"), "--trust", policy]) == 0
    for index in (0, 2, 512, 600):  # 0 and 2 hold keys and are in the trail
        assert main(["prove", str(home), str(index), "--out", str(tmp_path / f"after{index}")]) == 0
        assert main(["check", str(tmp_path / f"after{index}"), "--trust", policy]) == 0
    for verb, *more in (("show", "100"), ("prove", "100", "--out", str(tmp_path / "no"))):
        with pytest.raises(AuditError) as gone:
            main([verb, str(home), *more])
        assert (gone.value.code, gone.value.exit_status) == ("CFD-A30", 1)
    found = verified(home, complete=True, against={"earlier": (tmp_path / "earlier").read_bytes()})
    assert found.flaws == []
    assert [(note.code, note.where) for note in found.notes if note.code == "CFD-A42"] == [
        ("CFD-A42", "entries 0 to 511")
    ]
    assert any(line.startswith("extends the checkpoint of") for line in found.proved)
    with reopen(home) as log:
        log.append(draft())
    assert verified(home, complete=True).flaws == []
    capsys.readouterr()
    assert main(["query", str(home), "--dataset", "d600", "--format", "jsonl"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["rebuild", str(home)]) == 0
    assert verified(home, complete=True).flaws == []


def test_the_archive_is_a_bundle_that_holds_what_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    home = pruned(old_home(tmp_path / "home"), 256, monkeypatch)
    (archive,) = (home / "audit" / "archive").glob("*.zip")
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["verify", str(archive), "--trust", policy, "--complete"]) == 0
    capsys.readouterr()
    assert main(["show", str(archive), "100", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["event"]["dataset"]["id"] == "d97"


def test_what_is_exported_behind_a_pruning_is_whole_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    home = pruned(pruned(old_home(tmp_path / "home"), 256, monkeypatch), 512, monkeypatch)
    policy = str(home / "trust" / f"{PARTY}.policy")
    for name, more in (("b.zip", []), ("tiles", ["--as", "tiles"]), ("s", ["--dataset", "d600"])):
        assert main(["export", str(home), "--out", str(tmp_path / name), *more]) == 0
        assert main(["verify", str(tmp_path / name), "--trust", policy]) == 0
        assert "CFD-A42 entries 0 to 511: pruned" in capsys.readouterr().out
    assert main(["prove", str(tmp_path / "b.zip"), "600", "--out", str(tmp_path / "p")]) == 0
    assert main(["check", str(tmp_path / "p"), "--trust", policy]) == 0


def test_entries_that_went_without_a_record_are_missing(tmp_path: Path) -> None:
    home = old_home(tmp_path / "home", 300)
    sql(home, "DELETE FROM entry WHERE idx < 256")
    sql(home, "DELETE FROM tile WHERE level = 0 AND n = 0")
    assert "CFD-A02" in {flaw.code for flaw in verified(home).flaws}
    with pytest.raises(AuditError):
        main(["query", str(home)])


def test_a_trail_that_was_bent_is_no_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pruned(old_home(tmp_path / "home", 300), 256, monkeypatch)
    path = sql(home, "SELECT path FROM trail WHERE idx = 2")[0][0]
    sql(home, "UPDATE trail SET path = ? WHERE idx = 2", bytes(32) + path[32:])
    assert verified(home).flaws != []
    with pytest.raises(AuditError):
        reopen(home)
    sql(home, "UPDATE trail SET path = ? WHERE idx = 2", path)
    sql(home, "DELETE FROM trail WHERE idx = (SELECT max(idx) FROM trail)")
    assert verified(home).flaws != []


def test_half_done_pruning_is_finished_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = old_home(tmp_path / "home", 300)
    log = reopen(home)
    monkeypatch.setattr(type(log), "_done", lambda _self, receipt, _body: receipt)  # the crash: recorded, not done
    people = [log.private.pseudonym(name) for name in ("alice", "bob")]
    log.append(
        AuditPruned(
            id=event_id(),
            decision="allowed",
            actor=DAEMON,
            below=256,
            archive=HASH,
            size=256,
            root=HASH,
            approval=Approval(id="r-1", by=people),
        )
    )
    kill(log, home)
    assert stored(home / "audit")[0].index == 0
    assert verified(home).flaws == []
    monkeypatch.undo()
    reopen(home).close()
    assert stored(home / "audit")[0].index == 256
    assert verified(home, complete=True).flaws == []


@pytest.mark.parametrize(
    ("section", "below", "error"),
    [
        ("legal_hold: true", 256, ReadRefused),
        ("retention: gxp", 256, ReadRefused),
        ("retention: [eu-ai, gxp]", 256, ReadRefused),
        ("two_people: true", 255, LogUnreadable),
        ("two_people: true", 0, LogUnreadable),
        ("two_people: true", 512, LogUnreadable),
        ("retention: {profile: custom}", 256, AuditError),
    ],
)
def test_what_has_to_stay_is_not_pruned(tmp_path: Path, section: str, below: int, error: type[AuditError]) -> None:
    home = old_home(tmp_path / "home", 300)
    (home / "site.yaml").write_text(f"audit:\n  {section}\n")
    with pytest.raises(error):
        main(["prune", str(home), "--below", str(below)])
    assert not (home / "audit" / "requests").exists()
    assert stored(home / "audit")[0].index == 0


def test_young_entries_stay(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with create(home) as log:
        for one in [log.submit(draft(dataset_id=f"d{number}")) for number in range(300)]:
            one.result()
    with pytest.raises(ReadRefused, match="days at least"):
        main(["prune", str(home), "--below", "256"])


def test_both_databases_empty_and_prune(tmp_path: Path, database_url: str) -> None:
    home = tmp_path / "home"
    log = create(home, settings=log_settings(database_url))
    for one in [log.submit(draft(dataset_id=f"d{number}")) for number in range(300)]:
        one.result()
    people = [log.private.pseudonym(name) for name in ("alice", "bob")]
    approval = Approval(id="r-1", by=people)
    target = stored(home / "audit")[270]
    event = events_in(home / "audit")[270]
    common: dict[str, Any] = {"decision": "allowed", "actor": DAEMON, "approval": approval}
    log.append(
        AuditRedacted(
            id=event_id(),
            **common,
            index=270,
            leaf_hash="sha256:" + target.leaf_hash.hex(),
            target_writer=event["writer"],
            target_seq=event["seq"],
            basis="gdpr-17",
        )
    )
    log.append(AuditPruned(id=event_id(), **common, below=256, archive=HASH, size=256, root=HASH))
    log.close()
    rows = stored(home / "audit")
    assert rows[0].index == 256
    assert [row.index for row in rows if not row.leaf] == [270]
    reopen(home).close()
    found = verified(home, complete=True)
    assert found.flaws == []
    assert {note.code for note in found.notes} >= {"CFD-A41", "CFD-A42"}
