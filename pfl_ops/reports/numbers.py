"""Names and numbers as people read them, in a table or on a terminal."""

from collections.abc import Mapping

import numpy as np

from pfl_ops.metrics import STAGES
from pfl_ops.statistics import mean_std

VIEWS = {"Acc(L)": "local/mean", "Acc(G)": "global/mean", "Acc": "acc", "worst client": "local/worst"}
"""Heading -> metric of a stage, as `pfl-ops run` prints them."""


def count(n: int, what: str) -> str:
    """1 run, 3 runs."""
    return f"{n} {what}{'s' * (n != 1)}"


def number(value: float | None, digits: int = 3) -> str:
    """0.912, or a dash where there is none."""
    return "–" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def spread(values: Mapping[int, float], digits: int = 3) -> str:
    """0.912 ± 0.004, with the sample standard deviation over repetitions; 0.912 of one; a dash of none."""
    mean, std = mean_std(values.values())
    return number(mean, digits) + ("" if std is None else f" ± {number(std, digits)}")


def chance(p: float | None) -> str:
    """A p value: 0.03, <0.001, or a dash where there is no test."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.2g}"


def signed(value: float) -> str:
    """−0.041, with the sign that typography has."""
    return f"{value:+.3f}".replace("-", "−")


def size(values: Mapping[int, float]) -> str:
    """Bytes, the mean over repetitions: 12.3 MiB."""
    mean = mean_std(values.values())[0]
    if not np.isfinite(mean):
        return "–"
    power = min(int(np.log2(max(mean, 1)) // 10), 4)
    return f"{mean / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def rounds_text(reached: Mapping[int, int | None]) -> str:
    """7, 6.3 ± 0.6, never; where only some have it the mean of these: 6.5 (2 of 3)."""
    there = {seed: float(value) for seed, value in reached.items() if value is not None}
    if not reached:
        return "–"
    if not there:
        return "never"
    if len(there) < len(reached):
        return f"{mean_std(there.values())[0]:.3g} ({len(there)} of {len(reached)})"
    return f"{there.popitem()[1]:.0f}" if len(there) == 1 else spread(there, 1)


def title_of(metric: str) -> str:
    """Acc(L) for local/mean, L2 Acc for L2/acc; any other as it is tracked."""
    stage, slash, rest = metric.partition("/")
    names = {key: name for name, key in VIEWS.items()}
    if metric in names:
        return names[metric]
    return f"{stage} {names[rest]}" if slash and stage in STAGES and rest in names else metric
