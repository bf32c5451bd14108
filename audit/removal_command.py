"""`confide audit erase`, `redact`, `prune`, `requests` and `approve`: what may go, with its record, by two people."""

import argparse
import os
from collections.abc import Callable
from typing import Final

from audit import edge, reading, two_people
from audit.columns import format_time
from audit.errors import AuditError, LogUnreadable, ReadRefused
from audit.events import AuditPruned, AuditRedacted, SubjectErased, new_event_id
from audit.export.bundle_check import BundleReader, check_files
from audit.export.container import open_files
from audit.export_command import write_archive
from audit.frame import TRAIL_ACTIONS, hash_text
from audit.private import PrivateStore
from audit.proving import choose
from audit.read_record import admit, reader, site_of, talk
from audit.readers_file import DAY_US, read_readers
from audit.reading import FoundLog
from audit.recording import record
from audit.tiles import HASHES_PER_TILE
from audit.two_people import Approved
from audit.upkeep_command import begin_epoch, refuse_a_folder
from audit.visible import visible


def _refuse_a_copy(log: FoundLog) -> None:
    if not log.live or log.audit_folder is None:
        raise LogUnreadable("a copy is only read", hint="run this on the machine whose home it is")


def erase(given: argparse.Namespace, log: FoundLog) -> int:
    """Record that a person is erased, then delete what links the person to the log."""
    _refuse_a_copy(log)
    admit(log, "erase")
    clock, folder = edge.SystemClock(), log.places.folder
    store = PrivateStore(folder, clock=clock, random_bytes=os.urandom)
    try:
        person = given.person
        subject = person if person.startswith("p1:") else store.find(person)
        if subject is None:
            raise LogUnreadable("this home knows no such person", hint="give the login, or the pseudonym p1:…")
        own = reader(log)
        if own.id == subject:
            raise ReadRefused("nobody erases themselves: the entry must name who did it", hint="ask another officer")
        draft = SubjectErased(
            id=new_event_id(clock, os.urandom),
            decision="allowed",
            actor=own,
            site=site_of(reading.origin_of(log)),
            subject=subject,
            basis=given.basis,
        )
        index, _ = record(folder, draft, clock=clock)
        store.erase(subject)
    finally:
        store.close()
    talk(f"erased, entry {index}; {subject} can't be linked to a person by this home any more")
    talk("copies of private.db in backups end with the key files keys/private-<month>.key; destroy those there")
    return 0


# --- two people -------------------------------------------------------------------------------------------------


def redact(given: argparse.Namespace, log: FoundLog) -> int:
    """Ask that an entry be emptied; a second person approves it."""
    _refuse_a_copy(log)
    admit(log, "redact")
    row = reading.find_entry(log, given.entry)
    if row.event["action"] in TRAIL_ACTIONS:
        raise LogUnreadable(f"entry {row.name} judges others and stays", hint="it holds keys, or a record of this kind")
    if row.origin != reading.origin_of(log):
        raise LogUnreadable("an earlier epoch is closed and stays as it is")
    arguments: dict[str, str | int] = {
        "index": row.index,
        "leaf_hash": row.leaf_hash,
        "writer": str(row.event["writer"]),
        "seq": int(row.event["seq"]),
        "basis": given.basis,
    }
    approved = two_people.ask(log, "redact", arguments)
    return 0 if approved is None else _carry_out(log, approved)


def approve(given: argparse.Namespace, log: FoundLog) -> int:
    """Confirm what another person asked for, and do it."""
    refuse_a_folder(log)
    admit(log, "approve")
    return _carry_out(log, two_people.confirm(log, given.request))


def requests(given: argparse.Namespace, log: FoundLog) -> int:
    """List what waits for a second person."""
    refuse_a_folder(log)
    admit(log, "requests")
    waiting = two_people.requests_of(log).waiting(two_people.now_us())
    store = PrivateStore(log.places.folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        for one in waiting:
            who = visible(store.name_of(one.proposer) or one.proposer)
            when = format_time(one.proposed_us).split(".")[0] + "Z"
            print(f"{one.id}  {when}  asked by {who}: {two_people.described(one)}")
    finally:
        store.close()
    talk(
        ("1 request waits" if len(waiting) == 1 else f"{len(waiting)} requests wait")
        + ("" if given.format == "table" else " (as text only)")
    )
    return 0


def _carry_out(log: FoundLog, approved: Approved) -> int:
    act = _ACTS.get(approved.request.verb)
    if act is None:
        raise LogUnreadable(f"request {approved.request.id} asks for what this version doesn't know")
    act(log, approved)
    two_people.done(log, approved)
    return 0


def _redact(log: FoundLog, approved: Approved) -> None:
    clock, request = edge.SystemClock(), approved.request
    wanted = request.arguments
    row = reading.find_entry(log, str(wanted["index"]))
    if row.leaf_hash != wanted["leaf_hash"]:
        raise AuditError("CFD-A14", f"entry {wanted['index']} isn't the one that {request.id} is about")
    draft = AuditRedacted(
        id=new_event_id(clock, os.urandom),
        decision="allowed",
        actor=approved.by,
        site=site_of(row.origin),
        index=row.index,
        leaf_hash=row.leaf_hash,
        target_writer=str(row.event["writer"]),
        target_seq=int(row.event["seq"]),
        target_action=str(row.event["action"]),
        basis=str(wanted["basis"]),
        approval=approved.approval,
    )
    index, _ = record(log.places.folder, draft, clock=clock)
    talk(f"entry {row.index} is empty, record {index}; its hash and every proof stay")
    talk("copies that hold it, for you to remove: earlier backups and archives of the server's write-ahead log,")
    talk("exported bundles and directories of tiles, and here:")
    for path in sorted(log.places.aside.glob("*.wal")):
        talk(f"  {path}")


# --- pruning ----------------------------------------------------------------------------------------------------


def prune(given: argparse.Namespace, log: FoundLog) -> int:
    """Ask that the entries below an index go to an archive; a second person approves it."""
    _refuse_a_copy(log)
    admit(log, "prune")
    approved = two_people.ask(log, "prune", {"below": _may_prune(log, given.below)})
    return 0 if approved is None else _carry_out(log, approved)


def _may_prune(log: FoundLog, below: int) -> int:
    """Return `below`, if what the home keeps to allows it.

    Raises:
        LogUnreadable: It isn't a multiple of 256 within the signed log, or nothing is there to be pruned.
        ReadRefused: A legal hold, or the entries are younger than they have to become.
    """
    rules = read_readers(log.home)
    if rules.legal_hold:
        raise ReadRefused("a legal hold is on this home", hint="legal_hold in section audit of its configuration")
    policy, _ = reading.find_policy(log, reading.origin_of(log), None)
    with log.checked() as checked:
        chosen = choose(checked, log.checkpoint_bytes(), policy)
        if below % HASHES_PER_TILE or not checked.begin < below <= chosen.signed.size:
            raise LogUnreadable(
                f"{below} is not a place to prune below: a multiple of {HASHES_PER_TILE} above {checked.begin}, under"
                f" the checkpoint of {chosen.signed.size} entries"
            )
        if chosen.quorum is not None and chosen.quorum.needed and not chosen.seen:
            raise LogUnreadable(f"no quorum has seen these entries: {chosen.text}", hint="wait for the witnesses")
        newest = next(iter(checked.rows(below - 1)))
        if newest.event["t_us"] > two_people.now_us() - rules.keep_us:
            raise ReadRefused(
                f"entry {newest.name} is of {format_time(newest.event['t_us'])}: entries stay"
                f" {rules.keep_us // DAY_US} days at least",
                hint="prune below an older entry; retention in section audit of the home's configuration",
            )
    return below


def _prune(log: FoundLog, approved: Approved) -> None:
    clock, below = edge.SystemClock(), _may_prune(log, int(approved.request.arguments["below"]))
    policy, pinned_by = reading.find_policy(log, reading.origin_of(log), None)
    with log.checked() as checked:
        chosen = choose(checked, log.checkpoint_bytes(), policy, covering=below)
        path, archive = write_archive(log, checked, chosen.signed, below)
    with open_files(path) as files:
        found = check_files(files, BundleReader(policy, pinned_by, complete=True))
    if found.flaws:
        path.unlink()
        first = found.flaws[0]
        raise AuditError(first.code, f"the archive isn't whole, so nothing was pruned: {first.where}: {first.what}")
    draft = AuditPruned(
        id=new_event_id(clock, os.urandom),
        decision="allowed",
        actor=approved.by,
        site=site_of(reading.origin_of(log)),
        below=below,
        archive=archive,
        size=chosen.signed.size,
        root=hash_text(chosen.signed.root),
        approval=approved.approval,
    )
    index, _ = record(log.places.folder, draft, clock=clock)
    talk(f"entries below {below} are pruned, record {index}; proofs at and above it still work")
    talk(f"archive {path}, manifest {archive}; keep it elsewhere too: it is the only copy here")


_ACTS: Final[dict[str, Callable[[FoundLog, Approved], object]]] = {
    "redact": _redact,
    "prune": _prune,
    "new-epoch": begin_epoch,
}
