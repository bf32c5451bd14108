"""The ledger's rules, one by one, on the pure core."""

from typing import Any

import pytest

from privacy.accounting import commands, entries
from privacy.accounting.commands import Command
from privacy.accounting.entries import read, read_all
from privacy.accounting.events import Gaussian, PoissonGaussian, training_event
from privacy.accounting.filter import admits
from privacy.accounting.state import ReservationState, fold
from privacy.accounting.statement import data_set_figures, job_figures
from privacy.errors import (
    AtomExhausted,
    BudgetRefused,
    DeltaInvalid,
    EpsilonInvalid,
    LeaseRefused,
    LedgerBroken,
    LedgerMisused,
    PrivacyError,
    UnitInvalid,
)
from tests.support.ledger_book import DELTA, Book


@pytest.fixture
def book() -> Book:
    return Book().set_up()


def test_one_job_at_epsilon_on_a_fresh_budget_of_epsilon_is_admitted_exactly(book: Book) -> None:
    book.reserve("j1", 4.0)
    assert book.state.reservations["j1/train"].state is ReservationState.HELD


def test_two_jobs_that_fit_singly_but_not_together_end_with_the_second_refused(book: Book) -> None:
    book.reserve("j1", 3.0)
    with pytest.raises(BudgetRefused, match=r"could have \d\.\d\d under policy p1"):
        book.reserve("j2", 3.0)
    refusal = book.entries[-1].body
    assert isinstance(refusal, entries.Refuse)
    assert refusal.cause == "DP_BUDGET"


def test_what_a_refusal_says_is_possible_is_possible(book: Book) -> None:
    book.reserve("j1", 3.0)
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 3.0)
    refusal = book.entries[-1].body
    assert isinstance(refusal, entries.Refuse)
    assert refusal.admissible_epsilon is not None
    with pytest.raises(BudgetRefused):
        book.reserve("j3", refusal.admissible_epsilon + 0.01)
    book.reserve("j4", refusal.admissible_epsilon)


def test_a_refusal_where_nothing_fits_says_so() -> None:
    book = Book().set_up(epsilon=0.03)
    book.reserve("j1", 0.03)
    with pytest.raises(BudgetRefused, match="no job of this schedule fits"):
        book.reserve("j2", 0.025)


def test_a_lease_moves_exactly_its_steps_from_held_to_charged(book: Book) -> None:
    book.reserve("j1", 2.0)
    charged, held = book.total()
    assert not any(charged)
    per_step = [part // 20 for part in held]
    book.lease("j1", 0, 3)
    charged, held = book.total()
    assert list(charged) == [3 * part for part in per_step]
    assert list(held) == [17 * part for part in per_step]


def test_used_and_lost_leases_are_both_spent_and_settling_returns_only_what_was_never_leased(book: Book) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 3)
    book.end("j1", 0)
    book.lease("j1", 1, 4)
    book.end("j1", 1, used=False)
    charged, _ = book.total()
    book.settle("j1")
    after, held = book.total()
    assert after == charged
    assert not any(held)
    job = book.state.reservations["j1/train"]
    assert (job.used, job.lost, job.remaining) == (3, 4, 0)
    with pytest.raises(LeaseRefused):
        book.lease("j1", 2, 1)


def test_settling_loses_open_leases_and_is_idempotent(book: Book) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 3)
    book.settle("j1")
    assert book.state.reservations["j1/train"].lost == 3
    assert book.settle("j1") == ()


def test_a_repeat_with_fresh_noise_is_a_new_lease(book: Book) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 5)
    book.end("j1", 0)
    book.lease("j1", 1, 5, attempt=1)
    assert book.state.reservations["j1/train"].leased == 10


def test_the_same_lease_asked_again_by_its_holder_is_looked_up(book: Book) -> None:
    book.reserve("j1", 2.0)
    first = book.lease("j1", 0, 5)
    assert len(first) == 1
    assert book.lease("j1", 0, 5) == ()
    assert book.state.reservations["j1/train"].leased == 5


@pytest.mark.parametrize("change", [{"steps": 4}, {"holder": "h2"}, {"round": 1}])
def test_the_same_lease_number_asked_by_another_is_refused(book: Book, change: dict[str, Any]) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 5)
    with pytest.raises(LeaseRefused, match="isn't the next"):
        book.lease(**{"job": "j1", "number": 0, "steps": 5, **change})


def test_a_lease_that_ended_is_not_given_again(book: Book) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 5)
    book.end("j1", 0)
    with pytest.raises(LeaseRefused):
        book.lease("j1", 0, 5)
    assert book.end("j1", 0) == ()


def test_more_steps_than_reserved_are_refused(book: Book) -> None:
    book.reserve("j1", 2.0, steps=10)
    book.lease("j1", 0, 8)
    with pytest.raises(LeaseRefused, match="2 of 10 are left"):
        book.lease("j1", 1, 3)


def test_an_end_of_a_lease_that_was_never_taken_is_misuse(book: Book) -> None:
    book.reserve("j1", 2.0)
    with pytest.raises(LedgerMisused):
        book.end("j1", 0)
    with pytest.raises(LedgerMisused):
        book.settle("j2")


def test_a_reservation_is_idempotent_for_its_plan_and_refused_for_another(book: Book) -> None:
    book.reserve("j1", 2.0)
    assert book.reserve("j1", 2.0) == ()
    with pytest.raises(LedgerMisused):
        book.reserve("j1", 2.0, digest="d2")


def test_a_record_job_on_an_entity_policy_is_refused_and_the_hint_says_why() -> None:
    book = Book().set_up(unit="entity")
    with pytest.raises(UnitInvalid) as caught:
        book.reserve("j1", 1.0)
    assert "understates" in caught.value.hint


def test_an_entity_job_on_a_record_policy_is_refused_too(book: Book) -> None:
    with pytest.raises(UnitInvalid) as caught:
        book.reserve("j1", 1.0, unit="entity")
    assert "use unit record" in caught.value.hint


def test_a_plans_delta_above_the_data_sets_is_refused() -> None:
    book = Book().set_up(delta=1e-4)
    with pytest.raises(DeltaInvalid):
        book.reserve("j1", 1.0)


def test_a_job_that_costs_more_than_its_own_epsilon_is_refused(book: Book) -> None:
    with pytest.raises(EpsilonInvalid):
        book.reserve("j1", 1.0, events={"local": training_event(0.25, 0.7)})


def test_a_policy_may_limit_the_epsilon_of_one_job() -> None:
    book = Book().set_up(epsilon_per_job=1.0)
    with pytest.raises(BudgetRefused, match="per job"):
        book.reserve("j1", 2.0)
    book.reserve("j2", 1.0)


def test_training_and_evaluation_spend_different_atoms(book: Book) -> None:
    event = {"local": Gaussian(noise_multiplier=10.0)}
    book.reserve("j1", 4.0)
    book.reserve("j1", 4.0, use="evaluate", events=event, steps=5)
    assert any(book.total("people/2")[1])
    assert book.state.reservations["j1/evaluate"].body.atoms == ("people/2",)


def test_data_sets_about_the_same_people_share_one_budget(book: Book) -> None:
    book.do(book.version("lungs"))
    book.reserve("j1", 3.0)
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 3.0, data_set="lungs")


def test_disjoint_atoms_compose_in_parallel_and_the_figure_is_the_largest() -> None:
    book = Book().set_up()
    book.do(commands.AddAtom(atom="people/3", population="people", use="train", rule="intake 2026"))
    book.do(book.version("heart", version="v2", train=("people/1", "people/3")))
    book.reserve("j1", 3.0, atoms=("people/1",))
    book.reserve("j2", 3.5, atoms=("people/3",))
    with pytest.raises(BudgetRefused):
        book.reserve("j3", 3.0)
    book.lease("j1", 0, 20)
    book.lease("j2", 0, 20)
    figures = data_set_figures(book.state, "heart").policies[0]
    assert 3.4 < figures.epsilon_spent <= 3.5


def test_a_new_version_of_a_data_set_keeps_what_was_spent(book: Book) -> None:
    book.reserve("j1", 4.0)
    book.do(book.version("heart", version="v2"))
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 1.0)
    assert book.do(book.version("heart", version="v2")) == ()


def test_a_replaced_policy_carries_its_totals_over(book: Book) -> None:
    book.reserve("j1", 3.0)
    book.lease("j1", 0, 5)
    book.do(
        commands.AddPolicy(
            policy="p2",
            population="people",
            unit="record",
            epsilon=8.0,
            delta=DELTA,
            replaces="p1",
            approved_by=("a", "b"),
        )
    )
    assert book.total(policy="p2") == book.total(policy="p1")
    book.lease("j1", 1, 5)
    assert book.total(policy="p2") == book.total(policy="p1")
    book.reserve("j2", 5.0)
    assert list(book.state.reservations["j2/train"].charges) == ["p2"]


def test_a_further_policy_with_other_orders_counts_what_was_done_before_it(book: Book) -> None:
    book.do(
        commands.ChargeOnce(
            charge="c1",
            data_set="heart",
            use="train",
            purpose="count",
            events={"local": Gaussian(noise_multiplier=30.0)},
        )
    )
    book.reserve("j1", 3.0)
    book.lease("j1", 0, 5)
    book.do(
        commands.AddPolicy(
            policy="p2",
            population="people",
            unit="record",
            epsilon=1.0,
            delta=DELTA,
            orders=(3, 6, 25),
            trust="secagg-1",
        )
    )
    charged, held = book.total(policy="p2")
    assert charged == tuple(book.total()[0][index] for index in (1, 3, 5))
    assert held == tuple(book.total()[1][index] for index in (1, 3, 5))


def test_a_stricter_policy_stops_leases_of_a_job_that_was_reserved_before_it(book: Book) -> None:
    book.reserve("j1", 4.0)
    book.lease("j1", 0, 5)
    book.do(commands.AddPolicy(policy="p2", population="people", unit="record", epsilon=0.5, delta=DELTA))
    with pytest.raises(BudgetRefused, match="doesn't cover"):
        book.lease("j1", 1, 5)


def test_a_replaced_policy_no_longer_stops_anything() -> None:
    book = Book().set_up()
    book.do(commands.AddPolicy(policy="p0", population="people", unit="record", epsilon=5.0, delta=DELTA))
    book.reserve("j1", 3.9)
    book.do(
        commands.AddPolicy(policy="p3", population="people", unit="record", epsilon=9.0, delta=DELTA, replaces="p1")
    )
    book.lease("j1", 0, 20)
    assert [policy.body.policy for policy in book.state.active_policies("people")] == ["p0", "p3"]


def test_the_joint_noise_of_a_distributed_job_counts_under_secagg_and_its_own_share_under_local(book: Book) -> None:
    book.do(
        commands.AddPolicy(policy="ps", population="people", unit="record", epsilon=4.0, delta=DELTA, trust="secagg-1")
    )
    share, joint = Gaussian(noise_multiplier=12.0), Gaussian(noise_multiplier=40.0)
    book.reserve("j1", 3.0, steps=5, events={"local": share, "secagg-1": joint})
    local, secagg = book.total(policy="p1")[1], book.total(policy="ps")[1]
    assert all(mine > theirs for mine, theirs in zip(local, secagg, strict=True))


def test_a_job_that_spends_the_whole_budget_exhausts_its_atom(book: Book) -> None:
    book.reserve("j1", 4.0)
    book.lease("j1", 0, 20)
    book.end("j1", 0)
    settled = book.settle("j1")
    assert [entry.body.kind for entry in settled] == ["settle", "exhaust"]
    with pytest.raises(AtomExhausted):
        book.reserve("j2", 0.1)
    figures = data_set_figures(book.state, "heart")
    assert figures.exhausted_atoms == ("people/1",)
    assert figures.policies[0].epsilon_left == 0.0


def test_an_exhausted_atom_is_left_out_of_later_jobs() -> None:
    book = Book().set_up()
    book.reserve("j1", 4.0)
    book.lease("j1", 0, 20)
    book.settle("j1")
    book.do(commands.AddAtom(atom="people/3", population="people", use="train", rule="intake 2026"))
    book.do(book.version("heart", version="v2", train=("people/1", "people/3")))
    book.reserve("j2", 1.0)
    assert book.state.reservations["j2/train"].body.atoms == ("people/3",)


def test_a_single_release_is_charged_once_by_its_id(book: Book) -> None:
    command = commands.ChargeOnce(
        charge="count-1",
        data_set="heart",
        use="train",
        purpose="units",
        events={"local": Gaussian(noise_multiplier=30.0)},
    )
    assert len(book.do(command)) == 1
    charged, _ = book.total()
    assert book.do(command) == ()
    assert book.total()[0] == charged
    assert data_set_figures(book.state, "heart").single_releases == (("count-1", "units", 1),)


def test_a_single_release_that_is_not_covered_is_refused(book: Book) -> None:
    with pytest.raises(BudgetRefused):
        book.do(
            commands.ChargeOnce(
                charge="c", data_set="heart", use="train", purpose="x", events={"local": Gaussian(noise_multiplier=0.1)}
            )
        )
    book.do(book.version("open", evaluate=(), held_out_public=True))
    with pytest.raises(LedgerMisused):
        book.do(
            commands.ChargeOnce(
                charge="c",
                data_set="open",
                use="evaluate",
                purpose="x",
                events={"local": Gaussian(noise_multiplier=9.0)},
            )
        )
    with pytest.raises(LedgerMisused):
        book.reserve("j1", 1.0, data_set="open", use="evaluate")


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_an_unbounded_use_is_marked_from_its_day_on(book: Book, use: Any) -> None:
    book.do(commands.MarkUnbounded(data_set="heart", use=use, reason="mechanism none", job="j1"))
    atom = "people/1" if use == "train" else "people/2"
    assert data_set_figures(book.state, "heart").unbounded_since == {atom: "2026-01-01T00:00:00Z"}


def test_figures_of_a_job_say_what_was_charged_and_never_more_than_its_ceiling(book: Book) -> None:
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 20)
    figures = job_figures(book.state.reservations["j1/train"])
    assert 1.99 < figures.epsilon_so_far <= 2.0 == figures.epsilon_ceiling
    assert (figures.steps_charged, figures.sampling_rate) == (20, 0.25)


def misuses(book: Book) -> dict[str, Command]:
    policy: dict[str, Any] = {"population": "people", "unit": "record", "epsilon": 1.0, "delta": DELTA}
    return {
        "population twice": commands.AddPopulation(population="people"),
        "atom twice": commands.AddAtom(atom="people/1", population="people", use="train", rule="hash"),
        "atom of nobody": commands.AddAtom(atom="x", population="nobody", use="train", rule="hash"),
        "policy twice": commands.AddPolicy(policy="p1", **policy),
        "policy of nobody": commands.AddPolicy(policy="p9", **{**policy, "population": "nobody"}),
        "replaces nothing": commands.AddPolicy(policy="p9", replaces="p8", **policy),
        "negative epsilon": commands.AddPolicy(policy="p9", **{**policy, "epsilon": -1.0}),
        "odd name": commands.AddPopulation(population="two words"),
        "atom of another use": book.version("lungs", evaluate=("people/1",)),
        "unknown atom": book.version("lungs", train=("people/9",)),
        "nothing to train on": book.version("lungs", train=()),
        "unknown data set": commands.MarkUnbounded(data_set="lungs", use="train", reason="x"),
    }


@pytest.mark.parametrize("name", misuses(Book()))
def test_a_command_that_contradicts_the_ledger_changes_nothing(book: Book, name: str) -> None:
    before = book.state
    with pytest.raises(LedgerMisused):
        book.do(misuses(book)[name])
    assert book.state is before


def test_a_job_on_atoms_that_the_data_set_does_not_have_is_refused(book: Book) -> None:
    with pytest.raises(LedgerMisused):
        book.reserve("j1", 1.0, atoms=("people/2",))
    with pytest.raises(LedgerMisused):
        book.reserve("j1", 1.0, data_set="lungs")


def test_a_population_without_policy_admits_nothing() -> None:
    book = Book()
    book.do(commands.AddPopulation(population="people"))
    book.do(commands.AddAtom(atom="people/1", population="people", use="train", rule="hash"))
    book.do(book.version("heart", evaluate=()))
    with pytest.raises(LedgerMisused, match="no privacy policy"):
        book.reserve("j1", 1.0)
    with pytest.raises(LedgerMisused):
        data_set_figures(book.state, "lungs")


def a_long_book() -> Book:
    book = Book().set_up()
    book.reserve("j1", 2.0)
    book.lease("j1", 0, 10)
    book.end("j1", 0)
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 4.0)
    book.do(
        commands.ChargeOnce(
            charge="c1",
            data_set="heart",
            use="train",
            purpose="count",
            events={"local": Gaussian(noise_multiplier=30.0)},
        )
    )
    book.do(commands.MarkUnbounded(data_set="heart", use="train", reason="x"))
    book.settle("j1")
    return book


def test_replaying_the_entries_gives_the_same_state_bit_by_bit() -> None:
    book = a_long_book()
    again = fold(read_all((entry.text, entry.hash) for entry in book.entries))
    assert again == book.state


def test_entries_hold_no_float_as_a_decimal() -> None:
    import re

    for entry in a_long_book().entries:
        assert not re.search(r"[0-9]\.[0-9]+[,}\]]", entry.text)


@pytest.mark.parametrize("place", range(12))
def test_an_altered_entry_is_found_with_its_number(place: int) -> None:
    book = a_long_book()
    entry = book.entries[place]
    rows = [(other.text, other.hash) for other in book.entries]
    rows[place] = (entry.text.replace("alice", "mallory"), entry.hash)
    with pytest.raises(LedgerBroken, match=f"entry {place} "):
        fold(read_all(rows))


def test_a_removed_entry_and_two_swapped_ones_are_found() -> None:
    rows = [(entry.text, entry.hash) for entry in a_long_book().entries]
    with pytest.raises(LedgerBroken, match="entry 3"):
        fold(read_all(rows[:3] + rows[4:]))
    with pytest.raises(LedgerBroken, match="entry 3"):
        fold(read_all([*rows[:3], rows[4], rows[3], *rows[5:]]))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"body":{"kind":"nothing"},"time":"x","actor":"y"}', "{"])
def test_a_text_that_is_no_entry_is_refused_even_with_its_own_hash(text: str) -> None:
    from privacy.accounting.entries import Head, _hash

    with pytest.raises(LedgerBroken, match="can't be read"):
        read(Head(), text, _hash(text))


def test_every_refusal_has_its_own_code_cause_and_cure() -> None:
    from privacy.errors import CLASSES

    assert len({kind.code for kind in CLASSES}) == len({kind.cause for kind in CLASSES}) == len(CLASSES)
    for kind in CLASSES:
        refusal: PrivacyError = kind("why")
        assert refusal.hint == kind.cure
        assert refusal.exit_status in (1, 2, 4, 78)
        assert refusal.text_for_others
        assert "why" not in refusal.text_for_others


def test_a_filter_over_several_atoms_needs_every_one_to_fit() -> None:
    book = Book().set_up()
    book.do(commands.AddAtom(atom="people/3", population="people", use="train", rule="intake 2026"))
    book.do(book.version("heart", version="v2", train=("people/1", "people/3")))
    book.reserve("j1", 4.0, atoms=("people/3",))
    with pytest.raises(BudgetRefused):
        book.reserve("j2", 1.0)
    assert not any(book.total("people/1")[1])
    policy = book.state.policies["p1"]
    assert admits(book.state.total("people/3", policy).committed, policy.limits)


def test_a_sampled_event_keeps_its_parameters_in_the_entry(book: Book) -> None:
    (entry,) = book.reserve("j1", 2.0)
    body = entry.body
    assert isinstance(body, entries.Reserve)
    assert isinstance(body.events["local"], PoissonGaussian)
    assert body.accountant == "confide-renyi/1"
    assert len(body.charges["p1"]) == 8
