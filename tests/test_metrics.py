"""Per-client values to tracked numbers, each by hand."""

import subprocess
import sys

import numpy as np
import pytest

from pfl_ops.metrics import (
    SWEEP,
    acc_sum,
    key,
    noted,
    rho,
    rounds_to,
    summarise,
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


def test_metrics_do_not_import_torch():
    code = "import sys, pfl_ops.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sweep_is_fedpgs():
    assert SWEEP == (0, 1, 10, 30, 50, 70, 100)
