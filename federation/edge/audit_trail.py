"""A party's audit log as a command uses it: begun once, its public keys, an entry from a command, who is acting.

A command hands its entry to the daemon of the home where one runs, since one process writes a log, and writes it
itself where none does; either way the entry is durable on return. A person is the account of the operating system,
recorded as a pseudonym.
"""

import os
from pathlib import Path
from typing import Final

from audit import edge, events, key_files, note
from audit.errors import SecondWriter
from audit.hand_over import hand_over
from audit.log import NO_CHARTER, AuditLog
from audit.names import Origin
from audit.open_log import CLI, DAEMON
from audit.places import Places
from audit.private import PrivateStore
from federation.edge.clock import Clock
from federation.edge.files import write_whole
from federation.enrolment_messages import AuditKeys

WITNESS_FILE: Final = "witness.key"
_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.1


def witness_name(federation: str, party: str) -> str:
    """Return the name of a party's witness key."""
    return f"{federation}/{party}/witness"


def witness_file(folder: Path) -> Path:
    """Return where the witness key of the log in `folder` is."""
    return folder / "keys" / WITNESS_FILE


def witness_signer(folder: Path, *, federation: str, party: str) -> note.Signer:
    """Return the key by which a party cosigns the logs of others.

    Raises:
        SettingsUnsafe: Missing, readable by others, or malformed.
    """
    return key_files.read_key(witness_file(folder), witness_name(federation, party), note.COSIGNATURE)


def begin_log(folder: Path, *, federation: str, party: str, clock: Clock, charter: str | None = None) -> AuditKeys:
    """Make the log of `party` in `folder`, with its keys, and return the public ones.

    Args:
        folder: The home's folder `audit`.
        federation: Name of the federation.
        party: A site id, or ``coordinator``.
        clock: The time here.
        charter: SHA-256 in hex of the charter in force, where there is one already.
    """
    if not witness_file(folder).exists():
        _make_witness_key(folder, witness_name(federation, party))
    log = AuditLog.create(
        folder,
        origin_federation=federation,
        party=party,
        clock=clock,
        actor=person(folder, clock),
        witness_keys=[],
        charter=NO_CHARTER if charter is None else f"sha256:{charter}",
    )
    log.close()
    return audit_keys(folder, federation=federation, party=party)


def _make_witness_key(folder: Path, name: str) -> None:
    seed = os.urandom(32)
    key = note.Ed25519Signer(name, seed, note.COSIGNATURE).key
    (folder / "keys").mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(witness_file(folder), key_files.private_text(key, seed), replace=False)


def audit_keys(folder: Path, *, federation: str, party: str) -> AuditKeys:
    """Return the public keys of the log in `folder`."""
    places = Places.newest(folder)
    origin = Origin(federation, party, places.epoch)
    writers = (key_files.read_key(places.writer_key(process), origin.writer(process)) for process in (DAEMON, CLI))
    return AuditKeys(
        log=str(key_files.read_key(places.log_key(), str(origin)).key),
        writers=tuple(str(writer.key) for writer in writers),
        witness=str(witness_signer(folder, federation=federation, party=party).key),
    )


def person(folder: Path, clock: Clock, *, login: str | None = None) -> events.Actor:
    """Return who runs this command, as the log names them: the account of the operating system, as a pseudonym."""
    store = PrivateStore(folder, clock=clock, random_bytes=os.urandom)
    try:
        return events.Actor(kind="person", id=store.pseudonym(login or edge.account()), auth="local")
    finally:
        store.close()


def record(folder: Path, clock: Clock, *drafts: events.Draft) -> None:
    """Put `drafts` into the log in `folder`, in order; all are durable on return.

    Raises:
        AuditError: The log took not all of them; what they permit must not be done.
    """
    left = list(drafts)
    for _ in range(_ATTEMPTS):
        try:
            with AuditLog.open(folder, clock=clock, process=CLI) as log:
                while left:
                    log.append(left[0])
                    left.pop(0)
                return
        except SecondWriter:
            while left and hand_over(folder, left[0].body()) is not None:
                left.pop(0)
        if not left:
            return
        clock.sleep(_PAUSE_S)
    raise SecondWriter(f"another process holds the log in {folder}, and takes no entries")
