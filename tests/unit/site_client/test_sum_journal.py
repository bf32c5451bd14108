"""The journal of secure sums: what was kept is read back as it was, and a vector of one job counts in every other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from federation.edge.database import open_engine, sqlite_url
from federation.errors import ConfigurationWrong
from federation.messages import JobId
from privacy.secagg.journal import ConsentGiven, History, SharesRevealed, SumBegun, SumEnded, VectorSpent
from site_client.migrations import bring_up
from site_client.sum_journal import SumJournal

FIRST, SECOND = JobId("heart-risk-0a1b2c"), JobId("heart-risk-0a1b2d")
SPENT = VectorSpent("s" * 64, 0, "train", "m" * 64, "v" * 64, ("a", "b", "c"), 3, 1, "local-dp-sgd", None)
RECORDS = (
    SumBegun("s" * 64, "j" * 64, "train", 0, 1, "p" * 64),
    SPENT,
    ConsentGiven("s" * 64, "v" * 64, "g" * 64),
    SharesRevealed("s" * 64, "g" * 64),
    SumEnded("s" * 64, "aborted", "E_PHASE"),
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_engine(sqlite_url(tmp_path / "site.db"))
    bring_up(made)
    yield made
    made.dispose()


def test_every_kind_of_record_is_read_back_in_order(engine: Engine) -> None:
    journal = SumJournal(engine)
    for record in RECORDS:
        journal.keep(FIRST, record)
    assert SumJournal(engine).history(FIRST) == History.of(RECORDS)


def test_a_vector_that_was_spent_in_one_job_is_in_the_history_of_every_job(engine: Engine) -> None:
    journal = SumJournal(engine)
    for record in RECORDS:
        journal.keep(FIRST, record)
    assert journal.history(SECOND) == History.of([SPENT])


def test_a_record_of_no_known_kind_is_refused_and_not_passed_over(engine: Engine) -> None:
    with engine.begin() as connection:
        values = {"job": FIRST, "kind": "Unheard", "record": "{}"}
        connection.execute(text("INSERT INTO sum_record (job, kind, record) VALUES (:job, :kind, :record)"), values)
    with pytest.raises(ConfigurationWrong, match="Unheard"):
        SumJournal(engine).history(FIRST)
