"""Makes a report from a log: which entries it reads, and whose names it may show."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from audit import checkpoint as checkpoints
from audit.access import Access
from audit.bundle_log import BundleLog
from audit.checked import ReadableLog, Row
from audit.columns import format_time
from audit.errors import NoteRefused
from audit.export.bundle_brackets import bracket_text
from audit.export.bundle_write import fingerprint, first_at
from audit.export.report_view import Head, ReportBuilder, ReportView, is_about
from audit.filters import Filters
from audit.frame import hash_text
from audit.proving import Witnessed
from audit.quorum import judge
from audit.trust import TrustPolicy

_APPROVING = ("job.approved", "job.denied", "job.accepted", "job.parked")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is about.

    Attributes:
        filters: Data set, job and time.
        access: What the reader may see.
        name_of: The name behind a pseudonym, where the reader may know it.
    """

    filters: Filters
    access: Access
    name_of: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Made:
    """A report, and how many entries it shows."""

    view: ReportView
    matched: int


def report_on(epochs: list[ReadableLog], chosen: Witnessed, asked: Asked, head: Head) -> Made:
    """Return the report over all epochs of a log.

    Args:
        epochs: In order.
        chosen: The checkpoint that the newest is shown under.
        asked: What it is about.
        head: Its head, but for what was read.
    """
    names: dict[str, str] = {}
    builder = ReportBuilder(names)
    read, matched = 0, 0
    jobs_seen: set[str] = set()
    for log in epochs:
        jobs = _jobs_of(log, asked.filters)
        for row in _in_time(log, asked.filters):
            read += 1
            event = row.event
            if not is_about(event, asked.filters.dataset, jobs) or not _is_of_job(event, asked.filters.job):
                continue
            if not asked.access.sees(event):
                continue
            if isinstance(event.get("job"), str) and event["job"] not in jobs_seen:
                jobs_seen.add(event["job"])
                for earlier in _approvals_before(epochs, event["job"], asked.filters.since_us):
                    _learn(names, earlier.event, asked.name_of)
                    builder.take(earlier.name, earlier.leaf_hash, earlier.event, before=True)
            _learn(names, event, asked.name_of)
            builder.take(row.name, row.leaf_hash, event, interpreted=row.interpreted)
            matched += 1
    partial = any(isinstance(log, BundleLog) and not log.complete for log in epochs)
    said = f"{read} entries, each found in the signed tree"
    said += "; a selection, which can't show that none is missing" if partial else ", all of the time asked"
    said += "" if asked.access.sees_all else f"; only what the role {asked.access.grant.role} may see"
    return Made(builder.view(replace(head, read=said)), matched)


def head_of(
    log: ReadableLog, chosen: Witnessed, filters: Filters, *, made_us: int, made_by: str, pinned_by: str, bracket: str
) -> Head:
    """Return the head of a report, before anything was read."""
    asked = [("data set", filters.dataset or "all")]
    asked += [("job", filters.job)] if filters.job else []
    asked += [
        ("from", "the log's beginning" if filters.since_us is None else format_time(filters.since_us)),
        ("until", "the log's end" if filters.until_us is None else f"{format_time(filters.until_us)}, not included"),
    ]
    return Head(
        origin=log.origin,
        asked=tuple(asked),
        made_us=made_us,
        made_by=made_by,
        size=chosen.signed.size,
        root=hash_text(chosen.signed.root),
        witnessed=chosen.text,
        keys=tuple(fingerprint(key) for key in chosen.signed.signers),
        bracket=bracket,
        read="",
        pinned_by=pinned_by,
    )


def bracket_of(log: ReadableLog, policy: TrustPolicy | None, filters: Filters) -> str:
    """Return what the witnesses' clocks say of when the entries asked for came to be."""
    times = []
    for size, note in log.quorums().items():
        try:
            keys = log.keyring.log_keys_at(size)
            signed = checkpoints.open_checkpoint(note, origin=log.origin, log_keys=keys)
            found = None if policy is None else judge(signed, policy)
        except NoteRefused:
            continue
        if found is not None and found.witnessed and found.time_s is not None:
            times.append((size, found.time_s))
    if not times or (isinstance(log, BundleLog) and not log.complete):
        return bracket_text(times, 0, log.size)
    first = 0 if filters.since_us is None else first_at(log, log.origin, log.size, filters.since_us)
    end = log.size if filters.until_us is None else first_at(log, log.origin, log.size, filters.until_us)
    return bracket_text(times, first, end)


def _in_time(log: ReadableLog, filters: Filters) -> Iterator[Row]:
    first = 0
    if filters.since_us is not None and not isinstance(log, BundleLog):
        first = first_at(log, log.origin, log.size, filters.since_us)
    for row in log.rows(first):
        if filters.until_us is not None and row.event["t_us"] >= filters.until_us:
            return
        if filters.since_us is None or row.event["t_us"] >= filters.since_us:
            yield row


def _jobs_of(log: ReadableLog, filters: Filters) -> frozenset[str]:
    """Return the jobs that used the data set asked for, by any entry before the end of the time asked."""
    if filters.dataset is None:
        return frozenset()
    found = log.matching(Filters(dataset=filters.dataset, until_us=filters.until_us))
    return frozenset(row.event["job"] for row in found if isinstance(row.event.get("job"), str))


def _is_of_job(event: Mapping[str, object], job: str | None) -> bool:
    return job is None or event.get("job") == job


def _approvals_before(epochs: list[ReadableLog], job: str, since_us: int | None) -> Iterator[Row]:
    if since_us is None:
        return
    for log in epochs:
        for action in _APPROVING:
            yield from log.matching(Filters(job=job, action=action, until_us=since_us))


def _learn(names: dict[str, str], event: Mapping[str, object], name_of: Callable[[str], str | None]) -> None:
    """Look up the people that an entry names."""
    actor, approval = event.get("actor"), event.get("approval")
    people = [actor.get("id")] if isinstance(actor, dict) else []
    people += approval.get("by", []) if isinstance(approval, dict) else []
    people.append(event.get("subject"))
    for one in people:
        if isinstance(one, str) and one.startswith("p1:") and one not in names:
            name = name_of(one)
            if name is not None:
                names[one] = name
