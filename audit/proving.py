"""Which checkpoint a proof leads to, and whether others have seen it; asks a running home for a newer one."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit import checkpoint as checkpoints
from audit import edge, proofs
from audit.checked import ReadableLog
from audit.checkpoint import OpenedCheckpoint
from audit.errors import AuditError, NoteRefused, SecondWriter
from audit.export.bundle_write import proof_of
from audit.log import AuditLog
from audit.note import VerifierKey
from audit.open_log import CLI
from audit.quorum import Quorum, judge
from audit.reading import FoundLog, find_log
from audit.trust import TrustPolicy

WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A checkpoint of a log, found consistent with it, and what its cosignatures amount to.

    Attributes:
        signed: The checkpoint.
        quorum: By the reader's policy; None where the reader has none for this log.
    """

    signed: OpenedCheckpoint
    quorum: Quorum | None

    @property
    def text(self) -> str:
        """Return one sentence about who has seen it."""
        found = self.quorum
        if found is None or not found.needed:
            return "not yet witnessed: the trust policy asks for no other party's word"
        if found.met:
            return f"cosigned by {', '.join(found.heard)} (quorum {found.needed})"
        missing = ", ".join(found.missing)
        return f"not yet witnessed: {len(found.heard)} of {found.needed} cosignatures, missing {missing}"

    @property
    def seen(self) -> bool:
        """Return whether a quorum of others saw it."""
        return self.quorum is not None and self.quorum.witnessed


def refresh(found: FoundLog, size: int) -> None:
    """See that a live home has signed a checkpoint of at least `size` entries, as far as that is possible now.

    A daemon signs one by itself a few seconds after news; where none runs, this process signs it.
    """
    if not found.live or found.audit_folder is None or found.places.frozen.exists():
        return
    until_s = time.monotonic() + WAIT_S
    while _signed_size(found) < size and time.monotonic() < until_s:
        try:
            with AuditLog.open(found.places.folder, clock=edge.SystemClock(), process=CLI) as log:
                log.checkpoint()
        except SecondWriter:
            time.sleep(_PAUSE_S)
        except AuditError:
            return  # what stops its start is said by whoever reads on


def _signed_size(found: FoundLog) -> int:
    try:
        return checkpoints.parse(found.checkpoint_bytes()).size
    except NoteRefused:
        return 0


def choose(
    log: ReadableLog, newest: bytes, policy: TrustPolicy | None, *, covering: int = 0, witnessed_first: bool = True
) -> Witnessed:
    """Return the checkpoint that proofs should lead to: the newest with a quorum, else the newest that was signed.

    Args:
        log: The log.
        newest: The newest checkpoint that it signed.
        policy: What the reader trusts.
        covering: It must be of at least so many entries.
        witnessed_first: Prefer a smaller one that others have seen.

    Raises:
        AuditError: None is signed yet that covers so many.
    """
    candidates = [*sorted(log.quorums().items(), reverse=True)] if witnessed_first else []
    for size, note in candidates:
        if size >= covering and (found := _opened(log, note, policy)) is not None and found.seen:
            return found
    found = _opened(log, newest, policy) if newest else None
    if found is None or found.signed.size < max(1, covering):
        raise AuditError(
            "CFD-A45",
            "the log hasn't signed a checkpoint that covers this yet",
            hint="wait for its next checkpoint, a few seconds, and ask again",
            exit_status=1,
        )
    return found


def _opened(log: ReadableLog, note: bytes, policy: TrustPolicy | None) -> Witnessed | None:
    try:
        keys: tuple[VerifierKey, ...] = log.keyring.log_keys_at(checkpoints.parse(note).size)
        signed = checkpoints.open_checkpoint(note, origin=log.origin, log_keys=keys)
        if signed.size > log.size or proofs.root_at(log.tree, signed.size) != signed.root:
            return None
        known = policy is not None and bool(policy.for_origin(log.origin))
        return Witnessed(signed, judge(signed, policy) if policy is not None and known else None)
    except NoteRefused:
        return None


def prove_in_an_earlier_epoch(folder: Path, event_id: str, policy: TrustPolicy | None) -> bytes | None:
    """Return the proof file of an entry in an epoch before the one in use, under what a quorum saw; None for none.

    Args:
        folder: The home's folder `audit`.
        event_id: Of the entry.
        policy: What the home trusts about its own log, with the keys of its earlier epochs.
    """
    for epoch in reversed(find_log(folder).epochs()[:-1]):
        try:
            with epoch.checked() as checked:
                index = checked.find_id(bytes.fromhex(event_id))
                if index is None:
                    continue
                chosen = choose(checked, epoch.checkpoint_bytes(), policy, covering=index + 1)
                return bytes(proof_of(checked, chosen.signed, index, checked.row(index).leaf))
        except AuditError:
            continue  # damaged, or not signed so far: that is why there is another epoch
    return None
