"""What the site's commands share: a parser with the example of its help, and the databases as a reader sees them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from federation.edge.arguments import VerbParser
from federation.edge.tables import FORMATS
from federation.errors import ConfigurationWrong, InvalidInput

if TYPE_CHECKING:
    from federation.edge.homes import SiteHome
    from site_client.budget.store import BudgetStore
    from site_client.store import Store


class Parser(VerbParser):
    """A parser of one verb, with --home and --format; a mistake is told with the help's own example."""

    def __init__(self, verb: str, help_text: str) -> None:
        super().__init__(f"confide site {verb}", example=help_text.strip().splitlines()[-1].strip(), add_help=False)
        self.add_argument("--home", metavar="DIR")
        self.add_argument("--format", choices=FORMATS, default="table")


def wants_help(arguments: list[str]) -> bool:
    """Return whether the help was asked for."""
    return any(word in ("-h", "--help") for word in arguments)


def open_home(flag: str | None) -> "SiteHome":
    """Return the home, which must be enrolled.

    Raises:
        ConfigurationWrong: There is no site's home.
    """
    from federation.edge.configuration import resolve_home
    from federation.edge.homes import SiteHome

    home = SiteHome(resolve_home("site", flag))
    if not home.configuration_file.exists():
        raise ConfigurationWrong(
            "CFD-E22", f"{home.path} is no site's home yet", hint="run `confide site enrol` first, or give --home DIR"
        )
    return home


def open_ledger_of(home: str | None) -> "BudgetStore":
    """Return the ledger of a home, held to what its audit log has seen of it.

    Raises:
        LedgerMisused: There is no ledger yet.
    """
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import resolve_home
    from privacy.errors import LedgerMisused
    from site_client.budget.store import BudgetStore
    from site_client.budget.witnessed import recorded_in

    folder = resolve_home("site", home)
    place = folder / "ledger.db"
    if not place.exists():
        raise LedgerMisused("this site has no privacy ledger yet", hint="add a data set with `confide site data add`")
    store = BudgetStore.open(place, clock=SystemClock(), actor="operator")
    store.hold_to(lambda: recorded_in(folder))
    return store


def agreed(question: str, *, why: str) -> bool:
    """Ask on the terminal and return whether the answer is yes; `why` says what speaks against going on unasked.

    Raises:
        InvalidInput: Standard input is no terminal, so nobody can answer.
    """
    if not sys.stdin.isatty():
        raise InvalidInput("CFD-G02", f"{why}, and nobody can be asked here", hint="add --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


@contextmanager
def reading_store(home: "SiteHome") -> "Iterator[Store]":
    """Give the daemon's tables to a command that only reads, beside a running daemon or without one."""
    from federation.edge.database import open_engine, sqlite_url
    from site_client.store import Store

    store = Store(open_engine(sqlite_url(home.database)))
    try:
        yield store
    finally:
        store.close()
