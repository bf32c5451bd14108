"""`confide audit`: what an officer asks of a log. Offline, and without any part of the product that trains.

Here are the words of the command line; a verb's own module is imported when it runs.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from audit.reading import FoundLog

HELP: Final = """\
usage: confide audit VERB [LOG] [options]

Who used which data, for what, under whose approval, at what privacy cost, and what left.
LOG is a home, its audit folder, a copy of either, an exported bundle, or a directory of
tiles; without one, the home of this account.

  query       list entries               --dataset --job --site --actor --purpose --action
                                         --decision --since --until --limit --after
  show        one entry in full          ENTRY is an index, EPOCH/INDEX or an id   --proof FILE
  report      who, what for, under which approval, how much privacy, what left
                                         --dataset --job --since --until --out FILE.html|.pdf|.json
  verify      is the log whole, and whose; prints what is proved and what is not
                                         --trust FILE --against CHECKPOINT --complete
                                         --peer LOG: another party's log, the links between both
  prove       one entry that proves itself             ENTRY --out FILE
  check       what such a file proves                  FILE --trust FILE --entry FILE
  export      a bundle (a zip, or a folder) that anybody checks with its own verify.py
                                         the filters of query, --out BUNDLE --complete
                                         --to RECIPIENT --private --as csv|fhir|ocsf|html|json|pdf|tiles
  checkpoint  print the newest signed checkpoint: a few lines that fit a letter
  witness     status [LOG]: who has seen this log, and which logs this home has seen; exit 1 when stale
              acknowledge ORIGIN: work with a party may go on although its log has two histories
  erase       delete what links a person to this log, in the side store   PERSON --basis CODE
  redact      empty an entry into which personal data slipped; its hash stays   ENTRY --basis CODE
  prune       move the entries below an index into an archive   --below INDEX
  requests    what waits for a second person
  approve     confirm what another person asked for             REQUEST
  rebuild     make anew the rows by which queries find entries
  new-epoch   close a log that must not go on and begin the next, naming what is lost; two people
                                         --reason TEXT --database URL --password-file FILE

  --home DIR            the home to read
  --format FORMAT       table, json, jsonl or csv

Reading a live home is itself recorded there, before anything is shown; a copy is only read.
Section `audit` of the home's site.yaml or coordinator.yaml names who may read:
  readers: {alice: compliance, bob: {role: regulator, datasets: [heart], expires: 2027-01-01}}
  two_people: true       a second account approves redact, prune, new-epoch; false lets one act alone
Exit status of verify: 0 verified, 1 flawed, 2 no log, 3 no pinned key says whose log it is.

example:
  confide audit report --dataset heart --since 2026-11-01 --until 2026-12-01 --out november.html
  confide audit export --dataset heart --since 2026-11-01 --until 2026-12-01 --complete --out november.zip
  confide audit verify november.zip --trust cleveland.policy --complete
"""
VERBS: Final = (
    "query",
    "show",
    "report",
    "verify",
    "prove",
    "export",
    "checkpoint",
    "erase",
    "redact",
    "prune",
    "requests",
    "approve",
    "rebuild",
    "new-epoch",
)
FILTERS: Final = (
    "dataset",
    "version",
    "job",
    "site",
    "actor",
    "purpose",
    "action",
    "decision",
    "since",
    "until",
    "after",
)


class _Parser(argparse.ArgumentParser):
    """argparse with our help screen."""

    def format_help(self) -> str:
        return HELP

    def format_usage(self) -> str:
        return f"usage: {self.prog} …  (see `confide audit --help`)\n"

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, as every error is said, and end with status 2."""
        self.exit(2, f"error CFD-G02: {self.prog}: {message}\nhint: see `confide audit --help`\n")


def _parser() -> _Parser:
    parser = _Parser(prog="confide audit")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        added = verbs.add_parser(verb)
        added.add_argument("log", nargs="?", type=Path, metavar="LOG")
        added.add_argument("--home", type=Path)
        formats = ("table", "json", "jsonl", "csv") if verb == "query" else ("table", "json", "jsonl")
        added.add_argument("--format", choices=formats, default="table")
    query, show, verify = (verbs.choices[verb] for verb in ("query", "show", "verify"))
    for name in FILTERS:
        query.add_argument(f"--{name}")
    query.add_argument("--limit", type=int)
    show.add_argument("entry", metavar="ENTRY")
    verify.add_argument("--trust", type=Path)
    verify.add_argument("--against", action="append", type=Path, default=[])
    verify.add_argument("--peer", action="append", type=Path, default=[], metavar="LOG")
    verify.add_argument("--complete", action="store_true")
    _add_exports(verbs.choices)
    verbs.choices["prune"].add_argument("--below", required=True, type=int, metavar="INDEX")
    for verb, word in (("erase", "person"), ("redact", "entry"), ("approve", "request")):
        verbs.choices[verb].add_argument(word, metavar=word.upper())
        if verb != "approve":
            verbs.choices[verb].add_argument("--basis", required=True, metavar="CODE")
    show.add_argument("--proof", type=Path, metavar="FILE")
    witness = verbs.add_parser("witness")
    witness.add_argument("act", choices=("status", "acknowledge"))
    witness.add_argument("about", nargs="?", metavar="LOG or ORIGIN")
    witness.add_argument("--home", type=Path)
    witness.add_argument("--stale-after", type=float, default=86_400.0, metavar="SECONDS")
    witness.add_argument("--format", choices=("table", "json", "jsonl"), default="table")
    check = verbs.add_parser("check")
    check.add_argument("proof", type=Path, metavar="FILE")
    check.add_argument("--trust", type=Path)
    check.add_argument("--entry", type=Path)
    check.add_argument("--format", choices=("table", "json", "jsonl"), default="table")
    verbs.choices["new-epoch"].add_argument("--reason", required=True, metavar="TEXT")
    verbs.choices["new-epoch"].add_argument("--database", metavar="URL")
    verbs.choices["new-epoch"].add_argument("--password-file", type=Path)
    return parser


def _add_exports(verbs: dict[str, _Parser]) -> None:
    for name in ("dataset", "job", "since", "until"):
        verbs["report"].add_argument(f"--{name}")
    for name in FILTERS:
        if name != "after":
            verbs["export"].add_argument(f"--{name}")
    verbs["prove"].add_argument("entry", metavar="ENTRY")
    for verb in ("report", "prove", "export"):
        verbs[verb].add_argument("--out", required=True, metavar="FILE")
    export = verbs["export"]
    export.add_argument("--complete", action="store_true")
    export.add_argument("--private", action="store_true")
    export.add_argument("--to", default="unnamed", metavar="RECIPIENT")
    export.add_argument("--as", action="append", dest="renderings", metavar="FORM")


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit status.

    Raises:
        AuditError: For the caller to print with code and hint.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    from audit import reading
    from audit.filters import FilterRefused

    try:
        if given.verb == "check":
            from audit import proof_command

            return proof_command.check(given)
        if given.verb == "witness":
            given.log = Path(given.about) if given.act == "status" and given.about else None
        log = reading.find_log(given.log or given.home) if given.log or given.home else reading.find_home()
        return _run(given, log)
    except FilterRefused as refused:
        parser.error(str(refused))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(given: argparse.Namespace, log: "FoundLog") -> int:
    module, name = _FUNCTIONS[given.verb]
    function: Callable[[argparse.Namespace, FoundLog], int] = getattr(importlib.import_module(module), name)
    return function(given, log)


_FUNCTIONS: Final = {
    "query": ("audit.query_command", "query"),
    "show": ("audit.query_command", "show"),
    "report": ("audit.report_command", "report"),
    "verify": ("audit.verify_command", "verify"),
    "prove": ("audit.proof_command", "prove"),
    "export": ("audit.export_command", "export"),
    "checkpoint": ("audit.verify_command", "checkpoint"),
    "erase": ("audit.removal_command", "erase"),
    "redact": ("audit.removal_command", "redact"),
    "prune": ("audit.removal_command", "prune"),
    "requests": ("audit.removal_command", "requests"),
    "approve": ("audit.removal_command", "approve"),
    "witness": ("audit.witness_command", "witness"),
    "rebuild": ("audit.upkeep_command", "rebuild"),
    "new-epoch": ("audit.upkeep_command", "new_epoch"),
}
"""The module and the function of each verb; a module is imported when its verb runs."""
