"""The random source proves itself before its first use in a process, or nothing is trained (privacy design, 6.4).

Known answers of AES-256-CTR, moments, χ² and tails of 2^16 normals, and another process that must draw differently.
"""

import json
import math
import subprocess
import sys
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privacy.errors import NoiseSourceFailed
from privacy.noise.gaussian import Transform, box_muller, normals
from privacy.noise.keystream import KeyRoot, Purpose

# NIST SP 800-38A, F.5.5 CTR-AES256.Encrypt, the first two blocks.
_KEY: Final = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
_COUNTER: Final = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
_PLAIN: Final = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
_CIPHER: Final = "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"

DRAWS: Final = 2**16
BINS: Final = 64
SIGMAS: Final = 6.0
"""A true source fails one of the statistics below about once in ten million processes."""
OTHER_PROCESS_LIMIT_S: Final = 60

_CHILD: Final = """
import json, sys
sys.path[:] = json.load(sys.stdin)
from privacy.noise.keystream import KeyRoot, Purpose
sys.stdout.write(KeyRoot(Purpose.SELF_TEST).derive("self-test").read(32).hex())
"""

_passed = False


def ensure_passed(transform: Transform = box_muller) -> None:
    """Run the self-test, with the `transform` that makes the noise, unless it has passed in this process.

    Raises:
        NoiseSourceFailed: Which part failed.
    """
    global _passed
    if not _passed:
        run(transform)
        _passed = True


def run(transform: Transform = box_muller) -> None:
    """Run the self-test.

    Raises:
        NoiseSourceFailed: Which part failed.
    """
    check_known_answer(_CIPHER)
    check_normals(normals(KeyRoot(Purpose.NOISE).derive("self-test"), DRAWS, transform))
    own = KeyRoot(Purpose.SELF_TEST).derive("self-test").read(32)
    check_other_process(own, _draw_elsewhere())


def check_known_answer(expected: str) -> None:
    """Refuse a cipher that doesn't give the standard's answer.

    Raises:
        NoiseSourceFailed: It doesn't.
    """
    encryptor = Cipher(algorithms.AES(bytes.fromhex(_KEY)), modes.CTR(bytes.fromhex(_COUNTER))).encryptor()
    if encryptor.update(bytes.fromhex(_PLAIN)).hex() != expected:
        raise NoiseSourceFailed("AES-256-CTR doesn't give the standard's known answer")


def check_normals(draws: NDArray[np.float64]) -> None:
    """Refuse draws that aren't standard normal: mean, variance, χ² over equal cells, tails beyond 3.

    Raises:
        NoiseSourceFailed: Which statistic is off.
    """
    count = len(draws)
    cell = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in draws.tolist()])
    observed = np.bincount(np.minimum((cell * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    expected = count / BINS
    chi_square = float(((observed - expected) ** 2).sum() / expected)
    tail = math.erfc(3 / math.sqrt(2.0))
    statistics = {
        "mean": float(draws.mean()) * math.sqrt(count),
        "variance": (float((draws**2).mean()) - 1) * math.sqrt(count / 2),
        "distribution": (chi_square - (BINS - 1)) / math.sqrt(2 * (BINS - 1)),
        "tails": (int((np.abs(draws) > 3).sum()) - count * tail) / math.sqrt(count * tail * (1 - tail)),
    }
    for name, score in statistics.items():
        limit = 1.5 * SIGMAS if name == "distribution" else SIGMAS  # χ² has a heavier upper tail than a normal
        if not abs(score) < limit:
            raise NoiseSourceFailed(f"the {name} of the noise is {score:.1f} deviations off")


def check_other_process(own: bytes, other: bytes) -> None:
    """Refuse a source that gives two processes the same bytes.

    Raises:
        NoiseSourceFailed: It does, or the other process gave none.
    """
    if len(other) != len(own) or own == other:
        raise NoiseSourceFailed("another process drew the same random bytes, or none")


def _draw_elsewhere() -> bytes:
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=json.dumps(sys.path),
            capture_output=True,
            text=True,
            timeout=OTHER_PROCESS_LIMIT_S,
            check=True,
        )
        return bytes.fromhex(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NoiseSourceFailed(f"no second process could draw random bytes: {type(error).__name__}") from error
