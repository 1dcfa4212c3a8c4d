"""Names, units and numbers of a comparison: the same in its tables, files and page."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfl_ops.display.tables import chance as chance
from pfl_ops.metrics import STAGES, STATISTICS
from pfl_ops.statistics import mean_std

VIEWS = {
    "Acc(L) %": "local/mean",
    "Acc(G) %": "global/mean",
    "Acc(L)+Acc(G) %": "acc",
    "worst client %": "local/worst",
}
"""Heading -> metric of a stage."""
MIB = 2**20  # bytes


@dataclass(frozen=True)
class Unit:
    """The unit in which a metric is shown: its name, the factor from the tracked value, and the decimals."""

    name: str = ""
    factor: float = 1.0
    digits: int = 3


PERCENT = Unit("%", 100.0, 1)


def unit_of(metric: str) -> Unit:
    """Return the unit of a metric: percent for accuracies (tracked as fractions), MiB for bytes, else as tracked.

    >>> [unit_of(key).name for key in ("acc", "L2/local/worst", "cost/up_bytes", "train/loss", "method/gamma/mean")]
    ['%', '%', 'MiB', '', '']
    """
    *_, view, last = ("", *metric.split("/"))
    if last == "acc" or (last in STATISTICS and (view in ("local", "global") or view.startswith("synthetic_"))):
        return PERCENT
    return Unit("MiB", 1 / MIB) if last.endswith("_bytes") else Unit()


def title_of(metric: str) -> str:
    """Return the heading of a metric with its unit.

    >>> [title_of(key) for key in ("local/mean", "L2/acc", "test/L1/local/q10", "train/loss")]
    ['Acc(L) %', 'L2 Acc(L)+Acc(G) %', 'test/L1/local/q10 %', 'train/loss']
    """
    stage, slash, rest = metric.partition("/")
    names = {key: name for name, key in VIEWS.items()}
    if metric in names:
        return names[metric]
    if slash and stage in STAGES and rest in names:
        return f"{stage} {names[rest]}"
    return f"{metric} {unit_of(metric).name}".rstrip()


def difference_title(metric: str) -> str:
    """Return the heading of the differences: "difference to the best %"; accuracies differ by percentage points."""
    return f"difference to the best {unit_of(metric).name}".rstrip()


def target_title(metric: str, target: float) -> str:
    """Return the heading of the rounds to a target.

    >>> target_title("local/mean", 0.9)
    'rounds to Acc(L) ≥ 90 %'
    """
    unit = unit_of(metric)
    name = title_of(metric).removesuffix(unit.name).rstrip()
    return f"rounds to {name} ≥ {target * unit.factor:.4g} {unit.name}".rstrip()


def count(n: int, what: str) -> str:
    """1 run, 3 runs."""
    return f"{n} {what}{'s' * (n != 1)}"


def number(value: float | None, digits: int = 3) -> str:
    """0.912, or a dash if there is none."""
    return "–" if value is None or not np.isfinite(value) else f"{value:.{digits}f}".replace("-", "−")


def spread(values: Mapping[int, float], digits: int = 3) -> str:
    """0.912 ± 0.004, with the sample standard deviation over repetitions; 0.912 of one; a dash of none."""
    mean, std = mean_std(values.values())
    return number(mean, digits) + ("" if std is None else f" ± {number(std, digits)}")


def in_unit(values: Mapping[int, float], metric: str) -> dict[int, float]:
    """Return values of a metric in the unit in which it is shown."""
    return {seed: value * unit_of(metric).factor for seed, value in values.items()}


def signed(value: float, metric: str) -> str:
    """−4.10, a difference of two values of a metric in its unit, with one decimal more than the values."""
    unit = unit_of(metric)
    return f"{value * unit.factor:+.{unit.digits + 1}f}".replace("-", "−")


def mebibytes(values: Mapping[int, float]) -> str:
    """Bytes in MiB, the mean over repetitions: 12.3; a dash of none."""
    mean = mean_std(values.values())[0] / MIB
    if not np.isfinite(mean):
        return "–"
    if 0 < mean < 0.01:
        return "<0.01"
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def rounds_text(reached: Mapping[int, int | None]) -> str:
    """7, 6.3 ± 0.6, never; if only some have it the mean of these: 6.5 (2 of 3)."""
    there = {seed: float(value) for seed, value in reached.items() if value is not None}
    if not reached:
        return "–"
    if not there:
        return "never"
    if len(there) < len(reached):
        return f"{mean_std(there.values())[0]:.3g} ({len(there)} of {len(reached)})"
    return f"{there.popitem()[1]:.0f}" if len(there) == 1 else spread(there, 1)
