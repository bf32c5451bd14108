"""Bad keys, boxes and shares: refused where they appear, and the right site named."""

import json
from dataclasses import replace
from typing import Any

import pytest

from privacy.secagg import aggregator_states as hub
from privacy.secagg import digests
from privacy.secagg import site_states as at
from privacy.secagg.deal_tree import deal_leaf, tree_paths
from privacy.secagg.envelope import Signed, encode, sign
from privacy.secagg.errors import Strength, SumRefused
from privacy.secagg.field import PRIME
from privacy.secagg.keys import seal_box
from privacy.secagg.messages import Advert, Box, Masked, Reveal, Shares, Survivors
from privacy.secagg.secret import Secret
from tests.support.secure_sums import (
    Federation,
    federation_of,
    integer_plan,
    integers,
    key_of,
    names_of,
    registry_of,
    resigned,
    run_sum,
    until,
)

FOUR = names_of(4)
PLAN = integer_plan(FOUR, 5, colluding=1, dropouts=1)
LOW_ORDER = "00" * 32


def relay_of(found: Federation, name: str = "s000") -> hub.Relay:
    return found.relayed[name]


def refused_by_hub(found: Federation, event: hub.Event) -> SumRefused:
    before = found.state
    with pytest.raises(SumRefused) as refused:
        found.hear(event)
    assert found.state is before
    return refused.value


def adverts_with(found: Federation, name: str, **changed: str) -> tuple[Signed, ...]:
    messages = list(relay_of(found).messages)
    place = FOUR.index(name)
    messages[place] = resigned(name, messages[place], Advert, **changed)
    return tuple(messages)


def test_a_forged_key_is_refused() -> None:
    found = until(federation_of(PLAN), "share")
    messages = list(relay_of(found).messages)
    forged = resigned("s002", messages[2], Advert, mask_pk="09" + "00" * 31)
    messages[2] = replace(forged, signature=key_of("mallory").sign(forged.body))
    run = found.sites["s000"]
    run.tell(at.AdvertsShown(tuple(messages)))
    assert run.code == "E_SIG"


@pytest.mark.parametrize("own", [False, True])
def test_a_copied_key_is_refused(own: bool) -> None:
    """Copied from another site, or used twice by one."""
    found = until(federation_of(PLAN), "share")
    source = json.loads(relay_of(found).messages[2 if own else 1].body)
    run = found.sites["s000"]
    run.tell(at.AdvertsShown(adverts_with(found, "s002", mask_pk=source["enc_pk"])))
    assert run.code == "E_DUPKEY"
    assert json.loads(run.last.body)["blame"] == (["s002"] if own else ["s001", "s002"])


def test_low_order_points_are_refused_and_blamed() -> None:
    found = until(federation_of(PLAN), "share")
    run = found.sites["s000"]
    run.tell(at.AdvertsShown(adverts_with(found, "s003", enc_pk=LOW_ORDER)))
    assert run.code == "E_KEY"
    assert json.loads(run.last.body)["blame"] == ["s003"]


def test_the_coordinator_keeps_bad_adverts_from_the_others() -> None:
    found = federation_of(PLAN)
    for run in found.sites.values():
        run.registry = registry_of((*FOUR, "s009"))
    found.aggregator = replace(found.aggregator, registry=registry_of((*FOUR, "s009")))
    found.open()
    for name in FOUR:
        found.sites[name].offer(found.relayed[name].messages[0])
    first, second = (found.sites[name].last for name in FOUR[:2])
    found.hear(hub.Arrived(first))
    found.hear(hub.Arrived(first))  # a repeat
    key = json.loads(first.body)["mask_pk"]
    again = resigned("s000", first, Advert, nonce="99" * 32)
    cases = [
        (again, "E_DUP", Strength.PROVED, ("s000",)),
        (resigned("s001", second, Advert, mask_pk=key), "E_DUPKEY", Strength.PAIR, ("s000", "s001")),
        (resigned("s001", second, Advert, mask_pk=LOW_ORDER), "E_KEY", Strength.PROVED, ("s001",)),
        (resigned("s001", second, Advert, plan="99" * 32), "E_PLAN_MIX", Strength.NONE, ()),
        (resigned("s009", second, Advert, sender="s009"), "E_UNINVITED", Strength.NONE, ()),
        (replace(second, signature=bytes(64)), "E_SIG", Strength.NONE, ()),
    ]
    for message, code, strength, blame in cases:
        refusal = refused_by_hub(found, hub.Arrived(message))
        assert (refusal.code, refusal.strength, refusal.blame) == (code, strength, blame)
    found.hear(hub.Arrived(second))
    assert not hub.is_complete(found.state)
    for name in FOUR[2:]:
        found.hear(hub.Arrived(found.sites[name].last))
    assert hub.is_complete(found.state)


# --- dealing --------------------------------------------------------------------------------------------------


class Dealer:
    """A malicious site that deals what it likes, in a tree that it signs."""

    def __init__(self, found: Federation, name: str) -> None:
        self.found, self.name = found, name
        run = found.sites[name]
        run.tell(at.AdvertsShown(found.relayed[name].messages))
        assert isinstance(run.state, at.Shared)
        self.state, self.shares, self.boxes = run.state, run.last, [json.loads(box) for box in run.boxes]

    def deal(self, change: Any) -> hub.Arrived:
        """Return `shares` and boxes after `change` was made to each plain deal or box."""
        roster, boxes = self.state.roster, []
        for box in self.boxes:
            fields = {**box, "path": ()}
            change(fields)
            boxes.append(Box.model_validate(fields))
        root, paths = tree_paths([deal_leaf(roster, box) for box in boxes])
        placed = [
            encode(box.model_copy(update={"path": tuple(node.hex() for node in path)}))
            for box, path in zip(boxes, paths, strict=True)
        ]
        message = resigned(self.name, self.shares, Shares, deal_root=root.hex())
        self.found.sites[self.name].sent[-1] = message
        return hub.Arrived(message, tuple(placed))

    def sealed(self, to: str, b_share: bytes, m_share: bytes) -> dict[str, str]:
        """Return fields of a box with these shares."""
        roster, salt = self.state.roster, bytes(16)
        plain = Secret(b_share + salt + m_share + salt)
        key = bytes.fromhex(self.state.adverts[to].body.enc_pk)
        return {
            "box": seal_box(plain, key, roster, self.name, to).hex(),
            "c_b": digests.share_commitment("b", roster, self.name, to, b_share, salt).hex(),
            "c_m": digests.share_commitment("m", roster, self.name, to, m_share, salt).hex(),
        }


def with_dealer(change: Any, name: str = "s001") -> tuple[Federation, Dealer]:
    """Return a federation whose sites were told the members after `name` dealt as `change` says."""
    found = until(federation_of(PLAN), "share")
    dealer = Dealer(found, name)
    for site in FOUR:
        if site != name:
            found.sites[site].tell(at.AdvertsShown(found.relayed[site].messages))
            found.hear(hub.Arrived(found.sites[site].last, found.sites[site].boxes))
    found.hear(dealer.deal(lambda fields: change(dealer, fields)))
    run = found.sites[name]
    assert isinstance(run.state, at.Shared)
    run.state = replace(run.state, shares=run.last)
    found.end()
    return found, dealer


def test_a_bad_box_names_the_pair() -> None:
    def spoil(_: Dealer, fields: dict[str, Any]) -> None:
        if fields["to"] == "s000":
            fields["box"] = "ab" * 146

    found, _ = with_dealer(spoil)
    relay = relay_of(found)
    run = found.sites["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    assert run.code == "E_BOX"
    assert json.loads(run.last.body)["blame"] == ["s000", "s001"]
    found.hear(hub.Arrived(run.last))
    found.mask([name for name in FOUR if name != "s000"])
    found.consent(FOUR)
    found.reveal(FOUR)
    found.publish()
    assert found.code is None  # one dispute is one dropout
    assert found.survivors == FOUR[1:]


def test_a_share_that_is_not_the_one_committed_to_names_the_pair() -> None:
    def swap(dealer: Dealer, fields: dict[str, Any]) -> None:
        if fields["to"] == "s002":
            fields.update(dealer.sealed("s002", bytes(33), bytes(33)), c_m="77" * 32)

    found, _ = with_dealer(swap)
    relay, run = relay_of(found, "s002"), found.sites["s002"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    assert run.code == "E_SHARE_COMMIT"
    assert json.loads(run.last.body)["blame"] == ["s001", "s002"]


def test_a_box_outside_the_signed_tree_is_refused() -> None:
    found = until(federation_of(PLAN), "mask")
    relay, run = relay_of(found), found.sites["s000"]
    box = json.loads(relay.boxes[0])
    for change in ({"c_b": "77" * 32}, {"path": box["path"][:-1]}, {"path": [*box["path"], "77" * 32]}):
        spoiled = encode(
            Box.model_validate(
                {
                    **box,
                    **{k: tuple(v) if isinstance(v, list) else v for k, v in change.items()},
                    "path": tuple(change.get("path", box["path"])),
                }
            )
        )
        other = replace(run, state=run.state, sent=[])
        with pytest.raises(SumRefused, match="E_PATH"):
            at_checks(other, relay, (spoiled, *relay.boxes[1:]))


def at_checks(run: Any, relay: hub.Relay, boxes: tuple[bytes, ...]) -> None:
    """Check boxes as the site's step does, without using the state up."""
    from privacy.secagg.keys import BoxKey
    from privacy.secagg.site_checks import Recipient, check_boxes, check_shares

    state = run.state
    shares = check_shares(
        state.terms, relay.messages, state.shares, roster=state.roster, ring=state.ring, site=run.site.name
    )
    check_boxes(boxes, shares, Recipient(run.site.name, BoxKey(state.box_key), state.roster, state.ring))


def test_the_coordinator_keeps_bad_deals_from_the_others() -> None:
    found = until(federation_of(PLAN), "share")
    for name in FOUR:
        found.sites[name].tell(at.AdvertsShown(found.relayed[name].messages))
    run, other = found.sites["s000"], found.sites["s001"]
    stranger = resigned("s001", other.last, Shares, roster="99" * 32)
    cases = [
        (hub.Arrived(run.last, run.boxes[1:]), "E_PATH"),
        (hub.Arrived(run.last, (*run.boxes, run.boxes[0])), "E_PATH"),
        (hub.Arrived(run.last, other.boxes), "E_PATH"),
        (hub.Arrived(run.last, (*run.boxes[1:], b"x" * 9000)), "E_SIZE"),
        (hub.Arrived(run.last, (*run.boxes[1:], b"x")), "E_NONCANON"),
        (hub.Arrived(stranger, other.boxes), "E_ROSTER_SPLIT"),
    ]
    for event, code in cases:
        assert refused_by_hub(found, event).code == code
    found.hear(hub.Arrived(run.last, run.boxes))
    found.hear(hub.Arrived(run.last, run.boxes))
    again = resigned("s000", run.last, Shares, commit_b="99" * 32)
    assert refused_by_hub(found, hub.Arrived(again, run.boxes)).code == "E_DUP"
    self_box = json.loads(run.boxes[0])
    reflected = encode(Box.model_validate({**self_box, "to": "s000", "path": tuple(self_box["path"])}))
    assert refused_by_hub(found, hub.Arrived(other.last, (reflected,))).code == "E_PATH"
    own = encode(Box.model_validate({**json.loads(other.boxes[0]), "to": "s001", "path": ()}))
    assert refused_by_hub(found, hub.Arrived(other.last, (own,))).code == "E_PATH"


def run_with_dealer(change: Any, lost: dict[str, int]) -> Federation:
    found, _ = with_dealer(change)
    found.mask([name for name in FOUR if lost.get(name, 9) > 2])
    found.consent(FOUR)
    found.reveal(FOUR)
    found.publish()
    return found


def bad_b(dealer: Dealer, fields: dict[str, Any]) -> None:
    fields.update(dealer.sealed(fields["to"], (int(fields["to"][1:]) + 1).to_bytes(33, "big"), bytes(33)))


def out_of_range(dealer: Dealer, fields: dict[str, Any]) -> None:
    fields.update(dealer.sealed(fields["to"], PRIME.to_bytes(33, "big"), PRIME.to_bytes(33, "big")))


@pytest.mark.parametrize("lost", [{}, {"s001": 2}], ids=["in the sum", "lost"])
@pytest.mark.parametrize(
    ("change", "code"), [(bad_b, "E_BAD_DEALER"), (out_of_range, "E_SHARE_RANGE")], ids=["polynomial", "range"]
)
def test_an_inconsistent_dealer_is_named(change: Any, code: str, lost: dict[str, int]) -> None:
    found = run_with_dealer(change, lost)
    assert found.code == code
    assert found.refusal.blame == ("s001",)
    assert found.refusal.strength is Strength.PROVED
    assert found.total is None


# --- revealing ------------------------------------------------------------------------------------------------


def at_reveal(lost: dict[str, int] | None = None) -> Federation:
    """Return a federation of five whose sites have revealed, though the coordinator has heard none of it."""
    names = names_of(5)
    found = federation_of(integer_plan(names, 5, colluding=0, dropouts=2))
    gone = lost or {}
    found.advertise(names)
    found.share(names)
    found.mask([name for name in names if name not in gone])
    found.consent(names)
    for name in names:
        if name in found.relayed:
            found.sites[name].tell(at.CertificateShown(found.relayed[name].messages))
    return found


def finish(found: Federation, revealing: list[str]) -> None:
    for name in revealing:
        found.hear(hub.Arrived(found.sites[name].last))
    found.end()
    found.publish()


def test_a_wrong_share_is_dropped_and_its_sender_named() -> None:
    found = at_reveal()
    reveal = json.loads(found.sites["s001"].last.body)
    wrong = {owner: (("00" * 33), salt) for owner, (_, salt) in reveal["b"].items()}
    found.sites["s001"].sent[-1] = resigned("s001", found.sites["s001"].last, Reveal, b=wrong)
    finish(found, names_of(5))
    assert found.code is None
    assert found.total.tolist() == sum(integers(name, 5) for name in names_of(5)).tolist()
    assert {(refusal.code, refusal.blame, refusal.strength) for refusal in found.blamed} == {
        ("E_SHARE_COMMIT", ("s001",), Strength.PROVED)
    }


def test_shares_that_are_not_its_to_reveal_are_dropped_and_their_sender_named() -> None:
    found = at_reveal({"s004": 2})
    reveal = json.loads(found.sites["s001"].last.body)
    b, m = ({owner: tuple(pair) for owner, pair in reveal[kind].items()} for kind in ("b", "m"))
    assert set(b) == {"s000", "s002", "s003"}
    assert set(m) == {"s004"}
    both = {**b, "s004": m["s004"], "s001": b["s000"]}
    found.sites["s001"].sent[-1] = resigned("s001", found.sites["s001"].last, Reveal, b=both)
    finish(found, names_of(4))
    assert found.code is None
    assert [refusal.code for refusal in found.blamed] == ["E_SHARE_X", "E_SHARE_X"]
    assert found.total.tolist() == sum(integers(name, 5) for name in names_of(4)).tolist()


def test_too_few_shares_end_the_sum_without_one() -> None:
    found = at_reveal()
    finish(found, ["s000"])
    assert found.code == "E_TOO_FEW_SHARES"
    assert found.total is None


def test_the_coordinator_refuses_reveals_and_consents_that_are_out_of_place() -> None:
    found = at_reveal()
    good = found.sites["s001"].last
    assert (
        refused_by_hub(found, hub.Arrived(resigned("s001", good, Reveal, consensus="99" * 32))).code == "E_VIEW_SPLIT"
    )
    found.hear(hub.Arrived(good))
    found.hear(hub.Arrived(good))
    assert refused_by_hub(found, hub.Arrived(resigned("s001", good, Reveal, b={}))).code == "E_DUP"
    early = until(federation_of(PLAN), "reveal")
    silent = early.sites["s003"]
    silent.tell(at.CertificateShown(relay_of(early, "s003").messages))
    state = early.state
    assert isinstance(state, hub.Revealing)
    early.state = replace(state, consents={k: v for k, v in state.consents.items() if k != "s003"})
    assert refused_by_hub(early, hub.Arrived(silent.last)).code == "E_U3"


def test_the_coordinator_refuses_consents_to_anything_else() -> None:
    found = until(federation_of(PLAN), "consent")
    for name in FOUR:
        found.sites[name].tell(at.MaskedShown(found.relayed[name].messages))
    good = found.sites["s001"].last
    for change, code in (
        ({"view": "99" * 32}, "E_VIEW_SPLIT"),
        ({"survivors": tuple(FOUR[:3])}, "E_U3"),
        ({"inputs": "99" * 32}, "E_U3"),
    ):
        assert refused_by_hub(found, hub.Arrived(resigned("s001", good, Survivors, **change))).code == code
    found.hear(hub.Arrived(good))
    assert refused_by_hub(found, hub.Arrived(resigned("s001", good, Survivors, inputs="98" * 32))).code == "E_U3"
    found.end()
    assert found.code == "E_CONSENT"


def test_no_peer_ever_gives_both_shares_of_a_site() -> None:
    names = names_of(6)
    found = run_sum(federation_of(integer_plan(names, 5, colluding=1, dropouts=2)), {"s002": 2, "s005": 4})
    assert found.code is None
    given: dict[str, set[str]] = {}
    for run in found.sites.values():
        for message in run.sent:
            if message.kind == "reveal":
                body = json.loads(message.body)
                assert not set(body["b"]) & set(body["m"])
                for kind in "bm":
                    for owner in body[kind]:
                        given.setdefault(owner, set()).add(kind)
    assert given == {name: {"m"} if name == "s002" else {"b"} for name in names}


def test_what_nobody_summed_is_never_joined_by_the_coordinator() -> None:
    """The self seed of a lost site is not among what the coordinator ever holds."""
    found = federation_of(PLAN)
    found.advertise(FOUR)
    seeds = {}
    for name in FOUR:
        state = found.sites[name].state
        assert isinstance(state, at.Advertised)
        seeds[name] = bytes(state.self_seed.reveal())
    found.share(FOUR)
    found.mask(FOUR[:3], half=["s003"])
    found.consent(FOUR[:3])
    found.reveal(FOUR[:3])
    shown = repr((found.state, found.records, found.blamed))
    found.publish()
    assert found.code is None
    assert not any(seed.hex() in shown or repr(seed) in shown for seed in seeds.values())


def test_masked_with_a_lie_is_refused_by_the_coordinator() -> None:
    found = federation_of(PLAN)
    for run in found.sites.values():
        run.registry = registry_of((*FOUR, "s009"))
    found.aggregator = replace(found.aggregator, registry=registry_of((*FOUR, "s009")))
    until(found, "mask")
    relay, run = relay_of(found), found.sites["s000"]
    run.tell(at.SharesShown(relay.messages, relay.boxes))
    assert run.upload is not None
    list(run.upload.job.chunks())
    assert run.upload.message is not None
    good = run.upload.message
    assert refused_by_hub(found, hub.Arrived(resigned("s000", good, Masked, view="99" * 32))).code == "E_VIEW_SPLIT"
    assert refused_by_hub(found, hub.Arrived(resigned("s009", good, Masked, sender="s009"))).code == "E_U3"
    shares = found.sites["s001"].last
    assert refused_by_hub(found, hub.Arrived(shares)).code == "E_LATE"
    assert (
        refused_by_hub(
            found,
            hub.Arrived(sign(key_of("s001"), Survivors(sender="s001", view="00" * 32, survivors=(), inputs="00" * 32))),
        ).code
        == "E_PHASE"
    )
