"""The errors of the audit log: a class for each decision, and one table of codes with cause, cure and exit status.

A caller decides by class: refuse the bytes (`NotCanonical`, `NoteRefused`, `ProofRefused`, `EntryRefused`), stop the
start (`LogDamaged`, `LogBehind`, `LogFrozen`, `SecondWriter`, `SettingsUnsafe`), stop the act (`AppendFailed`), mend
the own call (`IdConflict`), or tell the reader no (`ReadRefused`). A code that stops a start exits with 78, so that a
supervisor doesn't start the process again and again.
"""

from dataclasses import dataclass
from typing import Final

CANNOT_START: Final = 78


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the table.

    Attributes:
        code: ``CFD-A`` and a number; 01 to 30 are flaws and refusals, 40 to 45 are notes.
        exit_status: What a command that ends with it returns, unless it stops a start (then 78).
        cause: Why it happens.
        cure: What the person does about it.
    """

    code: str
    exit_status: int
    cause: str
    cure: str


_ROWS: Final = (
    ("01", 1, "an entry was altered", "compare with a copy or a peer; keep the file as evidence"),
    ("02", 1, "an entry is missing, torn, or blank without a record", "compare with a copy; keep the file as evidence"),
    ("03", 1, "a tile was altered or is missing", "rebuild the tiles from the entries, and find out who wrote there"),
    ("04", 1, "the root computed from the entries differs", "compare with a copy or a peer; keep the files"),
    ("05", 1, "a checkpoint is malformed or not signed by a pinned key", "ask the log's owner for the checkpoint"),
    ("06", 1, "a checkpoint has too few cosignatures", "see which witnesses are missing, and why"),
    ("07", 1, "the log is shorter than it was", "find the longer copy; the owner must explain the difference"),
    ("08", 1, "two histories of one log exist", "keep both checkpoints: together they are proof"),
    ("09", 1, "an entry is malformed", "compare with a copy or a peer; keep the file as evidence"),
    ("10", 1, "an entry's signature, writer key or key interval is wrong", "compare with a copy or a peer"),
    ("11", 1, "a writer's chain of entries is broken", "compare with a copy; an entry was removed or put in"),
    ("12", 1, "an entry's id appears twice", "compare with a copy; an entry was repeated"),
    ("13", 1, "time runs backwards between two entries", "compare with a copy; entries were moved or invented"),
    ("14", 1, "what is shown differs from the log", "run `confide audit verify`; don't use what was shown"),
    (
        "15",
        1,
        "a private value doesn't open its commitment",
        "the side store was altered; trust the log, not the value",
    ),
    ("16", 1, "another party's log contradicts a link", "compare the two entries with both parties"),
    ("17", 1, "the order of entries breaks a rule", "ask the owner what happened at that entry"),
    ("18", 1, "what should be complete has a gap or no fences", "ask for a new export of the whole range"),
    ("19", 2, "there is no log here that can be read", "name a home, its audit folder, or an exported bundle"),
    ("20", 3, "no pinned key says whose log this is", "give --trust FILE, with keys compared over the phone"),
    ("21", 1, "the entry was not written, so the act was not done", "make room on the disk or repair it; then retry"),
    ("22", 1, "an entry's id was used again for other content", "report it: the program gave one id to two events"),
    ("23", 1, "another process writes this log", "stop the other process, or let it take the entry"),
    ("24", 1, "the log is behind its own checkpoint or its peers", "find the newest copy, or begin a new epoch"),
    ("25", 1, "the log's place or permissions aren't safe", "use a local disk and files that only the owner can read"),
    ("26", 1, "the log is frozen", "find out why, then begin a new epoch"),
    ("27", 4, "this account may not read the log", "ask the compliance officer"),
    ("28", 1, "the witnesses haven't been heard of for too long", "see which party doesn't answer"),
    ("29", 1, "the log was written by a newer program", "use that version, or a newer one"),
    ("30", 1, "the entry was pruned", "ask for the archive that the pruning names"),
    ("40", 0, "an unclean end was repaired at boot", "nothing: the entry says what was set aside"),
    ("41", 0, "an entry was redacted, with its record", "nothing: the record says who approved it"),
    ("42", 0, "entries were pruned, with their record", "nothing: the record names the archive"),
    ("43", 0, "an entry lies in an interval in which its key is suspect", "judge the entry with that in mind"),
    ("44", 0, "an entry was not interpreted by this version", "use a newer version to read it"),
    ("45", 0, "entries are not yet witnessed", "wait for the next checkpoint, or ask why it doesn't come"),
)
CODES: Final = {f"CFD-A{number}": Code(f"CFD-A{number}", *rest) for number, *rest in _ROWS}  # type: ignore[arg-type]


class AuditError(Exception):
    """Something about the log that a person can act on.

    Args:
        code: A key of `CODES`.
        message: What, which, found against allowed; one line, without personal data.
        hint: What to do now; the table's cure if not given.
        exit_status: Instead of the table's, where the code stops a start.
    """

    def __init__(self, code: str, message: str, *, hint: str = "", exit_status: int | None = None) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message
        self.hint: Final = hint or CODES[code].cure
        self.exit_status: Final = CODES[code].exit_status if exit_status is None else exit_status


class NotCanonical(AuditError):
    """These bytes, or this value, have no canonical form; nothing was used."""

    def __init__(self, message: str) -> None:
        super().__init__("CFD-A09", message)


class NoteRefused(AuditError):
    """This note, key or checkpoint is malformed or not signed by whom it should be; nothing of it was used."""

    def __init__(self, message: str, *, code: str = "CFD-A05", hint: str = "") -> None:
        super().__init__(code, message, hint=hint)


class ProofRefused(AuditError):
    """This proof, tile or bundle doesn't show what it should; nothing of it was used."""

    def __init__(self, message: str, *, code: str = "CFD-A04", hint: str = "") -> None:
        super().__init__(code, message, hint=hint)


class EntryRefused(AuditError):
    """This entry or draft is not what it should be; nothing was written."""

    def __init__(self, message: str, *, code: str = "CFD-A09", hint: str = "") -> None:
        super().__init__(code, message, hint=hint)


class LogUnreadable(AuditError):
    """There is no log here, or it can't be read at all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A19", message, hint=hint)


class LogDamaged(AuditError):
    """The stored log isn't what was written; nothing is appended to it."""

    def __init__(self, message: str, *, code: str = "CFD-A01", hint: str = "") -> None:
        super().__init__(code, message, hint=hint, exit_status=CANNOT_START)


class LogBehind(AuditError):
    """The stored log is shorter than a checkpoint that it signed; nothing is appended or signed."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A24", message, hint=hint, exit_status=CANNOT_START)


class LogFrozen(AuditError):
    """This epoch of the log is closed for ever."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A26", message, hint=hint, exit_status=CANNOT_START)


class SecondWriter(AuditError):
    """Another process holds this log; this one wrote nothing."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A23", message, hint=hint, exit_status=CANNOT_START)


class SettingsUnsafe(AuditError):
    """The log's folder, file system or permissions don't keep what the log promises; nothing was written."""

    def __init__(self, message: str, *, code: str = "CFD-A25", hint: str = "") -> None:
        super().__init__(code, message, hint=hint, exit_status=CANNOT_START)


class AppendFailed(AuditError):
    """The entry isn't durable, so the act that it permits must not happen."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A21", message, hint=hint)


class IdConflict(AuditError):
    """The id of a draft already names another event; nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__("CFD-A22", message)


class ReadRefused(AuditError):
    """This reader may not see the log; the refusal was recorded."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__("CFD-A27", message, hint=hint)
