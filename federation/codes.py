"""The table of error codes: one row per code, with cause, cure and exit status; documentation is generated from it.

Exit statuses: 1 the thing asked for failed or a check found something, 2 usage or invalid input, 3 can't reach or
authenticate, 4 refused by policy or budget, 5 timed out, 70 internal, 78 the configuration is wrong.
Codes of the audit log (``CFD-A…``) and of the privacy packages live with them, since they import nothing from here.
"""

from dataclasses import dataclass
from typing import Final

from federation.sum_codes import ROWS as SUM_ROWS
from privacy.errors import ROWS as PRIVACY_ROWS


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
    ("CFD-G02", 2, "the command line is not understood", "`--help` after the command says what is possible"),
    (
        "CFD-G03",
        78,
        "another process already uses this home",
        "stop the other process, or use another --home",
    ),
    ("CFD-G04", 78, "a file or folder of the home can't be read or written", "check owner and permissions"),
    ("CFD-G05", 130, "interrupted by the keyboard", "run the command again"),
    ("CFD-G06", 1, "the demo could not go on", "see the message; everything that it wrote is in its folder"),
    ("CFD-G07", 2, "a file that the command line names can't be read", "check its name and its permissions"),
    ("CFD-G08", 78, "a disk is full", "free some space; what was interrupted goes on"),
    (
        "CFD-G09",
        78,
        "a database of this home is damaged",
        "keep the file as it is, look at the disk, and take the whole home from its last backup",
    ),
)

# One block for each area. Keep numbers when wording changes; never reuse a number.
CONFIGURATION: Final = _rows(  # CFD-C..  configuration files
    ("CFD-C01", 78, "a configuration file can't be read", "check the path, the owner and the permissions"),
    ("CFD-C02", 78, "a configuration file is not the YAML that is expected", "correct the line that is named"),
    ("CFD-C03", 78, "the configuration has a key that doesn't exist", "use the key that is suggested"),
    ("CFD-C04", 78, "a value of the configuration is not allowed", "correct the value; `confide schema` lists them"),
    ("CFD-C05", 78, "a file with a secret may be read by other accounts", "chmod 600 the file"),
    ("CFD-C06", 78, "the database lies on a network file system", "move it to a local disk, or use PostgreSQL"),
    ("CFD-C07", 78, "the database can't be opened, or lacks a durability setting", "check its address and its server"),
    ("CFD-C08", 2, "the file exists already", "choose another name, or remove the file"),
)
IDENTITY: Final = _rows(  # CFD-E..  enrolment, certificates, charter, members
    ("CFD-E01", 3, "a signature doesn't belong to the key that it should", "the sender must sign with its own key"),
    ("CFD-E02", 78, "a key file doesn't hold a key of the right kind", "restore the file from a backup"),
    ("CFD-E03", 2, "the fingerprint words can't be read", "ask for the words again; there are twelve"),
    ("CFD-E04", 1, "the words are not those of the site's key", "revoke the site, and invite it again"),
    ("CFD-E05", 2, "the enrolment token can't be read", "copy the whole token, or ask for a new one"),
    ("CFD-E06", 3, "the enrolment token has expired", "ask the coordinator for a new token"),
    ("CFD-E07", 3, "the enrolment token was used before", "tell the coordinator: somebody else may have used it"),
    ("CFD-E08", 3, "the enrolment token is not known", "ask the coordinator for a new token"),
    ("CFD-E09", 3, "the server is not the coordinator of the token", "something stands in between; ask your network"),
    ("CFD-E10", 3, "the certificate is for another name", "use a name that is in it, or have it issued anew"),
    ("CFD-E11", 3, "the certificate has expired, or isn't valid yet", "renew the certificate, and check both clocks"),
    ("CFD-E12", 3, "the certificate is not of this federation", "enrol with a token of this federation"),
    ("CFD-E13", 2, "the certificate request is not what was agreed", "make the request again with `site enrol`"),
    ("CFD-E14", 2, "a site of that name exists", "choose another site id, or revoke the old one"),
    ("CFD-E15", 2, "no such site", "see `confide coordinator sites`"),
    ("CFD-E16", 2, "the site's state doesn't allow this", "see `confide coordinator sites show SITE`"),
    ("CFD-E17", 3, "the charter is not signed by the federation's root key", "tell the coordinator; nothing was taken"),
    ("CFD-E18", 3, "the charter doesn't follow from the one held", "fetch the epochs in between, one by one"),
    ("CFD-E19", 2, "the charter is malformed", "tell the coordinator; nothing was taken"),
    ("CFD-E20", 2, "the root key is not in this home", "give it: `charter sign --root-key FILE`"),
    ("CFD-E21", 2, "a home of this kind exists already", "use it, or another --home"),
    ("CFD-E22", 78, "the home is not complete", "run `init` (coordinator) or `enrol` (site) first"),
    ("CFD-E23", 2, "a person of that name exists, or the name is malformed", "choose another name"),
    ("CFD-E24", 3, "the member is suspended or revoked", "ask the coordinator"),
    ("CFD-E25", 2, "the public key is weak, or used for something else", "make a new key"),
    ("CFD-E26", 2, "no such member in the charter", "see `confide site members list`"),
    ("CFD-E27", 2, "there is nothing to sign", "change a member or a person first"),
    ("CFD-E28", 4, "this site's operator refused the member", "`confide site members accept SITE` takes it back"),
)
LINK: Final = _rows(  # CFD-L..  the link between site and coordinator
    ("CFD-L01", 3, "the coordinator can't be reached", "check that it runs, its address, and firewalls on the way"),
    (
        "CFD-L02",
        3,
        "the proxy doesn't let the connection through",
        "correct the variable named, or list it in NO_PROXY",
    ),
    ("CFD-L03", 3, "the coordinator's name doesn't resolve", "check the name and this machine's DNS"),
    ("CFD-L04", 3, "something that isn't the coordinator answers", "check address and port, and proxies on the way"),
    ("CFD-L05", 3, "the certificate isn't that of a member", "enrol the site, or use the key it was enrolled with"),
    ("CFD-L07", 3, "the two versions don't go together", "upgrade the side that is named"),
    ("CFD-L08", 1, "a site spoke for another site", "one site, one home: check which home this daemon uses"),
    ("CFD-L09", 1, "a message of the link is malformed", "upgrade both sides; if it stays, report it"),
    ("CFD-L10", 1, "a message was replayed or changed after it was sent", "none: the message was not used"),
    ("CFD-L11", 2, "a message is larger than the link carries", "send less in one message; bulk goes as a blob"),
    ("CFD-L12", 1, "a blob is too large, or nobody asked for it", "see `link.max_blob_bytes` on both sides"),
    ("CFD-L13", 1, "the coordinator is busy", "none: the site comes back by itself"),
    ("CFD-L14", 2, "a message id isn't one of those that sort by time", "make ids with MessageIds"),
    ("CFD-L15", 3, "another process attends under the same identity", "run one daemon for each site"),
    ("CFD-L16", 3, "the site isn't confirmed yet", "read the site's words to the coordinator over the phone"),
    (
        "CFD-L17",
        5,
        "a transfer didn't end by its deadline",
        "check the bandwidth with `confide site doctor --bandwidth`",
    ),
    ("CFD-L18", 1, "too many messages wait for the other side", "wait until it is back; see `link.max_pending_count`"),
    ("CFD-L20", 1, "a blob isn't in the store", "none: it was removed, or never arrived"),
    ("CFD-L21", 1, "a blob on disk isn't what its name says", "check the disk; the blob is fetched again if needed"),
    ("CFD-L22", 2, "the owner of a staging isn't a site id", "use the site's id"),
    ("CFD-L23", 1, "a list of chunk hashes isn't that of its blob", "none: nothing was kept"),
    ("CFD-L24", 1, "a chunk isn't what its blob's root says", "none: the chunk was not kept"),
    ("CFD-L25", 1, "a transfer was overtaken by another of the same blob", "none: the newer one goes on"),
    ("CFD-L26", 1, "the other side met an error of its own", "none: it is tried again; the other side's log has it"),
    (
        "CFD-L27",
        1,
        "the proof of a receipt begins at another size of the log than the coordinator has cosigned",
        "none: the site makes another proof and sends its answer again",
    ),
    ("CFD-L28", 2, "a proxy variable can't be understood", "write it as http://HOST:PORT"),
    ("CFD-L29", 2, "an address can't be understood", "write it as https://HOST:PORT"),
    ("CFD-L31", 2, "what was asked of an audit log isn't there", "see `confide audit witness status` at both parties"),
    ("CFD-L30", 78, "the link's address can't be listened on", "stop what uses the port, or change `link.listen`"),
)
PLAN: Final = _rows(  # CFD-P..  the plan, the contract as a document, strategies
    ("CFD-P01", 2, "the plan can't be read", "correct the document; `confide job init` prints one that works"),
    ("CFD-P02", 2, "the plan has a key that doesn't exist", "use the key that is suggested"),
    (
        "CFD-P03",
        2,
        "a field of the plan is missing or out of its range",
        "correct it; `confide schema plan` lists them",
    ),
    ("CFD-P04", 2, "fields of the plan contradict each other", "change one of them; the message has the arithmetic"),
    ("CFD-P05", 2, "the mechanism can't protect this privacy unit", "choose another mechanism or unit"),
    ("CFD-P06", 2, "this version can't share out noise between sites yet", "set mechanism: local-dp-sgd"),
    ("CFD-P07", 2, "the plan asks for something that isn't in this version", "use one of those listed"),
    ("CFD-P08", 2, "the plan names a method that is refused for its weakness", "use what the message names instead"),
    ("CFD-P09", 2, "the strategy needs each site's own update", "choose a strategy that works on sums"),
    ("CFD-P10", 3, "the plan isn't signed by its submitter", "submit the plan with the submitter's own key"),
    ("CFD-P11", 2, "a tensor of the model can't be averaged", "use float16, float32 or float64 tensors"),
)
POLICY: Final = _rows(  # CFD-S..  the site's policy, approvals
    (
        "CFD-S01",
        78,
        "the policy file can't be read or is wrong",
        "correct policy.yaml; `confide schema policy` lists it",
    ),
    ("CFD-S02", 4, "no data set of the site fits the plan", "ask the site which contracts it offers"),
    ("CFD-S03", 4, "a rule of the site's policy says no", "ask the site's operator"),
    ("CFD-S04", 4, "the plan is below a floor of the site's policy", "raise the plan to the floor"),
    ("CFD-S05", 4, "a metric may not leave the site", "evaluate only what the site's policy lets out"),
    ("CFD-S06", 4, "the site has less than the plan asks for", "ask for less under resources"),
    ("CFD-S07", 4, "without noise a job needs a rule that says so", "use mechanism: local-dp-sgd, or ask the operator"),
    ("CFD-S08", 4, "the plan's privacy doesn't fit the data set", "change unit, delta or batch"),
    ("CFD-S09", 4, "the site works at other hours", "wait until the site's hours begin"),
    ("CFD-S10", 4, "a person at the site must decide", "wait for the site's operator"),
    (
        "CFD-S11",
        4,
        "the submitter isn't named in a signature that the site can check",
        "submit with a person's own key",
    ),
    (
        "CFD-S12",
        0,
        "the site has no accelerator and trains on its CPU",
        "nothing, or give the rounds a longer deadline",
    ),
    ("CFD-S13", 1, "the policy file changed while it was edited", "look at the file, and edit again"),
    ("CFD-S14", 1, "the policy wasn't edited", "set EDITOR, or give the new policy by --from FILE"),
)
# CFD-D..  documents, data sets, maps, intake
DATA: Final = _rows(
    ("CFD-D01", 2, "a document can't be read as strict YAML", "correct the line and character named"),
    ("CFD-D02", 2, "a document breaks its schema", "correct the key named; `confide schema` prints the schema"),
    ("CFD-D03", 2, "a data map doesn't fit its data contract", "correct the map; the contract is the federation's"),
    ("CFD-D10", 2, "a data file can't be opened or is cut short", "check path, permissions and the file's end"),
    ("CFD-D11", 2, "this version doesn't read data of this kind", "convert it to CSV or Parquet"),
    ("CFD-D12", 2, "a data file isn't in the declared encoding", "declare `format.encoding` in the map"),
    ("CFD-D13", 2, "the columns of a data file aren't those declared", "declare delimiter and columns in the map"),
    ("CFD-D14", 2, "rows break the data contract", "correct the lines named, or declare marks and codes in the map"),
    ("CFD-D15", 2, "no row of the data set is usable", "see the report: it says how many rows were dropped and why"),
    ("CFD-D16", 2, "the rows can't be divided into training and held-out units", "see --split and --held-out"),
    ("CFD-D20", 2, "no data set has this name, or it is taken or retired", "see `confide site data list`"),
    ("CFD-D21", 1, "the files differ from the registered version", "register the new version with `data add`"),
    ("CFD-D22", 1, "the audit entry doesn't permit this reading", "append the `data.opened` of this version and job"),
    ("CFD-D24", 78, "the home isn't a site's home yet", "run `confide site enrol` first"),
    ("CFD-D25", 2, "the budget or the number of units of a data set is out of its range", "see --epsilon, --units"),
    ("CFD-D26", 2, "the list of people who opt out can't be used", "one id a line, as in the entity column, UTF-8"),
    ("CFD-D27", 1, "the list of who opted out is damaged", "bring back `data/NAME/opted-out.json` from a backup"),
    ("CFD-D28", 1, "people of this version opted out since", "submit the job again: it then gets the newest version"),
    ("CFD-D23", 1, "a data set's prepared rows are missing or damaged", "run `confide site data verify NAME`"),
)
BUDGET: Final = _rows(*PRIVACY_ROWS)  # CFD-B..  privacy budget and training under privacy
# CFD-R..  rounds, updates, training outcomes
ROUND: Final = _rows(
    (
        "CFD-R01",
        70,
        "a round was asked for something that its state doesn't allow",
        "report the reference id; the round's state is unchanged",
    ),
    ("CFD-R02", 1, "a site answered a round in which it wasn't asked", "see the round in `confide job show JOB`"),
    (
        "CFD-R03",
        1,
        "a site's update doesn't fit the model, or holds values that are not finite",
        "see the named tensor; the site's own log has the cause, and the round went on without that site",
    ),
    ("CFD-R04", 1, "a site's update is larger than the plan allows", "look into that site's data and learning rate"),
    (
        "CFD-R05",
        1,
        "a round released nothing, because fewer sites than the quorum answered well",
        "see the named sites; lower the quorum or lengthen the deadline in a new job",
    ),
    ("CFD-R08", 5, "a site did not answer a phase before its deadline", "look into the named site, or lengthen it"),
    ("CFD-R09", 5, "a site's link was down when a phase closed", "the site comes back by itself; see its own log"),
    (
        "CFD-R07",
        5,
        "an answer came after its phase had closed",
        "nothing to do: it was discarded, and the site takes part again at the next round",
    ),
    (
        "CFD-R06",
        1,
        "the result of a round was not usable, so the last good model was kept",
        "see the named tensor; a smaller server learning rate or a norm bound helps",
    ),
    ("CFD-R60", 1, "a file of tensors is damaged or not of the kind that is read", "have the sender write it again"),
    ("CFD-R61", 1, "a mean or a server step would not be finite", "lower eta or the sites' learning rate; model kept"),
    ("CFD-R62", 70, "a mean or a server step was asked for that has no meaning", "report the reference id"),
)
# CFD-J..  jobs, queue, API
JOB: Final = _rows(
    ("CFD-J01", 1, "the job's state doesn't allow this", "see `confide job show JOB` for its state"),
    ("CFD-J02", 2, "no such job, round or site in this job", "see `confide job list`"),
    ("CFD-J03", 2, "the job's invited sites are not all active members", "see `confide coordinator sites`"),
    (
        "CFD-J04",
        2,
        "the data contract of the plan is not known here, or the sites hold different ones under its name",
        "give it with `--contract FILE`, or put it beside the plan, or into the coordinator's contracts folder",
    ),
    ("CFD-J05", 2, "the idempotency key was used for another plan", "use a new key for a new plan"),
    (
        "CFD-J06",
        4,
        "fewer sites than the quorum accepted the job",
        "see the sites' reasons in `confide job show JOB`",
    ),
    ("CFD-J07", 1, "a job can't go on for a reason of the coordinator's own", "the log has the details"),
    (
        "CFD-J08",
        4,
        "the submitter is no person of the charter who may submit jobs, or the signature is not theirs",
        "see `confide coordinator user`; sign with the key that the charter names",
    ),
    ("CFD-J09", 1, "the job's result isn't there yet", "wait until a round is released, see `confide job watch JOB`"),
    (
        "CFD-J10",
        78,
        "the simulation engine isn't installed",
        "install `confide[simulation]`",
    ),
    ("CFD-J11", 5, "the virtual sites of the simulation did not come up in time", "lower --sites or free memory"),
    ("CFD-J12", 70, "the simulation ended without a result", "see the log above it"),
    ("CFD-J13", 78, "the port is in use", "stop the other process or set another address in coordinator.yaml"),
    ("CFD-J14", 78, "the database can't be opened", "check `database` in coordinator.yaml and that the server runs"),
    (
        "CFD-J16",
        5,
        "fewer sites than the quorum answered the offer before its deadline",
        "see the missing sites in `confide job show JOB`; submit again when they are connected",
    ),
    (
        "CFD-J15",
        2,
        "the plan asks for something that this coordinator doesn't run",
        "see the named line of the plan",
    ),
    ("CFD-J17", 2, "the data have too few units for so many virtual sites", "lower --sites, or give more data"),
    (
        "CFD-J20",
        2,
        "the request to the API is malformed or too large",
        "see the API's description at /api/v1/openapi.json",
    ),
    (
        "CFD-J21",
        3,
        "the API doesn't know who is asking",
        "use the token file that `confide coordinator user add` wrote",
    ),
    ("CFD-J22", 4, "the person's role doesn't allow this", "ask somebody with the role, or for the role"),
    ("CFD-J23", 3, "the coordinator's API doesn't answer", "start it with `confide coordinator serve`, or set --api"),
    ("CFD-J24", 2, "it isn't clear who submits", "name the person: --as NAME, or --key FILE and --token-file FILE"),
    ("CFD-J25", 1, "a result doesn't verify", "ask the coordinator for it again; use no model that doesn't verify"),
)

# CFD-R40 and on: what a site answers to an offer, a phase or its own operator.
SITE: Final = _rows(
    ("CFD-R40", 1, "another plan was offered under a job that this site knows", "submit the plan as a job of its own"),
    ("CFD-R41", 1, "an older round was asked for again", "nothing; the site works on newer rounds only"),
    ("CFD-R42", 1, "the site doesn't know this job", "`confide job show JOB` and `confide site status` say who does"),
    ("CFD-R43", 1, "the site has not accepted this job", "wait for its answer, or ask its operator"),
    ("CFD-R44", 1, "the job has ended at this site", "submit a new job"),
    ("CFD-R45", 1, "the job is paused at this site", "resume the job; `confide site resume` frees the operator's hold"),
    ("CFD-R46", 1, "the round is none of the plan's", "ask for rounds of the plan only"),
    ("CFD-R47", 5, "the phase's deadline passed at the site", "give the phase a longer deadline, or fewer local steps"),
    ("CFD-R48", 1, "a newer phase was asked for while this one ran", "nothing; the newer phase is answered"),
    ("CFD-R49", 1, "the site's operator ended the job here", "ask the site's operator why"),
    (
        "CFD-R50",
        1,
        "the trainer was killed or ended without an answer",
        "see the site's log; the next round starts anew",
    ),
    ("CFD-R51", 1, "the trainer ran out of memory", "raise memory_gib in the plan, or choose a smaller model"),
    ("CFD-R52", 1, "the data set has no usable units for this phase", "see the intake report of the data set"),
    (
        "CFD-R53",
        1,
        "the site's daemon was restarted during the phase",
        "nothing; the site takes part in the next round",
    ),
    ("CFD-R54", 1, "the trainer met an error", "look the reference up in the site's log"),
    ("CFD-R55", 4, "the site's budget does not cover this phase", "see `confide site budget show` at the site"),
    ("CFD-R56", 1, "the site is stopping", "nothing; the site takes part again when it runs"),
    ("CFD-R57", 1, "the update has a value that is not finite", "lower the learning rate, or check the model"),
    (
        "CFD-R58",
        1,
        "a release is not signed by the coordinator",
        "check that no proxy rewrites the link; ask who runs it",
    ),
    (
        "CFD-R59",
        1,
        "a release does not follow from the last one that the site applied",
        "compare model digests with others",
    ),
    (
        "CFD-R80",
        1,
        "a released mean has the wrong size, names, shapes or types",
        "the coordinator has a fault; see its log",
    ),
    ("CFD-R81", 1, "the model after the server step is not the one that was signed", "compare versions of both sides"),
    (
        "CFD-R91",
        1,
        "a round didn't open: too few others cosigned how the one before ended",
        "see `confide audit witness status`: who is missing must be online",
    ),
    (
        "CFD-R92",
        1,
        "an update came without proof that the site's log records it",
        "ask the site to look at its log with `confide audit verify`",
    ),
    (
        "CFD-R93",
        1,
        "the site's audit log has two histories",
        "compare both with the site; then `confide audit witness acknowledge LOG`",
    ),
    (
        "CFD-R94",
        1,
        "the coordinator's audit log has two histories",
        "compare both with the coordinator; then `confide audit witness acknowledge LOG`",
    ),
    (
        "CFD-R95",
        1,
        "the site's update has a value beyond the clip of the secure sum",
        "lower the learning rate, or raise secure_aggregation.clip in the plan",
    ),
    (
        "CFD-R96",
        1,
        "a sum over fewer sites than the plan allows was released",
        "keep the release; ask the coordinator",
    ),
    (
        "CFD-R97",
        1,
        "the site has no update of its own for this secure sum",
        "nothing; the site takes part in the next round",
    ),
    ("CFD-R82", 3, "a blob could not be fetched or delivered", "check the link with `confide site doctor`"),
    ("CFD-R63", 1, "the site could not record what it was about to do", "free disk space at the site, then resume"),
    (
        "CFD-R64",
        4,
        "the plan is not signed by a person of the charter who may submit",
        "submit with a charter person's key",
    ),
    ("CFD-R65", 4, "the offer's contract is not that of a data set here", "use the contract that the site registered"),
    (
        "CFD-R66",
        4,
        "the site's data set is not there or not usable",
        "ask the site's operator to register or verify it",
    ),
    ("CFD-R67", 2, "the offer is no plan", "validate the plan with `confide job validate`"),
    ("CFD-R68", 4, "the job waits for a person at the site", "wait; see `confide site approvals list` at the site"),
    ("CFD-R69", 4, "a person at the site said no", "ask the site's operator why"),
    ("CFD-R70", 4, "nobody decided in time", "offer the job again"),
    ("CFD-R71", 2, "the site knows no approval of this id that still waits", "see `confide site approvals list`"),
    ("CFD-R72", 3, "the site's daemon does not run", "start it with `confide site run`"),
    ("CFD-R76", 5, "the site's daemon was busy for too long", "run the command again; see the log if it stays so"),
    ("CFD-R77", 4, "the plan does not invite this site", "name the site in `sites.invite`"),
)

SUMS: Final = _rows(*SUM_ROWS)  # CFD-K..  secure sums

CODES: Final[dict[str, Code]] = {
    code: row
    for area in (GENERAL, CONFIGURATION, IDENTITY, LINK, PLAN, POLICY, DATA, BUDGET, ROUND, JOB, SITE, SUMS)
    for code, row in area.items()
}
