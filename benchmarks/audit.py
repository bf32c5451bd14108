"""The audit log beside a bare insert, a bare sync, bare hashing and pymerkle, and at a hundredfold of its length.

All of a comparison is measured in turn, in one run on one disk; what is shown is the median of five. The logs are
written by the real committer. `BENCH_LOGS=<folder>` keeps them from run to run, `BENCH_ENTRIES=10000,100000` leaves out
the longest, and with it the rows that need it.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from audit import merkle
from benchmarks.audit_appends import append_rows
from benchmarks.audit_long import PAGE, QUERIES, LongLog, home_of
from benchmarks.audit_peers import Pymerkle
from benchmarks.row import Row, at_least, at_most, shown
from benchmarks.timing import medians, seconds

SIZES: Final = (10_000, 100_000, 1_000_000)


def _lengths(logs: dict[int, LongLog]) -> list[Row]:
    shortest, longest = logs[SIZES[0]], logs.get(SIZES[-1])
    found: list[Row] = []
    for name, measure, target, what in (
        ("proof", LongLog.proof, 3, "an inclusion proof from a cold file, tiles checked"),
        ("open", LongLog.opening, 3, "opening for appending"),
        ("page", LongLog.pages, 5, "first and last page of 100 rows, each row checked"),
    ):
        if longest is None:
            continue
        took = medians({"short": lambda do=measure: do(shortest), "long": lambda do=measure: do(longest)})
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


def _proof_vs_pymerkle(log: LongLog, peer: Pymerkle) -> Row:
    peer.seconds(fill=log.size, bytes=1000)
    took = medians({"log": log.proof, "pymerkle": lambda: peer.seconds(prove=log.size // 3)})
    return at_least(
        "audit/proof-vs-pymerkle",
        took["pymerkle"] / took["log"],
        "×",
        target=100,
        against=f"a cold inclusion proof among {log.size}: {took['log'] * 1000:.1f} ms, "
        f"pymerkle {took['pymerkle'] * 1000:.0f} ms",
    )


def _verify_vs_sha256(log: LongLog) -> Row:
    entries = min(log.size, 20_000)
    leaves = log.leaves(entries)
    took = medians(
        {"replay": lambda: log.replay(entries), "hashes": lambda: seconds(lambda: [*map(merkle.leaf_hash, leaves)])}
    )
    return at_least(
        "audit/verify-vs-sha256",
        took["hashes"] / took["replay"],
        "×",
        target=0.1,
        against=f"{entries / took['replay']:.0f} entries/s replayed, {entries / took['hashes']:.0f} leaves hashed/s",
    )


def _shown(entries: int, log: LongLog) -> Iterator[Row]:
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


def _bytes_per_entry(log: LongLog) -> Row:
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
        found = append_rows(folder, peer)
        logs = {entries: LongLog(home_of(kept, entries)) for entries in sizes}
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
