"""What the trainer does in a phase: read with the receipt, take charged steps, write the update or count scores.

The phases are the handlers of a Flower `ClientApp` (`site_client.flower_client`); this is the `SiteWork` behind it.
Everything that holds for all rounds of the job (plan, model, device, engine checks, noise streams) is made once, so a
round costs no import. Nothing of the data leaves but the trained tensors after the last noisy step, or counts with
charged noise; the daemon, not this process, talks to anybody.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from audit.receipt import Receipt, ReceiptGuard
from federation import plan as plans
from federation.contract import digest as contract_digest
from federation.contract import from_canonical, width
from federation.edge.clock import Clock, SystemClock
from federation.messages import EvaluationCounts, Outcome, Phase, PhaseReply, PhaseRequest, decode_body
from federation.models import modules
from federation.tensors import Array, TensorFile, UpdateRefused, make_update, write_tensors
from privacy.accounting.schedule import Schedule
from privacy.dpsgd.allowance import LeasedSteps
from privacy.dpsgd.batches import Units
from privacy.dpsgd.functional import PerUnitGradients, trainable
from privacy.dpsgd.optimizers import optimizer_for
from privacy.dpsgd.plain import plain_round
from privacy.dpsgd.preflight import preflight
from privacy.dpsgd.step import noisy_round
from privacy.errors import StateChanged
from privacy.noise.keystream import StepStreams
from privacy.releases.evaluation import LOSS_SCALE, Scores, charged_counts, exact_counts
from site_client import offers
from site_client.accelerators import choose_device, describe, release_memory
from site_client.data.loader import OpenedData, open_dataset
from site_client.flower_client import ask, make_client_app
from site_client.trainer import WorkEnded, code_of, report
from site_client.trainer_messages import Begin, DataClosed, Done, Failed, LeaseDone, Line, Setup

LOSS_CLAMP: Final = 4.0
"""Largest loss of one unit in an evaluation: a public constant, far above the 0.69 of a coin."""
NO_USABLE_UNITS: Final = "CFD-R52"
NOT_FINITE: Final = "CFD-R57"
_SYNTHETIC_UNITS: Final = 8


class Charging(Protocol):
    """Whoever charges steps and is told of them: the daemon behind `site_client.trainer.Pipe`, or a simulation."""

    def say(self, line: Line) -> None:
        """Take one line."""
        ...

    def ask_steps(self, steps: int) -> int:
        """Return how many more steps are charged; raises `WorkEnded` where none are, or none are wanted."""
        ...

    def check_wanted(self) -> None:
        """Return if the phase is still wanted; raises `WorkEnded` if it isn't."""
        ...


class Steps(LeasedSteps):
    """Charged steps that also end where the daemon wants no further one."""

    def __init__(self, planned: int, pipe: Charging, *, at_a_time: int) -> None:
        self._pipe = pipe
        super().__init__(planned, pipe.ask_steps, lambda steps: pipe.say(LeaseDone(steps=steps)), at_a_time=at_a_time)

    def take(self) -> None:
        """Take one charged step.

        Raises:
            WorkEnded: The phase is not wanted any more, or the budget gives no step.
        """
        self._pipe.check_wanted()
        super().take()


@dataclass(slots=True)
class _Running:
    """The phase under way."""

    begin: Begin
    steps: int = 0
    failure: Failed | None = field(default=None)


class JobWork:
    """The phases of one job in this process.

    Raises:
        PrivacyError: The model or the engine failed a check; no data may be opened.
    """

    def __init__(self, setup: Setup, pipe: Charging, *, clock: Clock | None = None) -> None:
        self._setup = setup
        self._pipe = pipe
        self._clock = clock or SystemClock()
        self._home = Path(setup.home)
        self._plan = plans.decode(bytes.fromhex(setup.plan))
        self._contract = from_canonical(bytes.fromhex(setup.contract))
        self._width = width(self._contract)
        self._classes = self._contract.label.classes_count
        self._guard = ReceiptGuard(origin=setup.audit.origin, boot=setup.audit.boot)
        torch.set_num_threads(setup.threads)
        # The same setting as `use_deterministic_algorithms`, which would import torch's compiler: two more seconds.
        torch.set_deterministic_debug_mode("warn")
        self._device = choose_device(setup.accelerators)
        self._model = modules.build(self._plan.model, self._width, self._classes).to(self._device)
        self._schedule = offers.training_schedule(self._plan, setup.units_declared)
        self._evaluations = offers.evaluations_of(self._plan, setup.held_out_public)
        self._streams = StepStreams()
        self._gradients = self._checked(self._schedule)
        self.engine: Final = "plain/1" if self._gradients is None else self._gradients.version
        self.device_name: Final = describe(self._device)
        self.versions: Final = {"torch": torch.__version__, "numpy": np.__version__}
        self._app = make_client_app(self, new_reference=lambda: secrets.token_hex(6), report=self._report)
        self._running: _Running | None = None

    def _checked(self, schedule: Schedule | None) -> PerUnitGradients | None:
        if schedule is None:
            return None
        autocast = torch.bfloat16 if self._plan.training.precision == "bfloat16" else None
        return preflight(self._model, modules.loss, self._synthetic(), schedule, autocast=autocast).gradients

    def _synthetic(self) -> Units:
        """Return units made of the contract alone: a fixed pattern, no data, no randomness."""
        grid = torch.arange(_SYNTHETIC_UNITS * self._width, dtype=torch.float32, device=self._device)
        inputs = torch.sin(1.0 + grid).reshape(_SYNTHETIC_UNITS, self._width)
        classes = torch.arange(_SYNTHETIC_UNITS, device=self._device) % self._classes
        return Units.of_records(inputs, self._targets(classes))

    def _targets(self, labels: Tensor) -> Tensor:
        return labels.to(torch.float32 if self._classes == 2 else torch.int64)

    # --- one phase --------------------------------------------------------------------------------------------

    def run(self, begin: Begin) -> Done | Failed:
        """Do one phase and return what came of it."""
        request = cast("PhaseRequest", decode_body("phase-request", bytes.fromhex(begin.request)))
        self._running = _Running(begin)
        try:
            reply = ask(self._app, request, site=self._setup.site, now_s=self._clock.now().timestamp())
        finally:
            running, self._running = self._running, None
            release_memory(self._device)
        if running.failure is not None:
            return running.failure
        if reply.outcome is Outcome.FAILED:
            code = reply.reason.code if reply.reason is not None else "CFD-R54"
            return Failed(code=code, reference=reply.reference or "unknown")
        return Done(steps=reply.steps, evaluation=reply.evaluation)

    def train(self, request: PhaseRequest) -> PhaseReply:
        """Train from the begun model and write the update; the handler of Flower's ``train``."""
        running = self._current()
        data = self._open(request, running.begin)
        base = self._load(Path(running.begin.model))
        units = self._units(data)
        trained = self._trained(request, units)
        result = {**base, **{name: _array(tensor) for name, tensor in trained.items()}}
        update = make_update(base, result, site=self._setup.site)
        write_tensors(Path(running.begin.output), update)
        return _done(request, steps=self._plan.training.local_steps)

    def evaluate(self, request: PhaseRequest) -> PhaseReply:
        """Score the begun model on the held-out units; the handler of Flower's ``evaluate``."""
        running = self._current()
        data = self._open(request, running.begin)
        self._load(Path(running.begin.model))
        scores = self._scores(self._units(data))
        return _done(request, evaluation=self._counts(scores))

    def _current(self) -> _Running:
        if self._running is None:
            raise RuntimeError("no phase is under way")
        return self._running

    def _report(self, _request: PhaseRequest, reference: str, problem: BaseException) -> None:
        report(reference, problem)
        code = NOT_FINITE if isinstance(problem, UpdateRefused | StateChanged) else code_of(problem)
        self._current().failure = Failed(code=code, reference=reference)

    def _open(self, request: PhaseRequest, begin: Begin) -> OpenedData:
        source = self._setup.audit
        receipt = Receipt.reopen(
            origin=source.origin,
            index=begin.receipt_index,
            leaf=bytes.fromhex(begin.receipt_leaf),
            writer_key=source.writer_key,
        )
        data = open_dataset(
            self._home,
            dataset=self._setup.dataset,
            version=self._setup.version.removeprefix("sha256:"),
            contract_digest=contract_digest(self._contract),
            receipt=receipt,
            guard=self._guard,
            mode="train" if request.phase is Phase.TRAIN else "evaluate",
            job=request.job,
            round_number=request.round,
        )
        self._pipe.say(DataClosed(records=len(data.labels)))
        if data.units_count == 0:
            raise WorkEnded(NO_USABLE_UNITS)
        return data

    def _load(self, path: Path) -> dict[str, Array]:
        with TensorFile(path) as tensors:
            arrays = tensors.arrays()
        modules.load(self._model, arrays)
        return arrays

    def _units(self, data: OpenedData) -> Units:
        features = torch.from_numpy(np.ascontiguousarray(data.features)).to(self._device)
        labels = self._targets(torch.from_numpy(np.ascontiguousarray(data.labels)).to(self._device))
        if self._plan.privacy.unit != "entity":
            return Units.of_records(features, labels)
        index, mask = rows_of_units(data.units, data.units_count, self._plan.privacy.cap_rows)
        chosen = torch.from_numpy(index).to(self._device)
        return Units(features[chosen], labels[chosen], torch.from_numpy(mask).to(self._device))

    def _trained(self, request: PhaseRequest, units: Units) -> Mapping[str, Tensor]:
        training = self._plan.training
        settings = training.optimizer
        optimizer = optimizer_for(
            settings.name,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            proximal=settings.proximal,
        )
        if self._schedule is None or self._gradients is None:
            return plain_round(
                trainable(self._model),
                units,
                model=self._model,
                loss=modules.loss,
                optimizer=optimizer,
                local_steps=training.local_steps,
                batch=training.batch,
                seed=training.seed,
                site=self._setup.site,
                round_number=request.round,
            )
        steps = Steps(training.local_steps, self._pipe, at_a_time=self._setup.lease_steps)
        return noisy_round(
            trainable(self._model),
            units,
            schedule=self._schedule,
            gradients=self._gradients,
            optimizer=optimizer,
            lease=steps,
            streams=self._streams,
            average=training.average,
        ).parameters

    # --- evaluation -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _scores(self, units: Units) -> Scores:
        """Return one score, class and loss for each held-out unit; a unit's own are the means over its rows."""
        scores, losses, classes = [], [], []
        self._model.eval()
        for batch in units.micro_batches(1024):
            count, rows = batch.mask.shape
            outputs = self._model(batch.inputs.flatten(0, 1))
            targets = batch.targets.flatten(0, 1)
            weight = batch.mask.to(torch.float64)
            score, right = _score(outputs, targets)
            parts = (score, modules.loss(outputs, targets), right)
            means = [(part.to(torch.float64).reshape(count, rows) * weight).sum(1) / weight.sum(1) for part in parts]
            scores.append(means[0])
            losses.append(means[1])
            classes.append(means[2] >= 0.5)
        return Scores(
            score=_array(torch.cat(scores)).astype(np.float64),
            label=_array(torch.cat(classes)).astype(np.int64),
            loss=_array(torch.cat(losses)).astype(np.float64),
        )

    def _counts(self, scores: Scores) -> EvaluationCounts:
        evaluate = self._plan.evaluate
        if evaluate is None:
            raise WorkEnded("CFD-R46")
        if evaluate.release == "charged":
            if self._evaluations is None:
                raise WorkEnded("CFD-R46")
            self._pipe.ask_steps(1)
            counts = charged_counts(scores, loss_clamp=LOSS_CLAMP, noise_multiplier=self._evaluations.noise_multiplier)
            self._pipe.say(LeaseDone(steps=1))
        else:
            counts = exact_counts(scores, loss_clamp=LOSS_CLAMP)
        return EvaluationCounts(
            release=evaluate.release,
            bins=len(counts.histogram[0]),
            negatives=counts.histogram[0],
            positives=counts.histogram[1],
            loss_sum=(counts.loss_sum / LOSS_SCALE * counts.loss_clamp).hex(),
        )


def rows_of_units(units: Any, units_count: int, cap: int) -> tuple[Any, Any]:
    """Return which row stands where: indices [units, rows] int64 and a mask [units, rows] of the places in use.

    Args:
        units: [rows] int64, the unit of each row, 0 … `units_count` − 1.
        units_count: Number of units.
        cap: Most rows of one unit; further ones, in the order in which intake kept them, are left out.
    """
    order = np.argsort(units, kind="stable")
    counts = np.bincount(units, minlength=units_count)
    rows = int(min(cap, counts.max(initial=0))) or 1
    place = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = place < rows
    index = np.zeros((units_count, rows), dtype=np.int64)
    mask = np.zeros((units_count, rows), dtype=np.bool_)
    index[units[order][kept], place[kept]] = order[kept]
    mask[units[order][kept], place[kept]] = True
    return index, mask


def _score(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score of each row in [0, 1], and its class: the label, or whether the top class is right."""
    if outputs.ndim == 1:
        return torch.sigmoid(outputs), targets
    top, chosen = torch.softmax(outputs, dim=1).max(dim=1)
    return top, (chosen == targets).to(torch.float32)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()


def _done(request: PhaseRequest, *, steps: int = 0, evaluation: EvaluationCounts | None = None) -> PhaseReply:
    return PhaseReply(
        message_id=request.message_id,
        job=request.job,
        round=request.round,
        attempt=request.attempt,
        phase=request.phase,
        outcome=Outcome.DONE,
        steps=steps,
        evaluation=evaluation,
    )


__all__ = ["JobWork", "Steps", "rows_of_units"]
