"""Anytime-valid tests of paired differences: valid at every number of seeds, however it was decided to stop there.

The differences x_1, x_2, ... of two settings over seeds are N(μ, σ²), σ unknown. An e-process is a test statistic with
P(e_n ≥ 1/α for any n) ≤ α under the null hypothesis. So a look after every seed, and the decision to add seeds, cost no
error. A p value that holds at any time is 1/max e.

Derivation. With s = Σ x_i, v = Σ x_i² and the prior dσ/σ, the null hypothesis μ = 0 has the marginal likelihood

    ∫ σ^(−n) exp(−v / 2σ²) dσ/σ  ∝  v^(−n/2).

Under the alternative the effect δ = μ/σ is drawn from N(0, 1/c). The integral over δ is a Gaussian one:

    √(c/2π) ∫ exp(sδ/σ − (n + c) δ²/2) dδ  =  √(c/(n+c)) exp(s² / 2σ²(n+c)),

so that v becomes D = v − s²/(n+c) in the marginal likelihood, and the ratio of the two is

    e_n = √(c/(n+c)) (v/D)^(n/2).

By Cauchy-Schwarz s² ≤ n v, so D ≥ v c/(n+c): D is 0 only if v is. e_n depends on x/|x_1| only, and for such ratios
the prior dσ/σ gives the exact likelihood ratio, a martingale of mean 1 under μ = 0, whatever σ. Ville's inequality
gives the bound above.

With δ > 0 alone (twice the prior on that half) the integral over δ has the factor 2Φ(s/(σ√(n+c))). D/σ² is χ² with n
degrees of freedom under the marginal posterior of σ, and Z/√(χ²_n/n) is t distributed, so the directed e-process is

    e⁺_n = 2 e_n F_n(s √(n / ((n+c) D))),   F_n: the t distribution's CDF with n degrees of freedom.

e⁺_n rises with Student's t alone, and t falls if a constant is taken from every x_i. So the bound for μ = 0 holds for
every μ ≤ 0.

Source: H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance", 2024; R. Wang and A. Ramdas, "False discovery rate control with e-values", JRSS B 2022 (e-BH).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from pfl_ops.statistics.fixed import ALIKE, Difference, mean_std

PRECISION = 0.1
"""c: the prior precision of the effect μ/σ. The prior standard deviation of the effect is 1/√c = 3.2."""
LARGEST_LOG = 700.0  # e-values above exp(700) are returned as exp(700), near the largest float


@dataclass(frozen=True)
class Evidence:
    """The directed test of "a is above b".

    Attributes:
        n: number of seeds in the common prefix.
        e: the largest e⁺ at any look; 1 without a seed.
        difference: mean of a − b over the prefix; NaN without a seed.
        spread: sample standard deviation of these differences; None: fewer than two.
    """

    n: int
    e: float
    difference: float = math.nan
    spread: float | None = None

    @property
    def p(self) -> float:
        """The anytime-valid p value of "a is not above b": min(1, 1/e)."""
        return min(1.0, 1 / self.e)


def e_process(differences: ArrayLike, scale: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the two-sided e-process of "the mean is 0": e_1, ..., e_n, a look after every difference.

        e_n = √(c/(n+c)) (v/D)^(n/2),   v = Σ x_i²,   D = v − (Σ x_i)²/(n+c),   c = 0.1

    Args:
        differences: [..., n], in the order of the seeds.
        scale: [..., n], size of the values subtracted so far, to which `ALIKE` refers; None: the largest difference.
    Returns:
        [..., n]. Two or more differences that are all equal have √(c/(n+c)), which decides nothing: without a spread
        there is no scale, and rounded scores are equal by chance.

    >>> [round(float(e), 2) for e in e_process([0.01, 0.02, 0.03, 0.025])]
    [1.0, 1.53, 2.55, 9.27]
    """
    return np.exp(np.minimum(_logs(differences, scale)[0], LARGEST_LOG))


def e_process_above(differences: ArrayLike, scale: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the directed e-process of "the mean is not above 0": e⁺_1, ..., e⁺_n.

        e⁺_n = 2 e_n F_n(s √(n / ((n+c) D)))

    Args:
        differences: [..., n], of a less b. "a is above b" is decided at level α once e⁺ has reached 1/α. The reversed
            hypothesis is the same of −differences.
        scale: see `e_process`.
    Returns:
        [..., n]. Differences that are all equal have √(c/(n+c)), as in `e_process`.
    """
    logs, t, equal = _logs(differences, scale)
    above = np.where(equal, 1.0, 2 * special.stdtr(np.arange(1, logs.shape[-1] + 1), t))
    return np.exp(np.minimum(logs, LARGEST_LOG)) * above


def confidence_sequence(
    differences: ArrayLike, level: float = 0.95, scale: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (low, high) of the mean after every difference: with probability `level` the mean is in all of them.

    The interval holds every μ with e_n(x − μ) < 1/α, α = 1 − level. With S = Σ (x_i − m)² and
    K = ((n+c)/c)^(1/n) α^(−2/n) this is n (m − μ)² (1 − K c/(n+c)) < (K − 1) S, so that

        m ± √((K − 1) S / (n (1 − K c/(n+c)))),   unbounded where K c ≥ n + c:

    at level 0.95 for n ≤ 2.

    Args:
        differences: [..., n]. level: of all intervals together. scale: see `e_process`.
    Returns:
        two arrays [..., n]; ±inf where the interval is unbounded, and where all differences so far are equal: these
        give no scale.
    """
    x, scale = _scaled(differences, scale)
    n, c = np.arange(1, x.shape[-1] + 1), PRECISION
    first = x[..., :1]
    y = x - first  # the sum of squares would lose a spread far below the mean
    mean = np.cumsum(y, axis=-1) / n
    squares = np.maximum(np.cumsum(y**2, axis=-1) - n * mean**2, 0)
    k = np.exp((np.log((n + c) / c) - 2 * math.log(1 - level)) / n)
    room = 1 - k * c / (n + c)
    half = np.sqrt((k - 1) * squares / (n * np.where(room > 0, room, 1)))
    half = np.where((room <= 0) | _equal(x, scale), np.inf, half)
    return first + mean - half, first + mean + half


def common_prefix(a: Mapping[int, float], b: Mapping[int, float], seeds: Iterable[int] | None = None) -> list[int]:
    """Return the seeds up to the first one that a or b lacks, in the order in which they are looked at.

    Jobs finish out of order, and a repetition may diverge. A seed that is missing, or has no finite value, is never
    skipped: bad repetitions would be left out. Later seeds count once it is there.

    Args:
        a, b: seed -> value. seeds: those that were planned, in order; None: all that a or b has, by number.

    >>> common_prefix({0: 0.9, 1: 0.8, 3: 0.9}, {0: 0.7, 1: 0.9, 2: 0.8, 3: 0.8})
    [0, 1]
    """
    found = []
    for seed in sorted(a.keys() | b.keys()) if seeds is None else seeds:
        if not all(math.isfinite(one.get(seed, math.nan)) for one in (a, b)):
            break
        found.append(seed)
    return found


def anytime(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95, seeds: Iterable[int] | None = None
) -> Difference:
    """Test the paired differences of two settings, valid whenever it was decided to stop adding seeds.

    Args:
        a, b: seed -> value. level: of the confidence sequence. seeds: planned ones, see `common_prefix`.
    Returns:
        difference, n: over all common seeds; n = 0: the difference is NaN and the rest None.
        n_tested, tested_difference: over the common prefix.
        low, high: the confidence sequence at n_tested seeds; None: it is unbounded, or some common seed lies behind a
        missing one.
        p: 1/max e over all looks; None for fewer than two seeds in the prefix, at least 0.22 for two, 0.032 for three
        and 0.0038 for four. Equal differences have p = 1.
    """
    both = [s for s in sorted(a.keys() & b.keys()) if math.isfinite(a[s]) and math.isfinite(b[s])]
    difference = mean_std(a[s] - b[s] for s in both)[0]
    prefix = common_prefix(a, b, seeds)
    tested = mean_std(a[s] - b[s] for s in prefix)[0]
    if len(prefix) < 2:
        return Difference(difference, n=len(both), n_tested=len(prefix), tested_difference=tested)
    x, scale = _differences(a, b, prefix)
    p = min(1.0, 1 / float(e_process(x, scale).max()))
    low, high = (float(ends[-1]) for ends in confidence_sequence(x, level, scale))
    if not math.isfinite(low) or len(prefix) < len(both):
        return Difference(difference, None, None, p, len(both), len(prefix), tested)
    return Difference(difference, low, high, p, len(both), len(prefix), tested)


def above(a: Mapping[int, float], b: Mapping[int, float], seeds: Iterable[int] | None = None) -> Evidence:
    """Return the evidence for "a is above b" over the longest common prefix of seeds; `above(b, a)` is the reverse.

    Args:
        a, b: seed -> value. seeds: planned ones, see `common_prefix`.
    """
    prefix = common_prefix(a, b, seeds)
    if not prefix:
        return Evidence(0, 1.0)
    x, scale = _differences(a, b, prefix)
    return Evidence(len(prefix), float(e_process_above(x, scale).max()), *mean_std(x))


def e_bh(values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Select hypotheses from e-values with a false discovery rate of at most `level` (e-BH).

    The k largest are selected, k the largest number with k e_(k) / m ≥ 1/level. The e-values may depend on each other,
    but their number of seeds has to be fixed beforehand: the largest e over several looks is no e-value.

    Args:
        values: an e-value each, in the order of the hypotheses.
    Returns:
        True for those that are selected.

    >>> e_bh([90.0, 1.0, 31.0, 0.5])
    [True, False, False, False]
    """
    order = sorted(range(len(values)), key=lambda i: -values[i])
    enough = [k for k, i in enumerate(order, 1) if k * values[i] * level >= len(values)]
    selected = set(order[: max(enough, default=0)])
    return [i in selected for i in range(len(values))]


def _differences(
    a: Mapping[int, float], b: Mapping[int, float], seeds: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The differences in the order of the seeds, and the size of the values so far."""
    pairs = np.array([(a[s], b[s]) for s in seeds], dtype=np.float64)
    return pairs[:, 0] - pairs[:, 1], np.maximum.accumulate(np.abs(pairs).max(axis=1))


def _logs(
    differences: ArrayLike, scale: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """log e_n, the argument of F_n, and True where all differences so far are equal; each [..., n]."""
    x, scale = _scaled(differences, scale)
    n, c = np.arange(1, x.shape[-1] + 1), PRECISION
    zero = np.maximum.accumulate(np.abs(x), axis=-1) <= ALIKE * scale
    equal = zero | (_equal(x, scale) & (n > 1))
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    x = x / np.where(largest > 0, largest, 1)  # squares of tiny differences would be 0
    s, v = np.cumsum(x, axis=-1), np.cumsum(x**2, axis=-1)
    v = np.where(equal, 1, v)
    d = np.where(equal, v, v - s**2 / (n + c))  # at least v c/(n+c), so rounding leaves it positive
    return 0.5 * np.log(c / (n + c)) + n / 2 * np.log(v / d), s * np.sqrt(n / ((n + c) * d)), equal


def _scaled(differences: ArrayLike, scale: ArrayLike | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The differences, and the size to which `ALIKE` refers; each [..., n]."""
    x = np.asarray(differences, dtype=np.float64)
    return x, np.maximum.accumulate(np.abs(x), axis=-1) if scale is None else np.asarray(scale, dtype=np.float64)


def _equal(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True where the differences so far are equal within `ALIKE`; [..., n]."""
    spread = np.maximum.accumulate(x, axis=-1) - np.minimum.accumulate(x, axis=-1)
    return spread <= ALIKE * scale
