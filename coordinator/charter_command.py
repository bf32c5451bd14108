"""`confide coordinator charter show | sign` and `certificate show | renew`."""

from pathlib import Path
from typing import Any, Final

from coordinator.membership_desk import Parser, open_desk, say
from coordinator.server_certificate import issue_server_certificate
from federation.certificates import expiry, names_of, renewal_due
from federation.charter import Charter, changes, charter_digest, read_charter
from federation.edge.arguments import run_verb
from federation.edge.clock import rfc3339
from federation.edge.homes import load_identity
from federation.edge.tables import print_record, print_rows
from federation.errors import InvalidInput
from federation.words import fingerprint_words

CHARTER_HELP: Final = """usage: confide coordinator charter [VERB] [options]

Who belongs to the federation, by signed epochs. Without a verb: show.

  show   the charter in force, and what is proposed
  sign   sign the next epoch with the root key, from wherever it is kept

Each verb explains itself: confide coordinator charter VERB --help
Example: confide coordinator charter sign --root-key /media/safe/root.key
"""
CERTIFICATE_HELP: Final = """usage: confide coordinator certificate [VERB] [options]

The coordinator's own TLS certificate. Without a verb: show.

  show    its names, and when it ends
  renew   a new one, with the names that coordinator.yaml lists

Each verb explains itself: confide coordinator certificate VERB --help
Example: confide coordinator certificate renew
"""


def charter(arguments: list[str]) -> int:
    """Show the charter, or sign what is proposed."""
    return run_verb(
        "coordinator charter", {"show": _show, "sign": _sign}, arguments, help_text=CHARTER_HELP, default="show"
    )


def certificate(arguments: list[str]) -> int:
    """Show or renew the coordinator's own certificate."""
    verbs = {"show": _show_certificate, "renew": _renew}
    return run_verb("coordinator certificate", verbs, arguments, help_text=CERTIFICATE_HELP, default="show")


def _rows(shown: Charter) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "kind": "coordinator",
            "name": "coordinator",
            "operator": shown.coordinator.operator,
            "status": "active",
            "words": fingerprint_words(bytes.fromhex(shown.coordinator.identity)),
        }
    ]
    rows += [
        {
            "kind": "member",
            "name": member.site,
            "operator": member.operator,
            "status": member.status.value,
            "words": fingerprint_words(bytes.fromhex(member.identity)),
        }
        for member in shown.members
    ]
    rows += [
        {
            "kind": "person",
            "name": person.name,
            "operator": None,
            "status": person.role.value,
            "words": fingerprint_words(bytes.fromhex(person.key)),
        }
        for person in shown.people
    ]
    return rows


def _show(arguments: list[str]) -> int:
    parser = Parser(
        "charter show", about="Show the charter in force, and what is proposed.", example="charter show", lists=True
    )
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        signed, wanted = desk.store.charter(), desk.store.proposed()
    held = signed.charter if signed is not None else None
    if options.format == "table":
        if held is not None:
            say(f"Epoch {held.epoch} of the charter of {held.federation}, in force:")
            print_rows(_rows(held), ("kind", "name", "operator", "status", "words"), schema="confide/charter/v1")
        if wanted is not None:
            proposal = read_charter(wanted)
            say(f"Proposed as epoch {proposal.epoch}, until the root key signs it (`charter sign`):")
            for one in changes(held, proposal):
                say(f"    {one.what} {one.name}: {one.kind.value}")
        return 0
    proposal_changes = [] if wanted is None else changes(held, read_charter(wanted))
    shown = {
        "epoch": held.epoch if held else 0,
        "digest": charter_digest(signed.body) if signed else None,
        "charter": held.model_dump(mode="json") if held else None,
        "proposed": [{"what": one.what, "name": one.name, "change": one.kind.value} for one in proposal_changes],
    }
    print_record(shown, schema="confide/charter/v1", form=options.format)
    return 0


def _sign(arguments: list[str]) -> int:
    parser = Parser(
        "charter sign",
        about="Sign what is proposed with the federation's root key, and put it in force.",
        example="charter sign --root-key /media/safe/root.key",
    )
    parser.add_argument("--root-key", type=Path, metavar="FILE", help="the root key (default: the one in the home)")
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        wanted = desk.store.proposed()
        if wanted is None:
            say("The charter in force says all that is stored; there is nothing to sign.")
            return 0
        path: Path = options.root_key or desk.home.root_file
        if not path.exists():
            raise InvalidInput("CFD-E20", f"there is no root key at {path}")
        signed, held = desk.store.charter(), read_charter(wanted)
        for one in changes(signed.charter if signed else None, held):
            say(f"    {one.what} {one.name}: {one.kind.value}")
        desk.put_in_force(load_identity(path))
    return 0


def _certificate_record(home_flag: str | None) -> dict[str, Any]:
    with open_desk(home_flag) as desk:
        shown = desk.home.certificate()
        return {
            "file": str(desk.home.certificate_file),
            "names": names_of(shown),
            "until": rfc3339(expiry(shown)),
            "renewal_due": renewal_due(shown, now=desk.clock.now()),
            "authority_until": rfc3339(expiry(desk.home.authority_certificate())),
        }


def _show_certificate(arguments: list[str]) -> int:
    about = "Show the names and the end of the coordinator's own certificate."
    parser = Parser("certificate show", about=about, example="certificate show", lists=True)
    options = parser.parse_args(arguments)
    print_record(_certificate_record(options.home), schema="confide/certificate/v1", form=options.format)
    return 0


def _renew(arguments: list[str]) -> int:
    about = "Issue the coordinator's own certificate anew, for the address and `link.names` of coordinator.yaml."
    parser = Parser("certificate renew", about=about, example="certificate renew", lists=True)
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        issue_server_certificate(desk.home, desk.configuration, desk.clock)
    print_record(_certificate_record(options.home), schema="confide/certificate/v1", form=options.format)
    say("A running service takes it up after SIGHUP, or when it is started again.")
    return 0
