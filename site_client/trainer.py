"""The trainer: a subprocess that does the phases of one job, told by lines on its standard input.

It holds no key and no secret, opens no connection, and can't take a noisy step that the daemon hasn't charged. Its
standard output belongs to the pipe: whatever a library prints goes to standard error. It ends with the job, when it
is told to, or at once when its pipe closes, so that no trainer outlives its daemon. Every failure is a code; the
places that an exception went through are on standard error under the reference that the daemon is given.
"""

import contextlib
import ctypes
import os
import queue
import resource
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Final, Protocol

from site_client.trainer_messages import (
    MAX_LINE_BYTES,
    Begin,
    Done,
    Failed,
    LeaseAsked,
    LeaseGiven,
    LeaseRefused,
    Line,
    LineRefused,
    Ready,
    Setup,
    StopWork,
    decode_for_trainer,
    encode,
)

OUT_OF_MEMORY: Final = "CFD-R51"
ERROR: Final = "CFD-R54"
STOPPED: Final = "CFD-R48"
_PARENT_DIED: Final = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


class WorkEnded(Exception):
    """The phase can't be done, or shall not go on; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code: Final = code


class Pipe:
    """The trainer's end: lines out, lines in, and the wish to stop, which may come at any moment."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.dup(1)
        os.dup2(2, 1)  # what a library prints is no line of ours
        self._in = os.fdopen(os.dup(0), "rb")
        self._lines: queue.Queue[Setup | Begin | LeaseGiven | LeaseRefused] = queue.Queue()
        self._stopped = threading.Event()
        threading.Thread(target=self._hear, name="pipe", daemon=True).start()

    def say(self, line: Line) -> None:
        """Write one line to the daemon."""
        view = memoryview(encode(line))
        while view:
            view = view[os.write(self._out, view) :]

    def next(self) -> Setup | Begin | LeaseGiven | LeaseRefused:
        """Return the daemon's next line; waits for it."""
        return self._lines.get()

    def ask_steps(self, steps: int) -> int:
        """Return how many more steps the daemon has charged, durably.

        Raises:
            WorkEnded: No further step is wanted, or the budget gives none.
        """
        self.check_wanted()
        self.say(LeaseAsked(steps=steps))
        answer = self.next()
        if isinstance(answer, LeaseRefused):
            raise WorkEnded(answer.code)
        if not isinstance(answer, LeaseGiven):
            raise RuntimeError("the daemon answered a lease with something else")
        return answer.steps

    def check_wanted(self) -> None:
        """Return if the phase is still wanted.

        Raises:
            WorkEnded: It isn't.
        """
        if self._stopped.is_set():
            raise WorkEnded(STOPPED)

    def _hear(self) -> None:
        while data := self._in.readline(MAX_LINE_BYTES + 2):
            try:
                line = decode_for_trainer(data)
            except LineRefused:
                os._exit(3)
            if isinstance(line, StopWork):
                self._stopped.set()
                continue
            if isinstance(line, Begin):
                self._stopped.clear()
            self._lines.put(line)
        # The daemon is gone, or done with us: nothing of ours is worth another instruction.
        os._exit(0)


class Phases(Protocol):
    """What does the phases; `site_client.work` in production."""

    def run(self, begin: Begin) -> Done | Failed:
        """Do one phase and return what came of it; an update lies in ``begin.output``."""
        ...


def limit(setup: Setup) -> None:
    """Hold this process to its memory, and let no dump of it reach a disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if setup.memory_bytes:
        # Private memory only: address space would count what an accelerator's driver merely reserves.
        resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, setup.memory_bytes))


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even while it is deep in a library."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL, 0, 0, 0)


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether `problem` says that memory, of the host or of a device, was not enough."""
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    text = str(problem)
    return isinstance(problem, RuntimeError | OSError) and any(
        sign in text for sign in ("DefaultCPUAllocator", "out of memory", "Cannot allocate memory", "bad alloc")
    )


def code_of(problem: BaseException) -> str:
    """Return the stable code for `problem`: its own or its cause's, out of memory, or that of an unknown error."""
    for cause in _causes(problem):
        code = getattr(cause, "code", None)
        if isinstance(code, str) and code.startswith("CFD-"):
            return code
        if is_out_of_memory(cause):
            return OUT_OF_MEMORY
    return ERROR


def _causes(problem: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = problem
    for _ in range(20):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def report(reference: str, problem: BaseException) -> None:
    """Write where `problem` went through to standard error; its own text may hold a value of the data."""
    frames = traceback.extract_tb(problem.__traceback__)
    places = [f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
    sys.stderr.write(f"{reference} {type(problem).__name__} {' < '.join(places)}\n")
    sys.stderr.flush()


def _failed(problem: BaseException) -> Failed:
    reference = secrets.token_hex(6)
    report(reference, problem)
    return Failed(code=code_of(problem), reference=reference)


def serve(pipe: Pipe, phases: Phases) -> None:
    """Do phase after phase until the pipe closes."""
    while True:
        line = pipe.next()
        if not isinstance(line, Begin):
            continue  # a lease that came too late for a phase that had already ended
        try:
            pipe.say(phases.run(line))
        except BaseException as problem:  # noqa: BLE001 (SystemExit of a library included: it is no end of ours)
            pipe.say(_failed(problem))


def main() -> int:
    """Run the trainer; the first line on standard input sets it up."""
    die_with_parent()
    pipe = Pipe()
    setup = pipe.next()
    if not isinstance(setup, Setup):
        return 2
    limit(setup)
    try:
        from site_client.work import JobWork

        work = JobWork(setup, pipe)
        pipe.say(Ready(device=work.device_name, engine=work.engine, versions=work.versions))
    except BaseException as problem:  # noqa: BLE001 (whatever it was, the daemon is told and goes on)
        pipe.say(_failed(problem))
        return 1
    serve(pipe, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
