"""The secure sum of a round as a job has it: its plan, its vector, and the mean that everybody makes of the sum.

What a job's plan says, the protocol's `SumPlan` repeats in its own terms. Coordinator and sites make it with the same
function, and a site compares the one it was sent with the one it makes itself: a coordinator can't lower a threshold
or widen a grid. The vector is the update's averaged tensors one after the other, in the order of their names. From the
words of the sum both sides make the same bits of the mean, so the sites recompute the server step from what was signed.

The protocol itself is `privacy.secagg`; files and links are elsewhere.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from federation.charter import Charter
from federation.errors import CheckFailed, ConfideError, InvalidInput, PeerMisbehaved
from federation.identity import IdentityKey
from federation.messages import MemberStatus
from federation.plan_fields import Plan
from federation.sum_codes import public_code
from federation.tensors import Manifest, TensorFile, TensorWriter, cast_once, windows
from privacy.secagg.envelope import Member, Registry
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS, centred, chunk_count, chunk_span, word_type
from privacy.secagg.keys import ed25519_verify
from privacy.secagg.messages import Noise, SumPlan
from privacy.secagg.parameters import derive
from privacy.secagg.quantize import Vector
from privacy.secagg.sums import SumFigures, SumInspection

WORD_BITS: Final = 32
MOST_SCALE: Final = 22
PATIENCE_FACTOR: Final = 4
PATIENCE_S: Final = 120
"""A site waits for the coordinator four phases and two minutes, so that a restarted one finds it still there."""


class SumFailed(ConfideError):
    """A secure sum, or this site's part in it, ended without a result.

    Attributes:
        refusal: What the protocol says.
    """

    def __init__(self, refusal: SumRefused) -> None:
        super().__init__(public_code(refusal.code), refusal.message, hint=refusal.hint)
        self.refusal: Final = refusal


@dataclass(frozen=True, slots=True)
class DigestSigner:
    """An identity key as the protocol uses it."""

    key: IdentityKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a digest."""
        return self.key.sign_digest(message)


@dataclass(frozen=True, slots=True)
class SumPlace:
    """Which sum of a job it is.

    Attributes:
        round: The round.
        attempt: Its attempt.
        sum_id: The sum's own id, 64 hex digits, drawn by the coordinator.
        model_digest: Of the model that the sites trained from.
        invited: Who finished the training, sorted.
        epoch: Of the charter.
        federation: The charter's name.
    """

    round: int
    attempt: int
    sum_id: str
    model_digest: str
    invited: tuple[str, ...]
    epoch: int
    federation: str


def registry_of(charter: Charter) -> Registry:
    """Return the members of a charter's epoch as the protocol knows them."""
    members = {
        member.site: Member(
            member.operator, member.status is MemberStatus.ACTIVE, ed25519_verify(bytes.fromhex(member.identity))
        )
        for member in charter.members
    }
    return Registry(charter.epoch, members, ed25519_verify(bytes.fromhex(charter.coordinator.identity)))


def sum_job_digest(job: str, plan_digest: str) -> str:
    """Return the digest by which sums name a job: of its id and of its plan, which two jobs may share."""
    return hashlib.sha256(
        b"confide-sum-job/v1\n" + job.encode("ascii") + b"\n" + bytes.fromhex(plan_digest)
    ).hexdigest()


def words_of(manifest: Manifest) -> int:
    """Return how many words the vector of an update has."""
    return sum(spec.elements for _, spec in manifest.floats.tensors)


def scale_of(sites: int) -> int:
    """Return the binary digits of the grid below the clip, so that a sum of `sites` vectors fits a word (8.3)."""
    return min(MOST_SCALE, 30 - (sites - 1).bit_length())


def sum_plan(plan: Plan, job_digest: str, manifest: Manifest, place: SumPlace) -> SumPlan:
    """Return the one `SumPlan` of a job's training sum.

    Raises:
        SumRefused: E_COHORT or E_PLAN, no sum of these sites is private and can end.
    """
    secure = plan.secure_aggregation
    found = derive(len(place.invited), secure.colluding, secure.dropouts or 0, plan.sites.quorum or 0)
    scale = scale_of(len(plan.sites.invite))
    mechanism = plan.privacy.mechanism
    unit = "none" if mechanism == "none" else plan.privacy.unit
    patience_s = PATIENCE_FACTOR * plan.deadlines.phase_s + PATIENCE_S
    fields = {
        "federation": place.federation,
        "job_digest": job_digest,
        "purpose": "train",
        "sum_id": place.sum_id,
        "prev_sum": None,
        "round": place.round,
        "attempt": place.attempt,
        "registry_epoch": place.epoch,
        "invited": place.invited,
        "weights": None,
        "model_digest": place.model_digest,
        "dim": words_of(manifest),
        "word_bits": WORD_BITS,
        "chunk_words": CHUNK_WORDS,
        "clip": float(secure.clip).hex(),
        "scale_log2": scale,
        "q_max": 1 << scale,
        "clamp_ppm_max": 0,
        "rounding": "stochastic",
        "dp": Noise.model_validate(
            {"mechanism": mechanism, "unit": unit, "z": "0", "sigma_sq": 0, "norm_sq_max": 0, "honest_min": 0}
        ),
        "colluding": found.colluding,
        "dropouts": found.dropouts,
        "degree": found.degree,
        "share_threshold": found.share_threshold,
        "quorum": found.quorum,
        "deadlines_s": (patience_s,) * 5,
    }
    return SumPlan.model_validate(fields)


def check_as_agreed(found: SumPlan, plan: Plan, job_digest: str, manifest: Manifest) -> None:
    """Refuse a sum that isn't the one which the approved job's plan gives for those invited.

    Raises:
        SumRefused: E_PLAN.
    """
    place = SumPlace(
        found.round,
        found.attempt,
        found.sum_id,
        found.model_digest,
        found.invited,
        found.registry_epoch,
        found.federation,
    )
    strangers = set(found.invited) - set(plan.sites.invite)
    if strangers:
        raise SumRefused("E_PLAN", f"{min(strangers)} isn't invited by the job")
    if sum_plan(plan, job_digest, manifest, place) != found:
        raise SumRefused("E_PLAN", "the sum differs from what the approved job gives")


def vector_of(update: Path, manifest: Manifest) -> Vector:
    """Return an update as one flat vector, binary32 unless a tensor is wider."""
    floats = manifest.floats
    wide = any(spec.numpy.itemsize > 4 for _, spec in floats.tensors)
    count = words_of(manifest)
    vector = np.empty(count, np.float64) if wide else np.empty(count, np.float32)
    at = 0
    with TensorFile(update) as tensors:
        for name, spec in floats.tensors:
            for start, stop in windows(spec):
                vector[at + start : at + stop] = tensors.window(name, start, stop)
            at += spec.elements
    return vector


def check_in_range(update: Path, manifest: Manifest, clip: float) -> None:
    """Refuse an update with a coordinate beyond the clip, naming its tensor; run at the site, before anything leaves.

    Raises:
        CheckFailed: CFD-R95.
    """
    with TensorFile(update) as tensors:
        for name, spec in manifest.floats.tensors:
            for start, stop in windows(spec):
                values = np.abs(tensors.window(name, start, stop))
                if not values.max(initial=0.0) <= clip:
                    raise CheckFailed("CFD-R95", f"tensor {name} holds a value beyond ±{clip:g}")


def tensor_starts(manifest: Manifest) -> tuple[int, ...]:
    """Return where each tensor begins in the vector."""
    starts, at = [], 0
    for _, spec in manifest.floats.tensors:
        starts.append(at)
        at += spec.elements
    return tuple(starts)


def read_chunk(path: Path, index: int, dim: int) -> bytes:
    """Return one chunk of a file of words."""
    start, stop = chunk_span(index, dim)
    width = WORD_BITS // 8
    with path.open("rb", buffering=0) as source:
        source.seek(start * width)
        return source.read((stop - start) * width)


def figures_of(words: Path, dim: int) -> SumFigures:
    """Return what a sum's words are, from their file.

    Raises:
        SumRefused: E_RESULT, there are more or fewer of them.
    """
    if words.stat().st_size != dim * WORD_BITS // 8:
        raise SumRefused("E_RESULT", f"the sum's file has {words.stat().st_size} bytes")
    inspection = SumInspection(dim, WORD_BITS)
    for index in range(chunk_count(dim)):
        inspection.read(read_chunk(words, index, dim))
    return inspection.figures()


def write_mean(words: Path, plan: Plan, manifest: Manifest, summed_count: int, out: Path) -> None:
    """Write the mean that a sum's words give, γ·S / #U3 with γ the step of the grid.

    Args:
        words: The sum's words.
        plan: The job's plan.
        manifest: That of the model.
        summed_count: How many sites are in the sum.
        out: The tensor file to write, whole or not at all.

    Raises:
        InvalidInput: The words aren't of this model, or nobody was summed.
        NotFinite: The mean isn't a number.
    """
    dim = words_of(manifest)
    if words.stat().st_size != dim * WORD_BITS // 8:
        raise InvalidInput("CFD-R62", f"a sum of {words.stat().st_size} bytes, the model has {dim} words")
    if summed_count < 1:
        raise InvalidInput("CFD-R62", "a mean of no updates")
    step = float(plan.secure_aggregation.clip) * 2.0 ** -scale_of(len(plan.sites.invite))
    divisor = float(summed_count)
    at, source = 0, np.memmap(words, dtype=word_type(WORD_BITS), mode="r")
    with TensorWriter(out, manifest.floats) as writer:
        for name, spec in manifest.floats.tensors:
            for start, stop in windows(spec):
                wide = centred(np.asarray(source[at + start : at + stop])).astype(np.float64)
                writer.write(name, start, cast_once(wide * step / divisor, spec, name))
            at += spec.elements


def check_survivors(survivors: Collection[str], plan: Plan) -> None:
    """Refuse a released sum over fewer sites than any sum of the job may have.

    Raises:
        PeerMisbehaved: CFD-R96.
    """
    least = max(3, plan.secure_aggregation.colluding + 2, plan.sites.quorum or 0)
    if len(set(survivors)) < least:
        raise PeerMisbehaved("CFD-R96", f"a sum of {len(set(survivors))} sites was released, at least {least}")
