"""What a virtual site does in the phases of a round: the site's own code, without its daemon, its log and its ledger.

Releases are followed and verified as at a real site (`site_client.lineage`), and training and evaluation are those of
the real trainer (`site_client.work.JobWork`), with the same engine and the same noise. What is simulated: rows come
from the simulation's files instead of a data set with a receipt, steps are charged in memory, and an update goes into
a shared folder instead of over the link. No audit entry is written here, since no data set is opened.

All virtual sites of a worker process share one `Workbench`: libraries, model, engine checks and the followed releases
cost once. A site's own are its name, its rows and its ledger.
"""

import contextlib
import functools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from federation import plan as plans
from federation.contract import from_canonical, width
from federation.edge.clock import Clock
from federation.link.chunks import BlobHasher
from federation.messages import BlobReference, JobId, Outcome, Phase, PhaseReply, PhaseRequest, Reason, encode_body
from federation.tensors import check_update
from privacy.errors import PrivacyError
from site_client import lineage
from site_client.data.loader import OpenedData
from site_client.lineage import Followed
from site_client.stored import Applied
from site_client.trainer import WorkEnded
from site_client.trainer_messages import Begin, Failed, Line, ReceiptSource, Setup
from site_client.virtual_files import RowFiles
from site_client.virtual_ledger import NO_BUDGET, Charged, Use, VirtualLedger
from site_client.virtual_rows import Rows
from site_client.virtual_sites import VirtualJob, declared_units
from site_client.work import JobWork

DEADLINE: Final = "CFD-R47"
_LEASE_STEPS: Final = 10
_NOBODY: Final = "virtual"
_PIECE_BYTES: Final = 1 << 20
_USES: Final[dict[Phase, Use]] = {Phase.TRAIN: "train", Phase.EVALUATE: "evaluate"}


@dataclass(frozen=True, slots=True)
class Turn:
    """The phase that a trainer does now: whose rows, whose ledger, until when."""

    site: str
    rows: Rows
    ledger: VirtualLedger
    use: Use
    until_s: float


class Charger:
    """Charges the steps of whose turn it is; stands where a real trainer has the pipe to its daemon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turn: Turn | None = None

    def say(self, line: Line) -> None:
        """Take a line; a simulation keeps no account of them."""

    def ask_steps(self, steps: int) -> int:
        """Return how many steps the ledger of the site charged.

        Raises:
            WorkEnded: None is left, or the phase has closed.
        """
        self.check_wanted()
        given = 0 if self.turn is None else self.turn.ledger.charge(self.turn.use, steps)
        if not given:
            raise WorkEnded(NO_BUDGET)
        return given

    def check_wanted(self) -> None:
        """Return if the phase is still open.

        Raises:
            WorkEnded: It has closed.
        """
        if self.turn is None or self._clock.now().timestamp() > self.turn.until_s:
            raise WorkEnded(DEADLINE)


class VirtualTrainer(JobWork):
    """The trainer of all virtual sites that declared the same size; they take turns."""

    def __init__(self, setup: Setup, clock: Clock) -> None:
        self._charger = Charger(clock)
        super().__init__(setup, self._charger, clock=clock)

    def take_turn(self, turn: Turn, request: PhaseRequest, model: Path, output: Path) -> PhaseReply:
        """Do one phase for the site of `turn` and return its reply, without an update's reference."""
        self._setup = self._setup.model_copy(update={"site": turn.site})
        self._charger.turn = turn
        begin = Begin(
            request=encode_body(request).hex(), model=str(model), output=str(output), receipt_index=0, receipt_leaf=""
        )
        try:
            done = self.run(begin)
        finally:
            self._charger.turn = None
        failed = isinstance(done, Failed)
        return PhaseReply(
            message_id=secrets.token_hex(8),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=request.phase,
            outcome=Outcome.FAILED if failed else Outcome.DONE,
            reason=Reason(code=done.code) if isinstance(done, Failed) else None,
            reference=done.reference if isinstance(done, Failed) else None,
            steps=0 if isinstance(done, Failed) else done.steps,
            evaluation=None if isinstance(done, Failed) else done.evaluation,
            epsilon=self.epsilon(turn.ledger),
        )

    def epsilon(self, ledger: VirtualLedger) -> str | None:
        """Return what the site has spent on training, exactly as `float.hex`; None without noise."""
        return None if self._schedule is None else self._epsilon_after(ledger.charged.train)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 (a trainer lives as long as its process)
    def _epsilon_after(self, steps: int) -> str | None:
        return None if self._schedule is None else self._schedule.epsilon_after(steps).hex()

    def ledger(self, charged: Charged) -> VirtualLedger:
        """Return the ledger of a site that reserved the whole job."""
        return VirtualLedger(
            charged,
            train=0 if self._schedule is None else self._schedule.steps,
            evaluate=0 if self._evaluations is None else self._evaluations.evaluations,
        )

    @property
    def is_charged(self) -> dict[Use, bool]:
        """Return for each use whether its steps are charged."""
        return {"train": self._schedule is not None, "evaluate": self._evaluations is not None}

    def _open(self, request: PhaseRequest, begin: Begin) -> OpenedData:
        """Return the rows of whose turn it is: training or held-out ones, as `open_dataset` does for real ones."""
        if self._charger.turn is None:
            raise RuntimeError("no site has its turn")
        rows = self._charger.turn.rows
        chosen = rows.take(np.flatnonzero(rows.held_out == (request.phase is Phase.EVALUATE)))
        names, units = np.unique(chosen.units, return_inverse=True)
        if not len(names):
            raise WorkEnded("CFD-R52")
        return OpenedData(chosen.features, chosen.labels, units.astype(np.int64, copy=False), len(names))


class Workbench:
    """What the virtual sites that run in this process share.

    Args:
        job: The simulation.
        clock: The time.
    """

    def __init__(self, job: VirtualJob, clock: Clock) -> None:
        self._job = job
        self._clock = clock
        self._plan = plans.decode(bytes.fromhex(job.plan))
        contract = from_canonical(bytes.fromhex(job.contract))
        self._rows = RowFiles(Path(job.rows))
        folder = Path(job.scratch) / f"worker-{os.getpid()}"
        folder.mkdir(mode=0o700)
        self._lineage = lineage.Job(
            job=JobId(job.job),
            plan=self._plan,
            plan_digest=plans.digest(self._plan),
            coordinator=bytes.fromhex(job.coordinator),
            width=width(contract),
            classes=contract.label.classes_count,
            folder=folder,
        )
        self._manifest = self._lineage.manifest
        self._applied: Applied | None = None
        self._trainers: dict[int, VirtualTrainer] = {}

    def prepare(self) -> None:
        """Make the trainer that the first site needs, so that the first round doesn't wait for it."""
        # A site at which the plan makes no guarantee has refused; another one's trainer is made when it is asked.
        with contextlib.suppress(PrivacyError):
            self.trainer(declared_units(self._rows.site(self._plan.sites.invite[0])))

    def site(self, name: str, charged: Charged, *, until_s: float) -> "VirtualSite":
        """Return one site for one message."""
        return VirtualSite(self, name, charged, until_s)

    def rows(self, site: str) -> Rows:
        """Return a site's rows."""
        return self._rows.site(site)

    def trainer(self, units_declared: int) -> VirtualTrainer:
        """Return the trainer for sites of a declared size, made once.

        Raises:
            PrivacyError: The plan makes no guarantee at this size, or the model or engine failed a check.
        """
        known = self._trainers.get(units_declared)
        if known is None:
            known = self._trainers[units_declared] = VirtualTrainer(self._setup(units_declared), self._clock)
        return known

    def _setup(self, units_declared: int) -> Setup:
        job = self._job
        return Setup(
            job=job.job,
            site=_NOBODY,
            home=job.scratch,
            plan=job.plan,
            contract=job.contract,
            dataset=_NOBODY,
            version="sha256:" + "0" * 64,
            units_declared=units_declared,
            held_out_public=job.held_out_public,
            threads=job.threads,
            lease_steps=_LEASE_STEPS,
            memory_bytes=0,
            accelerators=0,
            audit=ReceiptSource(origin="", boot="", writer_key=""),
        )

    def follow(self, request: PhaseRequest) -> Followed:
        """Return the model that the request's release leads to, verified as at a real site.

        Raises:
            LineageRefused: It doesn't follow from what was released before.
        """
        followed = lineage.follow(
            self._lineage,
            newest=request.release,
            signature=bytes.fromhex(request.release_signature),
            round_number=request.round,
            applied=self._applied,
            fetch=lambda reference: Path(self._job.releases) / reference.root,
        )
        self._applied = followed.applied
        lineage.forget_older(self._lineage, followed.applied)
        return followed

    def update_file(self, site: str) -> Path:
        """Return a new name for a site's update in the shared folder."""
        return Path(self._job.updates) / f"{site}-{secrets.token_hex(8)}.safetensors"

    def checked(self, update: Path, site: str) -> BlobReference:
        """Return the reference of an update that has the layout of the model, as a real site checks before sending."""
        check_update(update, self._manifest, site=site)
        hasher = BlobHasher()
        with update.open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                hasher.update(piece)
        return hasher.finish()[0]

    @property
    def weights_declared(self) -> bool:
        """Return whether the plan weighs sites by their declared size."""
        return self._plan.weights == "declared"

    @property
    def local_steps(self) -> int:
        """Return the steps of one training phase."""
        return self._plan.training.local_steps


class VirtualSite:
    """One site, for one message; the `SiteWork` behind its `ClientApp`."""

    def __init__(self, bench: Workbench, name: str, charged: Charged, until_s: float) -> None:
        self._bench = bench
        self._name = name
        self._charged = charged
        self._until_s = until_s
        self.file = ""

    def train(self, request: PhaseRequest) -> PhaseReply:
        """Train from the released model; the update lies in the shared folder under `file`."""
        update = self._bench.update_file(self._name)
        reply, units = self._do(request, update, steps=self._bench.local_steps)
        if reply.outcome is Outcome.FAILED:
            return reply
        reference = self._bench.checked(update, self._name)
        self.file = update.name
        weight = units if self._bench.weights_declared else 1
        return reply.model_copy(update={"update": reference, "weight": weight})

    def evaluate(self, request: PhaseRequest) -> PhaseReply:
        """Score the released model on the held-out rows."""
        return self._do(request, self._bench.update_file(self._name), steps=1)[0]

    def _do(self, request: PhaseRequest, output: Path, *, steps: int) -> tuple[PhaseReply, int]:
        rows = self._bench.rows(self._name)
        units = declared_units(rows)
        trainer = self._bench.trainer(units)
        ledger, use = trainer.ledger(self._charged), _USES[request.phase]
        if trainer.is_charged[use] and ledger.remaining(use) < steps:
            raise WorkEnded(NO_BUDGET)
        turn = Turn(self._name, rows, ledger, use, self._until_s)
        followed = self._bench.follow(request)
        return trainer.take_turn(turn, request, followed.model, output), units
