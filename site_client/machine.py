"""What this machine has for trainers: main memory, and the accelerators that torch names.

The daemon loads no torch: it asks a process that ends, once, and only when a plan asks for accelerators.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from federation.errors import ConfideError
from site_client.trainer_process import trainer_environment

TORCH_TIMEOUT_S: Final = 120.0
_GIB: Final = 1 << 30
_CGROUP_MEMORY: Final = Path("/sys/fs/cgroup/memory.max")


class NoTorch(ConfideError):
    """Torch can't be asked for accelerators."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What torch names: the device that would train, how many there are beside the CPU, and torch's version."""

    device: str
    count: int
    torch: str


class Machine:
    """This machine, as a site's home sees it.

    Args:
        cache: A writable folder in the home.
        variables: This process's environment.
        accelerators: How many the operator lends; None for all that torch names.
    """

    def __init__(self, cache: Path, variables: Mapping[str, str], *, accelerators: int | None) -> None:
        self._cache = cache
        self._variables = variables
        self._lent = accelerators

    def memory_gib(self) -> int:
        """Return main memory in GiB, rounded up; that of the control group where it is less."""
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            limit = _CGROUP_MEMORY.read_text().strip()
        except OSError:
            limit = ""
        return -(-(min(found, int(limit)) if limit.isdecimal() else found) // _GIB)

    def accelerators_count(self) -> int:
        """Return how many accelerators the site has for jobs; none where torch can't be asked."""
        if self._lent is None:
            try:
                self._lent = self.accelerators().count
            except NoTorch:
                self._lent = 0
        return self._lent

    def accelerators(self) -> Accelerators:
        """Return what torch names on this machine.

        Raises:
            NoTorch: It can't be loaded, or not in time.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "site_client.accelerators"],
                env=trainer_environment(self._variables, cache=self._cache, threads=1),
                cwd=self._cache.parent,
                capture_output=True,
                timeout=TORCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoTorch("CFD-R54", f"torch didn't load in {TORCH_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            raise NoTorch("CFD-R54", "torch can't be loaded")
        return Accelerators(**json.loads(done.stdout))
