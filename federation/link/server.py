"""The coordinator's end of the link: one port, mutual TLS; no decisions.

What it answers for: who is at the other end of every call (certificate, the member's TLS key, site id, status), that
every message is signed by that member, and that limits hold. What happens with a message, who may read or bring
which blob and who is a member is the backend's to say.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog

from federation import enrolment_messages
from federation.certificates import certificate_from_pem, lifetime_problem, tls_key_from_pem
from federation.edge.clock import Clock
from federation.errors import ConfideError, ConfigurationWrong, PeerMisbehaved, Unreachable
from federation.link import link_pb2 as pb
from federation.link.attendance import Attendances, SiteState
from federation.link.backend import AttendanceState, LinkBackend
from federation.link.blobs import BlobStore
from federation.link.correspondence import open_message, sign_message
from federation.link.gate import Gate, answering, streaming
from federation.link.guest import guest_authority_pem
from federation.link.limits import LinkLimits
from federation.link.outbox import MessageIds, Randomness
from federation.link.transfers import Transfers
from federation.link.wire import ENROLMENT, LINK, WITNESS, Signer, as_is, channel_options, signed
from federation.messages import Body, Versions
from federation.witness_messages import CheckpointCall, CosignCall, EntriesCall

_log: Final = structlog.get_logger("confide.link")
_SPARE_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The coordinator's TLS key, its certificate and the authority's, each PEM."""

    key_pem: bytes
    certificate_pem: bytes
    authority_pem: bytes

    def __repr__(self) -> str:
        return "ServerTls(<hidden>)"


class LinkServer:
    """Serves the link.

    Args:
        listen: ``HOST:PORT``; port 0 takes a free one.
        tls: Returns the files to use; asked again by `reload_tls`.
        identity: The coordinator's identity key.
        versions: What this coordinator runs.
        backend: Who decides.
        blobs: Where blobs lie.
        limits: Every bound.
        clock: The time.
        randomness: For message ids.
    """

    def __init__(
        self,
        *,
        listen: str,
        tls: Callable[[], ServerTls],
        identity: Signer,
        versions: Versions,
        backend: LinkBackend,
        blobs: BlobStore,
        limits: LinkLimits,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._listen = listen
        self._tls = tls
        self._identity = identity
        self._backend = backend
        self._limits = limits
        self._clock = clock
        self.message_ids: Final = MessageIds(clock.now, randomness)
        self._gate = Gate(backend, clock)
        self._attendances = Attendances(
            backend=backend,
            gate=self._gate,
            identity=identity,
            versions=versions,
            message_ids=self.message_ids,
            limits=limits,
            clock=clock,
        )
        self._transfers = Transfers(backend=backend, blobs=blobs, limits=limits, clock=clock)
        self._enrolments: deque[float] = deque()
        self._lock = threading.Lock()
        self._new_configuration: grpc.ServerCertificateConfiguration | None = None
        self._stopping = threading.Event()
        self._server: grpc.Server | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._watcher: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> int:
        """Begin to serve; return the port.

        Raises:
            ConfigurationWrong: The address can't be listened on, or key and certificate are unusable.
        """
        workers = self._limits.max_sites_count + self._limits.max_transfers_count + _SPARE_THREADS
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="link")
        options = channel_options(
            max_message_bytes=self._limits.max_message_bytes, keepalive_s=self._limits.heartbeat_s
        )
        self._server = grpc.server(self._pool, options=[*options, ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (self._enrolment_service(), self._link_service(), self._witness_service())
        )
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._changed_configuration,  # type: ignore[arg-type]
            require_client_authentication=True,
        )
        try:
            port = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigurationWrong("CFD-L30", f"{self._listen} can't be listened on")
        self._server.start()
        self._watcher = threading.Thread(target=self._watch, name="link-watch", daemon=True)
        self._watcher.start()
        return port

    def stop(self, grace_s: float) -> None:
        """End every attendance, let running calls end for up to `grace_s`, and close the port."""
        self._stopping.set()
        self._attendances.end_all(Unreachable("CFD-L01", "the coordinator stops"))
        if self._server is not None:
            self._server.stop(grace_s).wait()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self._watcher is not None:
            self._watcher.join()

    def reload_tls(self) -> None:
        """Use renewed files from the next connection on; present connections stay.

        Raises:
            ConfigurationWrong: They are unusable; the old ones stay in use.
            NotAuthenticated: The certificate isn't valid now; the old one stays in use.
        """
        configuration = self._configuration()
        with self._lock:
            self._new_configuration = configuration

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        files = self._tls()
        certificate = certificate_from_pem(files.certificate_pem, name="the coordinator's certificate")
        key = tls_key_from_pem(files.key_pem, name="the coordinator's TLS key")
        if key.public_key() != certificate.public_key():
            raise ConfigurationWrong("CFD-E02", "the coordinator's certificate is for another key than its TLS key")
        late = lifetime_problem(certificate, now=self._clock.now(), name="the coordinator's certificate")
        if late is not None:
            # Served all the same: sites name the cause, and a refusal to start would hide it from them.
            _log.error("the coordinator's certificate isn't valid now", code=late.code, detail=late.message)
        return grpc.ssl_server_certificate_configuration(
            [(files.key_pem, files.certificate_pem)],
            root_certificates=files.authority_pem + b"\n" + guest_authority_pem(self._clock.now()),
        )

    def _changed_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            changed, self._new_configuration = self._new_configuration, None
            return changed

    def _watch(self) -> None:
        while not self._stopping.wait(min(1.0, self._limits.lost_after_s / 4)):
            try:
                self._attendances.watch()
                self._transfers.cut_stalled()
            except Exception:  # noqa: BLE001 (the backend's fault of the moment must not end the watch)
                _log.exception("the watch over the sites failed; it goes on")

    # --- for the coordinator ----------------------------------------------------------------------------------

    def send(self, site: str, body: Body) -> str:
        """Sign `body` and send it to `site` until acknowledged, now or when it attends; return the message id.

        Raises:
            InvalidInput: Too large, or its id isn't one of `message_ids`.
            OutOfOrder: Too many messages wait for the site already.
        """
        message_id, message = sign_message(self._identity, body, self._limits)
        self._attendances.correspondence(site).send(message_id, message)
        return message_id

    def withdraw(self, site: str, message_id: str) -> bool:
        """Stop sending a message; return whether it was still waiting. It may have arrived all the same."""
        return self._attendances.correspondence(site).withdraw(message_id)

    def pending_count(self, site: str) -> int:
        """Return how many messages wait for the acknowledgement of `site`."""
        return self._attendances.correspondence(site).pending_count

    def connected(self, site: str) -> bool:
        """Return whether work can reach `site` now."""
        state = self._attendances.state(site)
        return state is not None and state.state is AttendanceState.CONNECTED

    def site_state(self, site: str) -> SiteState | None:
        """Return connected or lost, since when, and when heard last; None if it hasn't attended since the start."""
        return self._attendances.state(site)

    def site_states(self) -> list[SiteState]:
        """Return the state of every site that attended since the start."""
        return self._attendances.states()

    def disconnect(self, site: str, problem: ConfideError) -> bool:
        """End the attendance of `site`, for instance after its status changed; return whether it attended."""
        return self._attendances.end(site, problem)

    # --- services ---------------------------------------------------------------------------------------------

    def _enrolment_service(self) -> "grpc.GenericRpcHandler[Any, Any]":
        return grpc.method_handlers_generic_handler(
            ENROLMENT,
            {"Enrol": _document_method(self._enrol), "Renew": _document_method(self._renew_as_guest)},
        )

    def _link_service(self) -> "grpc.GenericRpcHandler[Any, Any]":
        return grpc.method_handlers_generic_handler(
            LINK,
            {
                "Attend": grpc.stream_stream_rpc_method_handler(
                    streaming(self._attend), pb.Envelope.FromString, pb.Envelope.SerializeToString
                ),
                "Fetch": grpc.unary_stream_rpc_method_handler(
                    streaming(self._fetch), pb.FetchRequest.FromString, as_is
                ),
                "Deliver": grpc.stream_unary_rpc_method_handler(
                    answering(self._deliver), as_is, pb.StagedReply.SerializeToString
                ),
                "Staged": grpc.unary_unary_rpc_method_handler(
                    answering(self._staged), pb.Reference.FromString, pb.StagedReply.SerializeToString
                ),
                "Renew": _document_method(self._renew_as_member),
            },
        )

    def _witness_service(self) -> "grpc.GenericRpcHandler[Any, Any]":
        calls: dict[str, type[CheckpointCall | CosignCall | EntriesCall]] = {
            "Checkpoint": CheckpointCall,
            "Cosign": CosignCall,
            "Entries": EntriesCall,
        }
        return grpc.method_handlers_generic_handler(
            WITNESS, {name: self._witness_method(kind) for name, kind in calls.items()}
        )

    def _witness_method(
        self, kind: type[CheckpointCall | CosignCall | EntriesCall]
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        def method(request: pb.Signed, context: grpc.ServicerContext) -> pb.Signed:
            peer = self._gate.peer(context, active=True)
            _, call = open_message(request, peer.member.identity_key)
            if not isinstance(call, kind) or call.site != peer.site:
                raise PeerMisbehaved("CFD-L08", f"site {peer.site} sent a call that isn't its own, or another one")
            return signed(*sign_message(self._identity, self._backend.on_witness(peer.site, call), self._limits))

        return grpc.unary_unary_rpc_method_handler(answering(method), pb.Signed.FromString, pb.Signed.SerializeToString)

    def _attend(self, requests: Iterator[pb.Envelope], context: grpc.ServicerContext) -> Iterator[pb.Envelope]:
        peer = self._gate.peer(context, active=False)
        yield from self._attendances.attend(peer, requests, context)

    def _fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        peer = self._gate.peer(context, active=True)
        yield from self._transfers.fetch(peer.site, request, context)

    def _deliver(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> pb.StagedReply:
        peer = self._gate.peer(context, active=True)
        return self._transfers.deliver(peer.site, pieces, context)

    def _staged(self, request: pb.Reference, context: grpc.ServicerContext) -> pb.StagedReply:
        peer = self._gate.peer(context, active=True)
        return self._transfers.staged(peer.site, request)

    def _enrol(self, request: pb.Document, context: grpc.ServicerContext) -> pb.Document:
        self._count_enrolment()
        return pb.Document(content=self._backend.enrol(request.content))

    def _renew_as_guest(self, request: pb.Document, context: grpc.ServicerContext) -> pb.Document:
        self._count_enrolment()
        return self._renew(request, None)

    def _renew_as_member(self, request: pb.Document, context: grpc.ServicerContext) -> pb.Document:
        return self._renew(request, self._gate.peer(context, active=False).site)

    def _renew(self, document: pb.Document, site: str | None) -> pb.Document:
        request = enrolment_messages.decode(enrolment_messages.RenewRequest, document.content)
        if site not in (None, request.site):
            raise PeerMisbehaved("CFD-L08", f"site {site} asked for the certificate of another site")
        member = self._gate.admit(request.site, active=False)
        enrolment_messages.check(request, member.identity_key)
        return pb.Document(content=enrolment_messages.encode(self._backend.renew(request)))

    def _count_enrolment(self) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            while self._enrolments and now_s - self._enrolments[0] > 60:
                self._enrolments.popleft()
            if len(self._enrolments) >= self._limits.max_enrolments_per_minute_count:
                raise Unreachable("CFD-L13", "too many enrolments at once: try again in a minute")
            self._enrolments.append(now_s)


def _document_method(method: Callable[[pb.Document, grpc.ServicerContext], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(answering(method), pb.Document.FromString, pb.Document.SerializeToString)
