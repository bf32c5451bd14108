"""Who is at the other end of a call: the certificate's site, its membership, its TLS key."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

import grpc
import structlog
from cryptography import x509

from federation.certificates import UNREADABLE, Certificate, common_name_of, expiry, lifetime_problem, public_key_digest
from federation.edge.clock import Clock
from federation.errors import ConfideError, NotAuthenticated, Unreachable
from federation.link.backend import LinkBackend, Member, Peer
from federation.link.wire import CODE_KEY, status_of
from federation.messages import MemberStatus

_log: Final = structlog.get_logger("confide.link")


class Gate:
    """Lets members in."""

    def __init__(self, backend: LinkBackend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def peer(self, context: grpc.ServicerContext, *, active: bool) -> Peer:
        """Return the member at the other end.

        gRPC has verified the chain up to one of two authorities, one of which is open to everybody (`guest`); what
        counts is that the certificate is for the very key that the member has now.

        Args:
            context: The call.
            active: Whether a site that isn't confirmed yet is refused too.

        Raises:
            NotAuthenticated: No certificate of a member, one that has lapsed, or a member that isn't let in.
        """
        certificate = _certificate(context)
        site = common_name_of(certificate)
        member = self.admit(site, active=active)
        if public_key_digest(certificate) != member.tls_key:
            raise NotAuthenticated("CFD-L05", f"site {site}: the certificate isn't for the key that the site has now")
        late = lifetime_problem(certificate, now=self._clock.now(), name=f"site {site}")
        if late is not None:
            raise late
        return Peer(site, member, context.peer(), expiry(certificate))

    def admit(self, site: str, *, active: bool) -> Member:
        """Return the member `site` as it is now.

        Raises:
            NotAuthenticated: Unknown, revoked, suspended, or (with `active`) not confirmed yet.
        """
        member = self._backend.member(site)
        if member is None:
            raise NotAuthenticated("CFD-L05", "the certificate presented isn't that of a member")
        if member.status in (MemberStatus.REVOKED, MemberStatus.SUSPENDED):
            raise NotAuthenticated("CFD-E24", f"site {site} is {member.status}")
        if active and member.status is not MemberStatus.ACTIVE:
            raise NotAuthenticated("CFD-L16", f"site {site} isn't confirmed yet")
        return member


def _certificate(context: grpc.ServicerContext) -> Certificate:
    shown: Sequence[bytes] = context.auth_context().get("x509_pem_cert") or ()  # type: ignore[assignment]
    try:
        return x509.load_pem_x509_certificate(shown[0])
    except (IndexError, *UNREADABLE):
        raise NotAuthenticated("CFD-L05", "no certificate was presented") from None


def answering(method: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Return `method` for a call with one answer, with its errors told to the caller as refusals."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(request, context)
        except Exception as problem:  # noqa: BLE001 (see `_told`)
            refusal = _told(problem)
        return _refuse(context, refusal)

    return answer


def streaming(
    method: Callable[[Any, grpc.ServicerContext], Iterator[Any]],
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    """Return `method` for a call with a stream of answers, with its errors told to the caller as refusals."""

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from method(request, context)
            return
        except Exception as problem:  # noqa: BLE001 (see `_told`)
            refusal = _told(problem)
        _refuse(context, refusal)

    return answer


def _told(problem: Exception) -> ConfideError:
    """Return what the caller is told; a fault of ours is logged here and told without its text."""
    if isinstance(problem, ConfideError):
        _log.info("call.refused", code=problem.code)
        return problem
    if isinstance(problem, grpc.RpcError):
        return Unreachable("CFD-L01", "the call was cut")
    _log.error("call.failed", exc_info=problem)
    return Unreachable("CFD-L26", "the coordinator met an error of its own")


def _refuse(context: grpc.ServicerContext, problem: ConfideError) -> NoReturn:
    context.set_trailing_metadata(((CODE_KEY, problem.code),))
    context.abort(status_of(problem), problem.message[:500])
    raise AssertionError("abort raises")
