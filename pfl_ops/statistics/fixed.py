"""Means, intervals and tests of a number of repetitions that is fixed before the first one runs.

Pure functions on numbers. NaN stands for a repetition without that value and is left out. Where a question has no
answer (one repetition has no spread), the answer is None and never 0.

Looked at after every added seed until it is below 0.05, the p value of a t test is below 0.05 by chance in more than a
quarter of all cases (30 seeds); `anytime` has the tests for that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special  # the t distribution without scipy.stats, which takes a second to load

ALIKE = 1e-9
"""Differences that spread less than this, in parts of the largest value, differ by rounding alone."""


@dataclass(frozen=True)
class Difference:
    """A difference of two means, and what is known about it.

    Attributes:
        difference: a less b.
        low, high: its interval at the asked level; None: cannot be told.
        p: two-sided, of a difference as large by chance; None: cannot be told.
    """

    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Paired(Difference):
    """A difference over common seeds.

    Attributes:
        n: how many seeds both have.
    """

    n: int = 0

    @property
    def n_tested(self) -> int:
        """The number of seeds of which p is."""
        return self.n


AnyPaired = TypeVar("AnyPaired", bound=Paired)


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


def paired(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> Paired:
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
    if std is None:
        return Paired(difference, n=n)
    tested = _tested(difference, std / np.sqrt(n), n - 1, level, float(np.abs(pairs).max()))
    return Paired(tested.difference, tested.low, tested.high, tested.p, n)


def welch(
    mean_a: float,
    std_a: float | None,
    n_a: int | None,
    mean_b: float,
    std_b: float | None,
    n_b: int | None,
    level: float = 0.95,
) -> Difference:
    """Welch's t test of two means from their summaries, for values without seeds in common (a paper's and ours).

        v = s_a²/n_a + s_b²/n_b,   t = (m_a − m_b)/√v,   ν = v² / ((s_a²/n_a)²/(n_a−1) + (s_b²/n_b)²/(n_b−1))

    Args:
        mean_a, std_a, n_a: sample standard deviation and number of values; a standard deviation of 0 says that the
            mean is known exactly (then this is the test of one sample, and its n is not asked for).
        mean_b, std_b, n_b: the same of the other. level: of the interval.
    Returns:
        The difference alone where a spread is None, or its n is None or below 2. Without any spread: equal means have
        p = 1, others no p.
    """
    difference = mean_a - mean_b
    parts, weights = 0.0, 0.0
    for std, n in ((std_a, n_a), (std_b, n_b)):
        if std == 0:
            continue
        if std is None or n is None or n < 2:
            return Difference(difference)
        parts += std**2 / n
        weights += (std**2 / n) ** 2 / (n - 1)
    dof = parts**2 / weights if weights else 1.0
    return _tested(difference, float(np.sqrt(parts)), dof, level, max(abs(mean_a), abs(mean_b)))


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
    test: Callable[[Mapping[int, float], Mapping[int, float]], AnyPaired],
    testable: Callable[[int, int], bool] = lambda i, j: True,
) -> list[tuple[AnyPaired, float | None]]:
    """Test every setting but the first against the first one, which the same values put first.

    Since the values decide which one is first, every pair might have been tested: p is corrected for all pairs (Holm).

    Args:
        values: of each setting, seed -> value. test: of two of them, `paired` or `anytime`.
        testable: False if two settings, by their places in `values`, must not be tested; their pair is not counted.
    Returns:
        [(test of values[i] less values[0], its corrected p), ...] for i = 1, 2, ...; the corrected p is None if there
        is no test.
    """
    pairs = list(combinations(range(len(values)), 2))
    first = [test(other, values[0]) for other in values[1:]]
    tests = [first[j - 1] if i == 0 else test(values[j], values[i]) for i, j in pairs]
    corrected = holm([one.p if testable(*pair) else None for pair, one in zip(pairs, tests, strict=True)])
    return list(zip(first, corrected, strict=False))  # the pairs with the first stand in front


def _tested(difference: float, error: float, dof: float, level: float, scale: float) -> Difference:
    """t test of a difference with a standard error; `scale` is the size of the values that were subtracted."""
    if error <= ALIKE * scale:
        nothing = abs(difference) <= ALIKE * scale
        return Difference(difference, difference, difference, 1.0) if nothing else Difference(difference)
    half = _half(error, dof, level)
    p = float(2 * special.stdtr(dof, -abs(difference) / error))
    return Difference(difference, difference - half, difference + half, p)


def _half(error: float, dof: float, level: float) -> float:
    """Half the length of an interval: a quantile of Student's t times the standard error."""
    return float(special.stdtrit(dof, (1 + level) / 2) * error)


def _present(values: Iterable[float]) -> NDArray[np.float64]:
    x = np.array(list(values), dtype=np.float64)
    return x[~np.isnan(x)]
