"""`confide coordinator init`: make a federation's keys, authority, database, log and first charter epoch.

Each step leaves alone what an earlier, interrupted run has made; the configuration file is written last and says that
the home is complete.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from audit.places import Places
from coordinator.configuration import CoordinatorConfiguration, Link
from coordinator.membership_home import coordinator_keys, open_database, open_membership, write_trust
from coordinator.ports import free_place
from coordinator.server_certificate import issue_server_certificate
from federation.certificates import certificate_to_pem, new_authority, new_tls_key, tls_key_to_pem
from federation.charter import COORDINATOR
from federation.edge.arguments import VerbParser
from federation.edge.audit_trail import begin_log, person, record
from federation.edge.clock import Clock, SystemClock
from federation.edge.configuration import commented_yaml, resolve_home
from federation.edge.files import make_folder, write_whole
from federation.edge.homes import CoordinatorHome, load_identity, load_tls_key
from federation.edge.tables import print_record
from federation.errors import InvalidInput
from federation.identity import IdentityKey
from federation.link.route import parse_address
from federation.membership_events import charter_entries
from federation.words import fingerprint_words

HELP: Final = """usage: confide coordinator init [--home DIR] --name NAME --address HOST:PORT [options]

Make a new federation: keys, certificate authority, database, audit log, configuration, first charter epoch.

  --home DIR              where (default: CONFIDE_HOME, else the XDG place)
  --name NAME             the federation's name for ever, such as heart.example.org
  --address HOST:PORT     how sites reach this coordinator; HOST is a DNS name or an IP address
  --operator ORG          the organisation that runs it (default: NAME)
  --listen WHERE          ADDRESS:PORT to listen on on this machine (default: 0.0.0.0 and the port of --address)
  --api-listen WHERE      ADDRESS:PORT of the API and the console on this machine
                          (default: 127.0.0.1 and 8443, or the next port that is free)
  --format table|json

Example: confide coordinator init --name heart.example.org --address coordinator.example.org:9443
"""
_NEXT: Final = """
The federation's root key is {root}. It signs the charter and nothing else, and `serve` never
opens it. Best keep it offline: move the file to a medium in a safe, and give it when members change:
    confide coordinator charter sign --root-key FILE

Nobody may submit jobs yet. Next, with a name and an organisation of yours:
    confide coordinator user add NAME --role coordinator{where}
    confide coordinator serve{where}
    confide coordinator invite SITE --operator ORGANISATION{where}
"""


def init(arguments: list[str]) -> int:
    """Make a coordinator's home."""
    parser = VerbParser("confide coordinator init", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--home")
    parser.add_argument("--name")
    parser.add_argument("--address")
    parser.add_argument("--operator")
    parser.add_argument("--listen")
    parser.add_argument("--api-listen")
    parser.add_argument("--format", choices=("table", "json", "jsonl"), default="table")
    options = parser.parse_args(arguments)
    if options.help:
        sys.stdout.write(HELP)
        return 0
    if not options.name or not options.address:
        raise InvalidInput("CFD-G02", "init needs --name and --address", hint=HELP.splitlines()[0])
    home = CoordinatorHome(resolve_home("coordinator", options.home))
    if home.configuration_file.exists():
        raise InvalidInput("CFD-E21", f"there is a coordinator's home at {home.path} already; nothing was changed")
    configuration = _configuration(options)
    clock = SystemClock()
    for folder in home.folders():
        make_folder(folder)
    _make_keys(home, configuration, clock)
    _make_database(home, configuration, clock)
    title = f"The coordinator of {configuration.federation}."
    write_whole(home.configuration_file, commented_yaml(configuration, title=title).encode())
    _tell(home, configuration, options.format)
    where = "" if options.home is None else f" --home {shlex.quote(options.home)}"
    sys.stderr.write(_NEXT.format(root=home.root_file, where=where))
    return 0


def _configuration(options: argparse.Namespace) -> CoordinatorConfiguration:
    address = parse_address(options.address)
    values = {
        "federation": options.name,
        "operator": options.operator or options.name,
        "address": str(address),
        "link": Link(listen=options.listen or f"0.0.0.0:{address.port}"),
    }
    values["api_listen"] = options.api_listen or free_place(not_port=address.port)
    try:
        return CoordinatorConfiguration.model_validate(values)
    except ValueError:
        raise InvalidInput(
            "CFD-G02",
            f"'{options.name}' can't be a federation's name, or another value of this command is malformed",
            hint="a federation's name is lower case, such as heart.example.org, with at most 63 characters",
        ) from None


def _identity(path: Path) -> IdentityKey:
    if not path.exists():
        write_whole(path, IdentityKey.generate().to_pem(), replace=False)
    return load_identity(path)


def _make_keys(home: CoordinatorHome, configuration: CoordinatorConfiguration, clock: Clock) -> None:
    root = _identity(home.root_file)
    _identity(home.identity_file)
    write_whole(home.root_public_file, root.public.hex().encode() + b"\n")
    for path in (home.authority_key_file, home.tls_file):
        if not path.exists():
            write_whole(path, tls_key_to_pem(new_tls_key()), replace=False)
    key = load_tls_key(home.authority_key_file)
    if not home.authority_file.exists():
        certificate = new_authority(configuration.federation, key, now=clock.now())
        write_whole(home.authority_file, certificate_to_pem(certificate))
    issue_server_certificate(home, configuration, clock)


def _make_database(home: CoordinatorHome, configuration: CoordinatorConfiguration, clock: Clock) -> None:
    if not Places(home.audit).is_begun:
        begin_log(home.audit, federation=configuration.federation, party=COORDINATOR, clock=clock)
    engine = open_database(home, configuration)
    try:
        store = open_membership(home, configuration, engine, clock)
        store.decide(lambda _: ((), None))
        proposed = store.proposed()
        if proposed is not None:
            signed = store.sign(load_identity(home.root_file), proposed)
            entries = charter_entries(
                person(home.audit, clock),
                old=None,
                new=signed.body,
                old_charter=None,
                charter=signed.charter,
                at=None,
            )
            record(home.audit, clock, *entries)
            write_trust(home, signed.charter, quorum=configuration.audit.witness_quorum)
    finally:
        engine.dispose()


def _tell(home: CoordinatorHome, configuration: CoordinatorConfiguration, form: str) -> None:
    authority = home.authority_certificate().public_key()
    spki = authority.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    shown = {
        "federation": configuration.federation,
        "home": str(home.path),
        "address": configuration.address,
        "api": configuration.api_listen,
        "identity_words": fingerprint_words(home.identity().public),
        "root_words": fingerprint_words(home.root_public()),
        "authority_words": fingerprint_words(spki),
        "audit_log_key": coordinator_keys(home, configuration).audit.log,
    }
    print_record(shown, schema="confide/coordinator-home/v1", form="json" if form != "table" else "table")
