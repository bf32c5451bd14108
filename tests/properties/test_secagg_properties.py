"""Properties of secure sums: exact or nothing, whatever is lost; and decoders that refuse everything else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privacy.secagg import messages
from privacy.secagg.envelope import KINDS, Signed, encode, open_message, pack_limit, parse, unpack
from privacy.secagg.errors import SumRefused
from privacy.secagg.field import CHUNK_WORDS
from privacy.secagg.graph import Ring
from privacy.secagg.parameters import Parameters, check, least_quorum
from tests.support.secure_sums import (
    Federation,
    federation_of,
    integer_plan,
    integers,
    names_of,
    plan_for,
    registry_of,
    run_sum,
)

CLEAN_ENDS = {"E_COHORT", "E_DEGREE", "E_GRAPH", "E_CONSENT", "E_TOO_FEW_SHARES"}


@st.composite
def parameter_sets(draw: st.DrawFn) -> Parameters:
    n = draw(st.integers(3, 9))
    c = draw(st.integers(0, n - 2))
    quorum = draw(st.integers(least_quorum(n, c), n)) if least_quorum(n, c) <= n else n
    drops = draw(st.integers(0, max(0, n - quorum)))
    degree = draw(st.sampled_from([*range(2, n - 1, 2), n - 1]))
    threshold = draw(st.integers(2, max(2, degree)))
    return Parameters(n, c, drops, degree, threshold, quorum)


@settings(max_examples=60)
@given(parameter_sets(), st.data())
def test_any_losses_in_any_phase_give_the_exact_sum_of_those_left_or_a_clean_end(
    found: Parameters, data: st.DataObject
) -> None:
    try:
        check(found)
    except SumRefused:
        return
    names = names_of(found.sites)
    lost = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 4), max_size=found.sites // 2 + 1))
    plan = integer_plan(
        names,
        data.draw(st.sampled_from([1, 3, 17])),
        degree=found.degree,
        share_threshold=found.share_threshold,
        quorum=found.quorum,
    ).model_copy(update={"colluding": found.colluding, "dropouts": found.dropouts})
    run = run_sum(federation_of(plan), lost)
    check_end(run, lost)
    if len(lost) <= found.dropouts:
        assert run.code is None


def check_end(run: Federation, lost: dict[str, int]) -> None:
    if run.code is not None:
        assert run.code in CLEAN_ENDS
        assert run.total is None
        assert run.result is None
        return
    summed = [name for name in run.plan.invited if lost.get(name, 9) > 2]
    assert set(run.survivors) <= set(summed)
    assert len(run.survivors) >= run.plan.quorum
    expected = sum(integers(name, run.plan.dim, run.plan.q_max) for name in run.survivors)
    assert run.total.tolist() == expected.tolist()


@pytest.mark.parametrize("dim", [65_535, 65_536, 65_537])
@pytest.mark.parametrize("word_bits", [16, 32, 64])
def test_sums_are_exact_at_the_edges_of_chunks_and_words(dim: int, word_bits: int) -> None:
    names = names_of(3)
    q_max = (2 ** (min(word_bits, 38) - 1) - 1) // 3  # the largest that can't wrap
    q_max = min(q_max, 2**37 - 1)
    run = run_sum(federation_of(integer_plan(names, dim, word_bits=word_bits, q_max=q_max)))
    check_end(run, {})
    assert run.code is None


@settings(max_examples=20)
@given(st.integers(3, 6), st.integers(1, 30), st.integers(0, 2**32), st.sampled_from(["stochastic", "nearest"]))
def test_secure_sum_equals_plain_sum_at_both_clip_limits(n: int, dim: int, seed: int, rounding: str) -> None:
    names = names_of(n)
    random = np.random.default_rng(seed)
    updates: dict[str, Any] = {}
    for number, name in enumerate(names):
        values = random.uniform(-1.0, 1.0, dim).astype(np.float32)
        values[0] = 1.0 if seed % 2 else -1.0  # all at one limit: the largest sum there is
        values[-1] = 1.0 if number % 2 else -1.0
        updates[name] = values
    run = run_sum(federation_of(plan_for(names, dim, rounding=rounding), updates))
    exact = sum(values.astype(np.float64) for values in updates.values()) * 2**18
    assert np.all(np.abs(run.total - exact) <= (n if rounding == "stochastic" else n / 2 + 1e-6))
    if dim > 1:
        assert run.total[0] == (n if seed % 2 else -n) * 2**18


@given(st.integers(3, 40), st.data())
def test_the_bound_falls_at_most_by_what_is_removed(size: int, data: st.DataObject) -> None:
    degree = data.draw(st.sampled_from([*range(2, size - 1, 2), size - 1]))
    ring = Ring(tuple(names_of(size)), degree)
    removed = data.draw(st.sets(st.sampled_from(ring.order), max_size=degree))
    alive = [name for name in ring.order if name not in removed]
    assert ring.connectivity_bound(alive) >= min(degree, size - 1) - len(removed)


BODIES = run_sum(federation_of(integer_plan(names_of(4), 3, colluding=1, dropouts=1)), {"s002": 2})
SENT: list[Signed] = [message for run in BODIES.sites.values() for message in run.sent]
SENT += [BODIES.records[0].plan, *([BODIES.result] if BODIES.result else [])]
BOX = BODIES.sites["s000"].boxes[0]
TYPES = {name: kind for kind, name in KINDS.items()}


@given(st.sampled_from(SENT), st.data())
def test_any_flipped_bit_of_a_signed_message_is_refused(message: Signed, data: st.DataObject) -> None:
    registry = registry_of(tuple(names_of(4)))
    assert open_message(TYPES[message.kind], message, registry).message == message
    place = data.draw(st.integers(0, len(message.body) + 63))
    whole = bytearray(message.body + message.signature)
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    changed = Signed(message.kind, bytes(whole[:-64]), bytes(whole[-64:]))
    with pytest.raises(SumRefused) as refused:
        open_message(TYPES[message.kind], changed, registry)
    assert refused.value.code in {"E_NONCANON", "E_SIG", "E_UNENROLLED"}


@given(st.sampled_from([(TYPES[message.kind], message.body) for message in SENT] + [(messages.Box, BOX)]))
def test_parse_then_encode_is_the_identity(found: tuple[type[messages.Message], bytes]) -> None:
    kind, body = found
    assert encode(parse(kind, body)) == body


@settings(max_examples=120)
@given(st.sampled_from(list(KINDS)), st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
@example(messages.Advert, b"[" * 4000)
@example(messages.Advert, b'{"sender":' * 300)
@example(messages.Masked, b'{"sender":"a","words":1e400}')
@example(messages.Masked, b'{"words":' + b"9" * 4000 + b"}")
@example(messages.SumPlan, b"null")
@example(messages.Reveal, b'{"b":{"":[]},"consensus":"","m":{},"sender":"a"}')
def test_bytes_that_are_no_message_are_refused_and_nothing_else_happens(
    kind: type[messages.Message], data: bytes
) -> None:
    with pytest.raises(SumRefused) as refused:
        parse(kind, data)
    assert refused.value.code in {"E_NONCANON", "E_SIZE"}
    assert len(str(refused.value)) < 400


@settings(max_examples=100)
@given(st.sampled_from(SENT), st.data())
def test_a_changed_message_is_refused_or_is_the_one_spelling_of_another(message: Signed, data: st.DataObject) -> None:
    body = message.body.decode("ascii")
    cut = data.draw(st.integers(0, len(body)))
    inserted = data.draw(st.sampled_from([" ", "\n", "0", "\\u0061", ',"x":1', "é", "-", "null", "1.0", '"']))
    changed = (body[:cut] + inserted + body[cut:]).encode()
    try:
        found = parse(TYPES[message.kind], changed)
    except SumRefused:
        return
    assert encode(found) == changed
    assert inserted in ("0", "-", "null")


@given(st.sampled_from(SENT))
def test_a_packed_message_is_unpacked(message: Signed) -> None:
    assert unpack(message.pack()) == message
    assert len(message.pack()) <= pack_limit(message.kind)


@settings(max_examples=120)
@given(st.binary(max_size=400))
def test_bytes_that_were_not_packed_are_refused(data: bytes) -> None:
    try:
        found = unpack(data)
    except SumRefused:
        return
    assert found.pack() == data


def test_message_sizes_do_not_depend_on_data() -> None:
    sizes = []
    for seed in ("a", "b"):
        names = names_of(4)
        updates = {name: integers(name + seed, 5) for name in names}
        run = run_sum(federation_of(integer_plan(names, 5, colluding=1, dropouts=1), updates, seed=seed))
        sizes.append([[len(message.pack()) for message in site.sent] for site in run.sites.values()])
    assert sizes[0] == sizes[1]
    assert CHUNK_WORDS == 65_536
