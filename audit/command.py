"""`confide audit`: what an officer asks of a log. Offline, and without any part of the product that trains.

Here are the words of the command line; a verb's own module is imported when it runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HELP: Final = """\
usage: confide audit VERB [LOG] [options]

Who used which data, for what, under whose approval, at what privacy cost, and what left.
LOG is a home, its audit folder, or a copy of either; without one, the home of this account.

  query       list entries               --dataset --job --site --actor --purpose --action
                                         --decision --since --until --limit --after
  show        one entry in full          ENTRY is an index, EPOCH/INDEX or an id
  verify      is the log whole, and whose; prints what is proved and what is not
                                         --trust FILE --against CHECKPOINT --complete
  checkpoint  print the newest signed checkpoint: a few lines that fit a letter
  rebuild     make anew the rows by which queries find entries
  new-epoch   close a log that must not go on and begin the next, naming what is lost
                                         --reason TEXT --database URL --password-file FILE

  --home DIR            the home to read
  --format FORMAT       table, json, jsonl or csv

Reading a live home is itself recorded there; a copy is only read.
Exit status of verify: 0 verified, 1 flawed, 2 no log, 3 no pinned key says whose log it is.

example:
  confide audit query --dataset heart --since 2026-01-01 --format csv > heart.csv
  confide audit verify ./copy-of-the-home --trust cleveland.policy --against october.checkpoint
"""
VERBS: Final = ("query", "show", "verify", "checkpoint", "rebuild", "new-epoch")
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
    verify.add_argument("--complete", action="store_true")
    verbs.choices["new-epoch"].add_argument("--reason", required=True, metavar="TEXT")
    verbs.choices["new-epoch"].add_argument("--database", metavar="URL")
    verbs.choices["new-epoch"].add_argument("--password-file", type=Path)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit status.

    Raises:
        AuditError: For the caller to print with code and hint.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    from audit import query_command, reading, upkeep_command, verify_command
    from audit.filters import FilterRefused

    log = reading.find_log(given.log or given.home) if given.log or given.home else reading.find_home()
    try:
        match given.verb:
            case "query":
                return query_command.query(given, log)
            case "show":
                return query_command.show(given, log)
            case "verify":
                return verify_command.verify(given, log)
            case "checkpoint":
                return verify_command.checkpoint(given, log)
            case "rebuild":
                return upkeep_command.rebuild(given, log)
            case _:
                return upkeep_command.new_epoch(given, log)
    except FilterRefused as refused:
        parser.error(str(refused))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
