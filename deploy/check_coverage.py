"""Hold the modules that decide to the branches that tests have covered: a figure may rise, never fall.

`[tool.confide.coverage]` in pyproject.toml gives each of these modules the least percentage of its lines and branches
together. Reads the JSON report of `coverage`, prints a line a module, names what is missing, and returns 1 if a module
is below its floor. Standard library only.
"""

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Figure:
    """What tests covered of one module.

    Attributes:
        name: Its file, relative to the project's root.
        percent: Lines and branches that ran, of all; rounded down to a tenth.
        floor_percent: The least that is accepted.
        missing: Lines and branches that never ran.
    """

    name: str
    percent: float
    floor_percent: float
    missing: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the module isn't below its floor."""
        return self.percent >= self.floor_percent


def figure(name: str, floor_percent: float, report: dict[str, Any]) -> Figure:
    """Return the figure of the module `name`; nothing of it is covered where the report doesn't know it."""
    found = report["files"].get(name)
    if found is None:
        return Figure(name, 0.0, floor_percent, ("no test imported it",))
    summary = found["summary"]
    every = summary["num_statements"] + summary["num_branches"]
    ran = summary["covered_lines"] + summary["covered_branches"]
    missing = [str(line) for line in found["missing_lines"]]
    missing += [f"{start}->{end if end > 0 else 'end'}" for start, end in found["missing_branches"]]
    return Figure(name, ran * 1000 // every / 10 if every else 100.0, floor_percent, tuple(missing))


def figures(report: dict[str, Any], floors: dict[str, float]) -> list[Figure]:
    """Return the figure of each module that has a floor."""
    return [figure(name, floor, report) for name, floor in sorted(floors.items())]


def line(found: Figure) -> str:
    """Return the line that is printed of one module."""
    mark = "ok  " if found.holds else "FAIL"
    shown = f"{mark} {found.percent:5.1f} % of {found.floor_percent:5.1f} %  {found.name}"
    if found.holds and found.percent > found.floor_percent:
        shown += "  (raise its floor)"
    if found.missing:
        shown += f"  missing {', '.join(found.missing[:12])}{' …' if len(found.missing) > 12 else ''}"
    return shown


def main(path: Path) -> int:
    """Print a line a module; return 1 if one is below its floor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = figures(json.loads(path.read_bytes()), project["tool"]["confide"]["coverage"])
    print("\n".join(line(item) for item in found))
    below = [item for item in found if not item.holds]
    print(f"coverage: {len(found) - len(below)} modules hold their floor, {len(below)} do not")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
