"""Regrets of replayed studies: their means with intervals, for each method in each environment and over all."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from pfl_ops.errors import by_key, count
from pfl_ops.statistics import interval, mean_std
from pfl_ops.tuning.tables.replay import ReplayedStudy
from pfl_ops.tuning.tables.trial_table import SearchProblem

RULES = ("first", "confirm", "argmax")
"""The choices of a replayed study."""


@dataclass(frozen=True)
class Regret:
    """Regrets of some studies, over those in which all choices have one.

    Attributes:
        label: which studies. n: their number. without: number of studies in which a choice has no regret.
        first, confirm, argmax: mean, and its 95 % interval by Student's t; None for fewer than two. difference:
            likewise, of confirm − argmax. changed: share of studies whose confirmation changed the choice.
    """

    label: str
    n: int
    without: int
    first: tuple[float, tuple[float, float] | None]
    confirm: tuple[float, tuple[float, float] | None]
    argmax: tuple[float, tuple[float, float] | None]
    difference: tuple[float, tuple[float, float] | None]
    changed: float


def regrets(studies: Sequence[ReplayedStudy]) -> list[Regret]:
    """Return the regrets of each method in each environment, and over all: there a method in an environment counts
    once, and the interval is over these."""
    groups = by_key((f"{study.method}, {study.environment}", study) for study in studies)
    found = [_regret(label, some) for label, some in groups.items()]
    counted = [one for one in found if one.n]
    if len(found) > 1 and counted:
        n, without = sum(one.n for one in found), sum(one.without for one in found)
        first, confirm, argmax, difference = (
            _mean([getattr(one, name)[0] for one in counted]) for name in (*RULES, "difference")
        )
        changed = mean_std(one.changed for one in counted)[0]
        found.append(Regret("all", n, without, first, confirm, argmax, difference, changed))
    return found


def notes(studies: Sequence[ReplayedStudy], problems: Sequence[SearchProblem]) -> list[str]:
    """Return lines below a table of regrets: means of runs and samples, and what limits it."""
    runs, samples = (
        [mean_std(getattr(getattr(study, rule), name) for study in studies)[0] for rule in RULES]
        for name in ("runs", "samples")
    )
    found = [
        f"runs a study: {runs[0]:.1f} first pick, {runs[1]:.1f} with confirmation, {runs[2]:.1f} best value; "
        f"samples {samples[0]:,.0f}, {samples[1]:,.0f}, {samples[2]:,.0f}"
    ]
    units = sorted({problem.metric for problem in problems})
    found.append(f"regret in units of {', '.join(units)}; intervals by Student's t for a number that was fixed before")
    if without := sum(not _has_all(study) for study in studies):
        found.append(
            f"{count(without, 'study', 'is')} left out: a choice has no result with a seed of the truth, or there is "
            "none"
        )
    if exhausted := sum(study.exhausted for study in studies):
        several = count(exhausted, "study")
        found.append(f"in {several} the search tried all configurations before its samples were equal")
    return found


def as_csv(studies: Sequence[ReplayedStudy]) -> str:
    """Return a row for each study and rule."""
    rows = [
        {"method": study.method, "environment": study.environment, "study": study.number, "seed": study.seed}
        | {"rule": rule, **asdict(getattr(study, rule))}
        for study in studies
        for rule in RULES
    ]
    return str(pd.DataFrame(rows).to_csv(index=False))


def _regret(label: str, studies: Sequence[ReplayedStudy]) -> Regret:
    there = [study for study in studies if _has_all(study)]
    changed = mean_std(study.confirm.configuration != study.first.configuration for study in there)[0]
    first, confirm, argmax = (_mean([getattr(study, rule).regret for study in there]) for rule in RULES)
    difference = _mean([study.confirm.regret - study.argmax.regret for study in there])
    without = len(studies) - len(there)
    return Regret(label, len(there), without, first, confirm, argmax, difference, changed)


def _has_all(study: ReplayedStudy) -> bool:
    """True if all choices have a regret."""
    return all(math.isfinite(getattr(study, rule).regret) for rule in RULES)


def _mean(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    return mean_std(values)[0], interval(values)
