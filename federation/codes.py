"""The table of error codes: one row per code, with cause, cure and exit status; documentation is generated from it.

Exit statuses: 1 the thing asked for failed or a check found something, 2 usage or invalid input, 3 can't reach or
authenticate, 4 refused by policy or budget, 5 timed out, 70 internal, 78 the configuration is wrong.
Codes of the audit log (``CFD-A…``) and of the privacy packages live with them, since they import nothing from here.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One row of the table.

    Attributes:
        code: ``CFD-`` with a letter for the area and a number.
        exit_status: What a command that ends with it returns to the shell.
        cause: Why it happens, in one sentence.
        cure: What the person does about it, in one sentence.
    """

    code: str
    exit_status: int
    cause: str
    cure: str


def _rows(*rows: tuple[str, int, str, str]) -> dict[str, Code]:
    return {row[0]: Code(*row) for row in rows}


GENERAL: Final = _rows(
    (
        "CFD-G01",
        70,
        "the program met a state that it doesn't know",
        "report the reference id; the log has the trace",
    ),
    ("CFD-G02", 2, "the command line is not understood", "see `confide help`"),
    (
        "CFD-G03",
        78,
        "another process already uses this home",
        "stop the other process, or use another --home",
    ),
    ("CFD-G04", 78, "a file or folder of the home can't be read or written", "check owner and permissions"),
    ("CFD-G05", 130, "interrupted by the keyboard", "run the command again"),
)

# One block for each area. Keep numbers when wording changes; never reuse a number.
CONFIGURATION: Final = _rows()  # CFD-C..  configuration files
IDENTITY: Final = _rows()  # CFD-E..  enrolment, certificates, charter, members
LINK: Final = _rows()  # CFD-L..  the link between site and coordinator
PLAN: Final = _rows()  # CFD-P..  the plan, the contract as a document, strategies
POLICY: Final = _rows()  # CFD-S..  the site's policy, approvals
DATA: Final = _rows()  # CFD-D..  data sets, maps, intake
BUDGET: Final = _rows()  # CFD-B..  privacy budget and training under privacy
ROUND: Final = _rows()  # CFD-R..  rounds, updates, training outcomes
JOB: Final = _rows()  # CFD-J..  jobs, queue, API

CODES: Final[dict[str, Code]] = {
    code: row
    for area in (GENERAL, CONFIGURATION, IDENTITY, LINK, PLAN, POLICY, DATA, BUDGET, ROUND, JOB)
    for code, row in area.items()
}
