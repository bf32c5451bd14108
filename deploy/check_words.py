"""Refuse words and paths in the project that only mean something where it was written.

The project speaks of itself alone. This looks through every file that git tracks (and every new one that it doesn't
ignore) and names file, line and word. Standard library only.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SELF = "deploy/check_words.py"

REFUSED = {
    "a path of one machine": r"(?<![\w.])/(?:work|farm|opt/(?:wheels|pypi))(?:/|\b)",
    "a folder beside the project": r"\.\./(?:shared|\.library)",
    "the number of an issue of ours": r"(?i)\bissue[s]?\s*#?\s*\d+\b",
    "the id of a case": r"(?<![-\w#.])[A-G](?:0[1-9]|1[0-5])(?![\w%])",
    "a word about how the project was written": r"(?i)\b(?:sub-?agent|(?:helper|language\s+model)\s+session)\b",
    "the host of a registry": r"(?i)\b(?:pypi\.org|files\.pythonhosted\.org|registry\.npmjs\.org|deb\.debian\.org)\b",
}


def tracked() -> list[str]:
    """Return the project's files, relative to its root."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    return sorted(name for name in listed.split("\0") if name and name != SELF)


def findings(name: str) -> list[str]:
    """Return one line for each refused word in the file `name`."""
    path = ROOT / name
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    return [
        f"{name}:{number}: {meaning}: {match.group(0)!r}"
        for number, line in enumerate(text.split("\n"), 1)
        for meaning, pattern in REFUSED.items()
        if (match := re.search(pattern, line))
    ]


def main() -> int:
    """Print what was found; return 1 if anything was."""
    found = [line for name in tracked() for line in findings(name)]
    print("\n".join(found) if found else "wording: nothing refused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
