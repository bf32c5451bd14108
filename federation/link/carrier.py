"""The site's end of blob transfers: fetch and deliver until done or the deadline, resuming at the last good chunk."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from federation.edge.clock import Clock
from federation.errors import ConfideError, InvalidInput, PeerMisbehaved, TimedOut, Unreachable
from federation.link import link_pb2 as pb
from federation.link.blobs import BlobStore
from federation.link.chunks import chunk_count
from federation.link.dial import Dialler, SiteTls
from federation.link.limits import LinkLimits
from federation.link.outbox import Backoff, Randomness
from federation.link.wire import LINK, PASSING_CODES, as_is, chunk_piece, head_piece, read_piece, reference_to_wire
from federation.messages import BlobReference

_log: Final = structlog.get_logger("confide.link")
_COORDINATOR: Final = "coordinator"


IDLE_S: Final = 30.0
"""How long a connection waits for the next transfer: longer than a round of small blobs, shorter than proxies wait."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """A connection without a transfer."""

    channel: grpc.Channel
    tls: SiteTls
    since_s: float


class Carrier:
    """Moves blobs between this site's store and the coordinator.

    Transfers have connections of their own, so that bulk never stands in the way of heartbeats; one is kept for the
    next transfer.

    Args:
        dialler: Opens connections.
        tls: This site's TLS key and certificate, read again for each connection.
        blobs: Where blobs lie.
        limits: Every bound.
        clock: The time.
        randomness: For the jitter of waits.
        stopping: Waits so many seconds and returns whether this process stops.
    """

    def __init__(
        self,
        *,
        dialler: Dialler,
        tls: Callable[[], SiteTls],
        blobs: BlobStore,
        limits: LinkLimits,
        clock: Clock,
        randomness: Randomness,
        stopping: Callable[[float], bool],
    ) -> None:
        self._dialler = dialler
        self._tls = tls
        self._blobs = blobs
        self._limits = limits
        self._clock = clock
        self._randomness = randomness
        self._stopping = stopping
        self._idle_lock = threading.Lock()
        self._idle: _Idle | None = None

    def fetch(self, reference: BlobReference, *, deadline_s: float) -> Path:
        """Return the file of a blob, fetched from the coordinator if it isn't here yet.

        Args:
            reference: From a signed message.
            deadline_s: How long to keep trying, from now.

        Raises:
            TimedOut: Not whole by then; what has arrived is kept for the next time.
            ConfideError: A fault that needs a person.
        """
        self._check_size(reference)
        if not self._blobs.has(reference):
            self._until_done(_Transfer("fetch", reference, self._fetch_once), deadline_s)
        return self._blobs.path(reference)

    def deliver(self, reference: BlobReference, *, deadline_s: float) -> None:
        """Bring a blob of this site's store to the coordinator; return when it is durable and counted there.

        Raises:
            OutOfOrder: The blob isn't in the store.
            TimedOut: Not whole by then; what has arrived there is kept there for the next time.
            ConfideError: A fault that needs a person, or the coordinator doesn't expect this blob.
        """
        self._check_size(reference)
        self._blobs.path(reference)
        self._until_done(_Transfer("deliver", reference, self._deliver_once), deadline_s)

    def _check_size(self, reference: BlobReference) -> None:
        if reference.size_bytes > self._limits.max_blob_bytes:
            raise InvalidInput(
                "CFD-L12", f"a blob of {reference.size_bytes} bytes, the link carries {self._limits.max_blob_bytes}"
            )

    def _until_done(self, transfer: "_Transfer", deadline_s: float) -> None:
        ends_s = self._clock.monotonic_s() + deadline_s
        backoff = Backoff(
            first_s=self._limits.retry_first_s, bound_s=self._limits.retry_bound_s, randomness=self._randomness
        )
        while True:
            left_s = ends_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise TimedOut("CFD-L17", f"{transfer} didn't end in {deadline_s:.0f} s; what arrived is kept")
            moved_before = transfer.chunks
            problem = self._attempt(transfer, left_s)
            if problem is None:
                return
            if problem.code not in PASSING_CODES:
                raise problem
            _log.info("transfer.broken", transfer=str(transfer), code=problem.code)
            if transfer.chunks > moved_before:
                backoff.reset()
            wait_s = min(backoff.wait_s(), max(0.0, ends_s - self._clock.monotonic_s()))
            if self._stopping(wait_s):
                raise problem

    def _attempt(self, transfer: "_Transfer", left_s: float) -> ConfideError | None:
        """Try once; a connection that was idle may have died meanwhile, so its fault costs a fresh one at once."""
        tls = self._tls()
        kept = self._take_idle(tls)
        if kept is not None and self._over(transfer, kept, tls, left_s) is None:
            return None
        try:
            channel = self._dialler.as_member(tls)
        except ConfideError as problem:
            return problem
        return self._over(transfer, channel, tls, left_s)

    def _over(self, transfer: "_Transfer", channel: grpc.Channel, tls: SiteTls, left_s: float) -> ConfideError | None:
        good = False
        try:
            transfer.once(transfer, channel, left_s)
            good = True
        except grpc.RpcError as problem:
            return self._dialler.in_words(problem)
        except ConfideError as problem:
            return problem
        finally:
            if not good or not self._keep_idle(channel, tls):
                channel.close()
        return None

    def _take_idle(self, tls: SiteTls) -> grpc.Channel | None:
        """Return the connection that the last transfer left, if it is young and of the same certificate."""
        with self._idle_lock:
            idle, self._idle = self._idle, None
        if idle is None:
            return None
        if idle.tls == tls and self._clock.monotonic_s() - idle.since_s <= IDLE_S:
            return idle.channel
        idle.channel.close()
        return None

    def _keep_idle(self, channel: grpc.Channel, tls: SiteTls) -> bool:
        """Keep `channel` for the next transfer, unless there is one already; the blobs of a round follow each other."""
        with self._idle_lock:
            if self._idle is not None or self._stopping(0):
                return False
            self._idle = _Idle(channel, tls, self._clock.monotonic_s())
            return True

    def close(self) -> None:
        """Close the connection that waits for the next transfer."""
        with self._idle_lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            idle.channel.close()

    def _fetch_once(self, transfer: "_Transfer", channel: grpc.Channel, left_s: float) -> None:
        reference = transfer.reference
        first = self._blobs.staged_chunks(reference, owner=_COORDINATOR)
        call = channel.unary_stream(f"/{LINK}/Fetch", pb.FetchRequest.SerializeToString, as_is)(
            pb.FetchRequest(reference=reference_to_wire(reference), first_chunk=first), timeout=left_s
        )
        with self._watched(transfer, call):
            pieces = iter(call)
            head = read_piece(next(pieces, b""))
            if not isinstance(head, pb.Head) or head.first_chunk != first:
                raise PeerMisbehaved("CFD-L09", f"{transfer}: the coordinator didn't begin where it was asked to")
            staging = self._blobs.open_staging(reference, head.hashes, owner=_COORDINATOR)
            for index, piece in enumerate(pieces, start=first):
                chunk = read_piece(piece)
                if isinstance(chunk, pb.Head):
                    raise PeerMisbehaved("CFD-L09", f"{transfer}: a second head")
                staging.append(index, chunk)
                transfer.moved(self._clock)
        if not staging.is_whole:
            raise Unreachable("CFD-L01", f"{transfer}: the coordinator ended early")
        staging.complete(durable=False)  # it can be fetched again

    def _deliver_once(self, transfer: "_Transfer", channel: grpc.Channel, left_s: float) -> None:
        first = self._first_missing(transfer, channel, left_s)
        # A complete blob is delivered again, without chunks: only a delivery makes the coordinator count it.
        call = channel.stream_unary(f"/{LINK}/Deliver", as_is, pb.StagedReply.FromString).future(
            self._pieces(transfer, first), timeout=left_s
        )
        with self._watched(transfer, call):
            reply = call.result()
        if not reply.complete:
            raise Unreachable("CFD-L01", f"{transfer}: the coordinator has {reply.chunks} chunks")

    def _first_missing(self, transfer: "_Transfer", channel: grpc.Channel, left_s: float) -> int:
        """Return the chunk to begin with; a blob of one chunk has nothing to resume, so at first nobody is asked."""
        transfer.tries += 1
        if transfer.tries == 1 and chunk_count(transfer.reference.size_bytes) == 1:
            return 0
        staged = channel.unary_unary(f"/{LINK}/Staged", pb.Reference.SerializeToString, pb.StagedReply.FromString)(
            reference_to_wire(transfer.reference), timeout=min(left_s, self._limits.connect_timeout_s)
        )
        return int(staged.chunks)

    def _pieces(self, transfer: "_Transfer", first: int) -> Iterator[bytes]:
        yield head_piece(transfer.reference, first, self._blobs.hashes(transfer.reference))
        for chunk in self._blobs.read_chunks(transfer.reference, first):
            yield chunk_piece(chunk)
            transfer.moved(self._clock)

    @contextmanager
    def _watched(self, transfer: "_Transfer", call: Any) -> Iterator[None]:
        """Cut `call` if it stands still too long: a proxy may keep a dead connection open."""
        over = threading.Event()
        transfer.moved_s = self._clock.monotonic_s()

        def watch() -> None:
            while not over.wait(min(1.0, self._limits.stall_s / 4)):
                if self._clock.monotonic_s() - transfer.moved_s > self._limits.stall_s or self._stopping(0):
                    call.cancel()

        watcher = threading.Thread(target=watch, name="link-transfer-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            call.cancel()


class _Transfer:
    """One blob on its way."""

    def __init__(
        self,
        what: str,
        reference: BlobReference,
        once: Callable[["_Transfer", grpc.Channel, float], None],
    ) -> None:
        self._what = what
        self.reference: Final = reference
        self.once: Final = once
        self.chunks = 0
        self.tries = 0
        self.moved_s = 0.0

    def moved(self, clock: Clock) -> None:
        self.chunks += 1
        self.moved_s = clock.monotonic_s()

    def __str__(self) -> str:
        return f"{self._what} of blob {self.reference.root[:12]} ({self.reference.size_bytes} bytes)"
