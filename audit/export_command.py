"""`confide audit export`: a bundle that proves itself, with the renderings that other systems read."""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from audit import durable, edge, reading
from audit.access import Access
from audit.canonical import Event, sha256
from audit.checked import ReadableLog, Row
from audit.checkpoint import OpenedCheckpoint
from audit.entry import read_leaf
from audit.events import AuditExported, IndexRange, new_event_id
from audit.export import bundle
from audit.export.bundle import Manifest
from audit.export.bundle_write import BundleWriter, Proved, Request, fences, tiles_of
from audit.export.fhir import audit_event
from audit.export.ocsf import ocsf_event
from audit.export.sinks import Outgoing
from audit.filters import FilterRefused, Filters, parse_time
from audit.frame import hash_text, read_frame
from audit.merkle import leaf_hash
from audit.names import Origin
from audit.note import VerifierKey
from audit.private import PrivateStore
from audit.proofs import Proof
from audit.proving import Witnessed, choose, refresh
from audit.read_record import admit, keep, may_record, reader, site_of, talk
from audit.reading import FoundLog
from audit.rendering import csv_lines
from audit.report_command import people, rendered
from audit.reporting import Asked, bracket_of, head_of, report_on
from audit.trust import format_policy
from audit.visible import json_text

FORMS: Final = ("csv", "fhir", "ocsf", "html", "json", "pdf", "tiles")
_FILES: Final = {
    "csv": "rows.csv",
    "fhir": "fhir.ndjson",
    "ocsf": "ocsf.jsonl",
    "html": "report.html",
    "json": "report.json",
    "pdf": "report.pdf",
}


def export(given: argparse.Namespace, log: FoundLog) -> int:
    """Write a bundle, or a directory of tiles, and record that before it gets its name."""
    access = admit(log, "export")
    filters = filters_of(given, log)
    query = filters.recorded()
    forms = list(given.renderings or ())
    if unknown := [form for form in forms if form not in FORMS]:
        raise FilterRefused(f"no rendering is named {unknown[0][:40]!r}", hint=f"choose of {', '.join(FORMS)}")
    complete = bool(given.complete) or not filters.wanted() or "tiles" in forms
    if complete and not access.sees_all:
        raise FilterRefused("a complete bundle shows every entry of its range", hint="name filters, without --complete")
    newest = log.epochs()[-1]
    with newest.checked() as checked:
        refresh(newest, checked.size)
    with newest.checked() as checked:
        policy, _ = reading.find_policy(log, checked.origin, getattr(log, "trust", None))
        chosen = choose(checked, newest.checkpoint_bytes(), policy)
        if "tiles" in forms:
            return _write_tiles(Path(given.out), checked, chosen, log, query, given.to)
        with Outgoing(Path(given.out)) as out:
            made = _Export(log, checked, chosen, filters, access, forms, private=bool(given.private))
            manifest, matched = made.write(out, complete=complete)
            _record(log, manifest, query, given.to, out.form)
            out.finish()
    _say(log, given.out, manifest, matched, chosen, checked.size)
    return 0


def filters_of(given: argparse.Namespace, log: FoundLog) -> Filters:
    """Return the filters that a command line names."""
    values: dict[str, Any] = {
        name: getattr(given, name)
        for name in ("dataset", "version", "job", "site", "purpose", "action", "decision")
        if getattr(given, name, None) is not None
    }
    actor = getattr(given, "actor", None)
    if actor is not None:
        store = people(log)
        try:
            values["actor"] = actor if store is None else store.find(actor) or actor
        finally:
            if store is not None:
                store.close()
    for name in ("since", "until"):
        if getattr(given, name, None) is not None:
            values[f"{name}_us"] = parse_time(getattr(given, name))
    return Filters(**values)


class _Export:
    """One bundle of one log."""

    def __init__(
        self,
        found: FoundLog,
        log: ReadableLog,
        chosen: Witnessed,
        filters: Filters,
        access: Access,
        forms: list[str],
        *,
        private: bool,
    ) -> None:
        self._found = found
        self._log = log
        self._chosen = chosen
        self._filters = filters
        self._access = access
        self._forms = forms
        self._private = private
        self._writer: BundleWriter | None = None

    def write(self, out: Outgoing, *, complete: bool) -> tuple[Manifest, int]:
        """Write all files and return the manifest and how many rows there are."""
        signed, wanted = self._chosen.signed, self._filters.wanted()
        first, end = fences(self._log, signed.origin, signed.size, wanted)
        store = people(self._found) if self._private and self._access.sees_all else None
        try:
            request = Request(
                wanted,
                complete,
                _policy_text(self._found, self._log, signed.origin),
                {size: note for size, note in self._log.quorums().items() if size < signed.size},
                {_FILES[form]: self._rendering(form) for form in self._forms},
                None if store is None else self._private_lines(store),
            )
            log = _Seen(self._log, signed.origin, self._access)
            self._writer = BundleWriter(log, signed, out, request, first, end)
            manifest = self._writer.write()
        finally:
            if store is not None:
                store.close()
        return manifest, self._writer.matched

    def _matching(self) -> Iterator[Proved]:
        if self._writer is None:
            raise RuntimeError("nothing is being written")
        return self._writer.matching()

    def _rows(self) -> Iterator[Row]:
        for index, leaf, event in self._matching():
            entry, _ = read_leaf(leaf, origin=self._log.origin)
            hashed = hash_text(leaf_hash(leaf))
            yield Row(self._log.origin, index, hashed, leaf, event, entry.interpreted, str(index))

    def _rendering(self, form: str) -> Iterator[bytes]:
        origin = self._log.origin
        match form:
            case "csv":
                yield from (line.encode() for line in csv_lines(self._rows()))
            case "fhir":
                yield from self._lines(lambda index, _, event: audit_event(origin, index, event))
            case "ocsf":
                yield from self._lines(lambda index, hashed, event: ocsf_event(origin, index, hashed, event))
            case _:
                yield self._report(_FILES[form].removeprefix("report"))

    def _lines(self, line_of: Callable[[int, str, Event], dict[str, Any]]) -> Iterator[bytes]:
        for index, leaf, event in self._matching():
            yield json_text(line_of(index, hash_text(leaf_hash(leaf)), event)).encode() + b"\n"

    def _report(self, suffix: str) -> bytes:
        policy, pinned_by = reading.find_policy(self._found, self._log.origin, None)
        head = head_of(
            self._log,
            self._chosen,
            self._filters,
            made_us=_now_us(),
            made_by=f"account {edge.account()}",
            pinned_by=pinned_by,
            bracket=bracket_of(self._log, policy, self._filters),
        )
        asked = Asked(self._filters, self._access, lambda _: None)  # names don't leave with a bundle
        return rendered(report_on([self._log], self._chosen, asked, head).view, suffix)

    def _private_lines(self, store: PrivateStore) -> Iterator[bytes]:
        for index, _, event in self._matching():
            for name, commitment in sorted(event.get("private", {}).items()):
                opening = store.opening_of(str(commitment))
                if opening is not None:
                    yield bundle.private_line(index, name, *opening)


class _Seen:
    """A log as one reader sees it: entries that aren't the reader's to see are as if they didn't match."""

    def __init__(self, log: ReadableLog, origin: str, access: Access) -> None:
        self._log, self._origin, self._access = log, origin, access
        self.tree, self.begin = log.tree, log.begin

    def leaves(self, first: int, end: int) -> Iterator[bytes]:
        for leaf in self._log.leaves(first, end):
            hidden = not self._access.sees_all and leaf and not self._access.sees(_event(leaf, self._origin))
            yield b"" if hidden else leaf

    def trail(self) -> list[tuple[int, bytes]]:
        return self._log.trail()

    def inside(self, index: int) -> Proof:
        return self._log.inside(index)


def _event(leaf: bytes, origin: str) -> Event:
    return read_frame(leaf, origin=origin)[0]


def _now_us() -> int:
    from audit.clock import microseconds

    return microseconds(edge.SystemClock().now())


def _policy_text(found: FoundLog, log: ReadableLog, origin: str) -> str:
    """Return the policy file that goes into a bundle: the home's own, else one with the keys that the log declares."""
    party = Origin.parse(origin).party
    if found.home is not None:
        path = found.home / "trust" / f"{party}.policy"
        with contextlib.suppress(OSError):
            return path.read_text(encoding="utf-8")
    keys: tuple[VerifierKey, ...] = log.keyring.log_keys()
    return format_policy(map(str, keys), {}, {}, 0)


def write_archive(log: FoundLog, checked: ReadableLog, signed: OpenedCheckpoint, below: int) -> tuple[Path, str]:
    """Write a complete bundle of all that the log has, for entries below an index to go; return it and its hash."""
    folder = log.places.folder / "archive"
    durable.make_folder(folder)
    path = folder / f"{log.places.epoch}-{below}.zip"
    path.unlink(missing_ok=True)  # of a pruning that was cut before its entry
    request = Request({}, True, _policy_text(log, checked, signed.origin))
    with Outgoing(path) as out:
        manifest = BundleWriter(checked, signed, out, request, checked.begin, signed.size).write()
        out.finish()
    return path, sha256(bytes(manifest))


def _record(log: FoundLog, manifest: Manifest, query: Any, to: str, form: str) -> None:
    if not may_record(log):
        return
    draft = AuditExported(
        id=new_event_id(edge.SystemClock(), os.urandom),
        decision="allowed",
        actor=reader(log),
        site=site_of(manifest.origin),
        query=query,
        range=IndexRange.model_validate({"from": manifest.first, "to": manifest.end}),
        complete=manifest.complete,
        bundle=sha256(bytes(manifest)),
        to=to,
        form=form,
    )
    keep(log, draft)


def _say(log: FoundLog, out: str, manifest: Manifest, matched: int, chosen: Witnessed, size: int) -> None:
    what = "all entries that match" if manifest.complete else "a selection"
    talk(f"{out}: {matched} entries, {what}, under the checkpoint of {manifest.size} entries")
    talk(f"manifest {sha256(bytes(manifest))}" + (", recorded in the log" if log.live else ""))
    if not chosen.seen:
        talk(f"note: CFD-A45 {chosen.text}")
    if manifest.size < size:
        talk(f"note: entries {manifest.size} to {size - 1} are newer than that checkpoint and not in it")
    if len(log.epochs()) > 1:
        talk("note: earlier epochs are logs of their own; name the folder of one to export it")


def _write_tiles(out: Path, checked: ReadableLog, chosen: Witnessed, log: FoundLog, query: Any, to: str) -> int:
    """Write or extend a plain directory of tiles, which other projects' tools can check."""
    from audit.export.tile_folder import write_tile_folder

    signed = chosen.signed
    tiles = tiles_of(checked, signed.size, checked.begin, signed.size)
    manifest = Manifest(signed.origin, signed.size, signed.root, True, checked.begin, signed.size, {})
    policy = _policy_text(log, checked, signed.origin)

    def before() -> None:
        _record(log, manifest, query, to, "tiles")

    written = write_tile_folder(out, checked, signed, tiles, policy, before=before)
    talk(f"{out}: {signed.size} entries in tiles, {written} files written")
    if not chosen.seen:
        talk(f"note: CFD-A45 {chosen.text}")
    return 0
