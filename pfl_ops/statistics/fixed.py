"""Means, intervals and tests of a number of repetitions that is fixed before the first one runs.

Pure functions on numbers. NaN stands for a repetition without that value and is left out. Where a question has no
answer (one repetition has no spread), the answer is None and never 0.

Looked at after every added seed until it is below 0.05, the p value of a t test is below 0.05 by chance in more than a
quarter of all cases (30 seeds); `anytime` has the tests for that.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import special  # the t distribution without scipy.stats, which takes a second to load

LEVEL = 0.05  # p below which two lines differ, corrected for all of their pairs
ALIKE = 1e-9
"""Differences that spread less than this, in parts of the largest value, differ by rounding alone."""


@dataclass(frozen=True)
class Difference:
    """A mean difference over common seeds, and its test.

    Attributes:
        difference: mean of a − b; NaN: there is no common seed.
        low, high: its interval at the asked level; None: cannot be told.
        p: two-sided, of a difference as large by chance; None: cannot be told.
        n: number of common seeds. n_tested: number of those of which low, high and p are.
        tested_difference: mean of a − b over the tested seeds; NaN: there is none.
    """

    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    n: int = 0
    n_tested: int = 0
    tested_difference: float = math.nan


def mean_std(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation.

        m = 1/n Σ x_i,   s = √(1/(n−1) Σ (x_i − m)²)

    Returns:
        (m, s); s is None for one value, m is NaN for none.
    """
    x = _present(values)
    if not len(x):
        return float("nan"), None
    return float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the mean by Student's t: m ± t_{n−1, (1+level)/2} s/√n.

    Returns:
        (low, high); None for fewer than two values. Values that are all the same give (m, m).
    """
    x = _present(values)
    mean, std = mean_std(x)
    if std is None:
        return None
    half = _half(std / np.sqrt(len(x)), len(x) - 1, level)
    return mean - half, mean + half


def paired(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> Difference:
    """Paired t test over the seeds that both have.

        d_i = a_i − b_i,   t = m_d / (s_d/√n),   p = 2 P(T_{n−1} > |t|),   m_d ± t_{n−1, (1+level)/2} s_d/√n

    What both share in a seed (partition, first model, draws) falls out of the differences.

    Args:
        a, b: seed -> value. level: of the interval.
    Returns:
        n = 0, no common seed: the difference is NaN, and the rest None. n = 1: the difference alone. Every d_i is 0:
        p = 1 and the interval is [0, 0]. Every d_i is the same other number: no interval and no p, because differences
        that don't spread give t no scale (with two or three repetitions that happens by chance).
    """
    seeds = sorted(a.keys() & b.keys())
    pairs = np.array([(a[s], b[s]) for s in seeds], dtype=np.float64).reshape(-1, 2)
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    n = len(pairs)
    difference, std = mean_std(pairs[:, 0] - pairs[:, 1])
    low = high = p = None
    if std is not None:
        low, high, p = _t_test(difference, std / np.sqrt(n), n - 1, level, float(np.abs(pairs).max()))
    return Difference(difference, low, high, p, n, n, difference)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p values of m tests that were made together, after Holm: the chance of a single false find stays below the level.

        p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)),   p_(1) ≤ … ≤ p_(m)

    Args:
        ps: None: no test was possible; it stays None and is not counted in m.
    Returns:
        corrected, in the order given.
    """
    asked = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(asked):
        largest = max(largest, min(1.0, (len(asked) - rank) * p))
        corrected[i] = largest
    return corrected


def to_the_first(
    values: Sequence[Mapping[int, float]],
    test: Callable[[Mapping[int, float], Mapping[int, float]], Difference],
    testable: Callable[[int, int], bool] = lambda i, j: True,
    untested: int = 0,
) -> list[tuple[Difference, float | None]]:
    """Test every setting but the first against the first one, which the same values put first.

    Since the values decide which one is first, every pair might have been tested: p is corrected for all pairs (Holm).

    Args:
        values: of each setting, seed -> value. test: of two of them, `paired` or `anytime`.
        testable: False if two settings, by their places in `values`, must not be tested; their pair is not counted.
        untested: number of further pairs in the family, each with p = 1: those that results have left without a test.
    Returns:
        [(test of values[i] less values[0], its corrected p), ...] for i = 1, 2, ...; the corrected p is None if there
        is no test.
    """
    pairs = list(combinations(range(len(values)), 2))
    first = [test(other, values[0]) for other in values[1:]]
    tests = [first[j - 1] if i == 0 else test(values[j], values[i]) for i, j in pairs]
    ps = [one.p if testable(*pair) else None for pair, one in zip(pairs, tests, strict=True)]
    corrected = holm([*ps, *[1.0] * untested])
    return list(zip(first, corrected, strict=False))  # the pairs with the first stand in front


def _t_test(
    difference: float, error: float, dof: int, level: float, scale: float
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Ends of the interval and p of a difference with a standard error; `scale`: size of the subtracted values."""
    if error <= ALIKE * scale:
        return (difference, difference, 1.0) if abs(difference) <= ALIKE * scale else (None, None, None)
    half = _half(error, dof, level)
    return difference - half, difference + half, float(2 * special.stdtr(dof, -abs(difference) / error))


def _half(error: float, dof: int, level: float) -> float:
    """Half the length of an interval: a quantile of Student's t times the standard error."""
    return float(special.stdtrit(dof, (1 + level) / 2) * error)


def _present(values: Iterable[float]) -> NDArray[np.float64]:
    x = np.array(list(values), dtype=np.float64)
    return x[~np.isnan(x)]
