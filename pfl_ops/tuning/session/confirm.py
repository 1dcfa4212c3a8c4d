"""Confirmation: the best configurations of a search, repeated on validation data with new seeds, before the choice.

A trial is one seed, and the largest of several noisy values is too large on average. So the configurations of the
best k trials (`Settings.confirm_top`) are run again with seeds that the search has not seen, each with the same ones,
until the directed anytime-valid test (`statistics.above`) tells the one with the best mean apart from the others, or n
seeds (`Settings.confirm`) are done. The means say which one is tested, so the hypotheses are those of all pairs.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, takewhile
from typing import TYPE_CHECKING

import pandas as pd
from optuna.trial import FrozenTrial

from pfl_ops.errors import PflOpsError, by_key, count
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import ERRORS, SAMPLES
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.metric_keys import error_key
from pfl_ops.section import SEED_OFFSET
from pfl_ops.spaces import Point
from pfl_ops.statistics import above, holm, mean_std
from pfl_ops.tuning.session.tracked_job import RunningPart, TrackedJobs
from pfl_ops.tuning.studies.parts import PartResult, TrialPart
from pfl_ops.tuning.studies.study_storage import point_of
from pfl_ops.units import PERCENT, signed, unit_of, with_unit

if TYPE_CHECKING:
    from pfl_ops.tuning.session.session import Session

LEVEL = 0.05  # corrected p from which a configuration is told apart
FEWEST = 3  # seeds before the first look: with two, e⁺ is at most 9.2, and two configurations need 2/LEVEL = 40


@dataclass(frozen=True)
class Confirmation:
    """The best configurations of a search, with new seeds.

    Attributes:
        metric: the objective. larger: True if larger is better.
        values: number of a trial -> seed -> validation value; trials in the order of the search, its best first.
        lost: number of a trial -> seed and cause, of those with a repetition that diverged: they can't be chosen.
        winner: number of the chosen trial.
        seeds: those over which the means and tests are.
        p: number of another trial -> p of "the winner is not better", anytime-valid, corrected after Holm for all
            ordered pairs of configurations.
        errors: number of a trial -> seed -> standard error of the evaluation, of values that were scored on a sample.
    """

    metric: str
    larger: bool
    values: Mapping[int, Mapping[int, float]]
    lost: Mapping[int, str]
    winner: int
    seeds: tuple[int, ...]
    p: Mapping[int, float] = field(default_factory=dict)
    errors: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The search's own choice."""
        return next(iter(self.values))

    @property
    def changed(self) -> bool:
        """True if the search would have chosen another trial."""
        return self.winner != self.first

    @property
    def separated(self) -> bool:
        """True if the winner is told apart from every other configuration that is left."""
        return bool(self.p) and all(p <= LEVEL for p in self.p.values())

    @property
    def means(self) -> dict[int, float]:
        """Mean over `seeds` of each configuration that is left."""
        return {number: mean_std(self._of(number))[0] for number in self.values if number not in self.lost}

    @property
    def second(self) -> int | None:
        """The trial with the best mean but the winner's; None: no other is left."""
        others = {number: mean for number, mean in self.means.items() if number != self.winner}
        return (max if self.larger else min)(others, key=lambda number: others[number]) if others else None

    @property
    def margin(self) -> float | None:
        """The winner's mean less the second one's; None: no other is left."""
        return None if self.second is None else self.means[self.winner] - self.means[self.second]

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the winner's values over seeds; None: fewer than two."""
        return mean_std(self._of(self.winner))[1]

    @property
    def standard_error(self) -> float | None:
        """Standard error that the evaluation leaves in the winner's mean; None: all samples were scored."""
        known = self.errors.get(self.winner, {})
        if not self.seeds or any(seed not in known for seed in self.seeds):
            return None
        return math.hypot(*(known[seed] for seed in self.seeds)) / len(self.seeds)

    @property
    def table(self) -> pd.DataFrame:
        """One row a run that has a value: trial, seed, value."""
        rows = [(number, seed, value) for number, values in self.values.items() for seed, value in values.items()]
        return pd.DataFrame(rows, columns=["trial", "seed", "value"])

    def __str__(self) -> str:
        """One line: the choice, how sure it is, its margin and spread, and if it changed."""
        name = f"trial {self.winner:03d}"
        lost = "".join(f"; trial {number:03d} is out: {why}" for number, why in self.lost.items())
        if self.winner in self.lost:
            return f"not confirmed: every configuration diverged with a new seed, {name} is the search's choice{lost}"
        n = len(self.seeds)
        mean = with_unit(self.metric, self.means[self.winner], self.spread)
        over = f"{mean} over {count(n, 'new seed')}"
        if self.second is None or self.margin is None:
            told = f"chosen: {name}, {over}, since every other configuration diverged"
        elif self.separated:
            told = f"confirmed: {name}, {over}, {self._ahead}, p ≤ {max(self.p.values()):.2g} (anytime-valid, Holm)"
        else:
            told = f"not separated: {name} has the best mean, {over}, {self._ahead}, p = {max(self.p.values()):.2g}"
        first = f"the search's choice was trial {self.first:03d}" if self.changed else "as the search chose"
        return f"{told}; {first}{lost}"

    @property
    def _ahead(self) -> str:
        unit = "points" if unit_of(self.metric) == PERCENT else unit_of(self.metric).name
        ahead = f"{signed(self.margin or 0.0, self.metric)} {unit}".rstrip()
        return f"{ahead} to trial {self.second:03d}"

    def _of(self, number: int) -> list[float]:
        return [self.values[number][seed] for seed in self.seeds if seed in self.values[number]]


def judge(
    metric: str,
    larger: bool,
    values: Mapping[int, Mapping[int, float]],
    lost: Mapping[int, str],
    seeds: Sequence[int],
    errors: Mapping[int, Mapping[int, float]] = {},
    earlier: int = 0,
) -> Confirmation:
    """Choose the configuration with the best mean over the seeds that all of them have, and test its lead.

    The values decide which configuration is tested against the others, so the family of hypotheses is "a is not better
    than b" for all k (k − 1) ordered pairs: it is fixed before the first look. p = 1/max e⁺ each, corrected after Holm.
    A configuration that diverged stays in the family; its pairs are tested on the seeds before.

    Args:
        metric, larger, values, lost, errors: see `Confirmation`. seeds: planned ones, in order.
        earlier: configurations that were repeated for earlier choices of the study, and are not among the best now.
            Their pairs are in the family, with p = 1.
    """
    left = [number for number in values if number not in lost]
    if not left:
        return Confirmation(metric, larger, values, lost, next(iter(values)), (), errors=errors)
    sign = 1 if larger else -1
    signed_values = {number: {seed: sign * value for seed, value in values[number].items()} for number in values}
    prefix = list(takewhile(lambda seed: all(seed in signed_values[number] for number in left), seeds))
    mean = {number: mean_std(signed_values[number][s] for s in prefix)[0] if prefix else 0.0 for number in left}
    winner = max(left, key=lambda number: mean[number])  # of equal ones the search's better one
    tests = {(a, b): above(signed_values[a], signed_values[b], prefix).p for a, b in permutations(values, 2)}
    k = len(values) + earlier
    untested = [1.0] * (k * (k - 1) - len(tests))
    corrected = dict(zip(tests, holm([*tests.values(), *untested]), strict=False))
    p = {other: one for (a, other), one in corrected.items() if a == winner and other in left and one is not None}
    return Confirmation(metric, larger, values, lost, winner, tuple(prefix), p, errors)


class Confirmations(TrackedJobs):
    """A source of the jobs that confirm a study's choice; it is over at once if there is nothing to confirm.

    Attributes:
        over: True once the choice is made and recorded.
        result: of the last look; None: there was none.
        waiting: (number of a trial, seed, environment) of the next runs.
    """

    kind = "confirm"

    def __init__(self, session: "Session", share: ResourceShare | None, execution: Execution) -> None:
        super().__init__(session, share, execution)
        self.over = False
        self.result: Confirmation | None = None
        self.waiting: deque[tuple[int, int, str]] = deque()
        self._is_read = False
        self._points: dict[int, Point] = {}  # number of a trial -> its configuration
        self._values: dict[int, dict[int, float]] = {}
        self._results: dict[int, list[PartResult]] = {}  # of runs with a value
        self._lost: dict[int, str] = {}
        self._errors: dict[int, dict[int, float]] = {}
        self._earlier = 0  # configurations with runs that are not among the best any more
        self._given = 0  # jobs

    def _next(self) -> Job | None:
        self.waiting = deque(run for run in self.waiting if run[0] not in self._lost)
        if not self.waiting and not self.running and not self.over:
            self.plan()
        if not self.waiting:
            return None
        number, seed, environment = self.waiting.popleft()
        part, self._given = TrialPart(seed, environment), self._given + 1
        run = self.session.children.confirmation(number, self._points[number], part)
        return self._begin(self._given, run, part, number)

    def plan(self) -> None:
        """Queue the runs that are missing for the next look; make the choice if there are none."""
        session, study_storage = self.session, self.session.study_storage
        n, k, goal = session.settings.confirm, session.settings.confirm_top, session.settings.objective
        if not n:
            study_storage.drop_choice()
        if not self._is_read:
            self._read(study_storage.top(k) if n and goal.single else [])
        if len(self._points) < 2:
            if self._points and len(study_storage.trials()) > 1:
                (number,) = self._points
                text = f"not confirmed: trial {number:03d} has the only configuration that is complete"
                session.tell("confirmed", text=f"{study_storage.name}: {text}")
            self.over = True
            return
        seeds = [session.settings.experiment.seed + SEED_OFFSET + i for i in range(n)]
        fewest = min(n, FEWEST)
        for looked in range(fewest, n + 1):
            left = [number for number in self._points if number not in self._lost]
            missing = [run for s in seeds[:looked] for t in left for run in self._missing(t, s)]
            if missing and (len(left) > 1 or looked == fewest):  # one that is left gets the seeds of the first look
                self.waiting.extend(missing)
                return
            larger, name = goal.modes[0] == "max", session.settings.goal.metrics[0]
            result = judge(name, larger, self._values, self._lost, seeds[:looked], self._errors, self._earlier)
            self.result = result
            if result.separated or len(left) < 2:
                break
        if study_storage.choose(result.winner, list(self._points)):
            session.tell("confirmed", text=f"{study_storage.name}: {result}")
        self.over = True

    def _missing(self, number: int, seed: int) -> list[tuple[int, int, str]]:
        """The runs of a configuration with a seed that have no value yet."""
        known = {result.part for result in self._results[number]}
        return [(number, seed, name) for name in self._environments if TrialPart(seed, name) not in known]

    @property
    def _environments(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.session.settings.environments) or ("",)

    def _combine(self, number: int) -> None:
        """Make the values of a configuration, one a seed, of its results in all environments."""
        by_seed = by_key((result.part.seed, result) for result in self._results[number])
        settings = self.session.settings
        name = settings.goal.metrics[0]
        for seed, results in by_seed.items():
            if len(results) < len(self._environments):
                continue
            combination = self.session.combination if settings.environments else None
            if combination:
                report = combination.report(results)
                value, errors = report[name], report[ERRORS]
            else:
                value, errors = results[0].values[name], results[0].errors
            self._values[number][seed] = value
            if name in errors:
                self._errors[number][seed] = errors[name]

    def _read(self, trials: Iterable[tuple[int, FrozenTrial]]) -> None:
        """Take the runs that are recorded for these configurations."""
        self._is_read, self._points = True, {number: point_of(trial) for number, trial in trials}
        recorded = self.session.study_storage.confirmations()
        others = [record["params"] for record in recorded if record["params"] not in self._points.values()]
        self._earlier = len({repr(sorted(params.items())) for params in others})
        for number, point in self._points.items():
            self._values[number], self._errors[number], self._results[number] = {}, {}, []
            for record in (record for record in recorded if record["params"] == point):
                part, standard_error = TrialPart.of_record(record), record.get("standard_error")
                self._take(number, part, record["value"], standard_error, record["error"])
            self._combine(number)

    def _take(self, number: int, part: TrialPart, value: float, standard_error: float | None, error: str) -> None:
        """Note the value of a run, or why it has none."""
        metric = self.session.settings.objective.metrics[0]
        if error:
            self._lost.setdefault(number, f"{part} {error}")
        else:
            errors = {} if standard_error is None else {metric: standard_error}
            self._results[number].append(PartResult(part, {metric: value}, errors))

    def _record(self, event: JobEvent, now: RunningPart) -> tuple[str, float]:
        session, metric = self.session, self.session.settings.objective.metrics[0]
        assert now.trial is not None
        last = now.job.last.metrics if now.job.last else {}
        value, standard_error = last.get(metric, math.nan), last.get(error_key(metric))
        error = ""
        if event.failure and event.failure.diverged:
            error = event.failure.line
        elif event.failure:
            self._error = PflOpsError(
                f"{event.job.name}: {event.failure.line}; run it again with --resume, or choose without it: --confirm 0"
            )
        elif not math.isfinite(value):
            error = f"has {metric} {value}"
        if event.failure is None or event.failure.diverged:
            session.study_storage.confirm(
                trial=now.trial, params=self._points[now.trial], seed=now.part.seed,
                environment=now.part.environment, value=None if error else value, error=error,
                standard_error=standard_error, samples=int(event.report.get(SAMPLES, 0)), seconds=now.job.seconds,
            )  # fmt: skip
            self._take(now.trial, now.part, value, standard_error, error)
            self._combine(now.trial)
        return error or (event.failure.line if event.failure else ""), value
