"""The demo loses a hospital in the middle of a sum: killed after its masked vector left, before it reveals anything.

The others then hold what is needed to take the masks off the sum, and the killed hospital's vector is in it. It is
killed where its own process log says that the masked vector is out; whether that was in time, its audit log says.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FIRST_ROUND = 2
"""Counted from 0: not the first, so that the audience has seen some."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A kill of one hospital's daemon.

    Attributes:
        site: The hospital.
        round: In which round it was killed, counted from 0.
    """

    site: str
    round: int


class PowerCut(threading.Thread):
    """Kills one hospital's daemon once, between masking and reveal, and starts it again.

    Args:
        site: The hospital.
        log: The process log of its daemon.
        kill: Kills the daemon and returns when it is dead.
        revealed: Returns the rounds of the job of which its audit log says that it consented to a reveal.
        start: Starts the daemon again.
    """

    def __init__(
        self,
        site: str,
        log: Path,
        *,
        kill: Callable[[], None],
        start: Callable[[], None],
        revealed: Callable[[], set[int]],
    ) -> None:
        super().__init__(name=f"lose {site}", daemon=True)
        self.site = site
        self.loss: Loss | None = None
        self.problem: Exception | None = None
        self._log = log
        self._kill, self._start, self._revealed = kill, start, revealed
        self._over = threading.Event()

    def stop(self) -> None:
        """Kill nobody from now on, and return when a killed daemon is up again."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Wait for a masked vector to leave; kill; try again in a later round where that was too late."""
        wanted = FIRST_ROUND
        try:
            while not self._over.is_set():
                found = self._masked(wanted)
                if found is None:
                    continue
                self._kill()
                in_time = found not in self._revealed()
                self._start()
                if in_time:
                    self.loss = Loss(self.site, found)
                    return
                wanted = found + 1
        except Exception as problem:  # noqa: BLE001 (told by the thread that asked for it)
            self.problem = problem

    def _masked(self, wanted: int) -> int | None:
        """Return the round, `wanted` or later, of a masked vector that left just now."""
        self._over.wait(0.002)
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in reversed(lines[-4:]):
            if '"sum.phase"' in line and '"mask"' in line:
                said = json.loads(line)
                if said["round"] >= wanted and said.get("code") is None:
                    return int(said["round"])
        return None
