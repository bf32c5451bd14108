"""`confide site enrol` and `confide site members list | accept | refuse`."""

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from federation.edge.configuration import environment, load_configuration, resolve_home
from federation.edge.files import read_bytes, read_input
from federation.edge.homes import SiteHome
from federation.edge.tables import print_record, print_rows
from federation.errors import ConfigurationWrong, InvalidInput
from site_client.command_line import Parser, agreed, wants_help

HELP: Final = """confide site enrol: become a site of a federation

  confide site enrol https://HOST:PORT --token-file FILE [--home DIR]
  confide site enrol https://HOST:PORT --token TOKEN [--home DIR]

  --token-file FILE   file with the token that the coordinator gave you; - reads standard input
  --token TOKEN       the token itself, which other accounts of this machine can see while this runs
  --home DIR          where (default: CONFIDE_HOME, else the XDG place)
  --format table|json

Keys are made here and never leave. The server is believed only if it shows a certificate of the authority in the
token; nothing secret is sent before. Afterwards, read the words that are printed to the coordinator over the phone.

Example:
  confide site enrol https://coordinator.example.org:9443 --token-file st-anna.token
"""
MEMBERS_HELP: Final = """confide site members: whom this site accepts as other members

  confide site members list [--format table|json|jsonl]
  confide site members accept SITE [--yes]
  confide site members refuse SITE

A member that isn't accepted counts as colluding in this site's floors, and never as a witness. Compare the words with
that institution, over the phone, before you accept it. The policy's line `members: accept` accepts all.

Example:
  confide site members accept st-anna
"""


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


# --- enrol ----------------------------------------------------------------------------------------------------


def enrol(arguments: list[str]) -> int:
    """Become a site of a federation."""
    if wants_help(arguments):
        print(HELP, end="")
        return 0
    parser = Parser("enrol", HELP)
    parser.add_argument("address", metavar="https://HOST:PORT")
    parser.add_argument("--token", metavar="TOKEN")
    parser.add_argument("--token-file", metavar="FILE")
    options = parser.parse_args(arguments)
    if (options.token is None) == (options.token_file is None):
        parser.error("give the token: one of --token-file and --token")
    from federation import tokens
    from federation.certificates import authority_from_der, certificate_to_pem, expiry
    from federation.edge.clock import SystemClock, rfc3339
    from federation.link.dial import Dialler
    from federation.link.enrol import enrol as ask
    from federation.link.limits import LinkLimits
    from federation.link.route import choose_route, parse_address
    from federation.words import fingerprint_words
    from site_client import enrolment

    home, clock, limits = SiteHome(resolve_home("site", options.home)), SystemClock(), LinkLimits()
    enrolment.check_home_is_free(home)
    token = tokens.decode(options.token if options.token is not None else _read_token(options.token_file))
    enrolment.check_token_time(token, clock.now())
    route = choose_route(parse_address(options.address), environment())
    authority_pem = certificate_to_pem(authority_from_der(token.authority_der))
    # A first look, before anything is made here: a wrong address leaves nothing behind.
    problem = Dialler(route=lambda: route, authority_pem=authority_pem, limits=limits, clock=clock).look()
    if problem is not None:
        raise problem
    done = enrolment.enrol(
        home,
        token,
        address=str(route.address),
        ask=lambda request, authority: ask(
            route=route, authority_pem=authority, request=request, limits=limits, clock=clock
        ),
        clock=clock,
    )
    shown = {
        "site": done.site,
        "federation": done.federation,
        "status": done.status.value,
        "words": fingerprint_words(done.identity),
        "coordinator_words": fingerprint_words(done.coordinator_identity),
        "certificate_until": rfc3339(expiry(done.certificate)),
        "home": str(home.path),
    }
    print_record(shown, schema="confide/enrolment/v1", form=options.format)
    _say(f"\nNow call the coordinator and read out these words of {done.site}'s own key:")
    _say(f"\n    {shown['words']}\n")
    _say("Ask for the words of the coordinator's key in return. What this site allows is in")
    _say(f"    {home.policy_file}")
    _say("Then: confide site data add …, and confide site run")
    return 0


def _read_token(name: str) -> str:
    if name == "-":
        return sys.stdin.read(65_536)
    return read_input(Path(name), limit_bytes=65_536).decode("utf-8", "replace")


# --- members --------------------------------------------------------------------------------------------------


def members(arguments: list[str]) -> int:
    """List the other members, accept or refuse one."""
    if wants_help(arguments):
        print(MEMBERS_HELP, end="")
        return 0
    verb = arguments[0] if arguments and not arguments[0].startswith("-") else "list"
    action = _MEMBERS_VERBS.get(verb)
    if action is None:
        raise InvalidInput("CFD-G02", f"there is no `members {verb}`", hint=f"there are: {', '.join(_MEMBERS_VERBS)}")
    return action(arguments[1:] if arguments and arguments[0] == verb else arguments)


def _open(home_flag: str | None) -> tuple[SiteHome, Any]:
    from federation import policy as policies
    from site_client.charter_store import CharterStore
    from site_client.configuration import SiteConfiguration

    home = SiteHome(resolve_home("site", home_flag))
    if not home.configuration_file.exists():
        raise ConfigurationWrong("CFD-E22", f"there is no site's home at {home.path}", hint="run `confide site enrol`")
    configuration = load_configuration(SiteConfiguration, home.configuration_file)
    policy = policies.read(read_bytes(home.policy_file), source=str(home.policy_file))
    return home, CharterStore(
        home,
        own_site=configuration.site,
        accept_all=policy.members == "accept",
        witness_quorum=configuration.audit.witness_quorum,
    )


def _list(arguments: list[str]) -> int:
    options = Parser("members list", MEMBERS_HELP).parse_args(arguments)
    from federation.words import fingerprint_words

    _, store = _open(options.home)
    held = store.loaded()
    rows = [
        {
            "site": member.site,
            "operator": member.operator,
            "status": member.status.value,
            "accepted": _accepted(held, member.site),
            "words": fingerprint_words(bytes.fromhex(member.identity)),
        }
        for member in held.charter.members
    ]
    print_rows(
        rows, ("site", "operator", "status", "accepted", "words"), schema="confide/members/v1", form=options.format
    )
    if held.waiting():
        names = ", ".join(member.site for member in held.waiting())
        _say(f"Not accepted yet, so counted as colluding: {names}. See `confide site members accept SITE`.")
    return 0


def _accepted(held: Any, site: str) -> str:
    if site == held.own_site:
        return "this site"
    if held.accepts(site):
        return "yes"
    return "refused" if held.refused(site) else "no"


def _answering(*, accepted: bool) -> Callable[[list[str]], int]:
    verb = "accept" if accepted else "refuse"

    def run(arguments: list[str]) -> int:
        parser = Parser(f"members {verb}", MEMBERS_HELP)
        parser.add_argument("site", metavar="SITE")
        parser.add_argument("--yes", action="store_true")
        options = parser.parse_args(arguments)
        _answer(options.home, options.site, accepted=accepted, asks=not options.yes)
        return 0

    return run


def _answer(home_flag: str | None, site: str, *, accepted: bool, asks: bool) -> None:
    from audit import events
    from federation.edge.audit_trail import person, record
    from federation.edge.clock import SystemClock
    from federation.membership_events import accepted as entry
    from federation.words import fingerprint_words

    home, store = _open(home_flag)
    clock = SystemClock()
    held = store.loaded()
    held.answer(site, accepted=accepted, by="check")  # refuses an unknown member before anything is recorded
    member = held.charter.member(site)
    _say(f"{site} is run by {member.operator}. The words of its key:\n    " + _words(member, fingerprint_words))
    if (
        asks
        and accepted
        and not agreed("Did you compare them with that institution? [y/N] ", why="the words are to be compared")
    ):
        _say("Nothing was changed.")
        return
    actor = person(home.audit, clock)
    drafted = entry(
        lambda: events.new_event_id(clock, secrets.token_bytes),
        actor,
        own_site=held.own_site,
        member=member,
        code=None if accepted else REFUSED,
    )
    record(home.audit, clock, drafted)
    store.answer(site, accepted=accepted, by=actor.id)
    _say(f"{site} is {'accepted' if accepted else 'refused'}.")


def _words(member: Any, words_of: Callable[[bytes], str]) -> str:
    return words_of(bytes.fromhex(member.identity))


REFUSED: Final = "CFD-E28"
"""The code under which the log holds that the operator refused a member."""

_MEMBERS_VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "list": _list,
    "accept": _answering(accepted=True),
    "refuse": _answering(accepted=False),
}

VERBS: Final[dict[str, Callable[[list[str]], int]]] = {"enrol": enrol, "members": members}
