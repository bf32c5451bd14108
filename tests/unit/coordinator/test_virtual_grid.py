"""A simulation's grid: an outcome for every virtual site, within the deadline, over an engine that promises neither."""

import secrets
import threading
import uuid

import pytest

from coordinator.exchange import Interrupted, Silence
from federation import flower
from federation.errors import OutOfOrder, TimedOut
from federation.messages import BlobReference, JobId, Outcome, Phase, PhaseReply, PhaseRequest, SiteId
from site_client.virtual_ledger import Charged
from tests.support.rounds import SteppingClock
from tests.support.virtual_engine import RUN, InProcessEngine

JOB = JobId("heart-risk-00ff00")
SITES = [SiteId(f"site-{number}") for number in range(4)]
RELEASE = BlobReference(root="0" * 64, size_bytes=10)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    for name, value in flower.quiet_variables(tmp_path).items():
        monkeypatch.setenv(name, value)  # so that the environment of the test process is restored
    flower.quieten_flower(tmp_path)


class Depot:
    def __init__(self):
        self.published, self.taken = [], []

    def publish(self, release):
        self.published.append(release)

    def take_in(self, file):
        self.taken.append(file)


class Sites:
    """Virtual sites that answer at once and charge one step each time."""

    def __init__(self, problem=None):
        self.problem, self.prepared, self.asked, self.reports = problem, 0, [], []

    def prepare(self):
        self.prepared += 1
        if self.problem is not None:
            raise self.problem

    def site(self, name, charged: Charged, *, until_s):
        charged.train += 1
        self.asked.append((name, charged.train, until_s))
        return Site(name)

    def report(self, request, reference, problem):
        self.reports.append(problem)


class Site:
    def __init__(self, name):
        self.name, self.file = name, ""

    def train(self, request):
        self.file = f"{self.name}.safetensors"
        return PhaseReply(
            message_id=secrets.token_hex(4),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=request.phase,
            outcome=Outcome.DONE,
            update=BlobReference(root="1" * 64, size_bytes=20),
        )

    def evaluate(self, request):
        raise ValueError("patient 4711 has cholesterol 289")


class Bench:
    def __init__(self, sites=None, count=4, **engine):
        from coordinator.flower_server import GridExchange
        from coordinator.virtual_grid import VirtualGrid
        from site_client.flower_client import make_virtual_app

        self.clock, self.depot, self.stopped = SteppingClock(), Depot(), threading.Event()
        self.sites = sites or Sites()
        self.engine = InProcessEngine(make_virtual_app(self.sites), count, **engine)
        self.grid = VirtualGrid(self.engine, JOB, self.depot, self.clock, self.stopped)
        self._exchange = GridExchange

    def up(self, up_s=0.5):
        self.nodes = self.grid.wait_for(SITES, workers=2, up_s=up_s)
        return self.nodes

    def ask(self, phase=Phase.TRAIN, timeout_s=0.3):
        requests = {
            site: PhaseRequest(
                message_id=f"m-{site}",
                job=JOB,
                round=3,
                attempt=1,
                phase=phase,
                deadline_s=600,
                release=RELEASE,
                release_signature="00" * 64,
            )
            for site in SITES
        }
        heard = self._exchange(self.grid, self.up()).ask(requests, timeout_s=timeout_s)
        return {found.site: found for found in heard}


@pytest.fixture
def bench():
    return Bench


def test_every_site_gets_a_node_and_two_workers_are_tried_before_the_rounds_begin(bench):
    b = bench()
    assert sorted(b.up()) == SITES
    assert sorted(b.nodes.values()) == b.grid.get_node_ids() == sorted(b.engine.nodes)
    assert b.sites.prepared == 2


def test_each_request_reaches_the_site_that_it_names_and_every_reply_comes_back(bench):
    b = bench()
    heard = b.ask()
    assert sorted(name for name, _, _ in b.sites.asked) == SITES
    assert all(heard[site].reply.outcome is Outcome.DONE for site in SITES)
    assert sorted(b.depot.taken) == [f"{site}.safetensors" for site in SITES]
    assert b.depot.published == [RELEASE] * 4


def test_messages_carry_explicit_metadata_of_the_engines_run(bench):
    b = bench()
    b.ask()
    asked = [message.metadata for message in b.engine.pushed if message.metadata.message_type == "train"]
    assert {found.run_id for found in asked} == {RUN}
    assert {(found.src_node_id, found.group_id, found.ttl) for found in asked} == {(1, "3/1", 600.0)}
    assert sorted(found.dst_node_id for found in asked) == sorted(b.engine.nodes)


def test_a_site_that_does_not_answer_is_late_at_the_deadline_and_the_others_are_heard(bench):
    heard = bench(silent={1}).ask()
    assert [site for site, found in heard.items() if found.silence is Silence.LATE] == [SITES[1]]
    assert sum(found.reply is not None for found in heard.values()) == 3


def test_a_site_whose_worker_dies_is_lost_at_once(bench):
    b = bench(broken={2})
    heard = b.ask(timeout_s=1e6)  # nobody waits for the deadline
    assert heard[SITES[2]].silence is Silence.LOST
    assert sum(found.reply is not None for found in heard.values()) == 3


def test_what_the_engine_says_after_the_time_of_a_message_is_late_and_not_lost(bench):
    b = bench(broken={2})
    b.up()
    message = _request(b, b.engine.nodes[2], ttl=5.0)
    b.clock.pass_time(6.0)
    assert [answer.error.reason for answer in b.grid.send_and_receive([message], timeout=9)] == ["late"]


def test_what_a_site_raises_comes_back_as_a_code_without_its_text(bench):
    b = bench()
    heard = b.ask(Phase.EVALUATE)
    assert {found.reply.outcome for found in heard.values()} == {Outcome.FAILED}
    assert {found.reply.reason.code for found in heard.values()} == {"CFD-G01"}
    assert "4711" not in "".join(found.reply.model_dump_json() for found in heard.values())
    assert len(b.sites.reports) == 4


def test_a_ledger_stays_with_its_site_from_phase_to_phase(bench):
    b = bench()
    b.ask()
    b.ask()
    assert sorted((name, count) for name, count, _ in b.sites.asked) == sorted(
        (site, count) for site in SITES for count in (1, 2)
    )


def test_a_site_is_told_when_its_phase_closes(bench):
    b = bench()
    b.ask()
    created = {message.metadata.created_at for message in b.engine.pushed if message.metadata.message_type == "train"}
    assert {until_s for _, _, until_s in b.sites.asked} == {created_s + 600.0 for created_s in created}


def test_without_enough_nodes_in_time_the_simulation_says_how_many_came(bench):
    with pytest.raises(TimedOut, match="3 of 4 virtual sites came up") as refusal:
        bench(count=3).up(up_s=0.3)
    assert refusal.value.code == "CFD-J11"


def test_a_worker_that_cannot_begin_ends_the_simulation(bench):
    b = bench()
    original = b.engine._app

    def dies(message, context):
        if message.metadata.message_type == "query.ready":
            return flower.build_silence(message, code=2, reason="no torch", created_at_s=0.0)
        return original(message, context)

    b.engine._app = dies
    with pytest.raises(OutOfOrder, match="can't begin") as refusal:
        b.up()
    assert refusal.value.code == "CFD-J12"
    assert "torch" not in str(refusal.value)


def test_a_worker_that_never_begins_is_waited_for_until_the_deadline_only(bench):
    b = bench()
    b.engine.pull_messages = lambda _: []
    with pytest.raises(TimedOut, match="didn't begin"):
        b.up(up_s=0.3)


def test_a_stopped_simulation_waits_for_nobody(bench):
    b = bench(silent={0, 1, 2, 3})
    b.up()
    b.stopped.set()
    with pytest.raises(Interrupted):
        list(b.grid.send_and_receive([_request(b, node) for node in b.engine.nodes], timeout=1e9))


def test_what_the_engine_does_not_take_is_lost(bench):
    b = bench()
    b.up()
    b.engine.push_messages = lambda messages: []
    found = list(b.grid.send_and_receive([_request(b, node) for node in b.engine.nodes], timeout=5))
    assert [answer.error.reason for answer in found] == ["lost"] * 4
    assert sorted(answer.metadata.src_node_id for answer in found) == sorted(b.engine.nodes)


def test_a_reply_that_is_none_counts_as_lost(bench):
    b = bench()
    b.engine._app = lambda message, _: flower.build_reply(
        message, flower.empty_content(), message_id=uuid.uuid4().hex, created_at_s=0.0
    )
    heard = b.ask()
    assert {found.silence for found in heard.values()} == {Silence.LOST}


def test_without_a_timeout_the_shortest_time_to_live_counts(bench):
    b = bench(silent={0})
    b.up()
    message = _request(b, b.engine.nodes[0], ttl=0.2)
    assert [answer.error.reason for answer in b.grid.send_and_receive([message])] == ["late"]


def test_the_grid_keeps_its_run(bench):
    b = bench()
    assert b.grid.run.run_id == RUN
    with pytest.raises(OutOfOrder):
        b.grid.set_run(b.grid.run)


def test_the_engine_gets_loopback_a_folder_of_its_own_and_no_dashboard():
    from coordinator.virtual_grid import backend

    found = backend("/tmp/confide-x", 3)
    ray = found["init_args"]
    assert (ray["address"], ray["_node_ip_address"], ray["_temp_dir"]) == ("local", "127.0.0.1", "/tmp/confide-x")
    assert (ray["include_dashboard"], ray["log_to_driver"], ray["num_cpus"], ray["num_gpus"]) == (False, False, 3, 0)
    assert found["client_resources"] == {"num_cpus": 1, "num_gpus": 0.0}


def test_a_simulation_that_ends_the_process_is_an_error_and_no_end_of_ours(monkeypatch):
    class Simulation:
        @staticmethod
        def run_simulation(**_):
            raise SystemExit(700)

    monkeypatch.setattr(flower, "_load", lambda name: Simulation)
    with pytest.raises(OutOfOrder, match="status 700") as refusal:
        flower.run_virtual_nodes(None, None, nodes_count=1, backend={})
    assert refusal.value.code == "CFD-J12"


def test_an_error_of_the_engine_is_told_without_its_text(monkeypatch):
    class Simulation:
        @staticmethod
        def run_simulation(**_):
            raise RuntimeError("patient 4711")

    monkeypatch.setattr(flower, "_load", lambda name: Simulation)
    with pytest.raises(OutOfOrder) as refusal:
        flower.run_virtual_nodes(None, None, nodes_count=1, backend={})
    assert "4711" not in refusal.value.message


def _request(bench, node, ttl=600.0):
    content = flower.body_to_content(
        PhaseRequest(
            message_id="m-1",
            job=JOB,
            round=0,
            attempt=0,
            phase=Phase.TRAIN,
            deadline_s=600,
            release=RELEASE,
            release_signature="00" * 64,
        )
    )
    return bench.grid.create_message(content, "train", node, "0/0", ttl)
