"""The coordinator's part in the rounds of one job: each step of the round loop as one method.

`run_job` is the loop and reads like the paper; it runs the same behind the link, in simulation and in tests, over an
`Exchange` that carries requests to sites and their answers back. Every method may be repeated: what is on disk already
is taken from there, so a job that was killed anywhere goes on at the round it was in, asks nobody again who has
answered, and counts nothing twice.

Not here: what decides (the machines), who may take part (the service), how messages travel (`flower_server`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator import evaluation, job_machine, round_machine
from coordinator.job_machine import JobState
from coordinator.model_registry import ModelRegistry, Stepped
from coordinator.recording import Recorder
from coordinator.records import AttemptRecord, Fact, JobRecord, ReleaseRecord, ReplyRecord
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.site_machine import SiteState
from coordinator.store import Store
from federation import canonical
from federation.codes import CODES
from federation.edge.clock import Clock
from federation.errors import ConfideError, InvalidInput, OutOfOrder
from federation.messages import (
    Answer,
    BlobReference,
    Body,
    EvaluationCounts,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    SiteId,
    decode_body,
    encode_body,
)
from federation.plan_checks import ROBUST
from federation.plan_fields import FedAvg, Plan, RobustStrategy
from federation.tensors import Array, Manifest, NotFinite, UpdateRefused, check_update, weighted_mean

UPDATE_HEADER_BYTES: Final = 1 << 20
"""What an update's file may have beyond its tensors."""

RoundEnd = job_machine.RoundReleased | job_machine.RoundAbandoned
CloseRound = Callable[[JobId, RoundEnd, Sequence[Fact]], object]
"""Takes the job past a round, in the store, and does what follows."""
CombineRobustly = Callable[[RobustStrategy, Mapping[str, Path], Mapping[str, int], Manifest, Path], None]


class Silence(StrEnum):
    """Why there is no answer of a site when a phase closes."""

    LATE = "late"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Heard:
    """The outcome of a phase at one site.

    Attributes:
        site: The site.
        reply: Its reply, if there is one.
        silence: Why there is none.
        is_stored: Whether the reply is on disk already.
        refused: The code with which the site finally refused the request itself.
    """

    site: SiteId
    reply: PhaseReply | None
    silence: Silence | None = None
    is_stored: bool = False
    refused: str | None = None


class Interrupted(Exception):
    """The exchange was told to stop waiting: the job ended, or the service stops. Nothing was decided."""


class Exchange(Protocol):
    """Carries the requests of a phase to sites and yields what comes back."""

    def ask(self, requests: Mapping[SiteId, PhaseRequest], *, timeout_s: float) -> Iterator[Heard]:
        """Send the requests and yield one `Heard` for every site, in the order in which they come in.

        Never waits longer than `timeout_s`; whoever hasn't answered by then is yielded with the reason.

        Raises:
            Interrupted: The job ended or the service stops.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The coordinator's own bounds of a round.

    Attributes:
        max_update_norm: Largest L2 norm of an update that is let in, or None.
        deadline_scale: Factor on the plan's deadlines; 1 but in tests.
        models_kept_count: How many of a job's newest models stay on disk, beside the initial one.
    """

    max_update_norm: float | None = None
    deadline_scale: float = 1.0
    models_kept_count: int = 1000


@dataclass(frozen=True, slots=True)
class FirstModel:
    """Where a job starts: fresh values, or the stored model of another job's release; and the model's layout."""

    manifest: Manifest
    arrays: Mapping[str, Array] | None = None
    stored: BlobReference | None = None


class RoundWork:
    """One job at work. Used by its own thread alone."""

    def __init__(
        self,
        record: JobRecord,
        plan: Plan,
        first: FirstModel,
        *,
        store: Store,
        registry: ModelRegistry,
        recorder: Recorder,
        clock: Clock,
        new_message_id: Callable[[], str],
        settings: RoundSettings,
        close: CloseRound | None = None,
        combine_robustly: CombineRobustly | None = None,
    ) -> None:
        self.job: Final[JobId] = record.id
        self.plan: Final = plan
        self._plan_digest = record.plan_digest
        self._first = first
        self._store = store
        self._registry = registry
        self._recorder = recorder
        self._clock = clock
        self._new_message_id = new_message_id
        self._settings = settings
        self._close = close or store.rounds.close
        self._combine_robustly = combine_robustly
        self._weights: dict[SiteId, int] = {}
        # What this thread has written or heard itself, it needn't ask the database for.
        self._resumed = True
        self._newest_release: ReleaseRecord | None = None
        self._trained: dict[SiteId, PhaseReply] = {}

    # --- 0: the initial model ---------------------------------------------------------------------------------

    def prepare_first_model(self) -> None:
        """Store and sign the initial model, step 0, if that hasn't happened."""
        if self._store.releases.get(self.job, 0) is not None:
            return
        first = self._first
        if first.stored is not None:
            stepped = self._registry.first_from(first.stored)
        else:
            stepped = self._registry.first(self.job, first.arrays or {})
        release = self._registry.sign(
            stepped, job=self.job, plan_digest=self._plan_digest, at=(0, 0), previous=None, weights={}
        )
        self._store.releases.save(release)

    # --- 1: open a round --------------------------------------------------------------------------------------

    def open_round(self) -> AttemptRecord | None:
        """Return the job's round, opened or as it was left; None once the job doesn't run."""
        record = self._store.jobs.get(self.job)
        known = None
        if self._resumed:
            known = self._store.rounds.get(self.job, record.job.round, record.job.attempt)
        if record.job.state is not JobState.RUNNING and not (record.job.state is JobState.PAUSED and known is not None):
            return None  # a pause lets a begun round finish
        self._trained = {}
        if known is None:
            self._resumed = False
            return self._open(record)
        for kept in self._replies(known, Phase.TRAIN):
            self._trained[kept.site] = _reply_of(kept)
        return known

    def _open(self, record: JobRecord) -> AttemptRecord:
        number, attempt = record.job.round, record.job.attempt
        cohort = record.job.cohort()
        fresh = round_machine.opened(number, attempt, quorum=record.job.quorum, cohort=cohort)
        if len(cohort) < record.job.quorum:
            # Asking fewer than the quorum would spend budget on a round that can release nothing.
            reason = f"{len(cohort)} of {record.job.quorum} sites take part"
            opened, _ = round_machine.step(fresh, round_machine.Abandon(reason))
        else:
            opened, _ = round_machine.step(fresh, round_machine.Asked())
        model = self._newest().model_digest
        self._recorder.round_opened(record, attempt, model, len(cohort))
        for site in cohort:
            if record.job.sites[site].state in (SiteState.LATE, SiteState.LOST):
                self._recorder.site_back(self.job, number, attempt, site)
        wait_us = round(self.plan.deadlines.training_s * self._settings.deadline_scale * 1e6)
        fact = {"round": number, "attempt": attempt, "cohort": list(cohort), "quorum": record.job.quorum}
        return self._store.rounds.open(
            self.job,
            opened,
            deadline_us=self._store.database.now_us() + wait_us,
            facts=[("round.opened", fact)],
        )

    # --- 2: requests ------------------------------------------------------------------------------------------

    def training_requests(self, attempt: AttemptRecord) -> dict[SiteId, PhaseRequest]:
        """Return the request to train for every site that hasn't answered this attempt."""
        if not is_collecting(attempt):
            return {}
        left_s, release = self.left_s(attempt), self._newest()
        return {
            site: self._request(attempt, Phase.TRAIN, release, left_s)
            for site in attempt.round.standing(Standing.ASKED, Standing.LOST)
            if site not in self._trained
        }

    def _request(self, attempt: AttemptRecord, phase: Phase, release: ReleaseRecord, left_s: float) -> PhaseRequest:
        return PhaseRequest(
            message_id=self._new_message_id(),
            job=self.job,
            round=attempt.round.number,
            attempt=attempt.round.attempt,
            phase=phase,
            deadline_s=max(1, round(left_s)),
            release=release.record_blob,
            release_signature=release.signature.hex(),
        )

    def left_s(self, attempt: AttemptRecord) -> float:
        """Return how long the training of an attempt may still take.

        An attempt that a restart found open stays open for a phase's time at least: sites must get back first.
        """
        plan_s = self.plan.deadlines.training_s * self._settings.deadline_scale
        left_s = (attempt.deadline_us - self._store.database.now_us()) / 1e6
        if self._resumed:
            left_s = max(left_s, min(plan_s, self._phase_s()))
        return min(max(0.0, left_s), plan_s)

    def _phase_s(self) -> float:
        return self.plan.deadlines.phase_s * self._settings.deadline_scale

    # --- 3 and 4: collect and check ---------------------------------------------------------------------------

    def collect(self, attempt: AttemptRecord, heard: Iterator[Heard]) -> AttemptRecord:
        """Check each answer as it comes in until the phase closes; return the attempt, closed or abandoned, on disk."""
        if not is_collecting(attempt):
            return attempt
        found = attempt.round
        actions: tuple[round_machine.RoundStep, ...] = ()
        for site, reply in self._again(attempt).items():
            found, actions = round_machine.step(found, self._judge(site, reply))
        while not _decided(found):
            outcome = next(heard, None)
            if outcome is None:
                found, actions = round_machine.step(found, round_machine.DeadlinePassed())
            elif outcome.reply is not None:
                self._keep(outcome)
                self._trained[outcome.site] = outcome.reply
                found, actions = round_machine.step(found, self._judge(outcome.site, outcome.reply))
            elif outcome.refused is not None:
                bad = round_machine.FoundBad(outcome.site, f"training, {_cause(outcome.refused)}")
                found, actions = round_machine.step(found, bad)
            elif outcome.silence is Silence.LOST:
                found, actions = round_machine.step(found, round_machine.SiteLost(outcome.site))
        return self._closed(attempt, found, actions)

    def _closed(
        self, attempt: AttemptRecord, found: Round, actions: Sequence[round_machine.RoundStep]
    ) -> AttemptRecord:
        late: dict[str, str] = {}
        for action in actions:
            if isinstance(action, round_machine.NameLate):
                late = {str(site): why for site, why in action.late.items()}
        fact = {"round": found.number, "survivors": list(found.survivors), "late": late}
        for site, standing in found.sites.items():
            if standing in (Standing.ASKED, Standing.LOST):
                self._missed(attempt, site, Phase.TRAIN, lost=standing is Standing.LOST)
        facts: list[tuple[str, Mapping[str, Any]]] = [("round.closed", fact)]
        facts += [
            ("site.bad", {"round": found.number, "site": site, "reason": reason})
            for site, reason in sorted(found.reasons.items())
        ]
        if found.state is RoundState.ABANDONED:
            self._recorder.abandoned(attempt, "CFD-R05")
        return self._store.rounds.save(self.job, found, facts)

    def _judge(self, site: SiteId, reply: PhaseReply) -> round_machine.RoundEvent:
        """Return what a site's answer to the training is: a good update, or bad with the reason."""
        if reply.outcome is Outcome.FAILED or reply.update is None:
            return round_machine.FoundBad(site, f"training, {_failure(reply)}")
        try:
            self._check(site, reply, reply.update)
        except ConfideError as problem:
            code = problem.code if isinstance(problem, UpdateRefused) else "CFD-R03"
            self._recorder.update_received(reply, site, code)
            return round_machine.FoundBad(site, problem.message.removeprefix(f"{site}: "))
        self._recorder.update_received(reply, site, None)
        return round_machine.Answered(site)

    def _check(self, site: SiteId, reply: PhaseReply, update: BlobReference) -> None:
        allowed = self._first.manifest.floats.size_bytes + UPDATE_HEADER_BYTES
        if update.size_bytes > allowed:
            raise UpdateRefused(site, f"the update has {update.size_bytes} bytes, at most {allowed}")
        if not self._registry.blobs.has(update):
            raise UpdateRefused(site, "the update was announced and not delivered")
        wanted = self.weight(site)
        if self.plan.weights == "declared" and reply.weight not in (0, wanted):
            raise UpdateRefused(site, f"the weight is {reply.weight}, declared were {wanted}")
        path = self._registry.blobs.path(update)
        check_update(path, self._first.manifest, site=site, max_norm=self._settings.max_update_norm)

    def _again(self, attempt: AttemptRecord) -> dict[SiteId, PhaseReply]:
        """Return the answers that were stored before the sites were asked, so that nobody is waited for in vain."""
        if self._resumed:
            for kept in self._replies(attempt, Phase.TRAIN):
                self._trained[kept.site] = _reply_of(kept)
        return dict(self._trained)

    def _keep(self, heard: Heard) -> None:
        """Store a reply that didn't come by way of the service, which stores before it acknowledges."""
        if heard.reply is not None and not heard.is_stored:
            keep_reply(self._store, heard.site, heard.reply, body=encode_body(heard.reply), signature=b"")

    def _replies(self, attempt: AttemptRecord, phase: Phase) -> list[ReplyRecord]:
        return self._store.rounds.replies(self.job, attempt.round.number, attempt.round.attempt, phase)

    # --- 5 and 6: mean and server step ------------------------------------------------------------------------

    def weight(self, site: SiteId) -> int:
        """Return the public weight of a site: 1, or the units that it declared when it accepted."""
        if self.plan.weights == "uniform":
            return 1
        if site not in self._weights:
            kept = self._store.jobs.answer(self.job, site)
            answer = None if kept is None else decode_body("answer", kept[0])
            if not isinstance(answer, Answer) or answer.units_declared < 1:
                raise InvalidInput("CFD-R62", f"site {site} declared no units to weigh its update with")
            self._weights[site] = answer.units_declared
        return self._weights[site]

    def mean(self, attempt: AttemptRecord, folder: Path) -> Path:
        """Write the mean of the survivors' updates, and of nobody else's, to a file in `folder`."""
        updates = {
            str(site): self._registry.blobs.path(reply.update)
            for site, reply in self._trained.items()
            if site in attempt.round.summed and reply.update is not None
        }
        if sorted(updates) != sorted(attempt.round.summed):
            raise OutOfOrder("CFD-G01", "an update of the survivors is missing")
        weights = {str(site): self.weight(site) for site in attempt.round.summed}
        out = folder / "mean.safetensors"
        strategy = self.plan.server
        if strategy.strategy in ROBUST and isinstance(strategy, RobustStrategy):
            if self._combine_robustly is None:
                raise InvalidInput("CFD-J15", f"{strategy.strategy} doesn't run on this engine")
            self._combine_robustly(strategy, updates, weights, self._first.manifest, out)
        else:
            weighted_mean(updates, weights, self._first.manifest, out)
        return out

    def server_step(self, mean: Path, folder: Path) -> Stepped:
        """Return the model after the server step on `mean`; the newest release stays as it is."""
        strategy = self.plan.server
        step = FedAvg() if isinstance(strategy, RobustStrategy) else strategy
        return self._registry.step(step, self._newest(), mean, folder)

    # --- 7: release -------------------------------------------------------------------------------------------

    def release(self, attempt: AttemptRecord, stepped: Stepped) -> AttemptRecord:
        """Record, sign and store the release of a round; from here on sites may fetch it."""
        before = self._newest()
        round_ = attempt.round
        release = self._registry.sign(
            stepped,
            job=self.job,
            plan_digest=self._plan_digest,
            at=(round_.number, round_.attempt),
            previous=before,
            weights={site: self.weight(site) for site in round_.summed},
        )
        self._recorder.released(release, before.model_digest, self.plan)
        seconds = (self._store.database.now_us() - attempt.opened_us) / 1e6
        fact = {"round": round_.number, "model": release.model_digest, "seconds": round(seconds, 3)}
        now_us = self._store.database.now_us()
        evaluate_by_us = now_us + round(self._phase_s() * 1e6) if self._is_evaluated(attempt) else None
        saved = self._store.releases.save(release, [("round.released", fact)], evaluate_by_us=evaluate_by_us)
        self._newest_release = None
        return attempt if saved is None else saved

    def abandon(self, attempt: AttemptRecord, reason: str, code: str) -> AttemptRecord:
        """End an attempt whose result can't be released; the last good model stays."""
        found, _ = round_machine.step(attempt.round, round_machine.Abandon(reason))
        self._recorder.abandoned(attempt, code)
        return self._store.rounds.save(self.job, found)

    # --- 8: evaluate ------------------------------------------------------------------------------------------

    def evaluation_requests(self, attempt: AttemptRecord) -> dict[SiteId, PhaseRequest]:
        """Return the request to score the round's model for every site that hasn't, or nothing if none is due."""
        if not self._is_evaluated(attempt) or self._newest().metrics is not None or attempt.evaluate_by_us is None:
            return {}
        left_s = (attempt.evaluate_by_us - self._store.database.now_us()) / 1e6
        answered: set[SiteId] = set()
        if self._resumed:
            left_s = max(left_s, self._phase_s())
            answered = {reply.site for reply in self._replies(attempt, Phase.EVALUATE)}
        record = self._store.jobs.get(self.job)
        return {
            site: self._request(attempt, Phase.EVALUATE, self._newest(), left_s)
            for site in attempt.round.sites
            if site not in answered and record.job.sites[site].takes_part
        }

    def _is_evaluated(self, attempt: AttemptRecord) -> bool:
        plan = self.plan.evaluate
        return plan is not None and (attempt.round.number + 1) % plan.every == 0

    def evaluate(self, attempt: AttemptRecord, asked: Iterable[SiteId], heard: Iterator[Heard]) -> None:
        """Sum the sites' figures and store the metrics; with fewer sites than the quorum they are not available.

        Args:
            attempt: The released attempt.
            asked: The sites that were asked just now.
            heard: What comes back from them.
        """
        plan, release = self.plan.evaluate, self._newest()
        if plan is None or not self._is_evaluated(attempt) or release.metrics is not None:
            return
        counts: dict[SiteId, EvaluationCounts] = {}
        bad: dict[SiteId, str] = {}
        missing = set(asked)
        for kept in self._replies(attempt, Phase.EVALUATE) if self._resumed else ():
            missing.discard(kept.site)
            _add(counts, bad, kept.site, _reply_of(kept), plan.release)
        while missing and (outcome := next(heard, None)) is not None:
            missing.discard(outcome.site)
            if outcome.reply is not None:
                self._keep(outcome)
                _add(counts, bad, outcome.site, outcome.reply, plan.release)
            elif outcome.refused is not None:
                bad[outcome.site] = _cause(outcome.refused)
            else:
                self._missed(attempt, outcome.site, Phase.EVALUATE, lost=outcome.silence is Silence.LOST)
        names: list[str] = list(plan.metrics)
        found: dict[str, float | None] = dict.fromkeys(names)
        if len(counts) >= attempt.round.quorum:
            found = evaluation.metrics(evaluation.total(counts), names)
        at = (attempt.round.number, attempt.round.attempt)
        document = canonical.encode({name: None if value is None else value.hex() for name, value in found.items()})
        self._recorder.evaluated(self.job, *at, document, names)
        facts = [
            ("site.bad", {"round": at[0], "site": site, "reason": f"evaluation, {why}"}) for site, why in bad.items()
        ]
        self._store.releases.save_metrics(self.job, release.step, at=at, metrics=found, facts=facts)
        self._newest_release = replace(release, metrics=found)

    def _missed(self, attempt: AttemptRecord, site: SiteId, phase: Phase, *, lost: bool) -> None:
        code = "CFD-R09" if lost else "CFD-R08"
        self._recorder.site_missed(attempt, site, phase.value, code=code, lost=lost)

    # --- 9: close ---------------------------------------------------------------------------------------------

    def close_round(self, attempt: AttemptRecord) -> None:
        """Let go of what nobody needs any more, then take the job past the round."""
        round_ = attempt.round
        if round_.state is RoundState.ABANDONED:
            event: RoundEnd = job_machine.RoundAbandoned(round_.number, round_.attempt, round_.reason)
            facts = [("round.abandoned", _abandoned_fact(round_))]
        else:
            event = job_machine.RoundReleased(round_.number)
            facts = [("round.done", self._done_fact(attempt))]
        self._recorder.round_ends()
        self._forget_updates(round_.number)
        self._forget_models()
        self._close(self.job, event, facts)
        self._resumed = False

    def _done_fact(self, attempt: AttemptRecord) -> dict[str, Any]:
        round_, release = attempt.round, self._newest()
        replies = self._trained.values()
        spent = [float.fromhex(reply.epsilon) for reply in replies if reply.epsilon not in (None, "inf")]
        return {
            "round": round_.number,
            "rounds": self.plan.rounds,
            "attempt": round_.attempt,
            "quorum": round_.quorum,
            "survivors": list(round_.summed),
            "late": {str(site): why for site, why in round_.late.items()},
            "metrics": None if release.metrics is None else dict(release.metrics),
            "seconds": round((self._store.database.now_us() - attempt.opened_us) / 1e6, 3),
            "upload_bytes": sum(reply.update.size_bytes for reply in replies if reply.update is not None),
            "epsilon": max(spent) if spent else None,
            "epsilon_allowed": self.plan.privacy.epsilon,
        }

    def _forget_updates(self, number: int) -> None:
        for root in self._store.rounds.update_roots(self.job, number):
            self._registry.blobs.remove(BlobReference(root=root, size_bytes=0))

    def _forget_models(self) -> None:
        if self._newest().step <= self._settings.models_kept_count:
            return
        releases = self._store.releases.all(self.job)
        old = releases[1 : -self._settings.models_kept_count]
        if not old:
            return
        needed = self._store.releases.roots(except_job=self.job)
        needed |= {found.mean.root for found in releases} | {releases[0].model.root}
        for found in releases[-self._settings.models_kept_count :]:
            needed |= {found.model.root} | ({found.state.root} if found.state else set())
        for found in old:
            for reference in (found.model, found.state):
                if reference is not None and reference.root not in needed:
                    self._registry.blobs.remove(reference)

    def wind_up(self) -> None:
        """Abandon the attempt that an ended job left open, and let go of its updates."""
        record = self._store.jobs.get(self.job)
        if record.job.state not in job_machine.ENDS:
            return
        attempt = self._store.rounds.get(self.job, record.job.round, record.job.attempt)
        if attempt is not None and attempt.round.state not in round_machine.ENDS:
            self.abandon(attempt, f"the job was {record.job.state}", "CFD-R05")
            self._forget_updates(attempt.round.number)

    # --- inside -----------------------------------------------------------------------------------------------

    def _newest(self) -> ReleaseRecord:
        if self._newest_release is None:
            self._newest_release = self._store.releases.newest(self.job)
        if self._newest_release is None:
            raise OutOfOrder("CFD-G01", f"job {self.job} has no model yet")
        return self._newest_release

    def workplace(self) -> AbstractContextManager[Path]:
        """Give an empty folder for the files of a step."""
        return self._registry.workplace(self.job)


def run_job(work: RoundWork, exchange: Exchange) -> None:
    """Run the rounds of a job until it ends, pauses, or the exchange is interrupted."""
    work.prepare_first_model()
    while (attempt := work.open_round()) is not None:  # 1. open the round, or find it as it was left
        requests = work.training_requests(attempt)  # 2. ask the cohort to train
        heard = exchange.ask(requests, timeout_s=work.left_s(attempt))
        attempt = work.collect(attempt, heard)  # 3. until quorum and deadline; 4. check each update
        if is_closed(attempt):
            attempt = _release(work, attempt)
        if attempt.round.state is RoundState.RELEASED:
            requests = work.evaluation_requests(attempt)  # 8. score the new model where it is due
            work.evaluate(attempt, requests, exchange.ask(requests, timeout_s=_longest_s(requests)))
        work.close_round(attempt)  # 9. the job goes on to the next round, the next attempt, or its end
    work.wind_up()


def _release(work: RoundWork, attempt: AttemptRecord) -> AttemptRecord:
    try:
        with work.workplace() as folder:
            mean = work.mean(attempt, folder)  # 5. the mean of those that arrived
            stepped = work.server_step(mean, folder)  # 6. the server step
        return work.release(attempt, stepped)  # 7. store and sign
    except (NotFinite, UpdateRefused, InvalidInput) as problem:
        return work.abandon(attempt, problem.message, "CFD-R06")


def is_collecting(attempt: AttemptRecord) -> bool:
    """Return whether answers to the training of an attempt still count."""
    return attempt.round.state is RoundState.TRAINING and not attempt.round.closed


def is_closed(attempt: AttemptRecord) -> bool:
    """Return whether an attempt has its survivors and waits for the mean."""
    return attempt.round.closed and attempt.round.state not in round_machine.ENDS


def _decided(round_: Round) -> bool:
    return round_.closed or round_.state in round_machine.ENDS


def keep_reply(store: Store, site: SiteId, reply: PhaseReply, *, body: bytes, signature: bytes) -> bool:
    """Store a site's reply durably; return whether it is new. The same reply under another message id is the same.

    Raises:
        PeerMisbehaved: As `RoundStore.save_reply`.
    """
    plain = canonical.encode(reply.model_dump(mode="json", exclude={"message_id"}))
    update = reply.update if reply.outcome is Outcome.DONE else None
    return store.rounds.save_reply(
        ReplyRecord(
            job=JobId(reply.job),
            round=reply.round,
            attempt=reply.attempt,
            phase=reply.phase,
            site=site,
            body=body,
            signature=signature,
            fingerprint=canonical.digest(plain),
            received_us=store.database.now_us(),
        ),
        update_root=None if update is None else update.root,
        upload_bytes=0 if update is None else update.size_bytes,
    )


def _reply_of(kept: ReplyRecord) -> PhaseReply:
    body: Body = decode_body("phase-reply", kept.body or b"")
    if not isinstance(body, PhaseReply):
        raise OutOfOrder("CFD-G01", "a stored reply is no reply")
    return body


def _add(
    counts: dict[SiteId, EvaluationCounts], bad: dict[SiteId, str], site: SiteId, reply: PhaseReply, release: str
) -> None:
    """Put a site's figures among `counts`, or the reason why they can't be added among `bad`."""
    if reply.outcome is Outcome.FAILED or reply.evaluation is None:
        bad[site] = _failure(reply)
        return
    why = evaluation.misfit(reply.evaluation, release=release)
    if why:
        bad[site] = why
    else:
        counts[site] = reply.evaluation


def _failure(reply: PhaseReply) -> str:
    """Return why a site failed, by its code; a text from a site isn't shown, it might hold a value."""
    if reply.reason is None:
        return "failed"
    cause = _cause(reply.reason.code)
    return cause if reply.reference is None else f"{cause}, reference {reply.reference}"


def _cause(code: str) -> str:
    known = CODES.get(code)
    return code if known is None else f"{known.cause} [{known.code}]"


def _abandoned_fact(round_: Round) -> dict[str, Any]:
    late = {str(site): why for site, why in round_.late.items()}
    return {"round": round_.number, "attempt": round_.attempt, "reason": round_.reason, "late": late}


def _longest_s(requests: Mapping[SiteId, PhaseRequest]) -> float:
    return max((request.deadline_s for request in requests.values()), default=0)
