"""A whole sum, message by message, against a second implementation; and every row of the parameter table."""

import json
from typing import Any

import pytest

from privacy.secagg import aggregator_states as hub
from privacy.secagg.field import centred, to_words
from privacy.secagg.parameters import derive
from tests.support.reference_sum import ReferenceSite
from tests.support.secure_sums import (
    Federation,
    InsecureSeededRandom,
    federation_of,
    integer_plan,
    integers,
    names_of,
    run_sum,
)


class Recorded(Federation):
    """Keeps every vector and body that passed."""

    def __init__(self, found: Federation) -> None:
        super().__init__(found.plan, found.sites, found.aggregator, found.accumulator)
        self.uploads: dict[str, bytes] = {}
        self.bodies: dict[str, dict[str, bytes]] = {}
        self.dealt: dict[str, dict[str, str]] = {}

    def hear(self, event: hub.Event) -> None:
        if isinstance(event, hub.ChunkArrived):
            self.uploads[event.sender] = self.uploads.get(event.sender, b"") + event.data
        if isinstance(event, hub.Arrived):
            sender = json.loads(event.message.body)["sender"]
            self.bodies.setdefault(event.message.kind, {})[sender] = event.message.body
            for box in map(json.loads, event.boxes):
                self.dealt.setdefault(sender, {})[box["to"]] = box["box"]
        super().hear(event)


@pytest.mark.parametrize("word_bits", [16, 32, 64])
@pytest.mark.parametrize(("count", "colluding", "degree"), [(4, 1, None), (7, 0, 4)])
def test_every_message_and_word_of_a_sum_is_what_a_second_implementation_says(
    word_bits: int, count: int, colluding: int, degree: int | None
) -> None:
    names, dim = names_of(count), 300
    changed: dict[str, Any] = {} if degree is None else {"degree": degree, "share_threshold": 2}
    plan = integer_plan(names, dim, word_bits=word_bits, q_max=1000, colluding=colluding, dropouts=1, **changed)
    updates = {name: integers(name, dim, 1000) for name in names}
    found = Recorded(federation_of(plan, updates))
    lost = names[1]
    run_sum(found, {lost: 2})
    assert found.code is None

    plan_body = found.records[0].plan.body
    sites = {name: ReferenceSite(name, InsecureSeededRandom(name), plan_body, updates[name].tolist()) for name in names}
    adverts = {name: site.advert() for name, site in sites.items()}
    assert adverts == found.bodies["advert"]
    shares = {name: site.shares(adverts, found.dealt[name]) for name, site in sites.items()}
    assert shares == found.bodies["shares"]
    vectors, masked = {}, {}
    for name, site in sites.items():
        vectors[name], masked[name] = site.masked(shares)
    size = word_bits // 8
    for name, data in found.uploads.items():
        assert [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)] == vectors[name]
    del masked[lost]
    assert masked == found.bodies["masked"]
    survivors = {name: sites[name].survivors(masked) for name in masked}
    assert survivors == found.bodies["survivors"]
    assert {name: sites[name].reveal(sites) for name in masked} == found.bodies["reveal"]

    plain = [sum(column) for column in zip(*(updates[name].tolist() for name in masked), strict=True)]
    assert found.total.tolist() == plain
    assert centred(to_words(found.total, word_bits)).tolist() == plain


ROWS = [(3, 0, 0), (4, 1, 1), (5, 0, 2), (5, 1, 1), (10, 2, 2)]


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("phase", range(5))
def test_as_many_losses_as_promised_leave_the_exact_sum_and_one_more_a_sum_or_a_clean_end(
    row: tuple[int, int, int], phase: int
) -> None:
    count, colluding, drops = row
    names = names_of(count)
    plan = integer_plan(names, 3, colluding=colluding, dropouts=drops)
    for lost in sorted({0, drops, drops + 1} if count < 10 else {drops, drops + 1}):
        found = run_sum(federation_of(plan), dict.fromkeys(names[:lost], phase))
        if found.code is None:
            summed = names if phase > 2 else names[lost:]
            assert found.survivors == summed
            assert found.total.tolist() == sum(integers(name, 3) for name in summed).tolist()
        else:
            assert lost > derive(count, colluding, drops, 0).dropouts
            assert found.code in {"E_COHORT", "E_DEGREE", "E_GRAPH", "E_CONSENT", "E_TOO_FEW_SHARES"}
            assert found.result is None
            assert found.total is None


@pytest.mark.slow
@pytest.mark.parametrize("row", [(20, 5, 4), (50, 10, 8), (100, 15, 20)], ids=str)
@pytest.mark.parametrize("phase", range(5))
def test_larger_federations_bear_as_many_losses_as_promised(row: tuple[int, int, int], phase: int) -> None:
    count, colluding, drops = row
    names = names_of(count)
    found = run_sum(
        federation_of(integer_plan(names, 3, colluding=colluding, dropouts=drops)),
        dict.fromkeys(names[:: count // drops][:drops], phase),
    )
    assert found.code is None
    assert found.total.tolist() == sum(integers(name, 3) for name in found.survivors).tolist()


def test_a_lost_site_costs_a_pass_for_each_of_its_neighbours_in_the_sum() -> None:
    names = names_of(10)
    found = run_sum(federation_of(integer_plan(names, 3, colluding=2, dropouts=2)), {"s003": 2, "s004": 1})
    assert found.passes_count == 8 + 8
