"""The opened home of a site: its files, databases, keys and log as one value that daemon and commands work with.

Opening refuses what must not be worked with: a home that another process uses, a ledger that was altered, a log that
is shorter than its checkpoint. What can change while the daemon runs (policy, charter, data sets) is read through
methods here.
"""

import hashlib
import os
import pwd
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from audit import events
from audit.clock import microseconds
from audit.log import AuditLog
from federation import policy as policies
from federation.charter import AcceptedCharter
from federation.contract import canonical_bytes, digest
from federation.edge.audit_settings import end_this_process
from federation.edge.clock import Clock
from federation.edge.configuration import load_configuration
from federation.edge.configuration_trail import record_settings
from federation.edge.database import open_engine, sqlite_url
from federation.edge.files import HomeLock, make_folder, read_bytes
from federation.edge.homes import SiteHome
from federation.errors import ConfideError
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.messages import DatasetNotice
from federation.policy import Policy
from privacy.accounting.convert import nano
from site_client.budget.store import BudgetStore
from site_client.budget.witnessed import recorded_in
from site_client.charter_store import CharterStore
from site_client.configuration import SiteConfiguration
from site_client.data.registry import Registry
from site_client.offers import Candidate, Known
from site_client.records import DAEMON, Records
from site_client.store import Store
from site_client.sum_journal import SumJournal

MAX_POLICY_BYTES: Final = 1 << 20
UNBOUNDED_NANO: Final = 2**53 - 1
"""What stands for an epsilon without a bound in an entry whose kind says `unbounded`."""


def account_name(uid: int) -> str:
    """Return the name of an account of this machine, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def own_account() -> str:
    """Return the account that runs this process."""
    return account_name(os.getuid())


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """The policy with the digest of the file that it was read from."""

    policy: Policy
    digest: str


class OpenSite:
    """The opened home; a context manager that closes everything again.

    Args:
        home: The home.
        clock: Wall and monotonic time.
        process: ``daemon`` holds the home for its life and serves other processes; ``cli`` is a short command while no
            daemon runs.

    Raises:
        ConfigurationWrong: The home isn't enrolled, is used by another process, or a file is wrong.
        AuditError: The log is damaged, behind or frozen.
        PrivacyError: The ledger is broken.
    """

    def __init__(self, home: SiteHome, *, clock: Clock, process: Literal["daemon", "cli"]) -> None:
        self.home: Final = home
        self.clock: Final = clock
        self.configuration: Final = load_configuration(SiteConfiguration, home.configuration_file)
        self._exit = ExitStack()
        try:
            self._exit.enter_context(HomeLock(home.lock_folder))
            for folder in home.folders():
                make_folder(folder)
            self.identity: Final[IdentityKey] = home.identity()
            network = self.configuration.allow_network_filesystem
            serves = process == "daemon"
            log = AuditLog.open(
                home.audit,
                clock=clock,
                process=process,
                settings=self.configuration.audit.log_settings(allow_network_filesystem=network),
                serve_socket=serves,
                on_broken=end_this_process if serves else None,
            )
            self._closing: Literal["drain", "signal", "error"] = "drain"
            self._exit.callback(lambda: log.close(self._closing))
            self.records: Final = Records(log)
            engine = open_engine(sqlite_url(home.database), allow_network_filesystem=network)
            self.store: Final = Store(engine)
            self._exit.callback(self.store.close)
            self.sums: Final = SumJournal(engine)
            self.registry: Final = Registry(engine)
            self.ledger: Final = BudgetStore.open(home.ledger, clock=clock, actor="service")
            self._exit.callback(self.ledger.close)
            self.ledger_problem: Final = self.ledger.hold_to(lambda: recorded_in(home.path))
            self.blobs: Final = BlobStore(home.blobs)
            if process == "daemon":
                record_settings(home.path, self.configuration, append=log.append, new_id=log.new_id)
            self._policy = self._read_policy()
            self._charter = self._charters().loaded()
            self._charters().write_trust()  # the policy file says whom this site accepts
        except BaseException:
            self._closing = "error"
            self._exit.close()
            raise

    @property
    def site(self) -> str:
        """Return this site's id."""
        return self.configuration.site

    def close(self, reason: Literal["drain", "signal", "error"] = "drain") -> None:
        """Close everything, the log last but for the lock; again is harmless."""
        self._closing = reason
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("drain" if kind is None else "error")

    def now_us(self) -> int:
        """Return the wall time as microseconds since 1970, UTC."""
        return microseconds(self.clock.now())

    # --- policy -----------------------------------------------------------------------------------------------

    @property
    def policy(self) -> PolicyInForce:
        """Return the policy in force."""
        return self._policy

    def _read_policy(self) -> PolicyInForce:
        content = read_bytes(self.home.policy_file, limit_bytes=MAX_POLICY_BYTES)
        return PolicyInForce(policies.read(content, source=str(self.home.policy_file)), _sha256(content))

    def reload_policy(self, actor: events.Actor = DAEMON) -> bool:
        """Take the policy file over as it is now, and record that it changed or can't be; returns whether it did.

        Raises:
            ConfigurationWrong: The file is wrong; the policy in force stays in force.
        """
        content = read_bytes(self.home.policy_file, limit_bytes=MAX_POLICY_BYTES)
        known = self.store.policies()
        before = known[-1].digest if known else _sha256(b"")
        try:
            found = PolicyInForce(policies.read(content, source=str(self.home.policy_file)), _sha256(content))
        except ConfideError as problem:
            self.records.policy_changed(actor, before=before, after=_sha256(content), code=problem.code)
            raise
        if before != found.digest:
            self.records.policy_changed(actor, before=before, after=found.digest)
            self.store.add_policy(digest=found.digest, content=content, taken_us=self.now_us())
        self._policy = found
        self._charter = self._charters().loaded()
        self._charters().write_trust()
        return before != found.digest

    # --- charter ----------------------------------------------------------------------------------------------

    def _charters(self) -> CharterStore:
        return CharterStore(
            self.home,
            own_site=self.site,
            accept_all=self._policy.policy.members == "accept",
            witness_quorum=self.configuration.audit.witness_quorum,
        )

    @property
    def charter(self) -> AcceptedCharter:
        """Return the newest epoch that this site holds, with its operator's answers as of the last reading."""
        return self._charter

    def read_charter(self) -> AcceptedCharter:
        """Return the charter with the operator's newest answers, which a command may have written meanwhile."""
        self._charter = self._charters().loaded()
        return self._charter

    def receive_charter(self, body: bytes, signature: bytes) -> None:
        """Take over the next epoch.

        Raises:
            ConfideError: It isn't the root key's, or doesn't follow; nothing was taken.
        """
        self._charters().receive(body, signature, record=self._append_all, actor=DAEMON)
        self._charter = self._charters().loaded()

    def _append_all(self, drafts: list[events.Draft]) -> None:
        for draft in drafts:
            self.records.log.append(draft)

    # --- data sets and budget ---------------------------------------------------------------------------------

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the data sets that may serve a job, each at its newest version."""
        found = []
        for data_set in self.registry.all():
            newest = self.registry.newest(data_set.name)
            found.append(
                Candidate(
                    name=data_set.name,
                    version=newest.version,
                    contract=data_set.contract,
                    contract_digest=digest(data_set.contract),
                    units_declared=newest.units_declared,
                    unit=data_set.unit,
                    held_out_public=data_set.held_out_public,
                    delta=data_set.delta,
                )
            )
        return tuple(found)

    def known(self) -> Known:
        """Return what an offer is judged by now."""
        return Known(self.site, self.read_charter(), self._policy.policy, self.candidates(), self.clock.now())

    def notices(self) -> tuple[tuple[DatasetNotice, ...], tuple[str, ...]]:
        """Return what the hello says of the data sets, and their contracts as canonical documents."""
        candidates = self.candidates()
        notices = tuple(
            DatasetNotice(
                contract=item.contract.name,
                contract_digest=item.contract_digest,
                units_declared=item.units_declared,
                held_out_public=item.held_out_public,
            )
            for item in candidates
        )
        contracts = {item.contract_digest: canonical_bytes(item.contract).decode() for item in candidates}
        return notices[:256], tuple(contracts.values())[:64]

    def unbounded_part(self, dataset: str, unit: str) -> Mapping[str, object]:
        """Return the `budget` part of an entry about a release that no epsilon bounds."""
        figures = self.ledger.show(dataset)
        head = self.ledger.head()
        return {
            "population": figures.population,
            "policy": figures.policies[0].policy,
            "trust": "local",
            "unit": unit,
            "eps_nano": UNBOUNDED_NANO,
            "delta_e15": 0,
            "total_eps_nano": nano(figures.policies[0].epsilon_spent),
            "left_eps_nano": 0,
            "head": {"seq": max(0, head.seq), "hash": f"sha256:{head.hash}"},
        }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
