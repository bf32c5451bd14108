"""A simulation in its own process: the one place that knows both roles, and gives Flower's engine an app of each.

Started by `coordinator.simulation_process` as a module, told by one order on standard input, heard by lines on
standard output. The coordinator's `ServerApp` and the sites' `ClientApp` are those of production; this module makes
the rows of the virtual sites, their answers to the offer, and what they share, and keeps what came of it.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator import simulation
from coordinator.simulation import Broken, Happened, Order, Result, Up
from coordinator.simulation_process import Voice, go_alone

if TYPE_CHECKING:
    from coordinator.simulated_job import SimulatedJob
    from federation.contract import DataContract
    from federation.edge.clock import Clock
    from federation.messages import Answer, SiteId
    from federation.plan import Plan
    from site_client.virtual_rows import Rows

LOG_FOLDER: Final = "audit"
MODEL_FILE: Final = "model.safetensors"
RESULT_FILE: Final = "simulation.json"


def rows_of_sites(order: Order, plan: "Plan", contract: "DataContract") -> "Iterator[tuple[str, Rows]]":
    """Yield each virtual site's rows: the given data's, divided, or made-up ones.

    Raises:
        InvalidInput: The data can't be read, break the contract, or are too few.
    """
    from site_client.synthetic_rows import SyntheticRows
    from site_client.virtual_rows import divide

    entities = plan.privacy.unit == "entity"
    if order.data is not None:
        yield from divide(_given_rows(order.data, contract, entities), plan.sites.invite, seed=plan.training.seed)
        return
    synthetic = SyntheticRows(contract, seed=plan.training.seed, entities=entities)
    held_out = 0 if plan.evaluate is None else -(-order.units // 4)
    for site in plan.sites.invite:
        yield site, synthetic.of(site, train=order.units, held_out=held_out)


def _given_rows(given: simulation.GivenData, contract: "DataContract", entities: bool) -> "Rows":
    import hashlib

    from federation.edge.documents import read_document
    from site_client.data.data_map import DataMap, plain_map
    from site_client.data.definition import Definition, SplitByColumn, SplitByHash
    from site_client.data.intake import find, take_in
    from site_client.virtual_rows import Rows

    path = Path(given.path)
    if given.data_map is None:
        data_map = plain_map(contract, parquet=path.suffix == ".parquet")
    else:
        data_map = read_document(Path(given.data_map), DataMap)
    # A real site's key is secret; here the same rows shall be held out each time.
    key = hashlib.sha256(b"confide-simulation/held-out/v1").digest()
    split = SplitByHash(given.held_out, key) if given.split is None else SplitByColumn(given.split)
    definition = Definition(contract, data_map, contract.entity if entities else None, split)
    found = take_in(find(path, definition), definition).prepared
    return Rows(found.features, found.labels, found.units, found.held_out)


def answers_of(plan: "Plan", job: str, units: "Mapping[SiteId, int]") -> "dict[SiteId, Answer]":
    """Return what virtual sites answer to the offer, by the units that they declare.

    A site refuses where the plan makes no guarantee at its size, as a real one does; policies and budgets are nobody's.
    """
    by_size = {size: _answer(plan, job, size) for size in sorted(set(units.values()))}
    return {site: by_size[size].model_copy(update={"message_id": f"answer-{site}"}) for site, size in units.items()}


def _answer(plan: "Plan", job: str, units: int) -> "Answer":
    from federation import plan as plans
    from federation.messages import Decision, JobId, Reason
    from privacy.errors import PrivacyError
    from site_client import offers

    judged = offers.Judgement(Decision.ACCEPTED, plan=plan)
    epsilon = None
    try:
        schedule = offers.training_schedule(plan, units)
        offers.evaluations_of(plan, held_out_public=True)
        epsilon = None if schedule is None else schedule.epsilon_after(schedule.steps).hex()
    except PrivacyError as problem:
        judged = offers.refused(judged, Reason(code=problem.code, text=problem.text_for_others))
        units = 0
    answer = offers.answer_to(judged, message_id="answer", job=JobId(job), plan_digest=plans.digest(plan))
    return answer.model_copy(update={"units_declared": units, "epsilon": epsilon})


@dataclass(slots=True)
class Course:
    """Tells whoever started the simulation how it goes, and keeps what came of it; see `virtual_grid.Course`."""

    order: Order
    job: "SimulatedJob"
    alone: bool
    say: Callable[[simulation.Line], None]
    clock: "Clock"
    begun_s: float
    _over: threading.Lock = field(default_factory=threading.Lock, init=False)

    def up(self) -> None:
        """Say that the rounds begin."""
        self.say(
            Up(
                sites=len(self.job.plan.sites.invite),
                workers=self.order.workers,
                alone=self.alone,
                seconds=round(self.clock.monotonic_s() - self.begun_s, 3),
            )
        )

    def over(self, problem: BaseException | None) -> None:
        """Say how the simulation ended, once what stays is in its folder; the first word counts."""
        if not self._over.acquire(blocking=False):
            return
        if problem is not None:
            try:
                self.job.fail(getattr(problem, "code", "CFD-J12"))
                self.job.close()
            finally:
                self.say(_broken(problem))
            return
        result = self.job.result(simulation.SYNTHETIC if self.order.data is None else simulation.DIVIDED)
        self.job.close()
        self._keep(result)
        self.say(result)

    def _keep(self, result: Result) -> None:
        import json

        from federation.edge.files import write_whole

        if self.order.out is None:
            return
        out, newest = Path(self.order.out), self.job.newest()
        if newest is not None:
            shutil.copyfile(self.job.blobs.path(newest.model), out / MODEL_FILE)
        document = {"schema": "confide/simulation/v1", **simulation.summary(result)}
        write_whole(out / RESULT_FILE, (json.dumps(document, indent=2) + "\n").encode())


def _broken(problem: BaseException) -> Broken:
    """Return `problem` as it is told; the text of one that isn't ours stays in the log, it may hold values."""
    code, hint = getattr(problem, "code", ""), getattr(problem, "hint", "")
    if code and hint:
        return Broken(code=str(code), message=str(problem), hint=str(hint))
    return Broken(code="CFD-J12", message=f"the simulation met an error ({type(problem).__name__})", hint="")


def prepare(
    order: Order, *, clock: "Clock", say: Callable[[simulation.Line], None]
) -> "tuple[SimulatedJob, Any, Mapping[SiteId, Answer]]":
    """Return the job, the sites' `ClientApp` and the sites' answers; nothing runs yet.

    Raises:
        InvalidInput: The data of the order can't be used.
    """
    from coordinator.simulated_job import SimulatedJob
    from federation import plan as plans
    from federation.contract import from_canonical
    from federation.edge.files import write_whole
    from federation.messages import SiteId
    from site_client.flower_client import make_virtual_app
    from site_client.virtual_files import RowFiles
    from site_client.virtual_sites import FILE, VirtualJob, VirtualSites, declared_units

    folder = Path(order.folder)
    plan = plans.decode(bytes.fromhex(order.plan))
    contract = from_canonical(bytes.fromhex(order.contract))
    rows = RowFiles.write(folder / "rows", rows_of_sites(order, plan, contract))
    job = SimulatedJob(
        order.job,
        plan,
        contract,
        folder=folder,
        log_folder=(folder if order.out is None else Path(order.out)) / LOG_FOLDER,
        clock=clock,
        deadline_scale=float(simulation.turns(len(plan.sites.invite), order.workers)),
        tell=lambda event: say(Happened(event=event)),
    )
    (folder / "workers").mkdir(mode=0o700)
    shared = VirtualJob(
        job=order.job,
        plan=order.plan,
        contract=order.contract,
        coordinator=job.identity_public.hex(),
        rows=str(folder / "rows"),
        releases=str(job.depot.releases),
        updates=str(job.depot.updates),
        scratch=str(folder / "workers"),
        held_out_public=True,
    )
    write_whole(folder / FILE, shared.model_dump_json().encode())
    units = {SiteId(site): declared_units(rows.site(site)) for site in plan.sites.invite}
    return job, make_virtual_app(VirtualSites(str(folder))), answers_of(plan, order.job, units)


def run(order: Order, *, alone: bool, say: Callable[[simulation.Line], None]) -> None:
    """Run the simulation of `order`; every end of it is said."""
    from federation import flower
    from federation.edge.clock import SystemClock
    from federation.edge.logs import open_log
    from federation.errors import OutOfOrder

    clock = SystemClock()
    begun_s = clock.monotonic_s()
    log = open_log()
    flower.quieten_flower(Path(order.folder))
    try:
        job, client_app, answers = prepare(order, clock=clock, say=say)
    except Exception as problem:  # noqa: BLE001 (whatever it was, it is told, and its places are in the log)
        log.internal("simulation.failed", problem)
        say(_broken(problem))
        return
    course = Course(order, job, alone, say, clock, begun_s)
    try:
        from coordinator.virtual_grid import simulate

        if not job.begin(answers):
            course.over(None)
            return
        simulate(
            job.work,
            client_app,
            job.depot,
            clock,
            workers=order.workers,
            up_s=order.up_s,
            engine_folder=order.engine_folder,
            course=course,
        )
        course.over(OutOfOrder("CFD-J12", "the simulation engine ended before the rounds did"))
    except Exception as problem:  # noqa: BLE001 (as above)
        log.internal("simulation.failed", problem)
        course.over(problem)


def main() -> int:
    """Run one simulation, as the order on standard input says."""
    from federation.edge.clock import SystemClock

    voice = Voice(SystemClock())
    order = simulation.decode_order(voice.order())
    alone = go_alone()
    voice.end_with_parent((order.folder, order.engine_folder))
    run(order, alone=alone, say=voice.say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
