"""A coordinator that shows any site any set it can make of true and forged messages, in any order, over two sums."""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from privacy.secagg import site_states as at
from privacy.secagg.digests import plan_digest
from privacy.secagg.envelope import Signed
from privacy.secagg.errors import CAUSES, OutOfOrder, SumRefused
from privacy.secagg.journal import History
from privacy.secagg.messages import Box
from tests.support.secure_sums import (
    SiteRun,
    integer_plan,
    integers,
    names_of,
    registry_of,
    signed_plan,
    site_run,
)

NAMES = names_of(4)
PLANS = [
    integer_plan(NAMES, 3, colluding=1, dropouts=1),
    integer_plan(NAMES, 3, colluding=1, dropouts=1, sum_id="55" * 32, attempt=1),
]
MALICIOUS = "s003"
"""Controlled by the coordinator: it plays along in both sums with two identities of state."""
KINDS = {
    at.AdvertsShown: "advert",
    at.SharesShown: "shares",
    at.MaskedShown: "masked",
    at.CertificateShown: "survivors",
}


class Coordinator(RuleBasedStateMachine):
    """Everything that was ever signed is in its pool."""

    @initialize()
    def begin(self) -> None:
        registry = registry_of(tuple(NAMES))
        self.runs: dict[tuple[str, int], SiteRun] = {}
        for name in NAMES:
            journal: list[Any] = []
            for number in range(2):
                run = site_run(name, integers(name, 3), registry, seed=f"{number}")
                run.journal = journal  # one disk for both sums
                self.runs[name, number] = run
        self.pool: dict[str, list[Signed]] = {kind: [] for kind in [*KINDS.values(), "abort", "reveal"]}
        self.boxes: list[bytes] = []
        self.signed: dict[tuple[str, str, str], set[bytes]] = {}

    def tell(self, run: SiteRun, event: at.Event) -> None:
        before, journal = run.state, len(run.journal)
        refusal = self.refusal_of(run, event)
        if refusal is not None:
            assert refusal.code in CAUSES
            assert run.state is before
            assert len(run.journal) == journal
            assert isinstance(refusal, OutOfOrder) or isinstance(before, at.Idle)
            return
        if run.closed is not None and run.closed.code is not None:
            assert run.closed.code in CAUSES
        if run.upload is not None and run.upload.message is None and not run.upload.job.spent:
            list(run.upload.job.chunks())
        messages = list(run.sent)
        if run.upload is not None and run.upload.message is not None:
            messages.append(run.upload.message)
        for message in messages:
            if message not in self.pool[message.kind]:
                self.pool[message.kind].append(message)
        self.boxes += [box for box in run.boxes if box not in self.boxes]

    @staticmethod
    def refusal_of(run: SiteRun, event: at.Event) -> SumRefused | None:
        try:
            run.tell(event)
        except SumRefused as refusal:
            return refusal
        return None

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 1))
    def offer(self, name: str, number: int) -> None:
        run = self.runs[name, number]
        event = at.SumOffered(
            signed_plan(PLANS[number]), run.registry, History.of(run.journal), run.local, run.update, run.floors,
            overridden=True,
        )  # fmt: skip
        self.tell(run, event)

    @rule(number=st.integers(0, 1), steps=st.integers(1, 4))
    def play_along(self, number: int, steps: int) -> None:
        """Take one sum forward as an honest coordinator would, as far as it goes."""
        for name in NAMES:
            self.offer(name, number)
        for kind in list(KINDS)[:steps]:
            for name in NAMES:
                self.show(name, number, kind, self.of_sum(KINDS[kind], number), self.boxes_for(name, number))

    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        number=st.integers(0, 1),
        kind=st.sampled_from(list(KINDS)),
    )
    def show_any_set(self, data: st.DataObject, name: str, number: int, kind: type[Any]) -> None:
        pool = self.pool[KINDS[kind]]
        shown = data.draw(st.lists(st.sampled_from(pool), max_size=6)) if pool else []
        boxes = data.draw(st.lists(st.sampled_from(self.boxes), max_size=4)) if self.boxes else []
        self.show(name, number, kind, shown, boxes)

    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        number=st.integers(0, 1),
        kind=st.sampled_from(list(KINDS)),
    )
    def show_a_subset(self, data: st.DataObject, name: str, number: int, kind: type[Any]) -> None:
        """A split view: a true set of this sum, without some of it, or with something changed."""
        full = self.of_sum(KINDS[kind], number)
        left_out = data.draw(st.sets(st.sampled_from(NAMES[1:]), max_size=2))
        shown = [message for message in full if json.loads(message.body)["sender"] not in left_out]
        boxes = [box for box in self.boxes_for(name, number) if json.loads(box)["sender"] not in left_out]
        if shown and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(shown) - 1))
            body = bytearray(shown[place].body)
            body[data.draw(st.integers(0, len(body) - 1))] ^= 1
            shown[place] = Signed(shown[place].kind, bytes(body), shown[place].signature)
        self.show(name, number, kind, shown, boxes)

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 1))
    def acknowledge(self, name: str, number: int) -> None:
        self.tell(self.runs[name, number], at.UploadAcknowledged())

    def show(self, name: str, number: int, kind: type[Any], shown: list[Signed], boxes: list[bytes]) -> None:
        event = at.SharesShown(tuple(shown), tuple(boxes)) if kind is at.SharesShown else kind(tuple(shown))
        self.tell(self.runs[name, number], event)

    def of_sum(self, kind: str, number: int) -> list[Signed]:
        """Return one message of each sender of one sum."""
        own = {}
        for name in NAMES:
            run = self.runs[name, number]
            said = [*run.sent, *([run.upload.message] if run.upload and run.upload.message else [])]
            for message in said:
                if message.kind == kind:
                    own[name] = message
        return [own[name] for name in sorted(own)]

    def boxes_for(self, name: str, number: int) -> list[bytes]:
        found = []
        for peer in NAMES:
            found += [box for box in self.runs[peer, number].boxes if Box.model_validate_json(box).to == name]
        return found

    @invariant()
    def no_site_signs_two_vectors_or_two_consents_in_a_sum(self) -> None:
        for run in getattr(self, "runs", {}).values():
            for kind in ("survivors", "reveal", "masked", "advert", "shares"):
                assert len({message.body for message in run.sent if message.kind == kind}) <= 1

    @invariant()
    def honest_sites_release_shares_of_one_kind_for_an_honest_site(self) -> None:
        for number in range(2):
            kinds: dict[str, set[str]] = {}
            for name in NAMES:
                for message in self.runs[name, number].sent if hasattr(self, "runs") else ():
                    if message.kind == "reveal" and name != MALICIOUS:
                        body = json.loads(message.body)
                        for kind in "bm":
                            for owner in body[kind]:
                                kinds.setdefault(owner, set()).add(kind)
            assert all(len(found) == 1 for owner, found in kinds.items() if owner != MALICIOUS)


Coordinator.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestAMaliciousCoordinator = Coordinator.TestCase


def test_two_plans_have_two_digests() -> None:
    assert len({plan_digest(signed_plan(plan).body) for plan in PLANS}) == 2
