"""The virtual sites of a simulation, as the engine's workers know them: a path, and nothing that was loaded yet.

What all of them share lies in one file; the first message that a worker gets loads it, torch, the model and the
engine once (`site_client.virtual_work`), and every later one finds them. The object itself goes by pickle with every
message, so it holds the path only.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from federation.messages import HexBytes, JobName, PhaseRequest
from site_client.flower_client import VirtualSite
from site_client.trainer import report
from site_client.virtual_ledger import Charged
from site_client.virtual_rows import Rows

if TYPE_CHECKING:
    from site_client.virtual_work import Workbench

FILE: Final = "virtual-sites.json"


class VirtualJob(BaseModel):
    """What all virtual sites of a simulation share.

    Attributes:
        job: The job.
        plan: The plan's canonical bytes.
        contract: The contract's canonical bytes.
        coordinator: The simulated coordinator's identity key.
        rows: Folder of the rows (`virtual_files.RowFiles`).
        releases: Folder where the coordinator's releases and means lie under their roots.
        updates: Folder where sites put their updates.
        scratch: Folder for the workers' own files.
        held_out_public: Whether the held-out rows count as public: so they are in a simulation, whose rows are either
            made up or its owner's.
        threads: CPU threads that torch may use in a worker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    job: JobName
    plan: HexBytes
    contract: HexBytes
    coordinator: HexBytes
    rows: str
    releases: str
    updates: str
    scratch: str
    held_out_public: bool
    threads: int = 1


def declared_units(rows: Rows) -> int:
    """Return the public size that a virtual site declares: its units to train on, rounded to two digits."""
    from site_client.data.noisy_count import two_digits

    return two_digits(rows.units_count(held_out=False))


class VirtualSites:
    """All virtual sites of one simulation; see `flower_client.VirtualSites`.

    Args:
        folder: Holds the file of the `VirtualJob`.
    """

    def __init__(self, folder: str) -> None:
        self._folder: Final = folder

    def prepare(self) -> None:
        """Load libraries, model and engine in this process."""
        _workbench(self._folder).prepare()

    def site(self, name: str, charged: Charged, *, until_s: float) -> VirtualSite:
        """Return one site for one message."""
        return _workbench(self._folder).site(name, charged, until_s=until_s)

    def report(self, _request: PhaseRequest, reference: str, problem: BaseException) -> None:
        """Write where `problem` went through to the worker's log."""
        report(reference, problem)


@functools.lru_cache(maxsize=1)
def _workbench(folder: str) -> "Workbench":
    from federation.edge.clock import SystemClock
    from site_client.virtual_work import Workbench

    job = VirtualJob.model_validate_json((Path(folder) / FILE).read_bytes())
    return Workbench(job, SystemClock())
