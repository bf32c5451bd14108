"""What the API does with numbers that no database column holds."""

import asyncio
import io
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response

from coordinator.access import Access, Caller, Role
from coordinator.api import create_app
from federation.edge.clock import SystemClock
from federation.edge.logs import open_log

pytestmark = pytest.mark.enable_socket


class NeverAsked:
    """A service that must not be reached."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


class Quiet:
    """A trail that keeps nothing."""

    def logged_in(self, name: str, role: str, address: str) -> None:
        pass

    def login_refused(self, code: str, address: str) -> None:
        pass

    def act_refused(self, name: str, role: str, act: str, job: str | None, code: str) -> None:
        pass


@pytest.mark.parametrize("query", ["jobs?before=", "jobs/heart-1/events?after=", "jobs/heart-1/watch"])
def test_a_number_that_no_column_holds_is_a_malformed_request(query: str) -> None:
    number = str(2**63)
    service: Any = NeverAsked()
    caller = Caller(name="alice", roles=frozenset({Role.COORDINATOR}))
    app = create_app(service, Access(lambda _token: caller, Quiet(), SystemClock()), open_log(to=io.StringIO()))
    headers = {"Authorization": "Bearer token", "Last-Event-ID": number}
    address = f"http://coordinator/api/v1/{query}{number if query.endswith('=') else ''}"

    async def ask() -> Response:
        async with AsyncClient(transport=ASGITransport(app=app, raise_app_exceptions=False)) as client:
            return await client.get(address, headers=headers)

    answer = asyncio.run(ask())
    assert answer.status_code == 422
    assert answer.json()["code"] == "CFD-J20"
