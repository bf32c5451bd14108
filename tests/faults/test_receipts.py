"""What a coordinator takes from sites: only what their own logs are proved to record, and nothing beside a fork."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.checkpoint import sign
from audit.key_files import read_key
from audit.proof_file import ProofFile
from federation.messages import PhaseRequest
from federation.witness_messages import (
    CheckpointCall,
    CheckpointReply,
    EntriesCall,
    EntriesReply,
    OwnCheckpoint,
    Proved,
)
from tests.faults.link_rig import until
from tests.support.coordinator_home import FakeSite, House, plan_text
from tests.support.membership import FEDERATION

pytestmark = [pytest.mark.enable_socket, pytest.mark.timeout(120)]
SITES = ("mercy", "north", "st-anna")
JOBS = "jobs: {offer_grace_s: 600, offer_deadline_s: 1200}\n"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "coordinator", more=JOBS)
    made.add(*SITES)
    made.start()
    yield made
    made.close()


@pytest.fixture
def sites(house: House, tmp_path: Path) -> Iterator[dict[str, FakeSite]]:
    made = {name: FakeSite(house, name, tmp_path / name) for name in SITES}
    for site in made.values():
        site.client.start()
        until(site.client.connected, what=f"{site.site} connected")
    yield made
    for site in made.values():
        site.client.stop()


def ended(house: House, job: str) -> str:
    assert house.service is not None
    service = house.service
    until(lambda: service.show(job).state in ("completed", "failed"), within_s=90, what="an end")
    return service.show(job).state


def late(house: House, job: str) -> dict[str, str]:
    assert house.service is not None
    return dict(house.service.show(job).rounds_done[0].late)


def received(house: House) -> list[tuple[str, str, str | None]]:
    events = [event for event in house.audit_events() if event["action"] == "update.received"]
    return sorted((event["site"], event["decision"], event.get("code")) for event in events)


def test_every_update_is_received_with_the_sites_own_entry_found_in_its_tree(
    house: House, sites: dict[str, FakeSite]
) -> None:
    assert ended(house, house.submit(plan_text(SITES, rounds="2"))) == "completed"
    events = house.audit_events()
    found = [event["peer"] for event in events if event["action"] == "update.received"]
    assert len(found) == 6
    for peer in found:
        party = peer["origin"].split("/")[1]
        entry = sites[party].witness.own.entries([peer["index"]], sites[party].witness.own.published())[0]  # type: ignore[arg-type]
        event = json.loads((entry.leaf or b"").split(b"\n")[1])
        assert (event["action"], event["round"]) == ("update.sent", event["round"])
    ends = [event for event in events if event["action"] == "round.released"]
    assert [event["survivors_count"] for event in ends] == [3, 3]
    assert all(event["receipts_root"].startswith("sha256:") for event in ends)
    assert not any(site.not_opened for site in sites.values())


@pytest.mark.parametrize("how", ["none", "of another place", "spoiled"])
def test_a_missing_receipt_stops_the_upload(house: House, sites: dict[str, FakeSite], how: str) -> None:
    """An update without proof of its entry counts nowhere; the round goes on with the others."""

    def bend(proved: Proved | None) -> Proved | None:
        assert proved is not None
        if how == "none":
            return None
        if how == "spoiled":
            return proved.model_copy(update={"path": ("0" * 64, *proved.path[1:])})
        return proved.model_copy(update={"index": proved.index - 1})

    sites["north"].proof = bend
    job = house.submit(plan_text(SITES, rounds="1"))
    assert ended(house, job) == "completed"
    assert house.service is not None
    done = house.service.show(job).rounds_done[-1]
    assert ("north" in done.late, "north" in done.survivors) == (True, False)
    assert ("north", "refused", "CFD-R92") in received(house)
    assert ("mercy", "allowed", None) in received(house)


def test_no_update_counts_of_a_site_whose_log_has_two_histories(house: House, sites: dict[str, FakeSite]) -> None:
    liar = sites["north"]
    until(lambda: liar.witness.call_once() and liar.witness.own.published() is not None, what="something to fork")
    shown = liar.witness.own.published()
    assert shown is not None
    key = read_key(house.log_folder("north") / "keys" / "log-1.key", f"{FEDERATION}/north/audit/1")
    other = OwnCheckpoint(checkpoint=sign(shown.origin, shown.size, bytes(32), key).hex())
    call = CheckpointCall(message_id=liar.client.message_ids.next(), site="north", own=other)
    reply = liar.client.witness(call)
    assert isinstance(reply, CheckpointReply)
    assert reply.status == 422
    assert house.service is not None
    assert house.service.witnessing.office.is_forked(shown.origin)
    job = house.submit(plan_text(SITES, rounds="1"))
    assert ended(house, job) == "completed"
    assert set(late(house, job)) == {"north"}
    refused = [event for event in house.audit_events() if event["action"] == "witness.refused"]
    assert [(event["log"], event["code"]) for event in refused] == [(shown.origin, "CFD-A08")]


def test_a_site_sees_public_entries_of_its_jobs_and_of_itself_and_of_all_others_the_hash(
    house: House, sites: dict[str, FakeSite]
) -> None:
    assert ended(house, house.submit(plan_text(SITES, rounds="1"))) == "completed"
    assert ended(house, house.submit(plan_text(SITES[1:], rounds="1"))) == "completed"
    assert house.service is not None
    under = house.service.witnessing.own.newest()
    assert under is not None
    found = [(event["action"], event.get("site"), event.get("job")) for event in house.audit_events()[: under.size]]
    jobs = [job for action, _, job in found if action == "job.submitted"]
    seen = [("log.opened", None, None), ("job.submitted", None, jobs[0]), ("update.received", "mercy", jobs[0])]
    hidden = [
        ("job.offered", "mercy", jobs[0]),
        ("update.received", "north", jobs[0]),
        ("job.submitted", None, jobs[1]),
    ]
    wanted = tuple(found.index(one) for one in (*seen, *hidden))
    client = sites["mercy"].client
    reply = client.witness(
        EntriesCall(
            message_id=client.message_ids.next(), site="mercy", origin=under.origin, indices=wanted, size=under.size
        )
    )
    assert isinstance(reply, EntriesReply)
    assert [bool(entry.leaf) for entry in reply.entries] == [True] * 3 + [False] * 3
    from audit.proofs import check_inclusion

    for entry in reply.entries:
        path = tuple(bytes.fromhex(node) for node in entry.path)
        check_inclusion(bytes.fromhex(entry.leaf_hash), entry.index, path, under)


def test_a_round_waits_for_its_witnesses_and_is_abandoned_with_the_reason(
    house: House, sites: dict[str, FakeSite]
) -> None:
    """Sites that drop every notice keep the coordinator from its quorum: nothing is trained."""
    for site in sites.values():
        site.witness.on_notice = lambda _notice, _send: None  # type: ignore[method-assign]
        site.witness._cosign = lambda _offers, about: []  # type: ignore[method-assign]
    job = house.submit(plan_text(SITES, rounds="1", deadlines="{training_s: 1, phase_s: 1}", round_attempts="1"))
    assert ended(house, job) == "failed"
    assert house.service is not None
    assert "not witnessed: 0 of 2 cosignatures, missing mercy, north, st-anna" in house.service.show(job).reason
    assert not any(isinstance(body, PhaseRequest) for site in sites.values() for body in site.received)


def test_the_message_that_opens_a_round_carries_the_proof_of_how_the_one_before_ended(
    house: House, sites: dict[str, FakeSite]
) -> None:
    assert ended(house, house.submit(plan_text(SITES, rounds="2"))) == "completed"
    asked = [body for body in sites["mercy"].received if isinstance(body, PhaseRequest) and body.before]
    found = [json.loads((ProofFile.parse(bytes.fromhex(one.before)).leaf or b"").split(b"\n")[1]) for one in asked]
    assert [(event["action"], event.get("round")) for event in found] == [
        ("job.submitted", None),
        ("round.released", 0),
    ]
    assert [one.receipt is None for one in asked] == [True, False]
