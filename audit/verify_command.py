"""`confide audit verify` and `checkpoint`: what a log proves, and the few lines that fit a letter."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from audit import checkpoint as checkpoints
from audit import edge, reading, verification
from audit.errors import AuditError, LogUnreadable, NoteRefused
from audit.events import AuditVerified, new_event_id
from audit.export.bundle_check import BundleReader, check_files
from audit.findings import EXIT_STATUS, Verdict, Verification
from audit.openers import open_processes
from audit.peers import check_peers
from audit.read_record import admit, keep, may_record, reader, site_of, talk
from audit.reading import FoundBundle, FoundLog
from audit.verification import Reader
from audit.visible import json_text, visible

PROGRESS_ABOVE_ENTRIES: Final = 5000


def _against(paths: Sequence[Path]) -> dict[str, bytes]:
    found = {}
    for path in paths:
        try:
            data = reading.find_log(path).checkpoint_bytes() if path.is_dir() else path.read_bytes()
        except OSError as error:
            raise LogUnreadable(f"checkpoint {path} can't be read: {error.strerror}") from None
        if not data:
            raise LogUnreadable(f"no checkpoint in {path}")
        found[str(path)] = data
    return found


def verify(given: argparse.Namespace, log: FoundLog) -> int:
    """Print what the log proves, and what not."""
    if isinstance(log, FoundBundle):
        return _verify_bundle(given, log)
    admit(log, "verify")
    against = _against(given.against)
    epochs = log.epochs()
    results = []
    for one in epochs:
        origin = reading.origin_of(one)
        policy, pinned_by = reading.find_policy(log, origin, given.trust)
        own = {name: data for name, data in against.items() if _is_about(data, origin, newest=one == epochs[-1])}
        results.append((_with_progress(one, Reader(policy, pinned_by, own, given.complete)), reading.opening_of(one)))
    result = verification.joined(results)
    check_peers(log, given.peer, given.trust, result)
    if result.size > 0 and result.root:
        _record_verification(log, result)
    return _shown(given, result)


def _verify_bundle(given: argparse.Namespace, found: FoundBundle) -> int:
    """Print what a bundle or a directory of tiles proves: what its own `verify.py` says, by the same check."""
    with found.files() as files:
        try:
            origin = checkpoints.parse(found.checkpoint_bytes()).origin
        except NoteRefused:
            origin = ""
        policy, pinned_by = reading.find_policy(found, origin, given.trust)
        result = check_files(files, BundleReader(policy, pinned_by, given.complete, _against(given.against)))
    if not result.flaws:
        check_peers(found, given.peer, given.trust, result)
    return _shown(given, result)


def _shown(given: argparse.Namespace, result: Verification) -> int:
    if given.format == "table":
        _print_verification(result)
    else:
        print(json_text(result.as_json(), indent=2 if given.format == "json" else None))
    return EXIT_STATUS[result.verdict]


def _is_about(data: bytes, origin: str, *, newest: bool) -> bool:
    """Return whether a reader's checkpoint is held against the epoch `origin`; one of no epoch against the newest."""
    try:
        named = checkpoints.parse(data).origin
    except NoteRefused:
        return newest
    same_log = named.rpartition("/")[0] == origin.rpartition("/")[0]
    return named == origin or (newest and not same_log)


def _with_progress(log: FoundLog, wanted: Reader) -> Verification:
    with log.moment() as (snapshot, signed):
        size = snapshot.last_index() + 1
        with open_processes(size) as openers:
            if size < PROGRESS_ABOVE_ENTRIES or not sys.stderr.isatty():
                return verification.verify(snapshot, signed, wanted, openers=openers)
            from rich.progress import Progress

            with Progress(console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task("verifying", total=size)
                return verification.verify(
                    snapshot, signed, wanted, lambda entries: bar.update(task, completed=entries), openers
                )


def _record_verification(log: FoundLog, result: Verification) -> None:
    if not may_record(log):
        return
    try:
        draft = AuditVerified(
            id=new_event_id(edge.SystemClock(), os.urandom),
            decision="allowed",
            actor=reader(log),
            site=site_of(result.origin),
            size=result.size,
            root=result.root,
            flaws_count=len(result.flaws),
        )
        keep(log, draft)
    except AuditError as error:
        # A log that refuses to be opened, or a disk that is full, is no reason to keep the finding back.
        talk(f"note: this verification is not recorded: {error.message} ({error.code})")


def _print_verification(result: Verification) -> None:
    pinned = f"keys pinned by {result.pinned_by}" if result.pinned_by else "no pinned key"
    lines = [("log", f"{result.origin or 'unknown'}, {pinned}", "")]
    lines += [("proved", text, "green") for text in result.proved]
    lines += [("note", f"{note.code} {note.where}: {note.what}", "yellow") for note in result.notes]
    lines += [("flaw", f"{flaw.code} {flaw.where}: {flaw.what}", "red") for flaw in result.flaws]
    lines.append(("not proved", "; ".join(result.not_proved), ""))
    console = Console(highlight=False, soft_wrap=True)
    for name, text, style in lines:
        console.print(Text(f"{name:<12}"), Text(visible(text), style=style), sep="")
    console.print(Text(str(result.verdict), style="bold"))
    if result.verdict is Verdict.UNPINNED:
        talk("CFD-A20 no pinned key says whose log this is")
        talk("hint: give --trust FILE, with keys compared over the phone")


def checkpoint(given: argparse.Namespace, log: FoundLog) -> int:
    """Print the newest checkpoint that the log signed."""
    data = log.checkpoint_bytes()
    if not data:
        raise LogUnreadable(f"no checkpoint in {log.places.epoch_folder}")
    found = checkpoints.parse(data)
    policy, pinned_by = reading.find_policy(log, found.origin, None)
    keys = policy.for_origin(found.origin) if policy is not None else ()
    if keys:
        checkpoints.open_checkpoint(data, origin=found.origin, log_keys=keys)
    if given.format == "table":
        sys.stdout.write(data.decode())
    else:
        value = {
            "schema": "confide/audit-checkpoint/v1",
            "origin": found.origin,
            "size": found.size,
            "root": "sha256:" + found.root.hex(),
            "note": data.decode(),
        }
        print(json_text(value, indent=2 if given.format == "json" else None))
    checked = f"signature checked with {pinned_by}" if keys else "signature not checked: no pinned key"
    talk(f"{found.size} entries; {checked}")
    return 0
