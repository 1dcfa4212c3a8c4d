"""Optuna's study: asked for points, and told how their trials went.

Ray's own `OptunaSearch` counts reports instead of rounds, tells Optuna COMPLETE for trials that ASHA stopped early
(which misleads the sampler and the table), and leaves a trial that reported NaN running for ever. Here Optuna is asked
and told by its own public calls.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from pfl_ops.jobs.report import ERRORS, LOSSES, ROUND, SAMPLES, SENT_BYTES, Failure
from pfl_ops.metric_keys import summands
from pfl_ops.section import MOST_SEED
from pfl_ops.spaces import Point, Space
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.parts import SCORES, STDS
from pfl_ops.tuning.studies.samplers import DecimalTPESampler
from pfl_ops.tuning.studies.settings import RANDOM_START
from pfl_ops.tuning.studies.study_storage import StudyStorage

NOTES_EVERY = 1.0
"""Seconds between two notes of a running trial's newest report, at least: six transactions, each of which waits for the
disk. A round's value is recorded at once. A trial that continues after a kill reports its rounds again."""
STUCK = 0.99  # of the first round's training loss: a trial whose last one is above has learnt nothing


class Search:
    """Proposes the trials of a study.

    Args:
        study_storage: the study, opened, recovered, and with its first points queued.
        space: what to vary.
        objective: what to optimise.
        rounds: of a whole trial; one that ends before was stopped.
        seed: of the sampler; the number of trials so far is added, or a resumed study would propose the same points
            (modulo 2³², above which there is no seed).
        random_start: trials with a result before the sampler's model proposes any.
    """

    def __init__(
        self,
        study_storage: StudyStorage,
        space: Space,
        objective: Objective,
        rounds: int,
        seed: int,
        random_start: int = RANDOM_START,
    ) -> None:
        self.study_storage, self.space, self.objective, self.rounds = study_storage, space, objective, rounds
        self._reported: set[tuple[int, int]] = set()  # (Optuna's number of a trial, round)
        self._noted: dict[int, float] = {}  # when, of trials that run
        self._waiting: dict[int, tuple[Trial, Mapping[str, Any]]] = {}  # reports that are not noted yet
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate and group are
            sampler = DecimalTPESampler(
                seed=(seed + len(study_storage.study.get_trials(deepcopy=False))) % (MOST_SEED + 1),
                n_startup_trials=random_start,
                multivariate=True,
                group=True,  # parameters that exist together are modelled together
                constant_liar=True,  # trials that are still running count as poor: no two near ones at once
            )
        self.study = optuna.load_study(
            study_name=study_storage.name,
            storage=study_storage.store,
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
        )

    def ask(self) -> tuple[Trial, Point]:
        """Return the next trial, and its point of the space.

        One that was cut short comes before points that wait: there may be more of these than missing trials, and a
        trial that has begun must end.
        """
        if again := self.ask_again():
            return again
        trial = self.study.ask()
        return trial, self.space(trial)

    def ask_again(self) -> tuple[Trial, Point] | None:
        """Return a trial that was cut short and waits to be continued, and its point; None: there is none."""
        trial = self.study_storage.take_cut_short(self.study)
        return (trial, self.space(trial)) if trial else None

    def report(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Tell the value at a round, once; note the rest of the report, now or with one of the next (`NOTES_EVERY`)."""
        self._tell_value(trial, report)
        if time.monotonic() - self._noted.get(trial.number, -math.inf) < NOTES_EVERY:
            self._waiting[trial.number] = trial, report
        else:
            self._note(trial, report)

    def close(self) -> None:
        """Note the newest reports of trials that are cut short."""
        for trial, report in list(self._waiting.values()):
            self._note(trial, report)

    def _tell_value(self, trial: Trial, report: Mapping[str, Any]) -> None:
        if self.objective.single:
            step, value = int(report[ROUND]), float(report[self.objective.metrics[0]])
            if math.isfinite(value) and (trial.number, step) not in self._reported:
                trial.report(value, step)
                self._reported.add((trial.number, step))  # a trial begins in this process, and without reports

    def _note(self, trial: Trial, report: Mapping[str, Any]) -> None:
        self._waiting.pop(trial.number, None)
        self._noted[trial.number] = time.monotonic()
        trial.set_user_attr(study_storages.ROUNDS, int(report[ROUND]))
        self.note_cost(trial, report)
        parts = [part for metric in self.objective.metrics for part in summands(metric) if part in report]
        trial.set_user_attr(study_storages.SUMMANDS, {part: float(report[part]) for part in parts})
        kept = {study_storages.STDS: STDS, study_storages.STANDARD_ERRORS: ERRORS, study_storages.SCORES: SCORES}
        for name, key in kept.items():
            if report.get(key):
                trial.set_user_attr(name, dict(report[key]))

    def keep_parts(self, trial: Trial, parts: Sequence[Mapping[str, Any]]) -> None:
        """Record the parts of a trial that have ended; one that is cut short is continued with the others."""
        trial.set_user_attr(study_storages.PARTS, list(parts))

    def keep_seconds(self, trial: Trial, seconds: float) -> None:
        """Record the wall time of a trial's run, without the start of its process."""
        trial.set_user_attr(study_storages.RUN_SECONDS, seconds)

    def end(self, trial: Trial, report: Mapping[str, Any], failure: Failure | None = None) -> tuple[str, str]:
        """Tell the end: COMPLETE, PRUNED if it was stopped before the last round or diverged, else FAIL.

        Args:
            report: the last one, which was not told by `report`; {}: there is none.
            failure: why there is no result.
        Returns:
            the recorded error ("": none) and state.
        """
        if not self._frozen(trial).state.is_finished():
            self._end(trial, report, failure)
        ended = self._frozen(trial)
        return str(ended.user_attrs.get(study_storages.ERROR, "")), study_storages.state_of(ended)

    def _end(self, trial: Trial, report: Mapping[str, Any], failure: Failure | None) -> None:
        metrics = self.objective.metrics
        if trial.number in self._waiting:
            self._note(*self._waiting[trial.number])
        if SAMPLES in report:  # one whose process died has none: what it told before stays
            self.note_cost(trial, report)
        if failure:
            if ROUND in report:  # a trial of several runs has noted none
                trial.set_user_attr(study_storages.ROUNDS, int(report[ROUND]))
            if failure.diverged:
                trial.set_user_attr(study_storages.DIVERGED, True)
            self._fail(trial, failure.line, TrialState.PRUNED if failure.diverged else TrialState.FAIL)
            return
        if note := _stuck(report.get(LOSSES, ())):
            trial.set_user_attr(study_storages.NOTE, note)
        values = [float(report[metric]) for metric in metrics if metric in report]
        if len(values) < len(metrics):
            self._fail(trial, "ended without a report")
        elif not all(map(math.isfinite, values)):
            wrong = next(metric for metric in metrics if not math.isfinite(report[metric]))
            self._fail(trial, f"{wrong} is {report[wrong]} after round {report[ROUND]}")
        elif report[ROUND] < self.rounds and not self.objective.single:
            self._fail(trial, f"stopped after round {report[ROUND]}")
        else:
            self._tell_value(trial, report)
            self._note(trial, report)
            if report[ROUND] >= self.rounds:
                self.study.tell(trial, values)
            else:
                self.study.tell(trial, state=TrialState.PRUNED)

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Return (number, values) of the best complete trial of a single objective."""
        best = self.study_storage.best() if self.objective.single else []
        return (best[0][0], {self.objective.metrics[0]: float(best[0][1].values[0])}) if best else None

    def note_cost(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Record the cost of a trial so far."""
        trial.set_user_attr(study_storages.SAMPLES, int(report.get(SAMPLES, 0)))
        trial.set_user_attr(study_storages.SENT_BYTES, float(report.get(SENT_BYTES, 0.0)))

    def _fail(self, trial: Trial, error: str, state: TrialState = TrialState.FAIL) -> None:
        """Record why a trial has no result; a diverged one (PRUNED) has the last finite value."""
        trial.set_user_attr(study_storages.ERROR, error)
        self.study.tell(trial, state=state)

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        return self.study.get_trials(deepcopy=False)[trial.number]


def _stuck(losses: Sequence[float]) -> str:
    """A few words on a trial that learnt nothing; "": it did, or that is not known.

    Args:
        losses: training loss of the first and of the last round.
    """
    if len(losses) < 2 or losses[-1] < STUCK * losses[0]:
        return ""
    return f"training loss did not fall by 1 %: {losses[0]:.3g} in the first round, {losses[-1]:.3g} in the last"
