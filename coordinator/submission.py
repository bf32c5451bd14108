"""From what a person hands in to a job in the queue: plan and contract found, resolved, checked, recorded, stored.

A contract is taken from the submission itself, else from the home's folder `contracts`, else from the invited sites'
announcements, which must agree on it; the plan names its digest, so nobody can put another one under the same name.
A plan is signed by a person of the charter with the role coordinator; a plan from the console, which only the API's
login vouches for, carries the service's signature and says so.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from coordinator.recording import AuditRecorder
from coordinator.records import JobRecord, NewJob
from coordinator.round_work import FirstModel
from coordinator.store import Store
from coordinator.views import ValidationView
from federation import canonical, contract, plan
from federation.charter import Charter, Role
from federation.contract import DataContract
from federation.edge.documents import parse_document
from federation.errors import ConfideError, InvalidInput, NotAuthenticated
from federation.identity import IdentityKey
from federation.messages import Hello, JobId, MemberStatus, SiteId, decode_body
from federation.models import layout
from federation.plan import Plan
from federation.tensors import Manifest

Source = Literal["submission", "coordinator", "sites"]
MAX_CONTRACT_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class FoundContract:
    """A data contract, its canonical bytes, and where it came from."""

    contract: DataContract
    data: bytes
    source: Source

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical bytes."""
        return canonical.digest(self.data)


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A plan with every open field filled in: `data` is what its submitter signs."""

    plan: Plan
    data: bytes
    digest: str
    contract: bytes
    found: FoundContract


class Submissions:
    """The way into the queue.

    Args:
        store: Where jobs go.
        recorder: Records submissions.
        identity: Signs plans that are vouched for.
        charter: Returns the charter in force, or None before the first is signed.
        status: Returns what a site is now.
        contracts: The home's folder of contracts.
    """

    def __init__(
        self,
        *,
        store: Store,
        recorder: AuditRecorder,
        identity: IdentityKey,
        charter: Callable[[], Charter | None],
        status: Callable[[str], MemberStatus | None],
        contracts: Path,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._identity = identity
        self._charter = charter
        self._status = status
        self._contracts = contracts

    # --- plans ------------------------------------------------------------------------------------------------

    def resolve(self, text: bytes, *, contract_text: bytes | None = None) -> ResolvedPlan:
        """Return the plan in `text`, YAML or canonical bytes, with every open field filled in.

        Raises:
            PlanRefused: With every problem of the plan.
            InvalidInput: The contract is unknown, ambiguous, or doesn't fit the plan.
        """
        wanted = _read(text)
        found = self.contract_of(wanted, contract_text)
        resolved = plan.resolve(wanted, contract_digest=found.digest, has_entities=found.contract.entity is not None)
        model_layout(resolved, found.contract)
        data = plan.canonical_bytes(resolved)
        return ResolvedPlan(resolved, data, canonical.digest(data), found.data, found)

    def validate(self, text: bytes, *, contract_text: bytes | None = None) -> ValidationView:
        """Return what a valid plan means: open fields filled in, size of the model, and what one should know.

        Raises:
            InvalidInput: As `resolve`, or a site that isn't an active member.
        """
        resolved = self.resolve(text, contract_text=contract_text)
        self._check_members(resolved.plan)
        manifest = model_layout(resolved.plan, resolved.found.contract)
        return ValidationView(
            plan_digest=resolved.digest,
            plan=resolved.plan.model_dump(mode="json"),
            contract_digest=resolved.found.digest,
            contract_from=resolved.found.source,
            notices=tuple(plan.notices(resolved.plan)),
            parameters=sum(spec.elements for _, spec in manifest.tensors),
            update_bytes=manifest.floats.size_bytes,
        )

    def resolve_retry(self, job_id: JobId, from_round: int) -> ResolvedPlan:
        """Return the plan of a new job that does `job_id`'s rounds again from round `from_round`, counted from 0.

        Raises:
            InvalidInput: No such job, or its model before that round isn't there.
        """
        record = self._store.jobs.get(job_id)
        before = plan.decode(record.plan)
        if not 0 <= from_round < before.rounds:
            raise InvalidInput("CFD-J02", f"job {job_id} has rounds 1 to {before.rounds}")
        document = canonical.decode(record.plan)
        document["rounds"] = before.rounds - from_round
        if from_round == 0:
            document["start"] = None if before.start is None else document["start"]
        else:
            release = self._store.releases.get(job_id, from_round)
            if release is None:
                raise InvalidInput("CFD-J09", f"job {job_id} released no model before round {from_round + 1}")
            document["start"] = {"job": job_id, "round": from_round - 1, "model": release.model_digest}
        if document.get("evaluate") and document["evaluate"]["every"] > document["rounds"]:
            document["evaluate"]["every"] = document["rounds"]
        data = canonical.encode(document)
        known = contract.from_canonical(record.contract)
        found = FoundContract(known, record.contract, "submission")
        return ResolvedPlan(plan.decode(data), data, canonical.digest(data), record.contract, found)

    def submit(
        self,
        data: bytes,
        *,
        submitter: str,
        signature: bytes | None,
        contract_text: bytes | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[JobRecord, bool]:
        """Put a resolved plan into the queue; return the job, and whether it is new.

        Args:
            data: Canonical bytes of the resolved plan.
            submitter: A person of the charter, with the role coordinator.
            signature: The person's signature of `data`; None where the API's login vouches for the person.
            contract_text: The data contract, YAML or canonical bytes, unless the coordinator or the sites have it.
            priority: Instead of the plan's own.
            idempotency_key: The same key with the same plan is the same job.

        Raises:
            NotAuthenticated: No such person, another role, or not the person's signature; recorded.
            InvalidInput: The plan or its contract is refused; nothing was stored.
        """
        try:
            wanted, kept = self._authentic(data, submitter, signature)
            found = self.contract_of(wanted, contract_text)
            if wanted.data.contract_digest != found.digest:
                raise InvalidInput(
                    "CFD-J04",
                    f"the plan is for another {wanted.data.contract} than the one known here ({found.source})",
                )
            model_layout(wanted, found.contract)
            self._check_members(wanted)
            self.first_model(wanted, found.contract)
        except ConfideError as problem:
            actor = self._recorder.person(submitter)
            self._recorder.submission_refused(canonical.digest(data), problem.code, actor)
            raise
        return self._store_job(wanted, found, kept, signature is None, (submitter, priority, idempotency_key))

    def _store_job(
        self,
        wanted: Plan,
        found: FoundContract,
        signature: bytes,
        vouched: bool,
        rest: tuple[str, int | None, str | None],
    ) -> tuple[JobRecord, bool]:
        submitter, priority, idempotency_key = rest
        data = plan.canonical_bytes(wanted)
        new = NewJob(
            id=JobId(f"{wanted.name}-{secrets.token_hex(3)}"),
            name=wanted.name,
            plan=data,
            plan_digest=canonical.digest(data),
            contract=found.data,
            submitter=submitter,
            signature=signature,
            vouched=vouched,
            priority=wanted.priority if priority is None else priority,
            invited=tuple(SiteId(site) for site in wanted.sites.invite),
            quorum=wanted.sites.quorum or len(wanted.sites.invite),
            rounds=wanted.rounds,
            attempts=wanted.round_attempts,
            idempotency_key=idempotency_key,
            parent=None if wanted.start is None else JobId(wanted.start.job),
            parent_round=None if wanted.start is None else wanted.start.round,
        )
        known = None if idempotency_key is None else self._store.jobs.by_key(idempotency_key)
        if known is None:
            self._recorder.job_submitted(new, wanted, self._recorder.person(submitter))
        return self._store.jobs.create(new)

    def _authentic(self, data: bytes, submitter: str, signature: bytes | None) -> tuple[Plan, bytes]:
        charter = self._charter()
        person = None if charter is None else charter.person(submitter)
        if person is None or person.role is not Role.COORDINATOR:
            raise NotAuthenticated("CFD-J08", f"{submitter} is no person of the charter who may submit jobs")
        if signature is None:
            return plan.decode(data), self._identity.sign("plan", data)
        return plan.check(data, public_key=bytes.fromhex(person.key), signature=signature), signature

    def _check_members(self, wanted: Plan) -> None:
        missing = [
            f"{site} ({status.value if (status := self._status(site)) is not None else 'unknown'})"
            for site in wanted.sites.invite
            if self._status(site) is not MemberStatus.ACTIVE
        ]
        if missing:
            raise InvalidInput("CFD-J03", f"no active members: {', '.join(missing)}")

    # --- models -----------------------------------------------------------------------------------------------

    def first_model(self, wanted: Plan, known: DataContract) -> FirstModel:
        """Return where a job of the plan starts.

        Raises:
            InvalidInput: The plan starts from a release that isn't here, has another model, or another layout.
        """
        manifest = model_layout(wanted, known)
        start = wanted.start
        if start is None:
            arrays = layout.initial(
                wanted.model, contract.width(known), known.label.classes_count, seed=wanted.training.seed
            )
            return FirstModel(manifest, arrays=arrays)
        release = self._store.releases.get(JobId(start.job), start.round + 1)
        if release is None or release.model_digest != start.model:
            raise InvalidInput("CFD-J09", f"job {start.job} released no such model in round {start.round + 1}")
        origin = self._store.jobs.get(JobId(start.job))
        if model_layout(plan.decode(origin.plan), contract.from_canonical(origin.contract)) != manifest:
            raise InvalidInput("CFD-J09", f"the model of job {start.job} has another layout than the plan's")
        return FirstModel(manifest, stored=release.model)

    # --- contracts --------------------------------------------------------------------------------------------

    def contract_of(self, wanted: Plan, contract_text: bytes | None) -> FoundContract:
        """Return the data contract of a plan: from the submission, this home, or the invited sites.

        Raises:
            InvalidInput: It is unknown, has another name, or the sites hold different ones.
        """
        name = wanted.data.contract
        if contract_text is not None:
            found = FoundContract(*_parse(contract_text, "the contract"), "submission")
            if found.contract.name != name:
                raise InvalidInput("CFD-J04", f"the plan needs {name}, handed in was {found.contract.name}")
        else:
            found = self._from_home(name) or self._from_sites(name, wanted.sites.invite)
        if found.contract.label.column != wanted.data.label:
            label = found.contract.label.column
            raise InvalidInput("CFD-J04", f"the plan predicts {wanted.data.label}, the label of {name} is {label}")
        return found

    def _from_home(self, name: str) -> FoundContract | None:
        if not self._contracts.is_dir():
            return None
        known: dict[str, FoundContract] = {}
        for path in sorted(self._contracts.iterdir()):
            if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
                parsed = FoundContract(*_parse(path.read_bytes(), path.name), "coordinator")
                if parsed.contract.name == name:
                    known[parsed.digest] = parsed
        if len(known) > 1:
            raise InvalidInput("CFD-J04", f"{self._contracts} holds {len(known)} different contracts called {name}")
        return next(iter(known.values()), None)

    def _from_sites(self, name: str, sites: Iterable[str]) -> FoundContract:
        announced = announced_contracts({site: self._hello(site) for site in sites}, name)
        by_digest: dict[str, list[str]] = {}
        for site, found in announced.items():
            by_digest.setdefault(found.digest, []).append(site)
        if len(by_digest) > 1:
            groups = "; ".join(
                f"{', '.join(sorted(held))}: {digest[:12]}…" for digest, held in sorted(by_digest.items())
            )
            raise InvalidInput("CFD-J04", f"the sites hold different contracts called {name}: {groups}")
        if not announced:
            raise InvalidInput("CFD-J04", f"no contract called {name} here, and no invited site has announced one")
        return next(iter(announced.values()))

    def _hello(self, site: str) -> Hello | None:
        known = self._store.presence.all().get(SiteId(site))
        if known is None or known.hello is None:
            return None
        body = decode_body("hello", known.hello)
        return body if isinstance(body, Hello) else None


def announced_contracts(hellos: Mapping[str, Hello | None], name: str) -> dict[str, FoundContract]:
    """Return, by site, the contract called `name` that the site announced with a data set behind it."""
    found: dict[str, FoundContract] = {}
    for site, hello in hellos.items():
        if hello is None:
            continue
        offered = {notice.contract_digest for notice in hello.datasets if notice.contract == name}
        for document in hello.contracts:
            data = document.encode("utf-8")
            if canonical.digest(data) in offered:
                found[site] = FoundContract(*_parse(data, f"the contract of {site}"), "sites")
    return found


def model_layout(wanted: Plan, known: DataContract) -> Manifest:
    """Return name, type and shape of every tensor of the plan's model on the contract's rows."""
    return layout.manifest(wanted.model, contract.width(known), known.label.classes_count)


def _read(text: bytes) -> Plan:
    if text.lstrip()[:1] == b"{":
        try:
            canonical.decode(text)
        except canonical.NotCanonical:
            return plan.read(text)  # JSON as a person writes it
        return plan.decode(text)
    return plan.read(text)


def _parse(text: bytes, name: str) -> tuple[DataContract, bytes]:
    try:
        known = contract.from_canonical(text)
    except (canonical.NotCanonical, ValidationError):
        known = parse_document(text, DataContract, name=name)
    return known, contract.canonical_bytes(known)
