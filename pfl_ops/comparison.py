"""Finished runs side by side: repetitions as one line, the best line first, and the test of a difference to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

import pandas as pd

from pfl_ops import metrics
from pfl_ops.metric_keys import SUMMED_COSTS
from pfl_ops.results import At, Result
from pfl_ops.statistics import LEVEL as LEVEL
from pfl_ops.statistics import Difference, anytime, mean_std, paired, to_the_first
from pfl_ops.units import check_target

Test: TypeAlias = Literal["anytime", "t"]
TESTS: Mapping[Test, str] = {"anytime": "anytime-valid paired test", "t": "paired t test"}
"""Names of the tests."""
TEST_SEEDS: Mapping[str, str] = {
    "t": "their number fixed before the test runs",
    "anytime": "some of them added or left out after a first test",
}
"""The seeds of a benchmark's test runs, by its test."""
Values: TypeAlias = dict[int, float]
"""Seed -> value, as tracked: accuracies as fractions, traffic in bytes."""

TARGETED = "local/mean"  # metric of a target, unless one is named
PARTLY_SCORED = "Rounds in which only some of the repetitions were scored are left out."
EQUAL = 9  # decimals in which tied means agree


@dataclass(frozen=True)
class Line:
    """One setting with its repetitions.

    Attributes:
        label: its method, and the settings in which it differs from the method's other lines of its group.
        runs: by seed.
        settings: others in which it differs from lines of other methods, in words.
        difference: to the group's first line over common seeds, in the metric's tracked unit, with p after Holm's
            correction for all pairs of the group; None: it is the first itself, or has no value. Without p and
            interval if the two differ in more than what is compared, see `fairness.differing`.
        diverged: repetitions whose training diverged, "seed 2 diverged at round 7, lr 0.4". Then it has no values, no
            curves and no rounds to a target: the mean of the other seeds would be too high.
        single_p: p of that difference before the correction; None where it has none.
        unfinished: "running, round 12 of 20" of a run without an end, which was named itself. Its values are the
            last ones, of that round unless another is named; it has no rank.
    """

    label: str
    runs: tuple[Result, ...]
    settings: str = ""
    difference: Difference | None = None
    single_p: float | None = None
    diverged: tuple[str, ...] = ()
    unfinished: str = ""

    @property
    def stage(self) -> str:
        """The stage in which its method is judged."""
        return self.runs[0].stage

    @property
    def counted_runs(self) -> tuple[Result, ...]:
        """The runs that its values are of; none if a repetition diverged."""
        return () if self.diverged else self.runs

    @property
    def stages(self) -> list[str]:
        """Those that were scored, its own first."""
        there = [s for s in metrics.STAGES if self.values(f"{s}/local/mean") or self.values(f"{s}/global/mean")]
        return sorted(there, key=lambda stage: stage != self.stage)

    def values(self, metric: str, at: At = "final") -> Values:
        """A metric of each repetition that has it: of the last round (its full evaluation), or of the best one.

        Of bytes and seconds the last round's are the sums over all rounds.
        """
        if at == "final" and metric in SUMMED_COSTS and not self.diverged:
            return self.cost(metric)
        each = ((run.seed, run.value(metric, at)) for run in self.counted_runs)
        return {seed: value for seed, value in each if value is not None}

    def rounds_to(self, target: float, metric: str = TARGETED) -> dict[int, int | None]:
        """The first round in which each repetition has the target, 0.9 for 90 %; None: never.

        Without seeds for a metric whose values of each round `compare` did not read; `Result.rounds_to` reads any.

        Raises:
            PflOpsError: no accuracy reaches the target.
        """
        check_target(target, metric)
        curves = {run.seed: run.by_round(metric) for run in self.counted_runs}
        return {seed: metrics.rounds_to(curve, target) for seed, curve in curves.items() if curve}

    def cost(self, *keys: str) -> Values:
        """The sum of tracked costs over all rounds of each repetition, as `cost("cost/up_bytes")`."""
        each = ((run.seed, run.spent(*keys)) for run in self.runs)
        return {seed: value for seed, value in each if value is not None}

    def curve(self, metric: str) -> pd.DataFrame:
        """A metric over rounds, a column a seed; without columns if no run has it, or if `compare` did not read it.

        `Result.curve` reads any.
        """
        curves = {run.seed: run.by_round(metric) for run in self.counted_runs}
        return pd.DataFrame({seed: pd.Series(curve) for seed, curve in curves.items() if curve}).sort_index()

    def shared_curve(self, metric: str) -> pd.DataFrame:
        """A metric over the rounds in which all repetitions that have it were scored, a column a seed.

        Of a cohort at L2, others may be scored in each round of each seed, or none. A mean over other seeds in every
        round would jump with them. If there are fewer than two such rounds, all are there, with NaN.
        """
        table = self.curve(metric)
        shared = table.dropna()
        return shared if len(shared) > 1 else table

    def is_partly_drawn(self, metric: str) -> bool:
        """True if some repetitions have scores in rounds that `shared_curve` leaves out."""
        return len(self.shared_curve(metric)) < len(self.curve(metric))

    def is_ranked(self, metric: str, at: At = "final") -> bool:
        """True if it takes part in the order by this metric: it is finished and has a value."""
        return not self.unfinished and bool(self.values(metric, at))

    def is_behind(self, *, smaller: bool) -> bool:
        """True if the test tells it apart from the group's first line, and on the losing side.

        The order is by means over all seeds of each line, the test is two-sided and over common seeds, where the first
        line may be the worse one. Seeds behind a missing one are not tested; the means with and without them have to
        agree.

        Args:
            smaller: True: the smaller value is the better one.
        """
        test = self.difference
        if test is None or test.p is None or not test.p < LEVEL:
            return False
        return all(mean > 0 if smaller else mean < 0 for mean in (test.difference, test.tested_difference))


def ordered(
    lines: Sequence[Line],
    values: Callable[[Line], Values],
    test: Test,
    *,
    smaller: bool = False,
    ranked: bool = True,
    alike: Callable[[Line, Line], bool] = lambda a, b: True,
    withdrawn: Callable[[Line], bool] = lambda line: False,
) -> tuple[Line, ...]:
    """Return the lines by their means, the best first, with their differences to the first; those without values last.

    Args:
        values: of a line, those that decide. smaller: True: the smallest mean is the best.
        ranked: False: no mean is better than another one. Lines are in the order of their labels, without a test.
        test: of the differences: "anytime" (seeds may be added after a look) or "t" (n fixed before the runs).
        alike: True if a test of two lines says something of what is compared.
        withdrawn: True if results have left a line without a test: its choice was changed after one. Its pairs, and
            those of a line of which a repetition diverged, stay in the family that p is corrected for, with p = 1.
            Otherwise a look at results would make the other p values smaller.
    """
    each = [(line, values(line)) for line in lines]
    sign = 1 if smaller else -1
    valued = sorted(
        ((line, found) for line, found in each if found),
        key=lambda pair: (sign * round(mean_std(pair[1].values())[0], EQUAL), "") if ranked else (0.0, pair[0].label),
    )

    def is_untested(a: Line, b: Line) -> bool:
        return any(bool(line.diverged) or withdrawn(line) for line in (a, b))

    def is_tested(i: int, j: int) -> bool:
        a, b = valued[i][0], valued[j][0]
        return ranked and not is_untested(a, b) and alike(a, b)

    family = [line for line, found in each if found or (line.diverged and line.runs)]
    untested = sum(ranked and is_untested(a, b) and alike(a, b) for a, b in combinations(family, 2))
    tests = to_the_first([found for _, found in valued], paired if test == "t" else anytime, is_tested, untested)
    others = []
    for (line, _), (found, p) in zip(valued[1:], tests, strict=True):
        kept = replace(found, low=None, high=None, p=None) if p is None else replace(found, p=p)
        others.append(replace(line, difference=kept, single_p=None if p is None else found.p))
    return (*(line for line, _ in valued[:1]), *others, *(line for line, found in each if not found))
