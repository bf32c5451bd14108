"""`coordinator.yaml`: everything that the coordinator's operator sets, with its unit and its limit.

Who takes part is in the charter, secrets are files in `keys/`, `root/` and `tokens/`. `init` writes the file from the
descriptions below.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from federation.charter import FederationName, Operator
from federation.edge.configuration import Settings


class Link(Settings):
    """The one port that sites dial."""

    listen: Annotated[str, Field(description="ADDRESS:PORT to listen on, inside this machine")] = "0.0.0.0:9443"
    names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(
            description="more DNS names and IP addresses by which sites call the coordinator, for its certificate; "
            "then run `confide coordinator certificate renew`"
        ),
    ] = ()


class Certificates(Settings):
    """Certificates that the federation's authority issues."""

    validity_s: Annotated[int, Field(ge=30, le=157_680_000, description="life of a new certificate, seconds")] = (
        7_776_000
    )
    renew_before_s: Annotated[
        int, Field(ge=1, le=31_536_000, description="a certificate is renewed when it has this many seconds left")
    ] = 2_592_000


class Database(Settings):
    """Where jobs, rounds and members are kept."""

    url: Annotated[
        str | None,
        Field(description="postgresql+psycopg://USER@HOST/NAME, without a password; default: a file in the home"),
    ] = None
    password_file: Annotated[Path | None, Field(description="file (0600) that holds the password")] = None
    busy_timeout_s: Annotated[int, Field(ge=1, le=600, description="seconds that a writer waits for another")] = 30
    allow_network_filesystem: Annotated[bool, Field(description="take the risk of a database file on NFS or SMB")] = (
        False
    )


class CoordinatorConfiguration(Settings):
    """The configuration of a coordinator."""

    federation: Annotated[FederationName, Field(description="name of the federation; it never changes")]
    operator: Annotated[Operator, Field(description="the organisation that runs this coordinator")]
    address: Annotated[
        str, Field(description="HOST:PORT under which sites reach this coordinator", pattern=r"^[^\s/]+:[0-9]{1,5}$")
    ]
    api_listen: Annotated[
        str,
        Field(
            description="ADDRESS:PORT of the API and the console, inside this machine", pattern=r"^[^\s/]+:[0-9]{1,5}$"
        ),
    ] = "127.0.0.1:8443"
    link: Annotated[Link, Field(description="the one port that sites dial")] = Link()
    certificates: Annotated[Certificates, Field(description="certificates that this coordinator issues")] = (
        Certificates()
    )
    database: Annotated[Database, Field(description="where jobs, rounds and members are kept")] = Database()
    log_level: Annotated[str, Field(pattern=r"^(debug|info|warning|error)$", description="least level logged")] = "info"
