"""The link over real mutual TLS on loopback: the round trip of a message, and 400 MB to every site and back.

The coordinator and each site are processes of their own, on one machine and one disk. Measured is what the link does:
every site fetches the stored model (each chunk verified) and delivers an update of the same size (verified, and
durable at the coordinator before it counts). Making the model and the updates isn't part of it. The coordinator's
peak memory is read from its own `/proc/self/status`. 79 s and 3 GB are what the stock poller transport of the engine
took for 400 MB to three sites and back on a machine with two cores.
"""

import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.row import Row, at_most, shown

MODEL_BYTES = 400_000_000
ROUND_TRIPS = 150  # fewer than the burst that the pace limit lets through
SITES = (2, 3, 4)


# --- keys and certificates, handed to the processes as files --------------------------------------------------


def _make_homes(folder: Path, sites: int) -> None:
    from federation.certificates import (
        Authority,
        certificate_request,
        certificate_to_pem,
        new_authority,
        new_tls_key,
        public_key_digest,
        tls_key_to_pem,
    )
    from federation.identity import IdentityKey

    now, day = datetime.now(UTC), timedelta(days=1)
    key = new_tls_key()
    authority = Authority(new_authority("bench", key, now=now), key)
    (folder / "authority.pem").write_bytes(certificate_to_pem(authority.certificate))
    server_key, identity = new_tls_key(), IdentityKey.generate()
    server = authority.issue_server(server_key.public_key(), ["127.0.0.1"], now=now, validity=day)
    (folder / "server.pem").write_bytes(certificate_to_pem(server))
    (folder / "server.key").write_bytes(tls_key_to_pem(server_key))
    (folder / "coordinator.key").write_bytes(identity.to_pem())
    members = {}
    for number in range(sites):
        name = f"site-{number}"
        site_key, site_identity = new_tls_key(), IdentityKey.generate()
        request = certificate_request(site_key, federation="bench", site=name)
        certificate = authority.issue_site("bench", name, request, now=now, validity=day)
        (folder / f"{name}.pem").write_bytes(certificate_to_pem(certificate))
        (folder / f"{name}.key").write_bytes(tls_key_to_pem(site_key))
        (folder / f"{name}.identity").write_bytes(site_identity.to_pem())
        members[name] = [site_identity.public.hex(), public_key_digest(certificate)]
    (folder / "members.json").write_text(json.dumps({"coordinator": identity.public.hex(), "members": members}))


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _hear() -> Any:
    return json.loads(sys.stdin.readline())


def _memory() -> dict[str, int]:
    """Return this process's memory in bytes: peak resident, and what of the present is anonymous."""
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssAnon"):
            found[name] = int(value.split()[0]) * 1024
    return found


# --- the processes --------------------------------------------------------------------------------------------


class _Backend:
    def __init__(self, folder: Path) -> None:
        from federation.link.backend import Member
        from federation.messages import MemberStatus

        known = json.loads((folder / "members.json").read_text())
        self._members = {
            name: Member(MemberStatus.ACTIVE, bytes.fromhex(identity), tls_key)
            for name, (identity, tls_key) in known["members"].items()
        }
        self.server: Any = None
        self.delivered: list[Any] = []
        self.done = threading.Event()

    def member(self, site: str) -> Any:
        return self._members.get(site)

    def on_hello(self, peer: Any, hello: Any, verdict: Any) -> Any:
        from federation.messages import HelloReply

        return HelloReply(message_id=self.server.message_ids.next(), versions=hello.versions, status=peer.member.status)

    def on_message(self, site: str, message: Any, body: Any) -> None:
        self.server.send(site, body.model_copy(update={"message_id": self.server.message_ids.next()}))

    def on_attendance(self, site: str, state: Any, since: Any) -> None:
        return None

    def on_refused(self, site: str, message_id: str, code: str, text: str) -> None:
        raise AssertionError(f"{site} refused: {code} {text}")

    def may_fetch(self, site: str, reference: Any) -> bool:
        return True

    def may_deliver(self, site: str, reference: Any) -> bool:
        return bool(reference.size_bytes == MODEL_BYTES)

    def on_delivered(self, site: str, reference: Any) -> None:
        self.delivered.append(reference)
        if len(self.delivered) == len(self._members):
            self.done.set()


def coordinator_process(folder: Path) -> None:
    from federation.edge.clock import SystemClock
    from federation.identity import IdentityKey
    from federation.link.blobs import BlobStore
    from federation.link.limits import LinkLimits
    from federation.link.server import LinkServer, ServerTls
    from federation.messages import Versions

    backend = _Backend(folder)
    blobs = BlobStore(folder / "coordinator")
    server = LinkServer(
        listen="127.0.0.1:0",
        tls=lambda: ServerTls(
            *((folder / name).read_bytes() for name in ("server.key", "server.pem", "authority.pem"))
        ),
        identity=IdentityKey.from_pem((folder / "coordinator.key").read_bytes(), name="coordinator.key"),
        versions=Versions(confide="0.1.0", protocol=1, oldest_protocol=1),
        backend=backend,
        blobs=blobs,
        limits=LinkLimits(),
        clock=SystemClock(),
        randomness=secrets.token_bytes,
    )
    backend.server = server
    _say(port=server.start(), **_memory())
    _hear()
    model = blobs.put_file(folder / "model.bin")
    _say(model=model.model_dump())
    before = os.times()
    if not backend.done.wait(300):
        raise AssertionError("the updates didn't arrive")
    used = os.times()
    _say(user_s=used.user - before.user, system_s=used.system - before.system, **_memory())
    _hear()
    server.stop(0)


class _Handler:
    def __init__(self, site: str) -> None:
        self._site = site
        self.connected = threading.Event()
        self.answered = threading.Event()

    def hello(self, message_id: str) -> Any:
        from federation.messages import Hello, Versions

        versions = Versions(confide="0.1.0", protocol=1, oldest_protocol=1)
        return Hello(message_id=message_id, site=self._site, versions=versions, charter_epoch=0)

    def on_connected(self, reply: Any) -> None:
        self.connected.set()

    def on_lost(self, problem: Any) -> None:
        print(problem.message, file=sys.stderr)

    def on_message(self, message: Any, body: Any) -> None:
        self.answered.set()

    def on_acknowledged(self, message_id: str) -> None:
        return None

    def on_refused(self, message_id: str, problem: Any) -> None:
        raise AssertionError(problem.message)


def site_process(folder: Path, site: str, port: int) -> None:
    from federation.edge.clock import SystemClock
    from federation.identity import IdentityKey
    from federation.link.blobs import BlobStore
    from federation.link.client import LinkClient
    from federation.link.dial import SiteTls
    from federation.link.limits import LinkLimits
    from federation.link.route import choose_route, parse_address
    from federation.messages import BlobReference, JobStatus, Reason

    handler = _Handler(site)
    blobs = BlobStore(folder / site)
    coordinator_key = bytes.fromhex(json.loads((folder / "members.json").read_text())["coordinator"])
    client = LinkClient(
        site=site,
        route=lambda: choose_route(parse_address(f"127.0.0.1:{port}"), {}),
        authority_pem=(folder / "authority.pem").read_bytes(),
        tls=lambda: SiteTls((folder / f"{site}.key").read_bytes(), (folder / f"{site}.pem").read_bytes()),
        identity=IdentityKey.from_pem((folder / f"{site}.identity").read_bytes(), name=site),
        coordinator_key=lambda: coordinator_key,
        handler=handler,
        blobs=blobs,
        limits=LinkLimits(),
        clock=SystemClock(),
        randomness=secrets.token_bytes,
    )
    client.start()
    if not handler.connected.wait(30):
        raise AssertionError("the site didn't connect")
    _say(connected=True)
    asked = _hear()
    round_trips = []
    for _ in range(asked["round_trips"]):
        handler.answered.clear()
        began = time.perf_counter()
        client.send(JobStatus(message_id=client.message_ids.next(), job="bench-0a1b2c", reason=Reason(code="CFD-B01")))
        if not handler.answered.wait(30):
            raise AssertionError("no answer")
        round_trips.append(time.perf_counter() - began)
    update = blobs.put_file(folder / f"{site}.bin")
    _say(round_trips=round_trips)
    model = BlobReference(**_hear()["model"])
    before = os.times()
    began = time.perf_counter()
    client.fetch(model, deadline_s=300)
    fetched = time.perf_counter()
    client.deliver(update, deadline_s=300)
    ended = time.perf_counter()
    used = os.times()
    _say(
        fetch_s=fetched - began,
        deliver_s=ended - fetched,
        user_s=used.user - before.user,
        system_s=used.system - before.system,
        **_memory(),
    )
    _hear()
    client.stop()


class _Process:
    def __init__(self, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.link", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, **facts: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(facts) + "\n")
        self._child.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        while True:
            line = self._child.stdout.readline()
            if not line:
                raise AssertionError(f"a process ended with {self._child.wait()}")
            if line.startswith("{"):
                heard: dict[str, Any] = json.loads(line)
                return heard

    def end(self) -> None:
        self.say()
        self._child.wait(30)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(30)


# --- what is measured -----------------------------------------------------------------------------------------


def _write_random(path: Path, size_bytes: int) -> None:
    with path.open("wb") as stream:
        for start in range(0, size_bytes, 1 << 20):
            stream.write(secrets.token_bytes(min(1 << 20, size_bytes - start)))


def measure(sites: int, *, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what one federation of `sites` sites measured."""
    _make_homes(folder, sites)
    _write_random(folder / "model.bin", MODEL_BYTES)
    for number in range(sites):
        _write_random(folder / f"site-{number}.bin", MODEL_BYTES)
    os.sync()
    processes = [_Process("coordinator", str(folder))]
    try:
        coordinator = processes[0]
        started = coordinator.hear()
        port = started["port"]
        members = [_Process("site", str(folder), f"site-{number}", str(port)) for number in range(sites)]
        processes += members
        for member in members:
            member.hear()
        trips = []
        for number, member in enumerate(members):
            member.say(round_trips=0 if number else ROUND_TRIPS)
            trips += member.hear()["round_trips"]
        coordinator.say()
        stored = coordinator.hear()
        os.sync()
        began = time.perf_counter()
        for member in members:
            member.say(model=stored["model"])
        ended = coordinator.hear()
        total_s = time.perf_counter() - began
        figures = [member.hear() for member in members]
        say(f"{sites} sites: {total_s:.2f} s, coordinator {ended}, sites {figures}")
        for process in processes:
            process.end()
    finally:
        for process in processes:
            process.kill()
    return {"trips": trips, "total_s": total_s, "started": started, "ended": ended, "sites": figures}


def rows() -> list[Row]:
    """Return the rows of the link."""
    found: list[Row] = []
    for sites in SITES:
        folder = Path(tempfile.mkdtemp(prefix="confide-bench-"))
        try:
            figures = measure(sites, folder=folder, say=lambda text: print(text, file=sys.stderr))
        finally:
            shutil.rmtree(folder)
        if sites == SITES[0]:
            median_ms = statistics.median(figures["trips"]) * 1000
            found.append(
                at_most(
                    "link/round-trip",
                    median_ms,
                    "ms",
                    target=2.0,
                    against=f"signed message there and answer back, median of {ROUND_TRIPS}; polling took 6,000 ms",
                )
            )
        name = f"link/400-mb-{sites}-sites"
        against = "400 MB to each site and back; stock pollers took 79 s and 3 GB with 3 sites"
        if sites == 3:
            found.append(at_most(f"{name}-time", figures["total_s"], "s", target=10.0, against=against))
        else:
            found.append(shown(f"{name}-time", figures["total_s"], "s", against=against))
        cpu_s = sum(one["user_s"] + one["system_s"] for one in [figures["ended"], *figures["sites"]])
        found.append(
            shown(
                f"{name}-cpu", cpu_s, "s", against="processor time of all processes; half of it is the floor on 2 cores"
            )
        )
        peak_mb = figures["ended"]["VmHWM"] / 1e6
        start_mb = figures["started"]["VmHWM"] / 1e6
        found.append(
            at_most(
                f"{name}-coordinator-peak",
                peak_mb,
                "MB",
                target=300.0,
                against=f"resident at its start {start_mb:.0f} MB, anonymous at the end "
                f"{figures['ended']['RssAnon'] / 1e6:.0f} MB",
            )
        )
    return found


if __name__ == "__main__":
    if sys.argv[1] == "coordinator":
        coordinator_process(Path(sys.argv[2]))
    else:
        site_process(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
