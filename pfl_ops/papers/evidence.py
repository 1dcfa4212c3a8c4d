"""Evidence for and against a claim in repeated runs: e-processes, combined over comparisons and instances.

A comparison "a > b" has the e-process e⁺ of the differences a − b over seeds, and the reversed one of b − a
(`statistics.e_process_above`). Under the null hypothesis of each its expectation is at most 1 after any number of seeds
that is fixed. Combinations that keep this, without independence:

    all m comparisons are true       for: the smallest e⁺             against: the mean of all reversed e⁺
    one of m is                      for: the mean of all e⁺          against: the smallest reversed e⁺
    at least r of m instances hold   for: the mean of the             against: the mean of the
                                          m − r + 1 smallest e⁺                r smallest reversed e⁺

Proof of the third: if fewer than r instances hold, at least m − r + 1 null hypotheses are true. The mean of the
m − r + 1 smallest values is at most the mean of the values of these, whose expectation is at most 1. If r or more hold,
the same is true of r reversed null hypotheses. r = m and r = 1 are the first two. Combinations of combinations need
no more: an m that is a combination itself has an expectation of at most 1 while it is false, or true. A product or a
maximum would not do: the values share seeds and cells.

The bound at all looks, P(e ≥ 1/α at any) ≤ α, follows for the smallest e⁺: it is below that of a true null hypothesis,
of which Ville's inequality holds. It does not follow for a mean, since each e⁺ is a martingale in the ratios of its own
differences only, and for instances with unequal numbers of seeds. There it is simulated: 2, 4 and 8 correlated
comparisons (correlation from the least possible to 0.9), none of them true, up to 40 seeds, each at the number of seeds
that is best for it. The mean reaches 20, 100 and 1,000 in at most 3.2, 0.6 and 0.08 % of 20,000 sequences; the bounds
are 5, 1 and 0.1 %.
With 108 comparisons 20 is reached in up to 5.2 % of 600 sequences; if instead the next seed goes to the one with most
evidence so far, much as `tuning.suites.deciding` gives it, in at most 3.3 % (2 to 108 comparisons, 600
to 1,500 sequences).

A round in which a target is reached can be infinite: never. So differences of such rounds have two e-processes from the
first seed on, and the evidence is the mean of both, with weights of 1/2, whatever the values are:

- The t process e⁺, which keeps its value from the first difference on that is not finite.
- That of the signs. With the probability p of a positive one uniform in (1/2, 1), after k positive ones of n

      e⁺_n = 2^(n+1) ∫ p^k (1 − p)^(n−k) dp,   p from 1/2 to 1.

Under the null hypothesis finite differences are normal with a mean of at most 0, wherever the infinite ones are, and a
positive difference is not more likely than a negative one. Proof: given the places of the infinite ones, the t process
stops at a fixed number of seeds, so that its expectation stays at most 1; and the mean of two e-processes is one.

Two cells can be one computation: with equal clients FLIU's adaptive γ is that of FLIU25, and on one machine all their
numbers are the same. Such differences have no spread, so that the t process decides nothing. Where finite numbers of
cells are compared with a limit d > 0, as in |a − b| < d, the evidence is the mean of e⁺, with a weight of 19/20, and of

      4^k,   k: the seeds so far, if a = b in all of them (those whose number occurred before are not counted), else 0,

with a weight of 1/20: that is rare, and should cost other claims little. Under the null hypothesis a − b is normal with
a mean of −d or below, rounded to a multiple of r ≤ d. With a spread σ it is rounded to 0 with a probability of at most
Φ(1.5 d/σ) − Φ(0.5 d/σ). That is largest where 1.5 φ(1.5 d/σ) = 0.5 φ(0.5 d/σ), at d/σ = √(log 3), and there
0.2422 < 1/4, so that 4^k is an e-process. With a and b rounded each the largest probability is 0.2424. A number that
occurs in several seeds may be one that cannot be missed (0 or 100 %), and may be rounded to more than d.

Source: V. Vovk and R. Wang, "E-values: Calibration, combination and applications", Annals of Statistics 2021 (means);
H. Wang and A. Ramdas 2024 (see `statistics.anytime`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from pfl_ops.statistics import ALIKE, e_process_above

FARTHEST = 1000
"""Number of seeds up to which a decision is foreseen."""
ALIKE_WEIGHT = 1 / 20
"""Weight of the evidence of two sides that are the same in all seeds."""
LARGEST_EXPONENT = 1000
"""No e-value is above 2 to this power, which is near the largest float."""


@dataclass(frozen=True)
class ClaimEvidence:
    """E-processes after each seed.

    Attributes:
        supporting, opposing: [n]: for the claim, and for its opposite; n = 0: there is no seed.
    """

    supporting: NDArray[np.float64]
    opposing: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.supporting)

    @property
    def largest(self) -> tuple[float, float]:
        """The largest e-values at any look, for and against; 1 without a seed."""
        return float(self.supporting.max(initial=1.0)), float(self.opposing.max(initial=1.0))

    def until(self, n: int) -> "ClaimEvidence":
        """The same after `n` seeds: values stay at the last one; without a seed they are 1."""
        parts = (self.supporting, self.opposing)
        return ClaimEvidence(
            *(np.append(part, np.full(n - len(part), part[-1] if len(part) else 1.0)) for part in parts)
        )

    def before(self, n: int | None) -> "ClaimEvidence":
        """The same of the first `n` seeds alone; None: of all."""
        return ClaimEvidence(self.supporting[:n], self.opposing[:n])

    def first(self, needed: tuple[float, float]) -> int | None:
        """Return the number of seeds at which e first reached the values needed, for or against; None: never."""
        reached = np.flatnonzero((self.supporting >= needed[0]) | (self.opposing >= needed[1]))
        return int(reached[0]) + 1 if len(reached) else None


def of_differences(
    differences: ArrayLike, scale: ArrayLike, *, infinite: bool = False, limit: float = 0.0, new: ArrayLike = ()
) -> ClaimEvidence:
    """Return the evidence for "the differences are above 0 on average".

    Args:
        differences: [n], a − b of each seed, in order; NaN: both are infinite.
        scale: [n], size of the values subtracted so far; differences below rounding count as equal.
        infinite: the measure can be infinite, so that signs count for one half of the evidence, see above. Of other
            measures a difference that is not finite ends the test.
        limit: d if the differences are d − (a − b) with two sides a, b of cells' numbers, see above; 0: they are not.
        new: [n], True if a is none of the earlier seeds' numbers; only with a limit.

    >>> of_differences([1.0, 2.0, 3.0, 2.5], [90.0, 90.0, 90.0, 90.0]).supporting.round(1).tolist()
    [1.8, 2.9, 5.0, 18.5]
    >>> never = of_differences([float("inf")] * 3, [90.0] * 3, infinite=True)
    >>> never.supporting.tolist()  # (1 + 2^(n+1) (1 − 2^−(n+1)) / (n + 1)) / 2
    [1.25, 1.6666666666666665, 2.375]
    """
    x, scale = np.asarray(differences, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    finite = int(np.logical_and.accumulate(np.isfinite(x)).sum())
    normal = ClaimEvidence(*(e_process_above(sign * x[:finite], scale[:finite]) for sign in (1, -1))).until(len(x))
    if not infinite:
        return _or_alike(normal, x, scale, limit, np.asarray(new, dtype=bool)) if limit else normal
    signs = _signs(x > 0, x < 0), _signs(x < 0, x > 0)
    return ClaimEvidence((normal.supporting + signs[0]) / 2, (normal.opposing + signs[1]) / 2)


def _or_alike(
    normal: ClaimEvidence, x: NDArray[np.float64], scale: NDArray[np.float64], limit: float, new: NDArray[np.bool_]
) -> ClaimEvidence:
    """The mean of the t process and of that of two sides that are the same in all seeds."""
    alike = np.logical_and.accumulate(np.abs(x - limit) <= ALIKE * scale)
    same = np.where(alike, np.exp2(np.minimum(2 * np.cumsum(new), LARGEST_EXPONENT)), 0.0)
    if limit > 0:
        return ClaimEvidence((1 - ALIKE_WEIGHT) * normal.supporting + ALIKE_WEIGHT * same, normal.opposing)
    return ClaimEvidence(normal.supporting, (1 - ALIKE_WEIGHT) * normal.opposing + ALIKE_WEIGHT * same)


def _signs(positive: NDArray[np.bool_], negative: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The e-process of the signs, [n]; ties count for neither."""
    k, n = np.cumsum(positive), np.cumsum(positive | negative)
    area = special.betaincc(k + 1, n - k + 1, 0.5) * np.exp(special.betaln(k + 1, n - k + 1))
    return np.asarray(2.0 ** (n + 1) * area)


def at_least(r: int, several: Sequence[ClaimEvidence]) -> ClaimEvidence:
    """Return the evidence for "at least r of these are true".

    Args:
        r: 1 to m. several: m of them, each over its own seeds.

    >>> one, two = of_differences([1.0, 2.0, 3.0], [9.0] * 3), of_differences([1.0, 1.5], [9.0] * 2)
    >>> both, either = at_least(2, [one, two]), at_least(1, [one, two])
    >>> [round(float(e), 2) for e in (one.supporting[-1], two.supporting[-1])]
    [5.02, 5.07]
    >>> [round(float(e.supporting[-1]), 2) for e in (both, either)]  # the smaller one; the mean
    [5.02, 5.05]
    """
    n, m = max((one.n for one in several), default=0), len(several)
    if not several:
        return ClaimEvidence(np.ones(0), np.ones(0))
    each = [one.until(n) for one in several]
    supporting = np.sort([one.supporting for one in each], axis=0)[: m - r + 1].mean(axis=0)
    opposing = np.sort([one.opposing for one in each], axis=0)[:r].mean(axis=0)
    return ClaimEvidence(supporting, opposing)


def all_of(several: Sequence[ClaimEvidence]) -> ClaimEvidence:
    """Return the evidence for "all of these are true"; of none there is no evidence."""
    return at_least(len(several), several)


@dataclass(frozen=True)
class SeedDifferences:
    """Differences of two sides over seeds.

    Attributes:
        values: [n], in the order of the seeds. scale: [n], size of the values subtracted so far.
        infinite: True if the measure can be infinite.
        limit, new: see `of_differences`.
    """

    values: NDArray[np.float64]
    scale: NDArray[np.float64]
    infinite: bool = False
    limit: float = 0.0
    new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    @property
    def evidence(self) -> ClaimEvidence:
        """Evidence for "they are above 0 on average"."""
        return of_differences(self.values, self.scale, infinite=self.infinite, limit=self.limit, new=self.new)

    @property
    def equal(self) -> bool:
        """True if they are the same in all of two or more seeds, as those of bytes often are: they decide nothing, but
        for those of two sides that are the same, and for the signs of rounds to a target."""
        if len(self.values) < 2 or not np.isfinite(self.values).all() or (self.infinite and self.values.any()):
            return False
        rounding = ALIKE * self.scale[-1]
        alike = abs(self.values[-1] - self.limit) <= rounding and bool(self.new[1:].any())
        return bool(np.ptp(self.values) <= rounding) and not alike

    @property
    def repeated(self) -> "SeedDifferences":
        """`FARTHEST` of them: these in the same order again."""
        scale = np.append(self.scale, np.full(FARTHEST, self.scale[-1]))[:FARTHEST]
        new = np.append(self.new[:1], np.resize(self.new[1:], FARTHEST - 1)).astype(bool)
        return SeedDifferences(np.resize(self.values, FARTHEST), scale, self.infinite, self.limit, new)


@dataclass(frozen=True)
class TermComparison:
    """Differences of which at least one has to be above 0 on average."""

    differences: tuple[SeedDifferences, ...]

    @property
    def evidence(self) -> ClaimEvidence:
        """Evidence of the seeds so far."""
        return at_least(1, [one.evidence for one in self.differences])

    @property
    def continued(self) -> ClaimEvidence:
        """Evidence after `FARTHEST` seeds, if those to come are as those so far, in the same order again."""
        return at_least(1, [one.repeated.evidence for one in self.differences])
