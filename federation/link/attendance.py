"""Who attends: the coordinator's end of every site's stream of messages, and what *connected* means.

A site is connected from the moment its hello was accepted until its stream ends or it has been silent too long;
heartbeats ride on the very stream that carries work, so *connected* means that work can reach the site. A second
attendance of the same site ends the first: after a broken connection the site is back before the old one is found
dead. Messages to a site outlive its attendances.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import grpc
import structlog

from federation.edge.clock import Clock
from federation.errors import ConfideError, NotAuthenticated, PeerMisbehaved, Unreachable
from federation.link import link_pb2 as pb
from federation.link.backend import AttendanceState, LinkBackend, Member, Peer
from federation.link.correspondence import Correspondence, open_message, sign_message
from federation.link.gate import Gate
from federation.link.limits import LinkLimits
from federation.link.outbox import MessageIds
from federation.link.versions import judge
from federation.link.wire import Signer, signed
from federation.messages import Body, Hello, SignedMessage, Versions

_log: Final = structlog.get_logger("confide.link")


@dataclass(frozen=True, slots=True)
class SiteState:
    """What the link knows of a site: connected or lost since when, heard of last when, and what it runs."""

    site: str
    state: AttendanceState
    since: datetime
    last_seen: datetime
    address: str
    versions: Versions


class _Attendance:
    """One stream of one site."""

    def __init__(self, peer: Peer, hello: Hello, context: grpc.ServicerContext, clock: Clock) -> None:
        self.peer: Final = peer
        self.hello: Final = hello
        self.context: Final = context
        self.since: Final = clock.now()
        self.last_seen = self.since
        self.heard_s = clock.monotonic_s()
        self.problem: ConfideError | None = None
        self.connection = 0


class Attendances:
    """All sites' attendances, and the messages to each."""

    def __init__(
        self,
        *,
        backend: LinkBackend,
        gate: Gate,
        identity: Signer,
        versions: Versions,
        message_ids: MessageIds,
        limits: LinkLimits,
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._identity = identity
        self._versions = versions
        self._message_ids = message_ids
        self._limits = limits
        self._clock = clock
        self._lock = threading.RLock()
        self._correspondences: dict[str, Correspondence] = {}
        self._present: dict[str, _Attendance] = {}
        self._states: dict[str, SiteState] = {}

    # --- for the coordinator ----------------------------------------------------------------------------------

    def correspondence(self, site: str) -> Correspondence:
        """Return the exchange with `site`, which outlives its connections."""
        with self._lock:
            known = self._correspondences.get(site)
            if known is None:
                known = self._correspondences[site] = Correspondence(
                    limits=self._limits,
                    monotonic_s=self._clock.monotonic_s,
                    accept=lambda message, body: self._accept(site, message, body),
                    on_refused=lambda message_id, problem: self._backend.on_refused(
                        site, message_id, problem.code, problem.message
                    ),
                    on_acknowledged=lambda message_id: None,
                )
            return known

    def states(self) -> list[SiteState]:
        """Return what is known of every site that attended since the start, by site id."""
        with self._lock:
            return [self._states[site] for site in sorted(self._states)]

    def state(self, site: str) -> SiteState | None:
        """Return what is known of `site`, None if it hasn't attended since the start."""
        with self._lock:
            return self._states.get(site)

    def end(self, site: str, problem: ConfideError) -> bool:
        """End the attendance of `site` with `problem`; return whether it attended."""
        with self._lock:
            attendance = self._present.get(site)
        if attendance is None:
            return False
        self._end(attendance, problem)
        return True

    def end_all(self, problem: ConfideError) -> None:
        """End every attendance with `problem`."""
        with self._lock:
            present = list(self._present.values())
        for attendance in present:
            self._end(attendance, problem)

    def watch(self) -> None:
        """End the attendances of sites that are silent, lapsed or no longer let in. Called about once a second."""
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        with self._lock:
            present = list(self._present.values())
        for attendance in present:
            site = attendance.peer.site
            silent_s = now_s - attendance.heard_s
            if silent_s > self._limits.lost_after_s:
                self._end(attendance, Unreachable("CFD-L01", f"site {site} was silent for {silent_s:.0f} s"))
                attendance.context.cancel()  # type: ignore[no-untyped-call]
            elif now >= attendance.peer.certificate_ends:
                self._end(attendance, NotAuthenticated("CFD-E11", f"site {site}: its certificate has ended"))
            else:
                self._check_again(attendance)

    def _check_again(self, attendance: _Attendance) -> None:
        try:
            self._still_admitted(attendance)
        except ConfideError as problem:
            self._end(attendance, problem)

    def _still_admitted(self, attendance: _Attendance) -> Member:
        site = attendance.peer.site
        member = self._gate.admit(site, active=False)
        if member.tls_key != attendance.peer.member.tls_key:
            raise NotAuthenticated("CFD-L05", f"site {site} has another TLS key now")
        return member

    # --- one stream -------------------------------------------------------------------------------------------

    def attend(
        self, peer: Peer, requests: Iterator[pb.Envelope], context: grpc.ServicerContext
    ) -> Iterator[pb.Envelope]:
        """Yield what goes to the site, from its hello to the end of its stream.

        Raises:
            ConfideError: Why the stream ends, if the site should know.
        """
        opening, hello = self._first(peer, requests, context)
        verdict = judge(coordinator=self._versions, site=hello.versions)
        reply = self._backend.on_hello(peer, hello, verdict)
        reply = reply.model_copy(
            update={
                "versions": self._versions,
                "upgrade": verdict.upgrade,
                "notice": reply.notice or verdict.notice[:500],
                "heartbeat_s": max(1, round(self._limits.heartbeat_s)),
            }
        )
        correspondence = self.correspondence(peer.site)
        self._message_ids.observe(opening.newest_id)
        answer = signed(*sign_message(self._identity, reply, self._limits))
        yield pb.Envelope(opening=pb.Opening(hello=answer, newest_id=correspondence.newest_id))
        if verdict.upgrade is not None:
            raise NotAuthenticated("CFD-L07", verdict.notice)
        attendance = _Attendance(peer, hello, context, self._clock)
        self._enter(attendance, correspondence)
        try:
            threading.Thread(
                target=self._read, args=(attendance, requests, correspondence), name=f"link-{peer.site}", daemon=True
            ).start()
            while (envelope := correspondence.next_envelope(attendance.connection)) is not None:
                yield envelope
            if attendance.problem is not None:
                raise attendance.problem
        finally:
            self._leave(attendance, correspondence)

    def _first(
        self, peer: Peer, requests: Iterator[pb.Envelope], context: grpc.ServicerContext
    ) -> tuple[pb.Opening, Hello]:
        impatience = threading.Timer(self._limits.hello_timeout_s, context.cancel)
        impatience.daemon = True
        impatience.start()
        try:
            first = next(requests, None)
        finally:
            impatience.cancel()
        if first is None or first.WhichOneof("content") != "opening":
            raise PeerMisbehaved("CFD-L09", "an attendance doesn't begin with a hello")
        _, hello = open_message(first.opening.hello, peer.member.identity_key)
        if not isinstance(hello, Hello):
            raise PeerMisbehaved("CFD-L09", "an attendance doesn't begin with a hello")
        if hello.site != peer.site:
            raise PeerMisbehaved("CFD-L08", f"the certificate is of site {peer.site}, the hello of another")
        return first.opening, hello

    def _enter(self, attendance: _Attendance, correspondence: Correspondence) -> None:
        site = attendance.peer.site
        with self._lock:
            before = self._present.get(site)
            if before is None and len(self._present) >= self._limits.max_sites_count:
                raise Unreachable("CFD-L13", "too many sites attend at once")
            if before is not None:
                before.problem = Unreachable("CFD-L15", f"site {site} attends from elsewhere now")
            attendance.connection = correspondence.connect()
            self._present[site] = attendance
            self._tell(attendance, AttendanceState.CONNECTED, attendance.since)

    def _leave(self, attendance: _Attendance, correspondence: Correspondence) -> None:
        with self._lock:
            if self._present.get(attendance.peer.site) is attendance:
                del self._present[attendance.peer.site]
                correspondence.disconnect()
                self._tell(attendance, AttendanceState.LOST, self._clock.now())

    def _end(self, attendance: _Attendance, problem: ConfideError | None) -> None:
        with self._lock:
            if self._present.get(attendance.peer.site) is not attendance:
                return
            attendance.problem = attendance.problem or problem
        self._leave(attendance, self.correspondence(attendance.peer.site))

    def _tell(self, attendance: _Attendance, state: AttendanceState, since: datetime) -> None:
        peer = attendance.peer
        self._states[peer.site] = SiteState(
            peer.site, state, since, attendance.last_seen, peer.address, attendance.hello.versions
        )
        _log.info("site.attendance", site=peer.site, state=str(state))
        self._backend.on_attendance(peer.site, state, since)

    def _heard(self, attendance: _Attendance) -> None:
        attendance.heard_s = self._clock.monotonic_s()
        attendance.last_seen = self._clock.now()
        with self._lock:
            if self._present.get(attendance.peer.site) is attendance:
                peer = attendance.peer
                self._states[peer.site] = SiteState(
                    peer.site,
                    AttendanceState.CONNECTED,
                    attendance.since,
                    attendance.last_seen,
                    peer.address,
                    attendance.hello.versions,
                )

    def _read(self, attendance: _Attendance, requests: Iterator[pb.Envelope], correspondence: Correspondence) -> None:
        pace = _Pace(self._limits.max_messages_per_s, self._clock)
        problem: ConfideError | None = None
        try:
            for envelope in requests:
                self._heard(attendance)
                pace.wait()
                member = self._still_admitted(attendance)
                correspondence.receive(envelope, member.identity_key)
        except ConfideError as refusal:
            problem = refusal
        except grpc.RpcError:
            problem = None  # the stream is over; its end says why
        except Exception:  # noqa: BLE001 (a fault of ours ends this stream only, and the site comes back)
            _log.exception("an attendance failed", site=attendance.peer.site)
            problem = Unreachable("CFD-L26", "the coordinator met an error of its own")
        finally:
            self._end(attendance, problem)

    def _accept(self, site: str, message: SignedMessage, body: Body) -> None:
        self._gate.admit(site, active=True)
        named = getattr(body, "site", site)
        if named != site:
            raise PeerMisbehaved("CFD-L08", f"site {site} sent a message of another site")
        if isinstance(body, Hello):
            raise PeerMisbehaved("CFD-L09", "a hello comes first or not at all")
        self._backend.on_message(site, message, body)


class _Pace:
    """Lets so many through each second; the next one waits."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._interval_s = 1.0 / per_s
        self._burst_s = 1.0
        self._clock = clock
        self._due_s = clock.monotonic_s() - self._burst_s

    def wait(self) -> None:
        now_s = self._clock.monotonic_s()
        self._due_s = max(self._due_s, now_s - self._burst_s) + self._interval_s
        if self._due_s > now_s:
            self._clock.sleep(self._due_s - now_s)
