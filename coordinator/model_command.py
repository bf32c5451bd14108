"""`confide model …`: verify a result's folder offline, and look at models of jobs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coordinator.people import add_person_options, person_of
from federation.edge.arguments import VerbParser
from federation.edge.tables import FORMATS, print_record, print_rows
from federation.errors import CheckFailed, InvalidInput

HELP: Final = """\
Released models.

usage: confide model VERB [options]

  list     models that jobs have released, newest first
  show     one job's newest model
  verify   check a folder that `confide job result` wrote; needs no network

Example: confide model verify result/ --coordinator-words "amber …"
"""


def _list(arguments: list[str]) -> int:
    parser = VerbParser("confide model list", about="List released models, newest first.")
    add_person_options(parser)
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        jobs = [job for job in federation.jobs() if job.round > 0]
    rows = [
        {"job": job.job, "round": job.round, "state": job.state, "metrics": job.metrics or {}, "plan": job.plan_digest}
        for job in jobs
    ]
    print_rows(rows, ("job", "round", "state", "metrics"), schema="confide/models/v1", form=options.format)
    return 0


def _show(arguments: list[str]) -> int:
    parser = VerbParser("confide model show", about="Show the newest model of a job.")
    add_person_options(parser)
    parser.add_argument("model", metavar="JOB")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args(arguments)
    with person_of(options).federation() as federation:
        found = federation.result(options.model)
    record = found.model_dump(mode="json", exclude={"releases"})
    if options.format == "table":
        record["files"] = [f"{file.name} ({file.size_bytes} B)" for file in found.files]
    print_record(record, schema="confide/model/v1", form=options.format)
    return 0


def _verify(arguments: list[str]) -> int:
    parser = VerbParser(
        "confide model verify",
        about="Check signature, chain of rounds and digests of a result. Status 0 proved, 1 a flaw, "
        "3 all agrees but no known key says whose it is.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--coordinator-words", help="the coordinator's fingerprint words, from the phone or `init`")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    from coordinator.result import verify_result
    from federation.words import fingerprint_words, words_match

    found = verify_result(options.folder)
    words = fingerprint_words(found.coordinator_identity)
    known = False
    if options.coordinator_words:
        if not words_match(options.coordinator_words, found.coordinator_identity):
            text = "the result is signed by another coordinator than the words say"
            raise CheckFailed("CFD-J25", text, hint=f"its signer's words are: {words}")
        known = True
    verdict = "verified" if known else "unpinned"
    record = {
        "verdict": verdict,
        "job": found.job,
        "plan": found.plan,
        "model": found.model,
        "rounds": found.rounds,
        "signer_words": words,
    }
    print_record(record, schema="confide/model-verification/v1", form=options.format)
    if not known:
        print("all agrees, but nothing says whose key this is: compare the signer's words", file=sys.stderr)
    return 0 if known else 3


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {"list": _list, "show": _show, "verify": _verify}


def main(arguments: list[str]) -> int:
    """Run `confide model …`."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if arguments else 2
    if arguments[0] not in VERBS:
        raise InvalidInput("CFD-G02", f"there is no `confide model {arguments[0]}`", hint="see `confide model --help`")
    return VERBS[arguments[0]](arguments[1:])
