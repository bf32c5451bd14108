"""Open what a coordinator's home holds about its members, for the service and for commands alike."""

from datetime import timedelta

from sqlalchemy import Engine

from audit import events
from audit.log import AuditLog
from audit.trust_file import write_trust_policy
from coordinator.configuration import CoordinatorConfiguration
from coordinator.enrolment import Enrolment
from coordinator.membership_store import MembershipStore
from coordinator.migrations import bring_up
from federation.audit_trust import log_trusts
from federation.certificates import certificate_to_der
from federation.charter import COORDINATOR, Charter, CoordinatorKeys
from federation.edge.audit_trail import audit_keys
from federation.edge.clock import Clock
from federation.edge.configuration import from_folder, load_configuration
from federation.edge.database import open_engine, sqlite_url
from federation.edge.homes import CoordinatorHome
from federation.errors import ConfigurationWrong
from federation.membership_events import enrolled


def load(home: CoordinatorHome) -> CoordinatorConfiguration:
    """Return the configuration of `home`.

    Raises:
        ConfigurationWrong: There is no coordinator's home, or its file is wrong.
    """
    if not home.configuration_file.exists():
        raise ConfigurationWrong(
            "CFD-E22",
            f"there is no coordinator's home at {home.path}",
            hint="give --home DIR, or run `confide coordinator init` first",
        )
    return load_configuration(CoordinatorConfiguration, home.configuration_file)


def open_database(home: CoordinatorHome, configuration: CoordinatorConfiguration) -> Engine:
    """Return the coordinator's database, in the shape that this program knows."""
    wanted = configuration.database
    password = wanted.password_file
    engine = open_engine(
        wanted.url or sqlite_url(home.database),
        password_file=None if password is None else from_folder(home.configuration_file, password),
        busy_timeout_s=wanted.busy_timeout_s,
        allow_network_filesystem=wanted.allow_network_filesystem,
    )
    bring_up(engine)
    return engine


def coordinator_keys(home: CoordinatorHome, configuration: CoordinatorConfiguration) -> CoordinatorKeys:
    """Return what the charter says about the coordinator."""
    return CoordinatorKeys(
        operator=configuration.operator,
        identity=home.identity().public.hex(),
        authority=certificate_to_der(home.authority_certificate()).hex(),
        audit=audit_keys(home.audit, federation=configuration.federation, party=COORDINATOR),
    )


def open_membership(
    home: CoordinatorHome, configuration: CoordinatorConfiguration, engine: Engine, clock: Clock
) -> MembershipStore:
    """Return who takes part, as stored in `engine`."""
    return MembershipStore(
        engine,
        federation=configuration.federation,
        coordinator=coordinator_keys(home, configuration),
        root_public=home.root_public(),
        clock=clock,
    )


class RefusalsInLog:
    """Records refused enrolments in the coordinator's audit log, which the service has open."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def refused(self, site: str, code: str, request_digest: str) -> None:
        """Record that the request of `site`, which knew a token's secret, was refused with `code`."""
        actor = events.Actor(kind="party", id=site)
        self._log.append(
            enrolled(self._log.new_id, actor, site=site, certificate_digest=request_digest, keys=None, code=code)
        )


def open_enrolment(
    home: CoordinatorHome,
    configuration: CoordinatorConfiguration,
    store: MembershipStore,
    *,
    log: AuditLog,
    clock: Clock,
) -> Enrolment:
    """Return the service that answers sites which enrol or renew; refusals go to `log`."""
    return Enrolment(
        store=store,
        authority=home.certificate_authority(),
        federation=configuration.federation,
        clock=clock,
        validity=timedelta(seconds=configuration.certificates.validity_s),
        witnessed=RefusalsInLog(log),
    )


def write_trust(home: CoordinatorHome, charter: Charter, *, quorum: int | None = None) -> None:
    """Write which keys this home trusts about the audit log of each active party of `charter`."""
    for trust in log_trusts(charter, accepts=lambda _: True, quorum=quorum):
        write_trust_policy(
            home.trust,
            party=trust.party,
            log_keys=[trust.log_key],
            witnesses=trust.witnesses,
            operators=trust.operators,
            quorum=trust.quorum,
        )
