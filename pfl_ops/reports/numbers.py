"""Names, units and numbers of a comparison: the same in its tables, files and page."""

from collections.abc import Mapping

import numpy as np

from pfl_ops.metric_keys import is_neutral
from pfl_ops.metrics import STAGES
from pfl_ops.statistics import mean_std
from pfl_ops.units import MIB, unit_of

HEADINGS = {
    "Acc(L) %": "local/mean",
    "Acc(G) %": "global/mean",
    "Acc(L)+Acc(G) %": "acc",
    "worst client %": "local/worst",
}
"""Heading -> metric of a stage."""


def title_of(metric: str) -> str:
    """Return the heading of a metric with its unit.

    >>> [title_of(key) for key in ("local/mean", "L2/acc", "test/L1/local/q10", "train/loss")]
    ['Acc(L) %', 'L2 Acc(L)+Acc(G) %', 'test/L1/local/q10 %', 'train/loss']
    """
    stage, slash, rest = metric.partition("/")
    names = {key: name for name, key in HEADINGS.items()}
    if metric in names:
        return names[metric]
    if slash and stage in STAGES and rest in names:
        return f"{stage} {names[rest]}"
    return f"{metric} {unit_of(metric).name}".rstrip()


def order_text(metric: str) -> str:
    """Return the order of the lines of a group, after "ordered".

    >>> order_text("acc"), order_text("train/lr")
    ('by Acc(L)+Acc(G) %', 'by name, with train/lr')
    """
    title = title_of(metric)
    return f"by name, with {title}" if is_neutral(metric) else f"by {title}"


def target_title(metric: str, target: float) -> str:
    """Return the heading of the rounds to a target.

    >>> target_title("local/mean", 0.9)
    'rounds to Acc(L) ≥ 90 %'
    """
    unit = unit_of(metric)
    name = title_of(metric).removesuffix(unit.name).rstrip()
    return f"rounds to {name} ≥ {target * unit.factor:.4g} {unit.name}".rstrip()


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


def mean_mebibytes(values: Mapping[int, float]) -> str:
    """Bytes in MiB, the mean over repetitions: 12.3; a dash of none."""
    mean = mean_std(values.values())[0] / MIB
    if not np.isfinite(mean):
        return "–"
    if 0 < mean < 0.01:
        return "<0.01"
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def rounds_text(reached: Mapping[int, float | None]) -> str:
    """7, 6.3 ± 0.6, never; if only some have it the mean of these: 6.5 (2 of 3)."""
    there = {seed: float(value) for seed, value in reached.items() if value is not None}
    if not reached:
        return "–"
    if not there:
        return "never"
    if len(there) < len(reached):
        mean = mean_std(there.values())[0]
        text = f"{mean:.3g}" if mean < 100 else f"{mean:.0f}"  # never 1.5e+03
        return f"{text} ({len(there)} of {len(reached)})"
    return f"{there.popitem()[1]:.0f}" if len(there) == 1 else spread(there, 1)
