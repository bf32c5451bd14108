"""The site's way to the coordinator: TLS channels along a route, and gRPC's failures as errors in words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from federation.certificates import Certificate, certificate_from_pem, lifetime_problem
from federation.edge.clock import Clock
from federation.errors import ConfideError, InvalidInput, Unreachable
from federation.link import link_pb2 as pb
from federation.link.guest import guest_certificate
from federation.link.limits import LinkLimits
from federation.link.probe import find_problem
from federation.link.route import Route
from federation.link.wire import channel_options, refusal_in


@dataclass(frozen=True, slots=True)
class SiteTls:
    """The site's TLS key and its certificate, each PEM."""

    key_pem: bytes
    certificate_pem: bytes

    def __repr__(self) -> str:
        return "SiteTls(<hidden>)"


class Dialler:
    """Opens channels to the one coordinator.

    Args:
        route: Where to, and by which proxy; asked for each channel, so that a change of proxy is taken up.
        authority_pem: The federation's authority, pinned at enrolment; nothing else is trusted.
        limits: Every bound.
        clock: The time.
    """

    def __init__(self, *, route: Callable[[], Route], authority_pem: bytes, limits: LinkLimits, clock: Clock) -> None:
        self.route: Final = route
        self._authority_pem = authority_pem
        self._authority = certificate_from_pem(authority_pem, name="the federation's authority")
        self._limits = limits
        self._clock = clock

    @property
    def authority(self) -> Certificate:
        """Return the pinned authority."""
        return self._authority

    def as_member(self, tls: SiteTls) -> grpc.Channel:
        """Return a channel that presents the site's certificate.

        Raises:
            NotAuthenticated: It has lapsed, or isn't valid yet: known here before anything is sent.
        """
        certificate = certificate_from_pem(tls.certificate_pem, name="this site's certificate")
        late = lifetime_problem(certificate, now=self._clock.now(), name="this site")
        if late is not None:
            raise late
        return self._channel(tls.key_pem, tls.certificate_pem)

    def as_guest(self) -> grpc.Channel:
        """Return a channel on which only `Enrolment` can be called."""
        return self._channel(*guest_certificate(self._clock.now()))

    def _channel(self, key_pem: bytes, certificate_pem: bytes) -> grpc.Channel:
        route = self.route()
        options = channel_options(
            max_message_bytes=self._limits.max_message_bytes, keepalive_s=self._limits.heartbeat_s
        )
        # gRPC's own reading of proxy variables differs from what is documented here: `route` alone decides.
        if route.proxy is None:
            options.append(("grpc.enable_http_proxy", 0))
        else:
            who = f"{route.proxy.credentials}@" if route.proxy.credentials else ""
            options.append(("grpc.http_proxy", f"http://{who}{route.proxy.address}"))
        options += [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        credentials = grpc.ssl_channel_credentials(self._authority_pem, key_pem, certificate_pem)
        return grpc.secure_channel(str(route.address), credentials, options=options)

    def look(self) -> ConfideError | None:
        """Return what a look at the route finds wrong, or None."""
        timeout_s = min(5.0, self._limits.connect_timeout_s)
        return find_problem(self.route(), self._authority, now=self._clock.now(), timeout_s=timeout_s)

    def call_document(self, channel: grpc.Channel, method: str, content: bytes) -> bytes:
        """Return the answer to a call that carries one document each way.

        Raises:
            ConfideError: It failed; why, in words.
        """
        call = channel.unary_unary(method, pb.Document.SerializeToString, pb.Document.FromString)
        try:
            reply: bytes = call(pb.Document(content=content), timeout=self._limits.connect_timeout_s).content
        except grpc.RpcError as problem:
            raise self.in_words(problem) from None
        return reply

    def call_signed(self, channel: grpc.Channel, method: str, request: pb.Signed) -> pb.Signed:
        """Return the answer to a call that carries one signed body each way.

        Raises:
            ConfideError: It failed; why, in words.
        """
        call = channel.unary_unary(method, pb.Signed.SerializeToString, pb.Signed.FromString)
        try:
            reply: pb.Signed = call(request, timeout=self._limits.connect_timeout_s)
        except grpc.RpcError as problem:
            raise self.in_words(problem) from None
        return reply

    def in_words(self, problem: grpc.RpcError) -> ConfideError:
        """Return why a call failed: the coordinator's own words, or what a look at the route finds."""
        refusal = refusal_in(problem)
        if refusal is not None:
            return refusal
        status = problem.code() if hasattr(problem, "code") else grpc.StatusCode.UNKNOWN
        route = self.route()
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidInput(
                "CFD-L11", f"a message is over the {self._limits.max_message_bytes} bytes that the link carries"
            )
        found = self.look()
        if found is not None:
            return found
        return Unreachable("CFD-L01", f"the connection to {route} broke ({status.name.lower().replace('_', ' ')})")
