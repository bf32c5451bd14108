"""Messages between a coordinator and its sites: delivery, repetition, and what is refused."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from federation.errors import InvalidInput, OutOfOrder, PolicyRefused
from federation.identity import IdentityKey
from federation.link import link_pb2 as pb
from federation.link.backend import AttendanceState
from federation.link.client import LinkState
from federation.link.correspondence import sign_message
from federation.link.limits import LinkLimits
from federation.link.wire import LINK, signed
from federation.messages import Body, MemberStatus, Offer, SignedMessage
from tests.faults.link_rig import NERVOUS, QUICK, Coordinator, Site, SiteKeys, StartSite, status_message, until

pytestmark = pytest.mark.enable_socket


def test_messages_travel_both_ways_and_are_acknowledged(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    body = site.status_message("one")
    site.client.send(body)
    until(lambda: coordinator.received == [("cleveland", body)])
    until(lambda: site.acknowledged == [body.message_id])
    answer = status_message(coordinator.server.message_ids, "two")
    coordinator.server.send("cleveland", answer)
    until(lambda: site.received == [answer])
    until(lambda: coordinator.server.pending_count("cleveland") == 0)


def test_a_message_sent_while_the_site_is_away_arrives_when_it_is_back(
    coordinator: Coordinator, start: StartSite
) -> None:
    body = status_message(coordinator.server.message_ids)
    coordinator.server.send("cleveland", body)
    site = start()
    until(lambda: site.received == [body])


def test_messages_for_an_absent_site_are_bounded(coordinator: Coordinator) -> None:
    for _ in range(QUICK.max_pending_count):
        coordinator.server.send("cleveland", status_message(coordinator.server.message_ids))
    with pytest.raises(OutOfOrder) as refused:
        coordinator.server.send("cleveland", status_message(coordinator.server.message_ids))
    assert refused.value.code == "CFD-L18"
    assert coordinator.server.pending_count("cleveland") == QUICK.max_pending_count


def test_a_fault_of_the_backend_does_not_end_the_watch_over_the_sites(
    coordinator: Coordinator, start: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start()
    known = coordinator.member

    def locked(name: str) -> None:
        raise RuntimeError("database is locked")

    monkeypatch.setattr(coordinator, "member", locked)
    time.sleep(1.5)
    monkeypatch.setattr(coordinator, "member", known)
    until(site.client.connected)
    coordinator.members["cleveland"] = site.keys.member(MemberStatus.REVOKED)
    until(lambda: any(problem.code == "CFD-E24" for problem in site.lost))


def test_a_withdrawn_message_is_not_sent(coordinator: Coordinator, start: StartSite) -> None:
    withdrawn = coordinator.server.send("cleveland", status_message(coordinator.server.message_ids, "old"))
    assert coordinator.server.withdraw("cleveland", withdrawn)
    kept = status_message(coordinator.server.message_ids, "new")
    coordinator.server.send("cleveland", kept)
    site = start()
    until(lambda: site.received == [kept])


def test_a_message_that_fails_at_the_receiver_comes_again_and_is_taken_once(
    coordinator: Coordinator, start: StartSite
) -> None:
    faults = [RuntimeError("database is locked")] * 2

    def fail_twice(body: Body) -> None:
        if faults:
            raise faults.pop()

    coordinator.before_taking = fail_twice
    site = start()
    body = site.status_message()
    site.client.send(body)
    until(lambda: site.acknowledged == [body.message_id])
    assert coordinator.received == [("cleveland", body)]


def test_a_refused_message_is_told_to_its_sender_and_not_sent_again(coordinator: Coordinator, start: StartSite) -> None:
    tries: list[Body] = []

    def refuse(body: Body) -> None:
        tries.append(body)
        raise PolicyRefused("CFD-S03", "no rule allows it")

    coordinator.before_taking = refuse
    site = start()
    message_id = site.client.send(site.status_message())
    until(lambda: site.refused)
    assert [(known, problem.code, problem.message) for known, problem in site.refused] == [
        (message_id, "CFD-S03", "no rule allows it")
    ]
    time.sleep(2 * QUICK.resend_s)
    assert len(tries) == 1
    assert site.client.status().pending_count == 0


def test_a_site_tells_the_coordinator_of_a_refusal(coordinator: Coordinator, start: StartSite) -> None:
    site = start()

    def refuse(body: Body) -> None:
        raise PolicyRefused("CFD-S03", "no rule allows it")

    site.before_taking = refuse
    message_id = coordinator.server.send("cleveland", status_message(coordinator.server.message_ids))
    until(lambda: coordinator.refused == [("cleveland", message_id, "CFD-S03")])


def test_a_message_over_the_ceiling_is_refused_before_it_is_sent(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    ids = coordinator.server.message_ids
    plan = "00" * (2 << 20)
    offer = Offer(
        message_id=ids.next(), job="heart-0a1b2c", plan=plan, submitter="alice", signature="", vouched=True, contract=""
    )
    with pytest.raises(InvalidInput) as refused:
        coordinator.server.send("cleveland", offer)
    assert refused.value.code == "CFD-L11"
    assert str(QUICK.max_message_bytes - 1024) in refused.value.message
    with pytest.raises(InvalidInput):
        site.client.send(offer.model_copy(update={"message_id": site.client.message_ids.next()}))


def test_a_message_id_of_another_form_is_refused_to_the_caller(coordinator: Coordinator) -> None:
    body = status_message(coordinator.server.message_ids).model_copy(update={"message_id": "m-1"})
    with pytest.raises(InvalidInput) as refused:
        coordinator.server.send("cleveland", body)
    assert refused.value.code == "CFD-L14"


def test_silence_is_noticed_by_both_and_told_with_times(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    until(lambda: coordinator.server.connected("cleveland"))
    since = coordinator.server.site_state("cleveland")
    assert since is not None
    assert since.state is AttendanceState.CONNECTED
    site.client.stop()
    until(lambda: not coordinator.server.connected("cleveland"))
    after = coordinator.server.site_state("cleveland")
    assert after is not None
    assert after.state is AttendanceState.LOST
    assert after.since >= after.last_seen >= since.since
    until(lambda: len(coordinator.attendance) >= 2)
    assert [(name, str(state)) for name, state, _ in coordinator.attendance] == [
        ("cleveland", "connected"),
        ("cleveland", "lost"),
    ]


def test_heartbeats_keep_a_quiet_attendance(coordinator: Coordinator, start: StartSite) -> None:
    start()
    until(lambda: coordinator.server.connected("cleveland"))
    first = coordinator.server.site_state("cleveland")
    assert first is not None
    for _ in range(3):  # as if most of the time of a silence had passed, three times, each with a heartbeat in it
        coordinator.clock.forward(0.7 * QUICK.lost_after_s)
        moved = coordinator.clock.now()
        until(lambda: coordinator.server.site_state("cleveland").last_seen > moved)  # noqa: B023
    later = coordinator.server.site_state("cleveland")
    assert later is not None
    assert later.since == first.since
    assert [str(state) for _, state, _ in coordinator.attendance] == ["connected"]


# --- a peer that doesn't keep the rules -----------------------------------------------------------------------


class RawSite:
    """A site that speaks the protocol by hand, so that it can break it."""

    def __init__(self, coordinator: Coordinator, site: Site) -> None:
        self.site = site
        keys = site.keys
        credentials = grpc.ssl_channel_credentials(
            keys.federation.authority_pem, keys.tls().key_pem, keys.tls().certificate_pem
        )
        self.channel = grpc.secure_channel(
            f"127.0.0.1:{coordinator.port}",
            credentials,
            options=[("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)],
        )

    def opening(self, **changes: Any) -> pb.Envelope:
        hello = self.site.hello(self.site.client.message_ids.next()).model_copy(update=changes)
        return pb.Envelope(opening=pb.Opening(hello=signed(*self.sign(hello))))

    def sign(self, body: Body, identity: IdentityKey | None = None) -> tuple[str, SignedMessage]:
        return sign_message(identity or self.site.keys.identity, body, LinkLimits())

    def say(self, *envelopes: pb.Envelope, answers: int) -> list[pb.Envelope]:
        """Send `envelopes` and return the first `answers` that come back, heartbeats left out."""
        over: list[bool] = []

        def outgoing() -> Any:
            yield from envelopes
            while not over:
                time.sleep(0.01)

        call = self.channel.stream_stream(f"/{LINK}/Attend", pb.Envelope.SerializeToString, pb.Envelope.FromString)(
            outgoing(), timeout=60
        )
        found: list[pb.Envelope] = []
        try:
            for envelope in call:
                if envelope.WhichOneof("content") != "heartbeat":
                    found.append(envelope)
                if len(found) == answers:
                    break
        finally:
            over.append(True)
            call.cancel()
        return found

    def refusal(self, *envelopes: pb.Envelope) -> str:
        """Send `envelopes` and return the code with which the coordinator ends the stream."""
        with pytest.raises(grpc.RpcError) as ended:
            self.say(*envelopes, answers=99)
        return dict(ended.value.trailing_metadata() or ()).get("confide-code", str(ended.value.code()))


@pytest.fixture
def raw(coordinator: Coordinator, tmp_path: Path) -> Any:
    keys = SiteKeys(coordinator.federation, "cleveland")
    coordinator.add(keys)
    made = RawSite(coordinator, Site(keys, tmp_path / "raw", coordinator.port))
    yield made
    made.channel.close()


def test_a_repeated_message_is_acknowledged_again_and_taken_once(coordinator: Coordinator, raw: RawSite) -> None:
    envelope = pb.Envelope(message=signed(*raw.sign(raw.site.status_message())))
    answers = raw.say(raw.opening(), envelope, envelope, envelope, answers=4)
    assert [answer.WhichOneof("content") for answer in answers] == ["opening"] + ["acknowledged"] * 3
    assert len(coordinator.received) == 1


def test_a_message_replayed_on_a_later_connection_is_taken_once(coordinator: Coordinator, raw: RawSite) -> None:
    envelope = pb.Envelope(message=signed(*raw.sign(raw.site.status_message())))
    raw.say(raw.opening(), envelope, answers=2)
    answers = raw.say(raw.opening(), envelope, answers=2)
    assert answers[1].WhichOneof("content") == "acknowledged"
    assert len(coordinator.received) == 1


def test_an_id_that_comes_again_with_another_content_is_refused(coordinator: Coordinator, raw: RawSite) -> None:
    first = raw.site.status_message("first")
    second = first.model_copy(update={"job": "heart-ffffff"})
    answers = raw.say(
        raw.opening(),
        pb.Envelope(message=signed(*raw.sign(first))),
        pb.Envelope(message=signed(*raw.sign(second))),
        answers=3,
    )
    assert answers[2].refused.code == "CFD-L10"
    assert coordinator.received == [("cleveland", first)]


def test_a_message_signed_by_another_key_is_refused_and_not_used(coordinator: Coordinator, raw: RawSite) -> None:
    forged = raw.sign(raw.site.status_message(), IdentityKey.generate())
    answers = raw.say(raw.opening(), pb.Envelope(message=signed(*forged)), answers=2)
    assert answers[1].refused.code == "CFD-E01"
    assert coordinator.received == []


def test_a_forged_message_does_not_use_up_the_id_of_a_true_one(coordinator: Coordinator, raw: RawSite) -> None:
    body = raw.site.status_message()
    forged = raw.sign(body, IdentityKey.generate())
    answers = raw.say(
        raw.opening(),
        pb.Envelope(message=signed(*forged)),
        pb.Envelope(message=signed(*raw.sign(body))),
        answers=3,
    )
    assert answers[2].WhichOneof("content") == "acknowledged"
    assert coordinator.received == [("cleveland", body)]


def test_an_envelope_with_another_id_than_its_body_is_refused(coordinator: Coordinator, raw: RawSite) -> None:
    _, message = raw.sign(raw.site.status_message())
    other = raw.site.client.message_ids.next()
    answers = raw.say(raw.opening(), pb.Envelope(message=signed(other, message)), answers=2)
    assert answers[1].refused.code == "CFD-L09"
    assert coordinator.received == []


def test_a_hello_for_another_site_is_refused(coordinator: Coordinator, raw: RawSite) -> None:
    assert raw.refusal(raw.opening(site="hungary")) == "CFD-L08"
    assert coordinator.attendance == []


def test_a_hello_signed_by_another_key_is_refused(coordinator: Coordinator, raw: RawSite) -> None:
    hello = raw.site.hello(raw.site.client.message_ids.next())
    forged = raw.sign(hello, IdentityKey.generate())
    assert raw.refusal(pb.Envelope(opening=pb.Opening(hello=signed(*forged)))) == "CFD-E01"
    assert coordinator.attendance == []


def test_a_stream_that_does_not_begin_with_a_hello_is_refused(raw: RawSite) -> None:
    envelope = pb.Envelope(message=signed(*raw.sign(raw.site.status_message())))
    assert raw.refusal(envelope) == "CFD-L09"


@pytest.mark.parametrize("coordinator", [NERVOUS], indirect=True, ids=["nervous"])
def test_a_stream_without_a_hello_is_cut(raw: RawSite) -> None:
    assert raw.refusal() in ("StatusCode.CANCELLED", "CFD-L01")


def test_a_message_over_four_mebibytes_is_refused_by_the_receiver(coordinator: Coordinator, raw: RawSite) -> None:
    large = pb.Envelope(message=pb.Signed(kind="answer", body=b"x" * ((4 << 20) + 1)))
    assert raw.refusal(raw.opening(), large) == "StatusCode.RESOURCE_EXHAUSTED"
    assert coordinator.received == []


# --- membership -----------------------------------------------------------------------------------------------


def test_a_pending_site_attends_and_its_messages_are_refused(coordinator: Coordinator, start: StartSite) -> None:
    coordinator.add(SiteKeys(coordinator.federation, "cleveland"), MemberStatus.PENDING)
    site = start()
    assert site.connected[0].status is MemberStatus.PENDING
    site.client.send(site.status_message())
    until(lambda: site.refused)
    assert site.refused[0][1].code == "CFD-L16"
    assert coordinator.received == []


def test_a_revoked_site_is_refused_and_does_not_try_at_full_pace(coordinator: Coordinator, start: StartSite) -> None:
    coordinator.add(SiteKeys(coordinator.federation, "cleveland"), MemberStatus.REVOKED)
    site = start(wait=False)
    until(lambda: site.lost)
    time.sleep(1.0)
    assert [problem.code for problem in site.lost] == ["CFD-E24"]
    status = site.client.status()
    assert status.state is LinkState.BLOCKED
    assert status.problem is not None
    assert "cleveland is revoked" in status.problem.message
    assert status.retry_s == QUICK.permanent_retry_s


def test_a_site_suspended_while_it_attends_is_sent_away_at_its_next_word(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start()
    coordinator.members["cleveland"] = site.keys.member(MemberStatus.SUSPENDED)
    site.client.send(site.status_message())
    until(lambda: site.lost)
    assert site.lost[0].code == "CFD-E24"
    assert coordinator.received == []
    assert not coordinator.server.connected("cleveland")


def test_a_quiet_site_that_is_revoked_is_sent_away_within_seconds(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    coordinator.members["cleveland"] = site.keys.member(MemberStatus.REVOKED)
    until(lambda: site.lost)
    assert site.lost[0].code == "CFD-E24"
    assert not coordinator.server.connected("cleveland")


def test_a_site_that_is_confirmed_again_comes_back_at_once_when_asked_to(
    coordinator: Coordinator, start: StartSite
) -> None:
    coordinator.add(SiteKeys(coordinator.federation, "cleveland"), MemberStatus.SUSPENDED)
    site = start(wait=False)
    until(lambda: site.lost)
    coordinator.members["cleveland"] = site.keys.member()
    site.client.retry_now()
    until(site.client.connected)


def test_a_certificate_for_a_key_that_the_member_no_longer_has_is_refused(
    coordinator: Coordinator, start: StartSite
) -> None:
    old = SiteKeys(coordinator.federation, "cleveland")
    coordinator.add(SiteKeys(coordinator.federation, "cleveland"))
    site = start(wait=False, keys=old)
    until(lambda: site.lost)
    assert site.lost[0].code == "CFD-L05"


def test_a_second_daemon_of_one_site_ends_the_first(coordinator: Coordinator, start: StartSite) -> None:
    first = start()
    second = start()
    until(lambda: first.lost)
    assert first.lost[0].code == "CFD-L15"
    first.client.stop()
    until(second.client.connected)
    assert coordinator.server.connected("cleveland")
