"""What the commands about members share: an open home, a decision with its entry in the log, a charter put in force."""

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from audit import events
from coordinator import membership_home
from coordinator.configuration import CoordinatorConfiguration
from coordinator.membership import Membership
from coordinator.membership_store import Change, MembershipStore, SignedCharter
from federation.charter import read_charter
from federation.edge.arguments import VerbParser
from federation.edge.audit_trail import person as acting
from federation.edge.audit_trail import record
from federation.edge.clock import Clock, SystemClock
from federation.edge.configuration import resolve_home
from federation.edge.homes import CoordinatorHome, load_identity
from federation.edge.tables import FORMATS
from federation.errors import InvalidInput
from federation.identity import IdentityKey
from federation.membership_events import charter_entries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """A coordinator's home, open for one command by one person."""

    home: CoordinatorHome
    configuration: CoordinatorConfiguration
    store: MembershipStore
    clock: Clock
    actor: events.Actor

    def new_id(self) -> str:
        """Return a fresh id of an entry."""
        return events.new_event_id(self.clock, secrets.token_bytes)

    def record(self, *drafts: events.Draft) -> None:
        """Put entries into the audit log, durably."""
        record(self.home.audit, self.clock, *drafts)

    def act(
        self,
        decision: Callable[[Membership], tuple[Iterable[Change], T]],
        entries: Callable[[T], Iterable[events.Draft]],
    ) -> T:
        """Decide, record what was decided, then do it; nothing is recorded or done if the decision raises."""
        _, foreseen = decision(self.store.membership())
        self.record(*entries(foreseen))
        return self.store.decide(decision)

    def put_in_force(self, root: IdentityKey | None = None) -> SignedCharter | None:
        """Sign what is proposed if the root key is at hand, else say how; return the epoch that is new.

        Raises:
            NotAuthenticated: `root` is not this federation's root key; what is proposed stays proposed.
        """
        wanted = self.store.proposed()
        if wanted is None:
            return None
        if root is None and not self.home.root_file.exists():
            epoch = read_charter(wanted).epoch
            say(f"Epoch {epoch} of the charter waits for the root key, which is not in this home. With it, run:")
            say("    confide coordinator charter sign --root-key FILE")
            return None
        held = self.store.charter()
        signed = self.store.sign(root or load_identity(self.home.root_file), wanted)
        entries = charter_entries(
            self.actor,
            old=held.body if held else None,
            new=signed.body,
            old_charter=held.charter if held else None,
            charter=signed.charter,
            at=None,
        )
        self.record(*entries)
        membership_home.write_trust(self.home, signed.charter, quorum=self.configuration.audit.witness_quorum)
        say(f"Epoch {signed.charter.epoch} of the charter is in force.")
        return signed


@contextmanager
def open_desk(home_flag: str | None) -> Iterator[Desk]:
    """Open the home for the person who runs this command.

    Raises:
        ConfigurationWrong: There is no home there, or something in it is wrong.
    """
    home = CoordinatorHome(resolve_home("coordinator", home_flag))
    configuration = membership_home.load(home)
    clock = SystemClock()
    engine = membership_home.open_database(home, configuration)
    try:
        store = membership_home.open_membership(home, configuration, engine, clock)
        yield Desk(home, configuration, store, clock, acting(home.audit, clock))
    finally:
        engine.dispose()


class Parser(VerbParser):
    """The arguments of one verb about members, with --home."""

    def __init__(self, command: str, *, about: str, example: str, lists: bool = False) -> None:
        example = f"confide coordinator {example}"
        super().__init__(f"confide coordinator {command}", about=about, example=example, epilog=f"Example: {example}")
        self.add_argument("--home", metavar="DIR", help="the coordinator's home (default: CONFIDE_HOME, else XDG)")
        if lists:
            self.add_argument("--format", choices=FORMATS, default="table", help="how to print (default: table)")


def say(text: str) -> None:
    """Say something to the person; results go to standard output instead."""
    sys.stderr.write(f"{text}\n")


def checked(kind: Any, text: str, *, what: str, hint: str) -> str:
    """Return `text` if it fits the grammar `kind`.

    Raises:
        InvalidInput: It doesn't.
    """
    try:
        value: str = TypeAdapter(kind).validate_python(text)
    except ValidationError:
        raise InvalidInput("CFD-G02", f"'{text[:64]}' can't be {what}", hint=hint) from None
    return value
