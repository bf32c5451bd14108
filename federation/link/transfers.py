"""The coordinator's end of blob transfers: who may, how many at once, and chunks in and out."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

from federation.edge.clock import Clock
from federation.errors import PeerMisbehaved, PolicyRefused, Unreachable
from federation.link import link_pb2 as pb
from federation.link.backend import LinkBackend
from federation.link.blobs import BlobStore
from federation.link.chunks import chunk_count
from federation.link.limits import LinkLimits
from federation.link.wire import chunk_piece, head_piece, read_piece, reference_from_wire
from federation.messages import BlobReference


class _Progress:
    """When a running transfer last moved."""

    __slots__ = ("context", "moved_s")

    def __init__(self, context: grpc.ServicerContext, moved_s: float) -> None:
        self.context = context
        self.moved_s = moved_s


class Transfers:
    """Blob transfers with all sites."""

    def __init__(self, *, backend: LinkBackend, blobs: BlobStore, limits: LinkLimits, clock: Clock) -> None:
        self._backend = backend
        self._blobs: Final = blobs
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[int, _Progress] = {}
        self._by_site: Counter[str] = Counter()
        self._started = 0

    def fetch(self, site: str, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the pieces of a blob that `site` may read, from the chunk it asks for.

        Raises:
            PolicyRefused: It may not, or there is no such blob: both are told alike.
        """
        reference = reference_from_wire(request.reference)
        if not self._backend.may_fetch(site, reference) or not self._blobs.has(reference):
            raise PolicyRefused("CFD-L12", f"blob {reference.root[:12]} isn't for this site")
        with self._counted(site, context) as progress:
            yield head_piece(reference, request.first_chunk, self._blobs.hashes(reference))
            for chunk in self._blobs.read_chunks(reference, request.first_chunk):
                progress.moved_s = self._clock.monotonic_s()
                yield chunk_piece(chunk)

    def staged(self, site: str, request: pb.Reference) -> pb.StagedReply:
        """Return how much of an expected blob is here."""
        reference = self._expected(site, request)
        return pb.StagedReply(
            chunks=self._blobs.staged_chunks(reference, owner=site), complete=self._blobs.has(reference)
        )

    def deliver(self, site: str, pieces: Iterator[bytes], context: grpc.ServicerContext) -> pb.StagedReply:
        """Take the chunks of an expected blob and return how much is here when the stream ends.

        Every chunk is verified before it is kept; at the last one the blob is made durable and the backend told.

        Raises:
            PolicyRefused: Nobody expects this blob, or it is too large; no byte of it was kept.
            PeerMisbehaved: Not what the root promises; the chunks before are kept.
        """
        first = next(pieces, None)
        head = None if first is None else read_piece(first)
        if not isinstance(head, pb.Head):
            raise PeerMisbehaved("CFD-L09", "a delivery doesn't begin with its head")
        reference = self._expected(site, head.reference)
        if self._blobs.has(reference):
            return self._delivered(site, reference)
        with self._counted(site, context) as progress:
            self._check_room(site, reference)
            staging = self._blobs.open_staging(reference, head.hashes, owner=site)
            index = head.first_chunk
            for piece in pieces:
                progress.moved_s = self._clock.monotonic_s()
                chunk = read_piece(piece)
                if isinstance(chunk, pb.Head):
                    raise PeerMisbehaved("CFD-L09", "a delivery has a second head")
                staging.append(index, chunk)
                index += 1
            if not staging.is_whole:
                return pb.StagedReply(chunks=staging.chunks, complete=False)
            staging.complete()
        return self._delivered(site, reference)

    def _delivered(self, site: str, reference: BlobReference) -> pb.StagedReply:
        self._backend.on_delivered(site, reference)
        return pb.StagedReply(chunks=chunk_count(reference.size_bytes), complete=True)

    def _expected(self, site: str, travelled: pb.Reference) -> BlobReference:
        reference = reference_from_wire(travelled)
        if reference.size_bytes > self._limits.max_blob_bytes:
            raise PolicyRefused(
                "CFD-L12", f"a blob of {reference.size_bytes} bytes, at most {self._limits.max_blob_bytes}"
            )
        if not self._backend.may_deliver(site, reference):
            raise PolicyRefused("CFD-L12", f"blob {reference.root[:12]} isn't expected of this site")
        return reference

    def _check_room(self, site: str, reference: BlobReference) -> None:
        if self._blobs.staged_chunks(reference, owner=site):
            return
        staged_bytes = self._blobs.staged_bytes(site)
        if staged_bytes + reference.size_bytes > self._limits.max_staging_bytes_per_site:
            raise Unreachable("CFD-L13", "blobs of this site that are still arriving fill its staging")

    @contextmanager
    def _counted(self, site: str, context: grpc.ServicerContext) -> Iterator[_Progress]:
        progress = _Progress(context, self._clock.monotonic_s())
        with self._lock:
            if len(self._running) >= self._limits.max_transfers_count:
                raise Unreachable("CFD-L13", "too many transfers at once")
            if self._by_site[site] >= self._limits.max_transfers_per_site_count:
                raise Unreachable("CFD-L13", f"too many transfers of site {site} at once")
            self._started += 1
            number = self._started
            self._running[number] = progress
            self._by_site[site] += 1
        try:
            yield progress
        finally:
            with self._lock:
                del self._running[number]
                self._by_site[site] -= 1
                if not self._by_site[site]:
                    del self._by_site[site]

    def cut_stalled(self) -> None:
        """End transfers that have stood still too long; their sites come back at the last good chunk."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            stalled = [kept for kept in self._running.values() if now_s - kept.moved_s > self._limits.stall_s]
        for kept in stalled:
            kept.context.cancel()  # type: ignore[no-untyped-call]
