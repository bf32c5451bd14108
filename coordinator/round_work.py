"""The coordinator's part in the rounds of one job: each step of the round loop as one method.

The loop is `round_loop.run_job`; it runs the same behind the link, in simulation and in tests, over an `Exchange` that
carries requests to sites and their answers back. Every method may be repeated: what is on disk already is taken from
there, so a job that was killed anywhere goes on at the round it was in, asks nobody again who has answered, and counts
nothing twice.

Not here: what decides (the machines), what an update must be (`updates`), who may take part (the service), how messages
travel (`flower_server`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from coordinator import job_machine, retention, round_machine
from coordinator.attachments import Attachments
from coordinator.exchange import Exchange, Heard, Interrupted, Silence
from coordinator.figures import Figures
from coordinator.job_machine import JobState
from coordinator.model_registry import ModelRegistry, Stepped
from coordinator.recording import Recorder
from coordinator.records import AttemptRecord, Fact, JobRecord, ReleaseRecord, ReplyRecord
from coordinator.replies import cause_of, keep_reply, reply_of
from coordinator.round_machine import Round, RoundState, Standing
from coordinator.round_witness import Ended, Opening, RoundWitness, about_of, receipts_of
from coordinator.secure_round import SecureRound, Summed, SumSetting
from coordinator.site_machine import SiteState
from coordinator.store import Store
from coordinator.updates import CombineRobustly, Updates
from federation import canonical
from federation.audit_parts import code_text
from federation.edge.clock import Clock
from federation.errors import OutOfOrder
from federation.messages import (
    BlobReference,
    JobId,
    Outcome,
    Phase,
    PhaseReply,
    PhaseRequest,
    Release,
    SiteId,
    decode_body,
    encode_body,
)
from federation.plan_fields import Plan, mean_strategy
from federation.secure_sums import write_mean
from federation.tensors import Array, Manifest
from privacy.secagg.envelope import Signed

RoundEnd = job_machine.RoundReleased | job_machine.RoundAbandoned
CONCLUDE_S: Final = 10.0
"""How long sites may take to say that they have checked a sum's result; they check it again before they train."""
CloseRound = Callable[[JobId, RoundEnd, Sequence[Fact]], object]
"""Takes the job past a round, in the store, and does what follows."""


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
        witness: RoundWitness | None = None,
        sums: SumSetting | None = None,
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
        self._updates = Updates(
            record.id,
            plan,
            first.manifest,
            store=store,
            blobs=registry.blobs,
            recorder=recorder,
            max_norm=settings.max_update_norm,
            combine_robustly=combine_robustly,
            wants_receipts=witness is not None,
        )
        self._witness = witness
        self._sums = sums
        self._secure: SecureRound | None = None
        self._results: Mapping[SiteId, Signed] = {}
        self._opening: Opening | None = None
        self._ended: Ended | None = None
        # What this thread has written or heard itself, it needn't ask the database for.
        self._resumed = True
        self._newest_release: ReleaseRecord | None = None
        self._attachments = Attachments(registry.blobs)
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
            self._trained[kept.site] = reply_of(kept)
        return known

    def _open(self, record: JobRecord) -> AttemptRecord:
        number, attempt = record.job.round, record.job.attempt
        cohort = record.job.cohort()
        fresh = round_machine.opened(number, attempt, quorum=record.job.quorum, cohort=cohort, secure=self.is_secure)
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

    def witnessed(self, attempt: AttemptRecord) -> AttemptRecord:
        """Return the attempt once a quorum of others has seen how the round before ended; abandoned where none does.

        Raises:
            Interrupted: The job ended meanwhile, or the service stops.
        """
        self._opening = None
        if self._witness is None or not attempt.round.is_collecting:
            return attempt
        self._opening = self._witness.opening(
            self.job, self._ended_before(attempt), timeout_s=self.left_s(attempt), goes_on=self._goes_on
        )
        if self._opening is not None:
            return attempt
        if not self._goes_on():
            raise Interrupted
        return self.abandon(attempt, f"not witnessed: {self._witness.lacking()}", "CFD-R91")

    def _goes_on(self) -> bool:
        return self._store.jobs.get(self.job).job.state in (JobState.RUNNING, JobState.PAUSED)

    def _ended_before(self, attempt: AttemptRecord) -> Ended | None:
        """Return how the round before ended, from the store where this thread didn't see it itself."""
        number = attempt.round.number
        if number == 0:
            return None
        if self._ended is None or self._ended.round != number - 1:
            release = self._newest()
            record = decode_body("release", release.record)
            survivors = [SiteId(site) for site in record.survivors] if isinstance(record, Release) else []
            carrier = Phase.MASK if self.is_secure else Phase.TRAIN
            kept = self._store.rounds.replies(self.job, release.round, release.attempt, carrier)
            replies = {reply.site: reply_of(reply) for reply in kept}
            self._ended = Ended(self.job, release.round, release.attempt, receipts_of(replies, survivors))
        return self._ended

    # --- 2: requests ------------------------------------------------------------------------------------------

    def training_requests(self, attempt: AttemptRecord) -> dict[SiteId, PhaseRequest]:
        """Return the request to train for every site that hasn't answered this attempt."""
        if not attempt.round.is_collecting:
            return {}
        left_s, release = self.left_s(attempt), self._newest()
        return {
            site: self._opened(site, self._request(attempt, Phase.TRAIN, release, left_s))
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
            attached=self._attachments.of(release),
        )

    def _opened(self, site: SiteId, request: PhaseRequest) -> PhaseRequest:
        """Return a request to train with what shows the site that the round may open."""
        if self._opening is None:
            return request
        carried = {
            "before": self._opening.before.hex(),
            "model": self._opening.model.hex(),
            "receipt": self._opening.places.get(site),
        }
        return request.model_copy(update=carried)

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
        if not attempt.round.is_collecting:
            return attempt
        found = attempt.round
        actions: tuple[round_machine.RoundStep, ...] = ()
        for site, reply in self._again(attempt).items():
            found, actions = round_machine.step(found, self._judge(attempt, site, reply))
        while not _decided(found):
            outcome = next(heard, None)
            if outcome is None:
                found, actions = round_machine.step(found, round_machine.DeadlinePassed())
            elif outcome.reply is not None:
                self._keep(outcome)
                self._trained[outcome.site] = outcome.reply
                found, actions = round_machine.step(found, self._judge(attempt, outcome.site, outcome.reply))
            elif outcome.refused is not None:
                self._broke(attempt, outcome.site, Phase.TRAIN, outcome.refused)
                bad = round_machine.FoundBad(outcome.site, f"training, {cause_of(outcome.refused)}")
                found, actions = round_machine.step(found, bad)
            elif outcome.silence is Silence.LOST:
                found, actions = round_machine.step(found, round_machine.SiteLost(outcome.site))
        return self._closed(attempt, found, actions)

    def _judge(
        self, attempt: AttemptRecord, site: SiteId, reply: PhaseReply
    ) -> round_machine.Answered | round_machine.FoundBad:
        """Return what an answer to the training is; an update is recorded where it is judged, a failure here."""
        if reply.outcome is Outcome.FAILED:
            self._broke(attempt, site, Phase.TRAIN, None if reply.reason is None else reply.reason.code)
        return self._updates.judge(site, reply)

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

    def _again(self, attempt: AttemptRecord) -> dict[SiteId, PhaseReply]:
        """Return the answers that were stored before the sites were asked, so that nobody is waited for in vain."""
        if self._resumed:
            for kept in self._replies(attempt, Phase.TRAIN):
                self._trained[kept.site] = reply_of(kept)
        return dict(self._trained)

    def _keep(self, heard: Heard) -> None:
        """Store a reply that didn't come by way of the service, which stores before it acknowledges."""
        if heard.reply is not None and not heard.is_stored:
            keep_reply(self._store, heard.site, heard.reply, body=encode_body(heard.reply), signature=b"")

    def _replies(self, attempt: AttemptRecord, phase: Phase) -> list[ReplyRecord]:
        return self._store.rounds.replies(self.job, attempt.round.number, attempt.round.attempt, phase)

    # --- 5: the secure sum -------------------------------------------------------------------------------------

    @property
    def is_secure(self) -> bool:
        """Return whether the sites' updates are summed under masks."""
        return self.plan.secure_aggregation.enabled

    def secure_sum(self, attempt: AttemptRecord, exchange: Exchange, folder: Path) -> Summed:
        """Return the unmasked sum of the survivors' vectors; nobody here has seen any of them.

        Raises:
            SumFailed: Nothing is published of this attempt.
            OutOfOrder: This engine runs no secure sums.
        """
        if self._sums is None:
            raise OutOfOrder("CFD-G01", "this engine runs no secure sums")
        at = attempt

        def request(phase: Phase, wait_s: float, sum_id: str) -> PhaseRequest:
            made = self._request(at, phase, self._newest(), wait_s)
            if phase is not Phase.CONSENT or self._witness is None:
                return made
            return made.model_copy(update={"roster": self._witness.show_roster(sum_id, timeout_s=wait_s).hex()})

        def missed(site: SiteId, phase: Phase, code: str, lost: bool) -> None:
            self._recorder.site_missed(at, site, phase.value, code=code_text(code, other="CFD-R54"), lost=lost)

        self._secure = SecureRound(
            self.job,
            self.plan,
            self._plan_digest,
            self._first.manifest,
            self._store,
            self._registry.blobs,
            self._sums,
            self._phase_s(),
            self._new_message_id,
            request,
            self._updates.check_masked,
            missed,
            self._recorder,
        )
        for kept in self._replies(attempt, Phase.TRAIN) if self._resumed else ():
            self._trained[kept.site] = reply_of(kept)
        summed = self._secure.sum(attempt, exchange, model_digest=self._newest().model_digest, folder=folder)
        for site, upload in summed.uploads.items():
            told = self._trained.get(site, upload)
            self._trained[site] = told.model_copy(update={"update": upload.update, "receipt": upload.receipt})
        return summed

    def mean_of_sum(self, summed: Summed, folder: Path) -> Path:
        """Write the mean that the sum's words give; every site makes the same."""
        mean = folder / "mean.safetensors"
        write_mean(summed.words, self.plan, self._first.manifest, len(summed.survivors), mean)
        return mean

    def publish_sum(self, summed: Summed, stepped: Stepped) -> None:
        """Record and sign the result of the sum: it leads to this model."""
        if self._secure is not None:
            receipts = receipts_of(self._trained, summed.survivors)
            self._results = self._secure.publish(stepped.model_digest, receipts)

    def conclude_sum(self, attempt: AttemptRecord, exchange: Exchange) -> None:
        """Show the sites that revealed the signed result, so that they check it; nothing here depends on them."""
        results, self._results = self._results, {}
        self._secure = None
        requests = {
            site: self._request(attempt, Phase.CONCLUDE, self._newest(), self._phase_s()).model_copy(
                update={"signed": (message.pack().hex(),)}
            )
            for site, message in results.items()
        }
        for heard in exchange.ask(requests, timeout_s=min(self._phase_s(), CONCLUDE_S)):
            if heard.reply is not None:
                self._keep(heard)
                if heard.reply.outcome is Outcome.FAILED:
                    reason = heard.reply.reason
                    self._broke(attempt, heard.site, Phase.CONCLUDE, None if reason is None else reason.code)

    # --- 5 and 6: mean and server step ------------------------------------------------------------------------

    def mean(self, attempt: AttemptRecord, folder: Path) -> Path:
        """Write the mean of the survivors' updates, and of nobody else's, to a file in `folder`."""
        return self._updates.mean(attempt.round.summed, self._trained, folder)

    def server_step(self, mean: Path, folder: Path, *, words: Path | None = None) -> Stepped:
        """Return the model after the server step on `mean`; the newest release stays as it is.

        `words` are those of the secure sum that the mean was made of.
        """
        return self._registry.step(mean_strategy(self.plan.server), self._newest(), mean, folder, words=words)

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
            weights={site: self._updates.weight(site) for site in round_.summed},
        )
        receipts = None if self._witness is None else receipts_of(self._trained, round_.summed)
        self._recorder.released(release, before.model_digest, self.plan, receipts=receipts)
        seconds = (self._store.database.now_us() - attempt.opened_us) / 1e6
        fact = {"round": round_.number, "model": release.model_digest, "seconds": round(seconds, 3)}
        now_us = self._store.database.now_us()
        evaluate_by_us = now_us + round(self._phase_s() * 1e6) if self._is_evaluated(attempt) else None
        saved = self._store.releases.save(release, [("round.released", fact)], evaluate_by_us=evaluate_by_us)
        self._newest_release = None
        if self._witness is not None:
            self._ended = Ended(self.job, round_.number, round_.attempt, receipts or {})
            self._witness.announce(about_of(self.job, self._ended), self._ended)
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
        figures = Figures(plan.release)
        missing = set(asked)
        for kept in self._replies(attempt, Phase.EVALUATE) if self._resumed else ():
            missing.discard(kept.site)
            figures.take(kept.site, reply_of(kept))
        while missing and (outcome := next(heard, None)) is not None:
            missing.discard(outcome.site)
            if outcome.reply is not None:
                self._keep(outcome)
                figures.take(outcome.site, outcome.reply)
                if outcome.reply.outcome is Outcome.FAILED:
                    reason = outcome.reply.reason
                    self._broke(attempt, outcome.site, Phase.EVALUATE, None if reason is None else reason.code)
            elif outcome.refused is not None:
                self._broke(attempt, outcome.site, Phase.EVALUATE, outcome.refused)
                figures.refused(outcome.site, outcome.refused)
            else:
                self._missed(attempt, outcome.site, Phase.EVALUATE, lost=outcome.silence is Silence.LOST)
        names: list[str] = list(plan.metrics)
        found = figures.metrics(names, quorum=attempt.round.quorum)
        at = (attempt.round.number, attempt.round.attempt)
        document = canonical.encode({name: None if value is None else value.hex() for name, value in found.items()})
        self._recorder.evaluated(self.job, *at, document, names)
        facts = [
            ("site.bad", {"round": at[0], "site": site, "reason": f"evaluation, {why}"})
            for site, why in figures.bad.items()
        ]
        self._store.releases.save_metrics(self.job, release.step, at=at, metrics=found, facts=facts)
        self._newest_release = replace(release, metrics=found)

    def _missed(self, attempt: AttemptRecord, site: SiteId, phase: Phase, *, lost: bool) -> None:
        code = "CFD-R09" if lost else "CFD-R08"
        self._recorder.site_missed(attempt, site, phase.value, code=code, lost=lost)

    def _broke(self, attempt: AttemptRecord, site: SiteId, phase: Phase, code: str | None) -> None:
        """Record that a site answered with a failure, or refused the request, and so is missing in the phase."""
        self._recorder.site_missed(attempt, site, phase.value, code=code_text(code or "", other="CFD-R54"), lost=False)

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
        self._updates.forget(round_.number)
        if self.is_secure:
            self._store.sums.forget(self.job, round_.number)
        if self._newest().step > self._settings.models_kept_count:
            kept_count = self._settings.models_kept_count
            retention.forget_models(self._store, self._registry.blobs, self.job, kept_count=kept_count)
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

    def wind_up(self) -> None:
        """Abandon the attempt that an ended job left open, and let go of its updates."""
        record = self._store.jobs.get(self.job)
        if record.job.state not in job_machine.ENDS:
            return
        attempt = self._store.rounds.get(self.job, record.job.round, record.job.attempt)
        if attempt is not None and attempt.round.state not in round_machine.ENDS:
            self.abandon(attempt, f"the job was {record.job.state}", "CFD-R05")
            self._updates.forget(attempt.round.number)

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


def _decided(round_: Round) -> bool:
    return round_.closed or round_.state in round_machine.ENDS


def _abandoned_fact(round_: Round) -> dict[str, Any]:
    late = {str(site): why for site, why in round_.late.items()}
    return {"round": round_.number, "attempt": round_.attempt, "reason": round_.reason, "late": late}
