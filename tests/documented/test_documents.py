import re
import subprocess
import sys
from pathlib import Path

import pytest

import confide_cli
from audit.errors import CODES as AUDIT_CODES
from federation import codes
from privacy.errors import PrivacyError

ROOT = Path(confide_cli.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for folder in ("audit", "privacy", "federation", "site_client", "coordinator")
    for path in sorted((ROOT / folder).rglob("*.py"))
] + sorted(ROOT.glob("confide_*.py"))


def test_the_page_of_error_codes_is_what_the_code_says() -> None:
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        from write_documents import errors_page
    finally:
        sys.path.pop(0)
    assert (ROOT / "deploy" / "ERRORS.md").read_text(encoding="utf-8") == errors_page(), "run `make documents`"


def test_every_action_of_the_audit_log_is_written_somewhere_or_its_part_is_said_to_be_missing() -> None:
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        from write_documents import NOT_YET, events_page, writers
    finally:
        sys.path.pop(0)
    assert {action for action, modules in writers().items() if not modules} <= set(NOT_YET)
    assert (ROOT / "deploy" / "EVENTS.md").read_text(encoding="utf-8") == events_page(), "run `make documents`"


def test_no_error_code_stands_twice_in_the_table() -> None:
    found = re.findall(r'"(CFD-[A-Z]\d+)",', (ROOT / "federation" / "codes.py").read_text(encoding="utf-8"))
    assert sorted(found) == sorted(set(found))


def test_every_code_that_is_raised_is_in_the_table_and_every_row_is_used() -> None:
    used = set()
    for path in SOURCES:
        if path.name != "codes.py":
            used |= set(re.findall(r"CFD-[B-Z]\d\d\b", path.read_text(encoding="utf-8")))
    known = set(codes.CODES)
    assert used - known == {PrivacyError.code}  # of the family's root, which nobody raises
    assert known - used == {"CFD-G05"} | (known - used) & {"CFD-G01"}


def test_audit_codes_are_named_in_full() -> None:
    assert all(re.fullmatch(r"CFD-A\d\d", code) for code in AUDIT_CODES)


@pytest.mark.parametrize(
    "folder", ["audit", "privacy", "federation", "site_client", "coordinator", "deploy", "tests", "benchmarks"]
)
def test_every_folder_says_what_lives_there(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert len(text) > 300


def test_the_readme_links_to_files_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_readme_names_commands_that_exist() -> None:
    for line in re.findall(r"^confide (.+)$", README, flags=re.MULTILINE):
        noun, verb, *_ = line.split()
        done = subprocess.run(
            [sys.executable, "-m", "confide_cli", noun, "--help"], cwd=ROOT, capture_output=True, timeout=60
        )
        assert done.returncode == 0
        assert verb in done.stdout.decode(), line


def test_the_wording_of_the_project_is_its_own() -> None:
    done = subprocess.run([sys.executable, "deploy/check_words.py"], cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout.decode()


def test_every_test_that_the_table_of_attacks_names_exists_where_it_says() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").partition("## The audit log: attack and test")[2]
    rows = [line for line in text.split("\n") if line.startswith("| ") and "`" in line]
    assert len(rows) > 20
    for row in rows:
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)", row):
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            for name in re.findall(r"`(test_\w+)`", names):
                assert f"def {name}(" in source, f"{file} has no {name}"
        assert row.count("`test_") == sum(
            part.count("`test_") for _, part in re.findall(r"`([\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)", row)
        ), row
