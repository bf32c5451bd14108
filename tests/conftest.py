"""What all tests share: hypothesis profiles, sockets off in unit tests, and the databases that are on this machine."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import postgres

settings.register_profile("fit", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fit"))

DATABASES = ["sqlite"] + (["postgresql"] if postgres.programs() else [])


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

    url: str = request.getfixturevalue("postgres_server")
    name = "t" + uuid.uuid4().hex
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return url.rsplit("/", 1)[0] + "/" + name
