"""The way to the coordinator under every form of the proxy variables."""

import pytest

from federation.errors import InvalidInput
from federation.link.route import Address, choose_route, is_loopback, parse_address

PROXY = {"https_proxy": "http://proxy.example.org:3128"}
COORDINATOR = Address("coordinator.test", 8443)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("coordinator.test:8443", "coordinator.test", 8443),
        ("https://coordinator.test:8443", "coordinator.test", 8443),
        ("https://coordinator.test/", "coordinator.test", 443),
        ("coordinator.test.", "coordinator.test", 443),
        ("10.0.0.7:1", "10.0.0.7", 1),
        ("[2001:db8::7]:8443", "2001:db8::7", 8443),
        ("https://[2001:db8::7]", "2001:db8::7", 443),
        (" localhost:65535 ", "localhost", 65535),
    ],
)
def test_an_address_is_read_in_every_usual_form(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://a:1",
        "ftp://a:1",
        "a:b",
        "a:99999",
        "a/b",
        "https://a?x",
        "https://u@a",
        "a b",
        "[::1",
        "-a:1",
        "a;b",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_address(text)
    assert refused.value.code == "CFD-L29"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1", "site.localhost"])
def test_loopback_is_never_proxied(host: str) -> None:
    assert is_loopback(host)
    assert choose_route(Address(host, 8443), {**PROXY, "no_proxy": ""}).proxy is None


@pytest.mark.parametrize("host", ["localhost.example.org", "10.0.0.1", "notlocalhost", "::2"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({"https_proxy": "http://p:1", "HTTPS_PROXY": "http://q:1", "http_proxy": "http://r:1"}, "https_proxy"),
        ({"HTTPS_PROXY": "http://p:1", "http_proxy": "http://r:1"}, "HTTPS_PROXY"),
        ({"http_proxy": "http://p:1", "HTTP_PROXY": "http://r:1"}, "http_proxy"),
        ({"HTTP_PROXY": "http://p:1"}, "HTTP_PROXY"),
        ({"HTTP_PROXY": "p:1"}, "HTTP_PROXY"),
    ],
)
def test_the_variable_that_counts_is_named(environment: dict[str, str], variable: str) -> None:
    route = choose_route(COORDINATOR, environment)
    assert route.proxy is not None
    assert route.proxy.variable == variable
    assert route.proxy.address == Address("p", 1)
    assert f"http://p:1 (from {variable})" in str(route)


def test_without_a_variable_or_with_an_empty_one_the_way_is_straight() -> None:
    assert choose_route(COORDINATOR, {}).proxy is None
    assert choose_route(COORDINATOR, {"https_proxy": " ", "http_proxy": "http://p:1"}).proxy is None
    assert choose_route(COORDINATOR, {"all_proxy": "http://p:1"}).proxy is None


@pytest.mark.parametrize(
    ("exceptions", "host", "straight"),
    [
        ("coordinator.test", "coordinator.test", True),
        ("COORDINATOR.TEST", "coordinator.test", True),
        ("localhost, 127.0.0.1 ,coordinator.test", "coordinator.test", True),
        ("localhost coordinator.test", "coordinator.test", True),
        ("test", "coordinator.test", True),
        (".test", "coordinator.test", True),
        ("*.test", "coordinator.test", True),
        ("*", "coordinator.test", True),
        ("ordinator.test", "coordinator.test", False),
        ("a.coordinator.test", "coordinator.test", False),
        ("", "coordinator.test", False),
        (".", "coordinator.test", False),
        ("coordinator.test:8443", "coordinator.test", True),
        ("coordinator.test:443", "coordinator.test", False),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.0/8", "10.0.0.7", True),
        ("10.0.0.1/8", "10.0.0.7", True),
        ("10.1.0.0/16", "10.0.0.7", False),
        ("10.0.0", "10.0.0.7", False),
        ("10.0.0.7:8443", "10.0.0.7", True),
        ("10.0.0.7:1", "10.0.0.7", False),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::7", "2001:db8::7", True),
        ("[2001:db8::7]:8443", "2001:db8::7", True),
        ("[2001:db8::7]:1", "2001:db8::7", False),
        ("10.0.0.0/8", "2001:db8::7", False),
        ("10.0.0.0/8", "coordinator.test", False),
    ],
)
def test_exceptions_hold_for_names_suffixes_addresses_and_ranges(exceptions: str, host: str, straight: bool) -> None:
    for variable in ("no_proxy", "NO_PROXY"):
        route = choose_route(Address(host, 8443), {**PROXY, variable: exceptions})
        assert (route.proxy is None) is straight
        assert variable in route.why


def test_the_lower_case_exceptions_win() -> None:
    route = choose_route(COORDINATOR, {**PROXY, "no_proxy": "other.test", "NO_PROXY": "coordinator.test"})
    assert route.proxy is not None


@pytest.mark.parametrize("value", ["socks5://p:1", "https://p:1", "http://", "http://p:x", "http://p/path", "p:99999"])
def test_a_proxy_that_cannot_be_used_is_refused_with_its_variable(value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        choose_route(COORDINATOR, {"HTTPS_PROXY": value})
    assert refused.value.code == "CFD-L28"
    assert "HTTPS_PROXY" in refused.value.message


def test_credentials_of_a_proxy_are_used_and_never_printed() -> None:
    route = choose_route(COORDINATOR, {"https_proxy": "http://carol:s%40cret@p:3128"})
    assert route.proxy is not None
    assert route.proxy.credentials == "carol:s@cret"
    assert "cret" not in repr(route) + str(route) + repr(route.proxy)
