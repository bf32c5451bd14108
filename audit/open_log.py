"""A log that this process has open: drafts in, receipts out.

`append` returns after the entry is on the disk. What the log says of itself, that it was opened and closed, that an
unclean end left something behind, is recorded here and taken from nobody else; how entries come onto the disk is
`committer`'s, how a log begins and is opened is `log`'s.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Literal, Self, TypeVar

from audit import durable, edge, entry, events, frame, note
from audit.canonical import Event
from audit.clock import Clock
from audit.committer import Committer
from audit.errors import EntryRefused
from audit.events.schema import shipped_hash
from audit.names import COORDINATOR, Origin
from audit.opening import Opened
from audit.places import Places
from audit.private import PrivateStore
from audit.pruning import pruning_of
from audit.receipt import Receipt
from audit.redactions import Redaction, redaction_of
from audit.settings import LogSettings
from audit.snapshot import Snapshot
from audit.storage import Store

T = TypeVar("T")
DAEMON: Final = "daemon"
CLI: Final = "cli"
_REMOVING: Final = frozenset({"audit.redacted", "audit.pruned", "subject.erased"})
_OWN_ACTIONS: Final = frozenset({"log.opened", "log.booted", "log.closed", "log.frozen", "clock.jumped"})


class OpenLog:
    """One party's log, open for appending, with the home's lock held; made by `audit.log.AuditLog` alone.

    Safe for threads. `private` is the side store for pseudonyms and commitments; `origin`, `boot` and `writer_key`
    are what a receiver of a `Receipt` needs.
    """

    def __init__(
        self,
        places: Places,
        opened: Opened,
        store: Store,
        *,
        lock: int,
        process: str,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        settings: LogSettings,
        log_signer: note.Signer,
        writer: note.Signer,
        on_broken: Callable[[str], None] | None = None,
    ) -> None:
        self._places = places
        self._lock = lock
        self._process = process
        self._clock = clock
        self._random = random_bytes
        self._log_key = str(log_signer.key)
        self._writer_key = str(writer.key)
        self._closed = False
        self._announced = False
        self._closing = threading.Lock()
        self._server: contextlib.AbstractContextManager[object] | None = None
        self.origin: Final = opened.history.origin
        self.party: Final = Origin.parse(self.origin).party
        self.boot: Final = random_bytes(16).hex()
        self.private: Final = PrivateStore(places.folder, clock=clock, random_bytes=random_bytes)
        self._committer: Final = Committer(
            places,
            opened,
            store,
            boot=self.boot,
            actor=self._service(),
            clock=clock,
            new_id=self.new_id,
            settings=settings,
            log_signer=log_signer,
            writer=writer,
            on_broken=on_broken,
        )

    @property
    def folder(self) -> Path:
        """Return the home's folder `audit`."""
        return self._places.folder

    # --- beginning and end ------------------------------------------------------------------------------------

    def _begin(self, opened: Opened, *, serve_socket: bool) -> None:
        """Record the boot, with what an unclean end left, and close what was left open."""
        if self._process == DAEMON or opened.set_aside is not None:
            self._append_own(
                events.LogBooted(
                    id=self.new_id(),
                    decision="allowed",
                    actor=self._service(),
                    software=events.Software(version=edge.software_version(), build="release"),
                    schema=shipped_hash(),
                    clock=events.ClockState(source="system", synchronised=edge.clock_is_synchronised()),
                    unclean=True if opened.unclean else None,
                    set_aside=opened.set_aside,
                )
            )
            self._announced = True
        self._finish_removals(opened)
        if self._process == DAEMON:
            left_open = self._committer.left_open()
            abandoned = [self._enqueue_own(self._abandoned(index, left_open[index])) for index in sorted(left_open)]
            for done in abandoned:
                done.result()
            self.private.sweep(self._committer.are_committed)
        if serve_socket:
            from audit.hand_over import serve

            self._server = serve(self._places.folder, self.append_body)
            self._server.__enter__()

    def _finish_removals(self, opened: Opened) -> None:
        """Do what entries record as done and a crash left undone: leaves to empty, people to erase."""
        if opened.pruning is not None and opened.to_prune:
            self._committer.prune(opened.pruning.below)
        for redaction in opened.to_empty:
            self._empty(redaction)
        for subject in self._committer.erased_subjects():
            self.private.erase(subject)

    def _empty(self, redaction: Redaction) -> None:
        self._committer.empty_leaf(redaction.index, bytes.fromhex(redaction.leaf_hash.removeprefix("sha256:")))

    def _done(self, receipt: Receipt, body: Event) -> Receipt:
        """Do what an entry just recorded, before its receipt is handed over; opening finishes what fails here."""
        if body["decision"] == "allowed" and body["action"] in _REMOVING:
            redaction = redaction_of(receipt.index, body)
            if redaction is not None:
                self._empty(redaction)
            pruning = pruning_of(receipt.index, body)
            if pruning is not None:
                self._committer.prune(pruning.below)
            if body["action"] == "subject.erased":
                self.private.erase(body["subject"])
        return receipt

    def _abandoned(self, index: int, event: Event) -> events.DataAbandoned:
        body: Event = {
            "id": self.new_id(),
            "decision": "allowed",
            "actor": self._service().model_dump(exclude_none=True),
            "opened": index,
            **{name: event[name] for name in ("dataset", "job", "round") if name in event},
        }
        return events.DataAbandoned.model_validate(body)

    def close(self, reason: Literal["drain", "signal", "error"] = "drain") -> None:
        """Record the end, sign the last checkpoint, and let go of the home; a second call does nothing.

        Raises:
            AppendFailed: The end couldn't be recorded; the home is let go of all the same.
        """
        with self._closing:
            if self._closed:
                return
            try:
                if self._server is not None:
                    self._server.__exit__(None, None, None)
                    self._server = None
                if self._announced:
                    self._append_own(
                        events.LogClosed(id=self.new_id(), decision="allowed", actor=self._service(), reason=reason)
                    )
            finally:
                self._closed = True
                self._release()

    def _release(self) -> None:
        try:
            self._let_go()
        finally:
            os.close(self._lock)

    def _let_go(self) -> None:
        """Let go of all but the lock."""
        self._closed = True
        try:
            self._committer.end()
        finally:
            self.private.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("drain" if kind is None else "error")

    # --- what callers do --------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return the number of durable entries."""
        return self._committer.history.size

    @property
    def writer_key(self) -> str:
        """Return the verifier key of this process, with which another re-opens its receipts."""
        return self._writer_key

    @property
    def checkpoint_key(self) -> str:
        """Return the verifier key of this log's checkpoints, as a trust policy pins it."""
        return self._log_key

    @property
    def broken(self) -> str:
        """Return why this process can append no more, or nothing; a daemon then ends and is started again."""
        return self._committer.broken

    def new_id(self) -> str:
        """Return a fresh event id."""
        return events.new_event_id(self._clock, self._random)

    def append(self, draft: events.Draft) -> Receipt:
        """Return the receipt of `draft` once its entry is on the disk.

        The same id with the same content returns the first receipt again.

        Raises:
            AppendFailed: The entry isn't durable: don't act.
            IdConflict: The id names another event.
            EntryRefused: The draft is too large, of another site, or one that the log itself writes.
        """
        body = draft.body()
        return self._done(self._submit(body).result(), body)

    def submit(self, draft: events.Draft) -> "Future[Receipt]":
        """Queue `draft` and return a future of its receipt; for entries that permit nothing by themselves.

        Raises:
            AppendFailed: The queue stayed full for `append_timeout_s`, or the log is closed.
            EntryRefused: As `append`.
        """
        return self._submit(draft.body())

    def append_body(self, body: Event) -> Receipt:
        """Append a draft that came as plain JSON from another local process.

        Raises:
            EntryRefused: It isn't a valid draft.
        """
        checked = entry.draft_from(body).body()
        return self._done(self._submit(checked).result(), checked)

    def checkpoint(self) -> bytes:
        """Return a signed checkpoint of at least all entries acknowledged before the call, durable in the home.

        Call it at each round's end.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        return self._committer.checkpoint()

    # --- for witnessing ---------------------------------------------------------------------------------------

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work`, which must be quick, reads of the stored log as it is now.

        Raises:
            AuditError: The log is closed, or can't be read.
        """
        return self._committer.read(work)

    def keep_cosigned(self, size: int, cosigned: bytes, *, quorum: bool) -> None:
        """Keep a checkpoint of this log with its cosignatures; durable on return.

        Raises:
            AppendFailed: It isn't kept.
        """
        self._committer.keep_cosigned(size, cosigned, quorum=quorum)

    def keep_witnessed(
        self, rows: Sequence[tuple[str, int, bytes, bytes]], evidence: Sequence[tuple[str, str, bytes]] = ()
    ) -> None:
        """Keep what this party cosigned of other logs, and what it holds against them; durable on return.

        Args:
            rows: Origin, size, root and note of each.
            evidence: Origin, kind and notes of each; kept for ever.

        Raises:
            AppendFailed: Nothing is kept.
        """
        self._committer.keep_witnessed(rows, evidence)

    def rebuild(self) -> int:
        """Make anew the rows by which queries find entries, and return how many entries there are.

        Raises:
            AppendFailed: The log is closed, or the disk is full; the rows follow later.
        """
        return self._committer.rebuild()

    def freeze(self, reason: str, *, held: bytes = b"") -> None:
        """Record that this epoch takes nothing more, and let go of it.

        Args:
            reason: Why, as a token.
            held: A checkpoint that others hold of this log, signed by its key, of a longer or another tree. It becomes
                the file `checkpoint`, so that this tree is never taken for the log, and the next epoch names the other.

        Raises:
            AppendFailed: It couldn't be recorded; the epoch is let go of and not frozen.
        """
        with self._closing:
            self._announced = False  # the entry that freezes is the last
            size, root = self._committer.tree_head
            frozen = events.LogFrozen(
                id=self.new_id(),
                decision="allowed",
                actor=self._service(),
                reason=reason,
                size=size,
                root=frame.hash_text(root),
            )
            try:
                self._append_own(frozen)
                durable.replace_file(self._places.frozen, reason.encode() + b"\n")
            finally:
                self._closed = True
                self._release()
                if held:
                    durable.replace_file(self._places.checkpoint, held)

    def _submit(self, body: Event) -> "Future[Receipt]":
        if body["action"] in _OWN_ACTIONS:
            raise EntryRefused(f"{body['action']} is written by the log itself")
        if body["action"] == "key.revoked" and body["vkey"] in (self.writer_key, self.checkpoint_key):
            raise EntryRefused("a key that this process signs with can't be revoked by it: nothing could follow")
        if self.party != COORDINATOR and body.setdefault("site", self.party) != self.party:
            raise EntryRefused(f"an entry about another site in the log of {self.party}")
        return self._committer.submit(body)

    def _append_own(self, draft: events.Draft) -> Receipt:
        return self._enqueue_own(draft).result()

    def _enqueue_own(self, draft: events.Draft) -> "Future[Receipt]":
        body = draft.body()
        if self.party != COORDINATOR:
            body["site"] = self.party
        return self._committer.submit(body)

    def _service(self) -> events.Actor:
        return events.Actor(kind="service", id=self._process)
