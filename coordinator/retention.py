"""What of a job's models and means stays on disk.

Kept are the initial model, the newest models as the configuration says, and whatever another job stands on. A blob that
two releases name is removed only when neither needs it. Signed records always stay.
"""

from coordinator.store import Store
from federation.link.blobs import BlobStore
from federation.messages import JobId


def forget_models(store: Store, blobs: BlobStore, job: JobId, *, kept_count: int) -> None:
    """Remove the models and server states of a job but for the first and the `kept_count` newest."""
    releases = store.releases.all(job)
    old = releases[1:-kept_count]
    if not old:
        return
    needed = store.releases.roots(except_job=job)
    needed |= {found.mean.root for found in releases} | {releases[0].model.root}
    for found in releases[-kept_count:]:
        needed |= {found.model.root} | ({found.state.root} if found.state else set())
    for found in old:
        for reference in (found.model, found.state):
            if reference is not None and reference.root not in needed:
                blobs.remove(reference)


def forget_means(store: Store, blobs: BlobStore, job: JobId) -> None:
    """Remove the means of an ended job whose sites all know its end."""
    releases = store.releases.all(job)
    needed = store.releases.roots(except_job=job)
    for release in releases:
        needed |= {release.model.root, release.record_blob.root}
        needed |= {release.state.root} if release.state is not None else set()
    for release in releases:
        if release.mean.root not in needed:
            blobs.remove(release.mean)
