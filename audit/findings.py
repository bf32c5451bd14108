"""What a verification finds, and what it ends with; pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

NOT_PROVED: Final = ("that nothing was left unrecorded", "that what was written is true")


class Verdict(StrEnum):
    """What a verification ends with."""

    VERIFIED = "verified"
    FLAWED = "flawed"
    UNPINNED = "unpinned"


EXIT_STATUS: Final = {Verdict.VERIFIED: 0, Verdict.FLAWED: 1, Verdict.UNPINNED: 3}


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong with a log, and where.

    Attributes:
        code: The code of `audit.errors`.
        where: ``entry 7``, ``entries 7 to 9`` or a file's name.
        what: One sentence.
    """

    code: str
    where: str
    what: str


def span(first: int, end: int) -> str:
    """Return what names the entries from `first` up to `end`."""
    return f"entry {first}" if end == first + 1 else f"entries {first} to {end - 1}"


@dataclass(slots=True)
class Verification:
    """What was found.

    Attributes:
        origin: The log's name, as its entries say it.
        size: Entries that were read.
        root: Root over them, as events write it; empty where entries are missing.
        cosigned: Size that a quorum of witnesses has cosigned, 0 for none.
        quorum: How many cosignatures the policy asks for.
        pinned_by: The trust policy that was used; empty for none.
        proved: Sentences.
        notes: What is no flaw, but to be known.
        flaws: What is wrong.
        not_proved: What this verification can't show.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    cosigned: int = 0
    quorum: int = 0
    pinned_by: str = ""
    proved: list[str] = field(default_factory=list)
    notes: list[Flaw] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    not_proved: list[str] = field(default_factory=lambda: list(NOT_PROVED))

    @property
    def verdict(self) -> Verdict:
        """Return the verdict; a flaw comes before a missing key."""
        if self.flaws:
            return Verdict.FLAWED
        return Verdict.VERIFIED if self.pinned_by else Verdict.UNPINNED

    def as_json(self) -> dict[str, Any]:
        """Return the machine form, `confide/audit-verification/v1`."""
        return {
            "schema": "confide/audit-verification/v1",
            "verdict": str(self.verdict),
            "log": {
                "origin": self.origin,
                "size": self.size,
                "root": self.root,
                "cosigned": self.cosigned,
                "quorum": self.quorum,
                "pinned_by": self.pinned_by,
            },
            "proved": self.proved,
            "notes": [{"code": note.code, "where": note.where, "what": note.what} for note in self.notes],
            "flaws": [{"code": flaw.code, "where": flaw.where, "what": flaw.what} for flaw in self.flaws],
            "not_proved": self.not_proved,
        }
