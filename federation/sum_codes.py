"""What a secure sum's refusals are called outside of it: one public code for each, with the protocol's cause and cure.

The protocol (`privacy.secagg`) has codes of its own, which travel inside signed messages. People, pages and replies get
these. Numbers never change and are never used again; a new code of the protocol gets the next one.
"""

from typing import Final

from privacy.secagg.errors import CAUSES

PUBLIC_CODES: Final[dict[str, str]] = {
    "E_SIZE": "CFD-K01",
    "E_KIND": "CFD-K02",
    "E_NONCANON": "CFD-K03",
    "E_SIG": "CFD-K04",
    "E_UNENROLLED": "CFD-K05",
    "E_EPOCH": "CFD-K06",
    "E_REPLAY": "CFD-K07",
    "E_PLAN": "CFD-K08",
    "E_POLICY": "CFD-K09",
    "E_MODEL": "CFD-K10",
    "E_LINEAGE": "CFD-K11",
    "E_SPENT": "CFD-K12",
    "E_BUDGET": "CFD-K13",
    "E_RANGE": "CFD-K14",
    "E_PLAN_MIX": "CFD-K15",
    "E_ROSTER_SPLIT": "CFD-K16",
    "E_VIEW_SPLIT": "CFD-K17",
    "E_DUP": "CFD-K18",
    "E_UNINVITED": "CFD-K19",
    "E_SELF": "CFD-K20",
    "E_U2": "CFD-K21",
    "E_U3": "CFD-K22",
    "E_PATH": "CFD-K23",
    "E_LATE": "CFD-K24",
    "E_KEY": "CFD-K25",
    "E_DUPKEY": "CFD-K26",
    "E_COHORT": "CFD-K27",
    "E_DEGREE": "CFD-K28",
    "E_GRAPH": "CFD-K29",
    "E_CONSENT": "CFD-K30",
    "E_TOO_FEW_SHARES": "CFD-K31",
    "E_DEADLINE": "CFD-K32",
    "E_BOX": "CFD-K33",
    "E_KEM": "CFD-K34",
    "E_SHARE_COMMIT": "CFD-K35",
    "E_SHARE_X": "CFD-K36",
    "E_SHARE_RANGE": "CFD-K37",
    "E_BAD_DEALER": "CFD-K38",
    "E_PAYLOAD": "CFD-K39",
    "E_SUM_RANGE": "CFD-K40",
    "E_RESULT": "CFD-K41",
    "E_PHASE": "CFD-K42",
}
_OTHER_STATUS: Final[dict[str, int]] = {"E_POLICY": 4, "E_BUDGET": 4, "E_SPENT": 4, "E_DEADLINE": 5}

ROWS: Final[tuple[tuple[str, int, str, str], ...]] = tuple(
    (public, _OTHER_STATUS.get(code, 1), f"a secure sum: {CAUSES[code][0]}", CAUSES[code][1])
    for code, public in PUBLIC_CODES.items()
)


def public_code(code: str) -> str:
    """Return the public code for one of the protocol's."""
    return PUBLIC_CODES[code]
