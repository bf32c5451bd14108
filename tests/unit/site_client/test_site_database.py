"""The shape of `site.db`: made by migrations, taken over from a home without versions, refused from a newer program."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text

from federation.edge.database import open_engine, read, sqlite_url
from federation.errors import ConfigurationWrong
from site_client import tables
from site_client.data import registry
from site_client.data.registry import Registry
from site_client.migrations import HEAD, bring_up
from site_client.store import Store


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_engine(sqlite_url(tmp_path / "site.db"))
    yield made
    made.dispose()


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        return list(compare_metadata(context, [tables.METADATA, registry.METADATA]))


def version(engine: Engine) -> str:
    with read(engine) as connection:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))


def test_the_migrations_make_exactly_the_tables_of_the_daemon_and_of_the_registry(engine: Engine) -> None:
    Store(engine)
    assert differences(engine) == []
    Registry(engine)
    assert version(engine) == HEAD


def test_a_home_that_had_tables_before_it_had_versions_keeps_its_rows(engine: Engine) -> None:
    registry.METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO data_version VALUES ('heart', 1, 'ab', 10, '{}', '[]', 5)"))
    bring_up(engine)
    assert differences(engine) == []
    with read(engine) as connection:
        assert connection.scalar(text("SELECT name FROM data_version")) == "heart"
    assert version(engine) == HEAD


def test_a_database_of_a_newer_program_is_refused_and_named(engine: Engine, tmp_path: Path) -> None:
    bring_up(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationWrong, match=r"site\.db has shape 9999, this program knows 0001"):
        Store(engine)
