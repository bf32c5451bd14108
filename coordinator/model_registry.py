"""Models, means and server states of jobs as content-addressed blobs, and the signed releases that chain them.

The last good model is never overwritten: a step writes new files, which become blobs only once they are whole and
finite, and a release names them. What no release names is removed.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from coordinator.records import ReleaseRecord
from federation import canonical, server_step
from federation.link.blobs import BlobStore
from federation.messages import BlobReference, JobId, Release, SiteId, encode_body
from federation.plan_fields import MeanStrategy
from federation.tensors import Array, state_digest, write_tensors


class Signer(Protocol):
    """The coordinator's identity key."""

    def sign(self, kind: str, body: bytes) -> bytes:
        """Return the signature over the signing input of `kind` and `body`."""
        ...


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a server step: blobs, and the digest of model, state and step number."""

    mean: BlobReference
    model: BlobReference
    state: BlobReference | None
    model_digest: str
    step: int


class ModelRegistry:
    """Writes the models of all jobs.

    Args:
        blobs: Where blobs lie.
        scratch: A folder of this process for files that aren't blobs yet; emptied here.
        signer: Signs releases.
        now_us: Gives the wall time.
    """

    def __init__(self, blobs: BlobStore, scratch: Path, signer: Signer, now_us: Callable[[], int]) -> None:
        self.blobs: Final = blobs
        self._scratch = scratch
        self._signer = signer
        self._now_us = now_us
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700, parents=True)

    @contextmanager
    def workplace(self, job: JobId) -> Iterator[Path]:
        """Give an empty folder for one piece of work of a job; it is removed afterwards."""
        folder = self._scratch / job
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def first(self, job: JobId, arrays: Mapping[str, Array]) -> Stepped:
        """Store the initial model, step 0."""
        with self.workplace(job) as folder:
            path = folder / "initial.safetensors"
            write_tensors(path, arrays)
            reference = self.blobs.adopt_file(path)
        return self.first_from(reference)

    def first_from(self, model: BlobReference) -> Stepped:
        """Return step 0 of a job that starts from a stored model, with an empty server state."""
        digest = state_digest(self.blobs.path(model), None, step=0)
        return Stepped(mean=model, model=model, state=None, model_digest=digest, step=0)

    def step(
        self,
        strategy: MeanStrategy,
        before: ReleaseRecord,
        mean: Path,
        folder: Path,
        *,
        words: Path | None = None,
    ) -> Stepped:
        """Apply the server step number `before.step + 1` and store its results; `before` stays as it is.

        Args:
            strategy: The server step.
            before: The newest release.
            mean: The mean of the updates, a file in `folder`; it becomes a blob.
            folder: From `workplace`.
            words: The words of the secure sum that `mean` was made of; they are what is released.

        Raises:
            NotFinite: The next model or state would not be finite; nothing was stored.
        """
        number = before.step + 1
        model, state = folder / "model.safetensors", folder / "state.safetensors"
        server_step.apply(
            strategy,
            model=self.blobs.path(before.model),
            mean=mean,
            state=None if before.state is None else self.blobs.path(before.state),
            step=number,
            new_model=model,
            new_state=state,
        )
        digest = state_digest(model, state, step=number)
        return Stepped(
            mean=self.blobs.adopt_file(words or mean),
            model=self.blobs.adopt_file(model),
            state=self.blobs.adopt_file(state) if server_step.slots_of(strategy) else None,
            model_digest=digest,
            step=number,
        )

    def sign(
        self,
        stepped: Stepped,
        *,
        job: JobId,
        plan_digest: str,
        at: tuple[int, int],
        previous: ReleaseRecord | None,
        weights: Mapping[SiteId, int],
    ) -> ReleaseRecord:
        """Return the signed release of `stepped`, its record stored as a blob; a release only once the store has it.

        Args:
            stepped: What is released.
            job: Its job.
            plan_digest: Digest of the job's plan.
            at: Round and attempt.
            previous: The release before, None for step 0.
            weights: The survivors' weights, by site.
        """
        survivors = sorted(weights)
        body = encode_body(
            Release(
                job=job,
                plan_digest=plan_digest,
                round=at[0],
                step=stepped.step,
                previous=None if previous is None else previous.record_blob,
                mean=stepped.mean,
                model=stepped.model_digest,
                survivors=tuple(survivors),
                weights=tuple(weights[site] for site in survivors),
            )
        )
        return ReleaseRecord(
            job=job,
            step=stepped.step,
            round=at[0],
            attempt=at[1],
            digest=canonical.digest(body),
            record=body,
            signature=self._signer.sign("release", body),
            record_blob=self.blobs.put_bytes(body),
            mean=stepped.mean,
            model_digest=stepped.model_digest,
            model=stepped.model,
            state=stepped.state,
            metrics=None,
            released_us=self._now_us(),
        )
