"""`confide audit query` and `show`: rows that the tree holds, shown after the reading was recorded."""

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from rich.console import Console

from audit import edge, reading, rendering
from audit.canonical import Event
from audit.checked import ReadableLog, Row
from audit.columns import format_time
from audit.errors import LogUnreadable
from audit.events import Query
from audit.filters import FilterRefused, Filters, parse_time
from audit.private import PrivateStore
from audit.proof_command import flat, write_proof
from audit.read_record import admit, read_entry, talk
from audit.reading import FoundLog
from audit.visible import json_text, visible

TABLE_ROWS: Final = 100
HELD_ROWS: Final = 2000
"""Rows that are checked before the first is shown; more are shown one by one as they are checked."""
PIPE_WIDTH: Final = 240


def console() -> Console:
    """Return a console for results; a pipe gets lines that aren't cut to a terminal's width."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def _pseudonym(log: FoundLog, actor: str | None) -> str | None:
    """Return the pseudonym of a login that this home knows; a pseudonym or a service's id stays as it is."""
    if actor is None or actor.startswith("p1:") or log.audit_folder is None or not log.live:
        return actor
    store = PrivateStore(log.audit_folder, clock=edge.SystemClock(), random_bytes=os.urandom)
    try:
        return store.find(actor) or actor
    finally:
        store.close()


def _after(log: FoundLog, text: str | None) -> tuple[int, int] | None:
    """Return the epoch and the index behind which a list goes on; an index alone is one of the newest epoch."""
    if text is None:
        return None
    epoch, _, index = text.rpartition("/")
    if index.isascii() and index.isdigit() and len(index) < 19 and (not epoch or epoch.isdigit()):
        return int(epoch or log.places.epoch), int(index)
    row = reading.find_entry(log, text)
    return int(row.origin.rpartition("/")[2]), row.index


def _shares(
    epochs: list[ReadableLog], filters: Filters, after: tuple[int, int] | None
) -> Iterator[tuple[ReadableLog, Filters]]:
    """Yield each epoch with what is asked of it: nothing of those that the list has passed."""
    for checked in epochs:
        number = int(checked.origin.rpartition("/")[2])
        if after is None or number > after[0]:
            yield checked, replace(filters, after=None)
        elif number == after[0]:
            yield checked, replace(filters, after=after[1])


def _in_order(epochs: list[ReadableLog], filters: Filters, after: tuple[int, int] | None) -> Iterator[Row]:
    for checked, share in _shares(epochs, filters, after):
        yield from checked.matching(share)


def _count(epochs: list[ReadableLog], filters: Filters, after: tuple[int, int] | None) -> int:
    return sum(checked.count(share) for checked, share in _shares(epochs, filters, after))


def _filters(given: argparse.Namespace, log: FoundLog) -> Filters:
    limit: int | None = given.limit
    if limit is not None and limit < 1:
        raise FilterRefused("--limit is at least 1", hint="leave it out for all rows")
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
        after=None if (after := _after(log, given.after)) is None else after[1],
        limit=limit,
    )


def query(given: argparse.Namespace, log: FoundLog) -> int:
    """List the entries that the filters ask for."""
    filters = _filters(given, log)
    access = admit(log, "query")
    filters.recorded()  # refuses what no entry can hold before anything is read
    with contextlib.ExitStack() as stack:
        epochs = [stack.enter_context(one.checked()) for one in log.epochs()]
        after = _after(log, given.after)
        limit = filters.limit
        found: Iterator[Row] = _in_order(epochs, filters, after)
        if not access.sees_all:
            found = (row for row in found if access.sees(row.event))
        held = list(itertools.islice(found, HELD_ROWS + 1 if limit is None else limit + 1))
        if limit is None:
            matched = len(held) if len(held) <= HELD_ROWS or not access.sees_all else _count(epochs, filters, after)
            rows: Iterable[Row] = itertools.chain(held, found)
        else:
            matched = min(len(held), limit)
            rows = held[:limit]
        following = held[matched - 1].name if limit is not None and len(held) > limit else None
        if filters.actor is not None and not filters.actor.startswith("p1:") and not held:
            # a name that the log doesn't hold must not enter it by a question
            filters = replace(filters, actor="unknown")
        read_entry(log, filters.recorded(), matched, given.format)
        _print(given, epochs[-1].origin, rows, following)
    if given.format == "table":
        talk(f"{matched} entries, times in UTC")
    if following is not None:
        talk(f"more entries match; go on with --after {following}")
    return 0


def _print(given: argparse.Namespace, origin: str, rows: Iterable[Row], following: str | None) -> None:
    match given.format:
        case "csv":
            sys.stdout.reconfigure(newline="")  # type: ignore[union-attr]
            sys.stdout.writelines(rendering.csv_lines(rows))
        case "jsonl":
            for row in rows:
                print(json_text({"schema": "confide/audit-entry/v1", **rendering.row_value(row)}))
        case "json":
            sys.stdout.writelines(_document(origin, rows, following))
        case _:
            console().print(rendering.table_of(rows))


def _document(origin: str, rows: Iterable[Row], following: str | None) -> Iterable[str]:
    """Yield the pieces of one JSON document, a row at a time."""
    yield f'{{\n  "schema": "confide/audit-entries/v1",\n  "log": {json_text(origin)},\n  "rows": ['
    comma = ""
    for row in rows:
        yield comma + "\n" + _indented(json_text(rendering.row_value(row), indent=2))
        comma = ","
    yield "\n  ]" if comma else "]"
    if following is not None:
        yield f',\n  "after": {following if following.isdigit() else json_text(following)}'
    yield "\n}\n"


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


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


def show(given: argparse.Namespace, log: FoundLog) -> int:
    """Print one entry in full."""
    access = admit(log, "show")
    row = reading.find_entry(log, given.entry)
    if not access.sees(row.event):
        raise LogUnreadable(f"no entry {given.entry[:60]} that you may see")
    private = _private_lines(log, row) if access.sees_all else []
    read_entry(log, Query(entry=row.name), 1, given.format)
    if given.proof is not None:
        write_proof(log, row.name, given.proof)
    if given.format in ("json", "jsonl"):
        value: Event = {
            "schema": "confide/audit-entry/v1",
            "log": row.origin,
            **rendering.row_value(row),
            "leaf": row.leaf.decode(),
            "private": dict(private),
        }
        print(json_text(value, indent=2 if given.format == "json" else None))
        return 0
    lines = [
        ("log", row.origin),
        ("entry", str(row.index)),
        ("time", f"{format_time(row.event['t_us'])} (UTC, as the writer's clock said)"),
        ("leaf hash", row.leaf_hash),
        ("signed by", str(row.event["writer"])),
        *flat(row.event),
        *private,
    ]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{visible(name):<{width}}  {visible(text)}")
    if not row.interpreted:
        talk("note: CFD-A44 not interpreted by this version; bytes, chain and signature agree")
    return 0
