"""A party's own log before its witnesses: checkpoints published, cosignatures gathered, a quorum waited for.

Nothing is published after a start before enough others told what they last cosigned (`gossip.words_missing`): so a log
that was restored from a copy learns it, and closes its epoch, before anybody sees a second history. The newest
checkpoint with a quorum is kept in the log's database and survives a restart.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from audit import checkpoint, gossip, note, proofs, quorum
from audit.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint
from audit.clock import Clock, microseconds
from audit.cosignature import cosignatures_of, with_cosignatures
from audit.errors import LogBehind, LogDamaged, NoteRefused
from audit.events import Actor, AuditCosigned, WitnessStale
from audit.frame import hash_text
from audit.log import AuditLog
from audit.note import SignatureLine, VerifierKey
from audit.proof_file import ProofFile
from audit.trust import TrustPolicy
from audit.trust_file import TrustFolder

KEPT: Final = 32
"""Published checkpoints that still gather cosignatures."""
SERVICE: Final = Actor(kind="service", id="daemon")


@dataclass(frozen=True, slots=True)
class Cosigned:
    """A witness's line about a tree of this log, as it came.

    Attributes:
        size: Of the tree.
        root: Its root.
        line: The signature line.
    """

    size: int
    root: bytes
    line: SignatureLine


class CosignedLog:
    """The party's own log with what its witnesses said of it. Safe for threads.

    Args:
        log: The log.
        trust: The home's policies; its own party's says who the witnesses are.
        clock: The time.
        stale_after_s: How long news of the log may stay without a quorum.
        alarm: Told one sentence when it stays longer.
    """

    def __init__(
        self,
        log: AuditLog,
        trust: TrustFolder,
        clock: Clock,
        *,
        stale_after_s: float,
        alarm: Callable[[str], None],
    ) -> None:
        self._log = log
        self._trust = trust
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._alarm = alarm
        self._key = VerifierKey.parse(log.checkpoint_key)
        self._changed = threading.Condition()
        self._published: OrderedDict[int, OpenedCheckpoint] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._heard: dict[str, OpenedCheckpoint | None] = {}
        self._may_publish = False
        self._about: dict[int, str] = {}
        self._recorded = ""
        self._uncovered_us: int | None = None
        self._said_stale = False
        kept = log.read(lambda snapshot: snapshot.newest_quorum())
        self._newest: OpenedCheckpoint | None = self._own(kept) if kept else None

    def _own(self, data: bytes) -> OpenedCheckpoint:
        return open_checkpoint(data, origin=self._log.origin, log_keys=[self._key])

    @property
    def policy(self) -> TrustPolicy:
        """Return who witnesses this log, and how many of them are enough."""
        found = self._trust.policy(self._log.party)
        return TrustPolicy((self._key,)) if found is None else found

    # --- after a start ----------------------------------------------------------------------------------------

    @property
    def words_missing(self) -> int:
        """Return of how many more other operators this log must hear before it publishes again."""
        with self._changed:
            return self._missing()

    def _missing(self) -> int:
        if self._may_publish:
            return 0
        policy = self.policy
        needed = gossip.words_needed(len(policy.voices()), policy.needed())
        return max(needed - len(self._heard), 0)

    def hear(self, words: Mapping[str, bytes]) -> None:
        """Take in what others last cosigned of this log, empty for nothing, by party.

        Words by whoever isn't a witness, and trees that this log's key didn't sign, are passed over: they came over a
        relay.

        Raises:
            LogBehind: Somebody has a longer tree: this log was restored from a copy, and is frozen now.
            LogDamaged: Somebody has another history of it (CFD-A08), and it is frozen now.
        """
        policy = self.policy
        voices = {party: voice for voice in policy.voices() for party in _members(policy, voice)}
        heard: dict[str, OpenedCheckpoint | None] = {}
        for party, data in words.items():
            if party not in voices:
                continue
            try:
                word = self._own(data) if data else None
            except NoteRefused:
                continue
            heard[voices[party]] = word
            if word is not None:
                self._sizes[party] = max(word.size, self._sizes.get(party, 0))
        self._hold_against(heard)
        with self._changed:
            self._heard |= heard
            if not self._missing():
                self._may_publish = True
                self._changed.notify_all()

    def _hold_against(self, heard: Mapping[str, OpenedCheckpoint | None]) -> None:
        size = self._log.size
        sizes = sorted({word.size for word in heard.values() if word is not None and word.size <= size})
        roots = dict(
            zip(sizes, self._log.read(lambda snapshot: [proofs.root_at(snapshot, at) for at in sizes]), strict=True)
        )
        try:
            gossip.words_missing(size, lambda at: roots[at], heard, 0)
        except (LogBehind, LogDamaged) as problem:
            worst = max((word for word in heard.values() if word is not None), key=lambda word: word.size)
            reason = "behind" if isinstance(problem, LogBehind) else "forked"
            self._log.freeze(reason, held=bytes(worst.signed))
            raise

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(self, *, about: str | None = None) -> OpenedCheckpoint | None:
        """Return a checkpoint of at least all entries acknowledged so far; None while words are missing.

        Args:
            about: The job and round that it ends, for `audit.cosigned`.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        if self.words_missing:
            return None
        signed = self._own(self._log.checkpoint())
        policy = self.policy
        with self._changed:
            self._may_publish = True
            found = self._published.get(signed.size)
            if found is None:
                found = self._published[signed.size] = signed
                while len(self._published) > KEPT:
                    self._published.popitem(last=False)
                if self._newest is None or self._newest.size < signed.size:
                    self._uncovered_us = self._uncovered_us or microseconds(self._clock.now())
            if about is not None:
                self._about[signed.size] = about
                for old in [size for size in self._about if size not in self._published]:
                    del self._about[old]
        if policy.needed() == 0:
            self._settle(found, policy)
        return found

    def published(self) -> OpenedCheckpoint | None:
        """Return the newest published checkpoint, None where none was published since the start."""
        with self._changed:
            return next(reversed(self._published.values()), None)

    def wait_to_publish(self, timeout_s: float) -> bool:
        """Return whether this log may publish, after waiting for it up to `timeout_s`."""
        if not self.words_missing:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._missing(), timeout_s)

    def growth(self, to: int, old_sizes: Iterable[int]) -> dict[int, proofs.Proof]:
        """Return the proofs that the tree of `to` entries grew from those of these sizes, by old size."""
        wanted = gossip.proofs_wanted(to, old_sizes)
        if not wanted:
            return {}
        return self._log.read(lambda snapshot: proofs.prove_growth(snapshot, wanted, to))

    def cosigned_sizes(self) -> dict[str, int]:
        """Return the size of this log that each witness last cosigned, as far as it is known here."""
        with self._changed:
            return dict(self._sizes)

    # --- gathering --------------------------------------------------------------------------------------------

    def add(self, lines: Iterable[Cosigned]) -> None:
        """Take in cosignatures; wrong ones and those by whoever isn't a witness are passed over.

        Raises:
            AppendFailed: A checkpoint that reached its quorum couldn't be kept.
        """
        policy = self.policy
        parties = {(key.name, key.id): party for party, key in policy.witnesses.items()}
        for size, found in _by_size(lines).items():
            for cosigned in found:
                party = parties.get((cosigned.line.name, cosigned.line.key_id))
                if party is not None and self._is_by(cosigned, policy.witnesses[party]):
                    with self._changed:
                        self._sizes[party] = max(size, self._sizes.get(party, 0))
            with self._changed:
                held = self._published.get(size)
            if held is None:
                continue
            merged = with_cosignatures(held, [one.line for one in found], policy.witnesses.values())
            if len(merged.signed.signatures) > len(held.signed.signatures):
                with self._changed:
                    now = self._published.get(size, held)
                    merged = with_cosignatures(now, merged.signed.signatures, policy.witnesses.values())
                    self._published[size] = merged
                self._settle(merged, policy)

    def _is_by(self, cosigned: Cosigned, key: VerifierKey) -> bool:
        text = checkpoint.text_of(self._log.origin, cosigned.size, cosigned.root)
        shown = Checkpoint(self._log.origin, cosigned.size, cosigned.root, note.Note(text, (cosigned.line,)))
        try:
            return bool(cosignatures_of(shown, [key]))
        except NoteRefused:
            return False

    def _settle(self, held: OpenedCheckpoint, policy: TrustPolicy) -> None:
        """Keep a checkpoint that has enough cosignatures, and let go on who waits for it."""
        try:
            found = quorum.judge(held, policy)
        except NoteRefused:
            return
        if not found.met:
            return
        with self._changed:
            fresh = self._newest is None or self._newest.size < held.size
            richer = self._newest is not None and self._newest.size == held.size
            about = self._about.get(held.size)
        if fresh:
            self._log.keep_cosigned(held.size, bytes(held.signed), quorum=True)
        if not (fresh or richer):
            return
        with self._changed:
            if self._newest is None or self._newest.size <= held.size:
                self._newest = held
                self._uncovered_us = None
                self._said_stale = False
            self._changed.notify_all()
        if fresh and about is not None and about != self._recorded and found.witnessed:
            self._recorded = about
            self._log.submit(
                AuditCosigned(
                    id=self._log.new_id(),
                    decision="allowed",
                    actor=SERVICE,
                    size=held.size,
                    root=hash_text(held.root),
                    witnesses=[found_key.key.name for found_key in found.cosignatures],
                )
            )

    def keep_all(self) -> None:
        """Keep what came since: the newest checkpoint with its quorum, and a newer one with too few cosignatures."""
        with self._changed:
            newest, published = self._newest, next(reversed(self._published.values()), None)
        if newest is not None:
            self._log.keep_cosigned(newest.size, bytes(newest.signed), quorum=True)
        if published is not None and (newest is None or published.size > newest.size):
            self._log.keep_cosigned(published.size, bytes(published.signed), quorum=False)

    # --- what is shown ----------------------------------------------------------------------------------------

    def newest(self) -> OpenedCheckpoint | None:
        """Return the newest checkpoint that has its quorum."""
        with self._changed:
            return self._newest

    def wait_for(self, index: int, timeout_s: float) -> OpenedCheckpoint | None:
        """Return the newest checkpoint with a quorum that covers entry `index`, None if there is none in time."""

        def covered() -> bool:
            return self._newest is not None and self._newest.size > index

        with self._changed:
            self._changed.wait_for(covered, timeout_s)
            return self._newest if covered() else None

    def lacking(self) -> str:
        """Return in words what the newest published checkpoint lacks."""
        with self._changed:
            held = next(reversed(self._published.values()), None)
        if held is None:
            return f"words of {self._missing()} more witnesses are awaited after the start"
        found = quorum.judge(held, self.policy)
        return f"{len(found.heard)} of {found.needed} cosignatures, missing {', '.join(found.missing) or 'none'}"

    def find(self, event_id: str) -> tuple[int, bytes] | None:
        """Return index and leaf of the entry with this id."""
        return self._log.read(lambda snapshot: snapshot.find_id(bytes.fromhex(event_id)))

    def prove(self, index: int, leaf: bytes | None, under: OpenedCheckpoint) -> ProofFile:
        """Return the proof file of an entry under a checkpoint of this log.

        Raises:
            ProofRefused: The checkpoint doesn't cover it.
        """
        path = self._log.read(lambda snapshot: proofs.prove_inclusion(snapshot, index, under.size))
        return ProofFile(index, path, under, leaf)

    def entries(self, indices: Iterable[int], under: OpenedCheckpoint) -> list[ProofFile]:
        """Return the proof files, with leaves, of these entries under a checkpoint of this log.

        Raises:
            ProofRefused: The checkpoint doesn't cover one of them.
        """
        wanted = list(indices)
        leaves = self._log.read(lambda snapshot: [snapshot.entry(index) for index in wanted])
        return [
            self.prove(index, None if stored is None else stored.leaf, under)
            for index, stored in zip(wanted, leaves, strict=True)
        ]

    # --- stale ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Record and say, once, that news of this log has been without a quorum for too long."""
        now_us = microseconds(self._clock.now())
        with self._changed:
            since_us = self._uncovered_us
            late = since_us is not None and now_us - since_us > self._stale_after_s * 1e6
            if not late or self._said_stale or since_us is None:
                return
            self._said_stale = True
            cosigned = 0 if self._newest is None else self._newest.size
        self._log.append(
            WitnessStale(
                id=self._log.new_id(),
                decision="failed",
                code="CFD-A28",
                actor=SERVICE,
                log=self._log.origin,
                size=self._log.size,
                cosigned_size=cosigned,
                since_us=since_us,
            )
        )
        self._alarm(f"{self._log.origin} has had no quorum of witnesses since entry {cosigned}: {self.lacking()}")


def _members(policy: TrustPolicy, voice: str) -> tuple[str, ...]:
    """Return the parties behind a voice of the quorum: a witness itself, or an operator's."""
    group = policy.groups.get(voice)
    if group is None:
        return (voice,)
    return tuple(party for member in group.members for party in _members(policy, member))


def _by_size(lines: Iterable[Cosigned]) -> dict[int, list[Cosigned]]:
    found: dict[int, list[Cosigned]] = {}
    for one in lines:
        found.setdefault(one.size, []).append(one)
    return found
