"""A long audit log that the real committer wrote, and what is measured of reading it."""

import itertools
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from audit import checkpoint, merkle, openers
from audit.edge import SystemClock
from audit.filters import Filters
from audit.findings import Verdict
from audit.log import AuditLog
from audit.proofs import prove_inclusion
from audit.reading import FoundLog, find_log, find_policy, origin_of
from audit.tiles import HASHES_PER_TILE, Edge, TrustedTiles
from audit.verification import Reader, verify
from benchmarks.timing import seconds
from tests.support.long_log import DATASETS, write_long_log

PAGE: Final = 100
QUERIES: Final = 40


def home_of(folder: Path, entries: int) -> Path:
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


class LongLog:
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
        return seconds(self._prove)

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
        return seconds(lambda: (self._page(Filters()), self._page(Filters(after=self.size - PAGE - 1))))

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
        return seconds(lambda: self._replay(entries or self.size))

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
