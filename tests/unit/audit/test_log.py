"""The committer: receipts after the disk, one entry per id, one process per home."""

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from audit import checkpoint, note
from audit.errors import AppendFailed, EntryRefused, IdConflict, LogUnreadable, SecondWriter, SettingsUnsafe
from audit.events import Actor, ClockJumped, DataAbandoned, DataClosed, KeyRevoked, UserAdded
from audit.log import AuditLog
from audit.receipt import Receipt, ReceiptGuard
from audit.settings import LogSettings
from tests.support import sqlite_faults
from tests.support.audit_logs import (
    HEART,
    ORIGIN,
    HandClock,
    create,
    draft,
    event_id,
    kill,
    leaves_of,
    opening,
    reopen,
)


def connection_of(log: AuditLog) -> sqlite3.Connection:
    connection: sqlite3.Connection = log._committer._store._driver
    return connection


def events_of(home: Path) -> list[dict[str, object]]:
    from audit.reading import find_log, read_rows

    return [row.event for row in read_rows(find_log(home))]


def test_a_new_log_begins_with_its_keys_and_its_boot(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        assert log.origin == ORIGIN
        assert log.size == 2
    actions = [event["action"] for event in events_of(tmp_path)]
    assert actions == ["log.opened", "log.booted", "log.closed"]


def test_only_the_owner_can_read_what_a_log_leaves_on_the_disk(tmp_path: Path) -> None:
    with create(tmp_path, serve_socket=True) as log:
        log.append(draft())
        log.private.commit("reason", "because")
        for path in (tmp_path / "audit").rglob("*"):
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert mode & (stat.S_IRWXG | stat.S_IRWXO) == 0, (path, oct(mode))


def test_a_receipt_is_given_after_the_sync(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        order: list[str] = []
        with sqlite_faults.syncing(connection_of(log), lambda: order.append("synced")):
            log.append(draft())
            order.append("acknowledged")
        assert order == ["synced", "acknowledged"]


def test_the_same_draft_again_returns_the_first_receipt(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        first = draft()
        receipt = log.append(first)
        size = log.size
        again = log.append(first)
        assert (again.index, again.leaf) == (receipt.index, receipt.leaf)
        assert log.size == size
    with reopen(tmp_path) as log:
        assert log.append(first).index == receipt.index


def test_an_id_used_for_other_content_is_a_conflict(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        first = draft()
        log.append(first)
        with pytest.raises(IdConflict):
            log.append(draft(id=first.id, dataset_id="lungs"))


def test_two_drafts_with_one_id_in_one_batch_become_one_entry(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        same = draft()
        other = draft(id=same.id, dataset_id="lungs")
        futures = [log.submit(same), log.submit(same), log.submit(other)]
        assert futures[0].result().index == futures[1].result().index
        with pytest.raises(IdConflict):
            futures[2].result()


def test_many_threads_share_syncs(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        syncs: list[int] = []
        gate = threading.Event()

        def slow() -> None:
            gate.wait(10)
            syncs.append(1)

        with sqlite_faults.syncing(connection_of(log), slow):
            futures = [log.submit(draft()) for _ in range(200)]
            gate.set()
            indices = sorted(future.result().index for future in futures)
        assert indices == list(range(2, 202))
        assert len(syncs) <= 3


def test_a_queue_that_stays_full_refuses_the_act(tmp_path: Path) -> None:
    settings = LogSettings(queue_entries=4, append_timeout_s=0.1)
    with create(tmp_path, settings=settings) as log:
        gate = threading.Event()
        with sqlite_faults.syncing(connection_of(log), lambda: gate.wait(10) and None):
            futures = [log.submit(draft())]
            with pytest.raises(AppendFailed, match="4 drafts wait"):
                futures.extend(log.submit(draft()) for _ in range(10))
            gate.set()
            assert sorted(future.result().index for future in futures) == list(range(2, 2 + len(futures)))


def test_a_draft_that_cannot_be_an_entry_fails_alone(tmp_path: Path) -> None:
    unknown = note.Ed25519Signer(f"{ORIGIN.removesuffix('/audit/1')}/writer/daemon", bytes(32)).key
    revoked = KeyRevoked(
        id=event_id(),
        decision="allowed",
        actor=Actor(kind="service", id="daemon"),
        role="writer",
        vkey=str(unknown),
        reason="lost",
    )
    with create(tmp_path) as log:
        futures = [log.submit(draft()), log.submit(revoked), log.submit(draft())]
        assert (futures[0].result().index, futures[2].result().index) == (2, 3)
        with pytest.raises(EntryRefused):
            futures[1].result()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with create(tmp_path), pytest.raises(SecondWriter) as refused:
        reopen(tmp_path)
    assert refused.value.exit_status == 78


def test_a_second_log_is_not_made_over_the_first(tmp_path: Path) -> None:
    create(tmp_path).close()
    before = leaves_of(tmp_path)
    keys = (tmp_path / "audit" / "keys" / "log-1.key").read_bytes()
    with pytest.raises(SettingsUnsafe):
        create(tmp_path)
    assert leaves_of(tmp_path) == before
    assert (tmp_path / "audit" / "keys" / "log-1.key").read_bytes() == keys
    reopen(tmp_path).close()


def test_an_empty_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadable):
        reopen(tmp_path)


def test_a_key_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "audit" / "keys" / "log-1.key").chmod(0o644)
    with pytest.raises(SettingsUnsafe) as refused:
        reopen(tmp_path)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A25", 78)


def test_a_key_that_the_log_does_not_declare_stops_the_start(tmp_path: Path) -> None:
    for name in ("one", "two"):
        create(tmp_path / name).close()
    stolen = tmp_path / "two" / "audit" / "keys" / "writer-daemon.key"
    (tmp_path / "one" / "audit" / "keys" / "writer-daemon.key").write_bytes(stolen.read_bytes())
    with pytest.raises(SettingsUnsafe) as refused:
        reopen(tmp_path / "one")
    assert refused.value.code == "CFD-A10"


def test_the_log_fills_in_its_own_site_and_refuses_another(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        assert log.append(draft()).event["site"] == "cleveland"
        with pytest.raises(EntryRefused):
            log.append(draft(site="hungary"))


def test_the_coordinator_names_the_site_itself(tmp_path: Path) -> None:
    with create(tmp_path, party="coordinator") as log:
        assert "site" not in log.append(draft()).event
        assert log.append(draft(site="hungary")).event["site"] == "hungary"


def test_callers_cannot_write_the_logs_own_entries(tmp_path: Path) -> None:
    jumped = ClockJumped(
        id=event_id(), decision="allowed", actor=Actor(kind="service", id="daemon"), from_us=0, to_us=1
    )
    with create(tmp_path) as log, pytest.raises(EntryRefused):
        log.append(jumped)


def test_a_person_is_never_named_in_an_entry() -> None:
    with pytest.raises(ValidationError):
        Actor(kind="person", id="alice")
    with pytest.raises(ValidationError):
        UserAdded(
            id=event_id(), decision="allowed", actor=Actor(kind="service", id="daemon"), user="alice", role="viewer"
        )


def test_a_refusal_has_a_code_and_an_allowed_act_has_none() -> None:
    with pytest.raises(ValidationError):
        draft(decision="refused")
    with pytest.raises(ValidationError):
        draft(code="CFD-S01")
    assert draft(decision="refused", code="CFD-S01", rule="floors/quorum").code == "CFD-S01"


def test_an_opening_for_a_job_says_what_for_and_under_what() -> None:
    for missing in ("plan", "round", "purpose", "policy", "rule", "job"):
        with pytest.raises(ValidationError):
            opening(**{missing: None})


def test_a_clock_that_falls_back_is_held_and_said(tmp_path: Path) -> None:
    clock = HandClock()
    with create(tmp_path, clock) as log:
        first = log.append(draft())
        clock.jump_s(-3600)
        second = log.append(draft())
    assert second.event["t_us"] == first.event["t_us"]
    assert second.event["wall_us"] == first.event["t_us"] - 3_600_000_000
    jumped = next(event for event in events_of(tmp_path) if event["action"] == "clock.jumped")
    assert (jumped["from_us"], jumped["to_us"]) == (first.event["t_us"], second.event["wall_us"])


def test_a_clock_that_leaps_ahead_is_said(tmp_path: Path) -> None:
    clock = HandClock()
    with create(tmp_path, clock) as log:
        clock.jump_s(86_400)
        log.append(draft())
        clock.pass_s(86_400)
        log.append(draft())
    assert sum(event["action"] == "clock.jumped" for event in events_of(tmp_path)) == 1


def test_a_boot_with_a_clock_behind_the_log_is_said(tmp_path: Path) -> None:
    clock = HandClock()
    create(tmp_path, clock).close()
    clock.jump_s(-10)
    reopen(tmp_path, clock).close()
    assert "clock.jumped" in [event["action"] for event in events_of(tmp_path)]


def test_an_unclean_end_is_recorded_and_what_was_open_is_abandoned(tmp_path: Path) -> None:
    log = create(tmp_path)
    closed, left = log.append(opening(round=1)), log.append(opening(round=2))
    log.append(
        DataClosed(
            id=event_id(),
            decision="allowed",
            actor=Actor(kind="service", id="daemon"),
            opened=closed.index,
            dataset=HEART,
            job=closed.event["job"],
            round=1,
        )
    )
    kill(log, tmp_path)
    reopen(tmp_path).close()
    booted = [event for event in events_of(tmp_path) if event["action"] == "log.booted"]
    assert booted[-1]["unclean"] is True
    abandoned = [event for event in events_of(tmp_path) if event["action"] == "data.abandoned"]
    assert [(event["opened"], event["round"]) for event in abandoned] == [(left.index, 2)]
    assert abandoned[0]["dataset"] == DataAbandoned.model_fields["dataset"].annotation(
        **left.event["dataset"]
    ).model_dump(exclude_none=True)


def test_checkpoints_follow_the_number_of_entries(tmp_path: Path) -> None:
    with create(tmp_path, settings=LogSettings(checkpoint_every_entries=8, checkpoint_every_s=3600)) as log:
        for _ in range(20):
            log.append(draft())
        log.append(draft())
        stored = checkpoint.parse((tmp_path / "audit" / "1" / "checkpoint").read_bytes())
        assert log.size - stored.size < 10


def test_a_checkpoint_on_demand_covers_what_was_acknowledged(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        receipt = log.append(draft())
        signed = log.checkpoint()
        assert signed == (tmp_path / "audit" / "1" / "checkpoint").read_bytes()
        assert checkpoint.parse(signed).size > receipt.index


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = create(tmp_path)
    log.close()
    log.close()
    with pytest.raises(AppendFailed):
        log.append(draft())


def test_a_draft_too_large_for_a_leaf_is_refused_alone(tmp_path: Path) -> None:
    from audit.events import JobValidated

    findings = [f"{number:0120d}" for number in range(200)]
    large = JobValidated(
        id=event_id(),
        decision="allowed",
        actor=Actor(kind="service", id="daemon"),
        plan=HEART.version,
        findings=findings,
    )
    with create(tmp_path) as log:
        with pytest.raises(EntryRefused):
            log.append(large)
        log.append(draft())


def test_a_receipt_is_made_by_the_committer_only() -> None:
    with pytest.raises(TypeError):
        Receipt(object(), ORIGIN, 0, b"", {})


def test_the_loader_wants_its_own_receipt(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        receipt = log.append(opening())
        crossed = Receipt.reopen(origin=log.origin, index=receipt.index, leaf=receipt.leaf, writer_key=log.writer_key)
        wanted = {
            "dataset": "heart",
            "version": HEART.version,
            "mode": "train",
            "job": "heart-risk-7f3a91",
            "round_number": 7,
        }
        guard = ReceiptGuard(origin=log.origin, boot=log.boot)
        for name, other in (
            ("dataset", "lungs"),
            ("version", "sha256:" + "b" * 64),
            ("mode", "evaluate"),
            ("job", "lungs-7f3a91"),
            ("round_number", 8),
        ):
            with pytest.raises(EntryRefused):
                guard.admit(crossed, **{**wanted, name: other})
        guard.admit(crossed, **wanted)
        with pytest.raises(EntryRefused, match="used before"):
            guard.admit(crossed, **wanted)
        with pytest.raises(EntryRefused):
            ReceiptGuard(origin=log.origin, boot="0" * 32).admit(crossed, **wanted)
        refused = log.append(opening(decision="refused", code="CFD-S01"))
        with pytest.raises(EntryRefused):
            guard.admit(refused, **wanted)
        other_key = note.Ed25519Signer(log.writer_key.split("+")[0], bytes(32)).key
        with pytest.raises(EntryRefused):
            Receipt.reopen(origin=log.origin, index=receipt.index, leaf=receipt.leaf, writer_key=other_key)
        with pytest.raises(EntryRefused):
            Receipt.reopen(
                origin=log.origin,
                index=receipt.index,
                leaf=receipt.leaf.replace(b'"round":7', b'"round":8'),
                writer_key=log.writer_key,
            )


def test_a_log_on_a_network_file_system_is_refused_unless_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path).close()
    monkeypatch.setattr("audit.edge.network_file_system", lambda _path: "nfs4")
    with pytest.raises(SettingsUnsafe):
        AuditLog.open(tmp_path / "audit", clock=HandClock())
    AuditLog.open(tmp_path / "audit", clock=HandClock(), settings=LogSettings(allow_network_filesystem=True)).close()
