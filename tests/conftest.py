"""What all tests share: hypothesis profiles, where sockets are off, what runs beside what, and the databases."""

import os

# Flower and Ray call home unless told not to before they are imported; every process of the tests inherits this.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url
from xdist.scheduler import LoadScopeScheduling

from tests.support import postgres

settings.register_profile("fit", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fit"))

DATABASES = ["sqlite"] + (["postgresql"] if postgres.programs() else [])
WITHOUT_SOCKETS = ("unit", "properties", "protocol", "statistical", "vectors")
TESTS = Path(__file__).parent


class OneWorkerForProcesses(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker whole files, and to one worker alone all that starts a federation's worth of processes.

    Two such tests at once would starve each other's daemons on two cores. (xdist's own groups do nothing under
    pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "processes" if file.split("/")[1:2] == ["end_to_end"] else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneWorkerForProcesses:
    """Hand out the tests by file, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return OneWorkerForProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Switch sockets off where nothing may need one, and put first what takes longest, so that no worker ends alone.

    A test that means to open sockets is marked `enable_socket`. Unix sockets stay: the parties' own commands use them.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in WITHOUT_SOCKETS and item.get_closest_marker("enable_socket") is None:
            item.add_marker(pytest.mark.disable_socket)
    order = {"end_to_end": 0, "faults": 1, "statistical": 1}
    items.sort(key=lambda item: order.get(item.path.relative_to(TESTS).parts[0], 2))


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
