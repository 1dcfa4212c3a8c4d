"""Statistics over repetitions, against numbers derived by hand.

With n = 3 there are two degrees of freedom, where Student's t has a closed form:
P(T_2 ≤ t) = 1/2 + t / (2 √(2 + t²)), and its 97.5 % point is 0.95 √2 / √(1 − 0.95²) = 4.302653.
With n = 2 it is Cauchy's: P(T_1 ≤ t) = 1/2 + arctan(t)/π, 97.5 % point tan(0.475 π) = 12.7062.
"""

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from pfl_ops.statistics import holm, interval, mean_std, non_dominated, paired

T2 = 0.95 * math.sqrt(2) / math.sqrt(1 - 0.95**2)


def test_mean_and_spread() -> None:
    mean, std = mean_std([0.5, 0.7, 0.9])
    assert (mean, std) == (pytest.approx(0.7), pytest.approx(0.2))  # 0.04 + 0 + 0.04, over 2
    assert mean_std([0.3]) == (0.3, None)
    assert mean_std([0.3, math.nan]) == (0.3, None)
    mean, std = mean_std([])
    assert math.isnan(mean) and std is None


def test_interval_of_a_mean() -> None:
    half = T2 * 0.2 / math.sqrt(3)  # 0.4968: three repetitions say little
    assert interval([0.5, 0.7, 0.9]) == pytest.approx((0.7 - half, 0.7 + half))
    assert half == pytest.approx(0.496828, abs=1e-6)
    # n = 2 at level 1/2: the 75 % point of Cauchy is 1, and s/√2 is half the distance, so the interval is the values
    assert interval([1.0, 3.0], level=0.5) == pytest.approx((1.0, 3.0))
    assert interval([0.5]) is None and interval([]) is None
    assert interval([0.5, 0.5]) == (0.5, 0.5)


def test_paired_by_hand() -> None:
    # d = 0.01, 0.02, 0.03: mean 0.02, s 0.01, t = 0.02 √3 / 0.01 = 2 √3, so p = 1 − 2√3/√14
    a, b = {0: 0.91, 1: 0.82, 2: 0.73, 7: 0.1}, {0: 0.90, 1: 0.80, 2: 0.70, 9: 0.2}
    found = paired(a, b)
    assert found.n == found.n_tested == 3 and found.difference == found.tested_difference == pytest.approx(0.02)
    assert found.p == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14)) == pytest.approx(0.0741799, abs=1e-7)
    half = T2 * 0.01 / math.sqrt(3)
    assert (found.low, found.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    other = paired(b, a)
    assert other.p == pytest.approx(found.p) and other.difference == pytest.approx(-0.02)


def test_pairing_takes_out_what_seeds_share() -> None:
    """Seeds differ by 0.1, methods by 0.01: paired it is seen, unpaired it is not."""
    b = {0: 0.6, 1: 0.7, 2: 0.8}
    a = {0: 0.6101, 1: 0.7100, 2: 0.8099}
    p = paired(a, b).p
    unpaired = ttest_ind(list(a.values()), list(b.values()), equal_var=False).pvalue
    assert p is not None and p < 0.001 and unpaired > 0.8


def test_paired_where_there_is_no_test() -> None:
    none = paired({0: 1.0}, {1: 1.0})
    assert (none.n, none.low, none.high, none.p) == (0, None, None, None) and math.isnan(none.difference)
    one = paired({0: 0.9, 1: math.nan}, {0: 0.8, 1: 0.7})
    assert (one.n, one.low, one.p) == (1, None, None) and one.difference == pytest.approx(0.1)
    same = paired({0: 0.9, 1: 0.8}, {0: 0.9, 1: 0.8})
    assert (same.n, same.difference, same.low, same.high, same.p) == (2, 0.0, 0.0, 0.0, 1.0)
    never = paired(dict.fromkeys(range(3), 0.0), dict.fromkeys(range(3), 0.0))  # no client was ever right
    assert (never.difference, never.low, never.high, never.p) == (0.0, 0.0, 0.0, 1.0)
    # 0.9 − 0.8, 0.8 − 0.7 and 0.3 − 0.2 differ in the last bit; that must not pass for the surest of differences
    constant = paired({0: 0.9, 1: 0.8, 2: 0.3}, {0: 0.8, 1: 0.7, 2: 0.2})
    reverse = paired({0: 0.8, 1: 0.7, 2: 0.2}, {0: 0.9, 1: 0.8, 2: 0.3})
    assert (constant.low, constant.high, constant.p) == (None, None, None) == (reverse.low, reverse.high, reverse.p)
    assert constant.difference == pytest.approx(0.1) == -reverse.difference
    large = paired({0: 9e8, 1: 1e8, 2: 1e7}, {0: 9e8 - 9.1, 1: 1e8 - 9.1, 2: 1e7 - 9.1})
    assert (large.low, large.high, large.p) == (None, None, None) and large.difference == pytest.approx(9.1)


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.03, 0.04 of m = 3: 3 · 0.01, 2 · 0.03, and 1 · 0.04 raised to the one before it
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.02, None, 0.01]) == [0.02, None, 0.02]
    assert holm([]) == []


def test_the_pareto_front() -> None:
    points = [[1, 5], [2, 4], [2, 3], [0, 5], [3, 0], [math.nan, 9], [1, 5]]
    assert non_dominated(points).tolist() == [True, True, False, False, True, False, True]
    assert non_dominated(np.empty((0, 2))).tolist() == []
