"""Which keys a party trusts about the audit log of each party, by the charter; pure.

Witnesses of a log are the other active parties, one voice for each operator; the owner's own sites, and members that
this party hasn't accepted, never count. The quorum is more than half of the operators (audit log specification 9.5).
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from audit.quorum import default_quorum
from federation.charter import COORDINATOR, Charter
from federation.enrolment_messages import AuditKeys
from federation.messages import MemberStatus

_OTHER: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class LogTrust:
    """What goes into the trust policy file of one party's log."""

    party: str
    log_key: str
    witnesses: dict[str, str]
    operators: dict[str, list[str]]
    quorum: int


def operator_token(operator: str) -> str:
    """Return a name without blanks for an organisation, different for different ones."""
    plain = _OTHER.sub("-", operator.lower()).strip("-")[:40]
    return f"operator-{plain}-{hashlib.sha256(operator.encode()).hexdigest()[:8]}"


def log_trusts(charter: Charter, *, accepts: Callable[[str], bool], quorum: int | None = None) -> tuple[LogTrust, ...]:
    """Return what to trust about the log of the coordinator and of each member that `accepts` takes.

    Args:
        charter: The epoch in force.
        accepts: Whether this party has accepted a member; a site accepts itself.
        quorum: How many operators must witness a log, as far as there are so many; more than half where not said.
    """
    parties = {COORDINATOR: (charter.coordinator.operator, charter.coordinator.audit)}
    parties |= {
        member.site: (member.operator, member.audit)
        for member in charter.members
        if member.status is MemberStatus.ACTIVE and accepts(member.site)
    }
    return tuple(_trust(party, parties, quorum) for party in parties)


def _trust(party: str, parties: dict[str, tuple[str, AuditKeys]], quorum: int | None) -> LogTrust:
    owner = parties[party][0]
    others = {name: (operator, keys) for name, (operator, keys) in parties.items() if operator != owner}
    run: dict[str, list[str]] = {}
    for name, (operator, _) in others.items():
        run.setdefault(operator, []).append(name)
    return LogTrust(
        party=party,
        log_key=parties[party][1].log,
        witnesses={name: keys.witness for name, (_, keys) in others.items()},
        operators={operator_token(operator): names for operator, names in run.items() if len(names) > 1},
        quorum=default_quorum(len(run)) if quorum is None else min(quorum, len(run)),
    )
