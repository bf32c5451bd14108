"""Releases made elsewhere, exhaustion and raising a budget, uses without a bound, and recovery, on the pure core."""

import math
from typing import Any

import pytest

from privacy.accounting import commands, entries
from privacy.accounting.admission import epsilon_spent
from privacy.accounting.calibrate import noise_for
from privacy.accounting.entries import read_all
from privacy.accounting.events import Gaussian, Laplace, RowSampledGaussian, training_event
from privacy.accounting.filter import admits
from privacy.accounting.state import fold
from privacy.accounting.statement import data_set_figures, epsilon_for_rows
from privacy.errors import AtomExhausted, BudgetRefused, DeltaInvalid, LedgerMisused
from tests.support.ledger_book import DELTA, Book


@pytest.fixture
def book() -> Book:
    return Book().set_up()


def foreign(epsilon: float, delta: float = 0.0, **fields: Any) -> commands.AddForeign:
    plain: dict[str, Any] = {
        "foreign": "f1",
        "data_set": "heart",
        "use": "train",
        "what": "table 3 of last year's report",
        "approved_by": ("alice", "bob"),
    }
    return commands.AddForeign(epsilon=epsilon, delta=delta, **{**plain, **fields})


def raised(epsilon: float, **fields: Any) -> commands.AddPolicy:
    plain: dict[str, Any] = {"policy": "p2", "population": "people", "unit": "record", "delta": DELTA, "replaces": "p1"}
    return commands.AddPolicy(epsilon=epsilon, approved_by=("alice", "bob"), **{**plain, **fields})


def spent(book: Book, policy: str = "p1", atom: str = "people/1") -> float:
    return epsilon_spent(book.state, book.state.policies[policy], atom)


def missed(charge: str = "lost/0", steps: int = 5, data_set: str = "heart") -> commands.Missed:
    return commands.Missed(
        charge=charge,
        data_set=data_set,
        use="train",
        purpose="round 0 of j1",
        events={"local": training_event(0.25, 3.0)},
        steps=steps,
    )


def recovered(**fields: Any) -> commands.Recover:
    plain: dict[str, Any] = {"means": "charged", "reason": "backup", "approved_by": ("alice", "bob")}
    return commands.Recover(**{**plain, **fields})


# --- releases made elsewhere ------------------------------------------------------------------------------------


def test_a_release_of_pure_epsilon_is_charged_the_smaller_of_its_two_bounds(book: Book) -> None:
    (entry,) = book.do(foreign(0.5))
    assert isinstance(entry.body, entries.Foreign)
    assert entry.body.charges["p1"] == pytest.approx([min(0.5, order / 8) for order in (2, 3, 4, 6, 11, 25, 64, 176)])
    assert any(book.total()[0])
    assert not any(book.total("people/2")[0])


def test_a_release_with_a_delta_lowers_every_threshold_and_is_never_turned_into_renyi_terms() -> None:
    book = Book().set_up(foreign_delta=1e-4)
    policy = book.state.policies["p1"]
    book.do(foreign(1.0, 1e-5))
    assert not any(book.total()[0])
    assert [before - after for before, after in zip(policy.limits, book.state.limits("people/1", policy), strict=True)]
    assert all(
        before - after == 2**60
        for before, after in zip(policy.limits, book.state.limits("people/1", policy), strict=True)
    )
    assert book.state.limits("people/2", policy) == policy.limits
    assert spent(book) == pytest.approx(1.0)
    with pytest.raises(BudgetRefused):
        book.reserve("j1", 3.5)
    book.reserve("j2", 2.5)


def test_releases_with_a_delta_need_a_slice_that_was_set_aside_before(book: Book) -> None:
    with pytest.raises(DeltaInvalid, match="sets delta 0 aside"):
        book.do(foreign(0.1, 1e-6))
    wide = Book().set_up(foreign_delta=2e-5)
    wide.do(foreign(0.1, 1e-5))
    wide.do(foreign(0.1, 0.9e-5, foreign="f2"))
    with pytest.raises(DeltaInvalid):
        wide.do(foreign(0.1, 0.2e-5, foreign="f3"))


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_release_that_breaks_the_promise_is_refused_until_the_promise_is_raised(delta: float) -> None:
    book = Book().set_up(foreign_delta=1e-4)
    with pytest.raises(BudgetRefused, match="doesn't hold"):
        book.do(foreign(4.5, delta))
    book.do(raised(8.0, foreign_delta=1e-4))
    book.do(foreign(4.5, delta))
    assert spent(book, "p2") >= 4.5


def test_a_release_made_elsewhere_is_counted_once(book: Book) -> None:
    assert len(book.do(foreign(0.5))) == 1
    assert book.do(foreign(0.5)) == ()


def test_a_new_policy_counts_what_was_released_elsewhere_and_keeps_the_slice() -> None:
    book = Book().set_up(foreign_delta=1e-4)
    book.do(foreign(0.5))
    book.do(foreign(1.0, 5e-5, foreign="f2"))
    before = spent(book)
    with pytest.raises(LedgerMisused, match="was declared"):
        book.do(raised(6.0, foreign_delta=1e-5))
    book.do(raised(6.0, foreign_delta=1e-4))
    assert spent(book, "p2") == before


def test_the_slice_must_leave_some_delta() -> None:
    with pytest.raises(LedgerMisused, match="isn't below"):
        Book().set_up(foreign_delta=DELTA)


def test_figures_list_what_was_released_elsewhere(book: Book) -> None:
    book.do(foreign(0.5))
    (shown,) = data_set_figures(book.state, "heart").foreign
    assert (shown.foreign, shown.epsilon, shown.delta) == ("f1", 0.5, 0.0)


# --- exhaustion and raising -------------------------------------------------------------------------------------


def exhaust(book: Book) -> None:
    book.reserve("j1", 4.0)
    book.lease("j1", 0, 20)
    book.end("j1", 0)
    book.settle("j1")


def test_an_exhausted_atom_serves_nothing_more(book: Book) -> None:
    exhaust(book)
    assert book.state.exhausted == {"people/1"}
    with pytest.raises(AtomExhausted):
        book.reserve("j2", 0.1)
    count = commands.ChargeOnce(
        charge="c1", data_set="heart", use="train", purpose="count", events={"local": Gaussian(noise_multiplier=900.0)}
    )
    with pytest.raises(AtomExhausted):
        book.do(count)


def test_time_brings_nothing_back_and_a_raised_budget_only_what_it_adds(book: Book) -> None:
    exhaust(book)
    before = spent(book)
    book.do(raised(6.0))
    assert not book.state.exhausted
    assert spent(book, "p2") == before
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 5.0)
    book.reserve("j3", 1.0)


def test_a_release_made_elsewhere_can_exhaust_an_atom() -> None:
    book = Book().set_up(foreign_delta=1e-4)
    book.reserve("j1", 3.0)
    book.lease("j1", 0, 20)
    book.settle("j1")
    left = 4.0 - spent(book)
    book.do(foreign(left - 1e-3, 1e-5))
    assert book.state.exhausted == {"people/1"}


# --- a refusal names what else there is -------------------------------------------------------------------------


def test_a_refusal_counts_the_parts_that_nothing_was_taken_from(book: Book) -> None:
    book.reserve("j1", 3.5)
    book.do(commands.AddAtom(atom="people/3", population="people", use="train", rule="intake 2026"))
    with pytest.raises(BudgetRefused) as refused:
        book.reserve("j2", 3.0)
    assert "1 unused parts" in refused.value.hint


# --- recovery ---------------------------------------------------------------------------------------------------


def test_recovery_charges_what_was_missed_and_ends_open_reservations(book: Book) -> None:
    book.reserve("j0", 0.5)
    book.settle("j0")
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 5)
    charged = book.total()[0]
    written = [entry.body.kind for entry in book.do(recovered(missed=(missed(),)))]
    assert written == ["lease-end", "settle", "charge", "recover"]
    assert not any(book.total()[1])
    assert all(now > before for now, before in zip(book.total()[0], charged, strict=True))


def test_recovery_charges_even_beyond_the_promise_and_then_nothing_is_admitted(book: Book) -> None:
    book.do(recovered(missed=(missed(steps=5000),)))
    assert not admits(book.total()[0], book.state.policies["p1"].limits)
    assert spent(book) > 4.0
    assert book.state.exhausted == {"people/1"}
    with pytest.raises(AtomExhausted):
        book.reserve("j1", 0.1)


def test_the_same_missed_steps_are_charged_once(book: Book) -> None:
    book.do(recovered(missed=(missed(),)))
    once = book.total()[0]
    book.do(recovered(missed=(missed(),)))
    assert book.total()[0] == once


def test_retired_atoms_serve_nothing_also_under_a_later_policy(book: Book) -> None:
    book.do(recovered(means="retired", atoms=("people/1",), witnessed_seq=40, witnessed_hash="ab" * 32))
    book.do(raised(9.0))
    assert book.state.exhausted == {"people/1"}
    with pytest.raises(AtomExhausted):
        book.reserve("j1", 0.1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"approved_by": ()}, "names of who approved"),
        ({"means": "retired"}, "names what is retired"),
        ({"atoms": ("people/9",)}, "isn't in the privacy ledger"),
        ({"missed": (missed(data_set="lungs"),)}, "unknown to the privacy ledger"),
    ],
)
def test_a_recovery_that_says_too_little_changes_nothing(book: Book, wrong: dict[str, Any], said: str) -> None:
    before = book.state
    with pytest.raises(LedgerMisused, match=said):
        book.do(recovered(**wrong))
    assert book.state is before


def test_everything_replays_bit_by_bit() -> None:
    book = Book().set_up(foreign_delta=1e-4)
    book.do(foreign(0.5))
    book.do(foreign(0.5, 1e-5, foreign="f2"))
    exhaust_little(book)
    book.do(recovered(missed=(missed(),), atoms=("people/2",)))
    assert fold(read_all((entry.text, entry.hash) for entry in book.entries)) == book.state


def exhaust_little(book: Book) -> None:
    book.reserve("j1", 1.0)
    book.lease("j1", 0, 20)


# --- a job's own epsilon ----------------------------------------------------------------------------------------


def test_a_distributed_jobs_epsilon_is_that_of_its_joint_noise() -> None:
    book = Book().set_up(trust="secagg-1")
    local, joint = Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=20.0)
    book.reserve("j1", 2.0, events={"local": local, "secagg-1": joint})
    book.lease("j1", 0, 20)
    figures = data_set_figures(book.state, "heart").jobs[0]
    assert figures.epsilon_so_far <= 2.0
    assert figures.trust == "secagg-1"
    assert figures.noise_multiplier == 20.0


def test_what_other_people_spent_is_not_carried_over_and_several_parts_are_all_charged() -> None:
    book = Book().set_up()
    book.do(commands.AddAtom(atom="people/3", population="people", use="train", rule="intake 2026"))
    book.do(book.version("heart", version="v2", train=("people/1", "people/3")))
    book.do(commands.AddPopulation(population="others"))
    book.do(commands.AddAtom(atom="others/1", population="others", use="train", rule="hash"))
    book.do(
        commands.AddPolicy(policy="o1", population="others", unit="record", epsilon=4.0, delta=DELTA),
    )
    book.do(book.version("lungs", population="others", train=("others/1",), evaluate=()))
    book.do(foreign(0.5, data_set="lungs"))
    book.do(foreign(0.2, foreign="f2"))
    assert book.total("people/1") == book.total("people/3")
    book.do(raised(6.0))
    assert 0 < spent(book, "p2") < 0.5
    assert spent(book, "p2", "people/3") == spent(book, "p2")
    assert book.entries[-1].id == book.entries[-1].hash[:32]


# --- somebody with several rows ---------------------------------------------------------------------------------


def for_rows_of(book: Book, rows: int) -> float:
    return epsilon_for_rows(book.state, book.state.policies["p1"], "people/1", rows)


def test_every_kind_of_release_counts_for_somebody_with_several_rows(book: Book) -> None:
    assert for_rows_of(book, 2) == 0.0
    figures = []
    book.reserve("j0", 0.2)
    book.reserve("j1", 1.0)
    book.lease("j1", 0, 20)
    figures.append(for_rows_of(book, 2))
    count = {"data_set": "heart", "use": "train", "purpose": "count"}
    for name, event in (
        ("c1", Gaussian(noise_multiplier=30.0)),
        ("c2", Laplace(noise_multiplier=30.0)),
        ("c3", RowSampledGaussian(sampling_rate=0.1, noise_multiplier=20.0, rows=2)),
    ):
        book.do(commands.ChargeOnce(charge=name, events={"local": event}, **count))  # type: ignore[arg-type]
        figures.append(for_rows_of(book, 2))
    book.do(foreign(0.1))
    figures.append(for_rows_of(book, 2))
    assert figures == sorted(set(figures))
    assert for_rows_of(book, 1) == pytest.approx(spent(book), rel=1e-4)
    assert for_rows_of(book, 2) > 2 * spent(book)


def test_no_figure_for_several_rows_holds_beside_a_release_with_a_delta_made_elsewhere() -> None:
    book = Book().set_up(foreign_delta=1e-4)
    book.do(foreign(0.5, 1e-5))
    assert for_rows_of(book, 2) == math.inf


def test_a_refused_job_on_all_units_at_once_is_told_what_it_could_have(book: Book) -> None:
    book.reserve("j1", 3.0)
    with pytest.raises(BudgetRefused, match="could have"):
        book.reserve("j2", 4.0, events={"local": training_event(1.0, noise_for_all(4.0))})


def noise_for_all(epsilon: float) -> float:
    return noise_for(epsilon=epsilon, delta=DELTA, sampling_rate=1.0, steps=20)
