"""Regrets of replayed studies: their means with intervals, for each method in each environment and over all."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from pfl_ops.statistics import interval, mean_std
from pfl_ops.tuning.replay import ReplayedStudy
from pfl_ops.tuning.trial_table import SearchProblem


@dataclass(frozen=True)
class Regret:
    """Regrets of some studies, over those in which both choices have one.

    Attributes:
        label: which studies. n: their number. without: number of studies in which a choice has no regret.
        confirm, argmax: mean, and its 95 % interval by Student's t; None for fewer than two. difference: likewise, of
            confirm − argmax. changed: share of studies with different choices.
    """

    label: str
    n: int
    without: int
    confirm: tuple[float, tuple[float, float] | None]
    argmax: tuple[float, tuple[float, float] | None]
    difference: tuple[float, tuple[float, float] | None]
    changed: float


def regrets(studies: Sequence[ReplayedStudy]) -> list[Regret]:
    """Return the regrets of each method in each environment, and over all: there a method in an environment counts
    once, and the interval is over these."""
    groups: dict[str, list[ReplayedStudy]] = {}
    for study in studies:
        groups.setdefault(f"{study.method}, {study.environment}", []).append(study)
    found = [_regret(label, some) for label, some in groups.items()]
    counted = [one for one in found if one.n]
    if len(found) > 1 and counted:
        n, without = sum(one.n for one in found), sum(one.without for one in found)
        confirm, argmax = _mean([one.confirm[0] for one in counted]), _mean([one.argmax[0] for one in counted])
        difference = _mean([one.difference[0] for one in counted])
        changed = mean_std(one.changed for one in counted)[0]
        found.append(Regret("all", n, without, confirm, argmax, difference, changed))
    return found


def notes(studies: Sequence[ReplayedStudy], problems: Sequence[SearchProblem]) -> list[str]:
    """Return lines below a table of regrets: means of runs and samples, and what limits it."""
    runs, samples = (
        [mean_std(getattr(getattr(study, rule), name) for study in studies)[0] for rule in ("confirm", "argmax")]
        for name in ("runs", "samples")
    )
    found = [
        f"runs a study: {runs[0]:.1f} with confirmation, {runs[1]:.1f} without; samples {samples[0]:,.0f}, "
        f"{samples[1]:,.0f}"
    ]
    units = sorted({problem.metric for problem in problems})
    found.append(f"regret in units of {', '.join(units)}; intervals by Student's t for a number that was fixed before")
    if without := sum(not _both(study) for study in studies):
        found.append(
            f"{without} studies are left out: a choice has no result with a seed of the truth, or there is none"
        )
    if exhausted := sum(study.exhausted for study in studies):
        found.append(f"in {exhausted} studies the search tried all configurations before its samples were equal")
    return found


def as_csv(studies: Sequence[ReplayedStudy]) -> str:
    """Return a row for each study and rule."""
    rows = [
        {
            "method": study.method,
            "environment": study.environment,
            "study": study.number,
            "seed": study.seed,
            "rule": rule,
            **asdict(choice),
        }
        for study in studies
        for rule, choice in (("confirm", study.confirm), ("argmax", study.argmax))
    ]
    return str(pd.DataFrame(rows).to_csv(index=False))


def _regret(label: str, studies: Sequence[ReplayedStudy]) -> Regret:
    there = [(study.confirm.regret, study.argmax.regret) for study in studies if _both(study)]
    changed = [study.confirm.configuration != study.argmax.configuration for study in studies]
    return Regret(
        label,
        len(there),
        len(studies) - len(there),
        _mean([a for a, _ in there]),
        _mean([b for _, b in there]),
        _mean([a - b for a, b in there]),
        sum(changed) / len(changed),
    )


def _both(study: ReplayedStudy) -> bool:
    """True if both choices have a regret."""
    return math.isfinite(study.confirm.regret) and math.isfinite(study.argmax.regret)


def _mean(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    return mean_std(values)[0], interval(values)
