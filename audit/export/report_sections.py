"""The words and the tables of a report; pure."""

from typing import Final

NOT_VERIFIED: Final = "name not verified"
PURPOSES: Final = {
    "DUO:0000004": "no restriction",
    "DUO:0000006": "health, medical or biomedical research",
    "DUO:0000007": "research on one disease",
    "DUO:0000011": "research on origins or ancestry",
    "DUO:0000042": "general research use",
}
LIMITS: Final = (
    (
        "Tamper-evident is not complete capture: what a party never wrote, no proof finds. Against that stand the"
        " loader, which reads no data without an entry, the links between the parties' logs, and a comparison with the"
        " data source's own access log."
    ),
    (
        "Inclusion is not completeness: proved entries may be a selection. Only a complete bundle, or the whole log,"
        " shows that none is missing."
    ),
    "Signed is not true: a party may write falsehood about itself; it only can't change it later.",
    "Use of the data outside of Confide is not in this log.",
)
PRIVACY: Final = (
    "Epsilon and delta bound what anybody can learn of one unit (a record, an entity or a site, as the table says)"
    " from everything that left, whatever else they know. They are those of the job at this site so far, as the site's"
    " own ledger computed them; they hold if the program ran as released and its random numbers were unpredictable."
    " Those of several jobs are not added up here: what is spent and left of the data set's budget are the"
    " ledger's own figures."
    " At `data.registered`, epsilon is the whole budget. Epsilon is rounded up."
)
HOW_TO_VERIFY: Final = (
    "confide audit verify LOG --trust POLICY checks the whole log this report was made from.",
    (
        "confide audit export LOG --complete --out bundle.zip makes a bundle that anybody checks offline with its"
        " verify.py; confide audit report bundle.zip makes this report anew from it."
    ),
    "confide audit prove LOG ENTRY --out FILE proves one row; confide audit check FILE needs the public keys alone.",
)

_WHERE: Final = (("entry", "entry"), ("leaf", "leaf hash, 8 bytes"))
_WHEN: Final = ("time", "time, UTC")
SECTIONS: Final = (
    (
        "summary",
        "Jobs",
        "Each job that opened data, took from the budget, or sent something, in the time asked.",
        (
            ("job", "job"),
            ("purpose", "what for"),
            ("under", "under which approval or rule"),
            ("openings", "times the data were opened"),
            ("span", "first and last opening, UTC"),
            ("spent", "epsilon spent by the job so far"),
            ("unit", "unit"),
            ("left_count", "messages that left"),
            ("left_bytes", "bytes that left"),
            ("end", "end"),
            ("entry", "first entry"),
        ),
        "No job used the data.",
    ),
    (
        "uses",
        "Who used the data",
        "Each opening of the data. The loader reads nothing without such an entry.",
        (
            _WHEN,
            ("job", "job"),
            ("round", "round"),
            ("mode", "mode"),
            ("dataset", "data set"),
            ("purpose", "what for"),
            ("under", "under which approval or rule"),
            ("actor", "by"),
            *_WHERE,
        ),
        "The data were not opened.",
    ),
    (
        "approvals",
        "Approvals",
        "What the jobs were allowed by: people and rules. Earlier ones are there if a job of this time rests on them.",
        (
            _WHEN,
            ("action", "action"),
            ("job", "job"),
            ("under", "approval or rule"),
            ("meaning", "meaning"),
            ("purpose", "what for"),
            ("policy", "policy file"),
            ("actor", "by"),
            *_WHERE,
        ),
        "No approval is recorded.",
    ),
    (
        "privacy",
        "Privacy cost",
        PRIVACY,
        (
            _WHEN,
            ("action", "action"),
            ("job", "job"),
            ("round", "round"),
            ("epsilon", "epsilon of the job so far"),
            ("delta", "delta"),
            ("unit", "unit"),
            ("trust", "who adds the noise"),
            ("total", "spent of the data set's budget"),
            ("left", "left of that budget"),
            *_WHERE,
        ),
        "Nothing was taken from a budget.",
    ),
    (
        "disclosures",
        "What left (accounting of disclosures)",
        "Each message that left, by hash and size; its entry was on the disk before its first byte went.",
        (
            _WHEN,
            ("what", "what"),
            ("job", "job"),
            ("round", "round"),
            ("bytes", "bytes"),
            ("to", "to"),
            ("encrypted", "encrypted"),
            ("countries", "countries"),
            ("hash", "hash"),
            *_WHERE,
        ),
        "Nothing left.",
    ),
    (
        "refusals",
        "Refusals and failures",
        "What a rule or a person said no to, and what broke.",
        (
            _WHEN,
            ("action", "action"),
            ("decision", "decision"),
            ("job", "job"),
            ("code", "code"),
            ("cause", "cause"),
            ("under", "rule"),
            ("actor", "by"),
            *_WHERE,
        ),
        "Nothing was refused.",
    ),
    (
        "changes",
        "Changes of the data set",
        "Registrations, new versions, checks, closings and retirement.",
        (_WHEN, ("action", "action"), ("dataset", "data set"), ("actor", "by"), *_WHERE),
        "None.",
    ),
    (
        "record",
        "Changes of the record itself",
        "Redactions, erasures, prunings and keys of this log, whatever they are about.",
        (
            _WHEN,
            ("action", "action"),
            ("about", "about"),
            ("basis", "basis"),
            ("under", "approval"),
            ("actor", "by"),
            *_WHERE,
        ),
        "None.",
    ),
    (
        "people",
        "People",
        "Pseudonyms of this log, each of one person. Names come from the home's own store, which no entry covers.",
        (("pseudonym", "pseudonym"), ("name", "name")),
        "Nobody is named.",
    ),
    (
        "not_interpreted",
        "Entries that this version doesn't interpret",
        "A newer program wrote them. Their bytes and signatures agree; what they say, that program shows (CFD-A44).",
        (_WHEN, ("action", "action"), ("actor", "by"), *_WHERE),
        "None.",
    ),
    (
        "readers",
        "Who read the record",
        "Readings, exports and verifications of this log.",
        (_WHEN, ("action", "action"), ("actor", "by"), ("asked", "asked for"), ("to", "handed to"), *_WHERE),
        "Nobody.",
    ),
)
