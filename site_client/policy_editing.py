"""`confide site policy edit`: another policy takes the file's place only once it reads well, and whole.

The editor works on a copy in the home. What reads badly is kept there for the next try; the policy in force isn't
touched. A file that somebody else changed meanwhile is left as it is.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from federation import policy as policies
from federation.edge.configuration import environment
from federation.edge.files import read_bytes, read_input, remove_file, write_whole
from federation.edge.homes import SiteHome
from federation.errors import CheckFailed, ConfideError, InvalidInput, Unreachable
from site_client.control import Request, ask

DRAFT: Final = "policy.yaml.draft"


def replace(home: SiteHome, source: Path | None) -> str:
    """Put another policy into force and return what became of it, in words.

    Args:
        home: The site's home.
        source: The new policy's file; None lets the person edit a copy in their editor.

    Raises:
        InvalidInput: The new policy reads badly, or nobody can edit here; the policy in force stays.
        CheckFailed: The editor ended with an error, or the file changed meanwhile; the policy in force stays.
    """
    before = read_bytes(home.policy_file)
    after = _edited(home, before) if source is None else read_input(source)
    if after == before:
        remove_file(home.path / DRAFT)
        return "the policy is as it was"
    _check(after, home.path / DRAFT if source is None else source)
    if read_bytes(home.policy_file) != before:
        raise CheckFailed("CFD-S13", "policy.yaml was changed by somebody else meanwhile", hint="look, and edit again")
    write_whole(home.policy_file, after)
    remove_file(home.path / DRAFT)
    try:
        ask(home.path, Request(verb="reload"))
    except Unreachable:
        return "written; the daemon takes it over when it starts"
    except ConfideError as problem:
        raise CheckFailed(problem.code, f"written, and not taken over: {problem.message}", hint=problem.hint) from None
    return "written, and in force"


def _edited(home: SiteHome, before: bytes) -> bytes:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("CFD-G02", "there is no terminal to edit in", hint="give the new policy by --from FILE")
    draft = home.path / DRAFT
    if not draft.exists():
        write_whole(draft, before)
    names = environment()
    command = [*shlex.split(names.get("VISUAL") or names.get("EDITOR") or "vi"), str(draft)]
    try:
        status = subprocess.run(command, check=False).returncode
    except OSError as problem:
        hint = "set EDITOR, or give the new policy by --from FILE"
        raise CheckFailed("CFD-S14", f"the editor can't be started: {problem.strerror}", hint=hint) from None
    if status != 0:
        raise CheckFailed("CFD-S14", f"the editor ended with status {status}; the policy is as it was")
    return read_bytes(draft)


def _check(content: bytes, path: Path) -> None:
    try:
        policies.read(content, source=str(path))
    except ConfideError as problem:
        raise InvalidInput(problem.code, f"{problem.message}; the policy in force stays", hint=problem.hint) from None
