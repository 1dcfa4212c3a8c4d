"""ASHA on finished rounds, for trials alone."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from pfl_ops.jobs import ray_instance
from pfl_ops.jobs.process import JOB
from pfl_ops.jobs.report import ROUND

STOP = TrialScheduler.STOP  # what `on_trial_result` returns for a trial that ends here
REDUCTION = 3  # of the trials at a rung, the best third goes on


class EarlyStop(ASHAScheduler):
    """ASHA in which a trial that failed or diverged is no rival of the others; jobs that are no trials run to the end.

    Args:
        metric, mode: of the objective. rounds: of a whole trial.
        first: the first rung; the others are this times 3, 9, ...
        curves: {round: value} of each earlier trial; they fill the rungs.
    """

    def __init__(
        self, metric: str, mode: str, rounds: int, first: int, curves: Iterable[Mapping[int, float]] = ()
    ) -> None:
        super().__init__(
            time_attr=ROUND, metric=metric, mode=mode, max_t=rounds, grace_period=first, reduction_factor=REDUCTION
        )
        sign = 1.0 if mode == "max" else -1.0
        for number, values in enumerate(curves):
            for milestone, recorded in self.rungs:
                reached = [step for step in sorted(values) if step >= milestone]
                if reached:
                    recorded[f"earlier-{number}"] = sign * values[reached[0]]

    @property
    def rungs(self) -> list[tuple[float, dict[str, float]]]:
        """See `ray_instance.rungs`."""
        return ray_instance.rungs(self)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        if _is_trial(trial):
            super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if not _is_trial(trial):
            return TrialScheduler.CONTINUE
        if not math.isfinite(result[self.metric]):
            self._forget(trial)
            return TrialScheduler.STOP
        return str(super().on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if _is_trial(trial) and math.isfinite(result.get(self.metric, math.nan)):
            super().on_trial_complete(tune_controller, trial, result)
        else:
            self._forget(trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        if _is_trial(trial):
            super().on_trial_remove(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._forget(trial)

    def _forget(self, trial: Any) -> None:
        for _, recorded in self.rungs:
            recorded.pop(trial.trial_id, None)


def _is_trial(trial: Any) -> bool:
    return JOB in trial.config and bool(trial.config[JOB].metrics)
