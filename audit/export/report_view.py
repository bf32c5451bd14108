"""What a report says: who used which data, what for, under which approval, at what privacy cost, and what left; pure.

A view is made from entries that were found in the tree, one after the other, and holds texts and numbers only; how it
looks is `report_html`'s and `report_pdf`'s. Every row names its entry and the first 8 bytes of its leaf hash, so that
each can be shown and proved by itself. A person's name isn't covered by any entry and is marked so.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from audit.canonical import Event
from audit.columns import epsilon_text, format_time
from audit.export.report_sections import HOW_TO_VERIFY, LIMITS, NOT_VERIFIED, PRIVACY, PURPOSES, SECTIONS

SCHEMA: Final = "confide/audit-report/v1"
_APPROVING: Final = frozenset({"job.approved", "job.denied", "job.accepted", "job.parked"})
_ENDS: Final = frozenset({"job.completed", "job.failed", "job.cancelled"})
_READINGS: Final = frozenset({"audit.read", "audit.exported", "audit.verified"})
RECORD_ACTIONS: Final = _READINGS | {
    "audit.redacted",
    "audit.pruned",
    "subject.erased",
    "key.added",
    "key.revoked",
    "log.frozen",
}
"""What is about the record itself, and so in every report."""

Cell = str | int
Record = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report.

    Attributes:
        key: Its name in JSON.
        title: Its heading.
        intro: What it shows.
        columns: Name and heading of each column.
        rows: By the names of the columns.
        nothing: What stands there instead of no row.
    """

    key: str
    title: str
    intro: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Record, ...]
    nothing: str


@dataclass(frozen=True, slots=True)
class Head:
    """What the report is about, and what it rests on.

    Attributes:
        origin: The log.
        asked: What was asked for, by name.
        made_us: When it was made.
        made_by: Who made it.
        size: Entries under the checkpoint.
        root: Its root.
        witnessed: Whether others cosigned it.
        keys: The log's keys as two people compare them.
        bracket: What the witnesses' clocks say.
        read: How many entries were read for it, and which.
        pinned_by: The trust policy that names the keys; empty for none.
    """

    origin: str
    asked: tuple[tuple[str, str], ...]
    made_us: int
    made_by: str
    size: int
    root: str
    witnessed: str
    keys: tuple[str, ...]
    bracket: str
    read: str
    pinned_by: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """A report."""

    head: Head
    answer: str
    sections: tuple[Section, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the machine form, `confide/audit-report/v1`."""
        head = self.head
        return {
            "schema": SCHEMA,
            "log": head.origin,
            "asked": dict(head.asked),
            "made": {"time": format_time(head.made_us), "by": head.made_by},
            "checkpoint": {"size": head.size, "root": head.root, "witnessed": head.witnessed},
            "keys": list(head.keys),
            "pinned_by": head.pinned_by,
            "bracket": head.bracket,
            "read": head.read,
            "answer": self.answer,
            "sections": {section.key: [dict(row) for row in section.rows] for section in self.sections},
            "privacy": PRIVACY,
            "limits": list(LIMITS),
            "how_to_verify": list(HOW_TO_VERIFY),
        }


def delta_text(delta_e15: int) -> str:
    """Return delta with two digits, rounded up."""
    if not delta_e15:
        return "0"
    value = Decimal(delta_e15).scaleb(-15)
    step = Decimal(1).scaleb(value.adjusted() - 1)
    return f"{value.quantize(step, rounding=ROUND_CEILING):.1E}".replace("E", "e")


@dataclass(slots=True)
class _Job:
    """What is gathered of one job."""

    purpose: str = ""
    under: str = ""
    openings: int = 0
    first_us: int = 0
    last_us: int = 0
    spent: str = ""
    unit: str = ""
    left_count: int = 0
    left_bytes: int = 0
    end: str = ""
    entry: str = ""


@dataclass(slots=True)
class ReportBuilder:
    """Takes entries in order and becomes a view.

    Attributes:
        names: Names of people by pseudonym, where the reader may know them.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _tables: dict[str, list[Record]] = field(default_factory=dict)
    _people: dict[str, None] = field(default_factory=dict)

    def take(self, name: str, leaf_hash: str, event: Event, *, interpreted: bool = True, before: bool = False) -> None:
        """Add one entry.

        Args:
            name: Its index, behind the epoch's number where the log has several.
            leaf_hash: As an event writes it.
            event: Its content, in form.
            interpreted: Whether this version knows the action and all its fields.
            before: It lies before the time asked, and is there as an approval of what lies in it.
        """
        where = {"entry": name, "leaf": leaf_hash.removeprefix("sha256:")[:16], "time": _moment(event["t_us"])}
        action = str(event["action"])
        if not interpreted:
            self._add("not_interpreted", {"action": action, "actor": self._actor(event)}, where)
        elif event["decision"] != "allowed":
            if not before:
                self._add("refusals", self._refusal(event), where)
        else:
            if action in _APPROVING or ("approval" in event and action != "data.opened"):
                self._add("approvals", self._approval(event), where)
            if not before:
                self._take_act(action, event, where)

    def _take_act(self, action: str, event: Event, where: Record) -> None:
        family = action.partition(".")[0]
        if action == "data.opened":
            self._take_opening(event, where)
        elif family == "budget" or (action == "data.registered" and "budget" in event):
            self._take_budget(event, where)
        elif family == "data":
            self._add("changes", self._plain(event), where)
        if isinstance(event.get("egress"), dict) and action != "update.received":
            self._take_egress(event, where)
        if action in _ENDS and "job" in event:
            self._job(event).end = action.partition(".")[2]
        if action in _READINGS:
            self._add("readers", self._reading(event), where)
        elif action in RECORD_ACTIONS:
            self._add("record", self._record(event), where)

    def _add(self, table: str, row: Record, where: Record) -> None:
        self._tables.setdefault(table, []).append({**where, **row})

    def _job(self, event: Event) -> _Job:
        return self._jobs.setdefault(str(event.get("job", "")), _Job())

    def _person(self, pseudonym: str) -> str:
        if not pseudonym.startswith("p1:"):
            return pseudonym
        self._people.setdefault(pseudonym, None)
        name = self.names.get(pseudonym)
        short = f"{pseudonym[:15]}…"
        return short if name is None else f"{name} ({NOT_VERIFIED}) {short}"

    def _actor(self, event: Event) -> str:
        return self._person(str(event["actor"]["id"]))

    def _under(self, event: Event) -> str:
        approval = event.get("approval")
        if isinstance(approval, dict):
            people = [self._person(str(one)) for one in approval.get("by", [])]
            return f"approval {approval.get('id', '')}" + (f" by {', '.join(people)}" if people else "")
        return f"rule {event['rule']}" if "rule" in event else ""

    def _take_opening(self, event: Event, where: Record) -> None:
        purpose, under = _purpose(event), self._under(event)
        row: Record = {
            "job": str(event.get("job", "none")),
            "round": event.get("round", ""),
            "mode": str(event.get("mode", "")),
            "dataset": _dataset(event),
            "purpose": purpose,
            "under": under,
            "actor": self._actor(event),
        }
        self._add("uses", row, where)
        if "job" not in event:
            return
        job = self._job(event)
        job.openings += 1
        job.first_us = job.first_us or int(event["t_us"])
        job.last_us = int(event["t_us"])
        job.purpose, job.under = purpose, under
        job.entry = job.entry or str(where["entry"])

    def _take_budget(self, event: Event, where: Record) -> None:
        budget = event["budget"]
        eps, delta = epsilon_text(int(budget["eps_nano"])), delta_text(int(budget["delta_e15"]))
        row: Record = {
            "action": str(event["action"]),
            "job": str(event.get("job", "")),
            "round": event.get("round", ""),
            "epsilon": eps,
            "delta": delta,
            "unit": str(budget["unit"]),
            "trust": str(budget["trust"]),
            "total": _eps(budget, "total_eps_nano"),
            "left": _eps(budget, "left_eps_nano"),
        }
        self._add("privacy", row, where)
        if event["action"] == "budget.spent" and "job" in event:
            job = self._job(event)
            job.spent, job.unit = f"{eps} (delta {delta})", str(budget["unit"])

    def _take_egress(self, event: Event, where: Record) -> None:
        egress = event["egress"]
        countries = f"{egress['from_country']} to {egress['to_country']}" if "to_country" in egress else ""
        row: Record = {
            "what": str(egress["what"]),
            "job": str(event.get("job", "")),
            "round": event.get("round", ""),
            "bytes": int(egress["bytes"]),
            "to": str(egress["to"]),
            "encrypted": "yes" if egress["encrypted"] else "no",
            "countries": countries,
            "hash": str(egress["hash"]),
        }
        self._add("disclosures", row, where)
        if "job" in event:
            job = self._job(event)
            job.left_count += 1
            job.left_bytes += int(egress["bytes"])

    def _approval(self, event: Event) -> Record:
        approval = event.get("approval")
        meaning = str(approval.get("meaning", "")) if isinstance(approval, dict) else ""
        return {
            "action": str(event["action"]),
            "job": str(event.get("job", "")),
            "under": self._under(event),
            "meaning": meaning,
            "purpose": _purpose(event),
            "policy": str(event.get("policy", "")),
            "actor": self._actor(event),
        }

    def _refusal(self, event: Event) -> Record:
        return {
            "action": str(event["action"]),
            "decision": str(event["decision"]),
            "job": str(event.get("job", "")),
            "code": str(event.get("code", "")),
            "cause": str(event.get("cause", "")),
            "under": self._under(event),
            "actor": self._actor(event),
        }

    def _plain(self, event: Event) -> Record:
        return {"action": str(event["action"]), "dataset": _dataset(event), "actor": self._actor(event)}

    def _record(self, event: Event) -> Record:
        basis = str(event.get("basis", ""))
        under = self._under(event)
        alone = isinstance(event.get("approval"), dict) and len(event["approval"].get("by", [])) < 2
        return {
            "action": str(event["action"]),
            "about": self._about(event),
            "basis": basis,
            "under": f"{under} (one person alone)" if alone else under,
            "actor": self._actor(event),
        }

    def _about(self, event: Event) -> str:
        match event["action"]:
            case "audit.redacted":
                return f"entry {event['index']}"
            case "audit.pruned":
                return f"entries below {event['below']}, archive {event['archive']}"
            case "subject.erased":
                return self._person(str(event["subject"]))
            case "key.added":
                return str(event["vkey"]).split("+")[0]
            case "key.revoked":
                return f"{str(event['vkey']).split('+')[0]}, {event['reason']}"
            case _:
                return ""

    def _reading(self, event: Event) -> Record:
        query = event.get("query")
        asked = ", ".join(f"{key} {value}" for key, value in query.items()) if isinstance(query, dict) else ""
        return {
            "action": str(event["action"]),
            "actor": self._actor(event),
            "asked": asked or "everything",
            "to": str(event.get("to", "")),
        }

    def view(self, head: Head) -> ReportView:
        """Return the report."""
        summary: list[Record] = [
            {
                "job": name,
                "purpose": job.purpose,
                "under": job.under,
                "openings": job.openings,
                "span": f"{_moment(job.first_us)} to {_moment(job.last_us)}" if job.openings else "",
                "spent": job.spent,
                "unit": job.unit,
                "left_count": job.left_count,
                "left_bytes": job.left_bytes,
                "end": job.end or "not ended in this time",
                "entry": job.entry,
            }
            for name, job in self._jobs.items()
            if name
        ]
        people: list[Record] = [
            {"pseudonym": one, "name": f"{self.names[one]} ({NOT_VERIFIED})" if one in self.names else "not known here"}
            for one in self._people
        ]
        rows: dict[str, list[Record]] = {**self._tables, "summary": summary, "people": people}
        sections = [
            Section(key, title, intro, columns, tuple(rows.get(key, ())), nothing)
            for key, title, intro, columns, nothing in SECTIONS
        ]
        return ReportView(head, self._answer(), tuple(sections))

    def _answer(self) -> str:
        """Return the answer in a few sentences."""
        jobs = [job for name, job in self._jobs.items() if name]
        openings = len(self._tables.get("uses", ()))
        sent, size = sum(job.left_count for job in jobs), sum(job.left_bytes for job in jobs)
        refused = len(self._tables.get("refusals", ()))
        spent = ", ".join(f"{name} {job.spent} per {job.unit}" for name, job in self._jobs.items() if job.spent)
        return (
            f"The data were opened {_times(openings)} by {_count(len(jobs), 'job')}. {_count(sent, 'message')} with"
            f" {_count(size, 'byte')} left. {_refused(refused)} Epsilon spent by"
            f" each job so far: {spent or 'none in this time'}."
        )


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _refused(number: int) -> str:
    if number < 2:
        return ("Nothing was" if number == 0 else "1 request or act was") + " refused or failed."
    return f"{number} requests or acts were refused or failed."


def _times(number: int) -> str:
    return {0: "not at all", 1: "once"}.get(number, f"{number} times")


def _moment(t_us: int) -> str:
    return format_time(t_us).split(".")[0].replace("T", " ")


def _eps(budget: Mapping[str, Any], name: str) -> str:
    value = budget.get(name)
    return epsilon_text(value) if type(value) is int else ""


def _purpose(event: Event) -> str:
    purpose = event.get("purpose")
    if not isinstance(purpose, dict):
        return ""
    code = str(purpose.get("code", ""))
    more = [f"{name} {purpose[name]}" for name in ("basis", "permit", "contract", "pia") if name in purpose]
    label = [PURPOSES[code]] if code in PURPOSES else []
    return ", ".join([code, *label, *more])


def _dataset(event: Event) -> str:
    dataset = event.get("dataset")
    if not isinstance(dataset, dict):
        return ""
    version = str(dataset.get("version", "")).removeprefix("sha256:")[:16]
    return f"{dataset.get('id', '')}, version {version}"


def is_about(event: Event, dataset: str | None, jobs: Collection[str]) -> bool:
    """Return whether a report about `dataset` shows `event`: it names the data set, or a job that used it.

    What is about the record itself is shown in every report.
    """
    if dataset is None or event["action"] in RECORD_ACTIONS:
        return True
    named = event.get("dataset")
    if isinstance(named, dict):
        return named.get("id") == dataset
    return str(event.get("job", "")) in jobs
