"""The shape of `site.db`: made by migrations, taken over from a home without versions, refused from a newer program."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text

from federation.edge.database import open_engine, read, sqlite_url
from federation.errors import ConfigurationWrong
from federation.messages import JobId, Phase
from site_client import tables
from site_client.data import registry
from site_client.data.registry import Registry
from site_client.migrations import HEAD, bring_up
from site_client.session import Work
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
    with pytest.raises(ConfigurationWrong, match=r"site\.db has shape 9999, this program knows 0002"):
        Store(engine)


def test_a_stored_message_that_is_none_any_more_is_a_damaged_database(engine: Engine) -> None:
    store = Store(engine)
    work = Work(0, 0, Phase.TRAIN)
    row = {"job": "heart-risk-0a1b2c", "round": 0, "attempt": 0, "phase": "train", "body": b"{torn"}
    with engine.begin() as connection:
        connection.execute(tables.REPLY.insert().values(**row))
    with pytest.raises(ConfigurationWrong) as refused:
        store.reply(JobId("heart-risk-0a1b2c"), work)
    assert refused.value.code == "CFD-G09"
    assert "torn" not in refused.value.message
