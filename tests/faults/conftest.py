"""A coordinator and its sites on the link, with real TLS on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.link_rig import QUICK, Coordinator, Federation, Site, SiteKeys, StartSite, until


@pytest.fixture(scope="session")
def federation() -> Federation:
    return Federation()


@pytest.fixture
def coordinator(federation: Federation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Coordinator]:
    """A coordinator with patient limits, or with those that the test is parametrized with."""
    made = Coordinator(federation, tmp_path / "coordinator", limits=getattr(request, "param", QUICK))
    yield made
    made.stop()


@pytest.fixture
def start(federation: Federation, coordinator: Coordinator, tmp_path: Path) -> Iterator[StartSite]:
    """Start a site's client; by default it is a member and the test goes on once it is connected."""
    started: list[Site] = []

    def make(name: str = "cleveland", *, wait: bool = True, port: int = 0, **changes: Any) -> Site:
        keys = changes.pop("keys", None) or coordinator.keys.get(name) or SiteKeys(federation, name)
        if name not in coordinator.members:
            coordinator.add(keys)
        folder = tmp_path / f"site-{name}-{len(started)}"
        site = Site(keys, folder, port or coordinator.port, **changes)
        started.append(site)
        site.client.start()
        if wait:
            until(site.client.connected, what="connected")
        return site

    yield make
    for site in started:
        site.client.stop()
