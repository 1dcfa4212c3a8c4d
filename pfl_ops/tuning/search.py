"""Optuna proposes and Ray Tune schedules: the two made to agree on how a trial went.

Ray's own `OptunaSearch` counts reports instead of rounds, tells Optuna COMPLETE for trials that ASHA stopped early
(which misleads the sampler and the table), and leaves a trial that reported NaN running for ever. Each is mended below.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from pfl_ops.metrics import summands
from pfl_ops.spaces import Space
from pfl_ops.tuning.ledger import DIVERGED, ERROR, NOTE, ROUNDS, SAMPLES, SUMMANDS, Ledger
from pfl_ops.tuning.objective import Objective
from pfl_ops.tuning.trial import FAILURE, LOSSES, SEEN, Failure

ROUND = "round"
STUCK = 0.99  # of the first round's training loss: a trial whose last one is above has learnt nothing
REDUCTION = 3  # of the trials at a rung, ASHA lets the best third go on
SAMPLED = 5  # trials drawn at random before the model of the space says anything


class StudySearch(OptunaSearch):
    """Optuna's study on disk as Ray Tune's searcher.

    Args:
        ledger: the study, opened, recovered, and with its first points queued.
        space: what to vary.
        objective: what to optimise.
        rounds: of a whole trial; one that ends before was stopped.
        seed: of the sampler; the number of trials so far is added, or a resumed study would propose the same points.
    """

    def __init__(self, ledger: Ledger, space: Space, objective: Objective, rounds: int, seed: int) -> None:
        self.ledger, self.objective, self.rounds = ledger, objective, rounds
        self._reported: set[tuple[int, int]] = set()  # (Optuna's number of a trial, round)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate and group are
            sampler = optuna.samplers.TPESampler(
                seed=seed + len(ledger.study.get_trials(deepcopy=False)),
                n_startup_trials=SAMPLED,
                multivariate=True,
                group=True,  # parameters that exist together are modelled together
                constant_liar=True,  # trials that are still running count as poor: no two near ones at once
            )
        single = objective.single
        super().__init__(
            space=space,
            metric=objective.metrics[0] if single else list(objective.metrics),
            mode=objective.modes[0] if single else list(objective.modes),
            sampler=sampler,
            study_name=ledger.name,
            storage=ledger.store,
        )

    def optuna_trial(self, trial_id: str) -> optuna.trial.Trial:
        """Optuna's trial for Ray's."""
        return self._ot_trials[trial_id]

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A report: the value at its round, once."""
        trial = self.optuna_trial(trial_id)
        trial.set_user_attr(ROUNDS, int(result[ROUND]))
        trial.set_user_attr(SAMPLES, int(result.get(SEEN, 0)))
        parts = [part for metric in self.objective.metrics for part in summands(metric) if part in result]
        trial.set_user_attr(SUMMANDS, {part: float(result[part]) for part in parts})
        if self.objective.single:
            self._report(trial, result)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Tell the end: COMPLETE, PRUNED if it was stopped before the last round or diverged, else FAIL.

        Ray hands the last report of a trial to this method only, so it is reported here first. A trial whose process
        died is told FAIL by `fail`, which knows why.
        """
        if error:
            return
        failure = Failure.found_in(str(result.get(FAILURE, ""))) if result else None
        if failure:
            self.optuna_trial(trial_id).set_user_attr(SAMPLES, int(result.get(SEEN, 0)) if result else 0)
            if failure.diverged:
                self.optuna_trial(trial_id).set_user_attr(DIVERGED, True)
            self.fail(trial_id, failure.line, TrialState.PRUNED if failure.diverged else TrialState.FAIL)
            return
        trial = self.optuna_trial(trial_id)
        if note := _stuck(result.get(LOSSES, ()) if result else ()):
            trial.set_user_attr(NOTE, note)
        values = [float(result[m]) for m in self.objective.metrics if m in result] if result else []
        if not result or len(values) < len(self.objective.metrics):
            self.fail(trial_id, "ended without a report")
        elif not all(map(math.isfinite, values)):
            wrong = next(m for m in self.objective.metrics if not math.isfinite(result[m]))
            self.fail(trial_id, f"{wrong} is {result[wrong]} after round {result[ROUND]}")
        elif result[ROUND] >= self.rounds:
            self.on_trial_result(trial_id, result)
            self._ot_study.tell(trial, values, skip_if_finished=True)
        elif self.objective.single:
            self.on_trial_result(trial_id, result)
            self._ot_study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.fail(trial_id, f"stopped after round {result[ROUND]}")

    def fail(self, trial_id: str, error: str, state: TrialState = TrialState.FAIL) -> None:
        """Record why a trial has no result; a diverged one (PRUNED) has the last finite value."""
        trial = self.optuna_trial(trial_id)
        if not trial.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            trial.set_user_attr(ERROR, error)
            self._ot_study.tell(trial, state=state, skip_if_finished=True)

    def _report(self, trial: optuna.trial.Trial, result: Mapping[str, Any]) -> None:
        step, value = int(result[ROUND]), float(result[self.objective.metrics[0]])
        if math.isfinite(value) and (trial.number, step) not in self._reported:
            trial.report(value, step)
            self._reported.add((trial.number, step))  # a trial begins in this process, and without reports

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study on disk has it all, and Ray's own record is never read."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a study is resumed from Optuna's storage")


def _stuck(losses: Sequence[float]) -> str:
    """A few words on a trial that learnt nothing; "": it did, or that is not known.

    Args:
        losses: training loss of the first and of the last round.
    """
    if len(losses) < 2 or losses[-1] < STUCK * losses[0]:
        return ""
    return f"training loss did not fall: {losses[0]:.3g} in the first round, {losses[-1]:.3g} in the last"


class Rungs(ASHAScheduler):
    """ASHA on finished rounds in which a trial that failed or diverged is no rival of the others.

    Args:
        objective: a single one. rounds: of a whole trial. first: the first rung; the others are this times 3, 9, ...
        ledger: the study; its trials fill the rungs.
    """

    def __init__(self, objective: Objective, rounds: int, first: int, ledger: Ledger) -> None:
        super().__init__(
            time_attr=ROUND,
            metric=objective.metrics[0],
            mode=objective.modes[0],
            max_t=rounds,
            grace_period=first,
            reduction_factor=REDUCTION,
        )
        sign = 1.0 if objective.modes[0] == "max" else -1.0
        for number, values in ledger.curves().items():
            for milestone, recorded in self.rungs:
                reached = [step for step in sorted(values) if step >= milestone]
                if reached:
                    recorded[f"study-{number}"] = sign * values[reached[0]]

    @property
    def rungs(self) -> list[tuple[float, dict[str, float]]]:
        """(round, {trial: value, larger is better}), last first. Ray keeps them private; a test guards their form."""
        return self._brackets[0]._rungs

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if not math.isfinite(result[self.metric]):
            self._forget(trial)
            return TrialScheduler.STOP
        return str(super().on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if math.isfinite(result.get(self.metric, math.nan)):
            super().on_trial_complete(tune_controller, trial, result)
        else:
            self._forget(trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._forget(trial)

    def _forget(self, trial: Any) -> None:
        for _, recorded in self.rungs:
            recorded.pop(trial.trial_id, None)


def asha(objective: Objective, rounds: int, first: int, ledger: Ledger) -> Rungs | None:
    """The scheduler, or None where no rung lies before the last round: nothing could be stopped."""
    return Rungs(objective, rounds, first, ledger) if first < rounds else None
