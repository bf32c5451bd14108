"""`coordinator.yaml`: everything that the coordinator's operator sets, with its unit and its limit.

Who takes part is in the charter, secrets are files in `keys/`, `root/` and `tokens/`. `init` writes the file from the
descriptions below.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from federation.charter import FederationName, Operator
from federation.edge.audit_settings import AuditSection
from federation.edge.configuration import Settings
from federation.link.limits import LinkLimits
from federation.messages import SiteName


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


class LinkBounds(LinkLimits, Settings):
    """Every limit of the link."""


class Jobs(Settings):
    """How jobs wait, start and are offered."""

    jobs_per_site: Annotated[int, Field(ge=1, le=64, description="jobs that one site works on at once")] = 1
    places: Annotated[
        dict[SiteName, Annotated[int, Field(ge=1, le=64)]],
        Field(description="another number of jobs at once for single sites, such as {cleveland: 2}"),
    ] = {}  # noqa: RUF012 (the model is frozen, and pydantic copies defaults)
    offer_grace_s: Annotated[
        float,
        Field(
            ge=0,
            le=604_800,
            description="seconds that an offer keeps its sites' places, and that a quorum waits for the rest",
        ),
    ] = 30.0
    offer_deadline_s: Annotated[
        float, Field(gt=0, le=31_536_000, description="seconds that an offer stays open for people to approve it")
    ] = 604_800.0
    preview_s: Annotated[float, Field(gt=0, le=600, description="seconds that sites have to answer a preview")] = 30.0
    reconnect_grace_s: Annotated[
        float,
        Field(ge=0, le=600, description="seconds that a preview waits for a site whose link was lost a moment ago"),
    ] = 10.0


class Rounds(Settings):
    """The coordinator's own bounds of a round; everything else stands in the plan."""

    max_update_norm: Annotated[
        float | None, Field(gt=0, description="largest L2 norm of an update that is let in; default: no bound")
    ] = None
    deadline_scale: Annotated[
        float, Field(gt=0, le=1000, description="factor on the deadlines of plans, for slow networks and for tests")
    ] = 1.0
    lost_after_s: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="how long a link is away before a phase of a secure sum goes on without its site, where the "
            "sum bears the loss",
        ),
    ] = 10.0


class Retention(Settings):
    """What stays on disk. Updates go when their round is released; means stay until the job's sites have its end."""

    models_count: Annotated[
        int, Field(ge=1, le=1_000_000, description="newest models of a job that stay, beside the initial one")
    ] = 1000


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
    audit: Annotated[AuditSection, Field(description="the audit log")] = AuditSection()
    jobs: Annotated[Jobs, Field(description="how jobs wait, start and are offered")] = Jobs()
    rounds: Annotated[Rounds, Field(description="the coordinator's own bounds of a round")] = Rounds()
    retention: Annotated[Retention, Field(description="what stays on disk")] = Retention()
    link_limits: Annotated[LinkBounds, Field(description="every limit of the link")] = LinkBounds()
    log_level: Annotated[str, Field(pattern=r"^(debug|info|warning|error)$", description="least level logged")] = "info"
