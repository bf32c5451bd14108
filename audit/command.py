"""`confide audit`: query, show, verify, checkpoint. Offline, and without any part of the product that trains."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from audit import checkpoint as checkpoints
from audit import edge, reading, rendering, storage, verification
from audit.canonical import Event
from audit.errors import AuditError, LogFrozen, LogUnreadable
from audit.events import Actor, AuditRead, AuditVerified, Draft, Query, new_event_id
from audit.filters import FilterRefused, Filters, format_time, parse_time
from audit.names import COORDINATOR, Origin
from audit.private import PrivateStore
from audit.reading import FoundLog, Row
from audit.recording import record
from audit.verification import EXIT_STATUS, NOT_PROVED, Reader, Verification

HELP: Final = """\
usage: confide audit VERB [LOG] [options]

Who used which data, for what, under whose approval, at what privacy cost, and what left.
LOG is a home, its audit folder, or a copy of either; without one, the home of this account.

  query       list entries               --dataset --job --site --actor --purpose --action
                                         --decision --since --until --limit --after
  show        one entry in full          ENTRY is an index, EPOCH/INDEX or an id
  verify      is the log whole, and whose; prints what is proved and what is not
                                         --trust FILE --against CHECKPOINT --complete
  checkpoint  print the newest signed checkpoint: a few lines that fit a letter

  --home DIR            the home to read
  --format FORMAT       table, json, jsonl or csv

Reading a live home is itself recorded there; a copy is only read.
Exit status of verify: 0 verified, 1 flawed, 2 no log, 3 no pinned key says whose log it is.

example:
  confide audit query --dataset heart --since 2026-01-01 --format csv > heart.csv
  confide audit verify ./copy-of-the-home --trust cleveland.policy --against october.checkpoint
"""
TABLE_ROWS: Final = 100
PIPE_WIDTH: Final = 240
PROGRESS_ABOVE_BYTES: Final = 8 << 20


class _Parser(argparse.ArgumentParser):
    """argparse with our help screen."""

    def format_help(self) -> str:
        return HELP

    def format_usage(self) -> str:
        return f"usage: {self.prog} …  (see `confide audit --help`)\n"


def _parser() -> _Parser:
    parser = _Parser(prog="confide audit")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in ("query", "show", "verify", "checkpoint"):
        added = verbs.add_parser(verb)
        added.add_argument("log", nargs="?", type=Path, metavar="LOG")
        added.add_argument("--home", type=Path)
        formats = ("table", "json", "jsonl", "csv") if verb == "query" else ("table", "json", "jsonl")
        added.add_argument("--format", choices=formats, default="table")
    query, show, verify = (verbs.choices[verb] for verb in ("query", "show", "verify"))
    for name in (
        "dataset",
        "version",
        "job",
        "site",
        "actor",
        "purpose",
        "action",
        "decision",
        "since",
        "until",
        "after",
    ):
        query.add_argument(f"--{name}")
    query.add_argument("--limit", type=int)
    show.add_argument("entry", metavar="ENTRY")
    verify.add_argument("--trust", type=Path)
    verify.add_argument("--against", action="append", type=Path, default=[])
    verify.add_argument("--complete", action="store_true")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit status.

    Raises:
        AuditError: For the caller to print with code and hint.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    log = reading.find_log(given.log or given.home) if given.log or given.home else reading.find_home()
    try:
        match given.verb:
            case "query":
                return _query(parser, given, log)
            case "show":
                return _show(given, log)
            case "verify":
                return _verify(given, log)
            case _:
                return _checkpoint(given, log)
    except FilterRefused as refused:
        parser.error(str(refused))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _talk(text: str) -> None:
    print(rendering.visible(text), file=sys.stderr)


def _console() -> Console:
    """Return a console for results; a pipe gets lines that aren't cut to a terminal's width."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


# --- recording a reading --------------------------------------------------------------------------------------


def _site_of(origin: str) -> str | None:
    party = Origin.parse(origin).party
    return None if party == COORDINATOR else party


def _reader(folder: Path) -> Actor:
    """Return the account that reads, by its pseudonym in this home."""
    store = PrivateStore(folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        return Actor(kind="person", id=store.pseudonym(edge.account()), auth="local")
    finally:
        store.close()


def _record(log: FoundLog, draft: Draft) -> None:
    """Record a reading of a live home before anything is shown; a log that takes nothing is read like a copy."""
    if log.audit_folder is None:
        return
    try:
        record(log.audit_folder, draft, clock=edge.SystemClock())
    except LogFrozen as frozen:
        _talk(f"note: this reading is not recorded: {frozen.message} ({frozen.code})")


def _may_record(log: FoundLog) -> bool:
    """Return whether readings of `log` are recorded; a live home on a read-only disk is read like a copy."""
    if not log.live or log.audit_folder is None:
        return False
    if (log.epoch_folder / "frozen").exists():
        _talk("note: this reading is not recorded: the log is frozen (CFD-A26)")
        return False
    if not os.access(log.audit_folder, os.W_OK):
        _talk("note: this reading is not recorded: the home can't be written")
        return False
    return True


def _read_entry(log: FoundLog, query: Query, matched: int, output: str) -> None:
    if not _may_record(log) or log.audit_folder is None:
        return
    draft = AuditRead(
        id=new_event_id(edge.SystemClock(), os.urandom),
        decision="allowed",
        actor=_reader(log.audit_folder),
        site=_site_of(reading.origin_of(log)),
        query=query,
        matched=matched,
        output="csv" if output == "csv" else "table" if output == "table" else "json",
    )
    _record(log, draft)


# --- query ----------------------------------------------------------------------------------------------------


def _pseudonym(log: FoundLog, actor: str | None) -> str | None:
    """Return the pseudonym of a login that this home knows; a pseudonym or a service's id stays as it is."""
    if actor is None or actor.startswith("p1:") or log.audit_folder is None or not log.live:
        return actor
    store = PrivateStore(log.audit_folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        return store.find(actor) or actor
    finally:
        store.close()


def _after(log: FoundLog, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    return reading.find_entry(log, text).index


def _filters(parser: argparse.ArgumentParser, given: argparse.Namespace, log: FoundLog) -> Filters:
    limit: int | None = given.limit
    if limit is not None and limit < 1:
        parser.error("--limit is at least 1")
    if limit is None and given.format == "table":
        limit = TABLE_ROWS
    return Filters(
        dataset=given.dataset,
        version=given.version,
        job=given.job,
        site=given.site,
        actor=_pseudonym(log, given.actor),
        purpose=given.purpose,
        action=given.action,
        decision=given.decision,
        since_us=None if given.since is None else parse_time(given.since),
        until_us=None if given.until is None else parse_time(given.until),
        after=_after(log, given.after),
        limit=limit,
    )


def _query(parser: argparse.ArgumentParser, given: argparse.Namespace, log: FoundLog) -> int:
    filters = _filters(parser, given, log)
    filters.recorded()  # refuses what no entry can hold before anything is read
    rows, more = reading.read_matching(log, filters)
    if filters.actor is not None and not filters.actor.startswith("p1:") and not rows:
        filters = replace(filters, actor="unknown")  # a name that the log doesn't hold must not enter it by a question
    _read_entry(log, filters.recorded(), len(rows), given.format)
    following = rows[-1].index if more else None
    match given.format:
        case "csv":
            sys.stdout.reconfigure(newline="")  # type: ignore[union-attr]
            sys.stdout.writelines(rendering.csv_lines(rows))
        case "jsonl":
            for row in rows:
                print(rendering.json_text({"schema": "confide/audit-entry/v1", **rendering.row_value(row)}))
        case "json":
            value: Event = {
                "schema": "confide/audit-entries/v1",
                "log": reading.origin_of(log),
                "rows": [rendering.row_value(row) for row in rows],
            }
            if following is not None:
                value["after"] = following
            print(rendering.json_text(value, indent=2))
        case _:
            _console().print(rendering.table_of(rows))
            _talk(f"{len(rows)} entries, times in UTC")
    if following is not None:
        _talk(f"more entries match; go on with --after {following}")
    return 0


# --- show -----------------------------------------------------------------------------------------------------


def _private_lines(log: FoundLog, row: Row) -> list[tuple[str, str]]:
    """Return what this home's side store holds behind an entry's pseudonyms and commitments."""
    if log.audit_folder is None or not log.live:
        return []
    lines = []
    store = PrivateStore(log.audit_folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        actor = str(row.event["actor"]["id"])
        name = store.name_of(actor) if actor.startswith("p1:") else None
        if name is not None:
            lines.append(("actor", f"{name} (not verified: from the side store)"))
        for field, commitment in sorted(row.event.get("private", {}).items()):
            value = store.value_of(commitment)
            shown = "erased" if value is None else f"{value.decode('utf-8', 'backslashreplace')} (opens its commitment)"
            lines.append((field, shown))
    finally:
        store.close()
    return lines


def _show(given: argparse.Namespace, log: FoundLog) -> int:
    row = reading.find_entry(log, given.entry)
    private = _private_lines(log, row)
    _read_entry(log, Query(entry=str(row.index)), 1, given.format)
    if given.format in ("json", "jsonl"):
        value: Event = {
            "schema": "confide/audit-entry/v1",
            "log": reading.origin_of(log),
            **rendering.row_value(row),
            "leaf": row.leaf.decode(),
            "private": dict(private),
        }
        print(rendering.json_text(value, indent=2 if given.format == "json" else None))
        return 0
    lines = [
        ("log", reading.origin_of(log)),
        ("entry", str(row.index)),
        ("time", f"{format_time(row.event['t_us'])} (UTC, as the writer's clock said)"),
        ("leaf hash", row.leaf_hash),
        ("signed by", str(row.event["writer"])),
        *_flat(row.event),
        *private,
    ]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{rendering.visible(name):<{width}}  {rendering.visible(text)}")
    if not row.interpreted:
        _talk("note: CFD-A44 not interpreted by this version; bytes, chain and signature agree")
    return 0


def _flat(event: Event, prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in event.items():
        if isinstance(value, dict):
            lines.extend(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, list):
            lines.append((prefix + name, ", ".join(map(str, value))))
        else:
            lines.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return lines


# --- verify ---------------------------------------------------------------------------------------------------


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


def _verify(given: argparse.Namespace, log: FoundLog) -> int:
    policy, pinned_by = reading.find_policy(log, reading.origin_of(log), given.trust)
    reader = Reader(policy, pinned_by, _against(given.against), given.complete, may_grow=log.live)
    try:
        result = _with_progress(log, reader)
    except OSError as error:
        raise LogUnreadable(f"{log.entries} can't be read: {error.strerror}") from None
    if result.size > 0 and result.root:
        _record_verification(log, result)
    if given.format == "table":
        _print_verification(result)
    else:
        print(rendering.json_text(result.as_json(), indent=2 if given.format == "json" else None))
    return EXIT_STATUS[result.verdict]


def _with_progress(log: FoundLog, reader: Reader) -> Verification:
    data = log.checkpoint_bytes()  # before the entries, which may grow: then they can't be behind it
    size_bytes = log.entries.stat().st_size
    lines = storage.read_lines(log.entries, up_to_bytes=size_bytes)
    if size_bytes < PROGRESS_ABOVE_BYTES or not sys.stderr.isatty():
        return verification.verify(lines, data, reader)
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verifying", total=size_bytes)
        return verification.verify(lines, data, reader, lambda offset: bar.update(task, completed=offset))


def _record_verification(log: FoundLog, result: Verification) -> None:
    if not _may_record(log) or log.audit_folder is None:
        return
    try:
        draft = AuditVerified(
            id=new_event_id(edge.SystemClock(), os.urandom),
            decision="allowed",
            actor=_reader(log.audit_folder),
            site=_site_of(result.origin),
            size=result.size,
            root=result.root,
            flaws_count=len(result.flaws),
        )
        _record(log, draft)
    except AuditError as error:
        # A log that refuses to be opened, or a disk that is full, is no reason to keep the finding back.
        _talk(f"note: this verification is not recorded: {error.message} ({error.code})")


def _print_verification(result: Verification) -> None:
    pinned = f"keys pinned by {result.pinned_by}" if result.pinned_by else "no pinned key"
    lines = [("log", f"{result.origin or 'unknown'}, {pinned}", "")]
    lines += [("proved", text, "green") for text in result.proved]
    lines += [("note", f"{note.code} {note.where}: {note.what}", "yellow") for note in result.notes]
    lines += [("flaw", f"{flaw.code} {flaw.where}: {flaw.what}", "red") for flaw in result.flaws]
    lines.append(("not proved", "; ".join(NOT_PROVED), ""))
    console = Console(highlight=False, soft_wrap=True)
    for name, text, style in lines:
        console.print(Text(f"{name:<12}"), Text(rendering.visible(text), style=style), sep="")
    console.print(Text(str(result.verdict), style="bold"))
    if result.verdict is verification.Verdict.UNPINNED:
        _talk("CFD-A20 no pinned key says whose log this is")
        _talk("hint: give --trust FILE, with keys compared over the phone")


# --- checkpoint -----------------------------------------------------------------------------------------------


def _checkpoint(given: argparse.Namespace, log: FoundLog) -> int:
    data = log.checkpoint_bytes()
    if not data:
        raise LogUnreadable(f"no checkpoint in {log.epoch_folder}")
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
        print(rendering.json_text(value, indent=2 if given.format == "json" else None))
    checked = f"signature checked with {pinned_by}" if keys else "signature not checked: no pinned key"
    _talk(f"{found.size} entries; {checked}")
    return 0
