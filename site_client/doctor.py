"""What can be wrong at a site, looked at one by one: each look is a name, what was found, and how to fix it."""

import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from audit.edge import clock_is_synchronised
from federation import policy as policies
from federation.certificates import expiry, time_left
from federation.edge.clock import Clock, rfc3339
from federation.edge.files import read_bytes
from federation.edge.homes import SiteHome
from federation.errors import ConfideError
from federation.link.probe import find_problem
from federation.link.route import choose_route, parse_address
from privacy.errors import PrivacyError
from site_client.budget.store import BudgetStore
from site_client.budget.witnessed import recorded_in
from site_client.configuration import SiteConfiguration
from site_client.data.prepared import is_sound
from site_client.data.registry import Registry
from site_client.machine import Machine, NoTorch

LEAST_FREE_BYTES: Final = 2 << 30
WARN_BEFORE: Final = timedelta(days=14)
PROBE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found. `how_to_fix` is empty where nothing is wrong."""

    look: str
    found: str
    how_to_fix: str = ""
    code: str = ""

    @property
    def is_problem(self) -> bool:
        """Return whether something must be done."""
        return bool(self.how_to_fix)


class Doctor:
    """Looks at one home and its surroundings; changes nothing.

    Args:
        home: The home.
        configuration: What its `site.yaml` says.
        clock: The time here.
        variables: This process's environment.
    """

    def __init__(
        self, home: SiteHome, configuration: SiteConfiguration, *, clock: Clock, variables: Mapping[str, str]
    ) -> None:
        self._home = home
        self._configuration = configuration
        self._clock = clock
        self._variables = variables

    def looks(self) -> tuple[tuple[str, Callable[[], Finding]], ...]:
        """Return every look by name, from the outside in."""
        return (
            ("name", self._name),
            ("route", self._route),
            ("connection", self._connection),
            ("certificate", self._certificate),
            ("clock", self._time),
            ("disk", self._disk),
            ("policy", self._policy),
            ("data sets", self._data),
            ("privacy ledger", self._ledger),
            ("accelerator", self._accelerator),
        )

    def examine(self) -> tuple[Finding, ...]:
        """Return what each look found; an error of ours is a finding like any other."""
        findings = []
        for name, look in self.looks():
            try:
                findings.append(look())
            except ConfideError as problem:
                findings.append(Finding(name, problem.message, problem.hint or "see the message", problem.code))
            except OSError as problem:
                findings.append(Finding(name, problem.strerror or "not possible", "see the message", "CFD-G04"))
        return tuple(findings)

    def _name(self) -> Finding:
        route = choose_route(parse_address(self._configuration.coordinator.address), self._variables)
        if route.proxy is not None:
            return Finding("name", f"{route.address.host} is looked up by the proxy")
        try:
            found = socket.getaddrinfo(route.address.host, route.address.port, type=socket.SOCK_STREAM)
        except socket.gaierror as problem:
            return Finding(
                "name",
                f"{route.address.host}: {problem.strerror}",
                "check the address in site.yaml, and this machine's name servers",
                "CFD-L01",
            )
        addresses = sorted({str(item[4][0]) for item in found})
        return Finding("name", f"{route.address.host} is {', '.join(addresses)}")

    def _route(self) -> Finding:
        return Finding(
            "route", str(choose_route(parse_address(self._configuration.coordinator.address), self._variables))
        )

    def _connection(self) -> Finding:
        route = choose_route(parse_address(self._configuration.coordinator.address), self._variables)
        authority = self._home.authority_certificate()
        problem = find_problem(route, authority, now=self._clock.now(), timeout_s=PROBE_TIMEOUT_S)
        if problem is not None:
            return Finding("connection", problem.message, problem.hint or "see the message", problem.code)
        return Finding("connection", "TLS with a certificate of the federation's authority, not intercepted")

    def _certificate(self) -> Finding:
        certificate = self._home.certificate()
        left = time_left(certificate, now=self._clock.now())
        ends = rfc3339(expiry(certificate))
        if left <= timedelta(0):
            return Finding("certificate", f"ended {ends}", "start the daemon: it renews by the identity key", "CFD-E24")
        if left <= min(WARN_BEFORE, timedelta(seconds=self._configuration.certificates.renew_before_s) / 2):
            return Finding(
                "certificate", f"ends {ends}", "start the daemon, which renews it; see its log if it does run"
            )
        return Finding("certificate", f"ends {ends}, {left.days} days left")

    def _time(self) -> Finding:
        now = rfc3339(self._clock.now())
        if clock_is_synchronised():
            return Finding("clock", f"{now}, synchronised")
        return Finding(
            "clock", f"{now}; this machine doesn't say that it is synchronised, compare it with another clock"
        )

    def _disk(self) -> Finding:
        free = shutil.disk_usage(self._home.path).free
        text = f"{free / (1 << 30):.1f} GiB free for {self._home.path}"
        if free < LEAST_FREE_BYTES:
            return Finding("disk", text, f"make room: at least {LEAST_FREE_BYTES >> 30} GiB", "CFD-G04")
        return Finding("disk", text)

    def _policy(self) -> Finding:
        policy = policies.read(read_bytes(self._home.policy_file), source=str(self._home.policy_file))
        return Finding("policy", f"{len(policy.rules)} rules, default {policy.default}")

    def _data(self) -> Finding:
        registry = Registry.open(self._home.path)
        try:
            data_sets = registry.all()
            newest = {item.name: registry.newest(item.name).version for item in data_sets}
        finally:
            registry.close()
        if not data_sets:
            return Finding("data sets", "none", "confide site data add NAME …", "CFD-R66")
        damaged = [item.name for item in data_sets if not is_sound(self._home.path, item.name, newest[item.name])]
        if damaged:
            names = ", ".join(damaged)
            return Finding("data sets", f"prepared rows missing or damaged: {names}", "confide site data verify NAME")
        moved = [item.name for item in data_sets if not item.path.exists()]
        note = f"; the files of {', '.join(moved)} are not at their path now" if moved else ""
        return Finding("data sets", ", ".join(item.name for item in data_sets) + note)

    def _ledger(self) -> Finding:
        if not self._home.ledger.exists():
            return Finding("privacy ledger", "none yet: it begins with the first data set")
        try:
            store = BudgetStore.open(self._home.ledger, clock=self._clock)
            try:
                problem = store.hold_to(lambda: recorded_in(self._home.path))
                entries = store.head().seq + 1
            finally:
                store.close()
        except PrivacyError as broken:
            return Finding("privacy ledger", broken.message, broken.hint, broken.code)
        if problem is not None:
            way_out = f"{problem.hint}: confide site budget recover"
            return Finding("privacy ledger", f"{problem.message}; no job is admitted", way_out, problem.code)
        return Finding("privacy ledger", f"{entries} entries, as the audit log has seen it")

    def _accelerator(self) -> Finding:
        machine = Machine(self._home.path / "cache", self._variables, accelerators=None)
        try:
            found = machine.accelerators()
        except NoTorch as problem:
            return Finding(
                "accelerator", problem.message, "install confide[site], or try on a quiet machine", "CFD-R54"
            )
        return Finding("accelerator", f"{found.device}, torch {found.torch}")
