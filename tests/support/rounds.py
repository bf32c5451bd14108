"""One job's rounds over a real store and real files, with sites that follow a script instead of a network.

`Script` says what each site does in each phase; `Bench` makes the job and runs it, may be killed at the n-th write of
the database, and goes on like a new process would: with nothing but what is on disk.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from coordinator import job_machine
from coordinator.evaluation import BINS
from coordinator.exchange import Heard, Interrupted, MayLose, Silence
from coordinator.migrations import bring_up
from coordinator.model_registry import ModelRegistry
from coordinator.records import AttemptRecord, JobRecord, NewJob, ReleaseRecord
from coordinator.round_loop import run_job
from coordinator.round_work import FirstModel, RoundSettings, RoundWork
from coordinator.site_machine import SiteEvent
from coordinator.store import Store
from federation import canonical, plan
from federation.edge.database import open_engine
from federation.identity import IdentityKey
from federation.link.blobs import BlobStore
from federation.messages import (
    Answer,
    Decision,
    EvaluationCounts,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Reason,
    SiteId,
    encode_body,
)
from federation.tensors import Array, Manifest, TensorFile, write_tensors

SITES = ("a", "b", "c", "d")
PLAN = """
apiVersion: confide/v1
kind: TrainingJob
name: heart-risk
purpose: {code: DUO:0000007, text: "risk of heart disease"}
data: {contract: heart-disease/v1, label: disease}
model: {kind: logistic}
training: {local_steps: 1, batch: 8, optimizer: {name: sgd, lr: 0.1}, seed: 7}
privacy: {unit: record, mechanism: none}
secure_aggregation: {enabled: false}
rounds: ROUNDS
sites: {invite: [SITES], quorum: QUORUM}
deadlines: {training_s: 60, phase_s: 60}
"""


def _robustly(*about: Any) -> None:
    from federation.robust_means import robust_mean  # brings flwr, which few of these tests need

    robust_mean(*about)


class SteppingClock:
    """A clock that moves by itself a little at each look, and by `pass_time` a lot."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now

    def monotonic_s(self) -> float:
        return self.now().timestamp()

    def sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def pass_time(self, seconds: float) -> None:
        self.sleep(seconds)


class Silent:
    """A recorder that keeps the names of what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *about, **more: self.told.append((name, about))

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


class Killed(BaseException):
    """The process died here."""


Act = Callable[["Bench", PhaseRequest, SiteId], Heard]


def trains(values: float | Mapping[str, Array] | Callable[[int], float], *, weight: int = 0) -> Act:
    """Return a site's act: an update with this value everywhere, or these arrays."""

    def act(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
        found = values(request.round) if callable(values) else values
        arrays = bench.constant(found) if isinstance(found, (int, float)) else dict(found)
        return Heard(site, bench.reply(request, arrays=arrays, weight=weight))

    return act


def fails(code: str = "CFD-R51") -> Act:
    """Return a site's act: it says that it failed."""
    return lambda bench, request, site: Heard(site, bench.reply(request, code=code))


def refuses(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
    """A site's act: it finally refuses the request itself."""
    return Heard(site, None, refused="CFD-R58")


def is_late(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
    """A site's act: no answer by the deadline."""
    return Heard(site, None, Silence.LATE)


def is_lost(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
    """A site's act: its link is down at the deadline."""
    return Heard(site, None, Silence.LOST)


def scores(positives: Mapping[int, int], negatives: Mapping[int, int], loss: float = 1.0) -> Act:
    """Return a site's act: counts by sixteenth of the score."""
    return lambda bench, request, site: Heard(site, bench.scored(request, positives, negatives, loss))


def dies(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
    """The coordinator is killed before this site's answer arrives."""
    raise Killed


def interrupted(bench: "Bench", request: PhaseRequest, site: SiteId) -> Heard:
    """The service stops while this site's answer is awaited."""
    raise Interrupted


@dataclass
class Script:
    """What each site does. Keys: (phase, round, attempt, site), where None stands for any; the first that fits."""

    acts: dict[tuple[Phase | None, int | None, int | None, str | None], Act] = field(default_factory=dict)
    asked: list[tuple[str, int, int, str]] = field(default_factory=list)

    def act(self, request: PhaseRequest, site: SiteId) -> Act:
        for (phase, number, attempt, who), act in self.acts.items():
            wanted = (phase or request.phase, request.round if number is None else number)
            wanted += (request.attempt if attempt is None else attempt, site if who is None else who)
            if wanted == (request.phase, request.round, request.attempt, site):
                return act
        raise AssertionError(f"the script says nothing of {request.phase} round {request.round} at {site}")


class Bench:
    """A job at work."""

    def __init__(
        self,
        folder: Path,
        script: Script,
        *,
        url: str | None = None,
        sites: tuple[str, ...] = ("a", "b", "c"),
        quorum: int = 2,
        rounds: int = 1,
        attempts: int = 3,
        declared: Mapping[str, int] | None = None,
        more: str = "",
        max_update_norm: float | None = None,
        first: Mapping[str, Array] | None = None,
        secure: bool = False,
    ) -> None:
        self.folder = folder
        self.script = script
        self.url = url or f"sqlite:///{folder / 'bench.db'}"
        self.clock = SteppingClock()
        self.identity = IdentityKey.generate()
        self.first = first or {"output.weight": np.zeros((1, 3), "<f4"), "output.bias": np.zeros(1, "<f4")}
        self.manifest = Manifest.of_arrays(self.first)
        self.max_update_norm = max_update_norm
        self.recorder = Silent()
        self.spare: list[int] = []
        text = PLAN.replace("ROUNDS", str(rounds)).replace("SITES", ", ".join(sites)).replace("QUORUM", str(quorum))
        if secure:
            text = text.replace("{enabled: false}", "{colluding: 1, dropouts: 1}")
        wanted = plan.read(text + f"round_attempts: {attempts}\n" + more)
        self.plan = plan.resolve(wanted, contract_digest="0" * 64, has_entities=False)
        self.open()
        self.job = self._make_job(attempts)
        for site in sites:
            self._accept(site, (declared or {}).get(site, 1))
        self.store.jobs.step(self.job, job_machine.Begun())

    def open(self) -> None:
        """Open the disk as a new process would."""
        self.engine: Engine = open_engine(self.url)
        bring_up(self.engine)
        self.store = Store(self.engine, self.clock)
        self.blobs = BlobStore(self.folder / "blobs")
        self.registry = ModelRegistry(self.blobs, self.folder / "scratch", self.identity, self.store.database.now_us)

    def _make_job(self, attempts: int) -> JobId:
        data = plan.canonical_bytes(self.plan)
        record, _ = self.store.jobs.create(
            NewJob(
                id=JobId(f"{self.plan.name}-{secrets.token_hex(3)}"),
                name=self.plan.name,
                plan=data,
                plan_digest=canonical.digest(data),
                contract=b"{}",
                submitter="alice",
                signature=b"",
                vouched=False,
                priority=50,
                invited=tuple(SiteId(site) for site in self.plan.sites.invite),
                quorum=self.plan.sites.quorum or 1,
                rounds=self.plan.rounds,
                attempts=attempts,
            )
        )
        self.store.jobs.step(record.id, job_machine.Admitted())
        return record.id

    def _accept(self, site: str, units: int) -> None:
        answer = Answer(
            message_id="m",
            job=self.job,
            plan_digest=canonical.digest(plan.canonical_bytes(self.plan)),
            decision=Decision.ACCEPTED,
            units_declared=units,
        )
        self.store.jobs.save_answer(self.job, SiteId(site), encode_body(answer), b"")
        self.store.jobs.step(self.job, job_machine.SiteAnswered(SiteId(site), SiteEvent.ACCEPT))

    # --- running ----------------------------------------------------------------------------------------------

    def work(self) -> RoundWork:
        return RoundWork(
            self.record(),
            self.plan,
            FirstModel(self.manifest, arrays=self.first),
            store=self.store,
            registry=self.registry,
            recorder=self.recorder,  # type: ignore[arg-type]
            clock=self.clock,
            new_message_id=lambda: secrets.token_hex(8),
            settings=RoundSettings(max_update_norm=self.max_update_norm),
            combine_robustly=_robustly,
        )

    def run(self) -> JobRecord:
        """Run the job as far as it goes in one process."""
        run_job(self.work(), self)
        return self.record()

    def ask(
        self, requests: Mapping[SiteId, PhaseRequest], *, timeout_s: float, may_lose: MayLose | None = None
    ) -> Iterator[Heard]:
        """Answer as the script says; whoever is silent is told last, as at a real deadline."""
        if may_lose is not None:
            self.spare.append(may_lose())
        for site, request in requests.items():
            self.script.asked.append((request.phase.value, request.round, request.attempt, site))
        return self._answers(dict(requests))

    def _answers(self, requests: dict[SiteId, PhaseRequest]) -> Iterator[Heard]:
        silent = []
        for site, request in requests.items():
            heard = self.script.act(request, site)(self, request, site)
            if heard.silence is not None:
                silent.append(heard)
            else:
                yield heard
        if silent:
            self.clock.pass_time(60)
        yield from silent

    def run_killed_at_write(self, number: int) -> bool:
        """Run until the n-th transaction is about to commit, and die there; return whether it came to that."""
        count = 0

        def before_commit(connection: Connection) -> None:
            nonlocal count
            wrote = not connection.get_execution_options().get("confide_read_only", False)
            count += wrote
            if wrote and count == number:
                raise Killed

        event.listen(self.engine, "commit", before_commit)
        try:
            self.run()
        except Killed:
            return True
        finally:
            event.remove(self.engine, "commit", before_commit)
            self.engine.dispose()
            self.open()
        return False

    # --- what sites send --------------------------------------------------------------------------------------

    def constant(self, value: float) -> dict[str, Array]:
        return {name: np.full(spec.shape, value, spec.numpy) for name, spec in self.manifest.floats.tensors}

    def reply(
        self,
        request: PhaseRequest,
        *,
        arrays: Mapping[str, Array] | None = None,
        code: str | None = None,
        weight: int = 0,
    ) -> PhaseReply:
        update = None
        if arrays is not None:
            path = self.folder / f"update-{secrets.token_hex(4)}"
            write_tensors(path, arrays)
            update = self.blobs.put_file(path)
        return PhaseReply(
            message_id=secrets.token_hex(8),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=request.phase,
            outcome=Outcome.DONE if code is None else Outcome.FAILED,
            reason=None if code is None else Reason(code=code),
            update=update,
            weight=weight,
        )

    def scored(
        self, request: PhaseRequest, positives: Mapping[int, int], negatives: Mapping[int, int], loss: float
    ) -> PhaseReply:
        bins = BINS["public"]
        wide = bins // 16  # the script speaks of sixteenths
        counts = EvaluationCounts(
            release="public",
            bins=bins,
            positives=tuple(0 if place % wide else positives.get(place // wide, 0) for place in range(bins)),
            negatives=tuple(0 if place % wide else negatives.get(place // wide, 0) for place in range(bins)),
            loss_sum=float(loss).hex(),
        )
        return PhaseReply(
            message_id=secrets.token_hex(8),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=Phase.EVALUATE,
            outcome=Outcome.DONE,
            evaluation=counts,
        )

    # --- what came of it --------------------------------------------------------------------------------------

    def record(self) -> JobRecord:
        return self.store.jobs.get(self.job)

    def attempts(self) -> list[AttemptRecord]:
        return self.store.rounds.all(self.job)

    def releases(self) -> list[ReleaseRecord]:
        return self.store.releases.all(self.job)

    def model(self, step: int = -1) -> dict[str, Array]:
        with TensorFile(self.blobs.path(self.releases()[step].model)) as tensors:
            return tensors.arrays()

    def events(self) -> list[str]:
        return [found.name for found in self.store.jobs.events(self.job)]
