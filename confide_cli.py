"""The command `confide`: one entry point, the roles behind it imported only when asked for.

Nothing here trains, opens a database or speaks on a network. `confide --help` imports neither torch nor flwr nor
the roles, so it answers at once; a role's own module is imported when its word is the first argument. Every error
that a person can act on ends here as two lines and an exit status; anything else is our fault, gets a reference id,
and its trace goes to the log, never to the screen.
"""

import errno
import importlib
import os
import secrets
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

# Flower contacts its makers by default. The environment of this process is set before anything can import it, and
# every process that we start inherits it.
QUIET: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

NOUNS: Final[dict[str, tuple[str, str]]] = {
    "coordinator": ("coordinator.command", "the coordinator's service, its sites and people"),
    "job": ("coordinator.job_command", "validate, submit and watch federated jobs"),
    "model": ("coordinator.model_command", "released models and their proofs"),
    "site": ("site_client.command", "a site's daemon, data, policy and budget"),
    "audit": ("audit.command", "question and verify an audit log, offline"),
    "demo": ("confide_demo", "four hospitals train one model, on this machine"),
}

HELP: Final = """\
Confide: institutions that may not pool their data train one model together.

usage: confide NOUN VERB [options]

{nouns}
  schema       JSON Schema of a file: plan, policy, contract, map, coordinator, site
  completion   completion for a shell: bash, zsh, fish
  version      what is installed

Try it:        confide demo
A role's help: confide site --help

Exit status: 0 done, 1 failed or a check found something, 2 usage or input, 3 can't reach or authenticate,
4 refused by policy or budget, 5 timed out, 70 internal error, 78 configuration, 130 interrupted.
"""

SCHEMAS: Final[dict[str, tuple[str, str]]] = {
    "plan": ("federation.plan", "Plan"),
    "policy": ("federation.policy", "Policy"),
    "contract": ("federation.contract", "DataContract"),
    "map": ("site_client.data.data_map", "DataMap"),
    "coordinator": ("coordinator.configuration", "CoordinatorConfiguration"),
    "site": ("site_client.configuration", "SiteConfiguration"),
}


def help_text() -> str:
    """Return the first screen of help."""
    return HELP.format(nouns="\n".join(f"  {noun:<12} {meaning}" for noun, (_, meaning) in NOUNS.items()))


def print_error(error: BaseException) -> int:
    """Print an error of ours as `error CODE: message` and `hint: …` on stderr; return its exit status."""
    print(f"error {getattr(error, 'code', 'CFD-G01')}: {_harmless(str(error))}", file=sys.stderr)
    reference = getattr(error, "reference", "")
    if reference:
        print(f"reference: {_harmless(reference)}", file=sys.stderr)
    hint = getattr(error, "hint", "")
    if hint:
        print(f"hint: {_harmless(hint)}", file=sys.stderr)
    return int(getattr(error, "exit_status", 1))


def _harmless(text: str) -> str:
    """Return `text` so that nothing in it can drive a terminal or pass for a line of our own.

    A message may quote what another party or a file said. Its further lines are set in.
    """
    from federation.edge.tables import visible

    first, *rest = text.split("\n")
    return "\n".join([visible(first), *(f"  {visible(line.strip())}" for line in rest if line.strip())])


_THE_MACHINES: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def is_the_machines(error: BaseException) -> bool:
    """Return whether the machine, not the program, is at fault: rights, a full or read-only disk, open files."""
    return isinstance(error, OSError) and error.errno in _THE_MACHINES


def report_the_machine(error: OSError) -> int:
    """Say what the machine refused, and to which account; return 78."""
    from federation.errors import ConfigurationWrong

    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    text = f"{place}{error.strerror} (uid {os.geteuid()})"
    hint = "check the account, its rights and the space that is left; nothing more was done"
    return print_error(ConfigurationWrong("CFD-G04", text, hint=hint))


def is_ours(error: BaseException) -> bool:
    """Return whether `error` was made for a person: it has a code, an exit status and a hint."""
    return all(hasattr(error, name) for name in ("code", "exit_status", "hint"))


def report_internal_error(error: BaseException) -> int:
    """Write the trace of an unforeseen error to a private file; tell the person its reference id; return 70."""
    import tempfile
    import traceback

    reference = secrets.token_hex(4)
    folder = Path(tempfile.gettempdir()) / f"confide-{os.getuid()}"
    where = "the trace could not be written"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"error-{reference}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as sink:
            sink.writelines(traceback.format_exception(error))
        where = f"the trace is in {path}"
    except OSError as problem:
        where += f" ({problem.strerror})"
    print(f"error CFD-G01: something went wrong inside Confide ({type(error).__name__})", file=sys.stderr)
    print(f"reference: {reference}", file=sys.stderr)
    print(f"hint: {where}; it may hold data of this machine, so read it before you send it on", file=sys.stderr)
    return 70


def _one_of(noun: str, words: Iterable[str], arguments: list[str]) -> int:
    """Say which words may follow `confide NOUN`, as help if that was asked for, else as an error."""
    if arguments[:1] in (["--help"], ["-h"]):
        print(f"usage: confide {noun} " + "|".join(words))
        return 0
    print(f"error CFD-G02: `confide {noun}` takes one word", file=sys.stderr)
    print(f"hint: there are: {', '.join(words)}", file=sys.stderr)
    return 2


def _schema(arguments: list[str]) -> int:
    import json

    if len(arguments) != 1 or arguments[0] not in SCHEMAS:
        return _one_of("schema", SCHEMAS, arguments)
    module, name = SCHEMAS[arguments[0]]
    model = getattr(importlib.import_module(module), name)
    print(json.dumps(model.model_json_schema(by_alias=True), indent=2, ensure_ascii=False))
    return 0


def _version(_arguments: list[str]) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"confide {version('confide')}")
    except PackageNotFoundError:
        print("confide (not installed)")
    return 0


_COMPLETION: Final = {
    "bash": "complete -W '{words}' confide",
    "zsh": "compdef '_arguments \"1:noun:({words})\"' confide",
    "fish": "complete -c confide -n __fish_use_subcommand -f -a '{words}'",
}


def _completion(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in _COMPLETION:
        return _one_of("completion", _COMPLETION, arguments)
    print(_COMPLETION[arguments[0]].format(words=" ".join([*NOUNS, "schema", "completion", "version"])))
    return 0


_OWN: Final[dict[str, Callable[[list[str]], int]]] = {
    "schema": _schema,
    "version": _version,
    "--version": _version,
    "completion": _completion,
}


def _load(noun: str) -> Callable[[list[str]], int]:
    command: Callable[[list[str]], int] = importlib.import_module(NOUNS[noun][0]).main
    return command


OURS: Final = ("audit", "privacy", "federation", "site_client", "coordinator")
EXTRAS: Final = {
    "coordinator": "coordinator",
    "job": "coordinator",
    "model": "coordinator",
    "site": "site",
    "demo": "coordinator,site",
    "schema": "coordinator,site",
}


def report_missing_package(noun: str, missing: ModuleNotFoundError) -> int:
    """Say which extra brings a package that isn't installed; return 2. A missing module of ours is our own fault."""
    package = (missing.name or "").split(".")[0]
    if not package or package in OURS or package.startswith("confide") or noun not in EXTRAS:
        return report_internal_error(missing)
    print(f"error CFD-G02: `confide {noun}` needs the package {package}", file=sys.stderr)
    print(f"hint: pip install 'confide[{EXTRAS[noun]}]'", file=sys.stderr)
    return 2


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; errors for people are printed, never raised."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if arguments else 2
    noun, rest = arguments[0], arguments[1:]
    try:
        if noun in _OWN:
            return _OWN[noun](rest)
        if noun not in NOUNS:
            import difflib

            near = difflib.get_close_matches(noun, [*NOUNS, *_OWN], n=1)
            print(f"error CFD-G02: there is no `confide {noun}`", file=sys.stderr)
            print("hint: " + (f"did you mean `confide {near[0]}`?" if near else "see `confide help`"), file=sys.stderr)
            return 2
        return _load(noun)(rest)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as missing:
        return report_missing_package(noun, missing)
    except Exception as error:  # noqa: BLE001 (the outermost edge: nothing below may print a trace)
        if is_ours(error):
            return print_error(error)
        if isinstance(error, OSError) and is_the_machines(error):
            return report_the_machine(error)
        return report_internal_error(error)


def main() -> None:
    """Be the console script."""
    for name, value in QUIET.items():
        os.environ[name] = value  # noqa: TID251 (set before any import, for this process and its children)
    # gRPC's own lines on standard error are no JSON, and name every stranger that knocks; our log says who and why.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # noqa: TID251 (as above; a developer may ask for more)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
