"""Whole rounds from lists of what sites do: quorum, deadline, bad updates, exact means, evaluation."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from coordinator.exchange import Heard
from coordinator.job_machine import JobState
from coordinator.round_machine import RoundState
from coordinator.site_machine import SiteState
from federation.messages import EvaluationCounts, Phase, PhaseRequest, Release, SiteId, decode_body
from tests.support.rounds import Bench, Script, fails, is_late, is_lost, refuses, scores, trains

TRAIN = Phase.TRAIN
EVALUATE = "evaluate: {every: 1, release: public}\n"


def script(**acts: object) -> Script:
    """Return a script by site for every round and phase."""
    return Script({(TRAIN, None, None, site): act for site, act in acts.items()})  # type: ignore[misc]


def test_a_job_of_three_rounds_completes_and_its_releases_are_chained(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(2.0), c=trains(3.0)), rounds=3)
    record = bench.run()
    assert record.job.state is JobState.COMPLETED
    assert np.array_equal(bench.model()["output.bias"], [6.0])
    releases = bench.releases()
    assert [release.step for release in releases] == [0, 1, 2, 3]
    for before, after in itertools.pairwise(releases):
        body = decode_body("release", after.record)
        assert isinstance(body, Release)
        assert body.previous == before.record_blob
        assert body.survivors == ("a", "b", "c")


def test_the_mean_is_over_those_that_arrived_and_weighted_by_what_they_declared(tmp_path: Path) -> None:
    sites = ("a", "b", "c", "d", "e", "f")
    acts = script(a=trains(1.0), b=trains(2.0), c=trains(3.0), d=trains(4.0), e=is_late, f=is_lost)
    declared = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 50, "f": 60}
    bench = Bench(tmp_path, acts, sites=sites, quorum=4, declared=declared, more="weights: declared\n")
    bench.run()
    assert bench.model()["output.weight"].tolist() == [[3.0, 3.0, 3.0]]
    assert bench.attempts()[0].round.late == {"e": "training, no answer", "f": "training, lost"}


def test_a_declared_weight_that_a_reply_changes_is_refused_by_name(tmp_path: Path) -> None:
    acts = script(a=trains(1.0, weight=10), b=trains(2.0, weight=20), c=trains(3.0, weight=999))
    bench = Bench(tmp_path, acts, declared={"a": 10, "b": 20, "c": 30}, more="weights: declared\n")
    bench.run()
    assert bench.attempts()[0].round.late == {"c": "the weight is 999, declared were 30"}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"output.weight": np.zeros((1, 3), "<f4")}, "tensor output.bias is missing"),
        (
            {"output.weight": np.zeros((1, 4), "<f4"), "output.bias": np.zeros(1, "<f4")},
            "tensor output.weight is (1, 4), expected (1, 3)",
        ),
        (
            {"_module.output.weight": np.zeros((1, 3), "<f4"), "output.bias": np.zeros(1, "<f4")},
            "tensor _module.output.weight carries a wrapper's prefix _module., expected output.weight",
        ),
        (
            {"output.weight": np.zeros((1, 3), "<f8"), "output.bias": np.zeros(1, "<f4")},
            "tensor output.weight is F64, expected F32",
        ),
        (
            {"output.weight": np.array([[0, np.nan, 0]], "<f4"), "output.bias": np.zeros(1, "<f4")},
            "tensor output.weight has 1 values that are not finite",
        ),
        (
            {"output.weight": np.array([[np.inf, -np.inf, 0]], "<f4"), "output.bias": np.zeros(1, "<f4")},
            "tensor output.weight has 2 values that are not finite",
        ),
    ],
    ids=["missing", "other shape", "wrapper prefix", "other type", "one NaN", "two infinities"],
)
def test_a_bad_update_is_refused_by_name_and_the_round_goes_on(
    tmp_path: Path, arrays: dict[str, np.ndarray], reason: str
) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(arrays), c=trains(3.0)))
    record = bench.run()
    assert record.job.state is JobState.COMPLETED
    assert bench.attempts()[0].round.late == {"b": reason}
    assert bench.model()["output.bias"].tolist() == [2.0]
    assert ("update_received", "CFD-R03") in [(name, about[-1]) for name, about in bench.recorder.told if about]
    assert record.job.sites["b"].state is SiteState.LATE  # type: ignore[index]


def test_tensors_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    turned = {"output.bias": np.full(1, 5, "<f4"), "output.weight": np.full((1, 3), 1, "<f4")}
    bench = Bench(tmp_path, script(a=trains(turned), b=trains(turned), c=trains(turned)))
    bench.run()
    assert bench.model()["output.bias"].tolist() == [5.0]


def test_a_huge_update_is_refused_where_a_bound_is_set(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(1e4), c=trains(1.0)), max_update_norm=10.0)
    bench.run()
    assert bench.attempts()[0].round.late == {"b": "norm of the update is 2e+04, at most 10"}
    assert bench.model()["output.bias"].tolist() == [1.0]


def test_a_result_that_is_not_finite_keeps_the_last_good_model(tmp_path: Path) -> None:
    first = {"output.weight": np.full((1, 3), 3e38, "<f4"), "output.bias": np.zeros(1, "<f4")}
    acts = script(a=trains(3e38), b=trains(3e38), c=trains(3e38))
    bench = Bench(tmp_path, acts, first=first)
    record = bench.run()
    assert record.job.state is JobState.FAILED
    assert "not finite" in record.job.reason
    assert [release.step for release in bench.releases()] == [0]
    assert [attempt.round.state for attempt in bench.attempts()] == [RoundState.ABANDONED] * 3


def test_a_site_that_refuses_the_request_is_named_and_nobody_waits_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=refuses, c=trains(1.0)))
    bench.run()
    late = bench.attempts()[0].round.late
    assert late == {"b": "training, a release is not signed by the coordinator [CFD-R58]"}


def test_all_sites_without_usable_rows_leave_the_model_as_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=fails("CFD-R52"), b=fails("CFD-R52"), c=fails("CFD-R52")), attempts=1)
    record = bench.run()
    assert record.job.state is JobState.FAILED
    assert "no usable units" in record.job.reason
    assert [release.step for release in bench.releases()] == [0]


def test_a_round_below_quorum_at_the_deadline_releases_nothing_and_is_tried_again(tmp_path: Path) -> None:
    acts = Script(
        {
            (TRAIN, 0, 0, "a"): trains(1.0),
            (TRAIN, 0, 0, None): is_late,
            (TRAIN, 0, 1, None): trains(7.0),
        }
    )
    bench = Bench(tmp_path, acts)
    record = bench.run()
    assert record.job.state is JobState.COMPLETED
    assert [attempt.round.state for attempt in bench.attempts()] == [RoundState.ABANDONED, RoundState.RELEASED]
    assert bench.attempts()[0].round.reason.startswith("1 of 2 sites answered; b (training, no answer)")
    assert bench.model()["output.bias"].tolist() == [7.0]  # nothing of the first attempt is in it
    assert "site_back" in bench.recorder.names()


def test_a_late_site_takes_part_again_at_the_next_round(tmp_path: Path) -> None:
    acts = Script({(TRAIN, 0, None, "c"): is_late, (TRAIN, None, None, None): trains(1.0)})
    bench = Bench(tmp_path, acts, rounds=2)
    bench.run()
    assert [attempt.round.summed for attempt in bench.attempts()] == [("a", "b"), ("a", "b", "c")]


def test_one_site_alone_may_be_a_federation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(2.0)), sites=("a",), quorum=1)
    assert bench.run().job.state is JobState.COMPLETED


def test_updates_are_removed_once_their_round_is_released_and_means_stay(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(2.0), c=trains(3.0)), rounds=2)
    bench.run()
    kept = {reference.root for reference in bench.blobs.references()}
    named = bench.store.releases.roots()
    assert kept == named


def test_server_momentum_is_carried_from_round_to_round(tmp_path: Path) -> None:
    more = "server: {strategy: FedAvgM, server_learning_rate: 1.0, server_momentum: 0.5}\n"
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(1.0), c=trains(1.0)), rounds=3, more=more)
    bench.run()
    assert bench.model()["output.bias"].tolist() == [1.0 + 1.5 + 1.75]


@pytest.mark.parametrize(
    ("server", "least", "most"),
    [
        ("{strategy: FedMedian}", 4.0, 4.0),
        ("{strategy: FedTrimmedAvg, beta: 0.2}", 4.0, 4.0),
        ("{strategy: Krum, num_malicious_nodes: 1}", 1.0, 6.0),
        ("{strategy: MultiKrum, num_malicious_nodes: 1, num_nodes_to_select: 3}", 1.0, 6.0),
        ("{strategy: Bulyan, num_malicious_nodes: 1}", 1.0, 6.0),
    ],
)
def test_a_liar_among_seven_moves_no_robust_strategy(tmp_path: Path, server: str, least: float, most: float) -> None:
    sites = ("a", "b", "c", "d", "e", "f", "g")
    acts = script(**{site: trains(float(number + 1)) for number, site in enumerate(sites[:6])}, g=trains(1e6))
    bench = Bench(tmp_path, acts, sites=sites, quorum=7, more=f"server: {server}\n")
    assert bench.run().job.state is JobState.COMPLETED
    assert least <= bench.model()["output.bias"][0] <= most


def test_metrics_come_from_sums_and_single_counts_are_forgotten(tmp_path: Path) -> None:
    acts = Script(
        {
            (TRAIN, None, None, None): trains(1.0),
            (Phase.EVALUATE, None, None, "a"): scores({15: 3, 0: 1}, {0: 4}, loss=2.0),
            (Phase.EVALUATE, None, None, "b"): scores({12: 1}, {15: 1}, loss=1.0),
            (Phase.EVALUATE, None, None, "c"): is_late,
        }
    )
    bench = Bench(tmp_path, acts, more=EVALUATE)
    bench.run()
    metrics = bench.releases()[1].metrics
    assert metrics is not None
    assert metrics["accuracy"] == 8 / 10
    assert metrics["loss"] == 3.0 / 10
    # Pairs of 5 positives and 5 negatives: 3·4.5 + 1·4 + 1·2 = 19.5 of 25.
    assert metrics["auc"] == 19.5 / 25
    replies = bench.store.rounds.replies(bench.job, 0, 0, Phase.EVALUATE)
    assert [reply.body for reply in replies] == [None, None]


def test_an_undefined_metric_is_not_available_and_never_zero(tmp_path: Path) -> None:
    acts = Script({(TRAIN, None, None, None): trains(1.0), (Phase.EVALUATE, None, None, None): scores({}, {})})
    bench = Bench(tmp_path, acts, more=EVALUATE)
    bench.run()
    assert bench.releases()[1].metrics == {"accuracy": None, "auc": None, "loss": None}


def test_with_fewer_scores_than_the_quorum_no_metric_is_made_known(tmp_path: Path) -> None:
    acts = Script(
        {
            (TRAIN, None, None, None): trains(1.0),
            (Phase.EVALUATE, None, None, "a"): scores({15: 3}, {0: 4}),
            (Phase.EVALUATE, None, None, None): is_late,
        }
    )
    bench = Bench(tmp_path, acts, more=EVALUATE)
    assert bench.run().job.state is JobState.COMPLETED
    assert bench.releases()[1].metrics == {"accuracy": None, "auc": None, "loss": None}


def test_figures_that_do_not_fit_are_left_out_and_their_site_is_named(tmp_path: Path) -> None:
    def coarse(bench: Bench, request: PhaseRequest, site: SiteId) -> Heard:
        whole = bench.scored(request, {15: 5}, {15: 5}, 1.0)
        counts = EvaluationCounts(release="public", bins=2, positives=(0, 5), negatives=(0, 5), loss_sum="0x0.0p+0")
        return Heard(site, whole.model_copy(update={"evaluation": counts}))

    acts = Script(
        {
            (TRAIN, None, None, None): trains(1.0),
            (Phase.EVALUATE, None, None, "a"): coarse,
            (Phase.EVALUATE, None, None, None): scores({15: 1}, {0: 1}),
        }
    )
    bench = Bench(tmp_path, acts, more=EVALUATE)
    bench.run()
    assert bench.releases()[1].metrics == {"accuracy": 1.0, "auc": 1.0, "loss": 0.5}
    bad = next(found for found in bench.store.jobs.events(bench.job) if found.name == "site.bad")
    assert bad.fields["site"] == "a"
    assert bad.fields["reason"].startswith("evaluation, figures have 2 bins, expected ")


def test_evaluation_happens_every_n_rounds(tmp_path: Path) -> None:
    acts = Script({(TRAIN, None, None, None): trains(1.0), (Phase.EVALUATE, None, None, None): scores({15: 1}, {0: 1})})
    bench = Bench(tmp_path, acts, rounds=5, more="evaluate: {every: 2, release: public}\n")
    bench.run()
    assert sorted({number for phase, number, _, _ in acts.asked if phase == "evaluate"}) == [1, 3]
    assert [release.metrics is not None for release in bench.releases()] == [False, False, True, False, True, False]


def test_the_line_of_a_round_has_what_watch_prints(tmp_path: Path) -> None:
    bench = Bench(tmp_path, script(a=trains(1.0), b=trains(1.0), c=fails()))
    bench.run()
    done = next(found for found in bench.store.jobs.events(bench.job) if found.name == "round.done")
    assert done.fields["survivors"] == ["a", "b"]
    assert done.fields["quorum"] == 2
    assert done.fields["late"]["c"].startswith("training, the trainer ran out of memory")
    assert done.fields["upload_bytes"] > 0
