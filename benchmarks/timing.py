"""Seconds of something, and the medians of measures that are taken in turn."""

import statistics
import time
from collections.abc import Callable
from typing import Final

TIMES: Final = 5


def medians(measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of five of each measure, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(TIMES):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
