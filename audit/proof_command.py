"""`confide audit prove` and `check`: one entry that proves itself, and what such a file proves."""

import argparse
import sys
from pathlib import Path

from audit import durable, reading
from audit.bundle_log import BundleLog
from audit.canonical import Event
from audit.columns import format_time
from audit.errors import AuditError, LogUnreadable, NoteRefused
from audit.events import Query
from audit.export.bundle_write import proof_of
from audit.findings import NOT_PROVED
from audit.frame import hash_text
from audit.proof_file import MAX_BYTES, ProofFile
from audit.proof_file import check as check_proof
from audit.proving import choose, refresh
from audit.read_record import admit, read_entry, talk
from audit.reading import FoundLog
from audit.visible import json_text, visible

UNPINNED: int = 3


def prove(given: argparse.Namespace, log: FoundLog) -> int:
    """Write the proof file of one entry."""
    access = admit(log, "prove")
    row = reading.find_entry(log, given.entry)
    if not access.sees(row.event):
        raise LogUnreadable(f"no entry {given.entry[:60]} that you may see")
    read_entry(log, Query(entry=row.name), 1, "json")
    write_proof(log, row.name, Path(given.out))
    return 0


def write_proof(log: FoundLog, name: str, out: Path) -> None:
    """Write the proof file of the entry `name` to `out`, and say what it leads to."""
    row = reading.find_entry(log, name)
    epoch = next(one for one in log.epochs() if reading.origin_of(one) in (row.origin, ""))
    refresh(epoch, row.index + 1)
    policy, _ = reading.find_policy(log, row.origin, None)
    with epoch.checked() as checked:
        if isinstance(checked, BundleLog) and not checked.complete:
            kept = checked.prove(row.index) or b""
            data = bytes(_with_leaf(kept, row.leaf))
            said = f"under the bundle's checkpoint of {checked.size} entries"
        else:
            chosen = choose(checked, epoch.checkpoint_bytes(), policy, covering=row.index + 1)
            data = bytes(proof_of(checked, chosen.signed, row.index, row.leaf))
            said = f"under the checkpoint of {chosen.signed.size} entries, {chosen.text}"
            said += "" if chosen.seen else " (CFD-A45)"
    if out.exists():
        raise LogUnreadable(f"{out} is there already", hint="name a file that isn't")
    try:
        durable.replace_file(out, data)
    except OSError as error:
        raise LogUnreadable(f"{out} can't be written: {error.strerror}") from None
    talk(f"{out}: entry {row.name} {said}")


def _with_leaf(proof: bytes, leaf: bytes) -> ProofFile:
    parsed = ProofFile.parse(proof)
    return ProofFile(parsed.index, parsed.path, parsed.checkpoint, leaf)


def check(given: argparse.Namespace) -> int:
    """Print what a proof file proves under the reader's own policy."""
    path = Path(given.proof)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise LogUnreadable(f"proof {path} can't be read: {error.strerror}") from None
    proof = ProofFile.parse(data)
    origin = proof.checkpoint.origin
    policy, pinned_by = reading.find_policy(None, origin, given.trust)
    if policy is None or not policy.for_origin(origin):
        raise AuditError(
            "CFD-A20", f"no pinned key for {origin}", hint="give --trust FILE, with keys compared over the phone"
        )
    leaf = None if given.entry is None else Path(given.entry).read_bytes()
    try:
        found = check_proof(proof, policy, leaf=leaf)
    except NoteRefused as refused:
        said = f"not yet witnessed: {refused.message}" if refused.code == "CFD-A06" else refused.message
        raise AuditError(refused.code, said, hint=refused.hint) from None
    seen = found.quorum.witnessed
    proved = f"entry {found.index} is in the log, unchanged, under its checkpoint of {found.checkpoint.size} entries"
    if seen and (when := found.quorum.time_s) is not None:
        proved += f"; cosigned by {', '.join(found.quorum.heard)}, there by {format_time(when * 1_000_000)}"
    notes = [] if seen else [("CFD-A45", "not yet witnessed: the policy asks for no other party's word")]
    if given.format != "table":
        value = {
            "schema": "confide/audit-proof-check/v1",
            "log": origin,
            "index": found.index,
            "leaf_hash": hash_text(found.leaf_hash),
            "event": found.event,
            "checkpoint": {"size": found.checkpoint.size, "root": hash_text(found.checkpoint.root)},
            "witnesses": list(found.quorum.heard),
            "writer_checked": found.writer_checked,
            "pinned_by": pinned_by,
            "notes": [{"code": code, "what": what} for code, what in notes],
        }
        print(json_text(value, indent=2 if given.format == "json" else None))
        return 0
    lines = [
        ("log", f"{origin}, keys pinned by {pinned_by}"),
        ("entry", str(found.index)),
        ("leaf hash", hash_text(found.leaf_hash)),
        *flat(found.event),
        ("proved", proved),
        *(("note", f"{code} {what}") for code, what in notes),
        ("not checked", f"the signature of {found.event.get('writer')}: a proof file doesn't hold the writers' keys"),
        ("not proved", "; ".join(NOT_PROVED)),
    ]
    width = max(len(name) for name, _ in lines)
    sys.stdout.writelines(f"{visible(name):<{width}}  {visible(text)}\n" for name, text in lines)
    print("proved" if seen else "proved, not yet witnessed")
    return 0


def flat(event: Event, prefix: str = "") -> list[tuple[str, str]]:
    """Return the fields of an event, one for each line."""
    lines: list[tuple[str, str]] = []
    for name, value in event.items():
        if isinstance(value, dict):
            lines.extend(flat(value, f"{prefix}{name}."))
        elif isinstance(value, list):
            lines.append((prefix + name, ", ".join(map(str, value))))
        else:
            lines.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return lines
