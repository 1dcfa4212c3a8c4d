"""Agreement of two orders: Kendall's τ, and its interval over resampled repetitions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

MOST_EXACT = 5
"""Repetitions up to which all n^n resamples are taken; 3,125 of five."""
DRAWS = 2_000
EQUAL = 9  # decimals in which tied means agree, of values in parts of the largest one


@dataclass(frozen=True)
class Agreement:
    """Agreement of an order of means with a given order.

    Attributes:
        tau: Kendall's τ_b; None: all values of one side are equal.
        low, high: interval of τ over resampled repetitions; None: fewer than three.
        agreeing, pairs: pairs in the same order, of those that differ in the given values.
        n: repetitions behind every mean.
    """

    tau: float | None
    low: float | None
    high: float | None
    agreeing: int
    pairs: int
    n: int


def kendall_tau(given: Sequence[float], found: Sequence[float]) -> float | None:
    """Return Kendall's τ_b of two lists of values, in their order.

        τ_b = (C − D) / √((C + D + T_given) (C + D + T_found))

    C and D are the pairs in the same and in the opposite order, T the pairs that are equal in one list only.

    Returns:
        −1 to 1; None where all values of a list are equal, or there are fewer than two.

    >>> kendall_tau([1, 2, 3], [10, 30, 20])  # two of three pairs agree: (2 − 1) / 3
    0.3333333333333333
    >>> kendall_tau([1, 2, 2], [1, 2, 3])  # 2 / √(2 · 3)
    0.8164965809277261
    >>> kendall_tau([1, 1], [1, 2]) is None
    True

    Source: Kendall, "The Treatment of Ties in Ranking Problems", Biometrika 33, 1945.
    """
    signs = [
        (np.sign(given[j] - given[i]), np.sign(found[j] - found[i])) for i, j in combinations(range(len(given)), 2)
    ]
    difference = float(sum(a * b for a, b in signs))
    scale = float(sum(a != 0 for a, _ in signs)) * float(sum(b != 0 for _, b in signs))
    return difference / math.sqrt(scale) if scale else None


def agreement(given: Sequence[float], found: Sequence[Sequence[float]], level: float = 0.95) -> Agreement:
    """Compare the order of means with a given order.

    The interval is that of a percentile bootstrap: repetitions are drawn again with replacement, the same ones for all
    methods, and τ is taken of the new means. All n^n draws are taken for n of 3 to 5, 2,000 random ones above. It says
    what another set of repetitions might have given, and nothing of the given values.

    Args:
        given: a value a method, [M].
        found: repetitions of each method, one list of the same seeds each, [M][n].
        level: of the interval.

    >>> same = agreement([3.0, 1.0, 2.0], [[30, 31, 32], [10, 11, 12], [20, 21, 22]])
    >>> same.tau, same.low, same.high, same.agreeing, same.pairs
    (1.0, 1.0, 1.0, 3, 3)
    """
    values = np.asarray(found, dtype=np.float64)
    values = values / (np.abs(values).max() or 1.0)
    n = values.shape[1]
    means = values.mean(axis=1).round(EQUAL)
    differing = [(i, j) for i, j in combinations(range(len(given)), 2) if given[i] != given[j]]
    agreeing = sum((given[j] - given[i]) * (means[j] - means[i]) > 0 for i, j in differing)
    low, high = _interval(given, values, level) if n >= 3 else (None, None)
    return Agreement(kendall_tau(given, means.tolist()), low, high, int(agreeing), len(differing), n)


def _interval(given: Sequence[float], values: np.ndarray, level: float) -> tuple[float | None, float | None]:
    n = values.shape[1]
    if n <= MOST_EXACT:
        draws = np.array(list(product(range(n), repeat=n)))
    else:
        draws = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    counts = np.stack([(draws == seed).sum(axis=1) for seed in range(n)], axis=1)  # [draws, n]
    unique, times = np.unique(counts, axis=0, return_counts=True)
    taken = [kendall_tau(given, means.tolist()) for means in (unique @ values.T / n).round(EQUAL)]
    known = [(tau, int(count)) for tau, count in zip(taken, times, strict=True) if tau is not None]
    if not known:
        return None, None
    every = np.repeat([tau for tau, _ in known], [count for _, count in known])
    low, high = np.quantile(every, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)
