"""`confide audit report`: who, what for, under which approval, at what privacy cost, and what left."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import Final

from audit import durable, edge, reading
from audit.access import Access
from audit.clock import microseconds
from audit.errors import LogUnreadable
from audit.export.report_html import html_of
from audit.export.report_view import ReportView
from audit.filters import FilterRefused, Filters, parse_time
from audit.private import PrivateStore
from audit.proving import choose, refresh
from audit.read_record import admit, read_entry, talk
from audit.reading import FoundLog
from audit.reporting import Asked, bracket_of, head_of, report_on
from audit.visible import json_text

SUFFIXES: Final = (".html", ".pdf", ".json")


def report(given: argparse.Namespace, log: FoundLog) -> int:
    """Write the report that was asked for."""
    out = Path(given.out)
    if out.suffix not in SUFFIXES:
        raise FilterRefused(f"a report ends in {', '.join(SUFFIXES)}", hint="name --out report.html")
    if out.exists():
        raise LogUnreadable(f"{out} is there already", hint="name a file that isn't")
    access = admit(log, "report")
    filters = Filters(
        dataset=given.dataset,
        job=given.job,
        since_us=None if given.since is None else parse_time(given.since),
        until_us=None if given.until is None else parse_time(given.until),
    )
    filters.recorded()
    view, matched = _made(log, access, filters)
    data = rendered(view, out.suffix)
    read_entry(log, filters.recorded(), matched, "report")
    try:
        durable.replace_file(out, data)
    except OSError as error:
        raise LogUnreadable(f"{out} can't be written: {error.strerror}") from None
    talk(f"{out}: {matched} entries of {view.head.origin}; {view.head.witnessed}")
    return 0


def rendered(view: ReportView, suffix: str) -> bytes:
    """Return the bytes of a report in the form that a file's suffix names."""
    if suffix == ".json":
        return (json_text(view.as_json(), indent=2) + "\n").encode()
    if suffix == ".pdf":
        from audit.export.report_pdf import pdf_of

        return pdf_of(view)
    return "".join(html_of(view)).encode()


def _made(log: FoundLog, access: Access, filters: Filters) -> tuple[ReportView, int]:
    newest = log.epochs()[-1]
    with newest.checked() as checked:
        refresh(newest, checked.size)
    with contextlib.ExitStack() as stack:
        epochs = [stack.enter_context(one.checked()) for one in log.epochs()]
        last = epochs[-1]
        policy, pinned_by = reading.find_policy(log, last.origin, getattr(log, "trust", None))
        chosen = choose(last, newest.checkpoint_bytes(), policy)
        store = people(log) if access.sees_all else None
        try:
            head = head_of(
                last,
                chosen,
                filters,
                made_us=microseconds(edge.SystemClock().now()),
                made_by=f"account {edge.account()}",
                pinned_by=pinned_by,
                bracket=bracket_of(last, policy, filters),
            )
            name_of = (lambda _: None) if store is None else store.name_of
            made = report_on(epochs, chosen, Asked(filters, access, name_of), head)
        finally:
            if store is not None:
                store.close()
    return made.view, made.matched


def people(log: FoundLog) -> PrivateStore | None:
    """Return the side store of a live home, None of a copy."""
    if not log.live or log.audit_folder is None:
        return None
    return PrivateStore(log.audit_folder, clock=edge.SystemClock(), random_bytes=os.urandom)
