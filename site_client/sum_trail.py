"""What this site's part in a secure sum writes into its log; nothing is decided here.

What a phase fixed is durable before the message that rests on it leaves: the roster before the shares, the survivors
before the consent, what was agreed before the reveal.
"""

from typing import Any

from audit import events
from audit.log import AuditLog
from federation.messages import JobId
from privacy.secagg import site_states as at
from site_client.entry_parts import id_of
from site_client.records import DAEMON


class SumTrail:
    """The entries of one sum.

    Args:
        log: The site's audit log.
        job: The job.
        round_number: The round.
        sum_id: The sum's own id.

    Attributes:
        roster: The digest of the roster, as this site computed it.
        peer: The coordinator's entry of that roster; the consent names it.
    """

    def __init__(self, log: AuditLog, job: JobId, round_number: int, sum_id: str) -> None:
        self._log = log
        self.roster = ""
        self.peer: events.Peer | None = None
        self._about: dict[str, Any] = {"job": job, "round": round_number, "sum": sum_id}

    def reached(self, state: at.State) -> None:
        """Record what the phase before this state fixed.

        Raises:
            AuditError: It couldn't be recorded; nothing that rests on it may leave.
        """
        match state:
            case at.Shared():
                self.roster = state.roster.hex()
                self._phase("advertised", fixed=self.roster, members_count=len(state.adverts))
            case at.Masked():
                self._phase("shared", fixed=state.view.hex(), members_count=len(state.members))
            case at.Consented():
                self._consented(state)
            case at.Revealed():
                self._phase("consented", fixed=state.agreed.hex())
            case _:
                pass

    def _consented(self, state: at.Consented) -> None:
        content = {
            "id": id_of("sum.consented", self._about["sum"]),
            "decision": "allowed",
            "actor": DAEMON,
            "roster": self.roster,
            "view": state.view.hex(),
            "agreed": state.agreed.hex(),
            "survivors_count": len(state.survivors),
            "peer": self.peer,
            **self._about,
        }
        self._log.append(events.SumConsented.model_validate(content))

    def closed(self) -> None:
        """The result is what this site computed itself."""
        self._phase("closed")

    def aborted(self, code: str, cause: str) -> None:
        """This site leaves the sum, or has lost it; `cause` is the protocol's own code."""
        self._phase("aborted", decision="failed", code=code, cause=cause)

    def _phase(self, phase: str, *, decision: str = "allowed", **fields: Any) -> None:
        content = {
            "id": id_of("sum.phase", self._about["sum"], phase, fields.get("code")),
            "decision": decision,
            "actor": DAEMON,
            "phase": phase,
            **self._about,
            **fields,
        }
        self._log.append(events.SumPhase.model_validate(content))
