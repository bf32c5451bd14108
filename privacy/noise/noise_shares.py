"""One site's share of noise for a secure sum: exact discrete Gaussian integers by the million, chunk by chunk.

P(X = x) ∝ e^(−x²/2σ²), by the proposals of Canonne, Kamath, Steinke (2020, algorithm 3): a two-sided geometric number,
accepted with the right probability. Every decision is taken in binary64 where its error provably can't change it, and
in decimal arithmetic, on further random bits, where it might. So the outputs are exact, and don't depend on batches or
on which way decided. The widths of the guard bands are our own derivation; a self-test holds the machine's `log` and
`exp` to what they assume before the first use.

Streams hang on the noise key and the chunk's index alone, so a chunk can be made again. The key must come from the
site's random source and from nothing else: the seeds of masks are rebuilt by the coordinator.
"""

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privacy.errors import NoiseSourceFailed
from privacy.secagg.derivation import ZERO_SALT, derive_key
from privacy.secagg.keys import Keystream

LARGEST_SIGMA_SQ: Final = 2**52
LARGEST_CHUNK: Final = 65_536
BATCH: Final = 16_384
SETTLED_FROM: Final = 4096
"""Below this the first 64 bits are too few to know the logarithm from."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bands:
    """How far from a boundary a decision in binary64 has to be; only tests use others than the default.

    Attributes:
        logarithm: Multiplies the width around whole numbers of −a·ln ρ.
        acceptance: Multiplies the width around the acceptance probability.
        from_bits: Proposals whose first word is smaller are decided exactly.
    """

    logarithm: float = 1.0
    acceptance: float = 1.0
    from_bits: int = SETTLED_FROM


def scale_of(sigma_sq: int) -> int:
    """Return a, the scale of the geometric proposals: a power of two near σ."""
    return int(1 << (sigma_sq.bit_length() // 2))


class NoiseShares:
    """The noise of one variance.

    Args:
        sigma_sq: σ², an integer in squared steps of the grid.
        bands: The guard bands.

    Raises:
        ValueError: The variance is out of range.
        NoiseSourceFailed: This machine's logarithm or exponential isn't exact enough.
    """

    def __init__(self, sigma_sq: int, bands: Bands | None = None) -> None:
        if not 1 <= sigma_sq < LARGEST_SIGMA_SQ:
            raise ValueError(f"a variance of {sigma_sq}, it must be from 1 to below 2^52")
        ensure_exact_enough()
        self._sigma_sq = sigma_sq
        self._scale = scale_of(sigma_sq)
        self._bands = bands or Bands()

    def __call__(self, key: bytes | bytearray, chunk: int, count: int) -> NDArray[np.int64]:
        """Return the noise of one chunk.

        Args:
            key: The noise key, 32 secret bytes.
            chunk: The chunk's index in the vector.
            count: How many numbers, at most 65,536.
        """
        if not 0 <= count <= LARGEST_CHUNK:
            raise ValueError(f"a chunk of {count} numbers, at most {LARGEST_CHUNK}")
        chunk_key = derive_key(key, ZERO_SALT, "noise", chunk)
        u, v, u2, v2 = (
            derive_key(chunk_key, ZERO_SALT, name) for name in ("noise-u", "noise-v", "noise-u2", "noise-v2")
        )
        streams = Keystream(u), Keystream(v)
        exact = ExactDecision(self._sigma_sq, u2, v2)
        found = np.empty(count, dtype=np.int64)
        taken = first = 0
        while taken < count:
            size = min(BATCH, 2 * (count - taken) + 16)
            batch = self._batch(streams, size, first, exact)[: count - taken]
            found[taken : taken + len(batch)] = batch
            taken, first = taken + len(batch), first + size
        return found

    def _batch(
        self, streams: tuple[Keystream, Keystream], size: int, first: int, exact: "ExactDecision"
    ) -> NDArray[np.int64]:
        """Return those of `size` proposals that are accepted, in their order; `first` is the number of the first."""
        words, others = (_words(stream, size) for stream in streams)
        negative, tests = (others & np.uint64(1)).astype(bool), others >> np.uint64(1)
        sizes, settled = self._proposals(words)
        accepted, decided = self._accepted(sizes, tests)
        for place in np.flatnonzero(~(settled & decided)).tolist():
            word, test = int(words[place]), int(tests[place])
            if not settled[place]:
                sizes[place] = exact.proposal(word, first + place)
            accepted[place] = exact.accepts(int(sizes[place]), test, first + place)
        accepted &= ~(negative & (sizes == 0))
        signed = np.where(negative, -sizes, sizes)
        return signed[accepted].astype(np.int64)

    def _proposals(self, words: NDArray[np.uint64]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return ⌊−a·ln ρ⌋ for the reals ρ that begin with `words`, and where that is certain."""
        a, band = float(self._scale), self._bands.logarithm
        part = (words.astype(np.float64) + 0.5) * 2.0**-64
        value = np.log(part) * -a
        whole = np.floor(value)
        rest = value - whole
        guard = ((a * 2.0**-63) / part + a * 2.0**-50 + value * 2.0**-47) * band
        settled = (rest > guard) & (1.0 - rest > guard) & (words >= np.uint64(self._bands.from_bits))
        return whole, settled

    def _accepted(self, sizes: Floats, tests: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return where ν < e^(−(X − σ²/a)²/2σ²) for the reals ν that begin with `tests`, and where that is certain."""
        distance = sizes - self._sigma_sq / self._scale
        limit = np.exp(distance * distance * (-1 / (2 * self._sigma_sq))) * 2.0**63
        tested = tests.astype(np.float64)
        guard = (limit * 2.0**-36 + 4) * self._bands.acceptance
        return tested < limit, np.abs(tested - limit) > guard


def _words(stream: Keystream, count: int) -> NDArray[np.uint64]:
    drawn = bytearray(8 * count)
    stream.write(memoryview(drawn))
    return np.frombuffer(drawn, dtype="<u8")


class ExactDecision:
    """Decides a proposal in decimal arithmetic, on as many further random bits as it takes."""

    def __init__(self, sigma_sq: int, more_u: bytes, more_v: bytes) -> None:
        self._sigma_sq = sigma_sq
        self._scale = scale_of(sigma_sq)
        self._more_u, self._more_v = more_u, more_v

    def proposal(self, word: int, number: int) -> int:
        """Return ⌊−a·ln ρ⌋ for the real ρ that begins with the 64 bits of `word`."""
        more, bits = _more_bits(self._more_u, number), 64
        while True:
            word, bits = word << 64 | int.from_bytes(more.update(bytes(8)), "big"), bits + 64
            if word == 0:
                continue
            with decimal.localcontext(_context(bits)) as context:
                margin = decimal.Decimal(10) ** (30 - context.prec)
                unit = decimal.Decimal(2) ** bits
                most = -self._scale * (word / unit).ln() + margin
                least = decimal.Decimal(0)
                if word + 1 != 1 << bits:
                    least = -self._scale * ((word + 1) / unit).ln() - margin
                if math.floor(most) == math.floor(least):
                    return math.floor(most)

    def accepts(self, size: int, test: int, number: int) -> bool:
        """Return whether ν < e^(−(aX − σ²)²/2a²σ²) for the real ν that begins with the 63 bits of `test`."""
        more, bits = _more_bits(self._more_v, number), 63
        exponent = Fraction((self._scale * size - self._sigma_sq) ** 2, 2 * self._scale**2 * self._sigma_sq)
        while True:
            test, bits = test << 64 | int.from_bytes(more.update(bytes(8)), "big"), bits + 64
            with decimal.localcontext(_context(bits)) as context:
                margin = decimal.Decimal(10) ** (30 - context.prec)
                limit = (-decimal.Decimal(exponent.numerator) / exponent.denominator).exp() * decimal.Decimal(2) ** bits
                if test + 1 <= limit * (1 - margin):
                    return True
                if test >= limit * (1 + margin):
                    return False


def _context(bits: int) -> decimal.Context:
    return decimal.Context(
        prec=bits * 302 // 1000 + 40, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, rounding=decimal.ROUND_HALF_EVEN
    )


def _more_bits(key: bytes, number: int) -> Any:
    return Cipher(algorithms.AES256(key), modes.CTR((number << 64).to_bytes(16, "big"))).encryptor()


@cache
def ensure_exact_enough() -> None:
    """Hold `log` and `exp` of this machine to what the guard bands assume, at 4,096 fixed points.

    Raises:
        NoiseSourceFailed: One of them is off by more.
    """
    points = np.arange(2048, dtype=np.float64)
    check_logarithm(2.0 ** -(points * (53 / 2048)) * (1 - points * 2.0**-13), np.log)
    check_exponential(points * (-46 / 2047), np.exp)


def check_logarithm(points: Floats, logarithm: Any) -> None:
    """Refuse a logarithm with a relative error above 2^−48.

    Raises:
        NoiseSourceFailed: It has one.
    """
    with decimal.localcontext(decimal.Context(prec=40)):
        for point, found in zip(points.tolist(), logarithm(points).tolist(), strict=True):
            true = decimal.Decimal(point).ln()
            if abs(decimal.Decimal(found) - true) > abs(true) * decimal.Decimal(2.0**-48):
                raise NoiseSourceFailed("the logarithm of this machine isn't exact enough for shared noise")


def check_exponential(points: Floats, exponential: Any) -> None:
    """Refuse an exponential with a relative error above 2^−40, or that isn't nothing far to the left.

    Raises:
        NoiseSourceFailed: It has one, or isn't.
    """
    with decimal.localcontext(decimal.Context(prec=40)):
        for point, found in zip(points.tolist(), exponential(points).tolist(), strict=True):
            true = decimal.Decimal(point).exp()
            if abs(decimal.Decimal(found) - true) > true * decimal.Decimal(2.0**-40):
                raise NoiseSourceFailed("the exponential of this machine isn't exact enough for shared noise")
    if not (exponential(np.array([-46.0, -100.0, -750.0, -1e300])) < 2.0**-61).all():
        raise NoiseSourceFailed("the exponential of this machine isn't exact enough for shared noise")
