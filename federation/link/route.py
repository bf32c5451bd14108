"""By which way a site reaches its coordinator: straight, or by the institution's HTTP proxy; pure.

Rules, said here because every program has its own: a connection to the link is HTTPS, so ``HTTPS_PROXY`` counts and
``HTTP_PROXY`` doesn't stand in for it unless there is no other. The lower-case variable wins over the upper-case
one, an empty one means no proxy. Loopback is never proxied. ``NO_PROXY`` is a list, by comma or space, of names
(``example.org`` means itself and everything below it, as do ``.example.org`` and ``*.example.org``), addresses,
CIDR ranges and ``*``; an entry may end in ``:PORT`` and then holds for that port only. A proxy may be written
without scheme (``proxy:3128``); ``https://`` and ``socks`` proxies are refused in words.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from federation.errors import InvalidInput

DEFAULT_PORT: Final = 443
_PROXY_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
_EXCEPTION_VARIABLES: Final = ("no_proxy", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address (without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy and where it was written.

    `credentials` is ``user:password`` as written, and never printed.
    """

    address: Address
    variable: str
    credentials: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self})"

    def __str__(self) -> str:
        return f"http://{self.address} (from {self.variable})"


@dataclass(frozen=True, slots=True)
class Route:
    """The way to `address`: by `proxy`, or straight for the reason in `why`."""

    address: Address
    proxy: Proxy | None
    why: str

    def __str__(self) -> str:
        way = f"by proxy {self.proxy}" if self.proxy else "straight"
        return f"{self.address} {way}: {self.why}"


def parse_address(text: str) -> Address:
    """Return the address in ``HOST:PORT``, ``HOST``, ``[IPV6]:PORT`` or an ``https://`` URL of them.

    Raises:
        InvalidInput: Another scheme, a path, or no valid host and port.
    """
    stripped = text.strip()
    if stripped.startswith("http://"):
        raise InvalidInput("CFD-L29", f"{stripped!r}: the link is https:// only")
    try:
        parts = urlsplit(stripped if "://" in stripped else f"https://{stripped}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidInput("CFD-L29", f"{stripped!r} is no HOST:PORT") from None
    if parts.scheme != "https" or parts.path not in ("", "/") or parts.query or parts.username or not _is_host(host):
        raise InvalidInput("CFD-L29", f"{stripped!r} is no HOST:PORT")
    return Address(host.rstrip("."), DEFAULT_PORT if port is None else port)


def _is_host(host: str) -> bool:
    if _as_ip(host) is not None:
        return True
    return 0 < len(host) < 254 and all(letter.isalnum() or letter in "-._" for letter in host) and host[0] != "-"


def _as_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether `host` can only mean this machine."""
    address = _as_ip(host)
    if address is not None:
        return address.is_loopback
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def choose_route(address: Address, environment: Mapping[str, str]) -> Route:
    """Return the way to `address` under the proxy variables of `environment`.

    Raises:
        InvalidInput: The proxy variable that counts can't be understood; it is named.
    """
    if is_loopback(address.host):
        return Route(address, None, "loopback is never proxied")
    variable = next((name for name in _PROXY_VARIABLES if name in environment), None)
    if variable is None:
        return Route(address, None, "no proxy variable is set")
    value = environment[variable].strip()
    if not value:
        return Route(address, None, f"{variable} is empty")
    proxy = _parse_proxy(value, variable)
    for name in _EXCEPTION_VARIABLES:
        if name in environment:
            entry = _matching_entry(address, environment[name])
            if entry is not None:
                return Route(address, None, f"{name} lists {entry}")
            return Route(address, proxy, f"{name} doesn't list {address.host}")
    return Route(address, proxy, "no NO_PROXY is set")


def _parse_proxy(value: str, variable: str) -> Proxy:
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
        parts = urlsplit("http://")
    if parts.scheme not in ("http", ""):
        raise InvalidInput(
            "CFD-L28", f"{variable}: a {parts.scheme}:// proxy isn't supported, only http:// (CONNECT) is"
        )
    if not _is_host(host) or parts.path not in ("", "/"):
        raise InvalidInput("CFD-L28", f"{variable} is no http://HOST:PORT")
    credentials = ""
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(Address(host, 80 if port is None else port), variable, credentials)


def _matching_entry(address: Address, exceptions: str) -> str | None:
    for entry in exceptions.replace(",", " ").split():
        host, port = _split_port(entry)
        if (port is None or port == address.port) and _covers(host, address.host):
            return entry
    return None


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else None
    host, colon, port = entry.rpartition(":")
    if colon and port.isdigit() and ":" not in host:
        return host, int(port)
    return entry, None


def _covers(pattern: str, host: str) -> bool:
    if pattern == "*":
        return True
    address = _as_ip(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            return False
    name = host.lower().rstrip(".")
    suffix = pattern.lower().removeprefix("*").strip(".")
    return bool(suffix) and (name == suffix or name.endswith("." + suffix))
