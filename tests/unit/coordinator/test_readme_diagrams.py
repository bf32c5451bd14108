"""The diagrams in the README are those of the tables."""

from pathlib import Path

import pytest

from coordinator import diagrams

README = Path(diagrams.__file__).parent / "README.md"


@pytest.mark.parametrize("name", list(diagrams.all_diagrams()))
def test_the_diagram_in_the_readme_is_drawn_from_the_table(name: str) -> None:
    assert f"### {name}\n\n```mermaid\n{diagrams.all_diagrams()[name]}\n```" in README.read_text("utf-8")


def test_an_event_is_named_in_words() -> None:
    assert diagrams.words("DeadlinePassed") == "deadline passed"
