"""Where every secret random bit of training comes from: AES-256-CTR under keys from the operating system.

One root key per purpose lives as long as the process; sampling and noise never share one. Each step gets streams of
its own, by HKDF over labels, and numbers only go up, so no block is ever used twice. Keys are never stored, printed
or planned: a seed that somebody else knows makes no noise (privacy design, 6.1 and 6.2). A forked child would repeat
its parent's stream, so a root refuses to work in any process but the one that made it.

`PlannedStream` is the opposite, for mechanism none: it comes from the plan's seed. It is another type, and every
function that samples or adds noise under differential privacy refuses it.
"""

import os
import secrets
from enum import StrEnum
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privacy.errors import NoiseSourceFailed

KEY_BYTES: Final = 32
_LABEL: Final = b"confide-keystream/v1"


class Purpose(StrEnum):
    """What a stream's bits decide; each purpose has a root key of its own."""

    SAMPLING = "sampling"
    NOISE = "noise"
    RELEASE = "release"
    SELF_TEST = "self-test"


class WordStream:
    """The AES-256-CTR keystream of one key, read once from its start."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise NoiseSourceFailed(f"a stream's key has {len(key)} bytes, it must have {KEY_BYTES}")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<hidden>)"

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        return self._encryptor.update(bytes(count))

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` 64-bit words, little-endian in the stream."""
        return np.frombuffer(self.read(8 * count), dtype="<u8")

    def below(self, bound: int) -> int:
        """Return an integer that is uniform on 0 … `bound` − 1, by rejection, from the next bytes."""
        if bound < 1:
            raise ValueError("the bound must be at least 1")
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:
            value = int.from_bytes(self.read(size), "little") & ((1 << bits) - 1)
            if value < bound:
                return value


class Keystream(WordStream):
    """A secret stream for one purpose; made by `KeyRoot.derive` only."""

    def __init__(self, key: bytes, purpose: Purpose) -> None:
        super().__init__(key)
        self.purpose: Final = purpose
        self._process = os.getpid()

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            NoiseSourceFailed: This process was forked from the one that made the stream.
        """
        _check_process(self._process)
        return super().read(count)


class PlannedStream(WordStream):
    """A stream that everybody who has the plan can repeat. Never for sampling or noise under privacy."""

    def __init__(self, seed: int, *labels: str | int) -> None:
        super().__init__(_derive(seed.to_bytes(16, "big", signed=True), ("planned", *labels)))


class KeyRoot:
    """32 bytes from the operating system for one purpose, kept in memory only."""

    def __init__(self, purpose: Purpose) -> None:
        self.purpose: Final = purpose
        self._key = secrets.token_bytes(KEY_BYTES)
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"KeyRoot({self.purpose.value}, <hidden>)"

    def derive(self, *labels: str | int) -> Keystream:
        """Return the stream of these labels. The caller never gives the same labels twice.

        Raises:
            NoiseSourceFailed: This process was forked from the one that made the root.
        """
        _check_process(self._process)
        return Keystream(_derive(self._key, (self.purpose.value, *labels)), self.purpose)


class StepStreams:
    """Sampling and noise streams for step after step of one accelerator; a number is never given twice."""

    def __init__(self, *, rank: int = 0) -> None:
        self._sampling = KeyRoot(Purpose.SAMPLING)
        self._noise = KeyRoot(Purpose.NOISE)
        self._rank = rank
        self._next = 0

    def next_step(self) -> tuple[Keystream, Keystream]:
        """Return the sampling stream and the noise stream of a new step."""
        number, self._next = self._next, self._next + 1
        return self._sampling.derive("step", self._rank, number), self._noise.derive("step", self._rank, number)


def require(stream: WordStream, purpose: Purpose) -> Keystream:
    """Return `stream` if it is a secret stream for `purpose`.

    Raises:
        NoiseSourceFailed: It is planned, or meant for something else.
    """
    if not isinstance(stream, Keystream) or stream.purpose is not purpose:
        raise NoiseSourceFailed(f"this stream isn't a secret one for {purpose.value}")
    return stream


def _derive(key: bytes, labels: tuple[str | int, ...]) -> bytes:
    info = bytearray(_LABEL)
    for label in labels:
        part = f"{'i' if isinstance(label, int) else 's'}{label}".encode()
        info += len(part).to_bytes(4, "big") + part
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=bytes(info)).derive(key)


def _check_process(made_in: int) -> None:
    if os.getpid() != made_in:
        raise NoiseSourceFailed("a forked process must not repeat its parent's random stream")
