"""The coordinator behind the link: what it answers to sites, and what it does with what they send.

A message is taken over durably or refused with a code; when `on_message` returns, the site may forget it. Nothing here
waits or trains. Which blob a site may read follows from the releases of jobs that it takes part in; which it may bring,
from the open rounds in which it was asked.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from audit.events import Peer as LogPeer
from coordinator.conductor import Conductor
from coordinator.enrolment import Enrolment
from coordinator.job_machine import JobState
from coordinator.job_threads import JobThreads
from coordinator.membership_store import MembershipStore
from coordinator.previews import Previews
from coordinator.recording import AuditRecorder
from coordinator.records import JobRecord
from coordinator.replies import keep_reply
from coordinator.round_machine import Round
from coordinator.site_machine import SiteEvent, SiteState
from coordinator.store import Store
from coordinator.submission import model_layout
from coordinator.updates import UPDATE_HEADER_BYTES
from coordinator.witnessing import ReceiptMissing, Witnessing
from federation import contract, plan
from federation.audit_parts import code_text
from federation.edge.logs import Log
from federation.enrolment_messages import RenewReply, RenewRequest
from federation.errors import PeerMisbehaved
from federation.link.backend import AttendanceState, Member, Peer
from federation.link.versions import Verdict
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    CharterNotice,
    Decision,
    Hello,
    HelloReply,
    JobId,
    JobStatus,
    Outcome,
    PhaseReply,
    PreviewReply,
    Reason,
    SignedMessage,
    SiteId,
    Versions,
    encode_body,
)
from federation.secure_sums import WORD_BITS, words_of
from federation.witness_messages import WitnessLines

_ANSWERS: Final = {
    Decision.ACCEPTED: SiteEvent.ACCEPT,
    Decision.REFUSED: SiteEvent.REFUSE,
    Decision.PARKED: SiteEvent.PARK,
}
_LIVE: Final = (JobState.OFFERED, JobState.RUNNING, JobState.PAUSED)


class Reception:
    """The link's backend.

    Args:
        store: The truth.
        membership: Who takes part.
        enrolment: Answers sites that enrol or renew.
        recorder: Records answers.
        versions: What this coordinator runs.
        previews: Who waits for previews.
        log: The process's log.
        witnessing: Answers what is about audit logs, and checks receipts.
        send: Sends a message to a site.
        new_message_id: Makes ids.
    """

    def __init__(
        self,
        *,
        store: Store,
        membership: MembershipStore,
        enrolment: Enrolment,
        recorder: AuditRecorder,
        versions: Versions,
        previews: Previews,
        log: Log,
        witnessing: Witnessing | None = None,
    ) -> None:
        self._store = store
        self._membership = membership
        self._enrolment = enrolment
        self._recorder = recorder
        self._versions = versions
        self._previews = previews
        self._log = log
        self._witnessing = witnessing
        self._conductor: Conductor | None = None
        self._threads: JobThreads | None = None
        self._send: Callable[[str, Body], str] | None = None
        self._new_message_id: Callable[[], str] = str
        self._layouts: dict[JobId, int] = {}

    def connect(
        self,
        *,
        conductor: Conductor,
        threads: JobThreads,
        send: Callable[[str, Body], str],
        new_message_id: Callable[[], str],
    ) -> None:
        """Give the reception the others; it is the link's backend before there is a link, so they come later."""
        self._conductor, self._threads = conductor, threads
        self._send, self._new_message_id = send, new_message_id

    # --- who --------------------------------------------------------------------------------------------------

    def member(self, site: str) -> Member | None:
        """Return what is known of `site` now."""
        return self._enrolment.member(site)

    def enrol(self, request: bytes) -> bytes:
        """Return the answer to an enrolment."""
        return self._enrolment.enrol(request)

    def renew(self, request: RenewRequest) -> RenewReply:
        """Return a new certificate for a member."""
        return self._enrolment.renew(request)

    # --- attendance -------------------------------------------------------------------------------------------

    def on_hello(self, peer: Peer, hello: Hello, verdict: Verdict) -> HelloReply:
        """Return the reply to a site that begins to attend, and queue what it missed."""
        site = SiteId(peer.site)
        self._store.presence.save_hello(site, encode_body(hello))
        if verdict.upgrade is not None:
            self._log.warning("site.version_refused", site=site, code="CFD-L07", reason=verdict.upgrade)
        elif peer.member.status.value == "active":
            self._send_charters(site, hello.charter_epoch)
            if self._conductor is not None:
                self._conductor.greet(site, hello.busy_jobs)
        signed = self._membership.charter()
        return HelloReply(
            message_id=hello.message_id,
            versions=self._versions,
            status=peer.member.status,
            charter_epoch=0 if signed is None else signed.charter.epoch,
        )

    def send_charters(self, site: SiteId, epoch: int) -> None:
        """Send a site every signed epoch of the charter after `epoch`, in order."""
        self._send_charters(site, epoch)

    def _send_charters(self, site: SiteId, epoch: int) -> None:
        if self._send is None:
            return
        for signed in self._membership.charters_after(epoch):
            self._send(
                site,
                CharterNotice(
                    message_id=self._new_message_id(),
                    epoch=signed.charter.epoch,
                    charter=signed.body.hex(),
                    signature=signed.signature.hex(),
                ),
            )

    def on_attendance(self, site: str, state: AttendanceState, since: datetime) -> None:
        """Note that `site` can, or can no longer, receive work."""
        connected = state is AttendanceState.CONNECTED
        self._store.presence.save(SiteId(site), connected=connected)
        self._log.info("site.connected" if connected else "site.lost", site=site)

    def on_refused(self, site: str, message_id: str, code: str, text: str) -> None:
        """Note that `site` finally refused a message; a round doesn't wait for it any longer."""
        self._log.warning("site.refused_message", site=site, code=code, ref=message_id)
        if self._threads is not None:
            self._threads.refuse(message_id, code)

    def on_witness(self, site: str, call: Body) -> Body:
        """Return the answer to a site's call about audit logs.

        Raises:
            PeerMisbehaved: This coordinator keeps no log that is witnessed.
        """
        if self._witnessing is None:
            raise PeerMisbehaved("CFD-L09", "nothing is witnessed here")
        return self._witnessing.answer(site, call)

    # --- messages ---------------------------------------------------------------------------------------------

    def on_message(self, site: str, message: SignedMessage, body: Body) -> None:
        """Take a signed message over, durably.

        Raises:
            PeerMisbehaved: Of a kind that sites don't send, or of no use; told to the site.
        """
        sender = SiteId(site)
        match body:
            case Answer():
                self._answer(sender, message, body)
            case PhaseReply():
                self._phase_reply(sender, message, body)
            case JobStatus():
                self._job_stopped(sender, body)
            case PreviewReply():
                self._previews.take(body)
            case WitnessLines() if self._witnessing is not None:
                self._witnessing.take_lines(site, body)
            case _:
                raise PeerMisbehaved("CFD-R02", f"site {site} sent a {message.kind}, which sites don't send")

    def _job_of(self, site: SiteId, job: str) -> JobRecord:
        record = self._store.jobs.get(JobId(job))
        if site not in record.job.sites:
            raise PeerMisbehaved("CFD-J02", f"site {site} isn't invited to job {job}")
        return record

    def _answer(self, site: SiteId, message: SignedMessage, answer: Answer) -> None:
        record = self._job_of(site, answer.job)
        if answer.plan_digest != record.plan_digest:
            raise PeerMisbehaved("CFD-J02", f"site {site} answered to another plan than that of job {answer.job}")
        refused = answer.decision is Decision.REFUSED
        code = (answer.reasons[0].code if answer.reasons else "CFD-J06") if refused else None
        if answer.decision is not Decision.PARKED:
            self._recorder.job_answered(
                record, site, message.body, None if code is None else code_text(code, other="CFD-J06")
            )
        if record.job.state not in _LIVE:
            return  # the job is over; the site was told
        self._store.jobs.save_answer(record.id, site, message.body, message.signature)
        if self._conductor is not None:
            self._conductor.answered(record.id, site, _ANSWERS[answer.decision], _lines(answer.reasons))

    def _job_stopped(self, site: SiteId, status: JobStatus) -> None:
        record = self._job_of(site, status.job)
        standing = record.job.sites[site].state
        if record.job.state not in _LIVE or standing is SiteState.REFUSED:
            return
        code = code_text(status.reason.code, other="CFD-J06")
        self._recorder.job_answered(record, site, encode_body(status), code)
        if self._conductor is not None:
            self._conductor.answered(record.id, site, SiteEvent.REFUSE, _lines((status.reason,)))

    def _phase_reply(self, site: SiteId, message: SignedMessage, reply: PhaseReply) -> None:
        peer = self._proved(site, reply)
        keep_reply(self._store, site, reply, body=message.body, signature=message.signature, peer=peer)
        if self._threads is not None:
            self._threads.deliver(JobId(reply.job), site, reply)

    def _proved(self, site: SiteId, reply: PhaseReply) -> LogPeer | None:
        """Return the entry of the site's log behind an update; without one the update won't count.

        Raises:
            CheckFailed: The proof begins elsewhere than here: the site makes another and sends the reply again.
        """
        if self._witnessing is None or reply.outcome is not Outcome.DONE or reply.update is None:
            return None
        at = (JobId(reply.job), reply.round, reply.attempt, reply.phase)
        if self._store.rounds.fingerprint(*at, site) is not None:
            return None  # it is kept already, with what was proved then
        try:
            return self._witnessing.check_receipt(site, reply)
        except ReceiptMissing as problem:
            self._log.warning("receipt.missing", job=reply.job, site=site, code=problem.code, reason=problem.message)
            return None

    # --- blobs ------------------------------------------------------------------------------------------------

    def may_fetch(self, site: str, reference: BlobReference) -> bool:
        """Return whether a release of a job of this site names the blob as its record or its mean."""
        return self._store.releases.may_read(SiteId(site), reference.root)

    def may_deliver(self, site: str, reference: BlobReference) -> bool:
        """Return whether the site was asked in an open round whose updates can be as large as this blob."""
        waiting = self._threads.waiting_for(SiteId(site)) if self._threads is not None else ()
        if any(reference.size_bytes <= self._layouts.get(job, 0) for job in waiting):
            return True  # the usual case, without a look into the database
        for record in self._store.jobs.of_site(SiteId(site), (JobState.RUNNING, JobState.PAUSED)):
            attempt = self._store.rounds.get(record.id, record.job.round, record.job.attempt)
            asked = attempt is not None and _takes_uploads(attempt.round) and site in attempt.round.sites
            if asked and reference.size_bytes <= self._largest_update(record):
                return True
        return False

    def _largest_update(self, record: JobRecord) -> int:
        known = self._layouts.get(record.id)
        if known is None:
            manifest = model_layout(plan.decode(record.plan), contract.from_canonical(record.contract))
            largest = max(manifest.floats.size_bytes, words_of(manifest) * WORD_BITS // 8)
            known = self._layouts[record.id] = largest + UPDATE_HEADER_BYTES
        return known

    def on_delivered(self, site: str, reference: BlobReference) -> None:
        """Note nothing: a blob counts once the site's reply names it."""


def _takes_uploads(round_: Round) -> bool:
    return round_.awaits_mean if round_.secure else round_.is_collecting


def _lines(reasons: tuple[Reason, ...]) -> tuple[str, ...]:
    return tuple(f"{reason.code}: {reason.text}" if reason.text else reason.code for reason in reasons)
