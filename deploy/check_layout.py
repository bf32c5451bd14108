"""Refuse files that have no place: a new folder or module at the top, and modules named after nothing.

Which folders there are, what each holds and what it may import is decided once (README.md of each folder, the import
contracts in pyproject.toml). A file at the top of the project, a folder beside those or a module called after no noun
of the field is how a project loses its shape, so each needs a line here first. Standard library only.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

FOLDERS: Final = {
    ".ci",
    "audit",
    "benchmarks",
    "coordinator",
    "deploy",
    "federation",
    "privacy",
    "site_client",
    "tests",
}
FILES: Final = {
    ".gitattributes",
    ".gitignore",
    "LICENSE",
    "Makefile",
    "README.md",
    "confide_cli.py",
    "confide_demo.py",
    "confide_demo_baselines.py",
    "confide_demo_hospitals.py",
    "confide_demo_loss.py",
    "confide_demo_officer.py",
    "confide_simulation.py",
    "pyproject.toml",
}
TEST_FOLDERS: Final = {
    "adversarial",
    "browser",
    "documented",
    "end_to_end",
    "faults",
    "properties",
    "protocol",
    "statistical",
    "support",
    "unit",
    "vectors",
}
# A module with such a name says nothing of what it holds, and so comes to hold everything.
NAMES_OF_NOTHING: Final = {"util", "utils", "helper", "helpers", "misc"}
WHOLE_NAMES_OF_NOTHING: Final = NAMES_OF_NOTHING | {"base", "data", "handler", "handlers", "manager", "managers"}
PACKAGES: Final = ("audit", "privacy", "federation", "site_client", "coordinator")


def problem(name: str) -> str:
    """Return why the file `name`, relative to the project's root, has no place; or nothing."""
    path = PurePosixPath(name)
    top = path.parts[0]
    if len(path.parts) == 1:
        return "" if name in FILES else "a new file at the top of the project"
    if top not in FOLDERS:
        return f"a new folder {top}/ at the top of the project"
    if top == "tests" and len(path.parts) > 2 and path.parts[1] not in TEST_FOLDERS:
        return f"a new folder tests/{path.parts[1]}/"
    if path.suffix == ".py":
        words = {part for folder in path.with_suffix("").parts for part in folder.split("_")}
        found = sorted(words & NAMES_OF_NOTHING | {path.stem} & WHOLE_NAMES_OF_NOTHING)
        if found:
            return f"a module or folder named {found[0]!r}; name it after what it holds"
        if top == "tests" and path.name == "__init__.py":
            return "tests are files, not packages"
    return ""


def problems(names: Iterable[str]) -> list[str]:
    """Return one line for each file that has no place."""
    return [f"{name}: {why}" for name in names if (why := problem(name))]


def folders_without_init(root: Path, names: Iterable[str]) -> list[str]:
    """Return one line for each folder of a package without `__init__.py`, which import-linter would not see."""
    folders = {PurePosixPath(name).parent for name in names if name.endswith(".py") and name.split("/")[0] in PACKAGES}
    return [
        f"{folder}/: no __init__.py, so the import contracts don't see it"
        for folder in sorted(folders)
        if not (root / folder / "__init__.py").is_file()
    ]


def tracked() -> list[str]:
    """Return the project's files that exist, relative to its root: those of git and new ones that it doesn't ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    return sorted(name for name in set(listed.split("\0")) if name and (ROOT / name).is_file())


def main() -> int:
    """Print what was found; return 1 if anything was."""
    names = tracked()
    found = problems(names) + folders_without_init(ROOT, names)
    print("\n".join(found) if found else "layout: every file has its place")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
