"""The one thread that commits: what queued up while the disk was busy becomes the next batch.

A batch is assigned, signed and hashed on a copy of the state, written in one transaction, and only then adopted and
acknowledged; a failed batch leaves everything as it was. After an I/O error nobody knows what the disk holds, so
nothing is appended any more; a server that is lost in a COMMIT is asked what became of it. A checkpoint is durable
before anybody sees it. Projections follow when nothing waits, or when they are far behind.

Not here: which drafts a log takes, and what it records of itself (`log`).
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeVar

from audit import canonical, durable, entry, events, frame, note
from audit import checkpoint as checkpoints
from audit.canonical import Event
from audit.clock import Clock
from audit.errors import AppendFailed, AuditError, EntryRefused, IdConflict
from audit.history import History
from audit.opening import Opened
from audit.places import Places
from audit.projector import BEHIND, Projector
from audit.pruning import inside_of
from audit.receipt import Receipt, issue
from audit.scribe import Pending, Scribe, Written
from audit.settings import LogSettings
from audit.snapshot import Snapshot
from audit.storage import OutcomeUnknown, Store
from audit.tiles import HASHES_PER_TILE, Edge

T = TypeVar("T")
MAX_BATCH_ENTRIES: Final = 512
MAX_BATCH_BYTES: Final = 4 << 20
IDLE_S: Final = 0.1
"""Seconds without a draft after which the projections follow."""


@dataclass(slots=True)
class _Request:
    """Something else for the committer: a checkpoint, and then perhaps the end."""

    work: Callable[[], object]
    stop: bool = False
    done: "Future[object]" = field(default_factory=Future)


class Committer:
    """Appends to an opened log; safe for threads. Its thread runs from the start until `end`.

    Args:
        places: Where the log lies; the caller holds its lock.
        opened: What opening found.
        store: The log's database, closed by `end`.
        boot: The id of this process.
        actor: Who records what the committer itself notices.
        clock: Wall and monotonic time.
        new_id: Gives ids for the committer's own entries.
        settings: Limits.
        log_signer: Signs checkpoints.
        writer: Signs entries.
        on_broken: Told once why nothing more can be appended, after whoever waited was.
    """

    def __init__(
        self,
        places: Places,
        opened: Opened,
        store: Store,
        *,
        boot: str,
        actor: events.Actor,
        clock: Clock,
        new_id: Callable[[], str],
        settings: LogSettings,
        log_signer: note.Signer,
        writer: note.Signer,
        on_broken: Callable[[str], None] | None = None,
    ) -> None:
        self.history: History = opened.history
        self._edge: Edge = opened.edge
        self._running = opened.unclean
        self._places = places
        self._store = store
        self._clock = clock
        self._settings = settings
        self._log_signer = log_signer
        self._origin: Final = opened.history.origin
        self._scribe = Scribe(self._origin, writer, boot=boot, actor=actor, clock=clock, new_id=new_id)
        self._checkpoint_size = opened.checkpoint_size
        self._checkpoint_note = opened.checkpoint_note
        self._checkpoint_at_s = clock.monotonic_s()
        self._last_clock: tuple[int, int] | None = None
        self._unsettled: Written | None = None
        self._projector = Projector(store, self._origin, timeout_s=settings.append_timeout_s)
        self._queue: queue.Queue[Pending | _Request] = queue.Queue(settings.queue_entries)
        self._on_broken = on_broken
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="audit-committer", daemon=True)
        self._thread.start()

    # --- for the log, from any thread -------------------------------------------------------------------------

    @property
    def broken(self) -> str:
        """Return why nothing more can be appended, or nothing."""
        return self._store.broken

    @property
    def tree_head(self) -> tuple[int, bytes]:
        """Return size and root of the durable entries."""
        edge = self._edge
        return edge.size, edge.root()

    def submit(self, body: Event) -> "Future[Receipt]":
        """Queue a draft's body and return a future of its receipt, done once the entry is on the disk or never will be.

        Raises:
            AppendFailed: The queue stayed full for `append_timeout_s`, the disk failed, or the log is closed.
            EntryRefused: The draft is too large.
        """
        encoded = canonical.encode(body)
        # The committer's fields, header and signature need less than 1,024 bytes beside the draft's own.
        if len(encoded) > entry.MAX_WRITTEN_BYTES - 1024:
            raise EntryRefused(f"a draft of {len(encoded)} bytes, at most {entry.MAX_WRITTEN_BYTES - 1024}")
        pending = Pending(body, entry.digest_of(encoded), len(encoded) + 1024)
        self._put(pending)
        return pending.done

    def checkpoint(self) -> bytes:
        """Return a signed, durable checkpoint of at least all entries acknowledged before the call.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        signed = self._ask(self._sign_checkpoint)
        return signed if isinstance(signed, bytes) else b""

    def keep_cosigned(self, size: int, cosigned: bytes, *, quorum: bool) -> None:
        """Keep a checkpoint of this log with the cosignatures that it has; durable on return.

        Raises:
            AppendFailed: The log is closed, or it couldn't be stored.
        """
        self._ask(lambda: self._store.keep_checkpoint(size, cosigned, quorum=quorum))

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` reads of the log as it is now, on the committer's own thread: `work` must be quick.

        Raises:
            AuditError: The log is closed, or can't be read.
        """
        found: list[T] = []
        timeout_s = self._settings.append_timeout_s
        self._ask(lambda: found.append(self._store.read(work, timeout_s=timeout_s)))
        return found[0]

    def keep_witnessed(
        self, rows: Sequence[tuple[str, int, bytes, bytes]], evidence: Sequence[tuple[str, str, bytes]]
    ) -> None:
        """Keep what was cosigned of other logs, and what is held against them; durable on return.

        Raises:
            AppendFailed: The log is closed, or it couldn't be stored.
        """
        self._ask(lambda: self._store.keep_witnessed(rows, evidence))

    def left_open(self) -> dict[int, Event]:
        """Return the openings of data that have no end, by index.

        Raises:
            AuditError: The log is closed, or can't be read.
        """
        found: dict[int, Event] = {}
        self._ask(lambda: found.update(self._projector.left_open(self.history.size)))
        return found

    def are_committed(self, values: Iterable[str]) -> set[str]:
        """Return those commitments that an entry of the log names.

        Raises:
            AuditError: The log is closed, or can't be read.
        """
        wanted, found = list(values), set[str]()
        self._ask(lambda: found.update(self._projector.are_committed(wanted, self.history.size)))
        return found

    def empty_leaf(self, index: int, leaf_hash: bytes) -> None:
        """Empty the leaf of an entry whose redaction is recorded; its row of the projection goes, too.

        Raises:
            AuditError: It isn't done; opening the log does it.
        """

        def work() -> None:
            self._projector.catch_up(self.history.size)  # so that no row comes behind
            self._store.empty_leaf(index, leaf_hash)

        self._ask(work)

    def prune(self, below: int) -> None:
        """Remove the entries below an index, whose pruning is recorded; the trail keeps its paths.

        Raises:
            AuditError: It isn't done; opening the log does it.
        """

        def work() -> None:
            self._projector.catch_up(self.history.size)  # so that no row comes behind
            log = self._store.snapshot
            kept = log.trail_paths()
            paths = {
                index: b"".join(inside_of(log.tile(0, n, HASHES_PER_TILE), at))
                for index, _ in log.trail()
                if index < below and index not in kept
                for n, at in (divmod(index, HASHES_PER_TILE),)
            }
            self._store.prune(below, paths)

        self._ask(work)

    def erased_subjects(self) -> list[str]:
        """Return the pseudonyms whose erasure the log records.

        Raises:
            AuditError: The log is closed, or can't be read.
        """
        found: list[str] = []
        self._ask(lambda: found.extend(self._projector.erased(self.history.size)))
        return found

    def rebuild(self) -> int:
        """Make the projections anew from all entries, and return how many those are.

        Raises:
            AuditError: The log is closed, or the disk is full.
        """
        self._ask(lambda: self._projector.rebuild(self.history.size))
        return self.history.size

    def end(self) -> None:
        """Commit what waits, sign the last checkpoint, and close the database; nothing is taken from now on.

        Raises:
            AppendFailed: The checkpoint couldn't be stored; the database is closed all the same.
        """
        self._ended = True
        request = _Request(self._finish, stop=True)
        self._queue.put(request)
        try:
            request.done.result()
        finally:
            self._thread.join()
            self._store.close()

    def _ask(self, work: Callable[[], object]) -> object:
        request = _Request(work)
        self._put(request)
        return request.done.result()

    def _put(self, item: Pending | _Request) -> None:
        if self._ended:
            raise AppendFailed("the log is closed")
        if self._store.broken:
            raise AppendFailed(f"the log takes nothing more in this process: {self._store.broken}")
        try:
            self._queue.put(item, timeout=self._settings.append_timeout_s)
        except queue.Full:
            raise AppendFailed(
                f"{self._settings.queue_entries} drafts wait, none was written for {self._settings.append_timeout_s} s"
            ) from None

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch, request = self._next_batch()
            if batch:
                self._commit(batch)
            if request is not None:
                self._answer(request)
                if request.stop:
                    return
            self._follow(idle=not batch and request is None)
            if self._store.broken and self._on_broken is not None:
                told, self._on_broken = self._on_broken, None
                told(self._store.broken)

    def _next_batch(self) -> tuple[list[Pending], _Request | None]:
        """Return what waits, up to the limits of a batch and up to the first request."""
        batch: list[Pending] = []
        size_bytes = 0
        try:
            behind = self._projector.behind(self.history.size)
            item = self._queue.get(timeout=IDLE_S if behind else self._settings.checkpoint_every_s)
            while isinstance(item, Pending):
                batch.append(item)
                size_bytes += item.size_bytes
                if len(batch) >= MAX_BATCH_ENTRIES or size_bytes >= MAX_BATCH_BYTES:
                    return batch, None
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, None
        return batch, item

    def _answer(self, request: _Request) -> None:
        try:
            request.done.set_result(request.work())
        except AuditError as error:
            request.done.set_exception(error)
        except OutcomeUnknown:
            request.done.set_exception(AppendFailed("the connection to the log's database broke"))
        except OSError as error:
            request.done.set_exception(AppendFailed(f"storing the checkpoint failed: {error.strerror}"))
        except BaseException:
            request.done.set_exception(AppendFailed("the committer met an error that it doesn't know"))
            raise

    def _follow(self, *, idle: bool) -> None:
        """Do what may wait: a checkpoint that is due, projections, SQLite's own housekeeping; tried again later."""
        with contextlib.suppress(OSError, AuditError, OutcomeUnknown):
            if self._checkpoint_is_due():
                self._sign_checkpoint()
            if self._projector.behind(self.history.size) >= (1 if idle else BEHIND):
                self._projector.follow(self.history.size)
            self._store.move_pages()

    # --- checkpoints ------------------------------------------------------------------------------------------

    def _checkpoint_is_due(self) -> bool:
        news = self.history.size - self._checkpoint_size
        waited_s = self._clock.monotonic_s() - self._checkpoint_at_s
        return news >= self._settings.checkpoint_every_entries or (
            news > 0 and waited_s >= self._settings.checkpoint_every_s
        )

    def _sign_checkpoint(self) -> bytes:
        """Return the newest checkpoint; it is durable before anybody sees it."""
        edge = self._edge
        self._checkpoint_at_s = self._clock.monotonic_s()
        if edge.size > self._checkpoint_size:
            signed = checkpoints.sign(self._origin, edge.size, edge.root(), self._log_signer)
            durable.replace_file(self._places.checkpoint, signed)
            self._checkpoint_size = edge.size
            self._checkpoint_note = signed
        return self._checkpoint_note

    def _finish(self) -> None:
        try:
            self._sign_checkpoint()
        finally:
            with contextlib.suppress(AuditError, OutcomeUnknown):
                self._projector.catch_up(self.history.size)

    # --- batches ----------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Pending]) -> None:
        """Make `batch` durable and answer its callers; every future is done when this returns."""
        try:
            self._settle(now=False)
            fresh = self._sort_out(batch)
            if fresh:
                self._write(fresh)
        except AuditError as error:
            self._fail(batch, error)
            return
        except OutcomeUnknown:
            self._fail(batch, AppendFailed("the connection to the log's database broke"))
            return
        except BaseException:
            self._fail(batch, AppendFailed("the committer met an error that it doesn't know"))
            raise
        for pending in batch:
            if not pending.done.done():  # repeated inside this very batch
                self._answer_known(pending, self._find([pending]))

    def _fail(self, batch: list[Pending], error: AuditError) -> None:
        for pending in batch:
            if not pending.done.done():
                pending.done.set_exception(error)

    def _sort_out(self, batch: list[Pending]) -> list[Pending]:
        """Answer drafts that are in the log already, and return one of each id that isn't."""
        fresh: dict[str, Pending] = {}
        known = self._find(batch)
        for pending in batch:
            if pending.body["id"] not in fresh and not self._answer_known(pending, known):
                fresh[pending.body["id"]] = pending
        return list(fresh.values())

    def _find(self, batch: list[Pending]) -> dict[bytes, tuple[int, bytes]]:
        """Return index and leaf of those of the batch's ids that are in the log."""
        ids = [bytes.fromhex(pending.body["id"]) for pending in batch]
        return self._store.find_ids(ids, timeout_s=self._settings.append_timeout_s)

    def _answer_known(self, pending: Pending, known: dict[bytes, tuple[int, bytes]]) -> bool:
        """Answer a draft whose id is in the log, and return whether it is."""
        found = known.get(bytes.fromhex(pending.body["id"]))
        if found is None:
            return False
        index, leaf = found
        event, _ = frame.read_frame(leaf, origin=self._origin)
        if entry.draft_digest(entry.draft_of(event)) == pending.digest:
            pending.done.set_result(issue(self._origin, index, leaf, event))
        else:
            pending.done.set_exception(IdConflict(f"id {pending.body['id']} names entry {index}, which says otherwise"))
        return True

    def _write(self, fresh: list[Pending]) -> None:
        """Commit what can be of `fresh` and answer each; on any error nothing has changed."""
        assigned, written = self._scribe.write(
            fresh, self.history, self._edge, running=self._running, last_clock=self._last_clock
        )
        if not assigned:
            return
        try:
            self._store.commit(written.batch)
        except OutcomeUnknown:
            self._unsettled = written
            self._settle(now=True)
        else:
            self._adopt(written)
        first = written.history.size - len(assigned)
        for position, pending in enumerate(assigned):
            signed = written.entries[position - len(assigned)]
            pending.done.set_result(issue(self._origin, first + position, signed.leaf, signed.event))

    def _adopt(self, written: Written) -> None:
        first = self.history.size
        self.history = written.history
        self._edge = written.growth.edge
        self._running = written.running
        self._last_clock = written.clock
        self._projector.take([(first + position, one.event) for position, one in enumerate(written.entries)])

    def _settle(self, *, now: bool) -> None:
        """Find out what became of a batch whose COMMIT broke off, and write it where it isn't in the log.

        Args:
            now: Its callers still wait. A batch that they have given up is only looked up.

        Raises:
            AppendFailed: The server can't be reached; the batch stays unsettled.
        """
        written = self._unsettled
        if written is None:
            return
        committed = self._store.settle(written.batch, timeout_s=self._settings.append_timeout_s)
        if not committed and now:
            self._store.commit(written.batch)  # once more only: another break leaves it unsettled
            committed = True
        self._unsettled = None
        if committed:
            self._adopt(written)
