"""What `verify.py` runs: the check of the bundle that it lies in, or of one that is named.

    python3 verify.py [BUNDLE] [--trust POLICY] [--complete] [--against CHECKPOINT] [--json]

It needs Python 3.11 or newer and the package `cryptography`, and no network. Exit status: 0 verified, 1 flawed,
2 unreadable, 3 no pinned key says whose log it is. It says what `confide audit verify` says.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from audit.errors import AuditError, LogUnreadable
from audit.export.bundle_check import BundleReader, check_files
from audit.export.container import open_files
from audit.findings import EXIT_STATUS, Verdict, Verification
from audit.trust import TrustPolicy, parse_policy
from audit.visible import json_text, visible

UNREADABLE: Final = 2
_LIMIT_BYTES: Final = 1 << 20


def lines_of(result: Verification) -> list[tuple[str, str]]:
    """Return what is said of a verification: a word and its sentence for each line."""
    pinned = f"keys pinned by {result.pinned_by}" if result.pinned_by else "no pinned key"
    lines = [("log", f"{result.origin or 'unknown'}, {pinned}")]
    lines += [("proved", text) for text in result.proved]
    lines += [("note", f"{note.code} {note.where}: {note.what}") for note in result.notes]
    lines += [("flaw", f"{flaw.code} {flaw.where}: {flaw.what}") for flaw in result.flaws]
    lines.append(("not proved", "; ".join(result.not_proved)))
    return [(name, visible(text)) for name, text in lines]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise LogUnreadable(f"{path} can't be read: {error.strerror}") from None
    if len(data) > _LIMIT_BYTES:
        raise LogUnreadable(f"{path} is too long")
    return data


def _policy(path: Path | None) -> tuple[TrustPolicy | None, str]:
    if path is None:
        return None, ""
    return parse_policy(_read(path).decode("utf-8", "replace")), str(path)


def main(arguments: Sequence[str], here: Path) -> int:
    """Print what the bundle proves and return the exit status.

    Args:
        arguments: Without the program's name.
        here: The folder of this file, the bundle where none is named.
    """
    parser = argparse.ArgumentParser(prog="verify.py", description="Check an exported bundle of an audit log, offline.")
    parser.add_argument("bundle", nargs="?", type=Path, default=here)
    parser.add_argument("--trust", type=Path, help="the trust policy, with keys that you compared over the phone")
    parser.add_argument("--complete", action="store_true", help="ask for all entries that match, not for some")
    parser.add_argument("--against", action="append", type=Path, default=[], help="a checkpoint that you kept")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        policy, pinned_by = _policy(given.trust)
        against = {str(path): _read(path) for path in given.against}
        with open_files(given.bundle) as files:
            result = check_files(files, BundleReader(policy, pinned_by, given.complete, against))
    except AuditError as error:
        print(f"error {error.code}: {visible(error.message)}", file=sys.stderr)  # noqa: T201
        return UNREADABLE
    text = json_text(result.as_json(), indent=2) if given.json else _text(result)
    print(text)  # noqa: T201
    if result.verdict is Verdict.UNPINNED and not given.json:
        print("give --trust POLICY, with keys compared over the phone", file=sys.stderr)  # noqa: T201
    return EXIT_STATUS[result.verdict]


def _text(result: Verification) -> str:
    return "\n".join([*(f"{name:<12}{text}" for name, text in lines_of(result)), str(result.verdict)])
