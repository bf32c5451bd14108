"""Rules of order between entries, which no signature shows: `verify --complete` replays them; pure.

Each opening of data has one end, or is the running process's own; what a job may do follows an acceptance, and an
acceptance at a site a rule or an approval; what left follows an opening of its job and round; a retired data set is
opened no more; a job spends at most what was leased, and leases at most what was reserved.
"""

from dataclasses import dataclass, field
from typing import Final

from audit.canonical import Event
from audit.findings import Flaw

CODE: Final = "CFD-A17"


@dataclass(slots=True)
class SequenceRules:
    """Takes entries in order and gathers what breaks a rule."""

    flaws: list[Flaw] = field(default_factory=list)
    _open: dict[int, Event] = field(default_factory=dict)
    _ever_opened: bytearray = field(default_factory=bytearray)
    """One bit for each entry, so that memory stays small over a million openings."""
    _rounds_opened: set[tuple[str, int]] = field(default_factory=set)
    _unread: dict[int, str] = field(default_factory=dict)
    """Entries that can't be read, with the action that a redaction's record gives them, else with none."""
    _doubted: list[tuple[int, str, str]] = field(default_factory=list)
    """Index, text and missing action of what is a flaw unless an entry that can't be read explains it."""
    _begin: int = 0
    _retired: set[str] = field(default_factory=set)
    _accepted: set[str] = field(default_factory=set)
    _reserved: dict[tuple[str, str], int] = field(default_factory=dict)
    _leased: dict[tuple[str, str], int] = field(default_factory=dict)

    def _flaw(self, index: int, what: str) -> None:
        self.flaws.append(Flaw(CODE, f"entry {index}", what))

    def _flaw_by_absence(self, index: int, what: str, missing: str) -> None:
        """Add a flaw that is one only if no entry before, which can't be read, was of the action that is missing."""
        if self._unread and not self._begin:
            self._doubted.append((index, what, missing))
        elif not self._begin:
            self._flaw(index, what)

    def pass_over(self, index: int) -> None:
        """Know that an entry can't be read: what could rest on it alone is no flaw."""
        self._unread[index] = ""

    def pass_over_all_before(self, index: int) -> None:
        """Know that the entries before an index went to an archive."""
        self._begin = index

    def take(self, index: int, event: Event) -> None:
        """Check the entry at `index` against all before it; a refused or failed act did nothing, but for an end."""
        if event["action"] in ("data.closed", "data.abandoned"):
            self._take_ended(index, event)  # a reading that broke is over, too
        if event["decision"] != "allowed":
            return
        match event["action"]:
            case "audit.redacted":
                if event["index"] in self._unread:
                    self._unread[event["index"]] = event.get("target_action", "")
            case "data.opened":
                self._take_opened(index, event)
            case "data.retired":
                self._retired.add(event["dataset"]["id"])
            case "data.registered":
                self._retired.discard(event["dataset"]["id"])
            case "job.accepted":
                self._accepted.add(event["job"])
            case "update.sent":
                if (event["job"], event["round"]) not in self._rounds_opened:
                    what = f"an update of round {event['round']} left, but no data were opened for it"
                    self._flaw_by_absence(index, what, "data.opened")
            case "budget.reserved" | "budget.leased" | "budget.spent":
                self._take_budget(index, event)

    def _take_opened(self, index: int, event: Event) -> None:
        self._open[index] = event
        self._ever_opened.extend(bytes(max(0, index // 8 + 1 - len(self._ever_opened))))
        self._ever_opened[index // 8] |= 1 << index % 8
        if event["dataset"]["id"] in self._retired:
            self._flaw(index, f"data set {event['dataset']['id']} was opened after it was retired")
        job = event.get("job")
        if job is not None:
            self._rounds_opened.add((job, event["round"]))
            if job not in self._accepted:
                self._flaw_by_absence(
                    index, f"data were opened for job {job}, which wasn't accepted before", "job.accepted"
                )

    def _take_ended(self, index: int, event: Event) -> None:
        opened = event["opened"]
        begun = self._open.pop(opened, None)
        if begun is None and (opened in self._unread or opened < self._begin):
            return
        if begun is None:
            again = opened < 8 * len(self._ever_opened) and self._ever_opened[opened // 8] >> opened % 8 & 1
            self._flaw(
                index, f"ends entry {opened} a second time" if again else f"ends entry {opened}, which opened nothing"
            )
        elif any(begun.get(name) != event.get(name) for name in ("dataset", "job", "round")):
            self._flaw(index, f"ends entry {opened}, which opened something else")

    def _take_budget(self, index: int, event: Event) -> None:
        key = (event["job"], event["dataset"]["id"])
        eps_nano: int = event["budget"]["eps_nano"]
        match event["action"]:
            case "budget.reserved":
                # Training and evaluations of a job are reserved apart, and their figures aren't added up.
                self._reserved[key] = max(eps_nano, self._reserved.get(key, 0))
            case "budget.leased":
                if eps_nano > self._reserved.get(key, -1):
                    what = f"job {key[0]} leased more of {key[1]} than was reserved"
                    self._flaw_by_absence(index, what, "budget.reserved")
                self._leased[key] = max(eps_nano, self._leased.get(key, 0))
            case _:
                if eps_nano > self._leased.get(key, -1):
                    self._flaw_by_absence(
                        index, f"job {key[0]} spent more of {key[1]} than was leased", "budget.leased"
                    )

    def finish(self, last_event: Event | None) -> list[Flaw]:
        """Return all flaws, after the last entry.

        Args:
            last_event: It tells whether the process that might still be reading has ended.
        """
        running = last_event is not None and last_event["action"] != "log.closed"
        boot = last_event["boot"] if last_event is not None else ""
        for index, what, missing in self._doubted:
            if not any(at < index and action in ("", missing) for at, action in self._unread.items()):
                self._flaw(index, what)
        for index, event in self._open.items():
            if not (running and event["boot"] == boot):
                self._flaw(index, "opened data, and no entry ends it")
        return self.flaws
