"""Kendall's τ and its interval over seeds, against numbers derived by hand."""

import math

import pytest

from pfl_ops.statistics import agreement, kendall_tau


def test_tau_of_four_by_hand() -> None:
    """Given 1 2 3 4, found 2 1 4 3: of six pairs two are reversed: (4 − 2) / 6."""
    assert kendall_tau([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 2, 3, 4], [9, 8, 7, 6]) == -1


def test_tau_with_ties_on_both_sides() -> None:
    """Given 1 1 2 3, found 1 2 2 3: pairs (0,1) tied in the given, (1,2) in the found, four agree: 4 / √(5 · 5)."""
    assert kendall_tau([1, 1, 2, 3], [1, 2, 2, 3]) == pytest.approx(4 / 5)
    assert kendall_tau([1, 1, 1], [1, 2, 3]) is None and kendall_tau([1], [1]) is None


def test_the_interval_has_all_resamples_of_three_seeds() -> None:
    """Two methods, given 1 < 2. Differences by seed: +1, +1, −3.

    Of 27 draws the mean difference is negative with two or three of the last seed, or one: −3 + 1 + 1 = −1 < 0; it is
    positive only without it: 8 draws. So τ = 1 in 8 of 27, −1 in 19: both quantiles are the extremes.
    """
    found = agreement([1.0, 2.0], [[0.0, 0.0, 0.0], [1.0, 1.0, -3.0]])
    assert (found.tau, found.low, found.high) == (-1, -1, 1)
    assert (found.agreeing, found.pairs, found.n) == (0, 1, 3)
    narrow = agreement([1.0, 2.0], [[0.0, 0.0, 0.0], [1.0, 1.0, -3.0]], level=0.3)
    assert (narrow.low, narrow.high) == (-1, -1)  # the 35 % and 65 % points; 19/27 = 70 % lie at −1


def test_quantiles_of_the_interval_by_hand() -> None:
    """Differences by seed: +2, +2, −3. Without the last seed their sum is 6 (8 of 27 draws), with it once 1 (12 draws),
    else −4 or −9 (7 draws, 26 %). So the 27 % point lies at τ = 1, the 25 % point at −1.
    """
    differences = [[0.0, 0.0, 0.0], [2.0, 2.0, -3.0]]
    found = agreement([1.0, 2.0], differences, level=0.46)
    assert (found.tau, found.low, found.high) == (1, 1, 1)
    wider = agreement([1.0, 2.0], differences, level=0.5)
    assert (wider.low, wider.high) == (-1, 1)


@pytest.mark.parametrize(
    ("given", "found", "agreeing"),
    [([1.0, 2.0, 3.0], [5, 3, 4], 1), ([3.0, 1.0, 2.0], [5, 3, 3], 2), ([3.0, 1.0, 2.0], [-1, -4, -2], 3)],
)
def test_pairs_in_the_same_order_are_counted(given: list[float], found: list[int], agreeing: int) -> None:
    """Two that are equal in the found means only do not agree."""
    assert (agreement(given, [[x] for x in found]).agreeing, agreement(given, [[x] for x in found]).pairs) == (
        agreeing,
        3,
    )


def test_an_interval_takes_the_same_seeds_of_all_methods() -> None:
    """The methods move together over the seeds by 10 points, and their order never changes: no width."""
    found = agreement([1.0, 2.0, 3.0], [[0, 10, 20], [1, 11, 21], [2, 12, 22]])
    assert (found.tau, found.low, found.high, found.agreeing) == (1, 1, 1, 3)


def test_few_or_many_seeds() -> None:
    """Fewer than three have no interval; of six and more random draws are taken, the same ones each time."""
    assert agreement([1.0, 2.0], [[0, 0], [1, 1]]).low is None
    tied = agreement([1.0, 2.0], [[0, 0, 0], [0, 0, 0]])  # no draw has an order
    assert (tied.tau, tied.low, tied.high) == (None, None, None)
    many = [[0.0] * 8, [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.2]]
    assert agreement([1.0, 2.0], many) == agreement([1.0, 2.0], many)
    assert (agreement([1.0, 2.0], many).low, agreement([1.0, 2.0], many).high) == (-1, 1)


def test_pairs_that_are_equal_in_the_given_values_do_not_count() -> None:
    found = agreement([1.0, 1.0, 2.0], [[3, 3, 3], [4, 4, 4], [5, 5, 5]])
    assert (found.agreeing, found.pairs) == (2, 2) and found.tau == pytest.approx(2 / math.sqrt(6))


@pytest.mark.parametrize("unit", [1, 100, 1e9])
def test_equal_means_of_seeds_in_another_order_are_tied(unit: float) -> None:
    """The last two have 0.1, 0.2, 0.3 and 0.3, 0.2, 0.1, whose sums differ by rounding alone: their pair is tied, and
    two pairs are in the opposite order, so that τ = −2 / √(3 · 2).

    In 10 of 27 draws the first seed is there more often than the last one, in 10 less often (τ = −1/3 and −1), and in
    7 the two are tied: these have the median.
    """
    values = [[unit * x for x in of] for of in ((0.9, 0.8, 0.7), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1))]
    found, median = agreement([1, 2, 3], values), agreement([1, 2, 3], values, level=0)
    assert (found.low, found.high) == (-1, pytest.approx(-1 / 3))
    assert [found.tau, median.low, median.high] == pytest.approx([-2 / math.sqrt(6)] * 3)
