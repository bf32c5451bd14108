"""A party as a witness of the others: one lock for each log, durable before it answers, and forks kept for ever.

`witness.step` decides; here its state is read at the start, kept by the log's own database in the transaction that
comes before the reply, and what people must hear of is recorded. The same checkpoint again gets a cosignature again.
Whoever calls brings the request and carries the reply; nothing here knows a network.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from audit import note, witness
from audit.canonical import Event
from audit.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint
from audit.clock import Clock
from audit.errors import AuditError, NoteRefused
from audit.events import Actor, TreeHead, WitnessCosigned, WitnessRefused
from audit.filters import Filters
from audit.frame import hash_text, read_frame
from audit.log import AuditLog
from audit.names import Origin
from audit.snapshot import Snapshot
from audit.trust_file import TrustFolder
from audit.witness import AddCheckpoint, Answer, Seen, Status

FORK: Final = "fork"
REFUSED: Final = "witness.refused"
ACKNOWLEDGED: Final = "witness.acknowledged"
_SUSPICIONS: Final = 2
"""Failed proofs of one checkpoint after which a refusal is recorded: the first may have been spoiled on the way."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two notes of one log that contradict each other.

    Attributes:
        origin: The log.
        notes: Both, as they were signed.
    """

    origin: str
    notes: tuple[bytes, bytes]

    @property
    def digest(self) -> str:
        """Return the hash by which entries name the pair."""
        return "sha256:" + hashlib.sha256(bytes(self)).hexdigest()

    def __bytes__(self) -> bytes:
        return b"".join(len(one).to_bytes(4, "big") + one for one in self.notes)

    @classmethod
    def parse(cls, origin: str, data: bytes) -> "Evidence":
        """Return the pair that `bytes` gave."""
        length = int.from_bytes(data[:4], "big")
        return cls(origin, (data[4 : 4 + length], data[8 + length :]))


class WitnessOffice:
    """What one party says as a witness. Safe for threads.

    Args:
        log: The party's own log, which keeps what the witness saw and records what it did.
        trust: Whose logs it witnesses, and by which keys.
        signer: Its witness key.
        clock: The time of its cosignatures.
        alarm: Told the origin and one sentence when a log contradicts itself or a proof keeps failing.
    """

    def __init__(
        self,
        log: AuditLog,
        trust: TrustFolder,
        signer: note.Signer,
        clock: Clock,
        *,
        alarm: Callable[[str, str], None],
    ) -> None:
        self._log = log
        self._trust = trust
        self._signer = signer
        self._clock = clock
        self._alarm = alarm
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._suspicions: dict[tuple[str, int, bytes], int] = {}
        self._recorded: dict[str, str] = {}
        witnessed, evidence = log.read(lambda snapshot: (snapshot.witnessed(), snapshot.evidence()))
        self._seen = {origin: Seen(size, root, signed) for origin, size, root, signed in witnessed}
        self._forks = [Evidence.parse(origin, notes) for origin, kind, notes in evidence if kind == FORK]

    @property
    def key(self) -> note.VerifierKey:
        """Return the public half of the witness key."""
        return self._signer.key

    def seen(self, origin: str) -> Seen:
        """Return the largest tree of a log that was cosigned here."""
        return self._seen.get(origin, Seen())

    def all_seen(self) -> dict[str, Seen]:
        """Return the largest tree of each log that was cosigned here, by origin."""
        return dict(self._seen)

    def line_of(self, origin: str) -> tuple[Seen, str] | None:
        """Return the last cosignature that was given to a log, with its tree; None where there was none."""
        seen = self.seen(origin)
        if not seen.note:
            return None
        lines = note.parse_note(seen.note).signatures
        own = [str(line) for line in lines if (line.name, line.key_id) == (self.key.name, self.key.id)]
        return (seen, own[0]) if own else None

    # --- answering --------------------------------------------------------------------------------------------

    def answer(self, request: AddCheckpoint, *, about: str | None = None) -> Answer:
        """Return the answer to one request; see `answer_all`."""
        return self.answer_all([request], about=about)[0]

    def answer_all(self, requests: Sequence[AddCheckpoint], *, about: str | None = None) -> list[Answer]:
        """Return the answers to requests about different logs; what they change is durable on return.

        Args:
            requests: At most one for each log.
            about: The job and round for which others sign just now; a cosignature is recorded once for each.

        Raises:
            AppendFailed: The state couldn't be kept; no cosignature was given.
        """
        origins = sorted({request.checkpoint.origin for request in requests})
        party = witness.Witness(self._log_keys(), (self._signer,))
        now_s = int(self._clock.now().timestamp())
        with ExitStack() as held:
            for origin in origins:
                held.enter_context(self._lock_of(origin))
            answers = [self._step(party, request, now_s) for request in requests]
            self._keep(list(zip(requests, answers, strict=True)))
        for request, answer in zip(requests, answers, strict=True):
            self._record(request, answer, about)
        return answers

    def check_same(self, offered: OpenedCheckpoint) -> None:
        """Hold a signed checkpoint, which came without a request, against what was seen.

        Raises:
            NoteRefused: It has the size of what was seen and another root (CFD-A08); the pair is kept.
        """
        seen = self.seen(offered.origin)
        fork = witness.fork_of(seen.note, offered, offered.signers) if seen.note else None
        if fork is not None:
            self._keep_fork(fork)
            raise NoteRefused(f"{offered.origin} has two histories of {offered.size} entries", code="CFD-A08")

    def _log_keys(self) -> dict[str, Sequence[note.VerifierKey]]:
        keys: dict[str, list[note.VerifierKey]] = {}
        for party in self._trust.parties():
            policy = self._trust.policy(party)
            if policy is None or party == self._log.party:
                continue
            for key in policy.logs:
                keys.setdefault(key.name, []).append(key)
        return {origin: tuple(found) for origin, found in keys.items()}

    def log_keys(self, origin: str) -> Sequence[note.VerifierKey]:
        """Return the pinned keys of a log that is witnessed here; none for any other."""
        return self._log_keys().get(origin, ())

    def _lock_of(self, origin: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(origin, threading.Lock())

    def _step(self, party: witness.Witness, request: AddCheckpoint, now_s: int) -> Answer:
        seen = self.seen(request.checkpoint.origin)
        answer = witness.step(party, seen, request, now_s)
        if answer.status is Status.OTHER_SIZE and request.checkpoint.size == seen.size:
            # The asker didn't hear the last reply; what it shows may be the very tree that was cosigned.
            answer = witness.step(party, seen, AddCheckpoint(seen.size, (), request.checkpoint), now_s)
        return answer

    def _keep(self, answered: list[tuple[AddCheckpoint, Answer]]) -> None:
        rows: dict[str, Seen] = {}
        forks: list[Evidence] = []
        for request, answer in answered:
            origin = request.checkpoint.origin
            if answer.seen != self.seen(origin):
                rows[origin] = Seen(answer.seen.size, answer.seen.root, _kept(answer))
            if answer.fork is not None and (pair := Evidence(origin, answer.fork.notes)) not in self._forks:
                forks.append(pair)
        if rows or forks:
            self._log.keep_witnessed(
                [(origin, seen.size, seen.root, seen.note) for origin, seen in rows.items()],
                [(pair.origin, FORK, bytes(pair)) for pair in forks],
            )
        self._seen.update(rows)
        self._forks += forks

    def _keep_fork(self, fork: witness.Fork) -> None:
        pair = Evidence(fork.origin, fork.notes)
        with self._lock_of(fork.origin):
            if pair in self._forks:
                return
            self._log.keep_witnessed([], [(pair.origin, FORK, bytes(pair))])
            self._forks.append(pair)
        offered = open_checkpoint(fork.notes[1], origin=fork.origin, log_keys=self.log_keys(fork.origin))
        self._refuse(self.seen(fork.origin), offered, Status.CONTRADICTED, pair)

    # --- what is recorded ---------------------------------------------------------------------------------------

    def _record(self, request: AddCheckpoint, answer: Answer, about: str | None) -> None:
        offered = request.checkpoint
        if answer.status is Status.COSIGNED:
            if about is not None and self._recorded.get(offered.origin) != about:
                self._recorded[offered.origin] = about
                self._log.submit(
                    WitnessCosigned(
                        id=self._log.new_id(),
                        decision="allowed",
                        actor=self._actor(offered.origin),
                        log=offered.origin,
                        size=offered.size,
                        root=hash_text(offered.root),
                    )
                )
            return
        if answer.fork is not None:
            self._refuse(answer.seen, offered, answer.status, Evidence(offered.origin, answer.fork.notes))
        elif answer.status is Status.CONTRADICTED:
            about_what = (offered.origin, offered.size, offered.root)
            count = self._suspicions[about_what] = self._suspicions.get(about_what, 0) + 1
            if count == _SUSPICIONS:
                self._refuse(answer.seen, offered, answer.status, None)

    def _refuse(self, seen: Seen, offered: Checkpoint, status: Status, evidence: Evidence | None) -> None:
        self._log.append(
            WitnessRefused(
                id=self._log.new_id(),
                decision="refused",
                code="CFD-A08" if evidence is not None else "CFD-A04",
                actor=self._actor(offered.origin),
                log=offered.origin,
                status=int(status) if int(status) >= 400 else 422,
                held=TreeHead(size=seen.size, root=hash_text(seen.root)),
                offered=TreeHead(size=offered.size, root=hash_text(offered.root)),
                evidence=None if evidence is None else [evidence.digest],
            )
        )
        what = "has two histories" if evidence is not None else "doesn't show that it only grew"
        self._alarm(offered.origin, f"the log {offered.origin} {what}")

    @staticmethod
    def _actor(origin: str) -> Actor:
        return Actor(kind="party", id=Origin.parse(origin).party, auth="mtls")

    # --- forks ------------------------------------------------------------------------------------------------

    def forks(self) -> tuple[Evidence, ...]:
        """Return every pair of notes that proves a fork, the oldest first."""
        return tuple(self._forks)

    def is_forked(self, origin: str) -> bool:
        """Return whether a log has a proved fork that no person has acknowledged."""
        pairs = {pair.digest for pair in self._forks if pair.origin == origin}
        return bool(pairs) and bool(pairs - acknowledged(self._log, origin))


def _kept(answer: Answer) -> bytes:
    """Return the log's signatures and the own cosignature, which can be given again and says when."""
    shown = note.parse_note(answer.seen.note)
    origin = shown.text.partition("\n")[0]
    by_the_log = tuple(line for line in shown.signatures if line.name == origin)
    return bytes(note.Note(shown.text, by_the_log)) + answer.reply.encode()


def acknowledged(log: AuditLog, origin: str) -> set[str]:
    """Return the hashes of the pairs of a log that a person took note of."""
    return log.read(lambda snapshot: acknowledged_in(snapshot, origin))


def acknowledged_in(snapshot: Snapshot, origin: str) -> set[str]:
    """Return the hashes of the pairs of a log that a person took note of, as `snapshot` has it."""
    found: set[str] = set()
    for event in events_of(snapshot, ACKNOWLEDGED):
        if event.get("log") == origin:
            found |= set(event.get("evidence", ()))
    return found


def events_of(snapshot: Snapshot, action: str) -> list[Event]:
    """Return the log's events of one action, the oldest first; their signatures aren't checked here."""
    head = snapshot.head()
    if head is None:
        return []
    projected = snapshot.next_projected()
    indices = [row[0] for page in snapshot.matching(Filters(action=action), 0, projected) for row in page]
    indices += range(projected, head.size)  # what isn't projected yet is read itself
    found = []
    for index in [index for index in indices if isinstance(index, int)]:
        stored = snapshot.entry(index)
        if stored is None or not stored.leaf:
            continue
        try:
            event, _ = read_frame(stored.leaf, origin=None)
        except AuditError:
            continue
        if event.get("action") == action:
            found.append(event)
    return found
