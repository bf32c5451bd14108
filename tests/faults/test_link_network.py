"""The link over networks and proxies that fail: cut connections, a proxy's 502, restarts, silence."""

import time

import pytest

from federation.link.backend import AttendanceState
from federation.link.client import LinkState
from tests.faults.link_rig import NERVOUS, QUICK, Coordinator, StartSite, status_message, until
from tests.faults.relay import Relay

pytestmark = pytest.mark.enable_socket


def test_an_idle_cut_of_the_network_is_not_felt_as_heartbeats_are_faster(
    coordinator: Coordinator, start: StartSite
) -> None:
    with Relay(coordinator.port) as relay:
        relay.idle_cut_s = 1.0
        site = start(port=relay.port)
        time.sleep(3.0)
        assert relay.connections == 1
        assert site.lost == []


def test_after_each_cut_the_site_is_back_and_nothing_is_lost_or_taken_twice(
    coordinator: Coordinator, start: StartSite
) -> None:
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        sent = []
        answers = []
        for number in range(8):
            body = site.status_message(f"up {number}")
            site.client.send(body)
            sent.append(body)
            answer = status_message(coordinator.server.message_ids, f"down {number}")
            coordinator.server.send("cleveland", answer)
            answers.append(answer)
            relay.cut_all()
            time.sleep(0.05)
        until(lambda: site.client.status().pending_count == 0, what="all acknowledged")
        until(lambda: coordinator.server.pending_count("cleveland") == 0)
        assert sorted(body.message_id for _, body in coordinator.received) == [body.message_id for body in sent]
        assert sorted(body.message_id for body in site.received) == [body.message_id for body in answers]
        site.client.stop()


def test_the_site_is_back_within_its_bound_after_a_proxy_answered_502(
    coordinator: Coordinator, start: StartSite
) -> None:
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        relay.answer_502 = True
        until(lambda: not coordinator.server.connected("cleveland"))
        until(lambda: site.client.status().state is LinkState.WAITING and len(site.lost) >= 3)
        problem = site.client.status().problem
        assert problem is not None
        assert problem.code in ("CFD-L01", "CFD-L04")
        attempts, began = relay.connections, time.monotonic()
        time.sleep(2.0)
        # Each attempt is one connection of gRPC and one look at what answers.
        assert relay.connections - attempts <= 2 * ((time.monotonic() - began) / (QUICK.retry_bound_s / 2)) + 4
        assert site.client.status().retry_s <= QUICK.retry_bound_s
        relay.answer_502 = False
        until(site.client.connected)
        until(lambda: len(coordinator.attendance) >= 3)
        assert [str(state) for _, state, _ in coordinator.attendance] == ["connected", "lost", "connected"]
        body = status_message(coordinator.server.message_ids)
        coordinator.server.send("cleveland", body)
        until(lambda: site.received == [body])
        site.client.stop()


def test_a_restarted_coordinator_has_its_site_back_and_its_messages(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    coordinator.restart(pause_s=0.5)
    body = site.status_message("sent while it was away, perhaps")
    site.client.send(body)
    until(lambda: ("cleveland", body) in coordinator.received)
    until(lambda: coordinator.server.connected("cleveland"))


def test_a_coordinator_that_starts_after_the_site_is_found(coordinator: Coordinator, start: StartSite) -> None:
    coordinator.server.stop(0)
    site = start(wait=False)
    until(lambda: len(site.lost) >= 2)
    assert {problem.code for problem in site.lost} == {"CFD-L01"}
    assert f"127.0.0.1:{coordinator.port}" in site.lost[0].message
    coordinator.restart()
    until(site.client.connected)


@pytest.mark.parametrize("coordinator", [NERVOUS], indirect=True, ids=["nervous"])
def test_a_connection_that_is_open_and_silent_counts_as_lost_on_both_sides(
    coordinator: Coordinator, start: StartSite
) -> None:
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port, limits=NERVOUS)
        relay.silent = True
        until(lambda: site.lost)
        until(lambda: not coordinator.server.connected("cleveland"))
        state = coordinator.server.site_state("cleveland")
        assert state is not None
        assert state.state is AttendanceState.LOST
        relay.silent = False
        until(site.client.connected)
        until(lambda: coordinator.server.connected("cleveland"))
        site.client.stop()


def test_stopping_is_quick_while_the_coordinator_is_away(coordinator: Coordinator, start: StartSite) -> None:
    with Relay(coordinator.port) as relay:
        relay.silent = True
        site = start(port=relay.port, wait=False)
        time.sleep(0.3)
        began = time.monotonic()
        site.client.stop()
        assert time.monotonic() - began < QUICK.connect_timeout_s / 2
        assert site.client.status().state is LinkState.STOPPED


# --- proxies of the institution -------------------------------------------------------------------------------


def test_a_named_proxy_carries_the_link(coordinator: Coordinator, start: StartSite) -> None:
    coordinator.tls = coordinator.federation.server_tls(("coordinator.test",))
    coordinator.server.reload_tls()
    with Relay(coordinator.port, http_proxy=True) as relay:
        site = start(host="coordinator.test", environment={"https_proxy": f"http://127.0.0.1:{relay.port}"}, wait=False)
        until(site.client.connected)
        assert set(relay.asked) == {f"CONNECT coordinator.test:{coordinator.port} HTTP/1.1"}
        route = site.client.status().route
        assert f"http://127.0.0.1:{relay.port} (from https_proxy)" in route
        site.client.stop()


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"])
def test_a_dead_proxy_is_named_with_its_variable(coordinator: Coordinator, start: StartSite, variable: str) -> None:
    site = start(host="coordinator.test", environment={variable: "127.0.0.1:9"}, wait=False)
    until(lambda: site.lost)
    assert site.lost[0].code == "CFD-L02"
    assert f"http://127.0.0.1:9 (from {variable})" in site.lost[0].message
    assert site.client.status().state is LinkState.WAITING


def test_a_proxy_that_refuses_is_named_with_what_it_said(coordinator: Coordinator, start: StartSite) -> None:
    with Relay(coordinator.port, http_proxy=True) as relay:
        relay.answer_502 = True
        proxy = f"http://carol:secret@127.0.0.1:{relay.port}"
        site = start(host="coordinator.test", environment={"https_proxy": proxy}, wait=False)
        until(lambda: site.lost)
        problem = site.lost[0]
        site.client.stop()
    assert problem.code == "CFD-L02"
    assert "502 Bad Gateway" in problem.message
    assert "secret" not in problem.message + site.client.status().route


def test_loopback_is_reached_straight_whatever_the_proxy_variables_say(
    coordinator: Coordinator, start: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also in the real environment, which gRPC would read by itself.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    site = start(environment={"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"})
    assert "loopback is never proxied" in site.client.status().route


def test_a_proxy_value_that_cannot_be_understood_is_refused_in_words(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start(host="coordinator.test", environment={"HTTPS_PROXY": "socks5://127.0.0.1:9"}, wait=False)
    until(lambda: site.lost)
    assert site.lost[0].code == "CFD-L28"
    assert "HTTPS_PROXY" in site.lost[0].message
    assert site.client.status().state is LinkState.BLOCKED
