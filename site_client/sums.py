"""This site's part in the secure sums of its jobs: the protocol's machine, with disk, link, log and clock around it.

A sum follows a training; its phases come as requests and each ends in one reply, as every phase does. The rules:

- What the protocol wants on disk is there before the reply that follows from it leaves (`sum_journal`).
- The masked vector is written once, as a blob, and only that blob is sent: no second vector is under its masks.
- Secrets are in memory only. A restarted site has lost its open sums and says so, truly, from its journal.
- A sum that isn't exactly what the approved job gives is refused, and so is one below this site's floors.

Work of one job never runs side by side; it runs in the daemon's threads, so the loop never waits for it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from audit.errors import AuditError
from audit.events import Peer
from audit.receipt import Receipt
from federation.edge.logs import Log
from federation.errors import CheckFailed, ConfideError, OutOfOrder, PeerMisbehaved
from federation.link.chunks import reference_of
from federation.messages import (
    BlobReference,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Reason,
    Release,
    decode_body,
)
from federation.secure_sums import (
    DigestSigner,
    SumFailed,
    check_as_agreed,
    figures_of,
    registry_of,
    sum_job_digest,
    tensor_starts,
    vector_of,
    words_of,
)
from federation.witness_messages import Proved
from privacy.secagg import journal
from privacy.secagg import site_states as at
from privacy.secagg.envelope import Signed, open_message, unpack
from privacy.secagg.errors import OutOfOrder as SumOutOfOrder
from privacy.secagg.errors import SumRefused
from privacy.secagg.lineage import Lineage
from privacy.secagg.messages import SumPlan
from privacy.secagg.plan_checks import Floors
from privacy.secagg.site import Site
from site_client import lineage
from site_client.jobs import JobFacts, update_file
from site_client.open_site import OpenSite
from site_client.outgoing import Outgoing
from site_client.session import ENDED, Work
from site_client.sum_trail import SumTrail

NO_UPDATE: Final = "CFD-R97"
NOT_ACCEPTED: Final = "CFD-R43"
JOB_ENDED: Final = "CFD-R44"
NOT_RECORDED: Final = "CFD-R63"


class SystemRandom:
    """The operating system's generator."""

    def take(self, count: int) -> bytes:
        """Return `count` fresh random bytes."""
        return secrets.token_bytes(count)


class Tools(Protocol):
    """What sums ask of the daemon; `floor.Floor` has it."""

    def facts(self, job: JobId) -> JobFacts:
        """Return what holds for every phase of an accepted job."""
        ...

    def in_turn(self, job: JobId, task: Callable[[], None]) -> None:
        """Run `task` in a thread, never beside another of the same job."""
        ...

    def fetch(self, reference: BlobReference, deadline_s: float) -> Path:
        """Return a blob's file."""
        ...

    def deliver(self, sent: Receipt, deadline_s: float) -> None:
        """Bring the blob that the entry names to the coordinator."""
        ...

    def roster_peer(self, shown: str, *, job: str, round_number: int, sum_id: str, roster: str) -> Peer | None:
        """Return the coordinator's entry of a sum's roster, None where it wasn't shown."""
        ...

    def prove(self, leaf: bytes, timeout_s: float) -> Proved | None:
        """Return the proof that this site's log holds an entry."""
        ...


@dataclass(slots=True)
class _Sum:
    """The sum of one attempt, as far as this process has come with it."""

    attempt: tuple[int, int]
    sum_id: str
    trail: SumTrail
    state: at.State


class Sums:
    """The secure sums of one daemon.

    Args:
        site: The opened home.
        log: The process log.
        tools: The floor.
        out: Sends replies.
    """

    def __init__(self, site: OpenSite, log: Log, *, tools: Tools, out: Outgoing) -> None:
        self._site = site
        self._log = log
        self._tools = tools
        self._out = out
        self._machine = Site(site.site, DigestSigner(site.identity), SystemRandom())
        self._running: dict[JobId, _Sum] = {}

    def take(self, request: PhaseRequest) -> None:
        """Take a request of a sum's phase; it is answered from a thread, or at once if it was before."""
        job = JobId(request.job)
        work = Work(request.round, request.attempt, request.phase)
        if not self._repeat(job, work):
            self._tools.in_turn(job, lambda: self._answer(job, work, request))

    def forget(self, job: JobId) -> None:
        """Let go of a job's sum and its secrets: the job is over."""
        running = self._running.pop(job, None)
        if running is not None:
            at_end = running.state
            running.state = at.Ended("E_PHASE")
            at.wipe(at_end)

    # --- one reply for each phase -----------------------------------------------------------------------------

    def _repeat(self, job: JobId, work: Work) -> bool:
        reply = self._site.store.reply(job, work)
        if reply is None:
            return False
        self._out.send(reply.model_copy(update={"message_id": self._out.new_id()}))
        return True

    def _answer(self, job: JobId, work: Work, request: PhaseRequest) -> None:
        if self._repeat(job, work):
            return
        try:
            fields = self._phase(job, work, request)
        except SumRefused as refusal:
            fields = self._refused(job, work, SumFailed(refusal))
        except (ConfideError, AuditError) as problem:
            fields = self._refused(job, work, problem)
        except OSError as problem:
            fields = self._failed(job, work, OutOfOrder(NOT_RECORDED, f"disk: {problem.strerror}"))
        except Exception as problem:  # noqa: BLE001 (a phase always ends in a reply)
            reference = self._log.internal("sum.broke", problem, job=job)
            fields = self._failed(job, work, OutOfOrder("CFD-G01", "the site met an error", reference=reference))
        reply = PhaseReply(
            message_id=self._out.new_id(),
            job=job,
            round=work.round,
            attempt=work.attempt,
            phase=work.phase,
            **{"outcome": Outcome.DONE, **fields},
        )
        self._site.store.keep_reply(job, work, reply)
        self._out.send(reply, keep=False)
        code = None if reply.reason is None else reply.reason.code
        self._log.info("sum.phase", job=job, round=work.round, phase=work.phase.value, code=code)

    def _refused(self, job: JobId, work: Work, problem: ConfideError | AuditError) -> dict[str, Any]:
        """Return the reply to a phase that this site doesn't do, and record that it was asked for."""
        try:
            code = problem.code if isinstance(problem, ConfideError) else NOT_RECORDED
            self._site.records.phase_refused(job, work.round, code=code)
        except AuditError as unrecorded:
            self._log.error("sum.not_recorded", job=job, code=unrecorded.code)
        return self._failed(job, work, problem)

    def _failed(self, job: JobId, work: Work, problem: ConfideError | AuditError) -> dict[str, Any]:
        reference = secrets.token_hex(6)
        self._log.warning(
            "sum.failed", job=job, round=work.round, phase=work.phase.value, code=problem.code, ref=reference
        )
        code = problem.code if isinstance(problem, ConfideError) else NOT_RECORDED
        return {"outcome": Outcome.FAILED, "reason": Reason(code=code), "reference": reference}

    def _phase(self, job: JobId, work: Work, request: PhaseRequest) -> dict[str, Any]:
        stored = self._site.store.job(job)
        if stored is None or stored.terms is None:
            raise OutOfOrder(NOT_ACCEPTED, f"job {job} isn't accepted here")
        if stored.session.stage in ENDED:
            raise OutOfOrder(JOB_ENDED, f"job {job} has ended here")
        facts = self._tools.facts(job)
        messages = tuple(unpack(bytes.fromhex(packed)) for packed in request.signed)
        if work.phase is Phase.ADVERTISE:
            return self._advertise(facts, work, messages)
        running = self._running.get(job)
        if running is None or running.attempt != (work.round, work.attempt):
            return self._lost(facts, work)
        match work.phase:
            case Phase.SHARE:
                return self._step(facts, running, at.AdvertsShown(messages))
            case Phase.MASK:
                boxes = tuple(bytes.fromhex(box) for box in request.boxes)
                return self._mask(facts, running, at.SharesShown(messages, boxes), request)
            case Phase.CONSENT:
                self._see_roster(facts, running, request)
                return self._step(facts, running, at.MaskedShown(messages))
            case Phase.REVEAL:
                return self._step(facts, running, at.CertificateShown(messages))
            case Phase.CONCLUDE:
                return self._step(facts, running, self._result(facts, request, messages))
            case _:
                raise PeerMisbehaved("CFD-R46", f"{work.phase} is no phase of a secure sum")

    # --- the phases -------------------------------------------------------------------------------------------

    def _advertise(self, facts: JobFacts, work: Work, messages: tuple[Signed, ...]) -> dict[str, Any]:
        registry = registry_of(self._site.charter.charter)
        message = _one(messages)
        plan = open_message(SumPlan, message, registry).body
        digest = sum_job_digest(facts.job, facts.plan_digest)
        check_as_agreed(plan, facts.plan, digest, facts.lineage.manifest)
        if (plan.round, plan.attempt) != (work.round, work.attempt):
            raise SumRefused("E_PLAN", "the sum is of another round or attempt than the request")
        applied, update = self._site.store.applied(facts.job), update_file(facts, work)
        if applied is None or not update.exists():
            raise CheckFailed(NO_UPDATE, "this site has no update for the sum")
        local = at.LocalJob(
            digest, applied.digest, Lineage(applied.digest), tensor_starts=tensor_starts(facts.lineage.manifest)
        )
        event = at.SumOffered(
            message,
            registry,
            self._site.sums.history(facts.job),
            local,
            vector_of(update, facts.lineage.manifest),
            self._floors(plan.invited),
        )
        self.forget(facts.job)
        trail = self._trail(facts, work, plan.sum_id)
        running = self._running[facts.job] = _Sum((work.round, work.attempt), plan.sum_id, trail, at.Idle())
        return self._step(facts, running, event)

    def _trail(self, facts: JobFacts, work: Work, sum_id: str) -> SumTrail:
        return SumTrail(self._site.records.log, facts.job, work.round, sum_id)

    def _floors(self, invited: tuple[str, ...]) -> Floors:
        """Return this site's floors; a member that it hasn't accepted counts as colluding."""
        floors = self._site.policy.policy.floors
        strangers = len(invited) - self._site.charter.accepted_among(invited)
        return Floors(colluding=floors.colluding + strangers, quorum=floors.quorum + strangers)

    def _mask(self, facts: JobFacts, running: _Sum, event: at.SharesShown, request: PhaseRequest) -> dict[str, Any]:
        outputs = self._perform(facts, running, event)
        upload = next((item.job for item in outputs if isinstance(item, at.Upload)), None)
        if upload is None:
            return _told(outputs)
        path = facts.lineage.folder / "masked.words"
        with path.open("wb") as sink:
            for _, data in upload.job.chunks():
                sink.write(data)
        message = upload.message
        if message is None:
            raise OutOfOrder("CFD-G01", "a masked vector isn't complete")
        reference = self._site.blobs.adopt_file(path)
        self._perform(facts, running, at.UploadAcknowledged())  # the blob is what would be sent again
        sent = self._site.records.update_sent(facts.job, request.round, reference, sum_id=running.sum_id)
        self._tools.deliver(sent, float(request.deadline_s))
        return {
            "update": reference,
            "weight": 1,
            "signed": (message.pack().hex(),),
            "receipt": sent.leaf.hex(),
            "proved": self._tools.prove(sent.leaf, float(request.deadline_s)),
        }

    def _see_roster(self, facts: JobFacts, running: _Sum, request: PhaseRequest) -> None:
        """Find the roster that this site computed in the coordinator's log, before it consents to anything.

        Raises:
            SumRefused: It isn't shown. The sum is over for this site, and its secrets are gone.
        """
        trail = running.trail
        trail.peer = self._tools.roster_peer(
            request.roster, job=facts.job, round_number=request.round, sum_id=running.sum_id, roster=trail.roster
        )
        if trail.peer is None:
            self._site.sums.keep(facts.job, journal.SumEnded(running.sum_id, "aborted", "E_ROSTER_SPLIT"))
            self._closed(facts.job, running, "E_ROSTER_SPLIT")
            self.forget(facts.job)
            raise SumRefused("E_ROSTER_SPLIT", "the coordinator's log doesn't show the roster of this sum")

    def _result(self, facts: JobFacts, request: PhaseRequest, messages: tuple[Signed, ...]) -> at.ResultShown:
        def fetch(reference: BlobReference) -> Path:
            for attached in request.attached:
                data = bytes.fromhex(attached)
                if not self._site.blobs.has(reference) and reference_of(data) == reference:
                    self._site.blobs.put_bytes(data, durable=False)
            return self._tools.fetch(reference, float(request.deadline_s))

        followed = lineage.follow(
            facts.lineage,
            newest=request.release,
            signature=bytes.fromhex(request.release_signature),
            round_number=request.round,
            applied=self._site.store.applied(facts.job),
            fetch=fetch,
        )
        release = decode_body("release", fetch(request.release).read_bytes())
        if not isinstance(release, Release):
            raise PeerMisbehaved("CFD-R59", "the record is of another kind")
        figures = figures_of(fetch(release.mean), words_of(facts.lineage.manifest))
        return at.ResultShown(_one(messages), figures, bytes.fromhex(followed.applied.digest))

    # --- the machine ------------------------------------------------------------------------------------------

    def _step(self, facts: JobFacts, running: _Sum, event: at.Event) -> dict[str, Any]:
        return _told(self._perform(facts, running, event))

    def _perform(self, facts: JobFacts, running: _Sum, event: at.Event) -> tuple[at.Output, ...]:
        """Take a step and put on disk what it wants there, and its audit entry, before anything of it is sent."""
        now_ms, before = int(self._site.clock.monotonic_s() * 1000), running.state
        running.state, outputs = self._machine.step(before, event, now_ms=now_ms)
        for item in outputs:
            if isinstance(item, at.Persist):
                self._site.sums.keep(facts.job, item.record)
        if type(running.state) is not type(before):
            running.trail.reached(running.state)
        for item in outputs:
            if isinstance(item, at.SumClosed):
                self._closed(facts.job, running, item.code)
        return outputs

    def _closed(self, job: JobId, running: _Sum, cause: str | None) -> None:
        if cause is None:
            running.trail.closed()
            return
        code = SumFailed(SumRefused(cause, "")).code
        self._log.warning("sum.ended", job=job, code=code)
        running.trail.aborted(code, cause)

    def _lost(self, facts: JobFacts, work: Work) -> dict[str, Any]:
        """Answer for a sum that a restart lost: with the abort that the journal gives."""
        history = self._site.sums.history(facts.job)
        digest = sum_job_digest(facts.job, facts.plan_digest)
        begun = [
            record
            for record in history.records
            if isinstance(record, journal.SumBegun)
            and (record.job_digest, record.round, record.attempt) == (digest, work.round, work.attempt)
        ]
        if not begun:
            raise SumOutOfOrder("this site doesn't take part in the sum")
        sum_id = begun[-1].sum_id
        if not history.ended(sum_id):
            self._site.sums.keep(facts.job, journal.SumEnded(sum_id, "aborted", "E_PHASE"))
        message = journal.abort_from(
            history, sum_id, site=self._site.site, signer=DigestSigner(self._site.identity), code="E_PHASE"
        )
        lost = SumFailed(SumOutOfOrder("this site was restarted within the sum"))
        self._trail(facts, work, sum_id).aborted(lost.code, "E_PHASE")
        failed = self._failed(facts.job, work, lost)
        return {**failed, "signed": (message.pack().hex(),)}


def _one(messages: tuple[Signed, ...]) -> Signed:
    if len(messages) != 1:
        raise SumRefused("E_KIND", f"{len(messages)} messages where one is expected")
    return messages[0]


def _told(outputs: tuple[at.Output, ...]) -> dict[str, Any]:
    """Return what the reply to a step says."""
    fields: dict[str, Any] = {}
    for item in outputs:
        match item:
            case at.Send():
                fields["signed"] = (item.message.pack().hex(),)
                fields["boxes"] = tuple(box.hex() for box in item.boxes)
            case at.SumClosed() if item.code is not None:
                failed = SumFailed(SumRefused(item.code, item.message))
                fields |= {"outcome": Outcome.FAILED, "reason": Reason(code=failed.code)}
                fields["reference"] = secrets.token_hex(6)
            case _:
                pass
    return fields
