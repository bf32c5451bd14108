"""The demo's officer: the altered copy is a copy, one bit of one entry is changed, and `verify` names that entry."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from audit.command import main
from confide_demo_officer import LieNotCaught, altered_copy, catch
from tests.support.audit_logs import create, draft, leaves_of, verified


def confide(*arguments: str, status: int = 0) -> str:
    """Run `confide audit …` in this process."""
    assert arguments[0] == "audit"
    said = io.StringIO()
    with redirect_stdout(said):
        assert main(arguments[1:]) == status
    return said.getvalue()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    log = create(tmp_path / "home")
    for number in range(6):
        log.append(draft(dataset_id=f"d{number}"))
    log.close()
    return tmp_path / "home"


def test_a_copy_of_a_running_log_differs_in_one_bit_of_one_entry(tmp_path: Path) -> None:
    log = create(tmp_path / "home")
    for number in range(6):
        log.append(draft(dataset_id=f"d{number}"))
    altered_copy(tmp_path / "home", 4, tmp_path / "copy")
    before, after = leaves_of(tmp_path / "home"), leaves_of(tmp_path / "copy")
    log.close()
    differing = [index for index, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert differing == [4]
    assert sum((one ^ other).bit_count() for one, other in zip(before[4], after[4], strict=True)) == 1


@pytest.mark.parametrize("entry", [0, 3, 7])
def test_the_altered_entry_is_named_by_index(home: Path, tmp_path: Path, entry: int) -> None:
    lines = catch(confide, home, entry, tmp_path)
    assert f"flawed: CFD-A01 entry {entry}" in lines[1]
    assert not verified(home).flaws, "the log itself is as it was"


def test_a_verifier_that_says_nothing_fails_the_demo(home: Path, tmp_path: Path) -> None:
    def asleep(*_: str, status: int = 0) -> str:
        return json.dumps({"verdict": "verified", "flaws": []})

    with pytest.raises(LieNotCaught, match="entry 3"):
        catch(asleep, home, 3, tmp_path)
