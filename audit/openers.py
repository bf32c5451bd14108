"""Other processes that open leaves, so that a verification uses all cores for its signatures.

`python -m audit.openers` is one of them: tiles of leaves in, one byte for each leaf out, until its input ends. It reads
no file and knows no key but those that it is sent. Whoever asks believes only a yes; a leaf that isn't one is opened
again by the asker, who then says what is wrong. A process that ends early has said yes to nothing.

    asked      u32be length ‖ JSON {origin, writers: [[vkey, first, last]], indices} ‖ u32be length ‖ entry bundle
    answered   for each index one byte: `1` an entry, `0` an entry with fields that this version doesn't know, `-` no
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Final, Self

from audit import tiles
from audit.errors import EntryRefused
from audit.history import open_at
from audit.keyring import Keyring, Validity
from audit.note import VerifierKey

WORTH_ENTRIES: Final = 5000
"""A log of fewer entries is verified before the processes have started."""
MAX_PROCESSES: Final = 8
_ANSWERS: Final = {ord("1"): True, ord("0"): False}


class OpenerProcess:
    """A process of `open_leaves`; an `Opener`."""

    def __init__(self) -> None:
        # -P: what lies in the folder where the command is run is no module of this program.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "audit.openers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is for the asker
        )
        self._asked: list[int] = []

    def begin(self, origin: str, keyring: Keyring, leaves: dict[int, bytes]) -> None:
        """Send the leaves of one tile."""
        self._asked = list(leaves)
        header = {"origin": origin, "writers": _intervals(keyring), "indices": self._asked}
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended; `end` then has no answer
                _send(self._process.stdin, json.dumps(header).encode(), tiles.encode_entries(leaves.values()))

    def end(self) -> dict[int, bool]:
        """Return what it said to the leaves that were sent last, nothing where it has ended."""
        output = self._process.stdout
        answers = b"" if output is None else output.read(len(self._asked))
        said = zip(self._asked, answers, strict=False)
        return {index: _ANSWERS[answer] for index, answer in said if answer in _ANSWERS}

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def open_processes(entries: int) -> Iterator[list[OpenerProcess]]:
    """Give as many processes as are worth it for a log of `entries`: one for each core, two at least, or none."""
    with contextlib.ExitStack() as stack:
        if entries < WORTH_ENTRIES:
            yield []
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = min(max(cores, 2), MAX_PROCESSES)
        yield [stack.enter_context(OpenerProcess()) for _ in range(count)]


def _intervals(keyring: Keyring) -> list[tuple[str, int, int]]:
    return [(str(one.key), one.first, one.last) for intervals in keyring.writers.values() for one in intervals]


def _keyring(intervals: list[tuple[str, int, int]]) -> Keyring:
    writers: dict[tuple[str, bytes], tuple[Validity, ...]] = {}
    for vkey, first, last in intervals:
        key = VerifierKey.parse(vkey)
        writers[key.name, key.id] = (*writers.get((key.name, key.id), ()), Validity(key, first, last))
    return Keyring(writers)


def _send(output: IO[bytes], *parts: bytes) -> None:
    for part in parts:
        output.write(len(part).to_bytes(4, "big") + part)
    output.flush()


def _received(source: IO[bytes]) -> bytes:
    return source.read(int.from_bytes(source.read(4), "big"))


def open_leaves(source: IO[bytes], output: IO[bytes]) -> None:
    """Answer tile after tile until `source` ends."""
    while header := _received(source):
        asked = json.loads(header)
        keyring = _keyring(asked["writers"])
        leaves = tiles.decode_entries(_received(source), len(asked["indices"]))
        answers = bytearray()
        for index, leaf in zip(asked["indices"], leaves, strict=True):
            try:
                entry = open_at(index, leaf, origin=asked["origin"], keyring=keyring)
            except EntryRefused:
                answers += b"-"
            else:
                answers += b"1" if entry.interpreted else b"0"
        output.write(answers)
        output.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        open_leaves(sys.stdin.buffer, sys.stdout.buffer)
