"""The one thread that commits: what queued up while the disk was busy becomes the next batch.

A batch is assigned, signed and hashed on a copy of the state, written, synced, and only then adopted and acknowledged;
a failed batch leaves everything as it was. After a failed sync nobody knows what the disk holds, so nothing is appended
any more. A checkpoint is durable before anybody sees it.

Not here: which drafts a log takes, and what it records of itself (`log`).
"""

import contextlib
import queue
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from audit import canonical, durable, entry, events, merkle, note, storage
from audit import checkpoint as checkpoints
from audit.canonical import Event
from audit.clock import Clock, microseconds
from audit.errors import AppendFailed, AuditError, EntryRefused, IdConflict
from audit.history import History
from audit.names import COORDINATOR, Origin
from audit.opening import Opened
from audit.places import Places
from audit.receipt import Receipt, issue
from audit.settings import LogSettings

MAX_BATCH_ENTRIES: Final = 512
MAX_BATCH_BYTES: Final = 4 << 20
CLOCK_JUMP_US: Final = 2_000_000


@dataclass(slots=True)
class _Pending:
    """A draft on its way."""

    body: Event
    digest: str
    size_bytes: int
    done: "Future[Receipt]" = field(default_factory=Future)


@dataclass(slots=True)
class _Request:
    """Something else for the committer: a checkpoint now, and perhaps the end."""

    stop: bool = False
    done: "Future[bytes]" = field(default_factory=Future)


class Committer:
    """Appends to the file of an opened log; safe for threads. Its thread runs from the start until `end`.

    Args:
        places: Where the log lies; the caller holds its lock.
        opened: What opening found.
        boot: The id of this process.
        actor: Who records what the committer itself notices.
        clock: Wall and monotonic time.
        new_id: Gives ids for the committer's own entries.
        settings: Limits.
        log_signer: Signs checkpoints.
        writer: Signs entries.
    """

    def __init__(
        self,
        places: Places,
        opened: Opened,
        *,
        boot: str,
        actor: events.Actor,
        clock: Clock,
        new_id: Callable[[], str],
        settings: LogSettings,
        log_signer: note.Signer,
        writer: note.Signer,
    ) -> None:
        self.history: History = opened.history
        self._places = places
        self._boot = boot
        self._actor = actor
        self._clock = clock
        self._new_id = new_id
        self._settings = settings
        self._log_signer = log_signer
        self._writer = writer
        self._origin: Final = opened.history.origin
        party = Origin.parse(self._origin).party
        self._site: Final[Event] = {} if party == COORDINATOR else {"site": party}
        self._ids: dict[bytes, int] = opened.ids
        self._offsets: array[int] = opened.offsets
        self._checkpoint_size = opened.checkpoint_size
        self._checkpoint_note = opened.checkpoint_note
        self._checkpoint_at_s = clock.monotonic_s()
        self._last_clock: tuple[int, int] | None = None
        self._file = storage.EntryFile(places.entries, size_bytes=opened.offsets[-1])
        self._queue: queue.Queue[_Pending | _Request] = queue.Queue(settings.queue_entries)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="audit-committer", daemon=True)
        self._thread.start()

    # --- for the log, from any thread -------------------------------------------------------------------------

    @property
    def broken(self) -> str:
        """Return why nothing more can be appended, or nothing."""
        return self._file.broken

    def cut(self) -> None:
        """Remove what lies behind the last whole entry; before anything is appended."""
        self._file.cut()

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
        pending = _Pending(body, entry.draft_digest(body), len(encoded) + 1024)
        self._put(pending)
        return pending.done

    def checkpoint(self) -> bytes:
        """Return a signed, durable checkpoint of at least all entries acknowledged before the call.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        request = _Request()
        self._put(request)
        return request.done.result()

    def end(self) -> None:
        """Commit what waits, sign the last checkpoint, and close the file; nothing is taken from now on.

        Raises:
            AppendFailed: The checkpoint couldn't be stored; the file is closed all the same.
        """
        self._ended = True
        request = _Request(stop=True)
        self._queue.put(request)
        try:
            request.done.result()
        finally:
            self._thread.join()
            self._file.close()

    def _put(self, item: _Pending | _Request) -> None:
        if self._ended:
            raise AppendFailed("the log is closed")
        if self._file.broken:
            raise AppendFailed(f"the log takes nothing more in this process: {self._file.broken}")
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
            elif self._checkpoint_is_due():
                with contextlib.suppress(OSError):  # tried again with the next batch, and at the end for certain
                    self._sign_checkpoint()

    def _next_batch(self) -> tuple[list[_Pending], _Request | None]:
        """Return what waits, up to the limits of a batch and up to the first request."""
        batch: list[_Pending] = []
        size_bytes = 0
        try:
            item = self._queue.get(timeout=self._settings.checkpoint_every_s)
            while isinstance(item, _Pending):
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
            request.done.set_result(self._sign_checkpoint())
        except OSError as error:
            request.done.set_exception(AppendFailed(f"storing the checkpoint failed: {error.strerror}"))

    def _checkpoint_is_due(self) -> bool:
        news = self.history.size - self._checkpoint_size
        waited_s = self._clock.monotonic_s() - self._checkpoint_at_s
        return news >= self._settings.checkpoint_every_entries or (
            news > 0 and waited_s >= self._settings.checkpoint_every_s
        )

    def _sign_checkpoint(self) -> bytes:
        """Return the newest checkpoint; it is durable before anybody sees it."""
        history = self.history
        self._checkpoint_at_s = self._clock.monotonic_s()
        if history.size > self._checkpoint_size:
            signed = checkpoints.sign(self._origin, history.size, history.frontier.root(), self._log_signer)
            durable.replace_file(self._places.checkpoint, signed)
            self._checkpoint_size = history.size
            self._checkpoint_note = signed
        return self._checkpoint_note

    def _commit(self, batch: list[_Pending]) -> None:
        """Make `batch` durable and answer its callers; every future is done when this returns."""
        try:
            fresh = self._sort_out(batch)
            receipts = self._write([pending.body for pending in fresh]) if fresh else []
        except AuditError as error:
            for pending in batch:
                if not pending.done.done():
                    pending.done.set_exception(error)
            return
        except BaseException:
            for pending in batch:
                if not pending.done.done():
                    pending.done.set_exception(AppendFailed("the committer met an error that it doesn't know"))
            raise
        for pending, receipt in zip(fresh, receipts, strict=True):
            pending.done.set_result(receipt)
        again = [pending for pending in batch if not pending.done.done()]
        for pending in again:  # repeated inside this very batch
            self._answer_known(pending)

    def _sort_out(self, batch: list[_Pending]) -> list[_Pending]:
        """Answer drafts that are in the log already, and return one of each id that isn't."""
        fresh: dict[str, _Pending] = {}
        for pending in batch:
            if bytes.fromhex(pending.body["id"]) in self._ids:
                self._answer_known(pending)
            else:
                fresh.setdefault(pending.body["id"], pending)
        return list(fresh.values())

    def _answer_known(self, pending: _Pending) -> None:
        index = self._ids[bytes.fromhex(pending.body["id"])]
        start, end = self._offsets[index], self._offsets[index + 1]
        leaf = storage.parse_line(self._file.read_line(start, end - start - 1)).leaf
        event, _ = entry.read_frame(leaf, origin=self._origin)
        if entry.draft_digest(entry.draft_of(event)) == pending.digest:
            pending.done.set_result(issue(self._origin, index, leaf, event))
        else:
            pending.done.set_exception(IdConflict(f"id {pending.body['id']} names entry {index}, which says otherwise"))

    def _write(self, bodies: list[Event]) -> list[Receipt]:
        """Return the receipts of `bodies` after their sync; on any error nothing has changed."""
        wall_us = microseconds(self._clock.now())
        mono_us = int(self._clock.monotonic_s() * 1_000_000)
        jump = self._clock_jump(wall_us, mono_us)
        history = self.history
        leaves: list[bytes] = []
        committed: list[Event] = []
        for body in [*jump, *bodies]:
            event = self._committed(body, history, wall_us, mono_us)
            leaf = entry.write_leaf(self._origin, event, self._writer)
            history = history.after(event, merkle.leaf_hash(leaf))
            leaves.append(leaf)
            committed.append(event)
        first = self.history.size
        lines, chain = storage.lines_for(first, self.history.chain, leaves)
        if chain != history.chain:
            raise AppendFailed("the chain of the batch doesn't agree with itself")
        offset = self._file.append(b"".join(lines))
        for position, line in enumerate(lines):
            offset += len(line)
            self._offsets.append(offset)
            self._ids[bytes.fromhex(committed[position]["id"])] = first + position
        self.history = history
        self._last_clock = (wall_us, mono_us)
        receipts = [
            issue(self._origin, first + position, leaf, event)
            for position, (leaf, event) in enumerate(zip(leaves, committed, strict=True))
        ]
        return receipts[len(jump) :]

    def _committed(self, body: Event, history: History, wall_us: int, mono_us: int) -> Event:
        tail = history.tail(self._writer.key.name)
        t_us = max(wall_us, history.t_us)
        return entry.committed_event(
            body,
            t_us=t_us,
            wall_us=wall_us if wall_us != t_us else None,
            mono_us=mono_us,
            boot=self._boot,
            writer=self._writer.key.name,
            seq=tail.next_seq,
            prev=tail.last or None,
        )

    def _clock_jump(self, wall_us: int, mono_us: int) -> list[Event]:
        """Return a `clock.jumped` draft if the wall clock moved against the monotonic one, or fell behind the log."""
        if self._last_clock is None:
            expected_us = self.history.t_us
            jumped = wall_us < expected_us
        else:
            expected_us = self._last_clock[0] + mono_us - self._last_clock[1]
            jumped = abs(wall_us - expected_us) > CLOCK_JUMP_US
        if not jumped:
            return []
        draft = events.ClockJumped(
            id=self._new_id(), decision="allowed", actor=self._actor, from_us=expected_us, to_us=wall_us
        )
        return [{**draft.body(), **self._site}]
