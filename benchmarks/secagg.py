"""What masking costs beside the keystream that it is made of, and a site's phases beside their bare cryptography.

Processor time of this process; what is compared runs in turn, several times, and the best of each counts. The keystream
is AES-256-CTR by `update_into` into one buffer of 256 KiB, for as many words and passes.
"""

import math
import time
import tracemalloc
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.row import Row, at_least, at_most, shown
from privacy.noise.discrete_gaussian import discrete_gaussians
from privacy.noise.keystream import KeyRoot, Purpose
from privacy.noise.noise_shares import NoiseShares
from privacy.secagg import site_states as at
from privacy.secagg.envelope import signing_input
from privacy.secagg.field import CHUNK_WORDS
from privacy.secagg.keys import BoxKey, MaskSeed, public_key, seal_box
from privacy.secagg.masking import Mask, MaskJob, Masks
from privacy.secagg.quantize import Grid, Points, Rounding, inspect
from privacy.secagg.secret import Secret
from privacy.secagg.sums import Accumulator
from tests.support.secure_sums import Federation, federation_of, integer_plan, key_of, names_of

DIM = 10_000_000
REPEATS = 5
MANY = 200
NEAR = 42


def _fastest(*works: Callable[[], object]) -> list[float]:
    best = [math.inf] * len(works)
    for _ in range(REPEATS):
        for place, work in enumerate(works):
            started = time.process_time()
            work()
            best[place] = min(best[place], time.process_time() - started)
    return best


def _secret(number: int) -> Secret:
    return Secret(number.to_bytes(32, "big"))


def _masks(passes: int) -> list[Mask]:
    return [Mask(_secret(number), added=number % 2 == 0) for number in range(passes)]


def _keystream(passes: int) -> None:
    zeros, buffer = bytes(4 * CHUNK_WORDS), bytearray(4 * CHUNK_WORDS)
    for number in range(passes):
        stream = Cipher(algorithms.AES256(number.to_bytes(32, "big")), modes.CTR(bytes(16))).encryptor()
        for _ in range(DIM // CHUNK_WORDS):
            stream.update_into(zeros, buffer)
        stream.update_into(memoryview(zeros)[: 4 * (DIM % CHUNK_WORDS)], buffer)


def _mask_alone(words: "np.ndarray[tuple[int], np.dtype[np.uint32]]", passes: int) -> None:
    masks = Masks(_masks(passes), 32, 0)
    for start in range(0, DIM, CHUNK_WORDS):
        masks.apply(words[start : start + CHUNK_WORDS])


def _client(values: "np.ndarray[tuple[int], np.dtype[np.float32]]", passes: int) -> None:
    grid = Grid(1.0, 22, 2**22, Rounding.STOCHASTIC)
    inspect(values, grid, DIM, clamp_ppm_max=0)
    job = MaskJob(Points(values, grid, _secret(99)), _masks(passes), dim=DIM, word_bits=32)
    for _ in job.chunks():
        pass
    job.payload.digest()


def rows() -> list[Row]:
    """Return the rows of masking, of memory, of a drop, of a site among many, and of shared noise."""
    return [*_speed(), *_memory(), *_drop(), *_phases(), *_noise()]


def _speed() -> list[Row]:
    words = np.zeros(DIM, dtype=np.uint32)
    values = np.random.default_rng(1).uniform(-1, 1, DIM).astype(np.float32)
    stream, alone = _fastest(lambda: _keystream(16), lambda: _mask_alone(words, 16))
    rate = f"keystream {DIM * 64 / stream / 2**30:.2f} GiB/s, 16 passes"
    found = [at_least("secagg/mask-vs-aes-ctr", stream / alone, "of keystream", target=0.8, against=rate)]
    for passes, target in ((5, 0.25), (20, 0.5), (37, 0.6)):
        stream, whole = _fastest(lambda p=passes: _keystream(p), lambda p=passes: _client(values, p))
        text = f"{whole:.2f} s for {DIM} words: inspected, rounded, masked, hashed"
        found.append(
            at_least(f"secagg/client-path-{passes}", stream / whole, "of keystream", target=target, against=text)
        )
    return found


def _memory() -> list[Row]:
    values = np.zeros(DIM, dtype=np.float32)
    tracemalloc.start()
    _client(values, 37)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return [at_most("secagg/client-memory", peak, "MiB over input", target=16, against="the update, counted apart")]


def _noise() -> list[Row]:
    shares, sigma_sq, few = NoiseShares(2**44 + 345), 2**44 + 345, 400
    stream = KeyRoot(Purpose.RELEASE).derive("benchmark")
    fast, slow = _fastest(
        lambda: shares(bytes(32), 0, CHUNK_WORDS), lambda: discrete_gaussians(stream, Fraction(sigma_sq), few)
    )
    each, plain = fast / CHUNK_WORDS, slow / few
    text = f"{each * 1e9:.0f} ns a number; by integers and fractions {plain * 1e6:.0f} µs"
    return [at_least("noise/shares-vs-reference", plain / each, "× faster", target=300, against=text)]


def _drop() -> list[Row]:
    accumulator = Accumulator(DIM, 32)
    stream, cost = _fastest(lambda: _keystream(NEAR), lambda: accumulator.unmask(_masks(NEAR)))
    text = f"{NEAR} passes of the keystream"
    return [at_most("secagg/drop-vs-passes", cost / stream, "× keystream", target=1.25, against=text)]


def _phases() -> list[Row]:
    found = federation_of(integer_plan(names_of(MANY), 3, colluding=20, dropouts=20))
    names = list(found.plan.invited)
    spent = dict.fromkeys(("share", "mask", "consent", "reveal"), math.inf)
    found.advertise(names)
    for phase in spent:
        for name in names[:REPEATS]:
            event = _event(phase, found, name)
            started = time.process_time()
            found.sites[name].tell(event)
            spent[phase] = min(spent[phase], time.process_time() - started)
        getattr(found, phase)(names)  # the site answers a repeat with the same bytes
    bare = _bare_cryptography(found)
    whole = sum(spent.values())
    text = f"{bare * 1000:.0f} ms of bare cryptography; " + ", ".join(
        f"{k} {v * 1000:.0f} ms" for k, v in spent.items()
    )
    return [
        at_most("secagg/phases-vs-cryptography", whole / bare, "× its calls", target=2.0, against=text),
        shown("secagg/phases", whole, "s", against=f"a site among {MANY} with {NEAR} neighbours"),
    ]


def _event(phase: str, found: Federation, name: str) -> at.Event:
    relay = found.relayed[name]
    match phase:
        case "share":
            return at.AdvertsShown(relay.messages)
        case "mask":
            return at.SharesShown(relay.messages, relay.boxes)
        case "consent":
            return at.MaskedShown(relay.messages)
        case _:
            return at.CertificateShown(relay.messages)


def _bare_cryptography(found: Federation) -> float:
    """Return the time of as many signatures, checks, boxes, exchanges and derivations as the site made."""
    body = bytes(300)
    signature = key_of("s000").sign(signing_input("advert", body))
    verify = found.sites["s000"].registry.members["s000"].verify
    own, peer = _secret(7), _secret(8)
    peer_key, plain = public_key(peer), Secret(bytes(range(98)))
    box = seal_box(plain, peer_key, bytes(32), "s000", "s001")
    verified = 4 * MANY  # adverts, shares, masked and consents

    def work() -> None:
        for _ in range(verified):
            verify(signature, signing_input("advert", body))
        for _ in range(4):
            key_of("s000").sign(body)
        opening, agreement = BoxKey(peer), MaskSeed(own)
        for _ in range(NEAR):
            seal_box(plain, peer_key, bytes(32), "s000", "s001")
            opening.open(box, bytes(32), "s000", "s001")
            agreement.pair_key(peer_key, bytes(32), "s000", "s001")

    return _fastest(work)[0]
