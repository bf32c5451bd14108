"""The files of a released model, as they are handed to people: paths, sizes, hashes, and the chain of signed releases.

Only what was released is given out; a model that the retention let go of is said to be gone, with what can be done.
"""

import hashlib
from pathlib import Path

from coordinator.store import Store
from coordinator.views import ResultFile, ResultView
from federation.errors import InvalidInput, OutOfOrder
from federation.link.blobs import BlobStore
from federation.messages import BlobReference, JobId


class ReleasedFiles:
    """The released models of one home."""

    def __init__(self, store: Store, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    def of(self, job: JobId, number: int | None = None) -> ResultView:
        """Return the files of a job's newest released model, or of the one after round `number`, counted from 0.

        Raises:
            InvalidInput: There is no such model, or it is no longer kept.
        """
        record = self._store.jobs.get(job)
        releases = [release for release in self._store.releases.all(record.id) if release.step > 0]
        wanted = [release for release in releases if number is None or release.round == number]
        if not wanted:
            raise InvalidInput("CFD-J09", f"job {job} has released no {'such ' if releases else ''}model yet")
        chosen = wanted[-1]
        files = [_file("model.safetensors", self._blob(chosen.model))]
        if chosen.state is not None:
            files.append(_file("server_state.safetensors", self._blob(chosen.state)))
        chain = self._store.releases.all(record.id)[: chosen.step + 1]
        return ResultView(
            job=record.id,
            round=chosen.round,
            step=chosen.step,
            model_digest=chosen.model_digest,
            files=tuple(files),
            releases=tuple({"record": one.record.hex(), "signature": one.signature.hex()} for one in chain),
            metrics=None if chosen.metrics is None else dict(chosen.metrics),
        )

    def _blob(self, reference: BlobReference) -> Path:
        try:
            return self._blobs.path(reference)
        except OutOfOrder:
            raise InvalidInput(
                "CFD-J09", "this model is no longer kept", hint="raise retention.models_count, or take a newer round"
            ) from None


def _file(name: str, path: Path) -> ResultFile:
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            hasher.update(piece)
    return ResultFile(name=name, path=str(path), size_bytes=path.stat().st_size, sha256=hasher.hexdigest())
