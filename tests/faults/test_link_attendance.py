"""The link between a coordinator and its sites, over real TLS on loopback: messages, and who may speak."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.link_rig import Coordinator, Federation, Site, SiteKeys, status_message, until

pytestmark = pytest.mark.enable_socket


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation()


@pytest.fixture
def coordinator(federation: Federation, tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(federation, tmp_path / "coordinator")
    yield made
    made.stop()


@pytest.fixture
def start(federation: Federation, coordinator: Coordinator, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    started: list[Site] = []

    def make(name: str = "cleveland", *, wait: bool = True, port: int = 0, **changes: object) -> Site:
        keys = coordinator.keys.get(name) or SiteKeys(federation, name)
        if name not in coordinator.members:
            coordinator.add(keys)
        site = Site(keys, tmp_path / f"site-{name}-{len(started)}", port or coordinator.port, **changes)  # type: ignore[arg-type]
        started.append(site)
        site.client.start()
        if wait:
            until(site.client.connected, what="connected")
        return site

    yield make
    for site in started:
        site.client.stop()


def test_messages_travel_both_ways_and_are_acknowledged(coordinator: Coordinator, start: Callable[..., Site]) -> None:
    site = start()
    body = site.status_message("one")
    site.client.send(body)
    until(lambda: coordinator.received == [("cleveland", body)])
    until(lambda: site.acknowledged == [body.message_id])
    answer = status_message(coordinator.server.message_ids, "two")
    coordinator.server.send("cleveland", answer)
    until(lambda: site.received == [answer])
    until(lambda: coordinator.server.pending_count("cleveland") == 0)


def test_a_blob_travels_both_ways(coordinator: Coordinator, start: Callable[..., Site]) -> None:
    site = start()
    content = bytes(range(256)) * 16_000
    reference = coordinator.blobs.put_bytes(content)
    coordinator.readable.add(reference.root)
    assert site.client.fetch(reference, deadline_s=10).read_bytes() == content
    update = site.blobs.put_bytes(content[::-1])
    coordinator.expected.add(("cleveland", update))
    site.client.deliver(update, deadline_s=10)
    assert coordinator.blobs.path(update).read_bytes() == content[::-1]
    assert coordinator.delivered == [("cleveland", update)]
