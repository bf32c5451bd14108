"""The trainers of this site: one for a job, started before it is needed, kept over rounds, ended with the job."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from federation import plan as plans
from federation.edge.files import make_folder
from federation.messages import JobId
from site_client.jobs import JobFacts
from site_client.open_site import OpenSite
from site_client.trainer_messages import Ready, ReceiptSource, Setup
from site_client.trainer_process import TrainerEvent, TrainerProcess, trainer_environment

_GIB: Final = 1 << 30


@dataclass(slots=True)
class Trainer:
    """A trainer and what it said of itself once it had loaded."""

    process: TrainerProcess
    started_s: float
    ready: Ready | None = None


class Trainers:
    """The running trainers, by job.

    Args:
        site: The opened home.
        variables: This process's environment.
        post: Gets every line and every end of a trainer; called from other threads.
    """

    def __init__(self, site: OpenSite, *, variables: Mapping[str, str], post: Callable[[TrainerEvent], None]) -> None:
        self._site = site
        self._variables = variables
        self._post = post
        self._running: dict[JobId, Trainer] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._running)

    def of(self, job: JobId, generation: int) -> Trainer | None:
        """Return the job's trainer if it is the one of `generation`."""
        found = self._running.get(job)
        return found if found is not None and found.process.generation == generation else None

    def all(self) -> tuple[tuple[JobId, Trainer], ...]:
        """Return every running trainer."""
        return tuple(self._running.items())

    def for_job(self, facts: JobFacts) -> Trainer:
        """Return the job's trainer, started if there is none."""
        found = self._running.get(facts.job)
        if found is None:
            found = self._start(facts)
            self._running[facts.job] = found
        return found

    def _start(self, facts: JobFacts) -> Trainer:
        settings = self._site.configuration.training
        threads = settings.threads or max(1, (os.cpu_count() or 1) // settings.jobs_at_once)
        cache = make_folder(self._site.home.path / "cache")
        make_folder(facts.lineage.folder)
        self._generation += 1
        process = TrainerProcess(
            facts.job,
            self._generation,
            environment=trainer_environment(self._variables, cache=cache, threads=threads),
            log=self._site.home.logs / f"trainer-{facts.job}.log",
            post=self._post,
        )
        resources = facts.plan.resources
        limited = settings.limit_memory and resources.accelerators == 0
        log = self._site.records.log
        process.send(
            Setup(
                job=facts.job,
                site=self._site.site,
                home=str(self._site.home.path),
                plan=plans.canonical_bytes(facts.plan).hex(),
                contract=facts.contract_bytes.hex(),
                dataset=facts.terms.dataset,
                version=facts.terms.version,
                units_declared=facts.terms.units_declared,
                held_out_public=facts.terms.held_out_public,
                threads=threads,
                lease_steps=settings.lease_steps,
                memory_bytes=resources.memory_gib * _GIB if limited else 0,
                accelerators=resources.accelerators
                if settings.accelerators is None
                else min(resources.accelerators, settings.accelerators),
                audit=ReceiptSource(origin=log.origin, boot=log.boot, writer_key=log.writer_key),
            )
        )
        return Trainer(process, self._site.clock.monotonic_s())

    def gone(self, job: JobId) -> None:
        """Forget a trainer that has ended."""
        self._running.pop(job, None)

    def close(self, job: JobId) -> None:
        """End a job's trainer, if there is one, at once."""
        found = self._running.pop(job, None)
        if found is not None:
            found.process.kill()

    def close_all(self) -> None:
        """End every trainer at once."""
        for job in list(self._running):
            self.close(job)
