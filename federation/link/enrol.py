"""A site's first call: enrolment, as a guest, with the server believed only by the token's authority."""

from federation.edge.clock import Clock
from federation.errors import InvalidInput
from federation.link.dial import Dialler
from federation.link.limits import LinkLimits
from federation.link.route import Route
from federation.link.wire import ENROLMENT


def enrol(*, route: Route, authority_pem: bytes, request: bytes, limits: LinkLimits, clock: Clock) -> bytes:
    """Return the coordinator's answer to `request`, both as `federation.enrolment_messages`.

    Not a byte of `request` leaves before the server has shown a certificate of `authority_pem` for the host in
    `route`: the look before (`find_problem`) sends nothing, and the channel itself trusts that authority only.

    Raises:
        Unreachable: The coordinator, or the proxy on the way, can't be reached.
        NotAuthenticated: The server isn't the coordinator of the token, or it refused the token.
    """
    dialler = Dialler(route=lambda: route, authority_pem=authority_pem, limits=limits, clock=clock)
    problem = dialler.look()
    if problem is not None:
        raise problem
    if len(request) > limits.max_message_bytes // 2:
        raise InvalidInput("CFD-L11", f"an enrolment of {len(request)} bytes is larger than the link carries")
    with dialler.as_guest() as channel:
        return dialler.call_document(channel, f"/{ENROLMENT}/Enrol", request)
