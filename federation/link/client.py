"""The site's end of the link: dials out, attends, comes back by itself, and says why when it can't.

One thread keeps the attendance: connect, hello, exchange messages, and after a fault wait and connect again. A fault
that passes by itself is retried with doubling waits up to `retry_bound_s`; one that needs a person (certificate,
name, membership, version) is reported and retried only every `permanent_retry_s`, or at once after `retry_now`.
Messages wait here for their acknowledgement while the process lives; what must survive a restart the daemon keeps.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import structlog

from federation.certificates import certificate_from_pem, expiry
from federation.edge.clock import Clock
from federation.errors import ConfideError, NotAuthenticated, PeerMisbehaved, Unreachable
from federation.link import link_pb2 as pb
from federation.link.blobs import BlobStore
from federation.link.carrier import Carrier
from federation.link.correspondence import Correspondence, open_message, sign_message
from federation.link.dial import Dialler, SiteTls
from federation.link.limits import LinkLimits
from federation.link.outbox import Backoff, MessageIds, Randomness
from federation.link.route import Route
from federation.link.wire import ENROLMENT, LINK, PASSING_CODES, WITNESS, Signer, signed
from federation.messages import BlobReference, Body, Hello, HelloReply, SignedMessage
from federation.witness_messages import CheckpointCall, CosignCall, EntriesCall

_log: Final = structlog.get_logger("confide.link")


_WITNESS_CALLS: Final = {CheckpointCall: "Checkpoint", CosignCall: "Cosign", EntriesCall: "Entries"}


class LinkHandler(Protocol):
    """The site behind the link. Calls come from the link's thread and must be quick."""

    def hello(self, message_id: str) -> Hello:
        """Return the hello to open an attendance with, carrying `message_id`."""
        ...

    def on_connected(self, reply: HelloReply) -> None:
        """Note that the coordinator accepted the hello: work can arrive now."""
        ...

    def on_lost(self, problem: ConfideError) -> None:
        """Note that the attendance ended, or didn't come about, and why."""
        ...

    def on_message(self, message: SignedMessage, body: Body) -> None:
        """Take a message of the coordinator over; it is acknowledged when this returns.

        A `ConfideError` is a final no, told to the coordinator with code and message.
        """
        ...

    def on_acknowledged(self, message_id: str) -> None:
        """Note that the coordinator has taken over a message of ours."""
        ...

    def on_refused(self, message_id: str, problem: ConfideError) -> None:
        """Note that the coordinator finally refused a message of ours."""
        ...


class LinkState(StrEnum):
    """What the link is doing."""

    STOPPED = "stopped"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What a person wants to know of the link.

    Attributes:
        state: `WAITING`: a passing fault, comes back by itself. `BLOCKED`: somebody must act on `problem`.
        since: When this state began.
        route: The way to the coordinator, with its reason.
        problem: The last fault, while there is one.
        retry_s: How long until the next attempt, counted from `since`.
        notice: What the coordinator said of versions, if anything.
        certificate_ends: When the certificate in use ends.
        pending_count: Messages that wait for their acknowledgement.
    """

    state: LinkState
    since: datetime
    route: str
    problem: ConfideError | None = None
    retry_s: float = 0.0
    notice: str = ""
    certificate_ends: datetime | None = None
    pending_count: int = 0


@dataclass(slots=True)
class _Stream:
    """One attempt to attend."""

    connection: int
    heard_s: float
    call: Any = None
    problem: ConfideError | None = None
    accepted: bool = False
    opened: threading.Event = field(default_factory=threading.Event)


class LinkClient:
    """Keeps one site attending.

    Args:
        site: This site's id.
        route: Returns the way to the coordinator; asked for every connection.
        authority_pem: The federation's authority, pinned at enrolment.
        tls: Returns this site's TLS key and certificate; asked for every connection.
        identity: This site's identity key.
        coordinator_key: The coordinator's identity key, 32 bytes; asked for every message, as a charter may change it.
        handler: The site.
        blobs: Where blobs lie.
        limits: Every bound.
        clock: The time.
        randomness: For message ids and the jitter of waits.
    """

    def __init__(
        self,
        *,
        site: str,
        route: Callable[[], Route],
        authority_pem: bytes,
        tls: Callable[[], SiteTls],
        identity: Signer,
        coordinator_key: Callable[[], bytes],
        handler: LinkHandler,
        blobs: BlobStore,
        limits: LinkLimits,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._site = site
        self._tls = tls
        self._identity = identity
        self._coordinator_key = coordinator_key
        self._handler = handler
        self._limits = limits
        self._clock = clock
        self._randomness = randomness
        self.message_ids: Final = MessageIds(clock.now, randomness)
        self._dialler = Dialler(route=route, authority_pem=authority_pem, limits=limits, clock=clock)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._carrier = Carrier(
            dialler=self._dialler,
            tls=tls,
            blobs=blobs,
            limits=limits,
            clock=clock,
            randomness=randomness,
            stopping=self._stop.wait,
        )
        self._correspondence = Correspondence(
            limits=limits,
            monotonic_s=clock.monotonic_s,
            accept=handler.on_message,
            on_refused=handler.on_refused,
            on_acknowledged=handler.on_acknowledged,
        )
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._status = LinkStatus(LinkState.STOPPED, clock.now(), "")
        self._thread: threading.Thread | None = None

    # --- for the daemon ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to attend, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the attendance and running transfers; return when the thread has ended."""
        self._stop.set()
        self.retry_now()
        self._cut(Unreachable("CFD-L01", "this site stops"))
        if self._thread is not None:
            self._thread.join()
        self._carrier.close()
        self._set(LinkState.STOPPED)

    def send(self, body: Body) -> str:
        """Sign `body` and send it until acknowledged, now or when connected; return its message id.

        Raises:
            InvalidInput: Too large, or its id isn't one of `message_ids`.
            OutOfOrder: Too many messages wait already.
        """
        message_id, message = sign_message(self._identity, body, self._limits)
        self._correspondence.send(message_id, message)
        return message_id

    def withdraw(self, message_id: str) -> bool:
        """Stop sending a message; return whether it was still waiting. It may have arrived all the same."""
        return self._correspondence.withdraw(message_id)

    def fetch(self, reference: BlobReference, *, deadline_s: float) -> Path:
        """Return the file of a blob, fetched if it isn't here yet (see `Carrier.fetch`). Call it from any thread."""
        return self._carrier.fetch(reference, deadline_s=deadline_s)

    def deliver(self, reference: BlobReference, *, deadline_s: float) -> None:
        """Bring a blob of this site to the coordinator (see `Carrier.deliver`). Call it from any thread."""
        self._carrier.deliver(reference, deadline_s=deadline_s)

    def renew(self, request: bytes) -> bytes:
        """Return the answer to a signed `enrolment_messages.RenewRequest`, as the bytes of a `RenewReply`.

        With a certificate that has lapsed the site calls as a guest: its identity key proves it. Store the new
        certificate, then call `reconnect`.

        Raises:
            ConfideError: It failed; why, in words.
        """
        try:
            channel, service = self._dialler.as_member(self._tls()), LINK
        except NotAuthenticated:
            channel, service = self._dialler.as_guest(), ENROLMENT
        with channel:
            return self._dialler.call_document(channel, f"/{service}/Renew", request)

    def witness(self, call: CheckpointCall | CosignCall | EntriesCall) -> Body:
        """Return the coordinator's signed answer to a call about audit logs. Call it from any thread.

        Raises:
            ConfideError: It failed; why, in words.
        """
        message_id, message = sign_message(self._identity, call, self._limits)
        name = _WITNESS_CALLS[type(call)]
        with self._dialler.as_member(self._tls()) as channel:
            travelled = self._dialler.call_signed(channel, f"/{WITNESS}/{name}", signed(message_id, message))
        _, reply = open_message(travelled, self._coordinator_key())
        if travelled.message_id != message_id:
            raise PeerMisbehaved("CFD-L09", "the coordinator answered another call")
        return reply

    def reconnect(self) -> None:
        """Attend anew, with the certificate that `tls` returns now; pending messages are sent again."""
        self._cut(Unreachable("CFD-L01", "this site connects anew"))
        self.retry_now()

    def retry_now(self) -> None:
        """End the present wait before the next attempt."""
        self._wake.set()

    def connected(self) -> bool:
        """Return whether work can arrive now."""
        return self.status().state is LinkState.CONNECTED

    def status(self) -> LinkStatus:
        """Return what a person wants to know now."""
        with self._lock:
            status = self._status
        try:
            ends = expiry(certificate_from_pem(self._tls().certificate_pem, name="this site's certificate"))
        except (ConfideError, OSError):
            ends = None
        return LinkStatus(
            status.state,
            status.since,
            status.route,
            status.problem,
            status.retry_s,
            status.notice,
            ends,
            self._correspondence.pending_count,
        )

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(
            first_s=self._limits.retry_first_s, bound_s=self._limits.retry_bound_s, randomness=self._randomness
        )
        while not self._stop.is_set():
            self._wake.clear()
            self._set(LinkState.CONNECTING, problem=self._status.problem)
            began_s = self._clock.monotonic_s()
            problem = self._attend_once()
            if self._stop.is_set():
                return
            if problem.code in PASSING_CODES:
                if self._clock.monotonic_s() - began_s > self._limits.retry_bound_s:
                    backoff.reset()
                wait_s, state = backoff.wait_s(), LinkState.WAITING
            else:
                wait_s, state = self._limits.permanent_retry_s, LinkState.BLOCKED
            self._set(state, problem=problem, retry_s=wait_s)
            _log.warning("link.broken", code=problem.code, detail=problem.message, retry_s=round(wait_s, 1))
            try:
                self._handler.on_lost(problem)
            except Exception:  # noqa: BLE001 (the site's own fault must not end the link)
                _log.exception("the site failed to note a lost link")
            self._wake.wait(wait_s)

    def _attend_once(self) -> ConfideError:
        """Attend until the stream ends; return why it did."""
        try:
            channel = self._dialler.as_member(self._tls())
        except ConfideError as problem:
            return problem
        except OSError as problem:
            return Unreachable("CFD-L01", f"this site's TLS files can't be read: {problem.strerror}")
        stream = _Stream(self._correspondence.connect(), self._clock.monotonic_s())
        with self._lock:
            self._stream = stream
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stream, over), name="link-watch", daemon=True)
        watcher.start()
        try:
            return self._exchange(stream, channel)
        except grpc.RpcError as failure:
            return stream.problem or self._dialler.in_words(failure)
        except ConfideError as refusal:
            return refusal
        except Exception:  # noqa: BLE001 (a fault of the site's own ends this stream only)
            _log.exception("the attendance failed")
            return Unreachable("CFD-L26", "this site met an error of its own; its log has it")
        finally:
            with self._lock:
                self._stream = None
            self._correspondence.disconnect()
            stream.opened.set()
            over.set()
            if stream.call is not None:
                stream.call.cancel()
            channel.close()
            watcher.join()

    def _exchange(self, stream: _Stream, channel: grpc.Channel) -> ConfideError:
        hello = self._handler.hello(self.message_ids.next())
        opening = pb.Opening(
            hello=signed(*sign_message(self._identity, hello, self._limits)), newest_id=self._correspondence.newest_id
        )
        stream.call = channel.stream_stream(f"/{LINK}/Attend", pb.Envelope.SerializeToString, pb.Envelope.FromString)(
            self._outgoing(stream, pb.Envelope(opening=opening))
        )
        for envelope in stream.call:
            stream.heard_s = self._clock.monotonic_s()
            if not stream.accepted:
                self._accepted(stream, envelope)
            else:
                self._correspondence.receive(envelope, self._coordinator_key())
        return stream.problem or Unreachable("CFD-L01", "the coordinator ended the attendance")

    def _outgoing(self, stream: _Stream, opening: pb.Envelope) -> Iterator[pb.Envelope]:
        yield opening
        stream.opened.wait()
        while (envelope := self._correspondence.next_envelope(stream.connection)) is not None:
            yield envelope

    def _accepted(self, stream: _Stream, envelope: pb.Envelope) -> None:
        if envelope.WhichOneof("content") != "opening":
            raise PeerMisbehaved("CFD-L09", "the coordinator didn't answer the hello")
        _, reply = open_message(envelope.opening.hello, self._coordinator_key())
        if not isinstance(reply, HelloReply):
            raise PeerMisbehaved("CFD-L09", "the coordinator didn't answer the hello")
        if reply.upgrade is not None:
            raise NotAuthenticated("CFD-L07", reply.notice, hint=f"upgrade confide at the {reply.upgrade}")
        self.message_ids.observe(envelope.opening.newest_id)
        stream.accepted = True
        stream.opened.set()
        self._set(LinkState.CONNECTED, notice=reply.notice)
        _log.info("link.opened", notice=reply.notice)
        self._handler.on_connected(reply)

    def _watch(self, stream: _Stream, over: threading.Event) -> None:
        """Cut a stream on which nothing is heard: a proxy may keep a dead connection open."""
        while not over.wait(min(1.0, self._limits.lost_after_s / 4)):
            allowed_s = self._limits.lost_after_s if stream.accepted else self._limits.connect_timeout_s
            silent_s = self._clock.monotonic_s() - stream.heard_s
            if silent_s > allowed_s:
                self._cut(Unreachable("CFD-L01", f"nothing was heard from the coordinator for {silent_s:.0f} s"))

    def _cut(self, problem: ConfideError) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.problem = stream.problem or problem
            if stream.call is not None:
                stream.call.cancel()

    def _set(
        self, state: LinkState, *, problem: ConfideError | None = None, retry_s: float = 0.0, notice: str = ""
    ) -> None:
        try:
            route = str(self._dialler.route())
        except ConfideError as wrong:
            route = wrong.message
        with self._lock:
            self._status = LinkStatus(state, self._clock.now(), route, problem, retry_s, notice)
