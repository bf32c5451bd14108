"""A site's real home and daemon, and a coordinator that a test plays by hand over real TLS.

The home is made by the site's own enrolment and data office; the coordinator answers with real keys, certificates,
charters and releases, and does with them whatever a test wants, honest or not.
"""

import os
import queue
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from federation import charter as charters
from federation import enrolment_messages, server_step, tokens
from federation import plan as plans
from federation.certificates import (
    Authority,
    certificate_to_der,
    certificate_to_pem,
    new_authority,
    new_tls_key,
    public_key_digest,
    read_request,
    tls_key_to_pem,
)
from federation.edge.clock import SystemClock
from federation.edge.configuration import commented_yaml
from federation.edge.homes import SiteHome
from federation.enrolment_messages import AuditKeys
from federation.identity import IdentityKey
from federation.link.backend import AttendanceState, Member, Peer
from federation.link.blobs import BlobStore
from federation.link.limits import LinkLimits
from federation.link.server import LinkServer, ServerTls
from federation.link.versions import Verdict
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    CharterNotice,
    Hello,
    HelloReply,
    JobAction,
    JobControl,
    JobId,
    MemberStatus,
    Offer,
    Phase,
    PhaseReply,
    PhaseRequest,
    Release,
    SignedMessage,
    Versions,
    encode_body,
)
from federation.models import layout
from federation.plan import Plan
from federation.plan_fields import mean_strategy
from federation.tensors import state_digest, weighted_mean, write_tensors
from site_client import enrolment
from site_client.configuration import (
    CoordinatorAddress,
    LinkBounds,
    SiteConfiguration,
    Stopping,
    Training,
)
from site_client.data.data_map import plain_map
from site_client.data.registration import DataOffice
from site_client.data.registry import SplitRule
from site_client.data.wish import Wish
from tests.support import audit_logs, site_data
from tests.support.played_witnesses import PlayedWitnesses

FEDERATION = "heart.example.org"
SITE = "mercy"
VERSIONS = Versions(confide="0.1.0", protocol=1, oldest_protocol=1)
ROOT = Path(__file__).resolve().parents[2]
POLICY = """
apiVersion: confide/v1
kind: SitePolicy
default: refuse
members: accept
rules:
  - ask: {purpose: [DUO:0000042], mechanism: [local-dp-sgd, none]}
  - allow: {purpose: [DUO:0000007], dataset: heart, mechanism: [local-dp-sgd, none], epsilon_per_job: 8.0}
floors: {quorum: 1, secure_aggregation: optional}
metrics_may_leave: [loss, accuracy, auc]
exact_metrics: [loss, accuracy, auc]
"""
B = TypeVar("B", bound=Body)


def now() -> datetime:
    return datetime.now(UTC)


def until(condition: Callable[[], object], *, within_s: float = 90.0, what: str = "") -> None:
    """Wait until `condition` holds, and fail after `within_s`."""
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.01)


class Federation:
    """Keys of the federation and of people who submit."""

    def __init__(self, witnesses: PlayedWitnesses) -> None:
        self.witnesses = witnesses
        self.root = IdentityKey.generate()
        key = new_tls_key()
        self.authority = Authority(new_authority(FEDERATION, key, now=now() - timedelta(days=1)), key)
        self.authority_der = certificate_to_der(self.authority.certificate)
        self.identity = IdentityKey.generate()
        self.alice = IdentityKey.generate()
        self.bob = IdentityKey.generate()
        self.members: list[charters.Member] = [
            charters.Member(
                site="st-anna",
                operator="St Anna",
                identity=IdentityKey.generate().public.hex(),
                tls=secrets.token_hex(32),
                status=MemberStatus.ACTIVE,
                audit=self.audit_keys("st-anna").model_copy(update={"witness": str(witnesses.other.key)}),
            )
        ]
        self.epochs: list[bytes] = []

    @staticmethod
    def audit_keys(party: str = "coordinator") -> AuditKeys:
        from audit.note import COSIGNATURE, Ed25519Signer, VerifierKey

        def key(name: str) -> str:
            return str(Ed25519Signer(f"{FEDERATION}/{name}", secrets.token_bytes(32)).key)

        public = Ed25519Signer("x", secrets.token_bytes(32)).key.public
        witness = str(VerifierKey(f"{FEDERATION}/{party}/witness", COSIGNATURE, public))
        return AuditKeys(log=key(f"{party}/audit/1"), writers=(key(f"{party}/daemon"),), witness=witness)

    def charter(self) -> tuple[bytes, bytes]:
        """Return the next epoch, with the members there are now, and its signature."""
        proposal = charters.Charter(
            federation=FEDERATION,
            epoch=1,
            previous=None,
            coordinator=charters.CoordinatorKeys(
                operator="University",
                identity=self.identity.public.hex(),
                authority=self.authority_der.hex(),
                audit=self.witnesses.keys,
            ),
            members=tuple(sorted(self.members, key=lambda member: member.site)),
            people=(
                charters.Person(name="alice", key=self.alice.public.hex(), role=charters.Role.COORDINATOR),
                charters.Person(name="bob", key=self.bob.public.hex(), role=charters.Role.VIEWER),
            ),
        )
        held = self.epochs[-1] if self.epochs else None
        body = charters.encode_charter(charters.next_charter(held, proposal))
        self.epochs.append(body)
        self.witnesses.enact(charters.read_charter(body))
        return body, charters.sign_charter(self.root, body)


class PlayedCoordinator:
    """The other end of a site's link, and an honest lineage of a job that a test may bend."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.federation = federation
        self.folder = folder
        self.blobs = BlobStore(folder / "blobs")
        self.member_of_site: Member | None = None
        self.messages: queue.Queue[Body] = queue.Queue()
        self.hellos: list[Hello] = []
        self.delivered: list[BlobReference] = []
        self.withheld: set[str] = set()
        self.told: set[str] = set()
        self.connected = False
        self.before_taking: Callable[[Body], None] = lambda _body: None
        key = new_tls_key()
        certificate = federation.authority.issue_server(
            key.public_key(), ("127.0.0.1", "localhost"), now=now(), validity=timedelta(days=1)
        )
        self._tls = ServerTls(
            tls_key_to_pem(key), certificate_to_pem(certificate), certificate_to_pem(federation.authority.certificate)
        )
        # Nobody is found lost by silence: a busy machine can be silent for long.
        self.limits = LinkLimits(heartbeat_s=0.5, lost_after_s=600.0, resend_s=1.0, retry_bound_s=1.0)
        self.server = LinkServer(
            listen="127.0.0.1:0",
            tls=lambda: self._tls,
            identity=federation.identity,
            versions=VERSIONS,
            backend=self,
            blobs=self.blobs,
            limits=self.limits,
            clock=SystemClock(),
            randomness=secrets.token_bytes,
        )
        self.witnesses = federation.witnesses
        self.witnesses.begin(self.server, self.server.message_ids.next)
        self.port = self.server.start()

    def stop(self) -> None:
        self.server.stop(0.1)
        self.witnesses.close()

    # --- LinkBackend ------------------------------------------------------------------------------------------

    def member(self, site: str) -> Member | None:
        return self.member_of_site if site == SITE else None

    def enrol(self, request: bytes) -> bytes:
        asked = enrolment_messages.decode(enrolment_messages.EnrolRequest, request)
        read = read_request(bytes.fromhex(asked.certificate_request), federation=FEDERATION, site=SITE)
        certificate = self.federation.authority.issue_site(
            FEDERATION,
            SITE,
            bytes.fromhex(asked.certificate_request),
            now=now(),
            validity=timedelta(days=60),
        )
        tls = public_key_digest(read)
        self.federation.members.append(
            charters.Member(
                site=SITE,
                operator="Mercy Hospital",
                identity=asked.identity,
                tls=tls,
                status=MemberStatus.ACTIVE,
                audit=asked.audit,
            )
        )
        self.member_of_site = Member(MemberStatus.ACTIVE, bytes.fromhex(asked.identity), tls)
        body, signature = self.federation.charter()
        return enrolment_messages.encode(
            enrolment_messages.EnrolReply(
                status=MemberStatus.ACTIVE,
                certificate=certificate_to_der(certificate).hex(),
                authority=self.federation.authority_der.hex(),
                epoch=len(self.federation.epochs),
                charter=body.hex(),
                charter_signature=signature.hex(),
            )
        )

    def renew(self, request: enrolment_messages.RenewRequest) -> enrolment_messages.RenewReply:
        certificate = self.federation.authority.issue_site(
            FEDERATION, SITE, bytes.fromhex(request.certificate_request), now=now(), validity=timedelta(days=90)
        )
        return enrolment_messages.RenewReply(
            certificate=certificate_to_der(certificate).hex(), authority=self.federation.authority_der.hex()
        )

    def on_hello(self, peer: Peer, hello: Hello, verdict: Verdict) -> HelloReply:
        self.hellos.append(hello)
        return HelloReply(message_id=self.server.message_ids.next(), versions=VERSIONS, status=peer.member.status)

    def on_message(self, site: str, message: SignedMessage, body: Body) -> None:
        self.before_taking(body)
        if not self.witnesses.take(body):
            self.messages.put(body)

    def on_witness(self, site: str, call: Body) -> Body:
        return self.witnesses.witnessing.answer(site, call)

    def on_attendance(self, site: str, state: AttendanceState, since: datetime) -> None:
        self.connected = state is AttendanceState.CONNECTED

    def on_refused(self, site: str, message_id: str, code: str, text: str) -> None:
        self.messages.put(Refusal(message_id=message_id, code=code))

    def may_fetch(self, site: str, reference: BlobReference) -> bool:
        return reference.root not in self.withheld and self.blobs.has(reference)

    def may_deliver(self, site: str, reference: BlobReference) -> bool:
        return True

    def on_delivered(self, site: str, reference: BlobReference) -> None:
        self.delivered.append(reference)

    # --- what a test says and hears ---------------------------------------------------------------------------

    def next(self, kind: type[B], *, within_s: float = 90.0) -> B:
        """Return the next message of the site, which must be of `kind`; of another kind may only be a repetition."""
        while True:
            found = self.messages.get(timeout=within_s)
            told = found.model_dump_json(exclude={"message_id"})
            if isinstance(found, kind):
                self.told.add(told)
                return found
            assert told in self.told, found

    def nothing_more(self, *, for_s: float = 0.5) -> None:
        try:
            found = self.messages.get(timeout=for_s)
        except queue.Empty:
            return
        raise AssertionError(found)

    def send(self, body: Body) -> None:
        self.server.send(SITE, body)

    def offer(self, plan: Plan, job: str = "heart-risk-0a1b2c", /, **changes: Any) -> JobId:
        data = plans.canonical_bytes(plan)
        given: dict[str, Any] = {
            "message_id": self.server.message_ids.next(),
            "job": job,
            "plan": data.hex(),
            "submitter": "alice",
            "signature": plans.sign_plan(plan, self.federation.alice).hex(),
            "vouched": False,
            "contract": site_data.contract_bytes().hex(),
        }
        self.send(Offer(**{**given, **changes}))
        return JobId(job)

    def control(self, job: str, action: JobAction) -> None:
        self.send(JobControl(message_id=self.server.message_ids.next(), job=job, action=action))

    def notify_charter(self) -> None:
        body, signature = self.federation.charter()
        self.send(
            CharterNotice(
                message_id=self.server.message_ids.next(),
                epoch=len(self.federation.epochs),
                charter=body.hex(),
                signature=signature.hex(),
            )
        )


class Refusal(Body):
    """The site's final no to a message, as the link told it."""

    message_id: str
    code: str


class PlayedJob:
    """An honest coordinator's side of one job: releases, requests, means."""

    def __init__(self, coordinator: PlayedCoordinator, plan: Plan, job: str = "heart-risk-0a1b2c") -> None:
        self.coordinator = coordinator
        self.plan = plan
        self.job = JobId(job)
        self.folder = coordinator.folder / job
        self.folder.mkdir()
        self.manifest = layout.manifest(plan.model, 2)
        self.model = self.folder / "model-0"
        self.state: Path | None = None
        self.step = 0
        write_tensors(self.model, layout.initial(plan.model, 2, seed=plan.training.seed))
        self.releases: list[tuple[BlobReference, bytes]] = []
        self.asked: tuple[int, int, Phase] | None = None
        self.heard: set[tuple[int, int, Phase]] = set()
        self.sign(self.record(0, coordinator.blobs.put_file(self.model)))
        coordinator.witnesses.submitted(self.job)

    def record(self, round_number: int, mean: BlobReference) -> Release:
        return Release(
            job=self.job,
            plan_digest=plans.digest(self.plan),
            round=round_number,
            step=self.step,
            previous=self.releases[-1][0] if self.releases else None,
            mean=mean,
            model=state_digest(self.model, self.state, step=self.step),
            survivors=(self.survivor(round_number),) if self.step else (),
            weights=(1,) if self.step else (),
        )

    def survivor(self, round_number: int) -> str:
        """The site, where its update of that round was proved; else the other member."""
        return SITE if (self.job, round_number) in self.coordinator.witnesses.receipts else "st-anna"

    def sign(self, release: Release) -> None:
        body = encode_body(release)
        self.releases.append(
            (self.coordinator.blobs.put_bytes(body), self.coordinator.federation.identity.sign("release", body))
        )

    def release(self, round_number: int, update: BlobReference | None = None) -> None:
        """Release a round: the mean is the site's own update, or zeros."""
        mean = self.folder / f"mean-{self.step + 1}"
        if update is None:
            zeros = {name: np.zeros(spec.shape, spec.numpy) for name, spec in self.manifest.tensors}
            write_tensors(mean, zeros)
        else:
            weighted_mean({SITE: self.coordinator.blobs.path(update)}, {SITE: 1}, self.manifest, mean)
        self.step += 1
        model, state = self.folder / f"model-{self.step}", self.folder / f"state-{self.step}"
        server_step.apply(
            mean_strategy(self.plan.server),
            model=self.model,
            mean=mean,
            state=self.state,
            step=self.step,
            new_model=model,
            new_state=state,
        )
        before = state_digest(self.model, self.state, step=self.step - 1)
        self.model, self.state = model, state
        record = self.record(round_number, self.coordinator.blobs.put_file(mean))
        self.coordinator.witnesses.released(
            self.job, round_number, model=record.model, previous=before, sum_digest=record.mean.root
        )
        self.sign(record)

    def request(
        self, round_number: int, attempt: int = 0, phase: Phase = Phase.TRAIN, *, deadline_s: int = 60, **changes: Any
    ) -> PhaseRequest:
        reference, signature = self.releases[-1]
        given: dict[str, Any] = {
            "message_id": self.coordinator.server.message_ids.next(),
            "job": self.job,
            "round": round_number,
            "attempt": attempt,
            "phase": phase,
            "deadline_s": deadline_s,
            "release": reference,
            "release_signature": signature.hex(),
        }
        if phase is Phase.TRAIN:
            given |= self.coordinator.witnesses.opening(self.job, round_number)
        return PhaseRequest(**{**given, **changes})

    def ask(self, round_number: int, attempt: int = 0, phase: Phase = Phase.TRAIN, **changes: Any) -> None:
        self.coordinator.send(self.request(round_number, attempt, phase, **changes))

    def reply(self, *, within_s: float = 90.0) -> PhaseReply:
        return self.coordinator.next(PhaseReply, within_s=within_s)

    def accepted(self) -> Answer:
        """Offer the job, and return the site's yes."""
        self.coordinator.offer(self.plan, self.job)
        answer = self.coordinator.next(Answer)
        assert answer.decision.value == "accepted", answer
        return answer


class SiteRig:
    """One site: its home, and its daemon as a process."""

    def __init__(self, folder: Path, *, policy: str = POLICY, units: int = 64, grace_s: float = 0.3) -> None:
        witnesses = PlayedWitnesses(folder / "witnesses", federation=FEDERATION, site=SITE)
        self.federation = Federation(witnesses)
        self.coordinator = PlayedCoordinator(self.federation, folder / "coordinator")
        self.home = SiteHome(folder / SITE)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "site.log"
        address = f"127.0.0.1:{self.coordinator.port}"
        token = tokens.EnrolToken(
            federation=FEDERATION,
            site=SITE,
            address=address,
            authority_der=self.federation.authority_der,
            root_public=self.federation.root.public,
            secret=secrets.token_bytes(32),
            expires=now() + timedelta(days=1),
        )
        enrolment.enrol(
            self.home,
            token,
            address=address,
            ask=lambda request, _authority: self.coordinator.enrol(request),
            clock=SystemClock(),
        )
        self.home.policy_file.write_text(policy)
        self.configure(grace_s=grace_s)
        self._add_data(folder / "heart.csv", units)

    def configure(self, *, grace_s: float = 0.3, **training: Any) -> None:
        address = CoordinatorAddress(address=f"127.0.0.1:{self.coordinator.port}")
        settings = {"lease_steps": 2, "threads": 1, "rest_first_s": 0.05, **training}
        configuration = SiteConfiguration(
            site=SITE,
            coordinator=address,
            training=Training(**settings),
            stopping=Stopping(grace_s=grace_s),
            link_limits=LinkBounds(**self.coordinator.limits.model_dump()),
        )
        self.home.configuration_file.write_text(commented_yaml(configuration, title="A site under test."))

    def _add_data(self, path: Path, units: int) -> None:
        rows = site_data.prepared(units)
        lines = ["age,chol,disease"]
        for (age, chol), label in zip(rows.features, rows.labels, strict=True):
            values = (50 + 10 * float(np.clip(age, -3, 3)), 240 + 50 * float(np.clip(chol, -3, 3)))
            lines.append(f"{values[0]:.4f},{values[1]:.4f},{'true' if label else 'false'}")
        path.write_text("\n".join(lines) + "\n")
        wish = Wish(
            name="heart",
            path=path,
            contract=site_data.contract(),
            data_map=plain_map(site_data.contract()),
            entity=None,
            units=units,
            same_people_as=None,
            split=SplitRule(share=0.25),
            held_out_public=False,
            epsilon=8.0,
            delta=1e-4,
        )
        with DataOffice(self.home.path, clock=SystemClock(), account="alice") as office:
            office.add(wish)

    # --- the daemon -------------------------------------------------------------------------------------------

    def start(
        self, *, light: bool = True, kill: tuple[str, str, int] = ("-", "before", 1), wait: bool = True
    ) -> subprocess.Popen[bytes]:
        """Start the daemon, with the light trainer or the real one, and wait until it attends."""
        self.coordinator.connected = False
        site = ["site", "run", "--home", str(self.home.path)]
        if light:
            point, when, number = kill
            command = [sys.executable, "-m", "tests.support.killed_site", point, when, str(number), "--", *site]
        else:
            command = [sys.executable, "-m", "confide_cli", *site]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=ROOT, env=environment)
        if wait:
            until(lambda: self.coordinator.connected or self.died(), what="the site attends")
            assert not self.died(), self.tail()
        return self.process

    def died(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def wait_for_death(self, within_s: float = 90.0) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = 90.0) -> int:
        """Signal the daemon and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.coordinator.stop()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def confide(self, *arguments: str, status: int = 0) -> str:
        """Run a command on this home and return its standard output."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "confide_cli", *arguments, "--home", str(self.home.path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def entries(self) -> list[dict[str, Any]]:
        """Return every entry of the site's log; the daemon may run."""
        return audit_logs.events_in(self.home.audit)

    def actions(self, *wanted: str) -> list[tuple[str, str]]:
        """Return action and decision of each entry, of all actions or of those named."""
        found = [(entry["action"], entry["decision"]) for entry in self.entries()]
        return [item for item in found if not wanted or item[0] in wanted]
