"""How long a command takes to answer, beside a bare start of the same interpreter."""

import statistics
import subprocess
import sys
import time

from benchmarks.row import Row, at_most, shown

COMMANDS = {
    "help": ["--help"],
    "audit": ["audit", "--help"],
    "site": ["site", "--help"],
    "job": ["job", "--help"],
    "coordinator": ["coordinator", "--help"],
}


def _seconds(command: list[str], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def rows() -> list[Row]:
    """Return a row for each command."""
    bare = _seconds([sys.executable, "-c", "pass"])
    found = [shown("startup/python", bare, "s", against="the interpreter alone")]
    for name, arguments in COMMANDS.items():
        value = _seconds([sys.executable, "-m", "confide_cli", *arguments])
        found.append(
            at_most(f"startup/{name}", value, "s", target=0.3, against=f"{value / bare:.1f} × the interpreter")
        )
    return found
