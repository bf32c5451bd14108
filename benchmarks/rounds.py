"""What a round costs beyond training: a tiny model, four site daemons and a coordinator on this machine, mutual TLS.

One row has the updates summed under masks, with privacy, ledger and audit log on and without evaluation.
"""

import statistics
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.row import Row, at_most, shown
from tests.support.processes import federation

SITES = ["bern", "mercy", "oslo", "st-anna"]
ROUNDS = 60
PLAN: dict[str, Any] = {
    "training": {"local_steps": 1, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.1}, "seed": 7},
    "rounds": ROUNDS,
}


def _seconds(rounds: list[dict[str, Any]]) -> list[float]:
    opened = [datetime.fromisoformat(item["opened"]).timestamp() for item in rounds]
    return [later - earlier for earlier, later in pairwise(opened)]


def rows() -> list[Row]:
    """Return the median time of a round: bare, with privacy and evaluation, and with secure sums."""
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), SITES) as running:
        plain = {"unit": "record", "mechanism": "none", "clip": 1.0}
        bare = running.submit(running.plan(SITES, **PLAN, privacy=plain, evaluate=None))
        without = running.wait_for(bare, "completed", "failed", timeout_s=300)
        whole = running.submit(running.plan(SITES, **PLAN))
        private = running.wait_for(whole, "completed", "failed", timeout_s=300)
        secure = {"secure_aggregation": {"colluding": 1, "dropouts": 1}, "evaluate": None}
        masked = running.submit(running.plan(SITES, quorum=3, **PLAN, **secure))
        summed = running.wait_for(masked, "completed", "failed", timeout_s=300)
    for job in (without, private, summed):
        if job["state"] != "completed":
            raise RuntimeError(f"the benchmark's job failed: {job['reason']}")
    bare_s = statistics.median(_seconds(without["rounds_done"])[5:])
    whole_s = statistics.median(_seconds(private["rounds_done"])[5:])
    summed_s = statistics.median(_seconds(summed["rounds_done"])[5:])
    peers = "NVIDIA FLARE 2.9: 2.5 s, stock Flower 1.42: 6 to 10 s a message trip (measured before, same machine type)"
    return [
        at_most("link/round-overhead", bare_s, "s", target=0.05, against=peers),
        shown("link/round-with-privacy-and-evaluation", whole_s, "s", against="the same, with leases and scores"),
        at_most(
            "secagg/round-overhead", summed_s, "s", target=0.1, against="the same, with leases, summed under masks"
        ),
    ]
