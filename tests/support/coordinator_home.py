"""A coordinator's service over a real home, real TLS and a real log, with sites in threads that act by a script.

The home is made by `init`; members and people are put into it as their commands would, without the telephone.
"""

import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from audit import events
from audit.log import AuditLog
from coordinator import membership_home
from coordinator.evaluation import BINS
from coordinator.init_command import init
from coordinator.membership_store import PutMember, PutPerson
from coordinator.service import CoordinatorService, open_service
from federation import canonical, contract, plan
from federation.certificates import certificate_from_der, certificate_to_der, certificate_to_pem, tls_key_to_pem
from federation.charter import Person, Role
from federation.edge.audit_settings import AuditSection
from federation.edge.audit_trail import begin_log
from federation.edge.clock import SystemClock
from federation.edge.documents import parse_document
from federation.edge.homes import CoordinatorHome, load_identity
from federation.edge.logs import open_log
from federation.errors import ConfideError
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.link.client import LinkClient
from federation.link.dial import SiteTls
from federation.link.limits import LinkLimits
from federation.link.route import choose_route, parse_address
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    CharterNotice,
    DatasetNotice,
    Decision,
    EvaluationCounts,
    Hello,
    HelloReply,
    JobControl,
    Offer,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    PreviewReply,
    PreviewRequest,
    Reason,
    SignedMessage,
    Versions,
)
from federation.models import layout
from federation.tensors import write_tensors
from federation.witness_messages import Proved, WitnessNotice
from site_client.witnessing import SiteWitnessing
from tests.support.audit_logs import events_in
from tests.support.clocks import MovableClock
from tests.support.membership import FEDERATION, SiteKeys

CONTRACT = """\
apiVersion: confide/v1
kind: DataContract
name: heart/v1
columns:
  - {name: age, type: number, range: [0, 120], scaling: {centre: 55, scale: 10, clamp: 4}}
  - {name: pressure, type: number, range: [0, 300], scaling: {centre: 130, scale: 20, clamp: 4}}
  - {name: ill, type: integer, range: [0, 1]}
label: {column: ill, positive: [1]}
"""
PLAN = """\
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: DUO:0000007, text: "risk of heart disease"}
data: {contract: heart/v1, label: ill}
model: {kind: logistic}
training: {local_steps: 1, batch: 8, optimizer: {name: sgd, lr: 0.1}, seed: 7}
privacy: {unit: record, mechanism: none}
secure_aggregation: {enabled: false}
rounds: 3
sites: {invite: [SITES], quorum: QUORUM}
deadlines: {training_s: 120, phase_s: 120}
evaluate: {every: 1, release: public}
"""
# Nobody is found lost by silence: a busy machine can be silent for long. A cut link is still noticed at once.
QUICK = """
link_limits: {heartbeat_s: 0.4, lost_after_s: 600, resend_s: 0.5, retry_first_s: 0.05, retry_bound_s: 0.3}
"""
LIMITS = LinkLimits(heartbeat_s=0.4, lost_after_s=600, resend_s=0.5, retry_first_s=0.05, retry_bound_s=0.3)
DAY = timedelta(days=1)
VERSIONS = Versions(confide="0.1.0", protocol=1, oldest_protocol=1)
KNOWN = parse_document(CONTRACT.encode(), contract.DataContract, name="contract")
KNOWN_BYTES = contract.canonical_bytes(KNOWN)


def plan_text(sites: Iterable[str], *, quorum: int = 2, **changes: str) -> bytes:
    """Return the text of a plan; `changes` replace whole lines by key, or add them."""
    text = PLAN.replace("SITES", ", ".join(sites)).replace("QUORUM", str(quorum))
    lines = [line for line in text.splitlines() if line.split(":")[0] not in changes]
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in changes.items())]).encode()


class House:
    """A coordinator's home, and its service while it runs."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        self.home = CoordinatorHome(folder)
        init(["--home", str(folder), "--name", FEDERATION, "--address", "127.0.0.1:9443", "--listen", "127.0.0.1:0"])
        text = self.home.configuration_file.read_text() + QUICK + more
        self.home.configuration_file.write_text(text)
        self.clock = MovableClock()
        self.alice = IdentityKey.generate()
        self.keys: dict[str, SiteKeys] = {}
        self.logs: dict[str, AuditLog] = {}
        self.witnesses: list[SiteWitnessing] = []
        self.service: CoordinatorService | None = None
        self.port = 0
        self._with_membership(self._put_alice)

    def _with_membership(self, change: Callable[[Any, Any], None]) -> None:
        configuration = membership_home.load(self.home)
        engine = membership_home.open_database(self.home, configuration)
        try:
            store = membership_home.open_membership(self.home, configuration, engine, SystemClock())
            change(store, configuration)
            wanted = store.proposed()
            if wanted is not None:
                signed = store.sign(load_identity(self.home.root_file), wanted)
                membership_home.write_trust(self.home, signed.charter)
        finally:
            engine.dispose()

    def _put_alice(self, store: Any, _: Any) -> None:
        person = Person(name="alice", key=self.alice.public.hex(), role=Role.COORDINATOR)
        store.decide(lambda _: ([PutPerson(person, "0" * 64)], None))

    def add(self, *sites: str) -> None:
        """Make these sites active members."""
        for site in sites:
            keys = SiteKeys(site)
            self.keys[site] = keys
            keys.audit = begin_log(self.log_folder(site), federation=FEDERATION, party=site, clock=SystemClock())

            def change(store: Any, configuration: Any, keys: SiteKeys = keys) -> None:
                authority = self.home.certificate_authority()
                certificate = authority.issue_site(
                    FEDERATION, keys.site, keys.certificate_request(), now=SystemClock().now(), validity=DAY
                )
                keys.certificate = certificate_to_der(certificate)  # type: ignore[attr-defined]
                store.decide(lambda _: ([PutMember(keys.member(), keys.certificate)], None))  # type: ignore[attr-defined]

            self._with_membership(change)

    def log_folder(self, site: str) -> Path:
        """Return where the log of a site lies."""
        return self.home.path.parent / "logs" / site / "audit"

    def log_of(self, site: str) -> AuditLog:
        """Return the open log of a site; it stays open until the house is closed."""
        if site not in self.logs:
            self.logs[site] = AuditLog.open(self.log_folder(site), clock=SystemClock())
        return self.logs[site]

    def close(self) -> None:
        """Stop the service, and close the sites' logs."""
        self.stop()
        for witness in self.witnesses:
            witness.stop()
        for log in self.logs.values():
            log.close()

    def start(self) -> CoordinatorService:
        """Open the home and start the service, on the same port as before."""
        if self.port:
            text = self.home.configuration_file.read_text()
            self.home.configuration_file.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{self.port}"))
        self.service = open_service(self.home, clock=self.clock, log=open_log(level="error"))
        self.port = self.service.start()
        return self.service

    def stop(self) -> None:
        """Stop the service, if it runs."""
        if self.service is not None:
            self.service.stop()
            self.service = None

    def submit(self, text: bytes, **more: Any) -> str:
        """Submit a plan as alice, signed with her key; return the job's id."""
        assert self.service is not None
        resolved = self.service.resolve(text)
        signature = plan.sign_plan(resolved.plan, self.alice)
        job, _ = self.service.submit(resolved.data, submitter="alice", signature=signature, **more)
        return job.job

    def audit_actions(self) -> list[str]:
        """Return the actions of the home's audit log, in order."""
        return [event["action"] for event in self.audit_events()]

    def audit_events(self) -> list[dict[str, Any]]:
        """Return the events of the home's audit log, in order."""
        return events_in(self.home.audit)


@dataclass
class FakeSite:
    """A site that accepts every offer and sends constant updates, unless told otherwise."""

    house: House
    site: str
    folder: Path
    value: float = 1.0
    contracts: tuple[str, ...] = (KNOWN_BYTES.decode(),)
    versions: Versions = VERSIONS
    decision: Decision = Decision.ACCEPTED
    received: list[Body] = field(default_factory=list)
    lost: list[ConfideError] = field(default_factory=list)
    refused: list[ConfideError] = field(default_factory=list)
    replies: list[HelloReply] = field(default_factory=list)
    trained: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = self.house.keys[self.site]
        self.hold = threading.Event()  # while cleared, phases wait; the link stays up
        self.hold.set()
        self.update: Callable[[PhaseRequest], dict[str, np.ndarray]] = lambda request: self.constant(self.value)
        self._kept: dict[tuple[str, int, int, Phase], PhaseReply] = {}
        self._plans: dict[str, plan.Plan] = {}
        self._sent: dict[str, tuple[str, int, int, Phase]] = {}
        self.not_opened: list[str] = []
        self.proof: Callable[[Proved | None], Proved | None] = lambda proved: proved
        self._lock = threading.Lock()
        self.blobs = BlobStore(self.folder)
        self.log = self.house.log_of(self.site)
        pem = certificate_to_pem(certificate_from_der(self.keys.certificate))  # type: ignore[attr-defined]
        self.client = LinkClient(
            site=self.site,
            route=lambda: choose_route(parse_address(f"127.0.0.1:{self.house.port}"), {}),
            authority_pem=certificate_to_pem(self.house.home.authority_certificate()),
            tls=lambda: SiteTls(tls_key_to_pem(self.keys.tls), pem),
            identity=self.keys.identity,
            coordinator_key=lambda: self.house.home.identity().public,
            handler=self,
            blobs=self.blobs,
            limits=LIMITS,
            clock=SystemClock(),
            randomness=secrets.token_bytes,
        )
        audit = self.house.log_folder(self.site)
        known: Any = SimpleNamespace(
            records=SimpleNamespace(log=self.log),
            configuration=SimpleNamespace(audit=AuditSection()),
            home=SimpleNamespace(trust=self.house.home.trust, audit=audit),
            site=self.site,
            clock=SystemClock(),
            store=SimpleNamespace(receipts=self._receipts),
        )
        self.witness = SiteWitnessing(known, self.client, open_log(level="error"), on_fatal=lambda _problem: None)

    def _receipts(self, job: str, round_number: int) -> tuple[bytes, ...]:
        kept = [
            reply for key, reply in self._kept.items() if (key[0], key[1], key[3]) == (job, round_number, Phase.TRAIN)
        ]
        return tuple(bytes.fromhex(reply.receipt) for reply in kept)

    def constant(self, value: float) -> dict[str, np.ndarray]:
        manifest = layout.manifest(next(iter(self._plans.values())).model, contract.width(KNOWN))
        return {name: np.full(spec.shape, value, spec.numpy) for name, spec in manifest.floats.tensors}

    # --- the link's handler -----------------------------------------------------------------------------------

    def hello(self, message_id: str) -> Hello:
        notices = tuple(
            DatasetNotice(
                contract="heart/v1",
                contract_digest=canonical.digest(document.encode()),
                units_declared=10,
                held_out_public=True,
            )
            for document in self.contracts
        )
        return Hello(
            message_id=message_id,
            site=self.site,
            versions=self.versions,
            charter_epoch=0,
            datasets=notices,
            contracts=self.contracts,
        )

    def on_connected(self, reply: HelloReply) -> None:
        self.replies.append(reply)
        if self.witness not in self.house.witnesses:
            self.house.witnesses.append(self.witness)
            self.witness.start()
        self.witness.call_soon()

    def on_lost(self, problem: ConfideError) -> None:
        self.lost.append(problem)

    def on_acknowledged(self, message_id: str) -> None:
        pass

    def on_refused(self, message_id: str, problem: ConfideError) -> None:
        self.refused.append(problem)
        if problem.code == "CFD-L27":
            threading.Thread(target=self._prove_again, args=(self._sent[message_id],), daemon=True).start()

    def _prove_again(self, key: tuple[str, int, int, Phase]) -> None:
        self.witness.call_once()
        reply = self._kept[key]
        self._kept[key] = reply.model_copy(
            update={"proved": self.witness.prove(bytes.fromhex(reply.receipt), timeout_s=60)}
        )
        self.client.send(self._kept[key].model_copy(update={"message_id": self.client.message_ids.next()}))

    def on_message(self, message: SignedMessage, body: Body) -> None:
        if isinstance(body, WitnessNotice):
            self.witness.on_notice(body, self.client.send)
            return
        self.received.append(body)
        if isinstance(body, (Offer, PhaseRequest, PreviewRequest)):
            threading.Thread(target=self._act, args=(body,), daemon=True).start()

    # --- what it does -----------------------------------------------------------------------------------------

    def _act(self, body: Body) -> None:
        match body:
            case Offer():
                self._plans[body.job] = plan.decode(bytes.fromhex(body.plan))
                self.answer(body.job, self.decision)
            case PreviewRequest():
                self.client.send(
                    PreviewReply(
                        message_id=self.client.message_ids.next(),
                        request_id=body.message_id,
                        decision=self.decision,
                        epsilon=(1.25).hex(),
                    )
                )
            case PhaseRequest():
                self.hold.wait(120)
                try:
                    self.client.send(self._phase(body))
                except ConfideError as problem:
                    self.refused.append(problem)  # the blob is no longer wanted

    def answer(self, job: str, decision: Decision) -> None:
        """Answer an offer, or change the answer."""
        refused = (Reason(code="CFD-S03", rule="floors/quorum", text="quorum 2, needed are 3"),)
        self.client.send(
            Answer(
                message_id=self.client.message_ids.next(),
                job=job,
                plan_digest=plan.digest(self._plans[job]),
                decision=decision,
                reasons=refused if decision is Decision.REFUSED else (),
                units_declared=10,
                epsilon=(2.0).hex(),
            )
        )

    def _phase(self, request: PhaseRequest) -> PhaseReply:
        key = (request.job, request.round, request.attempt, request.phase)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._work(request)
            reply = self._kept[key].model_copy(update={"message_id": self.client.message_ids.next()})
            self._sent[reply.message_id] = key
            return reply

    def _work(self, request: PhaseRequest) -> PhaseReply:
        update, counts, proved, leaf = None, None, None, b""
        if request.phase is Phase.TRAIN:
            self.trained.append((request.job, request.round, request.attempt))
            path = self.folder / f"update-{secrets.token_hex(4)}"
            write_tensors(path, self.update(request))
            update = self.blobs.put_file(path)
            self.client.deliver(update, deadline_s=120)
            if (problem := self.witness.opening_problem(request)) is not None:
                self.not_opened.append(problem)
            leaf = self._record(request, update)
            proved = self.proof(self.witness.prove(leaf, timeout_s=60))
        else:
            counts = EvaluationCounts(
                release="public",
                bins=BINS["public"],
                positives=(0,) * (BINS["public"] - 1) + (3,),
                negatives=(4,) + (0,) * (BINS["public"] - 1),
                loss_sum=(0.5).hex(),
            )
        return PhaseReply(
            message_id=self.client.message_ids.next(),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=request.phase,
            outcome=Outcome.DONE,
            update=update,
            evaluation=counts,
            epsilon=(0.5).hex(),
            receipt=leaf.hex(),
            proved=proved,
        )

    def _record(self, request: PhaseRequest, update: BlobReference) -> bytes:
        egress = events.Egress(
            what="update", hash=f"sha256:{update.root}", bytes=update.size_bytes, to="coordinator", encrypted=True
        )
        return self.log.append(
            events.UpdateSent(
                id=self.log.new_id(),
                decision="allowed",
                actor=events.Actor(kind="service", id="daemon"),
                job=request.job,
                round=request.round,
                egress=egress,
            )
        ).leaf

    # --- what it saw ------------------------------------------------------------------------------------------

    def controls(self) -> list[str]:
        return [body.action.value for body in self.received if isinstance(body, JobControl)]

    def epochs(self) -> list[int]:
        return [body.epoch for body in self.received if isinstance(body, CharterNotice)]
