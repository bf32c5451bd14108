"""The daemon's end of a trainer: start it, write lines to it, hear every line and its end at once, kill its group.

A trainer is a process group of its own (nothing of it outlives a kill), gets an environment that is built here and a
command line without any secret, and is heard by one thread that blocks on its pipe: a death is an event the moment
that it happens, whatever caused it. Its standard error goes to a file that only this account may read.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from federation.messages import JobId
from site_client.trainer_messages import (
    MAX_LINE_BYTES,
    DataClosed,
    Done,
    Failed,
    LeaseAsked,
    LeaseDone,
    Line,
    LineRefused,
    Ready,
    decode_from_trainer,
    encode,
)

_PASSED_ON: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "NVIDIA_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class TrainerSaid:
    """A line of a trainer. `generation` tells it from a line of an earlier trainer of the same job."""

    job: JobId
    generation: int
    line: Ready | LeaseAsked | LeaseDone | DataClosed | Done | Failed


@dataclass(frozen=True, slots=True)
class TrainerGone:
    """A trainer ended: `status` is its exit status, negative for the signal that killed it."""

    job: JobId
    generation: int
    status: int
    refused: bool = False


TrainerEvent = TrainerSaid | TrainerGone


def trainer_environment(variables: Mapping[str, str], *, cache: Path, threads: int) -> dict[str, str]:
    """Return the environment of a trainer: what devices and locale need, every cache inside the home, nothing else.

    Args:
        variables: This process's environment.
        cache: A writable folder in the home.
        threads: CPU threads that numerical libraries may use.
    """
    kept = {name: variables[name] for name in _PASSED_ON if name in variables}
    count = str(threads)
    return {
        **kept,
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "TORCH_HOME": str(cache / "torch"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "FLWR_HOME": str(cache / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
    }


def trainer_command() -> list[str]:
    """Return the argument list of a trainer; -P: the working folder is never searched for modules."""
    return [sys.executable, "-P", "-m", "site_client.trainer"]


class TrainerProcess:
    """One running trainer of one job.

    Args:
        job: The job.
        generation: Counts the trainers of this daemon, so that a late line of a dead one is known.
        environment: From `trainer_environment`.
        log: File for its standard error, 0600, appended.
        post: Called from the hearing thread with each event; must not block.
    """

    def __init__(
        self,
        job: JobId,
        generation: int,
        *,
        environment: Mapping[str, str],
        log: Path,
        post: Callable[[TrainerEvent], None],
    ) -> None:
        self.job: Final = job
        self.generation: Final = generation
        self._post = post
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # The new session makes a process group of its own.
            self._process = subprocess.Popen(
                trainer_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                env=dict(environment),
                cwd=log.parent,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self._hearer = threading.Thread(target=self._hear, name=f"trainer-{job}", daemon=True)
        self._hearer.start()

    @property
    def pid(self) -> int:
        """Return the process id, which is also that of its group."""
        return self._process.pid

    def send(self, line: Line) -> None:
        """Write one line; a trainer that is gone is heard of by its `TrainerGone`, not here."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            pipe.write(encode(line))
            pipe.flush()
        except (BrokenPipeError, OSError):
            return

    def close(self, *, patience_s: float = 2.0) -> None:
        """Let the trainer end by itself, and kill its whole group if it doesn't."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group at once and wait for the trainer's end; again is harmless."""
        if self._process.returncode is None:
            _kill_group(self._process.pid)
        self._process.wait()

    def _hear(self) -> None:
        pipe = self._process.stdout
        refused = False
        while pipe is not None:
            data = pipe.readline(MAX_LINE_BYTES + 2)
            if not data:
                break
            try:
                line = decode_from_trainer(data)
            except LineRefused:
                refused = True
                self.kill()
                break
            self._post(TrainerSaid(self.job, self.generation, line))
        if pipe is not None:
            pipe.close()
        with contextlib.suppress(ChildProcessError):
            # Looked at without being reaped: until then nobody else can get its number, and its group can be killed.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            _kill_group(self._process.pid)
        status = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._post(TrainerGone(self.job, self.generation, status, refused))


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(group, signal.SIGKILL)
