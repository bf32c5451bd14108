"""The registry on SQLite and PostgreSQL: what is kept comes back, and nothing is half there."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.edge.database import open_engine
from federation.errors import InvalidInput
from site_client.data.data_map import plain_map
from site_client.data.intake import Intake
from site_client.data.registry import DataSet, Registry, SplitRule
from tests.support import data_files as files


@pytest.fixture
def registry(database_url: str) -> Iterator[Registry]:
    opened = Registry(open_engine(database_url))
    yield opened
    opened.close()


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return files.read(files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows())), files.blood())


def data_set(**changes: Any) -> DataSet:
    plain = DataSet(
        name="blood",
        contract=files.blood(),
        data_map=files.data_map(files.blood(), columns={"sex": {"recode": {"männlich": "M", "weiblich": "F"}}}),
        path=Path("/data/blood.csv"),
        entity="patient_id",
        split=SplitRule(share=0.2),
        held_out_public=True,
        same_people_as=None,
        epsilon=0.1,
        delta=1e-5,
        state="active",
        added_us=1_790_000_000_000_000,
    )
    return replace(plain, **changes)


def test_what_was_added_comes_back(registry: Registry, intake: Intake) -> None:
    version = registry.add(data_set(), intake, units_declared=40, registered_us=5)
    assert registry.get("blood") == data_set()
    assert registry.versions("blood") == [version]
    assert version.files == intake.files
    assert version.report["rows_used"] == 40


def test_a_path_of_any_bytes_comes_back(registry: Registry, intake: Intake) -> None:
    path = Path(os.fsdecode(b"/data/\xff\xfe bl\xc3\xbc\n.csv"))
    registry.add(data_set(path=path, data_map=plain_map(files.blood())), intake, units_declared=40, registered_us=5)
    assert registry.get("blood").path == path


def test_a_name_is_given_once(registry: Registry, intake: Intake) -> None:
    registry.add(data_set(), intake, units_declared=40, registered_us=5)
    with pytest.raises(InvalidInput, match="taken"):
        registry.add(data_set(epsilon=9.0), intake, units_declared=41, registered_us=6)
    assert registry.get("blood").epsilon == 0.1
    assert len(registry.versions("blood")) == 1


def test_versions_are_numbered_and_the_same_content_is_not_a_new_one(
    registry: Registry, intake: Intake, tmp_path: Path
) -> None:
    first = registry.add(data_set(), intake, units_declared=40, registered_us=5)
    assert registry.add_version("blood", intake, units_declared=40, registered_us=6) == first
    other = files.read(files.write(tmp_path / "b.csv", files.csv_text(files.blood_rows(50))), files.blood())
    second = registry.add_version("blood", other, units_declared=50, registered_us=7)
    assert (second.number, registry.newest("blood")) == (2, second)


def test_a_retired_data_set_takes_no_version(registry: Registry, intake: Intake) -> None:
    registry.add(data_set(), intake, units_declared=40, registered_us=5)
    assert registry.retire("blood").state == "retired"
    assert registry.all() == []
    with pytest.raises(InvalidInput, match="retired"):
        registry.add_version("blood", intake, units_declared=40, registered_us=6)


def test_an_unknown_name_is_said_to_be_unknown(registry: Registry) -> None:
    for ask in (registry.get, registry.newest, registry.retire):
        with pytest.raises(InvalidInput, match="there is no data set heart"):
            ask("heart")
