"""The log of one party: how it begins, how its next epoch does, and how it is opened; one process for each home.

What an open log does is `open_log`'s.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from audit import database, durable, edge, events, key_files, merkle, note
from audit.clock import Clock
from audit.errors import LogUnreadable, SettingsUnsafe
from audit.events.schema import shipped_hash
from audit.history import History
from audit.home_lock import hold_lock
from audit.names import Origin
from audit.open_log import CLI, DAEMON, OpenLog
from audit.opening import Opened, check_keys, open_store
from audit.places import Places
from audit.settings import LogSettings
from audit.storage import Store
from audit.trust_file import write_trust_policy

NO_CHARTER: Final = "sha256:" + merkle.EMPTY_ROOT.hex()
"""The hash of no bytes: recorded by `log.opened` where the log is older than the first charter."""


@dataclass(frozen=True, slots=True)
class First:
    """What the first entry of a log says beside its keys.

    Attributes:
        actor: Who begins the log; the daemon where not said.
        charter: The hash of the charter in force.
        quorum: How many operators must witness; 0 while there are none.
        witness_keys: Verifier keys of the witnesses.
        previous: The epoch before this one.
        lost: What the epoch before is known to have had, and has no more.
        private: The commitment to the reason.
        approval: Who asked for this epoch, and who confirmed it.
    """

    actor: events.Actor | None = None
    charter: str = NO_CHARTER
    quorum: int = 0
    witness_keys: tuple[str, ...] = ()
    previous: events.PreviousLog | None = None
    lost: events.LostTree | None = None
    private: dict[str, str] | None = None
    approval: events.Approval | None = None


class AuditLog(OpenLog):
    """One party's log, open for appending; use `AuditLog.create` once and `AuditLog.open` from then on."""

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
        settings = settings or LogSettings()
        _refuse_network(folder, settings)
        for made in (folder, folder / "keys", places.epoch_folder):
            durable.make_folder(made)
        lock = hold_lock(places)
        try:
            connection = database.create(places, _server(settings))
            writers = {
                process: key_files.create_key(places.writer_key(process), origin.writer(process), random_bytes)
                for process in (DAEMON, CLI)
            }
            first = First(actor, charter, quorum, tuple(witness_keys))
            self = cls._begun(
                places, origin, Store(connection, places), writers,
                first=first, lock=lock, clock=clock, random_bytes=random_bytes, settings=settings,
            )  # fmt: skip
        except BaseException:
            os.close(lock)
            raise
        try:
            policies = trust_folder or folder.parent / "trust"
            write_trust_policy(policies, party=party, log_keys=[self.checkpoint_key])
            self.checkpoint()
            self._begin(Opened(self._committer.history), serve_socket=serve_socket)
        except BaseException:
            self._release()
            raise
        return self

    @classmethod
    def begin_epoch(
        cls,
        places: Places,
        origin: Origin,
        *,
        first: First,
        lock: int,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        settings: LogSettings | None = None,
    ) -> str:
        """Make a log of one entry and its checkpoint in `places`, and return its verifier key.

        Args:
            places: The folder where the epoch is built; its writers' keys are there already.
            origin: The log's name.
            first: What its first entry says.
            lock: The descriptor that holds the home; closed on return.
            clock: Wall and monotonic time.
            random_bytes: Gives the log key and ids.
            settings: Limits, and where the log is kept.

        Raises:
            SettingsUnsafe: A writer's key is missing, or the place isn't safe.
            AppendFailed: The disk is full.
        """
        settings = settings or LogSettings()
        try:
            writers = {
                process: key_files.read_key(places.writer_key(process), origin.writer(process))
                for process in (DAEMON, CLI)
            }
            durable.make_folder(places.epoch_folder)
            store = Store(database.create(places, _server(settings)), places)
            self = cls._begun(
                places, origin, store, writers,
                first=first, lock=lock, clock=clock, random_bytes=random_bytes, settings=settings,
            )  # fmt: skip
        except BaseException:
            os.close(lock)
            raise
        self.close()
        return self.checkpoint_key

    @classmethod
    def _begun(
        cls,
        places: Places,
        origin: Origin,
        store: Store,
        writers: dict[str, note.Ed25519Signer],
        *,
        first: First,
        lock: int,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        settings: LogSettings,
    ) -> Self:
        """Return the log with its first entry, which lists the keys."""
        try:
            log_signer = key_files.create_key(places.log_key(), str(origin), random_bytes)
            self = cls(
                places,
                Opened(History(str(origin))),
                store,
                lock=lock,
                process=DAEMON,
                clock=clock,
                random_bytes=random_bytes,
                settings=settings,
                log_signer=log_signer,
                writer=writers[DAEMON],
            )
        except BaseException:
            store.close()
            raise
        opened = events.LogOpened(
            id=self.new_id(),
            decision="allowed",
            actor=first.actor or self._service(),
            origin=str(origin),
            log_key=self.checkpoint_key,
            writer_keys=[str(writer.key) for writer in writers.values()],
            witness_keys=list(first.witness_keys),
            quorum=first.quorum,
            charter=first.charter,
            schema=shipped_hash(),
            previous=first.previous,
            lost=first.lost,
            private=first.private,
            approval=first.approval,
        )
        try:
            self._append_own(opened)
        except BaseException:
            self._let_go()
            raise
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
        on_broken: Callable[[str], None] | None = None,
    ) -> Self:
        """Check the stored log, repair what an unclean end left, and return it open for appending.

        Args:
            folder: The home's folder `audit`.
            clock: Wall and monotonic time.
            process: ``daemon``, or ``cli`` for a command while no daemon runs.
            random_bytes: Gives ids, salt and nonces.
            settings: Limits.
            serve_socket: Take drafts from other local processes.
            on_broken: Told once, from the committer's thread, why nothing more can be appended; it ends the process.

        Raises:
            LogUnreadable: There is no log.
            SecondWriter: Another process writes it.
            LogDamaged: An entry was altered, moved or removed.
            LogBehind: The log is shorter than its own checkpoint.
            LogFrozen: The epoch is closed.
            SettingsUnsafe: A key, a permission or the file system.
        """
        settings = settings or LogSettings()
        places = Places.newest(folder)
        _refuse_network(folder, settings)
        if not places.has_log:
            raise LogUnreadable(f"no log in {folder}", hint="make the home first, or name another --home")
        _refuse_another_place(places, settings)
        lock = hold_lock(places)
        try:
            opened, store = open_store(places)
            try:
                origin = Origin.parse(opened.history.origin)
                log_signer = key_files.read_key(places.log_key(), str(origin))
                writer = key_files.read_key(places.writer_key(process), origin.writer(process))
                check_keys(opened.history, log_key=log_signer.key, writer=writer.key)
                self = cls(
                    places,
                    opened,
                    store,
                    lock=lock,
                    process=process,
                    clock=clock,
                    random_bytes=random_bytes,
                    settings=settings,
                    log_signer=log_signer,
                    writer=writer,
                    on_broken=on_broken,
                )
            except BaseException:
                store.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        try:
            self._begin(opened, serve_socket=serve_socket)
        except BaseException:
            self._release()
            raise
        return self


def _server(settings: LogSettings) -> database.Server | None:
    if settings.database is None:
        return None
    return database.Server(settings.database, settings.password_file)


def _refuse_network(folder: Path, settings: LogSettings) -> None:
    if not settings.allow_network_filesystem and (kind := edge.network_file_system(folder)):
        raise SettingsUnsafe(f"{folder} is on a {kind} file system", hint="move the home to a local disk")


def _refuse_another_place(places: Places, settings: LogSettings) -> None:
    wanted = _server(settings)
    if wanted is not None and (not places.server.exists() or database.Server.read(places.server).url != wanted.url):
        raise SettingsUnsafe(
            "the log isn't kept where audit.database says",
            hint="`confide audit new-epoch --database URL` moves it there; or take the setting out",
        )
