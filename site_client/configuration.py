"""`site.yaml`: everything that the site's operator sets, with its unit and its limit.

The policy (what may run, be read or leave) is a file of its own, `policy.yaml`; secrets are files in `keys/`.
"""

from typing import Annotated

from pydantic import Field

from federation.edge.audit_settings import AuditSection
from federation.edge.configuration import Settings
from federation.link.limits import LinkLimits


class CoordinatorAddress(Settings):
    """Where the coordinator is reached; the site dials out, nothing dials in."""

    address: Annotated[str, Field(description="HOST:PORT of the coordinator's link", pattern=r"^[^\s/]+:[0-9]{1,5}$")]
    name: Annotated[
        str | None, Field(description="name in the coordinator's certificate where it is not the host", max_length=253)
    ] = None


class Training(Settings):
    """What the trainers may take of this machine."""

    jobs_at_once: Annotated[int, Field(ge=1, le=64, description="phases that run side by side")] = 1
    threads: Annotated[int | None, Field(ge=1, le=1024, description="CPU threads of one trainer; default all")] = None
    limit_memory: Annotated[
        bool, Field(description="hold a trainer on the CPU to the plan's memory_gib by the operating system")
    ] = True
    accelerators: Annotated[
        int | None, Field(ge=0, le=64, description="accelerators lent to jobs; default all that torch names")
    ] = None
    lease_steps: Annotated[int, Field(ge=1, le=10_000, description="steps charged at a time")] = 10
    rest_first_s: Annotated[
        float,
        Field(ge=0, le=3600, description="seconds before a trainer that died has a successor; it doubles"),
    ] = 2.0
    rest_bound_s: Annotated[float, Field(ge=0, le=3600, description="longest such rest, seconds")] = 60.0
    start_timeout_s: Annotated[int, Field(ge=1, le=3600, description="seconds for a trainer to load its libraries")] = (
        180
    )


class Stopping(Settings):
    """How the daemon ends."""

    grace_s: Annotated[
        float, Field(ge=0, le=86_400, description="seconds that SIGTERM leaves to phases under way before they stop")
    ] = 5.0


class Approvals(Settings):
    """Jobs that wait for a person."""

    expire_days: Annotated[int, Field(ge=1, le=365, description="days after which an undecided job is refused")] = 7


class LinkBounds(LinkLimits, Settings):
    """Every limit of the link."""


class Certificates(Settings):
    """This site's certificate."""

    renew_before_s: Annotated[
        int, Field(ge=1, le=31_536_000, description="it is renewed when it has this many seconds left")
    ] = 2_592_000


class SiteConfiguration(Settings):
    """The configuration of a site."""

    site: Annotated[str, Field(description="this site's id", pattern=r"^[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?$")]
    coordinator: Annotated[CoordinatorAddress, Field(description="where the coordinator is reached")]
    training: Annotated[Training, Field(description="what trainers may take of this machine")] = Training()
    stopping: Annotated[Stopping, Field(description="how the daemon ends")] = Stopping()
    approvals: Annotated[Approvals, Field(description="jobs that wait for a person")] = Approvals()
    certificates: Annotated[Certificates, Field(description="this site's certificate")] = Certificates()
    audit: Annotated[AuditSection, Field(description="the audit log")] = AuditSection()
    link_limits: Annotated[LinkBounds, Field(description="every limit of the link")] = LinkBounds()
    log_level: Annotated[str, Field(pattern=r"^(debug|info|warning|error)$", description="least level logged")] = "info"
    allow_network_filesystem: Annotated[bool, Field(description="take the risk of databases on NFS or SMB")] = False
