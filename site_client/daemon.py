"""The site's daemon: one loop over one queue. Everything that happens is an event; nothing polls.

The link, the trainers, background transfers, the operator's socket, signals and timers put events into the mailbox;
the loop takes them one at a time and hands each to who deals with it: `job_book` (sessions), `floor` (phases and
trainers), `operator_desk`, `outgoing`, `renewal`. So no two decisions of this site race, and each has the last one's
result on disk. A message of the coordinator is acknowledged when the loop has dealt with it.

Stopping: after the first signal no phase begins, those under way have `stopping.grace_s`, then they end at their next
step; after the second everything ends at once. Either way what was charged is recorded, and the exit status is 0.
"""

import secrets
import signal
from collections.abc import Callable, Mapping
from typing import Final

from audit import events as audit_events
from audit.errors import AuditError
from federation.edge.logs import Log
from federation.errors import ConfideError, OutOfOrder, PeerMisbehaved
from federation.link.client import LinkClient
from federation.messages import (
    SUM_PHASES,
    Body,
    CharterNotice,
    JobControl,
    Offer,
    PhaseReply,
    PhaseRequest,
    PreviewRequest,
)
from federation.witness_messages import WitnessNotice
from privacy.errors import PrivacyError
from site_client.control import Asked
from site_client.desk import Desk
from site_client.events import (
    Acknowledged,
    Arrived,
    Connected,
    Deadline,
    Event,
    GraceOver,
    KillUnless,
    LogRefuted,
    Lost,
    MessageRefused,
    Renewed,
    Rested,
    Signalled,
    StartOverdue,
    Tick,
)
from site_client.floor import Floor
from site_client.job_book import JobBook
from site_client.machine import Machine
from site_client.mailbox import STOPPING, Mailbox
from site_client.open_site import OpenSite
from site_client.operator_desk import OperatorDesk
from site_client.outgoing import Outgoing
from site_client.phases import Background
from site_client.records import DAEMON
from site_client.renewal import Renewal
from site_client.sums import Sums
from site_client.timers import Timers
from site_client.trainer_process import TrainerGone, TrainerSaid
from site_client.witnessing import SiteWitnessing

TICK_S: Final = 5.0
PROOF_FROM_ELSEWHERE: Final = "CFD-L27"


class Daemon:
    """The daemon of one opened site.

    Args:
        site: The opened home; the caller closes it.
        link: The link, not started yet; its handler posts to `mailbox`.
        mailbox: The one queue.
        log: The process log.
        variables: This process's environment, for trainers.
        notify: Tells the service manager (``READY=1``, ``STOPPING=1``).
    """

    def __init__(
        self,
        site: OpenSite,
        link: LinkClient,
        mailbox: Mailbox,
        log: Log,
        *,
        variables: Mapping[str, str],
        notify: Callable[[str], None],
    ) -> None:
        self._site = site
        self._link = link
        self._mailbox = mailbox
        self._log = log
        self._notify = notify
        self._timers = Timers(site.clock.monotonic_s)
        self._out = Outgoing(site.store, link, log)
        self._desk = Desk(
            site,
            log,
            new_message_id=self._out.new_id,
            new_approval_id=lambda: secrets.token_hex(6),
            machine=Machine(site.home.path / "cache", variables, accelerators=site.configuration.training.accelerators),
        )
        self._witnessing = SiteWitnessing(site, link, log, on_fatal=lambda problem: mailbox.post(LogRefuted(problem)))
        self._floor = Floor(
            site,
            link,
            log,
            mailbox=mailbox,
            timers=self._timers,
            variables=variables,
            witnessing=self._witnessing,
        )
        self._book = JobBook(site, log, desk=self._desk, floor=self._floor, out=self._out)
        self._sums = Sums(site, log, tools=self._floor, out=self._out)
        self._floor.closed = self._sums.forget
        self._renewal = Renewal(site, link, log, run=self._floor.in_thread, post=mailbox.post)
        self._operator = OperatorDesk(
            site,
            link,
            book=self._book,
            floor=self._floor,
            desk=self._desk,
            drain=lambda: self._stop(None),
            reload=self._reload,
        )
        self._over = False
        self._refuted: AuditError | None = None

    def run(self) -> None:
        """Recover what a crash left, then work until a signal or the operator ends it."""
        try:
            if self._site.ledger.lose_open_leases():
                self._log.warning("leases.lost", reason="restart")
            if (problem := self._site.ledger_problem) is not None:
                # Nothing is admitted until two people recovered the ledger; the daemon goes on answering so.
                self._log.error("ledger.blocked", code=problem.code, reason=problem.message)
            self._site.reload_policy()
            self._book.recover()
            self._timers.after(TICK_S, Tick())
            self._link.start()
            self._witnessing.start()
            self._notify("READY=1")
            address = self._site.configuration.coordinator.address
            self._log.announce(
                "service.ready", f"ready: site {self._site.site} dials {address}", site=self._site.site, address=address
            )
            while not self._is_over():
                self._once()
        finally:
            self._mailbox.close()
            self._notify("STOPPING=1")
            self._floor.shut()
            self._witnessing.stop()
            self._link.stop()
            self._out.flush()
        if self._refuted is not None:
            raise self._refuted

    @property
    def was_cut(self) -> bool:
        """Return whether a second signal ended everything at once."""
        return self._over

    def _is_over(self) -> bool:
        return self._over or (self._book.begins_nothing and self._floor.is_idle)

    def _once(self) -> None:
        for event in self._timers.due():
            self._handle(event)
        if self._is_over():
            return
        event_or_none = self._mailbox.next(self._timers.next_s())
        if event_or_none is not None:
            self._handle(event_or_none)

    def _handle(self, event: Event) -> None:  # noqa: C901 (one line for each kind of event)
        match event:
            case Arrived():
                self._on_arrived(event)
            case TrainerSaid():
                self._floor.on_trainer(event)
            case TrainerGone():
                self._floor.on_trainer_gone(event)
            case Background():
                self._floor.on_background(event)
            case Acknowledged():
                self._out.acknowledged(event.message_id)
            case MessageRefused():
                self._on_refused(event)
            case Connected():
                self._log.info("link.connected")
                self._out.send_waiting()
                self._witnessing.call_soon()
            case Lost():
                self._log.warning("link.lost", code=event.problem.code)
            case Deadline():
                self._book.deadline(event.job, event.work)
            case KillUnless():
                self._floor.on_kill_unless(event)
            case Rested():
                self._floor.begin_waiting()
            case StartOverdue():
                self._floor.on_start_overdue(event)
            case Tick():
                self._tick()
            case GraceOver():
                self._floor.stop_all(STOPPING)
            case Signalled():
                self._on_signal(event.number)
            case Renewed():
                self._renewal.take(event)
            case Asked():
                self._operator.answer(event)
            case LogRefuted():
                self._refuted, self._over = event.problem, True

    def _on_refused(self, event: MessageRefused) -> None:
        """Let go of a message that was finally refused; a reply whose proof begins elsewhere goes with another one."""
        self._log.warning("message.refused", code=event.problem.code)
        refused = self._site.store.outgoing(event.message_id)
        self._out.acknowledged(event.message_id)
        if event.problem.code == PROOF_FROM_ELSEWHERE and isinstance(refused, PhaseReply):
            self._floor.in_thread(lambda: self._prove_again(refused))

    def _prove_again(self, reply: PhaseReply) -> None:
        """Send a reply once more, after hearing what the coordinator holds of this site's log."""
        self._witnessing.call_once()
        proved = self._witnessing.prove(bytes.fromhex(reply.receipt), timeout_s=TICK_S)
        if proved is not None:
            self._out.send(reply.model_copy(update={"message_id": self._out.new_id(), "proved": proved}))

    # --- messages of the coordinator --------------------------------------------------------------------------

    def _on_arrived(self, arrived: Arrived) -> None:
        try:
            self._take(arrived.body)
        except (ConfideError, AuditError, PrivacyError) as problem:
            self._log.warning("message.not_taken", code=problem.code)
            arrived.problem = problem if isinstance(problem, ConfideError) else OutOfOrder("CFD-R63", "not recorded")
        except Exception as problem:  # noqa: BLE001 (one bad message must not end the site; the reference says where)
            reference = self._log.internal("message.broke", problem)
            arrived.problem = OutOfOrder("CFD-G01", "the site met an error", reference=reference)
        finally:
            arrived.done.set()

    def _take(self, body: Body) -> None:
        match body:
            case Offer():
                self._book.offer(body)
            case PreviewRequest():
                self._out.send(self._desk.preview(body), keep=False)
            case PhaseRequest() if body.phase in SUM_PHASES:
                self._sums.take(body)
            case PhaseRequest():
                self._book.phase(body)
            case JobControl():
                self._book.control(body)
                self._witnessing.call_soon(again=True)
            case CharterNotice():
                self._site.receive_charter(bytes.fromhex(body.charter), bytes.fromhex(body.signature))
                self._floor.forget_facts()
            case WitnessNotice():
                self._witnessing.on_notice(body, lambda answer: self._out.send(answer, keep=False))
            case _:
                raise PeerMisbehaved("CFD-L09", "a message that a coordinator doesn't send")

    # --- time and signals -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timers.after(TICK_S, Tick())
        self._out.flush()
        for answer in (*self._desk.expire(), *self._desk.reconsider()):
            self._book.answered(answer)
        self._renewal.ask_when_due()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            try:
                self._reload(DAEMON)
            except (ConfideError, AuditError) as problem:
                self._log.error("policy.not_reloaded", code=problem.code)
        elif self._book.begins_nothing:
            self._log.announce("service.stopping", "stopping at once", site=self._site.site, reason="at once")
            self._over = True
        else:
            self._stop(self._site.configuration.stopping.grace_s)

    def _stop(self, grace_s: float | None) -> None:
        self._book.begins_nothing = True
        self._notify("STOPPING=1")
        when = "now" if self._floor.is_idle else "after the phases under way"
        self._log.announce("service.stopping", f"stopping {when}", site=self._site.site, reason=when)
        if grace_s is not None:
            self._timers.after(grace_s, GraceOver())

    def _reload(self, actor: audit_events.Actor) -> bool:
        changed = self._site.reload_policy(actor)
        self._floor.forget_facts()
        self._log.info("policy.reloaded", reason="changed" if changed else "same")
        self._link.reconnect()
        return changed
