"""Ids that sort, messages that wait, ids that are remembered, waits that double."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidInput, OutOfOrder
from federation.link.outbox import Backoff, Memory, MessageIds, Outbox, Refusal, Standing, check_message_id
from federation.messages import SignedMessage

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def message(text: str = "") -> SignedMessage:
    return SignedMessage("answer", text.encode(), b"s")


def ids(count: int, start: int = 1) -> list[str]:
    return [f"{number:012x}-{'0' * 16}" for number in range(start, start + count)]


class Source:
    """A clock that a test moves, and bytes that count up."""

    def __init__(self) -> None:
        self.now = NOON
        self._count = 0

    def ids(self) -> MessageIds:
        return MessageIds(lambda: self.now, self.random)

    def random(self, length: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(length, "big")


@given(jumps=st.lists(st.integers(-10_000_000, 10_000_000), min_size=2, max_size=20))
def test_ids_grow_whatever_the_clock_does(jumps: list[int]) -> None:
    source = Source()
    maker = source.ids()
    made = []
    for jump_s in jumps:
        source.now = source.now + timedelta(seconds=jump_s)
        made.append(maker.next())
    assert made == sorted(set(made))
    for one in made:
        check_message_id(one)


def test_ids_go_on_after_one_that_the_other_side_has_seen() -> None:
    source = Source()
    before = source.ids()
    source.now = NOON + timedelta(days=30)
    seen = before.next()
    source.now = NOON
    after = source.ids()
    after.observe(seen)
    assert after.next() > seen


@pytest.mark.parametrize("seen", ["", "m-1", "ffffffffffff-0000000000000000"])
def test_an_id_that_cannot_be_believed_moves_nothing(seen: str) -> None:
    source = Source()
    maker = source.ids()
    maker.observe(seen)
    assert int(maker.next()[:12], 16) == int(NOON.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "m-1", "0" * 29, "0" * 12 + "-" + "g" * 16, "0" * 12 + "-" + "0" * 16 + "\n"])
def test_another_form_of_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_message_id(text)
    assert refused.value.code == "CFD-L14"


def test_a_message_is_due_at_once_then_after_the_pause_until_it_is_acknowledged() -> None:
    outbox = Outbox(max_count=2, max_bytes=100, resend_s=10)
    outbox.put("a", message("one"))
    outbox.put("b", message("two"))
    assert outbox.take_due(0.0) == ("a", message("one"))
    assert outbox.take_due(1.0) == ("b", message("two"))
    assert outbox.take_due(9.9) is None
    assert outbox.take_due(10.0) == ("a", message("one"))
    assert outbox.remove("b")
    assert not outbox.remove("b")
    assert outbox.take_due(11.0) is None
    outbox.all_due()
    assert outbox.take_due(11.0) == ("a", message("one"))


def test_what_waits_is_bounded_in_number_and_bytes() -> None:
    outbox = Outbox(max_count=2, max_bytes=10, resend_s=1)
    outbox.put("a", message("12345"))
    with pytest.raises(OutOfOrder) as refused:
        outbox.put("b", message("123456"))
    assert refused.value.code == "CFD-L18"
    outbox.put("a", message("again, changed, and longer than allowed"))
    outbox.put("b", message("1"))
    with pytest.raises(OutOfOrder):
        outbox.put("c", message(""))
    assert len(outbox) == 2
    outbox.remove("a")
    outbox.put("c", message("123456789"))


def test_a_remembered_id_is_repeated_or_changed() -> None:
    memory = Memory(10)
    first, second = ids(2)
    assert memory.standing(first, message()) is Standing.NEW
    memory.remember(first, message(), None)
    memory.remember(second, message("x"), Refusal("CFD-S03", "no"))
    assert memory.standing(first, message()) is Standing.REPEATED
    assert memory.standing(first, message("y")) is Standing.CHANGED
    assert memory.answer(first) is None
    assert memory.answer(second) == Refusal("CFD-S03", "no")
    assert memory.newest == second


def test_what_is_forgotten_is_closed_off() -> None:
    memory = Memory(3)
    all_ids = ids(6)
    for one in all_ids[1:]:
        memory.remember(one, message(), None)
    for one in all_ids[:3]:
        assert memory.standing(one, message()) is Standing.OLD
    for one in all_ids[3:]:
        assert memory.standing(one, message()) is Standing.REPEATED
    assert memory.standing(ids(1, 7)[0], message()) is Standing.NEW


@given(order=st.permutations(range(30)), bound=st.integers(1, 30))
def test_no_id_is_ever_new_twice(order: list[int], bound: int) -> None:
    memory = Memory(bound)
    known = ids(30)
    taken = []
    for turn in [*order, *order]:
        if memory.standing(known[turn], message()) is Standing.NEW:
            taken.append(turn)
            memory.remember(known[turn], message(), None)
    assert len(taken) == len(set(taken))


@given(drawn=st.binary(min_size=4, max_size=4), failures=st.integers(0, 200))
def test_a_wait_never_exceeds_its_bound_nor_falls_under_half(drawn: bytes, failures: int) -> None:
    backoff = Backoff(first_s=0.5, bound_s=30, randomness=lambda length: drawn[:length])
    for _ in range(failures):
        backoff.wait_s()
    wait_s = backoff.wait_s()
    whole_s = min(30.0, 0.5 * 2.0 ** min(failures, 30))
    assert whole_s / 2 <= wait_s <= whole_s
    backoff.reset()
    assert backoff.wait_s() <= 0.5
