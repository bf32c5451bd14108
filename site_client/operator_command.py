"""`confide site status | check | pause | resume | drain | abort`: the operator and the running daemon."""

import sys
from typing import Any, Final, Literal

from federation.edge.tables import print_record, print_rows
from site_client.command_line import Parser, open_home, reading_store, wants_help

STATUS: Final = """confide site status: what runs here, what waits, and how the link stands

  confide site status [--home DIR] [--format table|json]

Asks the running daemon; where none runs, tells what it left.

Example:
  confide site status
"""
CHECK: Final = """confide site check: the effective configuration, and what is wrong with it

  confide site check [--home DIR] [--format table|json]

Exit status 0 where nothing is wrong, 78 otherwise. Secrets are files; none is shown.

Example:
  confide site check
"""
PAUSE: Final = """confide site pause | resume: whether this site begins new phases

  confide site pause [--home DIR]
  confide site resume [--home DIR]

A phase under way goes on to its end. It holds over restarts, and is in the audit log.

Example:
  confide site pause
"""
DRAIN: Final = """confide site drain: end the daemon after the phases under way

  confide site drain [--home DIR]

Example:
  confide site drain
"""
ABORT: Final = """confide site abort: end a job at this site, at once and for good

  confide site abort JOB [--home DIR]

What was charged stays spent, the rest of the reservation goes back; the coordinator is told.

Example:
  confide site abort heart-risk-7f3a91
"""


def status(arguments: list[str]) -> int:
    """Print what runs, what waits, and how the link stands."""
    if wants_help(arguments):
        print(STATUS, end="")
        return 0
    options = Parser("status", STATUS).parse_args(arguments)
    from federation.errors import Unreachable
    from site_client.control import Request, ask

    home = open_home(options.home)
    try:
        found = ask(home.path, Request(verb="status"))
    except Unreachable:
        found = _left_behind(home)
    jobs = found.pop("jobs")
    link = found.pop("link")
    if options.format != "table":
        print_record({**found, "link": link, "jobs": jobs}, schema="confide/site-status/v1", form=options.format)
        return 0
    print_record({**found, **{f"link {key}": value for key, value in link.items()}}, schema="confide/site-status/v1")
    if jobs:
        print()
        print_rows(jobs, ["job", "stage", "round", "phase", "held_by", "device"], schema="confide/site-status/v1")
    return 0


def _left_behind(home: Any) -> dict[str, Any]:
    with reading_store(home) as store:
        jobs = store.open_jobs()
        return {
            "running": False,
            "paused": store.flag("paused") is not None,
            "approvals_waiting": len(store.approvals(state="waiting")),
            "messages_waiting": len(store.outbox()),
            "link": {"state": "stopped"},
            "jobs": [
                {
                    "job": stored.job,
                    "stage": stored.session.stage.value,
                    "round": None if stored.session.work is None else stored.session.work.round,
                    "phase": None if stored.session.work is None else stored.session.work.phase.value,
                    "held_by": sorted(holder.value for holder in stored.session.held_by),
                    "device": None,
                }
                for stored in jobs
            ],
        }


def check(arguments: list[str]) -> int:
    """Print the effective configuration and what is wrong with it."""
    if wants_help(arguments):
        print(CHECK, end="")
        return 0
    options = Parser("check", CHECK).parse_args(arguments)
    from federation import policy as policies
    from federation.edge.configuration import effective, load_configuration
    from federation.edge.files import read_bytes
    from federation.errors import ConfideError
    from site_client.charter_store import CharterStore
    from site_client.configuration import SiteConfiguration

    home = open_home(options.home)
    configuration = load_configuration(SiteConfiguration, home.configuration_file)
    problems: list[ConfideError] = []
    charters = CharterStore(home, own_site=configuration.site, accept_all=False)
    for look in (
        home.identity,
        home.credentials,
        home.root_public,
        charters.loaded,
        lambda: policies.read(read_bytes(home.policy_file), source=str(home.policy_file)),
    ):
        try:
            look()
        except ConfideError as problem:
            problems.append(problem)
    shown = {"home": str(home.path), **effective(configuration)}
    found = [{"code": item.code, "problem": item.message, "how_to_fix": item.hint} for item in problems]
    if options.format == "table":
        print_record(_flat(shown), schema="confide/site-check/v1")
        for item in problems:
            print(f"error {item.code}: {item.message}\nhint: {item.hint}", file=sys.stderr)
    else:
        print_record({**shown, "problems": found}, schema="confide/site-check/v1", form=options.format)
    return 78 if problems else 0


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def pause(arguments: list[str]) -> int:
    """Begin no phase until resumed."""
    return _hold(arguments, "pause")


def resume(arguments: list[str]) -> int:
    """Begin phases again."""
    return _hold(arguments, "resume")


def _hold(arguments: list[str], verb: Literal["pause", "resume"]) -> int:
    if wants_help(arguments):
        print(PAUSE, end="")
        return 0
    options = Parser(verb, PAUSE).parse_args(arguments)
    from federation.edge.files import HomeLock
    from federation.errors import Unreachable
    from site_client.control import Request, ask
    from site_client.open_site import own_account

    home = open_home(options.home)
    try:
        found = ask(home.path, Request(verb=verb))
    except Unreachable:
        # Remembered for the next start, which records it.
        with HomeLock(home.lock_folder), reading_store(home) as store:
            store.set_flag("paused", own_account() if verb == "pause" else None)
        found = {"paused": verb == "pause", "jobs": []}
    print_record(found, schema="confide/site-hold/v1", form=options.format)
    return 0


def drain(arguments: list[str]) -> int:
    """End the daemon after the phases under way."""
    if wants_help(arguments):
        print(DRAIN, end="")
        return 0
    options = Parser("drain", DRAIN).parse_args(arguments)
    from site_client.control import Request, ask

    found = ask(open_home(options.home).path, Request(verb="drain"))
    print_record(
        {"draining": True, "phases_under_way": found["phases"]}, schema="confide/site-drain/v1", form=options.format
    )
    return 0


def abort(arguments: list[str]) -> int:
    """End a job at this site, at once and for good."""
    if wants_help(arguments):
        print(ABORT, end="")
        return 0
    parser = Parser("abort", ABORT)
    parser.add_argument("job", metavar="JOB")
    options = parser.parse_args(arguments)
    from site_client.control import Request, ask

    found = ask(open_home(options.home).path, Request(verb="abort", subject=options.job))
    print_record(found, schema="confide/site-abort/v1", form=options.format)
    return 0
