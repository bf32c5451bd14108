"""Replays, restarts, spent updates, bad uploads, silence: what is said twice, late, or never."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privacy.secagg import aggregator_states as hub
from privacy.secagg import site_states as at
from privacy.secagg.aggregator import Aggregator
from privacy.secagg.envelope import Signed, sign
from privacy.secagg.errors import OutOfOrder, SumRefused
from privacy.secagg.field import CHUNK_WORDS
from privacy.secagg.journal import ConsentGiven, History, SumBegun, SumEnded, VectorSpent, abort_from
from privacy.secagg.lineage import Lineage, adopt, outsider_result
from privacy.secagg.messages import Abort, Masked, Survivors
from privacy.secagg.sums import Accumulator, Stage
from tests.support.secure_sums import (
    MODEL,
    NEW_MODEL,
    Federation,
    SiteRun,
    federation_of,
    integer_plan,
    integers,
    key_of,
    names_of,
    plan_for,
    registry_of,
    resigned,
    run_sum,
    signed_plan,
    site_run,
    until,
    with_member,
)

FOUR = names_of(4)
PLAN = integer_plan(FOUR, 5, colluding=1, dropouts=1)
AGAIN = PLAN.model_copy(update={"sum_id": "55" * 32, "attempt": 1, "prev_sum": PLAN.sum_id})


def restarted(run: SiteRun, **changed: Any) -> SiteRun:
    """Return the site after a restart: its journal, and nothing else."""
    fresh = site_run(run.site.name, run.update, run.registry, seed="restarted")
    fresh.journal = list(run.journal)
    return replace(fresh, **changed)


def test_nothing_from_an_earlier_sum_is_accepted() -> None:
    first = run_sum(federation_of(PLAN))
    other = until(federation_of(AGAIN), "share")
    run = other.sites["s000"]
    adverts = [message for site in first.sites.values() for message in site.sent if message.kind == "advert"]
    run.tell(at.AdvertsShown((run.last, *adverts[1:])))
    assert run.code == "E_PLAN_MIX"
    for phase, kind, event in (
        ("mask", "shares", lambda relay, old: at.SharesShown((*relay.messages[:3], old), relay.boxes)),
        ("reveal", "survivors", lambda _, old: at.CertificateShown((old,) * 4)),
    ):
        later = until(federation_of(AGAIN), phase)
        old = next(message for message in first.sites["s003"].sent if message.kind == kind)
        later.sites["s000"].tell(event(later.relayed["s000"], old))
        assert later.sites["s000"].code in {"E_ROSTER_SPLIT", "E_CONSENT"}
    waiting = until(federation_of(AGAIN), "publish")
    assert first.result is not None
    waiting.sites["s000"].tell(at.ResultShown(first.result, first.figures, bytes.fromhex(NEW_MODEL)))
    assert waiting.sites["s000"].code == "E_RESULT"


def test_a_repeated_event_gets_the_same_bytes_and_changes_nothing() -> None:
    found = federation_of(PLAN)
    run = found.sites["s000"]
    events: dict[type[Any], at.Event] = {}
    tell = run.tell

    def recording(event: at.Event, now_ms: int = 0) -> Any:
        events[type(event)] = event
        return tell(event, now_ms)

    run.tell = recording  # type: ignore[method-assign]
    until(found, "publish")
    journal, state = list(run.journal), run.state
    masked = [record.masked for record in found.records if isinstance(record, hub.UploadCommitted)]
    wanted = {at.AdvertsShown: run.sent[1], at.SharesShown: masked[0], at.MaskedShown: run.sent[2]}
    for kind, message in wanted.items():
        after, outputs = run.site.step(run.state, events[kind], now_ms=0)
        assert after is state
        assert [item.message for item in outputs if isinstance(item, at.Send)] == [message] == [outputs[0].message]  # type: ignore[union-attr]
    assert run.journal == journal
    found.publish()
    assert run.site.step(run.state, events[at.ResultShown], now_ms=0) == (run.state, (run.closed,))
    assert run.site.step(run.state, at.ClockTicked(), now_ms=10**9) == (run.state, ())
    with pytest.raises(OutOfOrder):
        run.tell(events[at.MaskedShown])


def test_an_event_out_of_order_leaves_the_state_as_it_was() -> None:
    found = until(federation_of(PLAN), "mask")
    run = found.sites["s000"]
    state = run.state
    for event in (at.MaskedShown(()), at.CertificateShown(()), at.UploadAcknowledged(), at.AdvertsShown(())):
        with pytest.raises(OutOfOrder):
            run.tell(event)
        assert run.state is state
    idle = site_run("s000", run.update, run.registry)
    with pytest.raises(OutOfOrder):
        idle.tell(at.MaskedShown(()))
    idle.tell(at.ClockTicked(), now_ms=10**12)
    assert isinstance(idle.state, at.Idle)


def test_an_acknowledgement_before_the_upload_is_out_of_order() -> None:
    found = until(federation_of(PLAN), "mask")
    run, relay = found.sites["s000"], found.relayed["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    with pytest.raises(OutOfOrder):
        run.tell(at.UploadAcknowledged())


def test_a_plan_that_is_not_the_coordinators_changes_nothing() -> None:
    run = federation_of(PLAN).sites["s000"]
    forged = sign(key_of("mallory"), PLAN)
    with pytest.raises(SumRefused, match="E_SIG"):
        run.offer(forged)
    assert isinstance(run.state, at.Idle)
    assert run.journal == []
    run.offer(signed_plan(PLAN))
    assert isinstance(run.state, at.Advertised)


@pytest.mark.parametrize("epoch", [2, 4])
def test_an_old_registry_is_refused(epoch: int) -> None:
    run = federation_of(PLAN).sites["s000"]
    run.registry = registry_of(tuple(FOUR), epoch)
    run.offer(signed_plan(PLAN))
    assert run.code == "E_EPOCH"
    with pytest.raises(SumRefused, match="E_EPOCH"):
        Aggregator(run.registry, key_of("coordinator")).open(PLAN)


REFUSED_OFFERS: list[tuple[str, dict[str, Any], str]] = [
    ("other model", {"local": at.LocalJob("11" * 32, "77" * 32, Lineage(MODEL))}, "E_MODEL"),
    ("other job", {"local": at.LocalJob("77" * 32, MODEL, Lineage(MODEL))}, "E_MODEL"),
    ("not derived", {"local": at.LocalJob("11" * 32, MODEL, Lineage("77" * 32))}, "E_LINEAGE"),
    ("no budget", {"local": at.LocalJob("11" * 32, MODEL, Lineage(MODEL), budget_covers=False)}, "E_BUDGET"),
    ("wrong length", {"update": np.zeros(4, dtype=np.int64)}, "E_RANGE"),
]


@pytest.mark.parametrize(("_case", "changed", "code"), REFUSED_OFFERS, ids=[case[0] for case in REFUSED_OFFERS])
def test_a_plan_that_does_not_fit_this_site_is_declined_and_journalled(
    _case: str, changed: dict[str, Any], code: str
) -> None:
    run = replace(federation_of(PLAN).sites["s000"], **changed)
    run.offer(signed_plan(PLAN))
    assert run.code == code
    assert run.journal == [SumEnded(PLAN.sum_id, "aborted", code)]
    assert json.loads(run.last.body)["phase"] == "idle"
    assert run.offer(signed_plan(PLAN))[0] == at.Send(run.last)  # the same abort again


def test_a_nonfinite_update_stops_at_the_site() -> None:
    plan = plan_for(FOUR, 5)
    values = np.array([0.1, 0.2, float("nan"), 0.1, 0.0])
    run = federation_of(plan, dict.fromkeys(FOUR, values)).sites["s000"]
    run.offer(signed_plan(plan))
    assert run.code == "E_RANGE"
    assert run.sent[0].kind == "abort"


def test_a_site_that_is_not_invited_declines() -> None:
    run = site_run("s003", integers("s003", 5), registry_of(tuple(FOUR)))
    plan = integer_plan(FOUR[:3], 5)
    run.offer(signed_plan(plan))
    assert run.code == "E_PLAN"


def test_a_model_not_derived_from_the_signed_sum_is_refused() -> None:
    found = until(federation_of(PLAN), "publish")
    found.publish(tell=False)
    run = found.sites["s000"]
    run.tell(at.ResultShown(found.relayed["s000"].messages[0], found.figures, bytes.fromhex("77" * 32)))
    assert run.code == "E_LINEAGE"
    other = found.sites["s001"]
    other.tell(at.ResultShown(found.relayed["s001"].messages[0], found.figures, bytes.fromhex(NEW_MODEL)))
    assert other.closed == at.SumClosed(None, Lineage(NEW_MODEL))
    following = PLAN.model_copy(update={"sum_id": "56" * 32, "round": 8, "model_digest": "77" * 32})
    later = restarted(other, local=at.LocalJob("11" * 32, "77" * 32, Lineage(NEW_MODEL)))
    later.offer(signed_plan(following))
    assert later.code == "E_LINEAGE"


def test_a_site_that_was_away_follows_results_or_adopts_what_enough_others_vouch_for() -> None:
    found = until(federation_of(PLAN), "share")
    plan = found.records[0].plan
    registry = registry_of(tuple(FOUR))
    adverts = found.relayed["s000"].messages
    assert adopt(plan, adverts[:2], registry, colluding=1) == Lineage(MODEL)
    foreign = resigned("s003", adverts[3], type_of("advert"), plan="99" * 32)
    for vouching in (adverts[:1], (adverts[0], adverts[0]), (adverts[0], foreign)):
        with pytest.raises(SumRefused, match="E_LINEAGE"):
            adopt(plan, vouching, registry, colluding=1)
    done = run_sum(federation_of(PLAN))
    assert done.result is not None
    issued = done.sites["s000"]
    opened = outsider_result(done.result, opened_plan(done), registry, done.figures)
    lineage = Lineage(MODEL).follow(opened.body, bytes.fromhex(NEW_MODEL), evidence=b"")
    assert lineage == Lineage(NEW_MODEL)
    with pytest.raises(SumRefused, match="E_RESULT"):
        outsider_result(done.result, opened_plan(run_sum(federation_of(AGAIN))), registry, done.figures)
    assert issued.code is None


def opened_plan(found: Federation) -> Any:
    from privacy.secagg.envelope import open_message
    from privacy.secagg.messages import SumPlan

    return open_message(SumPlan, found.records[0].plan, found.sites["s000"].registry)


def type_of(kind: str) -> Any:
    from privacy.secagg.envelope import KINDS

    return {name: found for found, name in KINDS.items()}[kind]


def test_a_silent_coordinator_ends_the_sum() -> None:
    for phase, deadline_s in (("share", 60), ("mask", 60), ("consent", 600), ("reveal", 60), ("publish", 60)):
        found = until(federation_of(PLAN), phase)
        run = found.sites["s000"]
        run.tell(at.ClockTicked(), now_ms=deadline_s * 1000)
        assert run.code is None
        run.tell(at.ClockTicked(), now_ms=deadline_s * 1000 + 1)
        assert run.code == "E_DEADLINE"
        assert json.loads(run.last.body)["consented"] is (phase in ("reveal", "publish"))


def test_what_comes_after_the_deadline_is_too_late_too() -> None:
    found = until(federation_of(PLAN), "share")
    run = found.sites["s000"]
    event = at.AdvertsShown(found.relayed["s000"].messages)
    outputs = run.tell(event, now_ms=60_001)
    assert run.code == "E_DEADLINE"
    assert run.tell(event, now_ms=60_002) == outputs[1:]


# --- restarts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "consented"), [("share", False), ("mask", False), ("consent", False), ("reveal", True), ("publish", True)]
)
def test_a_restarted_site_says_truly_whether_it_had_consented(phase: str, consented: bool) -> None:
    found = until(federation_of(PLAN), phase)
    run = restarted(found.sites["s000"])
    run.offer(found.records[0].plan)
    assert run.code == "E_REPLAY"
    said = json.loads(run.last.body)
    assert said["consented"] is consented
    assert (said["view"] is None) is (phase in ("share", "mask"))
    assert run.journal[-1] == SumEnded(PLAN.sum_id, "aborted", "E_REPLAY")
    third = restarted(run)
    third.offer(found.records[0].plan)
    assert third.journal == run.journal
    assert third.last == run.last


def test_a_second_consent_is_refused_even_after_restart() -> None:
    found = until(federation_of(PLAN), "reveal")
    run = restarted(found.sites["s000"])
    with pytest.raises(OutOfOrder):
        run.tell(at.MaskedShown(()))
    run.offer(found.records[0].plan)
    assert [message.kind for message in run.sent] == ["abort"]


def test_a_crash_never_yields_a_second_vector() -> None:
    found = until(federation_of(PLAN), "mask")
    relay, run = found.relayed["s000"], found.sites["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    assert isinstance(run.journal[-1], VectorSpent)
    fresh = restarted(run)
    fresh.offer(found.records[0].plan)
    assert fresh.code == "E_REPLAY"
    assert fresh.upload is None
    declined = restarted(run)
    declined.journal = [SumEnded(PLAN.sum_id, "aborted", "E_POLICY")]
    declined.offer(found.records[0].plan)
    assert json.loads(declined.last.body)["phase"] == "idle"


def test_a_history_that_does_not_know_a_sum_gives_no_abort() -> None:
    with pytest.raises(ValueError, match="know"):
        abort_from(History(), "22" * 32, site="s000", signer=key_of("s000"), code="E_REPLAY")


def test_a_round_and_attempt_are_used_once_in_a_job() -> None:
    done = run_sum(federation_of(PLAN))
    run = restarted(done.sites["s000"])
    run.offer(signed_plan(PLAN.model_copy(update={"sum_id": "57" * 32})))
    assert run.code == "E_REPLAY"
    other = restarted(done.sites["s000"])
    other.offer(signed_plan(PLAN.model_copy(update={"sum_id": "57" * 32, "purpose": "evaluate"})))
    assert other.code is None  # another purpose counts for itself
    assert History.of(run.journal).last_attempt("11" * 32, "train") == (7, 0)


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_coordinator_killed_after_any_record_goes_on_from_its_records(stop: int) -> None:
    found = until(federation_of(PLAN), "publish")
    found.publish(tell=False)
    points = [0, 1, 2, 3, 6, 7, 8, 9]  # between the four commits nothing else is new
    records = found.records[: points[stop - 1] + 1]
    state, outputs = found.aggregator.resume(records)
    assert not any(isinstance(item, hub.Keep) for item in outputs)
    if isinstance(state, hub.Over):
        assert state.result == found.result
        return
    fresh = federation_of(PLAN)
    fresh.state, fresh.records = state, list(records)
    fresh.perform(outputs)
    finish_from(fresh, found)
    assert fresh.result == found.result


def finish_from(fresh: Federation, found: Federation) -> None:
    """Play the sites' recorded messages to a resumed coordinator."""
    spools = dict(found.spool)
    masked = {record.masked.body: record.masked for record in found.records if isinstance(record, hub.UploadCommitted)}
    kinds = {hub.Advertising: "advert", hub.Sharing: "shares", hub.Consenting: "survivors", hub.Revealing: "reveal"}
    for message in masked.values():
        body = Masked.model_validate_json(message.body)
        if (isinstance(fresh.state, hub.Masking) and body.sender in fresh.state.masked) or isinstance(
            fresh.state, hub.Consenting | hub.Revealing
        ):
            stage = Stage.read_again(
                5, 32, bytes.fromhex(body.payload), lambda index, name=body.sender: spools[name, index]
            )
            fresh.accumulator.add(body.sender, stage, lambda index, name=body.sender: spools[name, index])
    while not isinstance(fresh.state, hub.Unmasking | hub.Over):
        if isinstance(fresh.state, hub.Masking):
            for message in masked.values():
                sender = Masked.model_validate_json(message.body).sender
                if sender not in fresh.state.masked:
                    fresh.hear(hub.ChunkArrived(sender, 0, spools[sender, 0]))
                    fresh.hear(hub.Arrived(message))
        else:
            kind = kinds[type(fresh.state)]
            for run in found.sites.values():
                message = next(item for item in run.sent if item.kind == kind)
                fresh.hear(hub.Arrived(message, run.boxes if kind == "shares" else ()))
        fresh.end()
    fresh.hear(hub.SumRead(fresh.figures, bytes.fromhex(NEW_MODEL)))


def test_records_that_are_no_history_of_a_sum_are_refused() -> None:
    found = until(federation_of(PLAN), "publish")
    records, aggregator = found.records, found.aggregator
    for broken in ([], records[1:], [records[0], records[2]], [*records[:7], hub.SurvivorsFrozen(tuple(FOUR[:3]))]):
        with pytest.raises(ValueError, match=r"records|out of order"):
            aggregator.resume(broken)
    state, outputs = aggregator.resume([*records[:2], hub.SumAbandoned("E_COHORT")])
    assert isinstance(state, hub.Over)
    assert isinstance(outputs[0], hub.Concluded)
    assert state.refusal is not None
    assert state.refusal.code == "E_COHORT"


# --- spent ----------------------------------------------------------------------------------------------------


def spent_at(lost_site: str = "s000") -> tuple[Federation, SiteRun]:
    """Return a sum that ended after the vectors were out, and one site's journal of it."""
    found = until(federation_of(PLAN), "consent")
    return found, restarted(found.sites[lost_site])


def aborts(found: Federation, names: list[str]) -> tuple[Signed, ...]:
    for name in names:
        found.sites[name].tell(at.ClockTicked(), now_ms=10**9)
    return tuple(found.sites[name].last for name in names)


def test_a_spent_update_is_not_sent_again_without_noise_or_proof() -> None:
    _, run = spent_at()
    run.offer(signed_plan(AGAIN))
    assert run.code == "E_SPENT"
    _, allowed = spent_at()
    allowed.overridden = True
    allowed.offer(signed_plan(AGAIN))
    assert allowed.code is None


def noisy(plan: Any) -> Any:
    return plan.model_copy(update={"dp": plan.dp.model_copy(update={"mechanism": "local-dp-sgd", "unit": "record"})})


@pytest.mark.parametrize(("before", "code"), [("local-dp-sgd", None), ("none", "E_SPENT")])
def test_noise_pays_for_a_second_vector_only_if_the_first_was_noisy_too(before: str, code: str | None) -> None:
    _, run = spent_at()
    run.journal = [
        replace(record, mechanism=before) if isinstance(record, VectorSpent) else record for record in run.journal
    ]
    run.offer(signed_plan(noisy(AGAIN)))
    assert run.code == code


def test_a_void_proof_one_abort_short_is_refused() -> None:
    # #U2 = 4, c = 1, q = 3: a void proof takes 4 − 3 + 1 + 1 = 3 aborts
    found, run = spent_at()
    proofs = aborts(found, ["s001", "s002", "s003"])
    run.proofs = proofs[:2]
    run.offer(signed_plan(AGAIN))
    assert run.code == "E_SPENT"
    twice = restarted(spent_at()[1], proofs=(proofs[0], proofs[0], proofs[1]))
    twice.offer(signed_plan(AGAIN))
    assert twice.code == "E_SPENT"
    enough = restarted(found.sites["s000"], proofs=proofs)
    enough.offer(signed_plan(AGAIN))
    assert enough.code is None


def test_an_abort_after_consent_or_of_another_view_proves_nothing() -> None:
    found, run = spent_at()
    proofs = aborts(found, ["s001", "s002", "s003"])
    for change in ({"consented": True}, {"view": "99" * 32}, {"view": None}):
        last = resigned("s003", proofs[2], Abort, **change)
        other = restarted(run, proofs=(*proofs[:2], last))
        other.offer(signed_plan(AGAIN))
        assert other.code == "E_SPENT"
    forged = replace(proofs[2], signature=bytes(64))
    other = restarted(run, proofs=(*proofs[:2], forged))
    other.offer(signed_plan(AGAIN))
    assert other.code == "E_SIG"


def consents(
    run: SiteRun, survivors: tuple[str, ...], senders: list[str], view: str | None = None
) -> tuple[Signed, ...]:
    spent = next(record for record in run.journal if isinstance(record, VectorSpent))
    body = {"view": view or spent.view, "survivors": survivors, "inputs": "88" * 32}
    return tuple(sign(key_of(name), Survivors(sender=name, **body)) for name in senders)


def test_an_exclusion_proof_needs_all_consents_to_a_set_without_this_site() -> None:
    others = tuple(FOUR[1:])
    _, run = spent_at()
    for proofs, code in (
        (consents(run, others, FOUR[1:]), None),
        (consents(run, others, FOUR[1:3]), "E_SPENT"),
        (consents(run, tuple(FOUR), FOUR[1:]), "E_SPENT"),
        (consents(run, others, FOUR[1:], view="99" * 32), "E_SPENT"),
        (consents(run, others, FOUR[:3]), "E_SPENT"),
    ):
        again = restarted(run, proofs=proofs)
        again.offer(signed_plan(AGAIN))
        assert again.code == code


def test_a_retry_charges_again() -> None:
    noise = {"mechanism": "distributed", "unit": "site", "z": "1", "sigma_sq": 0, "norm_sq_max": 0, "honest_min": 2}
    bound = 2**18 + 3
    noise |= {"sigma_sq": (bound**2 + 16 + 1) // 2, "norm_sq_max": bound**2}
    plan = plan_for(FOUR, 5, colluding=1, dropouts=1, dp=noise)
    zeros = {name: np.zeros(5) for name in FOUR}
    found = until(federation_of(plan, zeros, noise=lambda _: lambda *_: np.zeros(5, dtype=np.int64)), "mask")
    relay, run = found.relayed["s000"], found.sites["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes, None))
    assert run.code == "E_BUDGET"
    charged, relay = found.sites["s001"], found.relayed["s001"]
    charged.tell(at.SharesShown(relay.messages, relay.boxes, "lease-1"))
    assert charged.journal[-1].lease == "lease-1"
    unable = site_run("s000", zeros["s000"], run.registry)
    unable.offer(signed_plan(plan))
    assert unable.code == "E_POLICY"


# --- uploads --------------------------------------------------------------------------------------------------


def uploading(dim: int = 5) -> tuple[Federation, dict[int, bytes], Signed]:
    found = until(federation_of(integer_plan(FOUR, dim, colluding=1, dropouts=1)), "mask")
    relay, run = found.relayed["s000"], found.sites["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    assert run.upload is not None
    chunks = dict(run.upload.job.chunks())
    assert run.upload.message is not None
    return found, chunks, run.upload.message


def test_a_bad_upload_leaves_the_accumulator_untouched() -> None:
    found, chunks, message = uploading(CHUNK_WORDS + 2)
    bad = [
        hub.ChunkArrived("s000", 1, chunks[1]),
        hub.ChunkArrived("s000", 0, chunks[0][:-1]),
        hub.ChunkArrived("s000", 7, chunks[1]),
    ]
    for event in bad:
        with pytest.raises(SumRefused, match="E_PAYLOAD"):
            found.hear(event)
    with pytest.raises(SumRefused, match="E_U2"):
        found.hear(hub.ChunkArrived("s777", 0, chunks[0]))
    for spoiled in ({}, {0: chunks[0]}, {0: chunks[0], 1: bytes(8)}):
        for index, data in spoiled.items():
            found.hear(hub.ChunkArrived("s000", index, data))
        found.hear(hub.Arrived(message))
        assert found.blamed[-1].code == "E_PAYLOAD"
        assert found.spool == {}
    assert not found.accumulator.words(0).any()
    assert not found.accumulator.words(1).any()
    for index, data in chunks.items():
        found.hear(hub.ChunkArrived("s000", index, data))
    wrong_count = resigned("s000", message, Masked, words=5)
    found.hear(hub.Arrived(wrong_count))
    assert found.blamed[-1].code == "E_PAYLOAD"
    for index, data in chunks.items():
        found.hear(hub.ChunkArrived("s000", index, data))
    found.hear(hub.Arrived(message))
    assert found.acknowledged == {"s000"}
    with pytest.raises(SumRefused, match="E_LATE"):
        found.hear(hub.ChunkArrived("s000", 0, chunks[0]))
    found.acknowledged.clear()
    found.hear(hub.Arrived(message))
    assert found.acknowledged == {"s000"}
    with pytest.raises(SumRefused, match="E_DUP"):
        found.hear(hub.Arrived(resigned("s000", message, Masked, payload="99" * 32)))


def test_a_resend_is_byte_identical() -> None:
    found, chunks, message = uploading()
    upload = found.sites["s000"].upload
    assert upload is not None
    assert dict(upload.job.chunks()) == chunks
    assert upload.message == message
    assert "hidden" in repr(upload)


def test_what_comes_after_the_freeze_is_late_and_changes_nothing() -> None:
    found, chunks, message = uploading()
    found.mask(FOUR[1:])
    assert isinstance(found.state, hub.Consenting)
    with pytest.raises(SumRefused, match="E_LATE"):
        found.hear(hub.ChunkArrived("s000", 0, chunks[0]))
    with pytest.raises(SumRefused, match="E_LATE"):
        found.hear(hub.Arrived(message))
    found.consent(FOUR)
    found.reveal(FOUR)
    found.publish()
    assert found.total.tolist() == sum(integers(name, 5) for name in FOUR[1:]).tolist()
    with pytest.raises(OutOfOrder):
        found.hear(hub.Arrived(message))


def test_a_site_that_aborts_is_a_dropout_from_then_on() -> None:
    found, chunks, message = uploading()
    found.hear(hub.ChunkArrived("s000", 0, chunks[0]))
    run = found.sites["s000"]
    run.tell(at.ClockTicked(), now_ms=10**9)
    found.hear(hub.Arrived(run.last))
    assert found.blamed[-1].code == "E_DEADLINE"
    assert found.spool == {}
    for event in (hub.ChunkArrived("s000", 0, chunks[0]), hub.Arrived(message)):
        with pytest.raises(SumRefused, match="E_LATE"):
            found.hear(event)
    other = resigned("s000", run.last, Abort, code="E_LATER")
    found.hear(hub.Arrived(other))
    assert found.blamed[-1].code == "E_DEADLINE"  # the first counts
    for name in FOUR[1:]:
        relay = found.relayed[name]
        found.sites[name].tell(at.SharesShown(relay.messages, relay.boxes))
        found.upload(name)
    assert hub.is_complete(found.state)  # type: ignore[arg-type]
    found.end()
    found.consent(FOUR)
    found.reveal(FOUR)
    found.publish()
    assert found.code is None


@pytest.mark.parametrize("phase", ["share", "mask"])
def test_an_abort_takes_a_site_out_of_the_phase_that_runs(phase: str) -> None:
    found = until(federation_of(PLAN), phase)
    before = {"share": "advertise", "mask": "share"}[phase]
    fresh = federation_of(PLAN) if before == "advertise" else until(federation_of(PLAN), "share")
    run = found.sites["s000"]
    run.tell(at.ClockTicked(), now_ms=10**9)
    if before == "advertise":
        fresh.open()
        for name in FOUR:
            fresh.hear(hub.Arrived(fresh.sites[name].offer(fresh.relayed[name].messages[0])[1].message))  # type: ignore[union-attr]
    else:
        for name in FOUR:
            fresh.sites[name].tell(at.AdvertsShown(fresh.relayed[name].messages))
            fresh.hear(hub.Arrived(fresh.sites[name].last, fresh.sites[name].boxes))
    unknown = resigned("s000", run.last, Abort, code="E_OTHER")
    fresh.hear(hub.Arrived(unknown))
    assert fresh.blamed[-1].code == "E_PHASE"
    fresh.end()
    assert "s000" not in fresh.relayed
    assert set(fresh.relayed) == set(FOUR[1:])


def test_aborts_of_other_sums_and_strangers_are_refused() -> None:
    found = until(federation_of(PLAN), "share")
    registry = with_member(registry_of((*FOUR, "s009")), "s009", operator="x")
    found.aggregator = replace(found.aggregator, registry=registry)
    run = found.sites["s000"]
    run.tell(at.ClockTicked(), now_ms=10**9)
    for sender, change, code in (
        ("s000", {"plan": "99" * 32}, "E_PLAN_MIX"),
        ("s009", {"sender": "s009"}, "E_UNINVITED"),
    ):
        with pytest.raises(SumRefused, match=code):
            found.hear(hub.Arrived(resigned(sender, run.last, Abort, **change)))
    waiting = until(federation_of(PLAN), "publish")
    with pytest.raises(OutOfOrder):
        waiting.hear(hub.Arrived(run.last))


def test_the_coordinator_keeps_its_own_order() -> None:
    found = until(federation_of(PLAN), "publish")
    figures = found.figures
    with pytest.raises(OutOfOrder):
        found.hear(hub.PhaseEnded())
    with pytest.raises(SumRefused, match="E_LATE"):
        found.hear(hub.ChunkArrived("s000", 0, b""))
    with pytest.raises(SumRefused, match="E_LATE"):
        found.hear(hub.Arrived(found.sites["s000"].sent[0]))
    with pytest.raises(OutOfOrder, match="names its new model"):
        found.hear(hub.SumRead(figures, None))
    early = until(federation_of(PLAN), "share")
    with pytest.raises(OutOfOrder):
        early.hear(hub.SumRead(figures, bytes(32)))
    with pytest.raises(OutOfOrder):
        early.hear(hub.ChunkArrived("s000", 0, b""))
    few = federation_of(PLAN)
    few.advertise(FOUR[:2])
    assert few.code == "E_COHORT"
    assert isinstance(few.records[-1], hub.SumAbandoned)


def test_a_phase_is_complete_once_everybody_answered_or_left() -> None:
    for phase in ("share", "mask", "consent", "reveal"):
        found = until(federation_of(PLAN), phase)
        assert not hub.is_complete(found.state)  # type: ignore[arg-type]
        found.sites["s003"].tell(at.ClockTicked(), now_ms=10**9)
        found.hear(hub.Arrived(found.sites["s003"].last))
        end, ended = found.end, []
        found.end = lambda ended=ended, found=found: ended.append(hub.is_complete(found.state))  # type: ignore[method-assign, misc]
        getattr(found, phase)(FOUR[:3])
        assert ended == [True]
        found.end = end  # type: ignore[method-assign]


def test_a_consent_that_comes_twice_counts_once() -> None:
    found = until(federation_of(PLAN), "consent")
    for name in FOUR:
        found.sites[name].tell(at.MaskedShown(found.relayed[name].messages))
    for _ in range(3):
        found.hear(hub.Arrived(found.sites["s000"].last))
    found.end()
    assert found.code == "E_CONSENT"


def test_shares_of_a_site_that_did_not_advertise_are_refused() -> None:
    found = federation_of(PLAN)
    found.advertise(FOUR[:3])
    found.sites["s000"].tell(at.AdvertsShown(found.relayed["s000"].messages))
    foreign = resigned("s003", found.sites["s000"].last, type_of("shares"), sender="s003")
    with pytest.raises(SumRefused, match="E_U2"):
        found.hear(hub.Arrived(foreign))


def test_an_update_that_cannot_be_brought_within_its_norm_leaves_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't happen with a sound plan; were it to, the site would stop and wipe what it holds."""
    from privacy.secagg import site

    bound = 2**18 + 3
    noise = {"mechanism": "distributed", "unit": "site", "z": "1", "honest_min": 2}
    noise |= {"sigma_sq": (bound**2 + 17) // 2, "norm_sq_max": bound**2}
    plan = plan_for(FOUR, 5, colluding=1, dropouts=1, dp=noise)
    updates = {name: np.full(5, 0.9) for name in FOUR}
    found = until(federation_of(plan, updates, noise=lambda _: lambda *_: np.zeros(5, dtype=np.int64)), "mask")
    run, relay = found.sites["s000"], found.relayed["s000"]
    monkeypatch.setattr(site, "MOST_SHRINKS", 0)
    run.tell(at.SharesShown(relay.messages, relay.boxes, "lease-1"))
    assert run.code == "E_RANGE"
    assert not any(isinstance(record, VectorSpent) for record in run.journal)


def test_an_update_just_above_its_norm_is_shrunk_a_little_more() -> None:
    from privacy.secagg.quantize import Grid, Rounding
    from privacy.secagg.secret import Secret
    from privacy.secagg.site import within_norm

    values = np.full(100, 0.0938)
    grid = Grid(1.0, 4, 16, Rounding.NEAREST)
    tight = within_norm(values, grid, Secret(bytes(32)), 100 * 2**2)
    assert tight.norm_sq() == 400
    tighter = within_norm(values, grid, Secret(bytes(32)), 399)
    assert tighter.norm_sq() == 100


def test_a_freeze_below_the_quorum_deletes_what_was_staged() -> None:
    found = until(federation_of(PLAN), "mask")
    found.mask(FOUR[:2], half=FOUR[2:3])
    assert found.code == "E_COHORT"
    assert {key[0] for key in found.spool} == set(FOUR[:2])


def test_survivors_whose_shares_are_gone_end_the_sum_before_anybody_consents() -> None:
    names = names_of(12)
    plan = integer_plan(names, 5, colluding=0, dropouts=0, degree=4, share_threshold=4)
    found = until(federation_of(plan), "mask")
    found.mask(names[1:])
    assert found.code == "E_TOO_FEW_SHARES"


def test_an_accumulator_is_told_apart_from_what_it_was_made_for() -> None:
    assert Accumulator(7, 16).words(0).dtype == np.uint16
    assert isinstance(ConsentGiven("a", "b", "c"), ConsentGiven)
    assert SumBegun("a", "b", "train", 0, 0, "c") == SumBegun("a", "b", "train", 0, 0, "c")
