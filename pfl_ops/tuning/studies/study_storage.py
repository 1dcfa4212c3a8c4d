"""The study on disk: Optuna's storage, the only source of truth about which trials were made and how they ended."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
import pandas as pd
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from pfl_ops.errors import PflOpsError, by_key, unknown
from pfl_ops.metric_keys import summands
from pfl_ops.spaces import Point, decoded
from pfl_ops.spaces.space import Value
from pfl_ops.tuning.studies.limits import Cause
from pfl_ops.tuning.studies.objective import Objective, distances_to_ideal
from pfl_ops.units import exact

optuna.logging.set_verbosity(optuna.logging.ERROR)

DONE = (TrialState.COMPLETE, TrialState.PRUNED)
CONTINUES = "continues"  # a trial queued again: the number of the one that a kill cut short
QUEUED = "fixed_params"  # Optuna's own name of the parameters with which a trial was queued
FIRST = "first"  # a trial of the search space's first points: which of them
ERROR, DIVERGED, REQUEUED, SETTINGS, OPENINGS = "error", "diverged", "requeued", "pfl_ops", "openings"
CONFIRMATIONS, CHOICE = "confirmations", "choice"  # runs with new seeds; the trial that they chose
NOTE = "note"  # on a trial that has a result
ROUNDS, SAMPLES, SENT_BYTES = "rounds", "samples", "sent_bytes"  # of a trial, so far
RUN_SECONDS = "seconds"  # of a trial of one run: from the start of its job, with its rounds before a kill
SEARCH_SECONDS = "search_seconds"  # wall time of the search, over all calls
ENDED = "ended"  # the budget that ended the search, and its value
SUMMANDS = "summands"  # of a trial: Acc(L) and Acc(G), where the objective is their sum
PARTS = "parts"  # of a trial of several runs: those that have ended, as `parts.PartResult.as_dict`
STDS = "stds"  # of a trial of several seeds: {metric: sample standard deviation over them}
STANDARD_ERRORS = "standard_errors"  # of a trial: {metric: standard error of its evaluation}, if on a sample
SCORES = "scores"  # of a trial in several environments: {metric: {environment: mean over seeds}}
BASELINES = "baselines"  # of a study: runs of FedAvg in its environments


def recorded(store: BaseStorage) -> dict[str, dict[str, Any]]:
    """Return what every study recorded about itself when it was new, by name, in the order in which they were begun."""
    return {s.study_name: dict(s.user_attrs.get(SETTINGS, {})) for s in store.get_all_studies()}


class StudyStorage:
    """One study. Trials are counted as a reader counts them: one that was cut short and queued again is one trial.

    Args:
        name: the study's.
        store: where it lies.
        objective: what it optimises; none: as recorded (reading only).
        settings: recorded when the study is new.
        resume: refuse a study that does not exist.
    Attributes:
        new: whether it was begun just now. One that a kill left before its settings were recorded is begun again.
    """

    def __init__(
        self,
        name: str,
        store: BaseStorage,
        objective: Objective | None = None,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        self.name, self.store = name, store
        self._read: list[FrozenTrial] | None = None
        known = optuna.study.get_all_study_names(store)
        self.new = False
        if name not in known and (objective is None or resume):
            no_study = PflOpsError(f"no study named '{name}', and no other either")
            raise unknown("study", name, known) if known else no_study
        if name in known:
            self.study = optuna.load_study(storage=store, study_name=name)
            if objective is None or SETTINGS in self.study.user_attrs:
                return
            self.check_own()
            optuna.delete_study(study_name=name, storage=store)  # it may be for another objective
        assert objective is not None
        self.new = True
        directions = [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in objective.modes]
        self.study = optuna.create_study(storage=store, study_name=name, directions=directions)
        self.study.set_user_attr(SETTINGS, dict(settings or {}))

    def check_own(self) -> None:
        """Refuse a study of another program.

        Raises:
            PflOpsError: it has trials, and nothing of ours is recorded.
        """
        if SETTINGS not in self.study.user_attrs and self.study.get_trials(deepcopy=False):
            raise PflOpsError(f"study '{self.name}' in this storage was not made by pfl-ops; choose another --name")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were recorded when the study was new."""
        return dict(self.study.user_attrs.get(SETTINGS, {}))

    def remember(self, **settings: Any) -> None:
        """Change what is recorded."""
        self.study.set_user_attr(SETTINGS, {**self.settings, **settings})

    @contextlib.contextmanager
    def reading_once(self) -> Iterator[None]:
        """Read the trials from the storage once for all calls inside, which must not change the study."""
        before, self._read = self._read, self.raw()
        try:
            yield
        finally:
            self._read = before

    def raw(self) -> list[FrozenTrial]:
        """Return all trials as Optuna counts them; they are not to be changed."""
        return self.study.get_trials(deepcopy=False) if self._read is None else self._read

    def trials(self) -> list[tuple[int, FrozenTrial]]:
        """(number, trial) of all but those that were cut short, by number; waiting ones included."""
        raw = self.raw()
        own = [t.number for t in raw if CONTINUES not in t.user_attrs]
        count = {number: i for i, number in enumerate(own)}
        pairs = [
            (count.get(t.user_attrs.get(CONTINUES, t.number), t.number), t)
            for t in raw
            if not t.user_attrs.get(REQUEUED)
        ]
        return sorted(pairs, key=lambda pair: (pair[0], pair[1].number))

    def number(self, optuna_number: int) -> int:
        """The reader's number of a trial that Optuna counts as `optuna_number`."""
        return next(n for n, t in self.trials() if t.number == optuna_number)

    def sampled(self) -> int:
        """Count the trials that have ended and are no starting points; a continued one counts as it began."""
        raw = {trial.number: trial for trial in self.raw()}
        ended = (trial for _, trial in self.trials() if trial.state.is_finished())
        first = (raw[trial.user_attrs.get(CONTINUES, trial.number)] for trial in ended)
        return sum(FIRST not in trial.user_attrs for trial in first)

    def done(self) -> int:
        """Count the trials that have a result: complete, pruned or diverged."""
        return sum(t.state in DONE for _, t in self.trials())

    def begun(self) -> bool:
        """True once a trial was started."""
        return any(t.state is not TrialState.WAITING for _, t in self.trials())

    def enqueue(self, points: Sequence[Mapping[str, Any]]) -> None:
        """Queue the points to try before anything is sampled; those that were queued before a kill are not again.

        Args:
            points: by Optuna's names, as `Space.encoded` has them.
        """
        trials = self.study.get_trials(deepcopy=False)
        queued = {t.user_attrs.get(FIRST) for t in trials}
        if queued == {None}:
            return  # an older version queued them all, unnumbered
        for number, point in enumerate(points):
            if number not in queued:
                self.study.enqueue_trial(dict(point), {FIRST: number})

    def recover(self) -> int:
        """After a kill: trials that still say RUNNING are told FAIL and queued again with their parameters.

        Returns:
            how many.
        """
        raw = self.study.get_trials(deepcopy=False)
        running = [t for t in raw if t.state is TrialState.RUNNING]
        queued = {t.user_attrs.get(CONTINUES) for t in raw if t.state is TrialState.WAITING}
        for trial in running:
            first = trial.user_attrs.get(CONTINUES, trial.number)
            self.store.set_trial_user_attr(trial._trial_id, REQUEUED, True)
            if first not in queued:  # a kill may have come between the next two lines
                parts = {PARTS: trial.user_attrs[PARTS]} if PARTS in trial.user_attrs else {}
                # a kill may have come before all parameters of a queued trial were taken from where Optuna keeps them
                params = {**trial.system_attrs.get(QUEUED, {}), **trial.params}
                self.study.enqueue_trial(params, {CONTINUES: first, **parts})
            self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        return len(running)

    def cut_short(self) -> int:
        """Count the trials that were begun and have not ended: they run, or a kill cut them short."""
        waiting = [t for t in self.raw() if t.state is TrialState.WAITING and CONTINUES in t.user_attrs]
        running = [t for t in self.raw() if t.state is TrialState.RUNNING]
        return len({t.user_attrs.get(CONTINUES, t.number) for t in (*waiting, *running)})

    def take_cut_short(self, study: optuna.Study) -> Trial | None:
        """Start the next trial that was cut short and queued again, before all others that wait; None: there is none.

        Args:
            study: this one, with a sampler. The trials are read through it: where it caches an SQL database, it takes
                parameters only of trials that it has read.
        """
        for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            if CONTINUES in trial.user_attrs and self.store.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                return Trial(study, trial._trial_id)
        return None

    def since_best(self) -> int:
        """Trials with a result that ended after the first one with the best value; 0: none is complete."""
        done = sorted((t for t in self.raw() if t.state in DONE), key=lambda t: (t.datetime_complete, t.number))
        sign = 1 if self.study.direction is StudyDirection.MAXIMIZE else -1
        values = [sign * t.values[0] if t.state is TrialState.COMPLETE else -math.inf for t in done]
        best = max(values, default=-math.inf)
        return len(values) - 1 - values.index(best) if best > -math.inf else 0

    def search_samples(self) -> int:
        """Gradient samples of all trials and of FedAvg in environments, each counted; of those that run or were cut
        short, so far."""
        each = by_key(
            (trial.user_attrs.get(CONTINUES, trial.number), int(trial.user_attrs.get(SAMPLES, 0)))
            for trial in self.raw()
        )
        return sum(map(max, each.values())) + sum(record["samples"] for record in self.baselines())

    def search_seconds(self) -> float:
        """Wall time of the search, over all calls."""
        return float(self.study.user_attrs.get(SEARCH_SECONDS, 0.0))

    def set_search_seconds(self, seconds: float) -> None:
        """Record the wall time of the search so far."""
        self.study.set_user_attr(SEARCH_SECONDS, seconds)

    def ended(self) -> tuple[Cause, Any] | None:
        """The budget that ended the search, and its value then; None: none is recorded."""
        recorded = self.study.user_attrs.get(ENDED)
        return (recorded["by"], recorded["at"]) if recorded else None

    def end(self, by: Cause, at: Any) -> None:
        """Record the budget that ended the search, and its value."""
        self.study.set_user_attr(ENDED, {"by": by, "at": at})

    def ranked(self) -> list[tuple[int, FrozenTrial]]:
        """The complete trials of a single objective, the best first; of equal ones the first."""
        complete = [(n, t) for n, t in self.trials() if t.state is TrialState.COMPLETE]
        sign = 1 if self.study.direction is StudyDirection.MAXIMIZE else -1
        return sorted(complete, key=lambda pair: -sign * pair[1].values[0])

    def top(self, k: int) -> list[tuple[int, FrozenTrial]]:
        """The k best complete trials of a single objective, each configuration once, the best first."""
        found: list[tuple[int, FrozenTrial]] = []
        for number, trial in self.ranked():
            if len(found) < k and all(trial.params != other.params for _, other in found):
                found.append((number, trial))
        return found

    def best(self) -> list[tuple[int, FrozenTrial]]:
        """The best complete trial, or the Pareto front of several objectives; empty: none is complete."""
        if len(self.study.directions) > 1:
            numbers = {t.number for t in self.study.best_trials}
            return [(n, t) for n, t in self.trials() if t.number in numbers]
        return self.ranked()[:1]

    def chosen(self) -> tuple[int, FrozenTrial] | None:
        """The trial whose configuration is tested.

        The confirmed one, as long as the best trials are those from which it was chosen; else the best one. Of a
        Pareto front, the point nearest to the ideal one, see `distances_to_ideal`; of equally near ones the first.
        """
        front = self.best()
        if choice := self.study.user_attrs.get(CHOICE):
            among = self.top(len(choice["among"]))
            if [number for number, _ in among] == choice["among"]:
                return next(pair for pair in among if pair[0] == choice["trial"])
        if len(front) < 2:
            return front[0] if front else None
        modes = ["max" if direction is StudyDirection.MAXIMIZE else "min" for direction in self.study.directions]
        return front[int(distances_to_ideal([t.values for _, t in front], modes).argmin())]

    def confirmations(self) -> list[dict[str, Any]]:
        """Finished runs of configurations with new seeds: {trial, params, seed, value, error, samples, seconds, ...}.

        value: on validation data; None if it diverged, which `error` says. standard_error: of the evaluation; None, or
        no such key: all samples were scored.
        """
        return list(self.study.user_attrs.get(CONFIRMATIONS, []))

    def baselines(self) -> list[dict[str, Any]]:
        """Finished runs of FedAvg in environments: {environment, seed, values, samples, seconds}.

        values: metric of the study -> FedAvg's score, on validation data.
        """
        return list(self.study.user_attrs.get(BASELINES, []))

    def keep_baseline(self, **record: Any) -> None:
        """Record a finished run of FedAvg, with the keys of `baselines`."""
        self.study.set_user_attr(BASELINES, [*self.baselines(), record])

    def confirm(self, **record: Any) -> None:
        """Record a finished run, with the keys of `confirmations`."""
        self.study.set_user_attr(CONFIRMATIONS, [*self.confirmations(), record])

    def choose(self, trial: int, among: Sequence[int]) -> bool:
        """Record the trial that was confirmed, and the best trials that it was chosen from; True: that is new."""
        choice = {"trial": trial, "among": list(among)}
        if choice == self.study.user_attrs.get(CHOICE):
            return False
        self.study.set_user_attr(CHOICE, choice)
        return True

    def is_confirmed(self, confirm: int, top: int) -> bool:
        """True if the choice among the best trials, so many of them, was made with so many new seeds at most."""
        choice, recorded = self.study.user_attrs.get(CHOICE), self.settings
        same = (recorded.get("confirm"), recorded.get("confirm_top")) == (confirm, top)
        return choice is not None and same and choice["among"] == [number for number, _ in self.top(top)]

    def confirmed_runs(self, top: int) -> int:
        """Count the finished runs with new seeds of the best configurations, so many of them."""
        points = [point_of(trial) for _, trial in self.top(top)]
        return sum(record["params"] in points for record in self.confirmations())

    def drop_choice(self) -> None:
        """Forget the trial that was confirmed: the best value decides. Runs with new seeds are kept."""
        if self.study.user_attrs.get(CHOICE):
            self.study.set_user_attr(CHOICE, None)

    def table(self, metrics: Sequence[str]) -> pd.DataFrame:
        """One row a trial: trial, state, rounds, metrics, seconds, samples, sent_bytes, parameters, error, note.

        Acc(L) and Acc(G) stand behind the metrics where one of these is their sum (`metric_keys.summands`). samples: on
        which gradients were taken, each time counted, over all clients and rounds. sent_bytes: up and
        down; NaN: a trial of an earlier version. If trials are means over seeds, <metric>/std stand behind these:
        sample standard deviations over the seeds. Then follow <metric>/<environment>, scores there by FedAvg's.
        A parameter is empty where it does not exist. One that is null in a trial, or a number in some and a text in
        others, is text in all: 10, none.
        """
        begun = [(number, t) for number, t in self.trials() if t.state is not TrialState.WAITING]
        kinds = by_key((key, _kind(value)) for _, t in begun for key, value in point_of(t).items())
        as_text = {key for key, found in kinds.items() if len(set(found)) > 1 or "null" in found}
        parts = [part for metric in metrics for part in summands(metric)]
        rows = []
        spreads = [f"{metric}/std" for metric in metrics if any(STDS in t.user_attrs for _, t in begun)]
        scored = dict.fromkeys([*metrics, *parts, *spreads])  # columns
        for number, t in begun:
            told = list(t.values or []) or [None] * len(metrics)
            by_environment = t.user_attrs.get(SCORES, {})
            there = {f"{metric}/{env}": v for metric in metrics for env, v in by_environment.get(metric, {}).items()}
            spread = {f"{metric}/std": t.user_attrs[STDS].get(metric) for metric in metrics if STDS in t.user_attrs}
            scores = dict(zip(metrics, told, strict=True))
            scores |= {part: t.user_attrs.get(SUMMANDS, {}).get(part) for part in parts} | spread | there
            scored |= dict.fromkeys(scores)
            rows.append(
                {"trial": number, "state": state_of(t), "rounds": t.user_attrs.get(ROUNDS, 0)}
                | scores
                | {"seconds": seconds_of(t), "samples": t.user_attrs.get(SAMPLES, 0)}
                | {SENT_BYTES: t.user_attrs.get(SENT_BYTES, math.nan)}
                | {key: exact(value) if key in as_text else value for key, value in point_of(t).items()}
                | {"error": t.user_attrs.get(ERROR, ""), "note": t.user_attrs.get(NOTE, "")}
            )
        first, last = ["trial", "state", "rounds", *scored, "seconds", "samples", SENT_BYTES], ["error", "note"]
        paths = dict.fromkeys(key for row in rows for key in row if key not in {*first, *last})
        return pd.DataFrame(rows, columns=[*first, *paths, *last])

    def parts_table(self, metrics: Sequence[str]) -> pd.DataFrame:
        """One row a run that has ended, of a trial that has several: trial, environment, seed, metrics, ..., error.

        samples: gradient samples. seconds: wall time. error: how training diverged. Values are as they were scored, not
        divided by FedAvg's.

        Args:
            metrics: tracked keys.
        """
        rows = [
            {"trial": number, **part["part"]}
            | {metric: part["values"].get(metric, math.nan) for metric in metrics}
            | {key: part[key] for key in ("samples", "seconds", "error")}
            for number, trial in self.trials()
            for part in trial.user_attrs.get(PARTS, ())
        ]
        columns = ["trial", "environment", "seed", *metrics, "samples", "seconds", "error"]
        return pd.DataFrame(rows, columns=columns).sort_values(["trial", "seed"], kind="stable", ignore_index=True)

    def baselines_table(self, metrics: Sequence[str]) -> pd.DataFrame:
        """One row a run of FedAvg in an environment: environment, seed, metrics, samples, seconds."""
        rows = [
            (r["environment"], r["seed"], *(r["values"][metric] for metric in metrics), r["samples"], r["seconds"])
            for r in self.baselines()
        ]
        return pd.DataFrame(rows, columns=["environment", "seed", *metrics, "samples", "seconds"])

    def curves(self) -> dict[int, dict[int, float]]:
        """{round: value} of each trial that is complete or was stopped, by Optuna's number: what fills ASHA's rungs."""
        done = (t for _, t in self.trials() if t.state in DONE and DIVERGED not in t.user_attrs)
        return {t.number: dict(t.intermediate_values) for t in done}

    def openings(self) -> list[dict[str, Any]]:
        """Each time that the test data were opened for a choice of this study: {trial, params, seeds, time}."""
        return list(self.study.user_attrs.get(OPENINGS, []))

    def open_test(self, trial: int, params: Mapping[str, Any], seeds: Sequence[int]) -> int:
        """Record that the test data are opened for a choice; the same choice with the same seeds counts once.

        Returns:
            how many times they were opened for this study.
        """
        opened = self.openings()
        if not any(o["params"] == dict(params) and set(seeds) <= set(o["seeds"]) for o in opened):
            opened.append({"trial": trial, "params": dict(params), "seeds": list(seeds), "time": int(time.time())})
            self.study.set_user_attr(OPENINGS, opened)
        return len(opened)


def state_of(trial: FrozenTrial) -> str:
    """complete, pruned, diverged, failed or running."""
    if DIVERGED in trial.user_attrs:
        return "diverged"
    return "failed" if trial.state is TrialState.FAIL else trial.state.name.lower()


def seconds_of(trial: FrozenTrial) -> float | None:
    """The wall time of a trial; of one of several runs, of these together; None: it has not ended."""
    seconds = _seconds_of_runs(trial)
    return sum(seconds) if seconds else None


def longest_run(trial: FrozenTrial) -> float:
    """The wall time (s) of the longest run of a trial that has ended."""
    return max(_seconds_of_runs(trial), default=0.0)


def _seconds_of_runs(trial: FrozenTrial) -> list[float]:
    """The wall time of each run of a trial, with its rounds before a kill that cut it short; []: it has not ended."""
    if parts := trial.user_attrs.get(PARTS):
        return [float(part["seconds"]) for part in parts]
    if RUN_SECONDS in trial.user_attrs:  # Optuna's own time begins when the trial is proposed, before its process
        return [float(trial.user_attrs[RUN_SECONDS])]
    return [trial.duration.total_seconds()] if trial.duration else []


def point_of(trial: FrozenTrial) -> Point:
    """The trial's configuration."""
    return decoded(trial.params)


def _kind(value: Value) -> str:
    """The kind of a parameter's value: a column of a file has one."""
    if value is None:
        return "null"
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
