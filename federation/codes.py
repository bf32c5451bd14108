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

# CFD-R40 and on: what a site answers to an offer, a phase or its own operator.
SITE: Final = _rows(
    ("CFD-R40", 1, "another plan was offered under a job that this site knows", "submit the plan as a job of its own"),
    ("CFD-R41", 1, "an older round was asked for again", "nothing; the site works on newer rounds only"),
    ("CFD-R42", 1, "the site doesn't know this job", "offer the job to the site"),
    ("CFD-R43", 1, "the site has not accepted this job", "wait for its answer, or ask its operator"),
    ("CFD-R44", 1, "the job has ended at this site", "submit a new job"),
    ("CFD-R45", 1, "the job is paused at this site", "resume the job; `confide site resume` frees the operator's hold"),
    ("CFD-R46", 1, "the round is none of the plan's", "ask for rounds of the plan only"),
    ("CFD-R47", 5, "the phase's deadline passed at the site", "give the phase a longer deadline, or fewer local steps"),
    ("CFD-R48", 1, "a newer phase was asked for while this one ran", "nothing; the newer phase is answered"),
    ("CFD-R49", 1, "the site's operator ended the job here", "ask the site's operator why"),
    ("CFD-R50", 1, "the trainer was killed or ended without an answer", "see the site's log; the next round starts anew"),
    ("CFD-R51", 1, "the trainer ran out of memory", "raise memory_gib in the plan, or choose a smaller model"),
    ("CFD-R52", 1, "the data set has no usable units for this phase", "see the intake report of the data set"),
    ("CFD-R53", 1, "the site's daemon was restarted during the phase", "nothing; the site takes part in the next round"),
    ("CFD-R54", 1, "the trainer met an error", "look the reference up in the site's log"),
    ("CFD-R55", 4, "the site's budget does not cover this phase", "see `confide site budget show` at the site"),
    ("CFD-R56", 1, "the site is stopping", "nothing; the site takes part again when it runs"),
    ("CFD-R57", 1, "the update has a value that is not finite", "lower the learning rate, or check the model"),
    ("CFD-R58", 1, "a release is not signed by the coordinator", "check that no proxy rewrites the link; ask who runs it"),
    ("CFD-R59", 1, "a release does not follow from the last one that the site applied", "compare model digests with others"),
    ("CFD-R60", 1, "a released mean has the wrong size, names, shapes or types", "the coordinator has a fault; see its log"),
    ("CFD-R61", 1, "the model after the server step is not the one that was signed", "compare versions of both sides"),
    ("CFD-R62", 3, "a blob could not be fetched or delivered", "check the link with `confide site doctor`"),
    ("CFD-R63", 1, "the site could not record what it was about to do", "free disk space at the site, then resume"),
    ("CFD-R64", 4, "the plan is not signed by a person of the charter who may submit", "submit with a charter person's key"),
    ("CFD-R65", 4, "the offer's contract is not that of a data set here", "use the contract that the site registered"),
    ("CFD-R66", 4, "the site's data set is not there or not usable", "ask the site's operator to register or verify it"),
    ("CFD-R67", 2, "the offer is no plan", "validate the plan with `confide job validate`"),
    ("CFD-R68", 4, "the job waits for a person at the site", "wait; see `confide site approvals list` at the site"),
    ("CFD-R69", 4, "a person at the site said no", "ask the site's operator why"),
    ("CFD-R70", 4, "nobody decided in time", "offer the job again"),
    ("CFD-R71", 2, "the site knows no approval of this id that still waits", "see `confide site approvals list`"),
    ("CFD-R72", 3, "the site's daemon does not run", "start it with `confide site run`"),
    ("CFD-R73", 1, "the doctor found a problem", "follow the line `how to fix`"),
    ("CFD-R74", 4, "the plan asks for more resources than the site lends", "lower `resources` in the plan"),
    ("CFD-R75", 4, "the site's home was written by a newer program", "upgrade confide at this site"),
)

CODES: Final[dict[str, Code]] = {
    code: row
    for area in (GENERAL, CONFIGURATION, IDENTITY, LINK, PLAN, POLICY, DATA, BUDGET, ROUND, JOB, SITE)
    for code, row in area.items()
}
