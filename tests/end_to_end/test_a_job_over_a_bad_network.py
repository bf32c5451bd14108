"""Real processes; one site reaches the coordinator through a relay that misbehaves; the job completes with all."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.relay import Relay
from tests.support.processes import Federation, wait_until

pytestmark = [pytest.mark.process, pytest.mark.enable_socket, pytest.mark.timeout(400)]

SITES = ["bern", "mercy", "oslo"]
FAR = "oslo"
WIDE: dict[str, Any] = {"model": {"kind": "mlp", "hidden": [1024, 1024], "activation": "relu"}}  # 4 MB an update


@dataclass
class Setting:
    """A running federation whose last site dials through `relay`."""

    federation: Federation
    relay: Relay


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    made = Federation(tmp_path_factory.mktemp("far"))
    made.init()
    try:
        made.serve()
        with Relay(made.link_port) as relay:
            for number, site in enumerate(SITES):
                made.enrol(site, port=relay.port if site == FAR else None)
                made.add_data(site, seed=number + 1)
            for site in SITES:
                made.run_site(site)
            yield Setting(made, relay)
            made.stop()
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def calm(setting: Setting) -> Iterator[None]:
    yield
    setting.relay.idle_cut_s = None
    setting.relay.answer_502 = False
    setting.relay.cut_after()


def completed_by_all(setting: Setting, job: str, *, timeout_s: float = 120) -> None:
    shown = setting.federation.wait_for(job, "completed", "failed", timeout_s=timeout_s)
    assert shown["state"] == "completed", shown
    for item in shown["rounds_done"]:
        assert item["survivors"] == SITES, item


@pytest.mark.slow
def test_connections_that_are_cut_when_idle_lose_no_round(setting: Setting) -> None:
    setting.relay.idle_cut_s = 0.7
    slow = {"local_steps": 600, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.01}, "seed": 7}
    plain = {"unit": "record", "mechanism": "none", "clip": 1.0}
    job = setting.federation.submit(setting.federation.plan(SITES, training=slow, privacy=plain))
    completed_by_all(setting, job)


def test_a_proxy_that_answers_502_for_a_while_is_survived_without_an_operator(setting: Setting) -> None:
    slow = {"local_steps": 400, "batch": 64, "optimizer": {"name": "sgd", "lr": 0.01}, "seed": 7}
    plain = {"unit": "record", "mechanism": "none", "clip": 1.0}
    job = setting.federation.submit(setting.federation.plan(SITES, training=slow, privacy=plain))
    wait_until(lambda: setting.federation.show(job)["state"] == "running", what="running")
    setting.relay.answer_502 = True
    setting.relay.cut_all()
    time.sleep(5)
    setting.relay.answer_502 = False
    completed_by_all(setting, job)


def test_an_upload_whose_connection_dies_at_every_chunk_is_resumed_and_not_begun_again(setting: Setting) -> None:
    setting.relay.cut_after(up=1_600_000)
    before = setting.relay.up_bytes
    plan = setting.federation.plan(SITES, rounds=1, **WIDE)
    completed_by_all(setting, setting.federation.submit(plan))
    # An update of 4.2 MB: with every connection cut after 1.6 MB, starting afresh each time would never end.
    assert setting.relay.up_bytes - before < 40_000_000


def test_a_download_whose_connection_dies_at_every_chunk_is_resumed(setting: Setting) -> None:
    setting.relay.cut_after(down=1_600_000)
    plan = setting.federation.plan(SITES, rounds=2, **WIDE)
    completed_by_all(setting, setting.federation.submit(plan))


@pytest.mark.slow
def test_a_proxy_that_answers_502_for_ninety_seconds_is_survived(setting: Setting) -> None:
    plan = setting.federation.plan(SITES, deadlines={"training_s": 240, "phase_s": 60})
    setting.relay.answer_502 = True
    setting.relay.cut_all()
    job = setting.federation.submit(plan)
    time.sleep(90)
    setting.relay.answer_502 = False
    completed_by_all(setting, job, timeout_s=300)


def test_nothing_of_the_cuts_is_left_in_the_sites_home(setting: Setting, tmp_path: Path) -> None:
    staged = [path for path in (setting.federation.home(FAR) / "blobs").rglob("*.part") if path.stat().st_size]
    assert staged == []
