"""May a round open? Only if the coordinator's log, seen by others, shows how the one before ended; pure.

The message that opens round r carries a proof file of the coordinator's entry that ended round r − 1 (of the job's
submission, before round 0) under a checkpoint with a quorum. So a coordinator that withholds checkpoints from its
witnesses, or writes nothing down, gets no further round.

And may a site consent to unmask a sum? Only if the coordinator's log holds the roster that the site itself computed:
whoever shows two sites two rosters has then signed two entries, or two histories.
"""

from typing import Final

from audit.canonical import Event
from audit.errors import AuditError, ProofRefused
from audit.proof_file import ProofFile, ProvedEntry, check
from audit.trust import TrustPolicy

_ENDS: Final = (("round.released", "allowed"), ("round.abandoned", "failed"))


def check_round_gate(proof: ProofFile, policy: TrustPolicy, *, job: str, round_number: int) -> ProvedEntry:
    """Return the entry that lets round `round_number` of `job` open.

    Args:
        proof: What the opening message carries, with its leaf.
        policy: What the site trusts about the coordinator's log.
        job: The job.
        round_number: Which round is to open; 0 is the first.

    Raises:
        ProofRefused: It proves nothing, or another entry than the one that is wanted (CFD-A28).
    """
    try:
        found = check(proof, policy)
    except AuditError as refused:
        raise ProofRefused(f"round {round_number} of {job}: {refused.message}", code="CFD-A28") from None
    if not _opens(found.event, job, round_number):
        before = f"how round {round_number - 1} ended" if round_number else "its submission"
        raise ProofRefused(f"round {round_number} of {job}: the entry isn't {before}", code="CFD-A28")
    return found


def check_roster_entry(
    proof: ProofFile, policy: TrustPolicy, *, job: str, round_number: int, sum_id: str, roster: str
) -> ProvedEntry:
    """Return the coordinator's entry that fixes the roster of a sum, under a checkpoint that its log signed.

    Whether others have seen that checkpoint isn't asked: the next round's gate does, and the entry that names this one
    keeps its size and root.

    Args:
        proof: What the request to consent carries, with its leaf.
        policy: What the site trusts about the coordinator's log.
        job: The job.
        round_number: The round.
        sum_id: The sum.
        roster: The digest of the roster as the site computed it.

    Raises:
        ProofRefused: It proves nothing (CFD-A28), or another entry than this one (CFD-A16).
    """
    try:
        found = check(proof, TrustPolicy(policy.logs))
    except AuditError as refused:
        raise ProofRefused(f"the roster of round {round_number} of {job}: {refused.message}", code="CFD-A28") from None
    event = found.event
    said = tuple(event.get(name) for name in ("action", "decision", "job", "round", "sum", "roster"))
    if said != ("round.roster", "allowed", job, round_number, sum_id, roster):
        raise ProofRefused(f"round {round_number} of {job}: the entry isn't of this roster", code="CFD-A16")
    return found


def _opens(event: Event, job: str, round_number: int) -> bool:
    if event.get("job") != job:
        return False
    said = (event.get("action"), event.get("decision"))
    if round_number == 0:
        return said == ("job.submitted", "allowed")
    ended = event.get("round")
    return said in _ENDS and type(ended) is int and ended == round_number - 1
