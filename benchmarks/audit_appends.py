"""Appending to an audit log beside bare inserts, bare syncs and pymerkle, and what a round adds."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import durable, events, merkle, storage
from audit.edge import SystemClock
from audit.log import AuditLog
from audit.receipt import Receipt
from audit.tiles import HASHES_PER_TILE
from benchmarks.audit_peers import BareInserts, BareSyncs, Pymerkle
from benchmarks.audit_peers import Row as EntryRow
from benchmarks.row import Row, at_least, at_most
from benchmarks.timing import medians, seconds
from tests.support.long_log import round_drafts

WRITERS: Final = 32


@dataclass
class _Writing:
    """A fresh log in a folder, and what it is compared with."""

    log: AuditLog
    inserts: BareInserts
    syncs: BareSyncs
    number: int = 0

    @classmethod
    def begun(cls, folder: Path) -> "_Writing":
        log = AuditLog.create(
            folder / "audit", origin_federation="heart.example.org", party="cleveland", clock=SystemClock()
        )
        return cls(log, BareInserts(folder), BareSyncs(folder))

    def drafts(self, count: int) -> list[events.Draft]:
        """Return drafts of openings of data, about the longest that are frequent."""
        made = []
        for _ in range(count):
            self.number += 1
            made.append(
                round_drafts("heart", job="heart-risk", number=self.number, opened=0, new_id=self.log.new_id)[1]
            )
        return made

    def rows(self, count: int) -> list[EntryRow]:
        """Return rows of the same size as those of such entries, each under another id."""
        leaf = self.log.append(self.drafts(1)[0]).leaf
        return [(leaf, merkle.leaf_hash(leaf), bytes.fromhex(self.log.new_id())) for _ in range(count)]

    def singly(self, count: int) -> float:
        drafts = self.drafts(count)
        return seconds(lambda: [self.log.append(draft) for draft in drafts])

    def in_batches(self, count: int) -> float:
        """Return the seconds for `count` batches of 256, with no projection following."""
        batches = [self.drafts(HASHES_PER_TILE) for _ in range(count)]
        projector = self.log._committer._projector
        projector.behind = lambda size: 0  # type: ignore[method-assign]
        try:
            return seconds(lambda: [self._batch(drafts) for drafts in batches])
        finally:
            del projector.behind  # type: ignore[method-assign]

    def _batch(self, drafts: list[events.Draft]) -> list[Receipt]:
        return [done.result() for done in [self.log.submit(draft) for draft in drafts]]

    def by_many(self, each: int) -> float:
        """Return entries for each sync of the disk, with many writers that each wait for their own entry."""
        shares = [self.drafts(each) for _ in range(WRITERS)]
        threads = [threading.Thread(target=lambda mine=mine: [*map(self.log.append, mine)]) for mine in shares]
        with _counted_syncs() as count:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return each * WRITERS / count[0]

    def a_round(self, number: int) -> tuple[float, int]:
        """Return the seconds that a round of a site spends on its log, and how many entries it writes."""
        drafts = round_drafts("heart", job="heart-risk", number=number, opened=0, new_id=self.log.new_id)
        leased, opened, closed, spent, sent = drafts
        began = time.perf_counter()
        self.log.submit(leased)
        self.log.append(opened)
        self.log.submit(closed)
        self.log.append(spent)
        self.log.append(sent)
        self.log.checkpoint()
        return time.perf_counter() - began, len(drafts)


@contextmanager
def _counted_syncs() -> Iterator[list[int]]:
    """Count how often the log waits for the disk: a commit once, a checkpoint's file and its folder, moved pages."""
    count = [0]
    transaction, move, sync, sync_folder = (
        storage.Store._transaction,
        storage.Store.move_pages,
        durable.sync,
        durable.sync_folder,
    )

    def counted(work: Callable[..., object], syncs: int, due: Callable[..., bool] = lambda *_: True) -> object:
        def wrapper(*arguments: object, **named: object) -> object:
            count[0] += syncs if due(*arguments) else 0
            return work(*arguments, **named)

        return wrapper

    storage.Store._transaction = counted(transaction, 1)  # type: ignore[method-assign, assignment]
    storage.Store.move_pages = counted(  # type: ignore[method-assign, assignment]
        move, 2, lambda store: store._pages >= storage.WAL_PAGES
    )
    durable.sync, durable.sync_folder = counted(sync, 1), counted(sync_folder, 1)  # type: ignore[assignment]
    try:
        yield count
    finally:
        storage.Store._transaction, storage.Store.move_pages = transaction, move  # type: ignore[method-assign]
        durable.sync, durable.sync_folder = sync, sync_folder


def append_rows(folder: Path, peer: Pymerkle | None) -> list[Row]:
    writing = _Writing.begun(folder)
    with writing.log:
        rows = _single_appends(writing, peer)
        rows += _batches(writing)
        rows += _a_round(writing)
    return rows


def _single_appends(writing: _Writing, peer: Pymerkle | None) -> list[Row]:
    count = 100
    leaf = writing.rows(1)[0][0]
    measures = {
        "log": lambda: writing.singly(count),
        "sqlite": lambda: writing.inserts.seconds(writing.rows(count), at_once=1),
        "sync": lambda: writing.syncs.seconds([leaf] * count),
    }
    if peer is not None:
        measures["pymerkle"] = lambda: peer.seconds(append=count, bytes=len(leaf))
    took = medians(measures)
    rate = {name: count / seconds for name, seconds in took.items()}
    rows = [
        at_least(
            "audit/append-vs-sqlite",
            rate["log"] / rate["sqlite"],
            "×",
            target=0.8,
            against=f"{rate['log']:.0f} entries/s by one waiting writer, {rate['sqlite']:.0f} bare inserts/s",
        ),
        at_least(
            "audit/append-vs-fdatasync",
            rate["log"] / rate["sync"],
            "×",
            target=0.4,
            against=f"{rate['sync']:.0f} writes of {len(leaf)} bytes with fdatasync/s",
        ),
    ]
    if peer is not None:
        rows.append(
            at_least(
                "audit/append-vs-pymerkle",
                rate["log"] / rate["pymerkle"],
                "×",
                target=2,
                against=f"{rate['pymerkle']:.0f} single appends/s of its tree in SQLite, unsigned",
            )
        )
    return rows


def _batches(writing: _Writing) -> list[Row]:
    batches = 4
    took = medians(
        {
            "log": lambda: writing.in_batches(batches),
            "sqlite": lambda: writing.inserts.seconds(writing.rows(batches * HASHES_PER_TILE), at_once=HASHES_PER_TILE),
            "sign": lambda: _signing(writing, batches * HASHES_PER_TILE),
        }
    )
    rate = {name: batches * HASHES_PER_TILE / seconds for name, seconds in took.items()}
    return [
        at_least(
            "audit/batch256-vs-sqlite",
            rate["log"] / rate["sqlite"],
            "×",
            target=0.5,
            against=f"{rate['log']:.0f} entries/s, {rate['sqlite']:.0f} bare inserts/s in the same batches; "
            f"signing alone {rate['sign']:.0f}/s on one core, each entry after the one before it",
        ),
        at_least(
            "audit/writers32-per-fsync",
            medians({"log": lambda: writing.by_many(10)})["log"],
            "entries",
            target=8,
            against=f"for each wait for the disk, {WRITERS} waiting writers; projections and checkpoints counted",
        ),
    ]


def _signing(writing: _Writing, count: int) -> float:
    leaf = writing.rows(1)[0][0]
    signer = writing.log._committer._scribe._writer
    return seconds(lambda: [signer.sign(leaf) for _ in range(count)])


def _a_round(writing: _Writing) -> list[Row]:
    numbers = itertools.count()
    rounds = 20

    def log() -> float:
        return sum(writing.a_round(next(numbers))[0] for _ in range(rounds)) / rounds

    entries = writing.a_round(next(numbers))[1]
    leaf = writing.rows(1)[0][0]
    took = medians({"log": log, "sync": lambda: writing.syncs.seconds([leaf] * 100) / 100})
    return [
        at_most(
            "audit/round-overhead",
            took["log"] / (entries * took["sync"]),
            "×",
            target=2,
            against=f"{took['log'] * 1000:.2f} ms a round for {entries} entries and a checkpoint, "
            f"{entries} × {took['sync'] * 1000:.2f} ms for their syncs",
        )
    ]
