"""The site's own copy of the model: every signed release is followed by taking the server step again, here.

A request to train names the newest release. The site walks `previous` back to the last release that it has applied,
fetches each mean, takes the same server step in the same arithmetic, and compares the digest that the coordinator
signed. Only the newest record needs a signature: its chain of roots binds all records before it. So a coordinator
can't show this site another model than the one which follows from the sums that it released, nor go back to an
earlier one. The first model of a fresh job isn't even fetched: it follows from the plan's seed. Whatever doesn't
follow is refused before a byte of data is read.

Nothing here knows the link or the store: blobs come through `Fetch`, what was applied is an argument and a result.
Files of a job: ``model-<step>.safetensors`` and ``state-<step>.safetensors``; the newest two steps are kept, so that
a crash between writing files and remembering them loses nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from federation import server_step
from federation.errors import ConfideError, NotAuthenticated, PeerMisbehaved
from federation.identity import check_signature
from federation.messages import BlobReference, JobId, MessageRefused, Release, decode_body
from federation.models import layout
from federation.plan import Plan
from federation.plan_fields import mean_strategy
from federation.secure_sums import WORD_BITS, check_survivors, words_of, write_mean
from federation.tensors import Manifest, NotFinite, TensorFile, TensorFileRefused, state_digest, write_tensors
from site_client.stored import Applied

NOT_SIGNED: Final = "CFD-R58"
DOES_NOT_FOLLOW: Final = "CFD-R59"
WRONG_TENSORS: Final = "CFD-R80"
OTHER_MODEL: Final = "CFD-R81"
MAX_RECORD_BYTES: Final = 1 << 20
# A tensor file is its tensors and a header: names, shapes and offsets, well under this for one tensor.
_HEADER_BYTES_PER_TENSOR: Final = 4096
Fetch = Callable[[BlobReference], Path]
"""Returns the file of a blob, fetched if it isn't here; raises `ConfideError` where it can't be had."""


class LineageRefused(PeerMisbehaved):
    """A release is not the coordinator's, doesn't follow, or leads to another model; nothing was applied of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the lineage of one job is checked against.

    Attributes:
        job: The job.
        plan: Its plan.
        plan_digest: SHA-256 of the plan's canonical bytes.
        coordinator: The coordinator's identity key, 32 bytes, from the accepted charter.
        width: Number of inputs that the data contract gives the model.
        classes: Number of classes of the label.
        folder: Where the job's files are.
    """

    job: JobId
    plan: Plan
    plan_digest: str
    coordinator: bytes
    width: int
    classes: int
    folder: Path

    @property
    def manifest(self) -> Manifest:
        """Return names, types and shapes of the plan's model."""
        return layout.manifest(self.plan.model, self.width, self.classes)

    def model(self, step: int) -> Path:
        """Return the file of the model after `step`."""
        return self.folder / f"model-{step}.safetensors"

    def state(self, step: int) -> Path:
        """Return the file of the server state after `step`."""
        return self.folder / f"state-{step}.safetensors"

    def holds(self, applied: Applied) -> bool:
        """Return whether the files of what was applied are still here."""
        return self.model(applied.step).exists() and (applied.step == 0 or self.state(applied.step).exists())


@dataclass(frozen=True, slots=True)
class Step:
    """One release that was followed, for the audit log; `previous` is the digest of the model before."""

    release: Release
    previous: str


@dataclass(frozen=True, slots=True)
class Followed:
    """Where the site stands now, the model's file, and the steps that were taken to get there."""

    applied: Applied
    model: Path
    steps: tuple[Step, ...]


def follow(
    job: Job, *, newest: BlobReference, signature: bytes, round_number: int, applied: Applied | None, fetch: Fetch
) -> Followed:
    """Return the model that `newest` leads to, after taking every server step that this site hasn't taken.

    Args:
        job: What it is checked against.
        newest: Blob of the newest release's record.
        signature: The coordinator's, over that record.
        round_number: The round that was asked for; a release of a later round is refused.
        applied: What the site followed last; None at the job's first phase.
        fetch: How blobs come.

    Raises:
        LineageRefused: With the code that the coordinator and the audit log get.
        ConfideError: A blob couldn't be fetched, or this disk can't be written.
    """
    known = applied
    if applied is not None and not job.holds(applied):
        applied = None  # the files are gone: begin anew, and pass what was applied on the way
    if applied is not None and newest.root == applied.release:
        return Followed(applied, job.model(applied.step), ())
    chain = _chain(job, newest, signature, applied, fetch)
    if chain[-1][1].round > round_number:
        _refuse(DOES_NOT_FOLLOW, f"the release is of round {chain[-1][1].round}, asked for is {round_number}")
    if known is not None and applied is None and known.release not in {reference.root for reference, _ in chain}:
        _refuse(DOES_NOT_FOLLOW, "the release doesn't lead past what the site has applied")
    steps = []
    for reference, release in chain:
        previous = "0" * 64 if applied is None else applied.digest
        applied = _apply(job, reference, release, fetch)
        steps.append(Step(release, previous))
    if applied is None:
        _refuse(DOES_NOT_FOLLOW, "the release leads nowhere")
    return Followed(applied, job.model(applied.step), tuple(steps))


def forget_older(job: Job, applied: Applied) -> None:
    """Remove the files of all but the newest two steps; called once `applied` is remembered."""
    for path in job.folder.glob("*.safetensors"):
        kind, _, number = path.stem.partition("-")
        if kind in ("model", "state") and number.isdecimal() and int(number) < applied.step - 1:
            path.unlink(missing_ok=True)


def _refuse(code: str, text: str) -> NoReturn:
    raise LineageRefused(code, text)


def _chain(
    job: Job, newest: BlobReference, signature: bytes, applied: Applied | None, fetch: Fetch
) -> list[tuple[BlobReference, Release]]:
    """Return the releases after `applied`, oldest first."""
    record = _record(newest, fetch)
    try:
        check_signature(job.coordinator, "release", record, signature)
    except NotAuthenticated:
        _refuse(NOT_SIGNED, "the release is not signed by the coordinator of the charter")
    chain = [(newest, _release(job, record))]
    if applied is not None and chain[0][1].step <= applied.step:
        _refuse(DOES_NOT_FOLLOW, f"the release is of step {chain[0][1].step}, the site stands at {applied.step}")
    while True:
        _, oldest = chain[0]
        if oldest.previous is None:
            if applied is not None:
                _refuse(DOES_NOT_FOLLOW, "the release begins anew, past what the site has applied")
            break
        if applied is not None and oldest.previous.root == applied.release and oldest.step == applied.step + 1:
            break
        if applied is not None and oldest.step <= applied.step + 1:
            _refuse(DOES_NOT_FOLLOW, f"the release of step {oldest.step} follows another one than the site applied")
        earlier = _release(job, _record(oldest.previous, fetch))
        if earlier.step != oldest.step - 1 or earlier.round > oldest.round:
            _refuse(DOES_NOT_FOLLOW, f"step {earlier.step} before step {oldest.step}")
        chain.insert(0, (oldest.previous, earlier))
    return chain


def _record(reference: BlobReference, fetch: Fetch) -> bytes:
    if reference.size_bytes > MAX_RECORD_BYTES:
        _refuse(DOES_NOT_FOLLOW, f"a release of {reference.size_bytes} bytes, at most {MAX_RECORD_BYTES}")
    return fetch(reference).read_bytes()


def _release(job: Job, record: bytes) -> Release:
    try:
        release = decode_body("release", record)
    except MessageRefused:
        _refuse(DOES_NOT_FOLLOW, "the release's record can't be read")
    if not isinstance(release, Release):
        _refuse(DOES_NOT_FOLLOW, "the record is of another kind")
    if release.job != job.job or release.plan_digest != job.plan_digest:
        _refuse(DOES_NOT_FOLLOW, "the release is of another job or plan")
    if release.step > job.plan.rounds or release.round >= job.plan.rounds:
        _refuse(DOES_NOT_FOLLOW, f"step {release.step}, the plan has {job.plan.rounds} rounds")
    if (release.step == 0) != (release.previous is None):
        _refuse(DOES_NOT_FOLLOW, "exactly the initial model has no release before it")
    return release


def _apply(job: Job, reference: BlobReference, release: Release, fetch: Fetch) -> Applied:
    try:
        if release.step > 0:
            secure = job.plan.secure_aggregation.enabled
            mean = _mean_of_sum(job, release, fetch) if secure else _mean(job, release, job.manifest.floats, fetch)
            digest = _step(job, mean, release.step)
        else:
            _first(job, release, fetch)
            digest = state_digest(job.model(0), None, step=0)
    except TensorFileRefused as problem:
        raise LineageRefused(WRONG_TENSORS, f"the released mean is no tensor file: {problem.message}") from None
    if digest != release.model:
        _refuse(OTHER_MODEL, f"the model after step {release.step} is not the one that was signed")
    return Applied(reference.root, release.round, release.step, digest)


def _first(job: Job, release: Release, fetch: Fetch) -> None:
    if job.plan.start is None:
        arrays = layout.initial(job.plan.model, job.width, job.classes, seed=job.plan.training.seed)
        write_tensors(job.model(0), arrays)
    else:
        _take_over(_mean(job, release, job.manifest, fetch), job.model(0))


def _mean(job: Job, release: Release, wanted: Manifest, fetch: Fetch) -> Path:
    most = wanted.size_bytes + _HEADER_BYTES_PER_TENSOR * (len(wanted.tensors) + 1)
    if release.mean.size_bytes > most:
        _refuse(WRONG_TENSORS, f"a mean of {release.mean.size_bytes} bytes, the model allows {most}")
    mean = fetch(release.mean)
    with TensorFile(mean) as tensors:
        if tensors.manifest != wanted:
            _refuse(WRONG_TENSORS, "names, types or shapes of the released mean are not the model's")
    return mean


def _mean_of_sum(job: Job, release: Release, fetch: Fetch) -> Path:
    """Return the mean that the released sum gives, made here."""
    try:
        check_survivors(release.survivors, job.plan)
    except PeerMisbehaved as problem:
        raise LineageRefused(problem.code, problem.message) from None
    size_bytes = words_of(job.manifest) * WORD_BITS // 8
    if release.mean.size_bytes != size_bytes:
        _refuse(WRONG_TENSORS, f"a sum of {release.mean.size_bytes} bytes, the model has {size_bytes}")
    mean = job.folder / "mean.safetensors"
    try:
        write_mean(fetch(release.mean), job.plan, job.manifest, len(release.survivors), mean)
    except NotFinite as problem:
        _refuse(WRONG_TENSORS, f"the released sum gives no mean: {problem.message}")
    return mean


def _step(job: Job, mean: Path, step: int) -> str:
    before = step - 1
    try:
        server_step.apply(
            mean_strategy(job.plan.server),
            model=job.model(before),
            mean=mean,
            state=None if before == 0 else job.state(before),
            step=step,
            new_model=job.model(step),
            new_state=job.state(step),
        )
    except TensorFileRefused:
        raise
    except ConfideError as problem:
        raise LineageRefused(WRONG_TENSORS, f"the server step can't be taken: {problem.message}") from None
    return state_digest(job.model(step), job.state(step), step=step)


def _take_over(source: Path, target: Path) -> None:
    """Give the initial model its name in the job's folder; the blob itself may be removed later."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        partial = target.with_suffix(".partial")
        with source.open("rb") as old, partial.open("wb") as new:
            while piece := old.read(1 << 20):
                new.write(piece)
            new.flush()
            os.fsync(new.fileno())
        partial.rename(target)
