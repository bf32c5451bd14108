"""`confide coordinator user add | list | remove`: people who may submit, audit or look, with a key and an API token."""

import secrets
from collections.abc import Callable, Iterable
from typing import Final

from audit import events
from coordinator.membership import Membership, add_person, remove_person
from coordinator.membership_desk import Desk, Parser, checked, open_desk, say
from coordinator.membership_store import Change, PutPerson, RemovePerson, api_token_digest
from federation.charter import Person, PersonName, Role
from federation.edge.arguments import run_verb
from federation.edge.audit_trail import person as named
from federation.edge.files import remove_file, write_whole
from federation.edge.homes import load_identity
from federation.edge.tables import print_record, print_rows
from federation.errors import InvalidInput
from federation.identity import IdentityKey
from federation.words import fingerprint_words

TOKEN_PREFIX: Final = "cfu1."  # noqa: S105 (how a token begins, not a token)

HELP: Final = """usage: confide coordinator user [VERB] [options]

People who may submit jobs, ask the audit log, or look. Without a verb: list.

  list     who they are, and whether the charter in force has them
  add      a person with a role; makes a signing key and an API token
  remove   end what a person may do

Each verb explains itself: confide coordinator user VERB --help
Example: confide coordinator user add alice@example.org --role coordinator
"""


def user(arguments: list[str]) -> int:
    """Add, list or remove people."""
    return run_verb("coordinator user", _VERBS, arguments, help_text=HELP, default="list")


def _list(arguments: list[str]) -> int:
    parser = Parser("user list", about="List the people.", example="user list", lists=True)
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:
        signed = desk.store.charter()
        rows = [
            {
                "name": one.name,
                "role": one.role.value,
                "in_force": signed is not None and signed.charter.person(one.name) == one,
                "key": one.key,
            }
            for one in desk.store.membership().people
        ]
    print_rows(rows, ("name", "role", "in_force"), schema="confide/people/v1", form=options.format)
    return 0


def _add(arguments: list[str]) -> int:
    parser = Parser(
        "user add",
        about="Let a person use the console and the API; with the role coordinator, also submit jobs. Makes a signing "
        "key and an API token, each in a file that you hand over in confidence.",
        example="user add alice@example.org --role coordinator",
        lists=True,
    )
    parser.add_argument("name", metavar="NAME", help="such as alice@example.org")
    parser.add_argument("--role", required=True, choices=[role.value for role in Role], help="what the person may do")
    options = parser.parse_args(arguments)
    hint = "letters, digits and . _ @ + -, at most 64, such as alice@example.org"
    name = checked(PersonName, options.name, what="a person's name", hint=hint)
    with open_desk(options.home) as desk:
        key = _key(desk, name)
        one = Person(name=name, key=key.public.hex(), role=Role(options.role))
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)

        def decision(membership: Membership) -> tuple[Iterable[Change], None]:
            return [PutPerson(add_person(membership, one), api_token_digest(token))], None

        desk.act(decision, lambda _: [_entry(desk, events.UserAdded, one)])
        write_whole(desk.home.token_file(name), token.encode() + b"\n")
        desk.put_in_force()
        shown = {
            "name": name,
            "role": one.role.value,
            "key_words": fingerprint_words(key.public),
            "key_file": str(desk.home.person_key_file(name)),
            "token_file": str(desk.home.token_file(name)),
        }
    print_record(shown, schema="confide/person/v1", form=options.format)
    say("Both files speak for this person: hand them over in confidence, then remove them here.")
    return 0


def _key(desk: Desk, name: str) -> IdentityKey:
    """Return the person's key; one that an interrupted run left in the home is used again."""
    path = desk.home.person_key_file(name)
    if any(one.name == name for one in desk.store.membership().people):
        raise InvalidInput("CFD-E23", f"there is a person {name} already")
    if not path.exists():
        write_whole(path, IdentityKey.generate().to_pem(), replace=False)
    return load_identity(path)


def _entry(desk: Desk, kind: type[events.UserAdded | events.UserRemoved], one: Person) -> events.Draft:
    pseudonym = named(desk.home.audit, desk.clock, login=one.name).id
    return kind(id=desk.new_id(), decision="allowed", actor=desk.actor, user=pseudonym, role=one.role.value)


def _remove(arguments: list[str]) -> int:
    parser = Parser(
        "user remove",
        about="End what a person may do, at once; removes both files.",
        example="user remove bob@example.org",
    )
    parser.add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)
    with open_desk(options.home) as desk:

        def decision(membership: Membership) -> tuple[Iterable[Change], Person]:
            gone = remove_person(membership, options.name)
            return [RemovePerson(gone.name)], gone

        gone = desk.act(decision, lambda one: [_entry(desk, events.UserRemoved, one)])
        remove_file(desk.home.token_file(gone.name))
        remove_file(desk.home.person_key_file(gone.name))
        desk.put_in_force()
    say(f"{options.name} may do nothing here any more.")
    return 0


_VERBS: Final[dict[str, Callable[[list[str]], int]]] = {"list": _list, "add": _add, "remove": _remove}
