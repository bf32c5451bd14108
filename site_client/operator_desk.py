"""The daemon's answers to this site's operator, who asks over the socket in the home."""

import os
from collections.abc import Callable
from typing import Any

from audit import events as audit_events
from audit.errors import AuditError
from federation.edge.clock import rfc3339
from federation.errors import ConfideError, OutOfOrder
from federation.link.client import LinkClient
from federation.messages import JobId
from privacy.errors import PrivacyError
from site_client.control import Asked
from site_client.desk import Desk
from site_client.floor import Floor
from site_client.job_book import PAUSED, JobBook
from site_client.open_site import OpenSite, account_name
from site_client.session import Session


class OperatorDesk:
    """Answers one request at a time, between two events of the loop.

    Args:
        site: The opened home.
        link: For its state.
        book: The jobs.
        floor: The phases.
        desk: Carries out approvals.
        drain: Ends the daemon after the phases under way.
        reload: Reads policy and certificate again for a person; returns whether the policy changed.
    """

    def __init__(
        self,
        site: OpenSite,
        link: LinkClient,
        *,
        book: JobBook,
        floor: Floor,
        desk: Desk,
        drain: Callable[[], None],
        reload: Callable[[audit_events.Actor], bool],
    ) -> None:
        self._site = site
        self._link = link
        self._book = book
        self._floor = floor
        self._desk = desk
        self._drain = drain
        self._reload = reload

    def answer(self, asked: Asked) -> None:
        """Answer a request, with an error where it can't be done."""
        try:
            asked.answer(**self._do(asked))
        except ConfideError as problem:
            asked.refuse(problem)
        except (AuditError, PrivacyError) as problem:
            asked.refuse(OutOfOrder("CFD-R63", problem.message, hint=problem.hint))

    def _do(self, asked: Asked) -> dict[str, Any]:
        account, subject = account_name(asked.account), asked.request.subject
        match asked.request.verb:
            case "status":
                return self.status()
            case "pause" | "resume" as verb:
                jobs = self._book.hold(paused=verb == "pause", account=account)
                return {"paused": verb == "pause", "jobs": list(jobs)}
            case "drain":
                self._drain()
                return {"phases": len(self._floor.running())}
            case "abort":
                session = self._book.abort(JobId(subject), account=account)
                return {"job": session.job, "stage": session.stage.value}
            case "approve" | "deny" as verb:
                return self._decide(subject, account=account, reason=asked.request.reason, yes=verb == "approve")
            case "reload":
                return {"changed": self._reload(self._site.records.person(account, role="operator"))}

    def _decide(self, approval: str, *, account: str, reason: str, yes: bool) -> dict[str, Any]:
        job, answer = self._desk.decided(approval, account=account, reason=reason, yes=yes)
        self._book.answered(answer)
        return {"job": job, "decision": answer.decision.value, "reasons": [found.code for found in answer.reasons]}

    def status(self) -> dict[str, Any]:
        """Return what `confide site status` shows."""
        link = self._link.status()
        devices = self._floor.devices()
        return {
            "site": self._site.site,
            "running": True,
            "process": os.getpid(),
            "stopping": self._book.begins_nothing,
            "paused": self._site.store.flag(PAUSED) is not None,
            "link": {
                "state": link.state.value,
                "since": rfc3339(link.since),
                "route": link.route,
                "problem": None if link.problem is None else f"{link.problem.code} {link.problem.message}",
                "certificate_ends": None if link.certificate_ends is None else rfc3339(link.certificate_ends),
                "messages_waiting": link.pending_count,
            },
            "approvals_waiting": len(self._site.store.approvals(state="waiting")),
            "jobs": [{**_shown(session), "device": devices.get(session.job)} for session in self._book.sessions()],
        }


def _shown(session: Session) -> dict[str, Any]:
    return {
        "job": session.job,
        "stage": session.stage.value,
        "round": None if session.work is None else session.work.round,
        "phase": None if session.work is None else session.work.phase.value,
        "held_by": sorted(holder.value for holder in session.held_by),
    }
