"""A federation one of whose homes lies on a disk of a few megabytes, which fills up in the middle of a job.

Run as a process in a mount namespace of its own (`unshare --user --map-root-user --mount`), where a small file system
can be mounted by anybody; prints what came of it as one JSON line.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.support.processes import Federation, confide, run_confide, wait_until

SITES: Final = ["bern", "chur"]
DISK_MIB: Final = 24
FULL_S: Final = 15.0


def fill(path: Path) -> None:
    """Write until there is no byte left."""
    with path.open("wb", buffering=0) as sink:
        try:
            while True:
                sink.write(b"x" * 4096)
        except OSError:
            return


def play(folder: Path, party: str) -> dict[str, Any]:
    """Return how a job ended whose `party` had no space left for a while."""
    logs, home = folder / "logs", folder / party
    logs.mkdir()
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(home)], check=True)
    made = Federation(folder, logs=logs)
    made.init()
    try:
        made.serve()
        for number, site in enumerate(SITES):
            made.enrol(site)
            made.add_data(site, seed=number + 1)
        for site in SITES:
            made.run_site(site)
        job = made.submit(made.plan(SITES, rounds=8, deadlines={"training_s": 20, "phase_s": 20}))
        wait_until(lambda: made.show(job)["round"] >= 2, what="round 2")
        fill(home / "fill")
        time.sleep(FULL_S)  # long enough for a phase to meet it
        while_full = made.show(job)["state"]
        (home / "fill").unlink()
        ended = {name: daemon.process.poll() for name, daemon in made.daemons.items() if daemon.process.poll()}
        for name in ended:
            made.serve() if name == "coordinator" else made.run_site(name)
        shown = made.wait_for(job, "completed", "failed", "cancelled", timeout_s=240)
        budgets = [
            json.loads(confide("site", "budget", "show", "heart", "--format", "json", "--home", str(made.home(site))))
            for site in SITES
        ]
    finally:
        made.stop()
    return {
        "while_full": while_full,
        "ended": ended,
        "state": shown["state"],
        "reason": shown["reason"],
        "rounds": [item["survivors"] for item in shown["rounds_done"] if item["survivors"]],
        "steps": [(one["steps_charged"], one["steps"]) for budget in budgets for one in budget["jobs"]],
        "verified": [run_confide("audit", "verify", str(made.home(name))).returncode for name in made.daemons],
        "logs": "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in sorted(logs.iterdir())),
    }


if __name__ == "__main__":
    print(json.dumps(play(Path(sys.argv[1]), sys.argv[2])))
