import itertools

import pytest

from federation import flower
from federation.errors import PolicyRefused
from federation.messages import (
    BlobReference,
    EvaluationCounts,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Reason,
)
from privacy.errors import UnitInvalid
from site_client.flower_client import ask, code_of, make_client_app

REQUEST = PhaseRequest(
    message_id="m-1",
    job="heart-risk-00ff00",
    round=3,
    attempt=1,
    phase=Phase.TRAIN,
    deadline_s=600,
    release=BlobReference(root="0" * 64, size_bytes=10),
    release_signature="00" * 64,
)
SECRET = "patient 4711 has cholesterol 289"


def reply_to(request, **changes):
    fields = {
        "message_id": f"{request.message_id}-reply",
        "job": request.job,
        "round": request.round,
        "attempt": request.attempt,
        "phase": request.phase,
        "outcome": Outcome.DONE,
    }
    return PhaseReply(**{**fields, **changes})


class Work:
    """Phases that answer, or raise what they are given."""

    def __init__(self, problem=None):
        self.problem, self.asked = problem, []

    def train(self, request):
        self.asked.append(("train", request))
        if self.problem is not None:
            raise self.problem
        return reply_to(request, update=BlobReference(root="1" * 64, size_bytes=20), weight=5)

    def evaluate(self, request):
        self.asked.append(("evaluate", request))
        counts = EvaluationCounts(
            release="charged", bins=2, positives=(1, 2), negatives=(-1, 0), loss_sum="0x1.8000000000000p+1"
        )
        return reply_to(request, evaluation=counts)


@pytest.fixture
def site(monkeypatch, tmp_path):
    for name, value in flower.quiet_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # so that the environment of the test process is restored

    class Site:
        def __init__(self):
            self.reports = []
            self.references = (f"ref-{number}" for number in itertools.count())

        def answer(self, work, request=REQUEST):
            app = make_client_app(
                work,
                new_reference=lambda: next(self.references),
                report=lambda *found: self.reports.append(found),
            )
            return ask(app, request, site="north", now_s=1000.0)

    return Site()


def test_a_training_request_reaches_the_work_and_its_reply_comes_back(site):
    work = Work()
    reply = site.answer(work)
    assert work.asked == [("train", REQUEST)]
    assert (reply.outcome, reply.weight, reply.update.size_bytes) == (Outcome.DONE, 5, 20)
    assert site.reports == []


def test_an_evaluation_request_goes_to_the_other_handler(site):
    work = Work()
    reply = site.answer(work, REQUEST.model_copy(update={"phase": Phase.EVALUATE}))
    assert [name for name, _ in work.asked] == ["evaluate"]
    assert reply.evaluation.positives == (1, 2)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (PolicyRefused("CFD-S09", SECRET), "CFD-S09"),
        (UnitInvalid(SECRET), "CFD-B01"),
        (MemoryError(SECRET), "CFD-R51"),
        (ValueError(SECRET), "CFD-G01"),
        (KeyError(SECRET), "CFD-G01"),
        (SystemExit(SECRET), "CFD-G01"),
    ],
)
def test_whatever_is_raised_leaves_as_a_code_and_a_reference_and_never_as_text(site, problem, code):
    reply = site.answer(Work(problem))
    assert (reply.outcome, reply.reason) == (Outcome.FAILED, Reason(code=code))
    assert reply.update is None
    assert SECRET not in reply.model_dump_json()
    assert site.reports == [(REQUEST, reply.reference, problem)]


def test_the_keyboard_still_stops_the_site(site):
    with pytest.raises(KeyboardInterrupt):
        site.answer(Work(KeyboardInterrupt()))


@pytest.mark.parametrize("change", [{"round": 4}, {"attempt": 0}, {"job": "heart-risk-11ee11"}, {"phase": "evaluate"}])
def test_a_reply_for_another_phase_never_leaves(site, change):
    class Confused(Work):
        def train(self, request):
            asked = {**change, "phase": Phase(change.get("phase", "train"))}
            return reply_to(request, **asked)

    reply = site.answer(Confused())
    assert (reply.outcome, reply.reason.code) == (Outcome.FAILED, "CFD-G01")
    assert (reply.job, reply.round, reply.attempt, reply.phase) == ("heart-risk-00ff00", 3, 1, Phase.TRAIN)


def test_something_that_calls_itself_a_code_is_not_told(site):
    class Problem(Exception):
        code = SECRET

    assert code_of(Problem()) == "CFD-G01"


def test_further_phases_are_queries_by_name(site):
    work = Work()
    flower.load_client()
    app = make_client_app(
        work, new_reference=lambda: "ref", report=lambda *_: None, queries={"secagg_advertise": work.train}
    )
    message = flower.build_message(
        flower.body_to_content(REQUEST),
        job=REQUEST.job,
        source=1,
        destination=2,
        message_id="m-1",
        group="3/1",
        message_type="query.secagg_advertise",
        created_at_s=0.0,
        ttl_s=60.0,
    )
    answer = app(message, flower.context_for(REQUEST.job, "north"))
    assert flower.content_to_body(answer.content, kind="phase-reply").outcome is Outcome.DONE
