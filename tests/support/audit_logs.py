"""Builders for tests of the audit log: a clock to turn by hand, drafts with only the field that matters."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audit import storage
from audit.events import Actor, Budget, DataOpened, DataRetired, Dataset, LedgerHead, Purpose
from audit.log import AuditLog
from audit.settings import LogSettings

FEDERATION = "heart.example.org"
PARTY = "cleveland"
ORIGIN = f"{FEDERATION}/{PARTY}/audit/1"
HASH = "sha256:" + "a" * 64
DAEMON = Actor(kind="service", id="daemon")
HEART = Dataset(id="heart", version=HASH)
QUIET = LogSettings(checkpoint_every_entries=10_000, checkpoint_every_s=3600)
"""Checkpoints at the beginning, on demand and at the end only."""


class HandClock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.passed_s = 1000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic_s(self) -> float:
        return self.passed_s

    def pass_s(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.passed_s += seconds

    def jump_s(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)


_numbers = itertools.count(1)


def event_id() -> str:
    return f"{next(_numbers):032x}"


def draft(**changed: Any) -> DataRetired:
    """A small draft; `dataset_id` changes its content."""
    name = changed.pop("dataset_id", "heart")
    fields = {"id": event_id(), "decision": "allowed", "actor": DAEMON, "dataset": Dataset(id=name, version=HASH)}
    return DataRetired(**{**fields, **changed})


def opening(**changed: Any) -> DataOpened:
    """An opening of data for round 7 of a job."""
    fields: dict[str, Any] = {
        "id": event_id(),
        "decision": "allowed",
        "actor": DAEMON,
        "rule": "rules/0",
        "dataset": HEART,
        "mode": "train",
        "job": "heart-risk-7f3a91",
        "plan": HASH,
        "round": 7,
        "purpose": Purpose(code="DUO:0000007"),
        "policy": HASH,
    }
    return DataOpened(**{**fields, **changed})


def budget(eps_nano: int) -> Budget:
    return Budget(
        population="heart",
        policy="p1",
        trust="local",
        unit="record",
        eps_nano=eps_nano,
        delta_e15=10_000_000_000,
        head=LedgerHead(seq=1, hash=HASH),
    )


def create(home: Path, clock: HandClock | None = None, **changed: Any) -> AuditLog:
    settings = changed.pop("settings", QUIET)
    return AuditLog.create(
        home / "audit",
        origin_federation=FEDERATION,
        party=changed.pop("party", PARTY),
        clock=clock or HandClock(),
        settings=settings,
        **changed,
    )


def reopen(home: Path, clock: HandClock | None = None, **changed: Any) -> AuditLog:
    return AuditLog.open(home / "audit", clock=clock or HandClock(), settings=changed.pop("settings", QUIET), **changed)


def closed_home(home: Path, entries: int = 6) -> Path:
    """A home whose log was closed in order, with `entries` beside its own three."""
    log = create(home)
    for number in range(entries):
        log.append(draft(dataset_id=f"d{number}"))
    log.close()
    return home


def killed_home(home: Path, entries: int = 6) -> Path:
    """A home whose process ended without closing: its last checkpoint covers entry 0 only."""
    log = create(home)
    for number in range(entries):
        log.append(draft(dataset_id=f"d{number}"))
    end = entries_file(home).read_bytes()
    signed = (home / "audit" / "1" / "checkpoint").read_bytes()
    log.close()
    entries_file(home).write_bytes(end)
    (home / "audit" / "1" / "checkpoint").write_bytes(signed)
    return home


def entries_file(home: Path) -> Path:
    return home / "audit" / "1" / storage.ENTRIES


def lines_of(home: Path) -> list[bytes]:
    return entries_file(home).read_bytes().splitlines(keepends=True)


def rewrite(home: Path, lines: list[bytes]) -> None:
    entries_file(home).write_bytes(b"".join(lines))


def rechained(lines: list[bytes]) -> list[bytes]:
    """The lines with index and chain computed anew, as somebody without keys could."""
    leaves = [storage.parse_line(line.removesuffix(b"\n")).leaf for line in lines]
    return storage.lines_for(0, storage.FIRST_CHAIN, leaves)[0]
