"""Who speaks when a command runs in a coordinator's home: the person's signing key, API token, and where the API is.

A person is named by `--as NAME`; a home with one person needs no name. `--key`, `--token-file` and
`--api` stand in for the files of a home, for people who work on another machine than the coordinator's.
"""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from coordinator.api_client import Federation
from federation.edge.arguments import VerbParser
from federation.edge.configuration import load_configuration, resolve_home
from federation.edge.files import read_secret
from federation.edge.homes import CoordinatorHome, load_identity
from federation.errors import ConfigurationWrong, InvalidInput
from federation.identity import IdentityKey


@dataclass(frozen=True, slots=True)
class Person:
    """A person who runs a command: a name, and where the files are."""

    name: str
    key_file: Path
    token_file: Path
    url: str

    def federation(self) -> Federation:
        """Return the coordinator's API as this person sees it."""
        token = read_secret(self.token_file).decode("utf-8", "replace").strip("\ufeff \t\r\n")
        return Federation(self.url, token)

    def key(self) -> IdentityKey:
        """Return the key with which this person signs plans."""
        return load_identity(self.key_file)


def add_person_options(parser: VerbParser) -> None:
    """Add the options that say who speaks and to whom."""
    group = parser.add_argument_group("who speaks, and to which coordinator")
    group.add_argument("--home", help="the coordinator's home (default: CONFIDE_HOME, else the XDG place)")
    group.add_argument("--as", dest="person", metavar="NAME", help="the person (default: the only one in the home)")
    group.add_argument("--api", metavar="URL", help="the API (default: the home's own)")
    group.add_argument("--key", type=Path, metavar="FILE", help="signing key (default: people/NAME.key in the home)")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="API token (default: tokens/NAME.token)")


def person_of(options: argparse.Namespace) -> Person:
    """Return who speaks.

    Raises:
        InvalidInput: The home has no person, or several and none was named.
        ConfigurationWrong: There is no coordinator's home there.
    """
    if options.api and options.token_file:
        name = options.person or options.token_file.stem
        return Person(name, options.key or Path(f"{name}.key"), options.token_file, options.api)
    home = CoordinatorHome(resolve_home("coordinator", options.home))
    if not home.configuration_file.exists():
        text = f"there is no coordinator's home at {home.path}"
        raise ConfigurationWrong("CFD-E22", text, hint="give --home DIR, or run `confide coordinator init`")
    name = options.person or _only_person(home, options.home)
    return Person(
        name,
        options.key or home.person_key_file(name),
        options.token_file or home.token_file(name),
        options.api or api_url(home),
    )


def _only_person(home: CoordinatorHome, given: str | None) -> str:
    names = sorted(path.stem for path in (home.path / "tokens").glob("*.token"))
    if len(names) == 1:
        return names[0]
    if not names:
        text = f"nobody may use the API of {home.path} yet"
        where = "" if given is None else f" --home {shlex.quote(given)}"
        raise InvalidInput("CFD-J24", text, hint=f"confide coordinator user add NAME --role coordinator{where}")
    raise InvalidInput("CFD-J24", f"{home.path} has the files of {', '.join(names)}", hint="name one: --as NAME")


def api_url(home: CoordinatorHome) -> str:
    """Return where the coordinator of `home` serves its API, for a client on the same machine."""
    from coordinator.configuration import CoordinatorConfiguration

    configuration = load_configuration(CoordinatorConfiguration, home.configuration_file)
    host, _, port = configuration.api_listen.rpartition(":")
    host = host.strip("[]")
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
