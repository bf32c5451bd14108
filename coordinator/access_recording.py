"""What the coordinator's log holds of the people who call: logins, refused acts, checked plans, results handed out."""

from collections.abc import Callable
from typing import Final

from audit import events
from audit.log import AuditLog
from coordinator.records import JobRecord
from coordinator.views import ResultFile
from federation.audit_parts import hash_text
from federation.errors import InvalidInput
from federation.messages import JobId

_MOVES: Final[dict[str, type[events.Draft]]] = {
    "pause": events.JobPaused,
    "resume": events.JobResumed,
    "cancel": events.JobCancelled,
}


class AccessRecorder:
    """Writes into the coordinator's audit log; a person is a pseudonym, an address a commitment.

    Args:
        log: The log.
        job: Returns a job, or raises `InvalidInput` where there is none.
    """

    def __init__(self, log: AuditLog, job: Callable[[JobId], JobRecord]) -> None:
        self._log = log
        self._job = job

    def _person(self, name: str, role: str | None = None) -> events.Actor:
        return events.Actor(kind="person", id=self._log.private.pseudonym(name), role=role, auth="token")

    def _address(self, address: str, subject: str | None = None) -> dict[str, str] | None:
        return {"address": self._log.private.commit("address", address, subject=subject)} if address else None

    def logged_in(self, name: str, role: str, address: str) -> None:
        """A person showed a token that is known."""
        actor = self._person(name, role)
        self._log.append(
            events.UserLogin(
                id=self._log.new_id(), decision="allowed", actor=actor, private=self._address(address, actor.id)
            )
        )

    def login_refused(self, code: str, address: str) -> None:
        """Somebody showed a token that isn't."""
        actor = events.Actor(kind="person", id="unknown", auth="token")
        self._log.append(
            events.UserLogin(
                id=self._log.new_id(), decision="refused", code=code, actor=actor, private=self._address(address)
            )
        )

    def act_refused(self, name: str, role: str, act: str, job: str | None, code: str) -> None:
        """A person may not do `act`, or not now: with a job the refused change of that job, else a refused access."""
        fields = {"id": self._log.new_id(), "decision": "refused", "code": code, "actor": self._person(name, role)}
        record = self._known(job) if act in _MOVES else None
        if record is None:
            self._log.append(events.UserLogin.model_validate({**fields, "cause": act}))
        else:
            about = {"job": record.id, "plan": hash_text(record.plan_digest)}
            self._log.append(_MOVES[act].model_validate({**fields, **about}))

    def _known(self, job: str | None) -> JobRecord | None:
        try:
            return None if job is None else self._job(JobId(job))
        except InvalidInput:
            return None

    def plan_validated(self, name: str, plan_digest: str, code: str | None) -> None:
        """A person had a plan checked; with a `code` it was refused."""
        self._log.submit(
            events.JobValidated(
                id=self._log.new_id(),
                decision="allowed" if code is None else "refused",
                code=code,
                actor=self._person(name),
                plan=hash_text(plan_digest),
                findings=[] if code is None else [code],
            )
        )

    def exported(self, name: str, role: str, job: str, file: ResultFile) -> None:
        """A file of a job's result is about to be handed to a person; durable on return."""
        egress = events.Egress(
            what="artifact", hash=hash_text(file.sha256), bytes=file.size_bytes, to="api", encrypted=False
        )
        self._log.append(
            events.ArtifactExported(
                id=self._log.new_id(), decision="allowed", actor=self._person(name, role), job=job, egress=egress
            )
        )
