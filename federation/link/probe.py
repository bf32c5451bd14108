"""Why a connection fails, in words: looks at what answers at an address without sending anything to it.

gRPC says "unavailable" for a wrong name, a lapsed certificate, a proxy's refusal and a dead host alike. The probe
walks the same route step by step (name, TCP, proxy, TLS handshake, certificate) and returns the first step that
fails as an error that a person can act on. It presents no certificate and sends no byte of ours but the handshake.
"""

import base64
import socket
import ssl
from datetime import datetime
from typing import Final

from federation.certificates import Certificate, certificate_from_der, certificate_problem
from federation.errors import ConfideError, NotAuthenticated, Unreachable
from federation.link.route import Address, Proxy, Route

_MAX_ANSWER_BYTES: Final = 16_384


def find_problem(route: Route, authority: Certificate, *, now: datetime, timeout_s: float) -> ConfideError | None:
    """Return why the coordinator can't be reached or believed by `route`, or None if this far all is well.

    Args:
        route: Where to, and by which proxy.
        authority: The authority pinned at enrolment.
        now: The time here, for the certificate's dates.
        timeout_s: How long each step may take.
    """
    try:
        shown = presented_certificate(route, timeout_s=timeout_s)
        return certificate_problem(shown, authority, host=route.address.host, now=now)
    except ConfideError as problem:
        return problem


def presented_certificate(route: Route, *, timeout_s: float) -> Certificate:
    """Return the certificate that the server shows; nothing about it is checked.

    Raises:
        Unreachable: Nothing there speaks TLS, or the way to it is closed; the failing step is named.
        NotAuthenticated: The certificate can't be read.
    """
    with _connect(route, timeout_s) as plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        # Not trusted but looked at: whoever calls checks the certificate itself, and nothing is sent.
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        try:
            with context.wrap_socket(plain, server_hostname=route.address.host) as wrapped:
                der = wrapped.getpeercert(binary_form=True)
        except (OSError, ValueError) as problem:
            raise Unreachable(
                "CFD-L04", f"{route.address} doesn't answer with TLS{_by(route)}: {_words(problem)}"
            ) from None
    if not der:
        raise NotAuthenticated("CFD-E09", f"{route.address} showed no certificate")
    return certificate_from_der(der)


def _by(route: Route) -> str:
    return f" (by proxy {route.proxy})" if route.proxy else ""


def _words(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "TLS failed").lower().replace("_", " ")
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return "the connection was closed"


def _connect(route: Route, timeout_s: float) -> socket.socket:
    if route.proxy is None:
        return _open(route.address, timeout_s, "CFD-L01", f"{route.address}")
    proxy = route.proxy
    plain = _open(proxy.address, timeout_s, "CFD-L02", f"proxy {proxy}, on the way to {route.address}")
    try:
        _ask_proxy(plain, proxy, route)
    except BaseException:
        plain.close()
        raise
    return plain


def _open(address: Address, timeout_s: float, code: str, what: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        name_code = code if code == "CFD-L02" else "CFD-L03"
        raise Unreachable(name_code, f"{what}: the name {address.host} doesn't resolve") from None
    problem: OSError = OSError()
    for family, kind, protocol, _, target in found:
        plain = socket.socket(family, kind, protocol)
        plain.settimeout(timeout_s)
        try:
            plain.connect(target)
        except OSError as failure:
            plain.close()
            problem = failure
        else:
            return plain
    raise Unreachable(code, f"{what}: {_words(problem)}")


def _ask_proxy(plain: socket.socket, proxy: Proxy, route: Route) -> None:
    request = [f"CONNECT {route.address} HTTP/1.1", f"Host: {route.address}"]
    if proxy.credentials:
        request.append("Proxy-Authorization: Basic " + base64.b64encode(proxy.credentials.encode()).decode())
    try:
        plain.sendall(("\r\n".join(request) + "\r\n\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < _MAX_ANSWER_BYTES:
            piece = plain.recv(1024)
            if not piece:
                break
            answer += piece
    except OSError as problem:
        raise Unreachable("CFD-L02", f"proxy {proxy}, on the way to {route.address}: {_words(problem)}") from None
    status = answer.partition(b"\r\n")[0].decode("latin-1")
    words = status.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].startswith("2"):
        said = "".join(letter for letter in status[:80] if letter.isprintable()) or "nothing"
        raise Unreachable("CFD-L02", f"proxy {proxy} refused the way to {route.address}; it said: {said}")
