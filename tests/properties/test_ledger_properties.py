"""Whatever happens, in whatever order: the filter holds, totals are the fold of entries, charges cover steps."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import commands, ledger
from privacy.accounting.calibrate import cost, noise_for
from privacy.accounting.entries import Entry, read_all
from privacy.accounting.events import Gaussian, PoissonGaussian, PureEpsilon, training_event
from privacy.accounting.filter import admits, limits, uniform_shares
from privacy.accounting.renyi import DEFAULT_ORDERS, charges, grains
from privacy.accounting.state import State, fold
from privacy.errors import PrivacyError

DELTA = 1e-4
FOREIGN_DELTA = 3e-6
ATOMS = ("people/1", "people/2", "people/3")
# Noise once calibrated for each shape of job: the search would dominate the run.
SHAPES = {
    (epsilon, rate, steps): noise_for(epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps)
    for epsilon in (0.3, 1.0, 2.5)
    for rate, steps in ((1.0, 4), (0.2, 12), (0.05, 30))
}

reserve = st.tuples(
    st.just("reserve"), st.sampled_from(sorted(SHAPES)), st.sets(st.sampled_from(ATOMS), min_size=1), st.booleans()
)
lease = st.tuples(st.just("lease"), st.integers(0, 9), st.integers(1, 12))
end = st.tuples(st.just("end"), st.integers(0, 9), st.booleans())
settle = st.tuples(st.just("settle"), st.integers(0, 9))
kill = st.tuples(st.just("kill"))
charge = st.tuples(st.just("charge"), st.floats(5, 50))
raise_budget = st.tuples(st.just("raise"), st.floats(3.0, 6.0))
elsewhere = st.tuples(st.just("elsewhere"), st.floats(0.05, 1.5), st.sampled_from([0.0, 0.0, 1e-6]))
histories = st.lists(st.one_of(reserve, lease, lease, end, settle, kill, charge, raise_budget, elsewhere), max_size=25)


@dataclass
class Run:
    """A ledger, what a trainer did beside it, and the entries on disk."""

    state: State
    written: list[Entry]
    jobs: list[str]
    touched: dict[str, int]
    policies: int = 1

    def do(self, command: commands.Command) -> bool:
        try:
            outcome = ledger.step(self.state, command, time="2026-01-01T00:00:00Z", actor="alice")
        except PrivacyError:
            return False
        self.state = outcome.state
        self.written += outcome.entries
        return outcome.refusal is None

    def job(self, index: int) -> str | None:
        return self.jobs[index % len(self.jobs)] if self.jobs else None


def begin() -> Run:
    run = Run(State(), [], [], {})
    run.do(commands.AddPopulation(population="people"))
    for atom in ATOMS:
        run.do(commands.AddAtom(atom=atom, population="people", use="train", rule="hash"))
    run.do(
        commands.AddPolicy(
            policy="p1", population="people", unit="record", epsilon=3.0, delta=DELTA, foreign_delta=FOREIGN_DELTA
        )
    )
    run.do(
        commands.AddVersion(
            data_set="heart",
            version="v1",
            contract="c",
            population="people",
            train=ATOMS,
            evaluate=(),
            held_out_public=True,
            units_declared=1000,
            declared_by="alice",
        )
    )
    return run


def perform(run: Run, action: tuple[Any, ...]) -> None:  # noqa: C901 (one case for each kind of action)
    match action:
        case ("reserve", (epsilon, rate, steps), atoms, secagg):
            local = training_event(rate, SHAPES[epsilon, rate, steps])
            events = {"local": local, "secagg-1": Gaussian(noise_multiplier=9.0)} if secagg else {"local": local}
            name = f"j{len(run.jobs)}"
            if run.do(
                commands.Reserve(
                    job=name,
                    digest="d",
                    use="train",
                    data_set="heart",
                    unit="record",
                    epsilon=epsilon,
                    delta=DELTA,
                    events=events,
                    steps=steps,
                    atoms=tuple(sorted(atoms)),
                )
            ):
                run.jobs.append(name)
                run.touched[name] = 0
        case ("lease", index, steps):
            name = run.job(index)
            if name is None:
                return
            job = run.state.reservations[f"{name}/train"]
            taken = commands.TakeLease(
                reservation=f"{name}/train", number=job.leases, steps=steps, round=0, attempt=0, holder="h"
            )
            if run.do(taken):
                run.touched[name] += steps  # only a lease in hand lets a trainer touch data
        case ("end", index, used):
            name = run.job(index)
            if name is not None and (open_leases := run.state.reservations[f"{name}/train"].open):
                run.do(commands.EndLease(reservation=f"{name}/train", number=min(open_leases), used=used))
        case ("settle", index):
            name = run.job(index)
            if name is not None:
                run.do(commands.SettleJob(reservation=f"{name}/train", reason="over"))
        case ("kill",):
            run.state = fold(read_all((entry.text, entry.hash) for entry in run.written))
            for name in run.jobs:
                for number in run.state.reservations[f"{name}/train"].open:
                    run.do(commands.EndLease(reservation=f"{name}/train", number=number, used=False))
        case ("charge", noise):
            run.do(
                commands.ChargeOnce(
                    charge=f"c{len(run.state.single)}",
                    data_set="heart",
                    use="train",
                    purpose="count",
                    events={"local": Gaussian(noise_multiplier=noise)},
                )
            )
        case ("elsewhere", epsilon, delta):
            run.do(
                commands.AddForeign(
                    foreign=f"f{len(run.state.foreign)}",
                    data_set="heart",
                    use="train",
                    epsilon=epsilon,
                    delta=delta,
                    what="a table",
                )
            )
        case ("raise", epsilon):
            old = f"p{run.policies}"
            if epsilon >= run.state.policies[old].body.epsilon:
                run.policies += 1
                run.do(
                    commands.AddPolicy(
                        policy=f"p{run.policies}",
                        population="people",
                        unit="record",
                        epsilon=epsilon,
                        delta=DELTA,
                        foreign_delta=FOREIGN_DELTA,
                        replaces=old,
                    )
                )


@given(histories)
def test_no_atom_ever_leaves_the_filter_and_totals_stay_the_fold_of_entries(history: list[tuple[Any, ...]]) -> None:
    run = begin()
    for action in history:
        perform(run, action)
        for policy in run.state.active_policies("people"):
            for atom in ATOMS:
                assert admits(run.state.total(atom, policy).committed, run.state.limits(atom, policy))
                assert run.state.foreign_delta(atom) <= policy.body.foreign_delta
    assert fold(read_all((entry.text, entry.hash) for entry in run.written)) == run.state


@given(histories)
def test_what_is_charged_covers_every_step_that_was_touched_and_what_is_held_is_never_negative(
    history: list[tuple[Any, ...]],
) -> None:
    run = begin()
    for action in history:
        perform(run, action)
    for policy in run.state.active_policies("people"):
        for atom in ATOMS:
            total = run.state.total(atom, policy)
            assert all(part >= 0 for part in total.held)
            expected = [0] * len(policy.limits)
            for name, steps in run.touched.items():
                job = run.state.reservations[f"{name}/train"].body
                if atom in job.atoms:
                    row = [grains(charge) for charge in charges(job.events["local"], policy.body.orders)]
                    expected = [old + steps * step for old, step in zip(expected, row, strict=True)]
            for single in run.state.single:
                row = [grains(charge) for charge in charges(single.events["local"], policy.body.orders)]
                expected = [old + step for old, step in zip(expected, row, strict=True)]
            for made in run.state.foreign:
                if made.delta == 0:
                    row = [grains(step) for step in charges(PureEpsilon(epsilon=made.epsilon), policy.body.orders)]
                    expected = [old + step for old, step in zip(expected, row, strict=True)]
            assert list(total.charged) == expected


@given(histories)
def test_when_every_job_is_settled_nothing_is_held(history: list[tuple[Any, ...]]) -> None:
    run = begin()
    for action in history:
        perform(run, action)
    for name in run.jobs:
        run.do(commands.SettleJob(reservation=f"{name}/train", reason="over"))
    assert all(not any(total.held) for total in run.state.totals.values())


@given(st.permutations(range(6)))
@settings(max_examples=10)
def test_the_order_of_independent_charges_does_not_matter(order: list[int]) -> None:
    run = begin()
    for index in order:
        perform(run, ("charge", 20.0 + 1.37 * index))
    other = begin()
    for index in range(6):
        perform(other, ("charge", 20.0 + 1.37 * index))
    assert dict(run.state.totals) == dict(other.state.totals)


@given(st.floats(0.001, 1.0), st.floats(0.4, 20.0), st.integers(1, 2000), st.floats(0.1, 8.0), st.floats(1e-8, 1e-2))
@settings(max_examples=100)
def test_more_noise_and_fewer_steps_never_cost_more(
    rate: float, noise: float, steps: int, epsilon: float, delta: float
) -> None:
    event = PoissonGaussian(sampling_rate=rate, noise_multiplier=noise)
    quieter = PoissonGaussian(sampling_rate=rate, noise_multiplier=noise + 0.001)
    allowed = limits(epsilon, DEFAULT_ORDERS, uniform_shares(delta, DEFAULT_ORDERS))
    assert all(less <= more for less, more in zip(cost(quieter, steps), cost(event, steps), strict=True))
    if admits(cost(event, steps + 1), allowed):
        assert admits(cost(event, steps), allowed)


@given(histories, st.integers(1, 200))
def test_recovery_only_ever_charges_more_and_leaves_nothing_held(history: list[tuple[Any, ...]], steps: int) -> None:
    run = begin()
    for action in history:
        perform(run, action)
    before = {key: total.charged for key, total in run.state.totals.items()}
    missed = commands.Missed(
        charge="lost",
        data_set="heart",
        use="train",
        purpose="rounds that were lost",
        events={"local": Gaussian(noise_multiplier=8.0)},
        steps=steps,
    )
    assert run.do(commands.Recover(means="charged", reason="backup", approved_by=("alice", "bob"), missed=(missed,)))
    for (atom, name), total in run.state.totals.items():
        assert not any(total.held)
        if not run.state.policies[name].replaced:
            earlier = before.get((atom, name), (0,) * len(total.charged))
            assert all(now > then for now, then in zip(total.charged, earlier, strict=True))
    assert fold(read_all((entry.text, entry.hash) for entry in run.written)) == run.state
