"""The log of one party: drafts in, receipts out, one committer per home.

`append` returns after the entry is on the disk. One thread commits: what queued up while the disk was busy becomes
the next batch, so that many callers share one sync. A batch is assigned, signed and hashed on a copy of the state,
written, synced, and only then adopted and acknowledged; a failed batch leaves everything as it was.
"""

import contextlib
import fcntl
import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from audit import canonical, durable, edge, entry, events, key_files, merkle, note, storage
from audit import checkpoint as checkpoints
from audit.canonical import Event
from audit.clock import Clock, microseconds
from audit.errors import AppendFailed, AuditError, EntryRefused, IdConflict, SecondWriter, SettingsUnsafe
from audit.events.schema import shipped_hash
from audit.history import History
from audit.names import COORDINATOR, Origin
from audit.opening import Opened, open_store
from audit.places import Places, lock_mark
from audit.private import PrivateStore
from audit.receipt import Receipt, issue
from audit.trust import format_policy

DAEMON: Final = "daemon"
CLI: Final = "cli"
NO_CHARTER: Final = "sha256:" + merkle.EMPTY_ROOT.hex()
"""The hash of no bytes: recorded by `log.opened` where the log is older than the first charter."""
MAX_BATCH_ENTRIES: Final = 512
MAX_BATCH_BYTES: Final = 4 << 20
CLOCK_JUMP_US: Final = 2_000_000
_OWN_ACTIONS: Final = frozenset({"log.opened", "log.booted", "log.closed", "log.frozen", "clock.jumped"})


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The limits of a log; section `audit` of a role's file sets them.

    Attributes:
        checkpoint_every_entries: A new checkpoint after this many entries.
        checkpoint_every_s: A new checkpoint after this many seconds with news.
        append_timeout_s: How long a draft waits for room in the queue.
        queue_entries: Drafts that may wait.
        allow_network_filesystem: Let the log lie where locks and syncs promise less.
    """

    checkpoint_every_entries: int = 256
    checkpoint_every_s: float = 10.0
    append_timeout_s: float = 10.0
    queue_entries: int = 4096
    allow_network_filesystem: bool = False


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


def _hold_lock(places: Places) -> int:
    """Return the descriptor that holds the lock of the home.

    Raises:
        SecondWriter: Another process holds it.
    """
    descriptor = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, durable.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, lock_mark(places.lock, edge.host()), 0)
    except BlockingIOError:
        os.close(descriptor)
        raise SecondWriter(f"another process writes the log in {places.folder}") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_trust_policy(
    folder: Path,
    *,
    party: str,
    log_keys: Iterable[str],
    witnesses: dict[str, str] | None = None,
    operators: dict[str, list[str]] | None = None,
    quorum: int = 0,
) -> Path:
    """Write ``<folder>/<party>.policy``, what a reader of this home trusts about one party's log, and return it.

    Args:
        folder: The home's folder `trust`.
        party: Whose log.
        log_keys: Its verifier keys.
        witnesses: Verifier keys of the witnesses, by party.
        operators: Parties by operator, where one runs several.
        quorum: How many operators must cosign.
    """
    durable.make_folder(folder)
    path = folder / f"{party}.policy"
    durable.replace_file(path, format_policy(log_keys, witnesses or {}, operators or {}, quorum).encode())
    return path


class AuditLog:
    """One party's log, open for appending; use `AuditLog.create` once and `AuditLog.open` from then on.

    Safe for threads. `private` is the side store for pseudonyms and commitments; `origin`, `boot` and `writer_key`
    are what a receiver of a `Receipt` needs.
    """

    def __init__(
        self,
        places: Places,
        opened: Opened,
        *,
        lock: int,
        process: str,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        settings: LogSettings,
        log_signer: note.Signer,
        writer: note.Signer,
    ) -> None:
        self._places = places
        self._lock = lock
        self._process = process
        self._clock = clock
        self._random = random_bytes
        self._settings = settings
        self._log_signer = log_signer
        self._writer = writer
        self._history: History = opened.history
        self._ids: dict[bytes, int] = opened.ids
        self._offsets: array[int] = opened.offsets
        self._checkpoint_size = opened.checkpoint_size
        self._checkpoint_note = opened.checkpoint_note
        self._checkpoint_at_s = clock.monotonic_s()
        self._last_clock: tuple[int, int] | None = None
        self._file = storage.EntryFile(places.entries, size_bytes=opened.offsets[-1])
        self._queue: queue.Queue[_Pending | _Request] = queue.Queue(settings.queue_entries)
        self._closed = False
        self._announced = False
        self._closing = threading.Lock()
        self._server: contextlib.AbstractContextManager[object] | None = None
        self.origin: Final = opened.history.origin
        self.party: Final = Origin.parse(self.origin).party
        self.boot: Final = random_bytes(16).hex()
        self.private: Final = PrivateStore(places.folder, clock=clock, random_bytes=random_bytes)
        self._thread = threading.Thread(target=self._run, name="audit-committer", daemon=True)
        self._thread.start()

    # --- beginning and end ------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        origin_federation: str,
        party: str,
        clock: Clock,
        actor: events.Actor | None = None,
        charter: str = NO_CHARTER,
        quorum: int = 0,
        witness_keys: Iterable[str] = (),
        random_bytes: Callable[[int], bytes] = os.urandom,
        settings: LogSettings | None = None,
        serve_socket: bool = False,
        trust_folder: Path | None = None,
    ) -> Self:
        """Make keys, the first entry, the first checkpoint and the home's own trust policy; return the open log.

        Args:
            folder: The home's folder `audit`; made if it doesn't exist.
            origin_federation: The federation's name.
            party: A site id, or ``coordinator``.
            clock: Wall and monotonic time.
            actor: Who begins the log; the daemon where not said.
            charter: The hash of the charter in force.
            quorum: How many operators must witness; 0 while there are none.
            witness_keys: Verifier keys of the witnesses.
            random_bytes: Gives keys and ids.
            settings: Limits.
            serve_socket: Take drafts from other local processes.
            trust_folder: Where ``<party>.policy`` goes; `trust` beside `folder` where not said.

        Raises:
            SettingsUnsafe: There is a log already, or the place isn't safe.
            SecondWriter: Another process is making it.
        """
        origin = Origin(origin_federation, party)
        places = Places(folder)
        durable.make_folder(folder)
        durable.make_folder(folder / "keys")
        durable.make_folder(places.epoch_folder)
        lock = _hold_lock(places)
        try:
            if places.entries.exists() and places.entries.stat().st_size > 0:
                raise SettingsUnsafe(f"there is a log in {folder} already", hint="open it, or name an empty folder")
            log_signer = key_files.create_key(places.log_key(), str(origin), random_bytes)
            writers = {
                process: key_files.create_key(places.writer_key(process), origin.writer(process), random_bytes)
                for process in (DAEMON, CLI)
            }
            write_trust_policy(trust_folder or folder.parent / "trust", party=party, log_keys=[str(log_signer.key)])
            places.entries.touch(mode=durable.PRIVATE_FILE)
            durable.sync_folder(places.epoch_folder)
            self = cls(
                places,
                Opened(History(str(origin))),
                lock=lock,
                process=DAEMON,
                clock=clock,
                random_bytes=random_bytes,
                settings=settings or LogSettings(),
                log_signer=log_signer,
                writer=writers[DAEMON],
            )
        except BaseException:
            os.close(lock)
            raise
        self._append_own(
            events.LogOpened(
                id=self.new_id(),
                decision="allowed",
                actor=actor or self._service(),
                origin=str(origin),
                log_key=str(log_signer.key),
                writer_keys=[str(writer.key) for writer in writers.values()],
                witness_keys=list(witness_keys),
                quorum=quorum,
                charter=charter,
                schema=shipped_hash(),
            )
        )
        self.checkpoint()
        self._begin(Opened(self._history), serve_socket=serve_socket)
        return self

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        clock: Clock,
        process: Literal["daemon", "cli"] = DAEMON,
        random_bytes: Callable[[int], bytes] = os.urandom,
        settings: LogSettings | None = None,
        serve_socket: bool = False,
    ) -> Self:
        """Check the stored log, repair what an unclean end left, and return it open for appending.

        Args:
            folder: The home's folder `audit`.
            clock: Wall and monotonic time.
            process: ``daemon``, or ``cli`` for a command while no daemon runs.
            random_bytes: Gives ids, salt and nonces.
            settings: Limits.
            serve_socket: Take drafts from other local processes.

        Raises:
            LogUnreadable: There is no log.
            SecondWriter: Another process writes it.
            LogDamaged: An entry was altered, moved or removed.
            LogBehind: The log is shorter than its own checkpoint.
            LogFrozen: The epoch is closed.
            SettingsUnsafe: A key, a permission or the file system.
        """
        settings = settings or LogSettings()
        places = Places(folder)
        if settings.allow_network_filesystem is False and (kind := edge.network_file_system(folder)):
            raise SettingsUnsafe(f"{folder} is on a {kind} file system", hint="move the home to a local disk")
        opened = open_store(places, hold_lock=lambda: _hold_lock(places))
        try:
            origin = Origin.parse(opened.history.origin)
            log_signer = key_files.read_key(places.log_key(), str(origin))
            writer = key_files.read_key(places.writer_key(process), origin.writer(process))
            keyring = opened.history.keyring
            try:
                keyring.writer(writer.key.name, writer.key.id, opened.history.size)
            except EntryRefused as refused:
                raise SettingsUnsafe(refused.message, code="CFD-A10") from None
            if log_signer.key not in keyring.log_keys():
                raise SettingsUnsafe("the log key isn't one that the log declares", code="CFD-A10")
            self = cls(
                places,
                opened,
                lock=opened.lock,
                process=process,
                clock=clock,
                random_bytes=random_bytes,
                settings=settings,
                log_signer=log_signer,
                writer=writer,
            )
        except BaseException:
            os.close(opened.lock)
            raise
        try:
            self._begin(opened, serve_socket=serve_socket)
        except BaseException:
            self._release()
            raise
        return self

    def _begin(self, opened: Opened, *, serve_socket: bool) -> None:
        """Remove and record what an unclean end left, record the boot, and close what was left open."""
        if opened.set_aside is not None:
            self._file.cut()
        if self._process == DAEMON or opened.set_aside is not None:
            self._append_own(
                events.LogBooted(
                    id=self.new_id(),
                    decision="allowed",
                    actor=self._service(),
                    software=events.Software(version=edge.software_version(), build="release"),
                    schema=shipped_hash(),
                    clock=events.ClockState(source="system", synchronised=edge.clock_is_synchronised()),
                    unclean=True if opened.unclean or opened.set_aside is not None else None,
                    set_aside=opened.set_aside,
                )
            )
            self._announced = True
        if self._process == DAEMON:
            abandoned = [
                self._enqueue_own(self._abandoned(index, event)) for index, event in sorted(opened.left_open.items())
            ]
            for done in abandoned:
                done.result()
            self.private.sweep(opened.commitments)
        if serve_socket:
            from audit.hand_over import serve

            self._server = serve(self._places.folder, self.append_body)
            self._server.__enter__()

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
        self._closed = True
        request = _Request(stop=True)
        self._queue.put(request)
        try:
            request.done.result()
        finally:
            self._thread.join()
            self._file.close()
            self.private.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("drain" if kind is None else "error")

    # --- what callers do --------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return the number of durable entries."""
        return self._history.size

    @property
    def writer_key(self) -> str:
        """Return the verifier key of this process, with which another re-opens its receipts."""
        return str(self._writer.key)

    @property
    def checkpoint_key(self) -> str:
        """Return the verifier key of this log's checkpoints, as a trust policy pins it."""
        return str(self._log_signer.key)

    @property
    def broken(self) -> str:
        """Return why this process can append no more, or nothing; a daemon then ends and is started again."""
        return self._file.broken

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
        return self.submit(draft).result()

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
        return self._submit(entry.draft_from(body).body()).result()

    def checkpoint(self) -> bytes:
        """Return a signed checkpoint of at least all entries acknowledged before the call, durable in the home.

        Call it at each round's end.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        request = _Request()
        self._put(request)
        return request.done.result()

    def _submit(self, body: Event) -> "Future[Receipt]":
        if body["action"] in _OWN_ACTIONS:
            raise EntryRefused(f"{body['action']} is written by the log itself")
        if body["action"] == "key.revoked" and body["vkey"] in (self.writer_key, self.checkpoint_key):
            raise EntryRefused("a key that this process signs with can't be revoked by it: nothing could follow")
        if self.party != COORDINATOR and body.setdefault("site", self.party) != self.party:
            raise EntryRefused(f"an entry about another site in the log of {self.party}")
        return self._enqueue(body)

    def _append_own(self, draft: events.Draft) -> Receipt:
        return self._enqueue_own(draft).result()

    def _enqueue_own(self, draft: events.Draft) -> "Future[Receipt]":
        body = draft.body()
        if self.party != COORDINATOR:
            body["site"] = self.party
        return self._enqueue(body)

    def _enqueue(self, body: Event) -> "Future[Receipt]":
        encoded = canonical.encode(body)
        # The committer's fields, header and signature need less than 1,024 bytes beside the draft's own.
        if len(encoded) > entry.MAX_WRITTEN_BYTES - 1024:
            raise EntryRefused(f"a draft of {len(encoded)} bytes, at most {entry.MAX_WRITTEN_BYTES - 1024}")
        pending = _Pending(body, entry.draft_digest(body), len(encoded) + 1024)
        self._put(pending)
        return pending.done

    def _put(self, item: _Pending | _Request) -> None:
        if self._closed:
            raise AppendFailed("the log is closed")
        if self._file.broken:
            raise AppendFailed(f"the log takes nothing more in this process: {self._file.broken}")
        try:
            self._queue.put(item, timeout=self._settings.append_timeout_s)
        except queue.Full:
            raise AppendFailed(
                f"{self._settings.queue_entries} drafts wait, none was written for {self._settings.append_timeout_s} s"
            ) from None

    def _service(self) -> events.Actor:
        return events.Actor(kind="service", id=self._process)

    # --- the committer ----------------------------------------------------------------------------------------

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
        news = self._history.size - self._checkpoint_size
        waited_s = self._clock.monotonic_s() - self._checkpoint_at_s
        return news >= self._settings.checkpoint_every_entries or (
            news > 0 and waited_s >= self._settings.checkpoint_every_s
        )

    def _sign_checkpoint(self) -> bytes:
        """Return the newest checkpoint; it is durable before anybody sees it."""
        history = self._history
        self._checkpoint_at_s = self._clock.monotonic_s()
        if history.size > self._checkpoint_size:
            signed = checkpoints.sign(self.origin, history.size, history.frontier.root(), self._log_signer)
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
        event, _ = entry.read_frame(leaf, origin=self.origin)
        if entry.draft_digest(entry.draft_of(event)) == pending.digest:
            pending.done.set_result(issue(self.origin, index, leaf, event))
        else:
            pending.done.set_exception(IdConflict(f"id {pending.body['id']} names entry {index}, which says otherwise"))

    def _write(self, bodies: list[Event]) -> list[Receipt]:
        """Return the receipts of `bodies` after their sync; on any error nothing has changed."""
        wall_us = microseconds(self._clock.now())
        mono_us = int(self._clock.monotonic_s() * 1_000_000)
        jump = self._clock_jump(wall_us, mono_us)
        history = self._history
        leaves: list[bytes] = []
        committed: list[Event] = []
        for body in [*jump, *bodies]:
            event = self._committed(body, history, wall_us, mono_us)
            leaf = entry.write_leaf(self.origin, event, self._writer)
            history = history.after(event, merkle.leaf_hash(leaf))
            leaves.append(leaf)
            committed.append(event)
        first = self._history.size
        lines, chain = storage.lines_for(first, self._history.chain, leaves)
        if chain != history.chain:
            raise AppendFailed("the chain of the batch doesn't agree with itself")
        offset = self._file.append(b"".join(lines))
        for position, line in enumerate(lines):
            offset += len(line)
            self._offsets.append(offset)
            self._ids[bytes.fromhex(committed[position]["id"])] = first + position
        self._history = history
        self._last_clock = (wall_us, mono_us)
        receipts = [
            issue(self.origin, first + position, leaf, event)
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
            boot=self.boot,
            writer=self._writer.key.name,
            seq=tail.next_seq,
            prev=tail.last or None,
        )

    def _clock_jump(self, wall_us: int, mono_us: int) -> list[Event]:
        """Return a `clock.jumped` draft if the wall clock moved against the monotonic one, or fell behind the log."""
        if self._last_clock is None:
            expected_us = self._history.t_us
            jumped = wall_us < expected_us
        else:
            expected_us = self._last_clock[0] + mono_us - self._last_clock[1]
            jumped = abs(wall_us - expected_us) > CLOCK_JUMP_US
        if not jumped:
            return []
        draft = events.ClockJumped(
            id=self.new_id(), decision="allowed", actor=self._service(), from_us=expected_us, to_us=wall_us
        )
        return [{**draft.body(), **({} if self.party == COORDINATOR else {"site": self.party})}]
