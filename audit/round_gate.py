"""May a round open? Only if the coordinator's log, seen by others, shows how the one before ended; pure.

The message that opens round r carries a proof file of the coordinator's entry that ended round r − 1 (of the job's
submission, before round 0) under a checkpoint with a quorum. So a coordinator that withholds checkpoints from its
witnesses, or writes nothing down, gets no further round.
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


def _opens(event: Event, job: str, round_number: int) -> bool:
    if event.get("job") != job:
        return False
    said = (event.get("action"), event.get("decision"))
    if round_number == 0:
        return said == ("job.submitted", "allowed")
    ended = event.get("round")
    return said in _ENDS and type(ended) is int and ended == round_number - 1
