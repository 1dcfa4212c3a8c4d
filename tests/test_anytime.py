"""Anytime-valid tests against their derivation, against simulation with a look after every seed, and against scipy.

The simulations are seeded and vectorised: 20,000 sequences of up to 30 differences, a look after every seed. A share of
20,000 has a standard error of 0.11 percentage points at 2.5 %.
"""

import math
from dataclasses import asdict
from itertools import accumulate

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from pfl_ops.statistics import (
    ALIKE,
    above,
    anytime,
    common_prefix,
    confidence_sequence,
    e_bh,
    e_process,
    e_process_above,
    holm,
    interval,
    paired,
    to_the_first,
)

C = 0.1
SEQUENCES, SEEDS, LEVEL = 20_000, 30, 0.05


@pytest.fixture(scope="module")
def normal() -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((SEQUENCES, SEEDS))


def decided(e: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of seeds after which each sequence is decided at 5 %; 99: never."""
    reached = e >= 1 / LEVEL
    return np.where(reached.any(-1), reached.argmax(-1) + 1, 99)


def test_seeds_added_downward_have_no_bound(normal: NDArray[np.float64]) -> None:
    """A look after each seed, the newest first in the order of the test: another sequence at every look.

    docs/statistics.md and `compare` say to add seeds upward.
    """
    some = normal[:8000, :20]
    ever = np.zeros(len(some), dtype=bool)
    for n in range(2, 21):
        ever |= decided(e_process(some[:, -n:])) < 99
    assert 0.18 < ever.mean() < 0.24
    assert (decided(e_process(some)) < 99).mean() < LEVEL
    five, ten = (decided(e_process(normal[:, first:10])) < 99 for first in (5, 0))
    assert (five | ten).mean() == pytest.approx(0.034, abs=0.004)


def test_e_by_hand() -> None:
    """x = 1, 2: s = 3, v = 5, D = 5 − 9/2.1 = 5/7, so v/D = 7 and e_2 = √(0.1/2.1) · 7.

    One difference says nothing of its spread: v/D = (n+c)/c at n = 1, and e_1 = 1. F_1(t) = 1/2 + arctan(t)/π at
    t = s √(1/(1.1 D)) = √(1/c) for any s > 0, so e⁺_1 = 1 + 2 arctan(√10)/π.
    """
    assert e_process([1.0, 2.0]) == pytest.approx([1.0, 7 * math.sqrt(0.1 / 2.1)])
    once = 2 * math.atan(math.sqrt(10)) / math.pi
    assert e_process_above([0.3])[0] == pytest.approx(1 + once) and e_process_above([-7.0])[0] == pytest.approx(
        1 - once
    )
    assert e_process([]).shape == e_process_above([]).shape == (0,)


@pytest.mark.parametrize("x", [[0.4], [1.0, 2.0], [0.5, -1.0, 0.7], [3.0, 2.0, 2.5, 4.0]])
def test_e_is_the_ratio_of_the_two_marginal_likelihoods(x: list[float]) -> None:
    """By quadrature over log σ and the effect δ, without the closed forms of the derivation.

    Null: ∫ Π N(x_i; 0, σ²) dσ/σ. Alternative: the same with mean σδ, δ ~ N(0, 1/c); directed: δ ~ |N(0, 1/c)|.
    """

    def likelihood(log_sigma: float, delta: float) -> float:
        return float(np.prod(stats.norm.pdf(x, math.exp(log_sigma) * delta, math.exp(log_sigma))))

    null = integrate.quad(lambda u: likelihood(u, 0.0), -6, 8, limit=200)[0]
    deltas, width = np.linspace(-20, 20, 4001, retstep=True)
    prior = stats.norm.pdf(deltas, 0, 1 / math.sqrt(C))
    logs, step = np.linspace(-6, 12, 451, retstep=True)
    sigma = np.exp(logs)[:, None]
    given = np.prod([stats.norm.pdf((value - sigma * deltas) / sigma) / sigma for value in x], axis=0)
    by_delta = given.sum(0) * step * prior  # the integrand is smooth and ends at 0: a sum is exact
    assert by_delta.sum() * width / null == pytest.approx(e_process(x)[-1], rel=1e-3)
    positive = by_delta[deltas > 0].sum() + by_delta[deltas == 0].sum() / 2
    assert 2 * positive * width / null == pytest.approx(e_process_above(x)[-1], rel=1e-3)


def test_both_directions_average_to_the_two_sided_e() -> None:
    """F_n(t) + F_n(−t) = 1, so (e⁺(x) + e⁺(−x))/2 = e(x): the half-normal priors make up the normal one."""
    x = np.random.default_rng(1).normal(0.3, 1, (50, 12))
    assert (e_process_above(x) + e_process_above(-x)) / 2 == pytest.approx(e_process(x))


def test_units_change_nothing() -> None:
    x = np.random.default_rng(2).normal(0.3, 1, 12)
    for unit in (1e-200, 1e-3, 1e200):
        assert e_process(unit * x) == pytest.approx(e_process(x))
        assert e_process_above(unit * x) == pytest.approx(e_process_above(x))


def test_false_alarms_with_a_look_after_every_seed(normal: NDArray[np.float64]) -> None:
    """2.6 % (two-sided) and 2.5 % (directed) of 5 %, where the t test has 29 %, looked at from the second seed on."""
    assert np.mean(decided(e_process(normal)) < 99) == pytest.approx(0.0255, abs=0.003)
    assert np.mean(decided(e_process_above(normal)) < 99) == pytest.approx(0.0254, abs=0.003)
    n = np.arange(2, SEEDS + 1)
    mean = normal.cumsum(1)[:, 1:] / n
    spread = np.sqrt(((normal**2).cumsum(1)[:, 1:] - n * mean**2) / (n - 1))
    p = 2 * stats.t.sf(np.abs(mean) / spread * np.sqrt(n), n - 1)
    assert np.mean((p < LEVEL).any(1)) == pytest.approx(0.290, abs=0.01)


def test_a_mean_below_zero_is_seldom_called_above_zero(normal: NDArray[np.float64]) -> None:
    """t of x − constant is smaller at every look, so e⁺ is too: the directed test holds for every mean ≤ 0."""
    for effect in (0.1, 0.5):
        lower = e_process_above(normal - effect)
        assert (lower <= e_process_above(normal) * (1 + 1e-9)).all()
        assert np.mean(decided(lower) < 99) < 0.02


@pytest.mark.parametrize(("effect", "seeds"), [(4, 3), (2, 5), (1, 11)])
def test_power_of_the_directed_test(normal: NDArray[np.float64], effect: float, seeds: int) -> None:
    """The median number of seeds after which an effect of so many standard deviations is decided."""
    assert np.median(decided(e_process_above(normal + effect))) == seeds


@pytest.mark.parametrize("spread", [3, 1, 0.5, 0.3, 0.1])
def test_scores_in_steps_of_a_test_set(normal: NDArray[np.float64], spread: float) -> None:
    """Differences are whole numbers of samples, with a standard deviation of so many: the fewer, the more are equal.

    Measured: 2.1, 1.5, 0.2, 0 and 0 %. By the formula alone three equal differences have e = 31.
    """
    x = np.rint(spread * normal)
    for e in (e_process(x), e_process_above(x), e_process_above(-x)):
        assert np.mean(decided(e) < 99) < 0.03
    equal = (x[:, :3] == x[:, :1]).all(1)
    assert equal.any() and (decided(e_process(x[equal, :3])) == 99).all()


def test_scores_of_few_test_samples() -> None:
    """Two methods with the same accuracy on 50 samples, drawn anew for each seed: 2.0 % measured."""
    draw = np.random.default_rng(0)
    x = (draw.binomial(50, 0.95, (SEQUENCES, SEEDS)) - draw.binomial(50, 0.95, (SEQUENCES, SEEDS))) / 50
    assert 0.015 < np.mean(decided(e_process(x)) < 99) < 0.025
    assert 0.015 < np.mean(decided(e_process_above(x)) < 99) < 0.025


def test_e_from_the_t_statistic_of_scipy() -> None:
    """With t = m √n / s_d and S = Σ (x_i − m)² = 1: n m² = t²/(n−1), v = 1 + n m², D = 1 + n m² c/(n+c)."""
    for n in (2, 3, 5, 10, 30):
        x = np.random.default_rng(n).normal(0.4, 1, n)
        t = float(stats.ttest_1samp(x, 0).statistic)
        square = t**2 / (n - 1)
        d = 1 + square * C / (n + C)
        e = math.sqrt(C / (n + C)) * ((1 + square) / d) ** (n / 2)
        assert e_process(x)[-1] == pytest.approx(e)
        s = math.copysign(math.sqrt(n * square), t)
        directed = 2 * e * stats.t.cdf(s * math.sqrt(n / ((n + C) * d)), n)
        assert e_process_above(x)[-1] == pytest.approx(directed)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 30])
def test_one_look_is_a_t_test_at_a_smaller_level(n: int) -> None:
    """e rises with t², so e ≥ 20 is |t| above a bound: its probability under the null is below 5 %, and 0 for n = 2.

    (1 + q)/(1 + q c/(n+c)) = K at the bound, q = t²/(n−1) and K = (20 √((n+c)/c))^(2/n): none where K ≥ (n+c)/c.
    """
    k = (20 * math.sqrt((n + C) / C)) ** (2 / n)
    rest = 1 - k * C / (n + C)
    if n == 2:
        assert rest < 0
        return
    bound = math.sqrt((n - 1) * (k - 1) / rest)
    assert 0 < 2 * stats.t.sf(bound, n - 1) < LEVEL
    x = np.random.default_rng(5).standard_normal(n)
    x -= x.mean()
    for t, above_it in ((bound * 1.001, True), (bound * 0.999, False)):
        shifted = x + t * x.std(ddof=1) / math.sqrt(n)
        assert stats.ttest_1samp(shifted, 0).statistic == pytest.approx(t)
        assert (e_process(shifted)[-1] >= 20) == above_it


def test_the_confidence_sequence_is_what_the_test_does_not_reject() -> None:
    """At each end the e-process of x less the end is 1/α at that look; for n ≤ 2 there is no end."""
    x = np.random.default_rng(3).normal(0.7, 0.2, 20)
    low, high = confidence_sequence(x)
    assert np.isinf(low[:2]).all() and np.isinf(high[:2]).all() and np.isfinite(low[2:]).all()
    for n in range(3, 21):
        for end in (low[n - 1], high[n - 1]):
            assert e_process(x[:n] - end)[-1] == pytest.approx(20)
        fixed = interval(x[:n])
        assert fixed is not None and low[n - 1] < fixed[0] and fixed[1] < high[n - 1]
    assert np.isinf(confidence_sequence(x, level=0.99)[0][:3]).all()  # 31² < 100²
    assert np.isfinite(confidence_sequence(x, level=0.99)[0][3])


def test_the_confidence_sequence_of_a_spread_far_below_the_mean() -> None:
    """x = 2^28 + k, k = 0, 1, −1, 2, 0, all exact: m = 2^28 + 2/5, S = Σ k² − 2²/5 = 6 − 0.8 = 5.2. The sum of squares
    less n m² would be a difference of two numbers near 5 · 2^56, whose last digit is 64."""
    x = 2.0**28 + np.array([0.0, 1.0, -1.0, 2.0, 0.0])
    low, high = confidence_sequence(x, scale=np.ones(5))
    k = (5.1 / C) ** (1 / 5) * 0.05 ** (-2 / 5)
    half = math.sqrt((k - 1) * 5.2 / (5 * (1 - k * C / 5.1)))
    assert ((high - low) / 2)[-1] == pytest.approx(half, rel=1e-6)
    assert (low + high)[-1] / 2 == pytest.approx(2.0**28 + 0.4, rel=1e-15)


def test_the_mean_is_in_all_intervals_of_the_sequence(normal: NDArray[np.float64]) -> None:
    low, high = confidence_sequence(normal + 0.5)
    missed = ((low > 0.5) | (high < 0.5)).any(1)
    assert np.mean(missed) == pytest.approx(0.0255, abs=0.003)


def test_equal_differences_stay_undecided() -> None:
    """v = 0: e = √(c/(n+c)); also for equal differences other than 0, up to the last bits, in either direction.

    0.9 − 0.8, 0.8 − 0.7 and 0.3 − 0.2 differ in the last bit: the formula has D = v c/(n+c) (1 + rounding) there.
    """
    nothing = [math.sqrt(C / (n + C)) for n in (1, 2, 3)]
    assert e_process([0.0, 0.0, 0.0]) == pytest.approx(nothing)
    assert e_process_above([0.0, 0.0, 0.0]) == pytest.approx(nothing)
    constant = {0: 0.9, 1: 0.8, 2: 0.3}, {0: 0.8, 1: 0.7, 2: 0.2}
    x = [constant[0][seed] - constant[1][seed] for seed in range(3)]
    for direction in (1, -1):
        assert e_process(direction * np.array(x), [1.0] * 3)[1:] == pytest.approx(nothing[1:])
        assert e_process_above(direction * np.array(x), [1.0] * 3)[1:] == pytest.approx(nothing[1:])
    found = anytime(*constant)
    assert (found.p, found.low, found.high, found.n_tested) == (1.0, None, None, 3)
    assert np.isinf(confidence_sequence(x, scale=[1.0] * 3)[1]).all()
    assert above(*constant).p > 0.5 and above(*reversed(constant)).p == 1.0
    bytes_sent = {0: 9e8, 1: 1.0, 2: 2.0}  # 9.1 more each, but for the rounding of the first
    assert anytime({seed: 9.1 + value for seed, value in bytes_sent.items()}, bytes_sent).p == 1.0
    same = anytime({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert (same.difference, same.p) == (0.0, 1.0)
    # one that differs by more than rounding is a spread
    assert e_process([0.1, 0.1, 0.1 + 10 * ALIKE])[-1] > 20


def test_each_row_of_a_table_is_tested_by_itself() -> None:
    """A row of zeros has e_1 = √(0.1 / 1.1) whatever the rows above it are, and no interval."""
    table = np.array([[3.0, 1.0, 2.5], [0.0, 0.0, 0.0], [0.5, 0.5, -1e-12]])
    for of in (e_process, e_process_above, confidence_sequence):
        rows = np.stack([of(row) for row in table], axis=-2)
        np.testing.assert_array_equal(of(table), rows)
    assert e_process(table)[1].tolist() == pytest.approx([math.sqrt(0.1 / (n + 0.1)) for n in (1, 2, 3)])
    assert np.isinf(confidence_sequence(table)[0][1]).all()


def test_rounding_leaves_d_positive() -> None:
    """D ≥ v c/(n+c) by Cauchy-Schwarz; nearly equal differences come closest to that bound, at any n."""
    x = 1 + 3e-9 * np.random.default_rng(4).standard_normal(2000)
    e = e_process(x)
    assert np.isfinite(e).all() and (e > 0).all()
    n = np.arange(1, 2001)
    most = np.minimum((n - 1) / 2 * np.log((n + C) / C), 700)  # (v/D)^(n/2) at D = v c/(n+c)
    assert np.log(e)[5:] == pytest.approx(most[5:], rel=1e-6)


def test_seeds_up_to_the_first_that_is_missing() -> None:
    """A repetition that diverged, or is not there, is never left out: the others would flatter its setting."""
    nan, inf = math.nan, math.inf
    b = dict.fromkeys(range(5), 0.5)
    assert common_prefix({0: 1.0, 1: 1.0, 2: nan, 3: 1.0, 4: 1.0}, b) == [0, 1]
    assert common_prefix({0: 1.0, 1: inf, 2: 1.0}, b) == [0]
    assert common_prefix({1: 1.0, 2: 1.0}, b) == []  # seed 0 is missing
    assert common_prefix({1: 1.0, 2: 1.0}, b, seeds=[2, 1, 0]) == [2, 1]
    assert common_prefix({4: 1.0, 3: 1.0}, {3: 1.0, 4: 1.0}) == [3, 4]

    a = {0: 0.61, 1: 0.72, 2: 0.83, 4: 0.85}
    b = {0: 0.60, 1: 0.70, 2: 0.80, 3: 0.90, 4: 0.80}
    found = anytime(a, b)
    assert (found.n, found.n_tested) == (4, 3)
    assert found.difference == pytest.approx((0.01 + 0.02 + 0.03 + 0.05) / 4)
    assert found.tested_difference == pytest.approx(0.02)
    assert found.p == pytest.approx(1 / e_process([0.01, 0.02, 0.03]).max()) and (found.low, found.high) == (None, None)
    whole = anytime({seed: a[seed] for seed in range(3)}, {seed: b[seed] for seed in range(3)})
    assert whole.p == found.p and (whole.low, whole.high) == pytest.approx(
        [float(ends[-1]) for ends in confidence_sequence([0.01, 0.02, 0.03])]
    )
    assert anytime(a, {}).p is None and math.isnan(anytime(a, {}).difference)
    one = anytime({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: nan, 2: 0.5})
    assert (one.n, one.n_tested, one.low, one.high, one.p) == (2, 1, None, None, None)
    assert (one.difference, one.tested_difference) == (pytest.approx(0.15), pytest.approx(0.1))


def test_evidence_counts_the_largest_look() -> None:
    """Once decided, later seeds do not take it back."""
    x = [0.1, 0.11, 0.09, 0.1, 0.105, -0.3, -0.2]
    a, b = dict(enumerate(x)), dict.fromkeys(range(len(x)), 0.0)
    looks = e_process_above(x)
    found = above(a, b)
    assert looks[-1] < 20 < looks.max() == pytest.approx(found.e) and found.p == pytest.approx(1 / found.e)
    assert (found.n, found.difference) == (7, pytest.approx(np.mean(x))) and found.spread == pytest.approx(
        np.std(x, ddof=1)
    )
    assert above(b, a).e == pytest.approx(e_process_above([-value for value in x]).max())
    assert asdict(above(a, {})) == pytest.approx(asdict(above({}, {})), nan_ok=True) and above(a, {}).p == 1.0
    p = [1 / largest for largest in accumulate(looks, max)]
    assert p == sorted(p, reverse=True)


def test_large_evidence_is_finite() -> None:
    e = e_process(5 + np.random.default_rng(6).standard_normal(3000))
    assert np.isfinite(e).all() and e[-1] > 1e300


def test_e_bh_by_hand() -> None:
    """m = 4 at 5 %: k e_(k) ≥ 80. 79.9 alone fails, two of 40 pass, and so do three of 27."""
    assert e_bh([79.9, 1, 1, 1]) == [False] * 4 and e_bh([80.1, 1, 1, 1]) == [True, False, False, False]
    assert e_bh([1, 41, 0.1, 40]) == [False, True, False, True]
    assert e_bh([27, 27, 1, 27]) == [True, True, False, True]
    assert e_bh([20.1] * 4) == [True] * 4 and e_bh([]) == []


def test_the_first_is_chosen_by_the_values_so_all_pairs_count() -> None:
    """Eight settings that are equal: after each of 20 seeds the one with the highest mean is tested against the others.

    The share of sequences in which any of these is told apart at any look is below 5 %, where a
    correction for the comparisons with the first alone lets 7 % pass.
    """
    draw = np.random.default_rng(7)
    settings, looks, sequences = 8, 20, 1000
    x = draw.standard_normal((sequences, settings, looks))
    largest = np.ones((settings, settings, sequences, looks))
    for i in range(settings):
        for j in range(i):
            largest[i, j] = largest[j, i] = np.maximum.accumulate(e_process(x[:, i] - x[:, j]), axis=-1)
    first = x.cumsum(-1).argmax(1)  # [sequences, looks]
    against = np.take_along_axis(largest.max(1), first[None], 0)[0]
    pairs = settings * (settings - 1) / 2
    alarms, few = ((against >= m / LEVEL).any(-1).mean() for m in (pairs, settings - 1))
    assert alarms < 0.03 < LEVEL < few


def test_to_the_first_by_hand() -> None:
    """Three pairs; the largest factor, 3, is for the smallest p. A pair that must not be tested is not counted."""
    values = [{0: 0.5, 1: 0.7, 2: 0.6}, {0: 0.4, 1: 0.58, 2: 0.49}, {0: 0.3, 1: 0.8, 2: 0.6}]
    p = [paired(values[j], values[i]).p for i, j in ((0, 1), (0, 2), (1, 2))]
    (second, one), (third, two) = to_the_first(values, paired)
    assert (second.p, third.p) == (p[0], p[1]) and [one, two] == holm(p)[:2] and one == pytest.approx(3 * p[0])
    (_, one), (third, two) = to_the_first(values, paired, lambda i, j: (i, j) != (0, 2))
    assert one == pytest.approx(2 * p[0]) and two is None and third.p == p[1]
    (_, one), (_, two) = to_the_first(values, paired, lambda i, j: (i, j) == (0, 1), untested=2)
    assert one == pytest.approx(3 * p[0]) and two is None
    assert to_the_first(values[:1], paired) == to_the_first([], paired) == []
    assert to_the_first(values, anytime)[0][0] == anytime(values[1], values[0])


def test_interval_is_of_the_last_look_and_p_of_all() -> None:
    """The example of docs/statistics.md: the third look rejects 0, the fourth does not."""
    differences = [10.0, 11.0, 9.0, 4.0]
    assert [round(float(e), 1) for e in e_process(differences)] == [1.0, 4.4, 23.6, 12.2]
    found = anytime(dict(enumerate(differences)), dict.fromkeys(range(4), 0.0))
    assert found.p is not None and found.low is not None and found.high is not None
    assert (round(found.p, 3), round(found.low, 1), round(found.high, 1)) == (0.042, -1.7, 18.7)
