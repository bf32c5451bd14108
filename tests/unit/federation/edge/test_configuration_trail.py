"""A role's log learns at its start which settings changed, by name and never by value."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from audit import events
from federation.edge.configuration import Settings
from federation.edge.configuration_trail import record_settings


class _Inner(Settings):
    wait_s: Annotated[float, Field(description="how long")] = 1.5


class _Role(Settings):
    site: Annotated[str, Field(description="who")] = "mercy"
    inner: _Inner = _Inner()


def written(home: Path, settings: Settings) -> list[events.ConfigChanged]:
    """Return what a start with `settings` appends."""
    drafts: list[events.Draft] = []
    record_settings(home, settings, append=drafts.append, new_id=lambda: "0" * 32)
    return [draft for draft in drafts if isinstance(draft, events.ConfigChanged)]


def test_the_first_start_names_all_fields_and_the_same_settings_nothing_more(tmp_path: Path) -> None:
    (first,) = written(tmp_path, _Role())
    assert first.fields == ["inner.wait-s", "site"]
    assert written(tmp_path, _Role()) == []


def test_a_change_names_its_field_between_the_two_hashes_and_no_value(tmp_path: Path) -> None:
    (first,) = written(tmp_path, _Role())
    (changed,) = written(tmp_path, _Role(inner=_Inner(wait_s=77.25)))
    assert changed.fields == ["inner.wait-s"]
    assert changed.before == first.after
    assert "77" not in str(changed.body()["fields"])
    (back,) = written(tmp_path, _Role())
    assert (back.before, back.after) == (changed.after, first.after)


def test_a_damaged_record_of_the_last_settings_counts_as_changed(tmp_path: Path) -> None:
    written(tmp_path, _Role())
    (tmp_path / "settings-in-force.json").write_text("{")
    (again,) = written(tmp_path, _Role())
    assert again.fields == ["inner.wait-s", "site"]
