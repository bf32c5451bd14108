"""The small blobs that travel inside a request, so that a site which follows closely needs to fetch nothing.

A site takes each only as the blob of its own root (`federation.messages.PhaseRequest`); what is too large is left out,
and fetched.
"""

from typing import Final

from coordinator.records import ReleaseRecord
from federation.link.blobs import BlobStore

MAX_ATTACHED_BYTES: Final = 64 << 10
"""Most bytes of blobs inside one request."""


class Attachments:
    """What goes with the requests of one job; the newest release's is kept, as each site gets the same."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._root = ""
        self._known: tuple[str, ...] = ()

    def of(self, release: ReleaseRecord) -> tuple[str, ...]:
        """Return, as hexadecimal text, a release's record and its mean, as far as both or the first are small."""
        if self._root != release.record_blob.root:
            self._root, self._known = release.record_blob.root, self._read(release)
        return self._known

    def _read(self, release: ReleaseRecord) -> tuple[str, ...]:
        record, mean = release.record_blob, release.mean
        if record.size_bytes > MAX_ATTACHED_BYTES:
            return ()
        if record.size_bytes + mean.size_bytes > MAX_ATTACHED_BYTES:
            return (release.record.hex(),)
        return (release.record.hex(), self._blobs.path(mean).read_bytes().hex())
