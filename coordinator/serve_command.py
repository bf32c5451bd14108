"""`confide coordinator serve | check`: the service as a process.

The first SIGTERM or Ctrl-C stops at a safe point and says so, the second at once; what is on disk is consistent either
way, and the next `serve` goes on with every job at the round it was in. A port or a home that another process uses is
refused at once, naming it. Ready means: the link and the API answer. It is said on standard error (`service.ready`), to
systemd, and in the file that `--ready-file` names.
"""

import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from coordinator import membership_home
from coordinator.configuration import CoordinatorConfiguration
from coordinator.ports import refuse_taken, split_address
from federation.edge.arguments import VerbParser
from federation.edge.clock import SystemClock, rfc3339
from federation.edge.configuration import effective, environment, resolve_home
from federation.edge.files import read_secret, write_whole
from federation.edge.homes import CoordinatorHome
from federation.edge.logs import Log, catch_the_rest, open_log
from federation.edge.tables import FORMATS, print_record
from federation.errors import ConfideError, ConfigurationWrong

LEAST_FREE_MIB: Final = 256
"""Space below which `check` calls the home's disk full; models and updates need their own size besides."""

SERVE_HELP: Final = """usage: confide coordinator serve [--home DIR] [--ready-file FILE]

Run the coordinator: the link that sites dial, the API, and every unfinished job.

  --home DIR          the coordinator's home (default: CONFIDE_HOME, else the XDG place)
  --ready-file FILE   write {"link": PORT, "api": PORT, "pid": N} there once both answer; removed at the end

Stop it with SIGTERM or Ctrl-C; a second one stops at once. Example: confide coordinator serve
"""
CHECK_HELP: Final = """usage: confide coordinator check [--home DIR] [--format table|json]

Print the effective configuration and what is wrong with the home; status 78 if anything is.

Example: confide coordinator check
"""


class Stops:
    """What the process was told: nothing, to stop, or to stop at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.count = 0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal; the second one ends the process without waiting for anything."""
        self.count += 1
        if self.count == 1:
            self.asked.set()
        else:
            # Everything that counts is on disk already; the kernel lets go of locks and ports.
            os._exit(130 if number == signal.SIGINT else 143)


def serve(arguments: list[str]) -> int:
    """Run the coordinator until it is told to stop."""
    parser = VerbParser("confide coordinator serve", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--home")
    parser.add_argument("--ready-file", type=Path)
    options = parser.parse_args(arguments)
    if options.help:
        sys.stdout.write(SERVE_HELP)
        return 0
    if options.ready_file is not None:
        options.ready_file.unlink(missing_ok=True)  # of a process that was killed
    home = CoordinatorHome(resolve_home("coordinator", options.home))
    configuration = membership_home.load(home)
    stops = Stops()
    with _signals(stops):
        return _serve(home, configuration.log_level, options.ready_file, stops)


def _serve(home: CoordinatorHome, level: str, ready_file: Path | None, stops: Stops) -> int:
    from coordinator.service import open_service

    log = open_log(level=level)
    catch_the_rest(log)
    service = open_service(home, clock=SystemClock(), log=log)
    service.on_fatal = stops.asked.set
    api: Any = None
    broke = True
    try:
        refuse_taken(service.configuration.link.listen, "the link")
        refuse_taken(service.configuration.api_listen, "the API")
        link_port = service.start()
        api = _api(service, log)
        api_port = api.start()
        _say_ready(log, service.configuration, ready_file, link_port, api_port)
        stops.asked.wait()
        log.announce("service.stopping", "stopping at a safe point; once more stops at once")
        broke = False
    finally:
        _notify("STOPPING=1", log)
        if api is not None:
            api.stop()
        service.stop(broke=broke)
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    if service.fatal is not None:
        raise service.fatal
    log.announce("service.stopped", "stopped; unfinished jobs go on with the next `confide coordinator serve`")
    return 0


def _api(service: Any, log: Any) -> Any:
    from coordinator.access import Access, Caller, Role
    from coordinator.api import ApiServer, create_app

    def authenticate(token: str) -> Caller | None:
        person = service.membership.person_by_token(token)
        return None if person is None else Caller(name=person.name, roles=frozenset({Role(person.role.value)}))

    host, port = split_address(service.configuration.api_listen)
    return ApiServer(
        create_app(service, Access(authenticate, service.callers, service.clock), log), host=host, port=port
    )


def _say_ready(
    log: Log, configuration: CoordinatorConfiguration, ready_file: Path | None, link_port: int, api_port: int
) -> None:
    if ready_file is not None:
        content = {"link": link_port, "api": api_port, "pid": os.getpid()}
        write_whole(ready_file, json.dumps(content).encode() + b"\n")
    _notify("READY=1", log)
    link, _ = split_address(configuration.link.listen)
    api, _ = split_address(configuration.api_listen)
    log.announce(
        "service.ready",
        f"ready: link on {link}:{link_port}, API on http://{api}:{api_port}",
        address=f"{link}:{link_port}",
        api=f"{api}:{api_port}",
    )


def _notify(state: str, log: Log) -> None:
    """Tell systemd, where it started us (sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names)."""
    name = environment().get("NOTIFY_SOCKET", "")
    if not name:
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError as problem:
            log.warning("systemd.not_told", phase=state, reason=problem.strerror)


@contextmanager
def _signals(stops: Stops) -> Iterator[None]:
    """Handle SIGTERM and SIGINT for the time of the block."""
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stops.on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- check ----------------------------------------------------------------------------------------------------


def check(arguments: list[str]) -> int:
    """Print the effective configuration, and what is wrong with the home."""
    parser = VerbParser("confide coordinator check", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--home")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args(arguments)
    if options.help:
        sys.stdout.write(CHECK_HELP)
        return 0
    home = CoordinatorHome(resolve_home("coordinator", options.home))
    configuration = membership_home.load(home)
    problems = find_problems(home)
    record = {"home": str(home.path), **effective(configuration), "problems": problems}
    print_record(record, schema="confide/coordinator-check/v1", form=options.format)
    if problems:
        raise ConfigurationWrong(
            "CFD-G04", f"{len(problems)} problem(s) in {home.path}: {problems[0]}", hint="see `problems` above"
        )
    return 0


def find_problems(home: CoordinatorHome) -> list[str]:
    """Return everything that would keep `serve` from working, or soon will."""
    checks: list[Callable[[CoordinatorHome], str | None]] = [
        _keys,
        _secrets,
        _root_key,
        _certificate,
        _database,
        _ports,
        _disk,
    ]
    problems = []
    for look in checks:
        try:
            found = look(home)
        except ConfideError as problem:
            found = f"{problem.message} ({problem.code})"
        if found is not None:
            problems.append(found)
    return problems


def _disk(home: CoordinatorHome) -> str | None:
    free_mib = shutil.disk_usage(home.path).free >> 20
    if free_mib >= LEAST_FREE_MIB:
        return None
    return f"{free_mib} MiB are free for {home.path}, needed are {LEAST_FREE_MIB}"


def _keys(home: CoordinatorHome) -> str | None:
    home.identity()
    home.credentials()
    home.certificate_authority()
    home.root_public()
    return None


def _secrets(home: CoordinatorHome) -> str | None:
    for folder in ("people", "tokens"):
        for path in sorted((home.path / folder).glob("*")):
            read_secret(path)
    return None


def _root_key(home: CoordinatorHome) -> str | None:
    if home.root_file.exists():
        read_secret(home.root_file)
    return None


def _certificate(home: CoordinatorHome) -> str | None:
    from federation.certificates import expiry, renewal_due

    certificate = home.certificate()
    if renewal_due(certificate, now=SystemClock().now()):
        ends = rfc3339(expiry(certificate))
        return f"the coordinator's certificate ends on {ends}: run `confide coordinator certificate renew`"
    return None


def _database(home: CoordinatorHome) -> str | None:
    engine = membership_home.open_database(home, membership_home.load(home))
    engine.dispose()
    return None


def _ports(home: CoordinatorHome) -> str | None:
    from federation.edge.files import HomeLock

    try:
        HomeLock(home.lock_folder).acquire().release()
    except ConfigurationWrong:
        return None  # the service itself is running, and holds its ports
    configuration = membership_home.load(home)
    refuse_taken(configuration.link.listen, "the link")
    refuse_taken(configuration.api_listen, "the API")
    return None


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {"serve": serve, "check": check}
