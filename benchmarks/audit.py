"""The audit log beside a bare insert, a bare sync, bare hashing and pymerkle, and at a hundredfold of its length.

All of a comparison is measured in turn, in one run on one disk; what is shown is the median of five. The logs are
written by the real committer. `BENCH_LOGS=<folder>` keeps them from run to run, `BENCH_ENTRIES=10000,100000` leaves out
the longest, and with it the rows that need it.
"""

import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import checkpoint, durable, events, merkle, openers, storage
from audit.edge import SystemClock
from audit.filters import Filters
from audit.findings import Verdict
from audit.log import AuditLog
from audit.proofs import prove_inclusion
from audit.reading import FoundLog, find_log, find_policy, origin_of
from audit.receipt import Receipt
from audit.tiles import HASHES_PER_TILE, Edge, TrustedTiles
from audit.verification import Reader, verify
from benchmarks.audit_peers import BareInserts, BareSyncs, Pymerkle
from benchmarks.audit_peers import Row as EntryRow
from benchmarks.row import Row, at_least, at_most, shown
from tests.support.long_log import DATASETS, round_drafts, write_long_log

SIZES: Final = (10_000, 100_000, 1_000_000)
TIMES: Final = 5
WRITERS: Final = 32
PAGE: Final = 100
QUERIES: Final = 40


def _medians(measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of five of each measure, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(TIMES):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- appending ------------------------------------------------------------------------------------------------


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
        return _seconds(lambda: [self.log.append(draft) for draft in drafts])

    def in_batches(self, count: int) -> float:
        """Return the seconds for `count` batches of 256, with no projection following."""
        batches = [self.drafts(HASHES_PER_TILE) for _ in range(count)]
        projector = self.log._committer._projector
        projector.behind = lambda size: 0  # type: ignore[method-assign]
        try:
            return _seconds(lambda: [self._batch(drafts) for drafts in batches])
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


def _appending(folder: Path, peer: Pymerkle | None) -> list[Row]:
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
    took = _medians(measures)
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
    took = _medians(
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
            _medians({"log": lambda: writing.by_many(10)})["log"],
            "entries",
            target=8,
            against=f"for each wait for the disk, {WRITERS} waiting writers; projections and checkpoints counted",
        ),
    ]


def _signing(writing: _Writing, count: int) -> float:
    leaf = writing.rows(1)[0][0]
    signer = writing.log._committer._writer
    return _seconds(lambda: [signer.sign(leaf) for _ in range(count)])


def _a_round(writing: _Writing) -> list[Row]:
    numbers = itertools.count()
    rounds = 20

    def log() -> float:
        return sum(writing.a_round(next(numbers))[0] for _ in range(rounds)) / rounds

    entries = writing.a_round(next(numbers))[1]
    leaf = writing.rows(1)[0][0]
    took = _medians({"log": log, "sync": lambda: writing.syncs.seconds([leaf] * 100) / 100})
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


# --- logs of three lengths ------------------------------------------------------------------------------------


def _home(folder: Path, entries: int) -> Path:
    """Return a home with a log of that length, made unless it is there."""
    home = folder / str(entries)
    if (
        not (home / "audit" / "1" / "checkpoint").exists()
        or checkpoint.parse((home / "audit" / "1" / "checkpoint").read_bytes()).size < entries
    ):
        shutil.rmtree(home, ignore_errors=True)
        began = time.perf_counter()
        write_long_log(home, entries)
        print(f"wrote {entries} entries in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return home


def _forget_pages(log: FoundLog) -> None:
    """Let the next read of the log come from the disk."""
    descriptor = os.open(log.places.sqlite, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class _Reading:
    """What is measured on one log."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = find_log(home)
        with self.log.moment() as (snapshot, _):
            self.size = snapshot.last_index() + 1
        self._spots = itertools.cycle(int(self.size * part) for part in (0.137, 0.731, 0.419, 0.883, 0.256))

    def proof(self) -> float:
        """Return the seconds from opening a cold file to a proof over tiles that were checked."""
        _forget_pages(self.log)
        return _seconds(self._prove)

    def _prove(self) -> None:
        with self.log.moment() as (snapshot, _):
            head = snapshot.head()
            assert head is not None
            prove_inclusion(TrustedTiles(snapshot, head.size, head.root), next(self._spots), head.size)

    def opening(self) -> float:
        """Return the seconds until the log takes entries."""
        began = time.perf_counter()
        log = AuditLog.open(self.home / "audit", clock=SystemClock(), process="cli")
        took = time.perf_counter() - began
        log.close()
        return took

    def pages(self) -> float:
        """Return the seconds for the first and the last hundred rows, each checked."""
        return _seconds(lambda: (self._page(Filters()), self._page(Filters(after=self.size - PAGE - 1))))

    def _page(self, filters: Filters) -> int:
        with self.log.checked() as checked:
            found = len(list(itertools.islice(checked.matching(filters), PAGE)))
        assert found == PAGE
        return found

    def query_p95_ms(self) -> tuple[float, float, int]:
        """Return the 95th percentile for a data set's first hundred rows of a month, of it processor time, the rows."""
        took, used, counts = [], [], []
        for number in range(QUERIES):
            filters = self._month(self.size * number // QUERIES + 7)
            began, before = time.perf_counter(), time.process_time()
            with self.log.checked() as checked:
                counts.append(len(list(itertools.islice(checked.matching(filters), PAGE))))
            took.append((time.perf_counter() - began) * 1000)
            used.append((time.process_time() - before) * 1000)
        p95, used_p95 = (statistics.quantiles(values, n=20)[18] for values in (took, used))
        return p95, used_p95, int(statistics.median(counts))

    def _month(self, index: int) -> Filters:
        """Return the filters for the data set of the entry at `index`, and the month around that entry's time."""
        with self.log.checked() as checked:
            event = checked.row(index).event
        around_us = 15 * 86_400 * 1_000_000
        return Filters(
            dataset=event["dataset"]["id"] if "dataset" in event else DATASETS[0],
            since_us=max(0, event["t_us"] - around_us),
            until_us=event["t_us"] + around_us,
        )

    def replay(self, entries: int | None = None) -> float:
        """Return the seconds for recomputing the root from the leaves, hashes only."""
        return _seconds(lambda: self._replay(entries or self.size))

    def _replay(self, entries: int) -> None:
        with self.log.moment() as (snapshot, _):
            edge, hashes = Edge(), []
            for row in snapshot.entries(0, entries):
                hashed = merkle.leaf_hash(row.leaf)
                assert hashed == row.leaf_hash
                hashes.append(hashed)
                if len(hashes) == HASHES_PER_TILE:
                    growth = edge.grow(hashes)
                    edge, hashes = growth.edge, []
                    for tile in growth.tiles:
                        if tile.full:
                            assert snapshot.tile(tile.level, tile.n, tile.width) == tile.hashes
            edge = edge.grow(hashes).edge
            head = snapshot.head()
            assert head is not None
            assert entries < self.size or edge.root() == head.root

    def leaves(self, entries: int) -> list[bytes]:
        with self.log.moment() as (snapshot, _):
            return [row.leaf for row in snapshot.entries(0, entries)]

    def verified(self) -> float:
        """Return the seconds for the whole of `confide audit verify`, signatures on all cores."""
        origin = origin_of(self.log)
        policy, pinned_by = find_policy(self.log, origin, self.home / "trust")
        began = time.perf_counter()
        with self.log.moment() as (snapshot, signed), openers.open_processes(self.size) as processes:
            result = verify(snapshot, signed, Reader(policy, pinned_by), openers=processes)
        assert result.verdict is Verdict.VERIFIED, result.flaws
        return time.perf_counter() - began


def _lengths(logs: dict[int, _Reading]) -> list[Row]:
    shortest, longest = logs[SIZES[0]], logs.get(SIZES[-1])
    found: list[Row] = []
    for name, measure, target, what in (
        ("proof", _Reading.proof, 3, "an inclusion proof from a cold file, tiles checked"),
        ("open", _Reading.opening, 3, "opening for appending"),
        ("page", _Reading.pages, 5, "first and last page of 100 rows, each row checked"),
    ):
        if longest is None:
            continue
        took = _medians({"short": lambda do=measure: do(shortest), "long": lambda do=measure: do(longest)})
        found.append(
            at_most(
                f"audit/{name}-1m-vs-10k",
                took["long"] / took["short"],
                "×",
                target=target,
                against=f"{what}: {took['long'] * 1000:.1f} ms against {took['short'] * 1000:.1f} ms",
            )
        )
    return found


def _proof_vs_pymerkle(log: _Reading, peer: Pymerkle) -> Row:
    peer.seconds(fill=log.size, bytes=1000)
    took = _medians({"log": log.proof, "pymerkle": lambda: peer.seconds(prove=log.size // 3)})
    return at_least(
        "audit/proof-vs-pymerkle",
        took["pymerkle"] / took["log"],
        "×",
        target=100,
        against=f"a cold inclusion proof among {log.size}: {took['log'] * 1000:.1f} ms, "
        f"pymerkle {took['pymerkle'] * 1000:.0f} ms",
    )


def _verify_vs_sha256(log: _Reading) -> Row:
    entries = min(log.size, 20_000)
    leaves = log.leaves(entries)
    took = _medians(
        {"replay": lambda: log.replay(entries), "hashes": lambda: _seconds(lambda: [*map(merkle.leaf_hash, leaves)])}
    )
    return at_least(
        "audit/verify-vs-sha256",
        took["hashes"] / took["replay"],
        "×",
        target=0.1,
        against=f"{entries / took['replay']:.0f} entries/s replayed, {entries / took['hashes']:.0f} leaves hashed/s",
    )


def _shown(entries: int, log: _Reading) -> Iterator[Row]:
    name = {10_000: "10k", 100_000: "100k", 1_000_000: "1m"}.get(entries, str(entries))
    replay_s = log.replay()
    yield shown(f"audit/replay-{name}", replay_s, "s", against=f"hashes only, {log.size / replay_s:.0f} entries/s")
    took_ms, used_ms, rows = log.query_p95_ms()
    yield at_most(
        f"audit/query-{name}",
        took_ms,
        "ms",
        target=50,
        against=f"p95 of {QUERIES}: a data set's first {PAGE} rows of a month, each checked; "
        f"{used_ms:.0f} ms of processor time, median {rows} rows",
    )
    verified_s = log.verified()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield shown(
        f"audit/verify-{name}",
        verified_s,
        "s",
        against=f"with signatures, on all cores: {log.size / verified_s:.0f} entries/s; this process has at most "
        f"{peak_mb:.0f} MB",
    )


def _bytes_per_entry(log: _Reading) -> Row:
    sampled = log.leaves(min(log.size, 20_000))
    return at_most(
        "audit/bytes-per-entry",
        log.log.places.sqlite.stat().st_size / log.size,
        "bytes",
        target=2000,
        against=f"the whole database at {log.size} entries; a leaf has {statistics.mean(map(len, sampled)):.0f}",
    )


def _pymerkle(folder: Path) -> Pymerkle | None:
    try:
        return Pymerkle(folder)
    except subprocess.CalledProcessError:
        print("pymerkle can't be installed: without its rows", file=sys.stderr, flush=True)
        return None


def rows() -> list[Row]:
    """Return the rows of the audit log."""
    sizes = [int(part) for part in os.environ.get("BENCH_ENTRIES", ",".join(map(str, SIZES))).split(",")]
    folder = Path(tempfile.mkdtemp(prefix="confide-bench-"))
    kept = Path(os.environ.get("BENCH_LOGS", str(folder / "logs")))
    try:
        peer = _pymerkle(folder)
        found = _appending(folder, peer)
        logs = {entries: _Reading(_home(kept, entries)) for entries in sizes}
        found += _lengths(logs)
        if peer is not None and 100_000 in logs:
            found.append(_proof_vs_pymerkle(logs[100_000], peer))
        some = logs.get(100_000, logs[sizes[0]])
        found += [_verify_vs_sha256(some), _bytes_per_entry(logs[sizes[-1]])]
        for entries, log in logs.items():
            found += _shown(entries, log)
        if peer is not None:
            peer.end()
    finally:
        shutil.rmtree(folder)
    return found
