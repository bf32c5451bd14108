"""A simulated job run to its end in the test's own process: all of it but Ray. Flower must be quiet before."""

import threading
from pathlib import Path
from typing import Any

import confide_simulation
from coordinator import simulation
from coordinator.simulation import Happened, Result
from federation import flower
from federation.contract import DataContract
from federation.edge.clock import SystemClock
from federation.plan import Plan
from tests.support.virtual_engine import InProcessEngine, an_order


class Simulated:
    """One simulation.

    Args:
        folder: For its files; made here.
        plan: As a person writes it.
        contract: Its data contract.
        sites: Number of virtual sites.
        order: Changes of the order.
        engine: How the engine behaves; see `InProcessEngine`.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        contract: DataContract,
        *,
        sites: int | None = None,
        order: dict[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        from coordinator.virtual_grid import simulated_app

        self.plan = simulation.simulated_plan(plan, contract, sites=sites)
        self.folder = folder
        self.order = an_order(self.plan, contract, folder, **(order or {}))
        self.said: list[Any] = []
        clock = SystemClock()
        self.job, client_app, self.answers = confide_simulation.prepare(self.order, clock=clock, say=self.said.append)
        self.engine = InProcessEngine(client_app, len(self.plan.sites.invite), **engine)
        course = confide_simulation.Course(self.order, self.job, False, self.said.append, clock, clock.monotonic_s())
        app = simulated_app(
            self.job.work, self.job.depot, clock, workers=2, up_s=5, course=course, stop=threading.Event()
        )
        if self.job.begin(self.answers):
            app(self.engine, flower.context_for("simulation", "coordinator"))
        else:
            course.over(None)

    @property
    def result(self) -> Result:
        """Return what came of it."""
        assert isinstance(self.said[-1], Result), self.said[-1]
        return self.said[-1]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the fields of every event of a name."""
        return [line.event.fields for line in self.said if isinstance(line, Happened) and line.event.name == name]
