"""`confide job simulate`: the same job with virtual sites on this machine; no coordinator, no link, no site's data."""

import argparse
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coordinator import simulation
from coordinator.round_line import round_line
from coordinator.simulation import Broken, GivenData, Happened, Order, Result, Up
from coordinator.simulation_process import SimulationProcess, short_folder
from federation import contract as contracts
from federation import plan as plans
from federation.codes import CODES
from federation.contract import DataContract
from federation.edge.arguments import VerbParser
from federation.edge.clock import SystemClock
from federation.edge.configuration import environment
from federation.edge.documents import read_document
from federation.edge.files import make_folder, read_input
from federation.edge.tables import print_record, visible
from federation.errors import ConfideError, ConfigurationWrong, InvalidInput, OutOfOrder
from federation.plan import Plan

HELP: Final = """\
Run a job with virtual sites on this machine, before anybody real is asked.

usage: confide job simulate PLAN [options]

The coordinator's round loop and the sites' training are those of production, on Flower's simulation engine (Ray):
the same quorum and deadlines, the same clipping and noise, the same checks. There is no link, no policy, no real
budget, and no data set is opened: rows are made up from the contract's public ranges and categories, with a label
that depends on them, unless --data gives some to divide among the sites. Virtual sites train on the CPU.

  PLAN             the plan's file
  --sites N        virtual sites, 1 to 4096 (default: those that the plan invites); the quorum keeps its share
  --rounds R       rounds (default: the plan's); epsilon is spent over so many
  --contract FILE  the data contract (default: the one beside the plan)
  --data PATH      a file or folder of rows to divide; --map FILE says how it differs from the contract
  --held-out SHARE of the rows of --data (default 0.2), or --split COLUMN as in `confide site data add`
  --units N        units that each site trains on where rows are made up (default: four batches)
  --workers N      processes that train at once (default: one for each CPU)
  --up-s SECONDS   how long the sites may take to come up (default 180)
  --out DIR        a new folder for model.safetensors, simulation.json, the audit log and the log
  --format table|json

Example: confide job simulate job.yaml --sites 100 --rounds 2

Exit status: 0 completed, 1 failed, 2 input, 5 the sites did not come up, 78 the engine isn't installed.
"""
DEFAULT_UP_S: Final = 180.0
LOG: Final = "simulation.log"


def main(arguments: list[str]) -> int:
    """Run `confide job simulate`."""
    options = _options(arguments)
    if options is None:
        sys.stdout.write(HELP)
        return 0
    plan, contract = _documents(options)
    require_engine()
    with _orderly_end(), _folders(options.out) as (folder, engine_folder, log):
        order = _order(options, plan, contract, folder, engine_folder)
        _announce(options, plan)
        with SimulationProcess(order, variables=environment(), log=log, clock=SystemClock()) as process:
            result = _follow(process, options.format)
    print_record(simulation.summary(result), schema="confide/simulation/v1", form=options.format)
    return 0 if result.state == "completed" else 1


def _options(arguments: list[str]) -> argparse.Namespace | None:
    parser = VerbParser("confide job simulate", add_help=False)
    parser.add_argument("plan", nargs="?")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--sites", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--contract", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--map", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--held-out", type=float, default=0.2)
    parser.add_argument("--units", type=int)
    parser.add_argument("--workers", type=int, default=_cpus())
    parser.add_argument("--up-s", type=float, default=DEFAULT_UP_S)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.help:
        return None
    _check(options)
    return options


def _cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(options: argparse.Namespace) -> None:
    if options.plan is None:
        raise InvalidInput("CFD-G02", "which plan?", hint="confide job simulate job.yaml --sites 100")
    if options.data is None and (options.map is not None or options.split is not None):
        raise InvalidInput("CFD-G02", "--map and --split belong to --data")
    if options.data is not None and options.units is not None:
        raise InvalidInput("CFD-G02", "--units is for made-up rows; with --data the sites share what there is")
    for name, value, most in (("units", options.units, 1_000_000), ("workers", options.workers, 1024)):
        if value is not None and not 1 <= value <= most:
            raise InvalidInput("CFD-G02", f"--{name} {value}, 1 to {most} are possible")
    if not 0 <= options.held_out < 1:
        raise InvalidInput("CFD-G02", f"--held-out {options.held_out}, 0 to less than 1 is possible")
    if not 0 < options.up_s < float("inf"):
        raise InvalidInput("CFD-G02", f"--up-s {options.up_s} is no number of seconds")


def require_engine() -> None:
    """Raise `ConfigurationWrong` (CFD-J10) unless the simulation engine is installed; nothing of it is imported."""
    missing = [name for name in ("flwr", "ray", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"the simulation engine isn't installed: {', '.join(missing)} missing"
        raise ConfigurationWrong("CFD-J10", text, hint="pip install 'confide[simulation]'")


def _documents(options: argparse.Namespace) -> tuple[Plan, DataContract]:
    path = Path(options.plan)
    plan = plans.read(read_input(path, limit_bytes=1 << 20), source=path.name)
    contract = _contract(path, options.contract, plan.data.contract)
    return simulation.simulated_plan(plan, contract, sites=options.sites, rounds=options.rounds), contract


def _contract(plan: Path, named: Path | None, wanted: str) -> DataContract:
    """Return the contract in the file `named`, or the one beside the plan that has the name `wanted`."""
    if named is not None:
        return read_document(named, DataContract)
    folder = plan.resolve().parent
    for candidate in sorted([*folder.glob("*.yaml"), *(folder / "contracts").glob("*.yaml")]):
        try:
            found = read_document(candidate, DataContract)
        except ConfideError:
            continue  # another kind of document, or nobody's business here
        if found.name == wanted:
            return found
    raise InvalidInput("CFD-J04", f"no contract called {wanted} beside the plan", hint="give --contract FILE")


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """Let SIGTERM end the block like an error does, so that processes and folders are gone afterwards."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _folders(out: Path | None) -> Iterator[tuple[Path, Path, Path]]:
    """Give a folder for the simulation's files, one for the engine's, and the log's file; the folders are removed.

    The log stays, in `out` or in a folder of its own, where the simulation fails for a reason that only it tells.
    """
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise InvalidInput("CFD-J20", f"{out} is not empty", hint="name a new folder")
        make_folder(out)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="confide-simulation-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        engine_folder = short_folder()
        stack.callback(shutil.rmtree, engine_folder, ignore_errors=True)
        log = (folder if out is None else out) / LOG
        try:
            yield folder, engine_folder, log
        except OutOfOrder as problem:
            kept = _kept(log, out)
            raise OutOfOrder(problem.code, problem.message, hint=f"see {kept}", reference=problem.reference) from None


def _kept(log: Path, out: Path | None) -> Path:
    if out is not None or not log.exists():
        return log
    return Path(shutil.copy(log, Path(tempfile.mkdtemp(prefix="confide-log-")) / LOG))


def _order(options: argparse.Namespace, plan: Plan, contract: DataContract, folder: Path, engine_folder: Path) -> Order:
    given = None
    if options.data is not None:
        given = GivenData(
            path=str(options.data.absolute()),
            data_map=None if options.map is None else str(options.map.absolute()),
            split=options.split,
            held_out=options.held_out if plan.evaluate is not None else 0.0,
        )
    return Order(
        job=f"{plan.name}-{secrets.token_hex(3)}",
        plan=plans.canonical_bytes(plan).hex(),
        contract=contracts.canonical_bytes(contract).hex(),
        data=given,
        units=options.units or simulation.units_of_a_site(plan),
        folder=str(folder),
        engine_folder=str(engine_folder),
        out=None if options.out is None else str(options.out.absolute()),
        workers=min(options.workers, len(plan.sites.invite)),
        up_s=options.up_s,
    )


def _announce(options: argparse.Namespace, plan: Plan) -> None:
    data = simulation.SYNTHETIC if options.data is None else simulation.DIVIDED
    print(
        f"simulating {plan.name}: {len(plan.sites.invite)} virtual sites, quorum {plan.sites.quorum}, "
        f"{plan.rounds} rounds\ndata: {data}",
        file=sys.stderr,
    )


def _follow(process: SimulationProcess, form: str) -> Result:
    """Print a line a round until the simulation is over, and return its result.

    Raises:
        ConfideError: It is broken, as it said itself.
    """
    lines_to = sys.stdout if form == "table" else sys.stderr
    for line in process.lines():
        match line:
            case Up():
                print(_up(line), file=sys.stderr)
            case Happened(event=event):
                text = round_line(event)
                if text:
                    print(text, file=lines_to, flush=True)
            case Broken():
                raise _error(line)
            case Result():
                return line
    raise OutOfOrder("CFD-J12", "the simulation ended without a result")


def _up(line: Up) -> str:
    network = (
        "a network of their own"
        if line.alone
        else "this machine's network: Ray's servers are open to it, and obey a token that ends with the simulation"
    )
    return f"up after {line.seconds:.1f} s: {line.sites} sites on {line.workers} workers, in {network}"


def _error(line: Broken) -> ConfideError:
    code = line.code if line.code in CODES else "CFD-J12"
    kind: type[ConfideError] = OutOfOrder if code == "CFD-J12" else ConfideError
    return kind(code, visible(line.message), hint=visible(line.hint))
