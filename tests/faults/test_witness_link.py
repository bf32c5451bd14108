"""Witnessing over the real link: a site's daemon against a coordinator that withholds, forks or drops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.checkpoint import parse, sign
from audit.key_files import read_key
from audit.witness import AddCheckpoint
from federation.messages import Outcome
from federation.witness_messages import WitnessNotice
from tests.support import site_data
from tests.support.site_rig import FEDERATION, PlayedJob, SiteRig, until

pytestmark = [pytest.mark.process, pytest.mark.enable_socket]
COORDINATOR = f"{FEDERATION}/coordinator/audit/1"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SiteRig]:
    made = SiteRig(tmp_path)
    yield made
    made.close()


def reason(job: PlayedJob) -> str | None:
    reply = job.reply()
    return None if reply.reason is None else reply.reason.code


def begun(rig: SiteRig, **how: Any) -> PlayedJob:
    rig.start(**how)
    job = PlayedJob(rig.coordinator, site_data.plan())
    job.accepted()
    return job


def notice(rig: SiteRig, checkpoint: bytes, old: int = 0) -> WitnessNotice:
    """A notice that offers one checkpoint of the coordinator's log."""
    offer = AddCheckpoint(old, (), parse(checkpoint))
    return WitnessNotice(
        message_id=rig.coordinator.server.message_ids.next(), about="job/0", offers=(bytes(offer).hex(),)
    )


def test_withheld_gossip_stops_the_round(rig: SiteRig) -> None:
    """Without a quorum of others under the end of the round before, no data are read."""
    job = begun(rig)
    rig.coordinator.witnesses.withheld = True
    job.ask(0)
    assert reason(job) == "CFD-A28"
    job.ask(0, 1, before="")
    assert reason(job) == "CFD-A28"
    assert rig.actions("data.opened")[1:] == []  # the one of the registration
    rig.coordinator.witnesses.withheld = False
    job.ask(0, 2)
    assert job.reply().outcome is Outcome.DONE


def test_a_round_opens_on_the_end_of_the_one_before_and_on_no_other_entry(rig: SiteRig) -> None:
    job = begun(rig)
    other = rig.coordinator.witnesses.opening(job.job, 0)
    job.ask(1, before=other["before"])
    assert reason(job) == "CFD-A28"


def test_a_coordinator_that_shows_two_histories_gets_no_further_round_until_a_person_takes_note(rig: SiteRig) -> None:
    job = begun(rig)
    job.ask(0)
    assert job.reply().outcome is Outcome.DONE
    witnesses = rig.coordinator.witnesses
    signer = read_key(witnesses.folder / "keys" / "log-1.key", COORDINATOR)
    seen = witnesses.witnessing.own.published()
    assert seen is not None
    rig.coordinator.send(notice(rig, sign(COORDINATOR, seen.size, bytes(32), signer), seen.size))
    until(lambda: rig.actions("witness.refused"), what="the fork is recorded")
    job.ask(0, 1)
    assert reason(job) == "CFD-R94"
    shown = rig.confide("audit", "witness", "status", status=1)
    assert f"witnesses  {COORDINATOR}" in shown
    assert "1 proofs of two histories (CFD-A08)" in shown
    rig.confide("audit", "witness", "acknowledge", COORDINATOR)
    job.ask(0, 2)
    assert job.reply().outcome is Outcome.DONE
    assert "two histories" not in rig.confide("audit", "witness", "status")


def test_what_a_site_cosigned_it_remembers_though_it_was_killed_before_it_answered(rig: SiteRig) -> None:
    """Killed between the disk and the reply: started again, it cosigns no other tree of that size."""
    rig.start(kill=("audit.log:AuditLog.keep_witnessed", "after", 1), wait=False)
    rig.wait_for_death()
    witnesses = rig.coordinator.witnesses
    seen = witnesses.witnessing.own.published()
    assert seen is not None
    assert witnesses.witnessing.own.cosigned_sizes().get("mercy", 0) == 0  # the line never came
    rig.start()
    signer = read_key(witnesses.folder / "keys" / "log-1.key", COORDINATOR)
    rig.coordinator.send(notice(rig, sign(COORDINATOR, seen.size, bytes(32), signer)))
    until(lambda: rig.actions("witness.refused"), what="the other tree is refused")
    assert rig.actions("witness.refused") == [("witness.refused", "refused")]


def test_each_update_is_proved_in_the_sites_log_and_each_model_in_the_coordinators(rig: SiteRig) -> None:
    job = begun(rig)
    for number in range(2):
        job.ask(number)
        reply = job.reply()
        assert reply.proved is not None
        job.release(number, reply.update)
    job.ask(2)
    assert job.reply().outcome is Outcome.DONE
    assert rig.coordinator.witnesses.unproved == []
    accepted = [entry for entry in rig.entries() if entry["action"] == "model.accepted"]
    assert [entry["peer"]["origin"] for entry in accepted] == [COORDINATOR] * 2
    assert all("index" in entry["peer"] for entry in accepted)


@pytest.mark.parametrize("bent", ["another place", "none"])
def test_a_bent_link_is_found(rig: SiteRig, bent: str) -> None:
    """A round's end that counts this site's update and doesn't hold its receipt is recorded and refused."""
    job = begun(rig)
    job.ask(0)
    job.release(0, job.reply().update)
    place = rig.coordinator.witnesses.opening(job.job, 1)["receipt"]
    changed = None if bent == "none" else place.model_copy(update={"index": 1, "count": 2, "path": ("0" * 64,)})
    job.ask(1, receipt=changed)
    assert reason(job) == "CFD-A16"
    assert rig.actions("peer.contradicted") == [("peer.contradicted", "refused")]


def test_a_last_rounds_end_that_does_not_hold_this_sites_receipt_is_recorded_though_no_round_follows(
    rig: SiteRig,
) -> None:
    job = begun(rig)
    job.ask(0)
    job.release(0, job.reply().update)
    opening = rig.coordinator.witnesses.opening(job.job, 1)
    place = opening["receipt"]
    bent = place.model_copy(update={"index": 1, "count": 2, "path": ("0" * 64,)})
    for receipt in (place, bent, bent):  # the right one first: what comes behind it shows that it was taken
        message_id = rig.coordinator.server.message_ids.next()
        about = f"{job.job}/0"
        rig.coordinator.send(
            WitnessNotice(message_id=message_id, about=about, ended=opening["before"], receipt=receipt)
        )
    until(lambda: rig.actions("peer.contradicted"), what="the bent place is recorded")
    job.ask(1)
    assert job.reply().outcome is Outcome.DONE  # the round's own opening shows the right place
    (recorded,) = [entry for entry in rig.entries() if entry["action"] == "peer.contradicted"]
    assert recorded["peer"]["origin"] == COORDINATOR
