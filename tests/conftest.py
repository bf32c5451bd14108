"""What all tests share: hypothesis profiles, where sockets are off, what runs beside what, and the databases."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from tests.support import postgres

settings.register_profile("fit", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fit"))

DATABASES = ["sqlite"] + (["postgresql"] if postgres.programs() else [])
WITHOUT_SOCKETS = ("unit", "properties", "protocol", "statistical", "vectors")
TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Switch sockets off where nothing may need one, and let one worker alone run what starts many processes.

    A test that means to open sockets is marked `enable_socket`. Unix sockets stay: the parties' own commands use them.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in WITHOUT_SOCKETS and item.get_closest_marker("enable_socket") is None:
            item.add_marker(pytest.mark.disable_socket)
        if item.get_closest_marker("process"):
            item.add_marker(pytest.mark.xdist_group("processes"))


def pytest_report_header() -> str:
    """Say which databases the storage tests will run on."""
    return f"confide: storage tests on {', '.join(DATABASES)}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One PostgreSQL cluster for each test process."""
    with postgres.cluster() as url:
        yield url


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database: SQLite in a file, and PostgreSQL where its server is installed."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    import psycopg

    url = make_url(request.getfixturevalue("postgres_server"))
    name = "t" + uuid.uuid4().hex
    plain = url.set(drivername="postgresql").render_as_string()
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return url.set(database=name).render_as_string()
