"""Builders for tests of the audit log: a clock to turn by hand, drafts with only the field that matters."""

import itertools
import shutil
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit import checkpoint, database, key_files, merkle, tiles
from audit.events import Actor, Budget, DataOpened, DataRetired, Dataset, LedgerHead, Purpose
from audit.findings import Verification
from audit.frame import read_frame
from audit.log import AuditLog
from audit.places import Places
from audit.reading import find_log, find_policy, opening_of, origin_of
from audit.settings import LogSettings
from audit.snapshot import Snapshot
from audit.stored import StoredEntry
from audit.verification import Reader, joined, verify

FEDERATION = "heart.example.org"
PARTY = "cleveland"
ORIGIN = f"{FEDERATION}/{PARTY}/audit/1"
HASH = "sha256:" + "a" * 64
DAEMON = Actor(kind="service", id="daemon")
HEART = Dataset(id="heart", version=HASH)
QUIET = LogSettings(checkpoint_every_entries=10_000, checkpoint_every_s=3600)
"""Checkpoints at the beginning, on demand and at the end only."""


def log_settings(database_url: str) -> LogSettings:
    """The settings of a log that the database of a test keeps; SQLite is in the home, as ever."""
    return replace(QUIET, database=None if database_url.startswith("sqlite") else database_url)


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


def killed_home(home: Path, entries: int = 6, **changed: Any) -> Path:
    """A home whose process ended without closing: its last checkpoint covers entry 0 only."""
    log = create(home, **changed)
    for number in range(entries):
        log.append(draft(dataset_id=f"d{number}"))
    kill(log, home)
    return home


def kill(log: AuditLog, home: Path) -> None:
    """Leave the home as it would be if the process of `log` had been killed now."""
    killed = home / "killed"
    shutil.copytree(home / "audit", killed)
    log.close()
    shutil.rmtree(home / "audit")
    killed.rename(home / "audit")


def log_file(home: Path) -> Path:
    return home / "audit" / "1" / "log.db"


def files_of(home: Path) -> dict[str, bytes]:
    """What lies in the epoch's folder, without SQLite's index of its write-ahead log, which readers may renew."""
    found = sorted((home / "audit").glob("[1-9]/*"))
    return {path.name: path.read_bytes() for path in found if path.is_file() and not path.name.endswith("-shm")}


def stored(audit: Path) -> list[StoredEntry]:
    """The rows of the log in an audit folder, unchecked; a process may be writing it."""
    with database.open_to_read(Places.newest(audit), live=True) as connection:
        snapshot = Snapshot(connection)
        return list(snapshot.entries(0, snapshot.last_index() + 1))


def bytes_of(audit: Path) -> bytes:
    """All that lies on the disk of the logs in an audit folder."""
    return b"".join(path.read_bytes() for path in sorted(audit.glob("[1-9]/*")) if path.is_file())


def leaves_of(home: Path) -> list[bytes]:
    return [row.leaf for row in stored(home / "audit")]


def events_in(audit: Path) -> list[dict[str, Any]]:
    """The events of the log in an audit folder, in order; a process may be writing it."""
    return [dict(read_frame(row.leaf, origin=None)[0]) for row in stored(audit) if row.leaf]


def verified(home: Path, *, complete: bool = False, against: dict[str, bytes] | None = None) -> Verification:
    """What all epochs of the log in a home prove under the home's own trust policy."""
    results = []
    for log in find_log(home).epochs():
        policy, pinned_by = find_policy(log, origin_of(log), home / "trust" / f"{PARTY}.policy")
        with log.moment() as (snapshot, signed):
            reader = Reader(policy, pinned_by, against or {}, complete)
            results.append((verify(snapshot, signed, reader), opening_of(log)))
    return joined(results)


# --- what somebody with the file can do -------------------------------------------------------------------------


def sql(home: Path, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run one statement on the file of a log that nobody has open."""
    connection = sqlite3.connect(log_file(home), isolation_level=None)
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.close()


def set_leaf(home: Path, index: int, leaf: bytes, *, row_too: bool = False) -> None:
    sql(home, "UPDATE entry SET leaf = ? WHERE idx = ?", leaf, index)
    if row_too:
        sql(home, "UPDATE entry SET leaf_hash = ? WHERE idx = ?", merkle.leaf_hash(leaf), index)


def alter(home: Path, index: int, *, row_too: bool = False) -> None:
    """Change what an entry says, without its writer's key."""
    leaf = leaves_of(home)[index]
    changed = leaf.replace(b"data.retired", b"data.verified")
    assert changed != leaf
    set_leaf(home, index, changed, row_too=row_too)


def rewrite(home: Path, leaves: list[bytes]) -> None:
    """Make the store one that holds `leaves` and agrees with itself, as somebody without keys could."""
    connection = sqlite3.connect(log_file(home), isolation_level=None)
    do = connection.execute
    do("BEGIN")
    for table in ("entry", "tile", "trail", "writer"):
        do(f"DELETE FROM {table}")  # noqa: S608
    ends: dict[str, tuple[bytes, int, bytes, int]] = {}
    running, t_us = False, 0
    for index, leaf in enumerate(leaves):
        event, signed = read_frame(leaf, origin=None)
        hashed, event_id = merkle.leaf_hash(leaf), bytes.fromhex(event["id"])
        if do("SELECT 1 FROM entry WHERE event_id = ?", (event_id,)).fetchone():
            event_id = index.to_bytes(16, "big")  # the table takes an id once
        do("INSERT INTO entry VALUES (?, ?, ?, ?)", (index, leaf, hashed, event_id))
        if event["action"] in ("log.opened", "key.added", "key.revoked"):
            do("INSERT INTO trail (idx, leaf) VALUES (?, ?)", (index, leaf))
        ends[event["writer"]] = (signed.signatures[0].key_id, event["seq"] + 1, hashed, index)
        running = {"log.booted": True, "log.closed": False}.get(event["action"], running)
        t_us = max(t_us, event["t_us"])
    for name, row in ends.items():
        do("INSERT INTO writer VALUES (?, ?, ?, ?, ?)", (name, *row))
    growth = tiles.Edge().grow(map(merkle.leaf_hash, leaves))
    for tile in growth.tiles:
        if tile.level or tile.full:
            do("INSERT INTO tile VALUES (?, ?, ?)", (tile.level, tile.n, tile.hashes))
    root = growth.edge.root()
    do("UPDATE head SET size = ?, root = ?, t_us = ?, running = ?", (len(leaves), root, t_us, running))
    do("UPDATE cursor SET next_idx = min(next_idx, ?)", (len(leaves),))
    do("COMMIT")
    connection.close()


def resigned(home: Path, leaves: list[bytes]) -> None:
    """Make the log one of these leaves, its tree and its checkpoint too, as who holds the log's key could."""
    rewrite(home, leaves)
    tree = tiles.Edge().grow(list(map(merkle.leaf_hash, leaves))).edge
    origin = opening_of(find_log(home))["origin"]
    log_key = key_files.read_key(home / "audit" / "keys" / "log-1.key", origin)
    (home / "audit" / "1" / "checkpoint").write_bytes(checkpoint.sign(origin, tree.size, tree.root(), log_key))


def no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a command find no home or policy but those that a test makes."""
    for name, value in {
        "CONFIDE_HOME": "",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
