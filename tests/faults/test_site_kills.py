"""The daemon killed at each point of its journal: nothing trained twice, no step uncharged, one reply a phase."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.edge.clock import SystemClock
from federation.messages import Answer, Body, Decision, JobAction, Outcome, Phase, PhaseReply
from site_client.budget.store import BudgetStore
from tests.support import site_data
from tests.support.site_rig import PlayedJob, SiteRig, until

pytestmark = pytest.mark.process

STORE = "site_client.store:Store"
RECORDS = "site_client.records:Records"
LEDGER = "site_client.budget.store:BudgetStore"
LINK = "federation.link.client:LinkClient"
OFFER = [
    (f"{STORE}.add_job", "after", 1),
    (f"{LEDGER}.reserve_job", "before", 1),
    (f"{LEDGER}.reserve_job", "after", 1),
    (f"{RECORDS}.reserved", "after", 1),
    (f"{RECORDS}.accepted", "after", 1),
    (f"{STORE}.save_answer", "after", 1),
]
PHASE = [
    (f"{STORE}.save_session", "before", 1),
    (f"{STORE}.save_session", "after", 1),
    ("site_client.lineage:follow", "after", 1),
    (f"{RECORDS}.leased", "after", 1),
    (f"{RECORDS}.opened", "before", 1),
    (f"{RECORDS}.opened", "after", 1),
    (f"{LEDGER}.lease", "before", 1),
    (f"{LEDGER}.lease", "after", 1),
    (f"{LEDGER}.lease", "after", 2),
    (f"{LEDGER}.used", "before", 1),
    (f"{LEDGER}.used", "after", 2),
    (f"{RECORDS}.closed", "after", 1),
    (f"{RECORDS}.spent", "before", 1),
    (f"{RECORDS}.spent", "after", 1),
    ("federation.link.blobs:BlobStore.adopt_file", "after", 1),
    (f"{RECORDS}.update_sent", "before", 1),
    (f"{RECORDS}.update_sent", "after", 1),
    (f"{LINK}.deliver", "after", 1),
    (f"{STORE}.save_reply", "before", 1),
    (f"{STORE}.save_reply", "after", 1),
    (f"{LINK}.send", "after", 2),
]
EVALUATION = [
    (f"{LEDGER}.lease", "after", 3),
    (f"{RECORDS}.evaluation_sent", "after", 1),
    (f"{STORE}.save_reply", "after", 2),
]
END = [
    (f"{LEDGER}.settle", "before", 1),
    (f"{LEDGER}.settle", "after", 1),
    (f"{RECORDS}.released", "after", 1),
]
ALL = [*OFFER, *PHASE, *EVALUATION, *END]
FIT = [OFFER[2], PHASE[1], PHASE[7], PHASE[16], PHASE[19], END[1]]


class Play:
    """A coordinator that waits for what it asked, and an operator who starts the daemon again when it died."""

    def __init__(self, rig: SiteRig) -> None:
        self.rig = rig
        self.deaths = 0
        self.replies: dict[tuple[int, int, Phase], set[str]] = defaultdict(set)

    def message(self) -> Body:
        """Return the site's next message, starting the daemon again where it died meanwhile."""
        messages = self.rig.coordinator.messages
        until(lambda: not messages.empty() or (self._restarted() and False), within_s=90, what="a message")
        return messages.get()

    def answer(self) -> Answer:
        """Return the site's answer to the offer."""
        found = self.message()
        assert isinstance(found, Answer), found
        return found

    def reply(self, number: int, attempt: int, phase: Phase) -> PhaseReply:
        """Return the reply of one phase; others, and answers, may come again after a restart."""
        while True:
            found = self.message()
            if isinstance(found, Answer):
                assert found.decision is Decision.ACCEPTED
                continue
            assert isinstance(found, PhaseReply), found
            key = (found.round, found.attempt, found.phase)
            self.replies[key].add(found.model_copy(update={"message_id": "same"}).model_dump_json())
            if key == (number, attempt, phase):
                return found

    def _restarted(self) -> bool:
        if not self.rig.died():
            return False
        self.deaths += 1
        self.rig.start()
        return True

    def until_action(self, action: str) -> None:
        def done() -> bool:
            self._restarted()
            return bool(self.rig.actions(action))

        until(done, within_s=60, what=action)


def play(rig: SiteRig, kill: tuple[str, str, int]) -> Play:
    """Run a job of one round and one evaluation through one kill, and return what was heard."""
    heard = Play(rig)
    rig.start(kill=kill, wait=False)
    job = PlayedJob(rig.coordinator, site_data.plan(**{"rounds: 3": "rounds: 2"}))
    rig.coordinator.offer(job.plan, job.job)
    assert heard.answer().decision is Decision.ACCEPTED
    job.ask(0)
    reply = heard.reply(0, 0, Phase.TRAIN)
    if reply.outcome is Outcome.FAILED:
        assert reply.reason is not None
        assert reply.reason.code == "CFD-R53", reply
        job.ask(0, 1)
        reply = heard.reply(0, 1, Phase.TRAIN)
    assert reply.outcome is Outcome.DONE, reply
    job.release(0, reply.update)
    job.ask(0, phase=Phase.EVALUATE)
    heard.reply(0, 0, Phase.EVALUATE)
    rig.coordinator.control(job.job, JobAction.COMPLETE)
    heard.until_action("budget.released")
    assert heard.deaths == 1, "the point was not passed"
    return heard


def check(rig: SiteRig, heard: Play, job: str = "heart-risk-0a1b2c") -> None:
    """Compare what was charged, trained, recorded and answered."""
    assert all(len(bodies) == 1 for bodies in heard.replies.values()), heard.replies
    trained: dict[tuple[str, str], int] = defaultdict(int)
    for line in (rig.home.path / "trained.txt").read_text().splitlines():
        number, attempt, steps = line.split()
        trained[number, attempt] += int(steps)
    assert all(steps <= 4 for steps in trained.values()), trained
    store = BudgetStore.open(rig.home.ledger, clock=SystemClock())
    try:
        figures = store.job(job)
        assert sum(trained.values()) <= figures.steps_charged <= 8 + 2
        assert figures.state == "settled"
    finally:
        store.close()
    opened = {entry["index"]: entry for entry in numbered(rig) if entry["action"] == "data.opened"}
    ended = [entry["opened"] for entry in numbered(rig) if entry["action"] in ("data.closed", "data.abandoned")]
    assert sorted(ended) == sorted(opened), (opened.keys(), ended)
    sent = [entry for entry in rig.entries() if entry["action"] == "update.sent"]
    assert len({entry["egress"]["hash"] for entry in sent}) <= len(sent)
    assert rig.stop() == 0
    rig.confide("audit", "verify", str(rig.home.path))


def numbered(rig: SiteRig) -> list[dict[str, object]]:
    return [{**entry, "index": index} for index, entry in enumerate(rig.entries())]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SiteRig]:
    made = SiteRig(tmp_path)
    yield made
    made.close()


def name_of(kill: tuple[str, str, int]) -> str:
    point, when, number = kill
    return f"{when} {point.rpartition(':')[2]} {number}"


@pytest.mark.parametrize("kill", FIT, ids=name_of)
def test_a_daemon_killed_here_answers_once_and_charges_enough(rig: SiteRig, kill: tuple[str, str, int]) -> None:
    check(rig, play(rig, kill))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", ALL, ids=name_of)
def test_ten_daemons_killed_at_each_point_answer_once_and_charge_enough(
    tmp_path: Path, kill: tuple[str, str, int]
) -> None:
    for number in range(10):
        rig = SiteRig(tmp_path / str(number))
        try:
            check(rig, play(rig, kill))
        finally:
            rig.close()
