"""The objective of a study: names among the tracked keys, and in which direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops import metric_keys, metrics
from pfl_ops.errors import PflOpsError, echo, nearest

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment

Mode: TypeAlias = Literal["max", "min"]
EXAMPLES = ("val/L1/acc", "val/L1/local/worst", "train/loss", "cost/up_bytes")


@dataclass(frozen=True)
class Objective:
    """One metric, or several at once.

    Attributes:
        metrics: tracked keys. modes: "max" or "min" for each.
    """

    metrics: tuple[str, ...]
    modes: tuple[Mode, ...]

    @property
    def single(self) -> bool:
        """True if there is one metric, so that bad trials can be stopped early."""
        return len(self.metrics) == 1

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that a trial has to evaluate for it."""
        return tuple(s for s in metrics.STAGES if any(s in metric.split("/") for metric in self.metrics))


def distances_to_ideal(front: ArrayLike, modes: Sequence[str]) -> NDArray[np.float64]:
    """Return the distance of each point of a Pareto front to the best value of each objective, [n].

    Each objective counts in units of its spread over the front; one with a single value counts nothing.

    Args:
        front: values, [n, m]. modes: "max" or "min" for each objective.
    Returns:
        distances, rounded to nine decimals, so that equal ones are equal.

    >>> distances_to_ideal([[0.9, 3.0], [0.5, 1.0], [0.8, 2.0]], ["max", "min"]).tolist()  # √(¼² + ½²)
    [1.0, 1.0, 0.559016994]
    """
    values = np.asarray(front, dtype=np.float64) * [1.0 if mode == "min" else -1.0 for mode in modes]
    spread = np.ptp(values, axis=0)
    behind = (values - values.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.round(np.sqrt((behind**2).sum(axis=1)), 9)


def allowed(experiment: "Experiment") -> list[str]:
    """Return every key that can be an objective of this experiment, as far as names can tell (a method may lack a
    stage): what a trial tracks, without numbers that are better neither large nor small.
    """
    evaluation = experiment.evaluation
    scores = metric_keys.scores("validation", evaluation.synthetic, evaluation.eps)
    return [key for key in (*scores, "train/loss", *metric_keys.COSTS) if not metric_keys.is_neutral(key)]


def _has_personal(experiment: "Experiment") -> bool:
    """True if the method defines `personal`, without which stage L1 is absent."""
    from pfl_ops.algorithms.base import Algorithm

    return type(experiment.algorithm).personal is not Algorithm.personal


def objective(
    experiment: "Experiment", metric: str | Sequence[str], mode: str | Sequence[str] | None = None
) -> Objective:
    """The objective, checked: a mistyped metric would otherwise end the whole study at its first report.

    Args:
        experiment: the study's.
        metric: one key or several.
        mode: "max" or "min", one for each metric or one for all; none: what is better for that key.
    Raises:
        PflOpsError: no such key, with the nearest; one that is better neither large nor small; or no such mode.
    """
    wanted = (metric,) if isinstance(metric, str) else tuple(metric)
    keys = allowed(experiment)
    if not wanted or len(set(wanted)) < len(wanted):
        raise PflOpsError("give one metric, or several different ones")
    for name in wanted:
        if metric_keys.is_neutral(name):
            raise PflOpsError(
                f"'{echo(name)}' is neither better large nor small, so that no trial is the best by it; an objective "
                f"is a score, a loss or a cost: {', '.join(EXAMPLES)}"
            )
        if name.startswith("test/"):
            raise PflOpsError(f"'{echo(name)}': tuning never sees the test data; did you mean 'val/{echo(name[5:])}'?")
        if name not in keys:
            close = metric_keys.completed(name, keys, experiment.algorithm.own_stage) or nearest(name, keys)
            hint = f"did you mean '{close}'?" if close else f"for example {', '.join(keys[:3])}"
            raise PflOpsError(f"no metric named '{echo(name)}' for this experiment; {hint}")
        if name.startswith("val/L1/") and not _has_personal(experiment):
            stated = " or state own_stage = 'G' in its class" if experiment.algorithm.own_stage == "L1" else ""
            raise PflOpsError(
                f"'{echo(name)}': {experiment.algorithm.name} has no stage L1, since it defines no personal(); "
                f"take --metric val/G/{name[7:]}{stated}"
            )
    given = [mode] * len(wanted) if isinstance(mode, str) or mode is None else list(mode)
    if len(given) != len(wanted):
        raise PflOpsError(f"{len(wanted)} metrics need as many modes, or one for all; got {len(given)}")
    modes: list[Mode] = []
    for name, one in zip(wanted, given, strict=True):
        if one not in ("max", "min", None):
            raise PflOpsError(f"mode must be max or min, got '{echo(one)}'")
        modes.append("min" if one == "min" or (one is None and metric_keys.smaller_is_better(name)) else "max")
    return Objective(wanted, tuple(modes))
