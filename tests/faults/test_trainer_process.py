"""The trainer as a real subprocess: it trains with leases, ends with its pipe, and its death is noticed at once."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit import events
from audit.log import AuditLog
from federation import plan as plans
from federation.contract import digest
from federation.edge.clock import SystemClock
from federation.messages import BlobReference, JobId, Phase, PhaseRequest, encode_body
from federation.models import layout
from federation.plan import Plan
from federation.tensors import TensorFile, check_update, write_tensors
from privacy.releases.evaluation import BINS_CHARGED
from site_client.data.intake import Prepared
from site_client.trainer_messages import (
    Begin,
    DataClosed,
    Done,
    Failed,
    LeaseAsked,
    LeaseDone,
    LeaseGiven,
    LeaseRefused,
    Ready,
    ReceiptSource,
    Setup,
    StopWork,
)
from site_client.trainer_process import TrainerGone, TrainerProcess, TrainerSaid, trainer_environment
from tests.support import site_data

pytestmark = pytest.mark.process
JOB = JobId("heart-risk-0a1b2c")
SITE = "mercy"


class Daemon:
    """What of the daemon a trainer sees."""

    def __init__(self, home: Path, plan: Plan, rows: Prepared) -> None:
        self.home = home
        self.plan = plan
        self.version = site_data.store(home, rows)
        self.log = AuditLog.create(
            home / "audit", origin_federation="heart.example.org", party=SITE, clock=SystemClock()
        )
        self.events: queue.Queue[TrainerSaid | TrainerGone] = queue.Queue()
        self.model = home / "model.safetensors"
        self.output = home / "update.safetensors"
        write_tensors(self.model, layout.initial(plan.model, 2, seed=plan.training.seed))
        self.trainer = self.start()

    def start(self) -> TrainerProcess:
        environment = trainer_environment(os.environ, cache=self.home / "cache", threads=1)
        return TrainerProcess(JOB, 1, environment=environment, log=self.home / "trainer.log", post=self.events.put)

    def setup(self, *, memory_bytes: int = 0) -> None:
        self.trainer.send(
            Setup(
                job=JOB,
                site=SITE,
                home=str(self.home),
                plan=plans.canonical_bytes(self.plan).hex(),
                contract=site_data.contract_bytes().hex(),
                dataset="heart",
                version=self.version,
                units_declared=64,
                held_out_public=False,
                threads=1,
                lease_steps=3,
                memory_bytes=memory_bytes,
                accelerators=0,
                audit=ReceiptSource(origin=self.log.origin, boot=self.log.boot, writer_key=self.log.writer_key),
            )
        )

    def begin(self, phase: Phase = Phase.TRAIN, *, round_number: int = 0, says_round: int | None = None) -> None:
        receipt = self.log.append(
            events.DataOpened(
                id=self.log.new_id(),
                decision="allowed",
                actor=events.Actor(kind="service", id="daemon"),
                rule="rules/0",
                dataset=events.Dataset(id="heart", version=f"sha256:{self.version}"),
                mode=phase.value,
                job=JOB,
                plan="sha256:" + plans.digest(self.plan),
                round=round_number if says_round is None else says_round,
                purpose=events.Purpose(code="DUO:0000007"),
                policy="sha256:" + "0" * 64,
            )
        )
        request = PhaseRequest(
            message_id="01",
            job=JOB,
            round=round_number,
            attempt=0,
            phase=phase,
            deadline_s=60,
            release=BlobReference(root="a" * 64, size_bytes=1),
            release_signature="00" * 64,
        )
        self.trainer.send(
            Begin(
                request=encode_body(request).hex(),
                model=str(self.model),
                output=str(self.output),
                receipt_index=receipt.index,
                receipt_leaf=receipt.leaf.hex(),
            )
        )

    def next(self, timeout_s: float = 60) -> object:
        event = self.events.get(timeout=timeout_s)
        return event.line if isinstance(event, TrainerSaid) else event

    def ready(self) -> Ready:
        self.setup()
        line = self.next()
        assert isinstance(line, Ready), line
        return line

    def work(self) -> list[object]:
        """Answer every lease, and return what the trainer said up to its end of the phase."""
        heard: list[object] = []
        while True:
            line = self.next()
            heard.append(line)
            if isinstance(line, LeaseAsked):
                self.trainer.send(LeaseGiven(steps=line.steps))
            if isinstance(line, Done | Failed | TrainerGone):
                return heard

    def close(self) -> None:
        self.trainer.close()
        self.log.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path, site_data.plan(), site_data.prepared())
    yield made
    made.close()


def test_a_trainer_trains_with_leases_and_writes_an_update_of_the_models_form(daemon: Daemon) -> None:
    ready = daemon.ready()
    assert ready.device == "cpu"
    assert ready.engine.startswith("book-keeping/")
    daemon.begin()
    heard = daemon.work()
    leases = [line.steps for line in heard if isinstance(line, LeaseAsked)]
    assert leases == [3, 1]
    assert [line.steps for line in heard if isinstance(line, LeaseDone)] == [3, 1]
    assert heard[0] == DataClosed(records=48)
    assert heard[-1] == Done(steps=4)
    manifest = layout.manifest(daemon.plan.model, 2)
    assert check_update(daemon.output, manifest, site=SITE).norm > 0


def test_one_trainer_serves_round_after_round_and_evaluations(daemon: Daemon) -> None:
    daemon.ready()
    for round_number in range(2):
        daemon.begin(round_number=round_number)
        assert daemon.work()[-1] == Done(steps=4)
        daemon.begin(Phase.EVALUATE, round_number=round_number)
        done = daemon.work()[-1]
        assert isinstance(done, Done)
        assert done.evaluation is not None
        assert done.evaluation.release == "charged"
        assert done.evaluation.bins == BINS_CHARGED


def test_public_evaluation_counts_every_held_out_unit_once(tmp_path: Path) -> None:
    plan = site_data.plan(**{"release: charged, epsilon: 2.0": "release: public"})
    daemon = Daemon(tmp_path, plan, site_data.prepared())
    try:
        daemon.ready()
        daemon.begin(Phase.EVALUATE)
        heard = daemon.work()
        done = heard[-1]
        assert isinstance(done, Done)
        assert done.evaluation is not None
        assert sum(done.evaluation.positives) + sum(done.evaluation.negatives) == 16
        assert not any(isinstance(line, LeaseAsked) for line in heard)
    finally:
        daemon.close()


def test_plain_training_learns_and_asks_for_no_lease(tmp_path: Path) -> None:
    plan = site_data.plan(
        **{
            "mechanism: local-dp-sgd, epsilon: 4.0, delta: 1e-4": "mechanism: none",
            "local_steps: 4": "local_steps: 40",
            "release: charged, epsilon: 2.0": "release: exact",
        }
    )
    daemon = Daemon(tmp_path, plan, site_data.prepared())
    try:
        assert daemon.ready().engine == "plain/1"
        daemon.begin()
        heard = daemon.work()
        assert heard[-1] == Done(steps=40)
        assert not any(isinstance(line, LeaseAsked) for line in heard)
        with TensorFile(daemon.output) as update:
            moved = update.read("output.weight")[0]
        assert moved[0] > abs(moved[1])
    finally:
        daemon.close()


def test_without_a_lease_no_step_is_taken(daemon: Daemon) -> None:
    daemon.ready()
    daemon.begin()
    assert isinstance(daemon.next(), DataClosed)
    assert isinstance(daemon.next(), LeaseAsked)
    daemon.trainer.send(LeaseRefused(code="CFD-R55"))
    failed = daemon.next()
    assert isinstance(failed, Failed)
    assert failed.code == "CFD-R55"
    assert not daemon.output.exists()


def test_a_receipt_for_another_round_opens_nothing(daemon: Daemon) -> None:
    daemon.ready()
    daemon.begin(round_number=1, says_round=0)
    failed = daemon.next()
    assert isinstance(failed, Failed)
    assert failed.code == "CFD-D22"


def test_a_data_set_without_training_units_fails_with_its_own_code_and_no_lease(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, site_data.plan(), site_data.prepared(16, held_out=16))
    try:
        daemon.ready()
        daemon.begin()
        heard = daemon.work()
        assert heard[0] == DataClosed(records=0)
        assert isinstance(heard[-1], Failed)
        assert heard[-1].code == "CFD-R52"
    finally:
        daemon.close()


def test_a_stop_ends_the_phase_at_its_next_step(daemon: Daemon) -> None:
    daemon.ready()
    daemon.begin()
    assert isinstance(daemon.next(), DataClosed)
    assert isinstance(daemon.next(), LeaseAsked)
    daemon.trainer.send(StopWork())
    daemon.trainer.send(LeaseGiven(steps=3))
    heard = daemon.work()
    assert isinstance(heard[-1], Failed)
    assert heard[-1].code == "CFD-R48"
    assert not daemon.output.exists()
    daemon.begin(round_number=1)
    assert daemon.work()[-1] == Done(steps=4)


def test_a_learning_rate_that_explodes_is_stopped_at_the_site(tmp_path: Path) -> None:
    plan = site_data.plan(**{"lr: 0.5": "lr: 1e6, weight_decay: 1.0", "local_steps: 4": "local_steps: 12"})
    daemon = Daemon(tmp_path, plan, site_data.prepared())
    try:
        daemon.ready()
        daemon.begin()
        failed = daemon.work()[-1]
        assert isinstance(failed, Failed)
        assert failed.code == "CFD-R57"
        assert not daemon.output.exists()
    finally:
        daemon.close()


def test_too_little_memory_is_said_and_the_daemon_lives(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, site_data.plan(), site_data.prepared())
    try:
        daemon.setup(memory_bytes=32 << 20)
        heard = daemon.next()
        assert isinstance(heard, Failed | TrainerGone)
        if isinstance(heard, Failed):
            assert heard.code in ("CFD-R51", "CFD-R54")
            assert isinstance(daemon.next(), TrainerGone)
    finally:
        daemon.close()


def test_a_killed_trainer_is_noticed_at_once(daemon: Daemon) -> None:
    daemon.ready()
    daemon.begin()
    assert isinstance(daemon.next(), DataClosed)
    began = time.monotonic()
    os.kill(daemon.trainer.pid, signal.SIGKILL)
    heard = daemon.next()
    while not isinstance(heard, TrainerGone):
        heard = daemon.next()
    assert time.monotonic() - began < 30  # long before the deadline
    assert heard.status == -signal.SIGKILL


def test_a_trainer_ends_when_its_pipe_does(daemon: Daemon) -> None:
    daemon.ready()
    daemon.trainer.close()
    gone = daemon.next()
    assert isinstance(gone, TrainerGone)
    assert gone.status == 0


def test_a_line_that_is_none_of_the_vocabulary_ends_the_trainer(daemon: Daemon) -> None:
    daemon.ready()
    with open(f"/proc/{daemon.trainer.pid}/fd/0", "wb") as pipe:
        pipe.write(b'{"say":"run","code":"import os"}\n')
    heard = daemon.next()
    # The hearing thread refuses the line and ends; the trainer then waits for a daemon that says nothing it knows.
    assert isinstance(heard, TrainerGone)


def test_the_environment_and_command_line_of_a_trainer_hold_no_secret(daemon: Daemon) -> None:
    daemon.ready()
    command = Path(f"/proc/{daemon.trainer.pid}/cmdline").read_bytes().split(b"\0")
    assert command[1:] == [b"-P", b"-m", b"site_client.trainer", b""]
    names = {entry.split(b"=")[0] for entry in Path(f"/proc/{daemon.trainer.pid}/environ").read_bytes().split(b"\0")}
    assert not any(b"CONFIDE" in name or b"TOKEN" in name or b"PASSWORD" in name for name in names)
    assert b"FLWR_TELEMETRY_ENABLED" in names


def test_the_daemons_modules_import_neither_torch_nor_flwr() -> None:
    script = (
        "import sys, site_client.session_machine, site_client.store, site_client.lineage, site_client.offers,"
        " site_client.records, site_client.trainer_process, site_client.control;"
        "sys.exit(1 if {'torch', 'flwr', 'opacus'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2]).returncode == 0


def test_contract_digest_is_that_of_the_plan() -> None:
    assert site_data.plan().data.contract_digest == digest(site_data.contract())
