"""Per-client values to tracked numbers, each by hand."""

import subprocess
import sys

import numpy as np
import pytest

from pfl_ops import metrics
from pfl_ops.metrics import (
    SWEEP,
    Companions,
    acc_sum,
    alike,
    below,
    by_client,
    companions,
    joined,
    key,
    noted,
    pareto,
    rho,
    rounds_to,
    summarise,
    synthetic,
    synthetic_view,
    tracked,
    with_acc,
)

NAN = float("nan")


def test_summary_by_hand():
    """0.2, 0.4, 0.6, 1.0: mean 2.2 / 4; deviations −.35, −.15, .05, .45, squares .1225 + .0225 + .0025 + .2025 = .35.

    Quantiles lie at positions 0.3, 1.5 and 2.7 of 0..3: 0.2 + 0.3·0.2, 0.4 + 0.5·0.2, 0.6 + 0.7·0.4.
    """
    found = summarise([0.6, 0.2, 1.0, 0.4])
    expected = {"mean": 0.55, "std": (0.35 / 4) ** 0.5, "worst": 0.2, "q10": 0.26, "q50": 0.5, "q90": 0.88}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_clients_without_samples_are_left_out():
    assert summarise([0.5, NAN, 1.0, NAN]) == summarise([0.5, 1.0])
    assert summarise([NAN, NAN]) == {}
    assert summarise([]) == {}
    assert summarise([0.75])["std"] == 0.0


def test_rho_counts_those_strictly_above():
    assert rho([0.94, 0.95, 0.96, 1.0, NAN], 0.95) == 2
    assert rho(np.float32([0.8, 0.9, 19 / 20]), 0.8) == 2  # 0.8 as a float32 is a little more than 0.8


def test_those_below_are_all_others_that_have_a_value():
    assert below([0.94, 0.95, 0.96, 1.0, NAN], 0.95) == 2
    assert below([NAN], 0.95) == 0


def test_several_thresholds():
    keys = tracked("L2", "test", "local", [0.5, 0.91, 0.96, NAN], eps=(0.9, 0.95))
    assert (keys["test/L2/local/rho_90"], keys["test/L2/local/rho_95"], keys["test/L2/local/clients"]) == (2, 1, 3)
    assert not [name for name in tracked("L2", "test", "local", [0.5], eps=()) if "rho" in name]


def test_rounds_to_a_target():
    """FLIU's Fig. 7 in small: the first time counts, not the last; a gap is no round; exactly on it is enough."""
    curve = {0: 0.1, 2: 0.9, 3: 0.85, 4: 0.95, 1: NAN}
    assert [rounds_to(curve, target) for target in (0.05, 0.5, 0.9, 0.91, 0.96)] == [0, 2, 2, 4, None]
    assert rounds_to({1: float(np.mean([0.7, 0.8, 0.9])), 2: 1.0}, 0.8) == 1  # 0.7999999999999999
    assert rounds_to({}, 0.5) is None


def test_tracked_keys_of_the_local_view():
    keys = tracked("L1", "validation", "local", [0.9, 0.96, NAN, 0.99])
    assert set(keys) == {
        *(f"val/L1/local/{name}" for name in ("mean", "std", "worst", "q10", "q50", "q90", "rho_95", "clients"))
    }
    assert keys["val/L1/local/mean"] == pytest.approx(0.95)
    assert keys["val/L1/local/rho_95"] == 2
    assert keys["val/L1/local/clients"] == 3
    assert all(type(value) is float for value in keys.values())


def test_the_worst_among_clients_with_enough_samples():
    """0.2 stands on 9 samples; a client without a value counts nowhere."""
    keys = tracked("L1", "test", "local", [0.2, 0.5, 0.9, NAN], sizes=[9, 10, 40, 50])
    assert (keys["test/L1/local/worst"], keys["test/L1/local/worst_min10"]) == (0.2, 0.5)
    assert "test/L1/local/worst_min10" not in tracked("L1", "test", "local", [0.2, NAN], sizes=[9, 10])
    assert "test/L1/global/worst_min10" not in tracked("L1", "test", "global", [0.5], sizes=[10])


def test_tracked_keys_of_other_views():
    keys = tracked("G", "test", "global", [0.7], prefix="final/")
    assert set(keys) == {f"final/test/G/global/{name}" for name in ("mean", "std", "worst", "q10", "q50", "q90")}
    assert keys["final/test/G/global/worst"] == 0.7
    assert "test/L2/synthetic_50/q90" in tracked("L2", "test", synthetic_view(50), [0.1, 0.2])
    assert tracked("L2", "test", "local", [NAN]) == {}  # absent, not zero


def test_tracked_keys_of_a_note():
    keys = noted("weight", [0.25, 0.75, NAN, 0.5])
    assert set(keys) == {f"method/weight/{name}" for name in ("mean", "std", "min", "q10", "q50", "q90", "max")}
    assert (keys["method/weight/mean"], keys["method/weight/min"], keys["method/weight/max"]) == (0.5, 0.25, 0.75)
    groups = noted("weight", [0.25, 0.75, NAN, 0.5], [True, False, False, True])
    assert groups["method/weight/stragglers/mean"] == 0.375 and groups["method/weight/online/mean"] == 0.75
    assert set(noted("weight", [1.0, NAN], [False, True])) - set(keys) == {"method/weight/online/mean"}
    assert noted("weight", [NAN], [True]) == {}  # absent, not zero


def test_names_of_thresholds():
    assert "val/L1/local/rho_97.5" in tracked("L1", "val", "local", [1.0], eps=0.975)
    assert "val/L1/local/rho_7" in tracked("L1", "val", "local", [1.0], eps=0.07)  # 100 · 0.07 = 7.000000000000001
    assert key("validation", "L1", "acc", prefix="best/") == "best/val/L1/acc"


def test_acc_is_there_where_both_views_are():
    assert acc_sum(0.9, 0.7) == pytest.approx(1.6)
    given = tracked("L1", "test", "local", [0.8, 1.0]) | tracked("L1", "test", "global", [0.5, 0.7])
    given |= tracked("L2", "test", "local", [1.0])
    found = with_acc(given)
    assert found["test/L1/acc"] == pytest.approx(0.9 + 0.6)
    assert "test/L2/acc" not in found
    assert "test/L1/acc" not in given
    final = with_acc({"final/test/G/local/mean": 0.5, "final/test/G/global/mean": 0.25})
    assert final["final/test/G/acc"] == 0.75


def test_accuracies_by_client_from_one_pass():
    correct = np.array([[1, 0, 1, 1], [0, 0, 1, 0]], dtype=bool)
    means, sizes = by_client(correct, [0, 0, 2, 0], n_clients=4)
    assert sizes.tolist() == [3, 0, 1, 0]
    np.testing.assert_allclose(means, [[2 / 3, NAN, 1, NAN], [0, NAN, 1, NAN]])
    alone, _ = by_client(correct[0], [0, 0, 2, 0], n_clients=4)
    np.testing.assert_allclose(alone, means[0])


def test_synthetic_runs_from_the_local_to_the_global_view():
    """Sizes 1, 2, 5: model 0 is right on .5, .25 and 1 of them; all joined: (1·.5 + 2·.25 + 5·1) / 8 = .75."""
    accuracy, sizes = np.array([[0.5, 0.25, 1.0], [0.0, 1.0, 0.4], [1.0, 1.0, 0.2]]), [1, 2, 5]
    np.testing.assert_allclose(synthetic(accuracy, sizes, 0, seed=0), [0.5, 1.0, 0.2])
    np.testing.assert_allclose(synthetic(accuracy, sizes, 100, seed=0), [0.75, 0.5, 0.5])
    np.testing.assert_allclose(synthetic(accuracy, [1, 1, 1], 100, seed=0), accuracy.mean(axis=1))
    (other,) = companions(0, 3, 50, seed=0).tolist()
    half = (0.5 * 1 + accuracy[0, other] * sizes[other]) / (1 + sizes[other])
    assert synthetic(accuracy, sizes, 50, seed=0)[0] == pytest.approx(half)


def test_synthetic_of_some_rows_and_of_a_shared_model():
    generator = np.random.default_rng(0)
    accuracy, sizes = generator.random((7, 7)), generator.integers(1, 9, 7)
    every = synthetic(accuracy, sizes, 30, seed=1)
    np.testing.assert_allclose(synthetic(accuracy[[5, 2]], sizes, 30, seed=1, clients=[5, 2]), every[[5, 2]])
    shared = synthetic(accuracy[0], sizes, 30, seed=1)
    assert shared[0] == every[0] and len(shared) == 7


@pytest.mark.parametrize("percent", [0, 1, 30, 50, 100])
def test_joined_of_tested_clients_is_the_definition(percent):
    """Σ n_j acc_kj / Σ n_j over a client and its companions, of which most have no samples; bit for bit, and again."""
    draws = np.random.default_rng(0)
    accuracy, sizes = draws.random((40, 40)), np.where(draws.random(40) < 0.3, draws.integers(1, 9, 40), 0)
    tested = np.flatnonzero(sizes)
    some = Companions(40, 5, tested)
    expected = []
    for k in range(40):
        own = np.append(companions(k, 40, percent, seed=5), k)
        own = own[sizes[own] > 0]
        expected.append(np.average(accuracy[k, own], weights=sizes[own]) if len(own) else NAN)
    for _ in range(2):
        found = joined(accuracy[:, tested], sizes[tested], percent, range(40), some)
        assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(synthetic(accuracy, sizes, percent, seed=5), expected, equal_nan=True)


def test_synthetic_without_own_samples():
    accuracy, sizes = np.array([[NAN, 0.5], [NAN, 0.25]]), [0, 4]
    np.testing.assert_allclose(synthetic(accuracy, sizes, 0, seed=0), [NAN, 0.25])
    np.testing.assert_allclose(synthetic(accuracy, sizes, 100, seed=0), [0.5, 0.25])


def test_companions_are_others_nested_and_keyed():
    for percent, number in ((0, 0), (10, 1), (14, 1), (15, 2), (50, 5), (100, 10)):  # of 10; 1.5 is rounded up
        found = companions(3, 11, percent, seed=4)
        assert len(found) == number
        assert 3 not in found
        assert set(found) <= set(companions(3, 11, 100, seed=4))
        assert set(companions(3, 11, percent / 2, seed=4)) <= set(found)
    assert companions(3, 11, 50, 4).tolist() == companions(3, 11, 50, 4).tolist()
    assert companions(3, 101, 50, 4).tolist() != companions(3, 101, 50, 5).tolist()
    first, second = companions(99, 101, 50, 4), companions(100, 101, 50, 4)  # nearly the same others: not the same draw
    assert len(set(first) & set(second)) < 40
    assert companions(0, 1, 100, 4).tolist() == []


def test_pareto_front():
    points = [[1, 5], [2, 4], [2, 3], [0, 5], [3, 0], [NAN, 9], [1, 5]]
    assert pareto(points).tolist() == [True, True, False, False, True, False, True]
    assert pareto(np.empty((0, 2))).tolist() == []


def test_metrics_do_not_import_torch():
    code = "import sys, pfl_ops.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sweep_is_fedpgs():
    assert SWEEP == (0, 1, 10, 30, 50, 70, 100)


def test_test_sets_that_count_alike():
    """9 samples all right, 1 wrong, a client with none: 0.9 by samples, 0.5 where clients count alike."""
    accuracy, sizes = [[1.0, 0.0, NAN]] * 3, [9, 1, 0]
    assert synthetic(accuracy, sizes, 100, seed=0) == pytest.approx([0.9] * 3)
    assert synthetic(accuracy, alike(sizes), 100, seed=0) == pytest.approx([0.5] * 3)
    assert synthetic(accuracy, alike(sizes), 0, seed=0) == pytest.approx([1.0, 0.0, NAN], nan_ok=True)


def test_smaller_is_better_of_whole_names_alone():
    """Of all tracked keys; a metric of one's own that only ends in "se" or "lr" rises, as any other one."""
    costs = {key for key in metrics.COSTS if metrics.smaller_is_better(key)}
    assert costs == {*metrics.COSTS} - {"cost/samples_per_second"}
    falling = {key.rpartition("/")[2] for key in metrics.scores("test") if metrics.smaller_is_better(key)}
    assert falling == {"std"} and metrics.smaller_is_better("final/test/G/global/se")
    assert not any(map(metrics.smaller_is_better, ("mine/response", "mine/clr")))


def test_rates_rounds_and_numbers_of_clients_are_neutral():
    """Of all tracked keys; a loss, a spread or a cost is none of them, nor is a metric of one's own."""
    scores = {key.rpartition("/")[2] for key in metrics.scores("test") if metrics.is_neutral(key)}
    assert scores == {"clients"} and not any(map(metrics.is_neutral, metrics.COSTS))
    neutral = ("train/lr", "best/round", "cost/clients", "final/test/G/global/samples", "method/gamma/mean")
    assert all(map(metrics.is_neutral, neutral)) and not any(map(metrics.smaller_is_better, neutral))
    assert not any(map(metrics.is_neutral, ("train/loss", "test/G/global/se", "mine/response", "mine/clr")))
