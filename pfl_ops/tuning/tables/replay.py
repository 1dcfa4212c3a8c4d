"""Studies replayed on a table of trials: the search and the choice of `tune`, with its runs looked up and not computed.

A replayed study has `tune`'s own search (`search.Search`: its sampler and its first points), its own early stopping
(`jobs.early_stop.EarlyStop`: ASHA, or `paired.PairedPruner`; one trial after the other) and its own rule of
confirmation (`confirm.judge`: k configurations, up to n new seeds). A study gets a random order of the table's seeds:
the first S are the search's, the next n are those of the confirmation, the rest are the truth.

A sampler proposes any point of the space, the table has some. A proposal is replaced by the nearest configuration that
the study has not tried, and the sampler learns that configuration with its own score: `study.add_trial`, as if it had
proposed it. So no pair of a configuration and a score is wrong, and the search draws without replacement.

The regret of a choice is the best mean on test data over the seeds of the truth among all configurations, less the
mean of the chosen one. Three choices are compared:

    first     the best value of T trials
    confirm   the choice of the confirmation that follows
    argmax    the same search goes on without a confirmation until its samples reach those of `confirm`; the best value
              is chosen
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
from optuna.storages import InMemoryStorage
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from pfl_ops.errors import PflOpsError, count
from pfl_ops.jobs.early_stop import STOP, EarlyStop
from pfl_ops.jobs.process import JOB
from pfl_ops.jobs.report import ROUND
from pfl_ops.spaces import Parameter, Point, Space
from pfl_ops.tuning.session.confirm import FEWEST, judge
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.studies.limits import check_confirmation
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.paired import PairedPruner, check_metric, value_of_stopped
from pfl_ops.tuning.studies.parts import Combination, PartResult, TrialPart
from pfl_ops.tuning.studies.settings import CONFIRM, CONFIRM_TOP, RANDOM_START, TRIALS, Scheduler
from pfl_ops.tuning.studies.study_storage import PARTS, StudyStorage
from pfl_ops.tuning.tables.trial_table import SearchProblem

STUDIES = 30
MOST_STUDIES = 10_000
NUMBER = "configuration"  # user attribute of a trial

Sampler: TypeAlias = Literal["tpe", "random"]
"""`tune`'s own, or its random start without an end."""


@dataclass(frozen=True)
class StudyRule:
    """A rule of a study; the defaults are those of `tune`.

    Attributes:
        trials: T, of the search. confirm, confirm_top: n and k, of the confirmation.
        scheduler: "asha" stops bad trials early, "paired" those of several seeds between two of these; None: `tune`'s
            own, asha for trials of one seed, else none. grace: asha's first rung, in rounds; None: the first scored
            round.
        random_start: trials with a result before the sampler's model proposes any; from T on the search is random.
        sampler: of the search. seeds_per_trial: S, runs of a trial, of which its value is the mean.
    """

    trials: int = TRIALS
    confirm: int = CONFIRM
    confirm_top: int = CONFIRM_TOP
    scheduler: Scheduler | None = None
    grace: int | None = None
    random_start: int = RANDOM_START
    sampler: Sampler = "tpe"
    seeds_per_trial: int = 1

    @property
    def early_stop(self) -> Scheduler:
        """The scheduler of its trials."""
        return self.scheduler or ("asha" if self.seeds_per_trial == 1 else "none")


@dataclass(frozen=True)
class Choice:
    """The choice of a rule in a replayed study.

    Attributes:
        configuration: number; None: no trial has a result. runs, samples: spent, the confirmation's included.
        regret: see the module; NaN if a run of the choice on test data has no result, or nothing was chosen.
    """

    configuration: int | None
    runs: int
    samples: int
    regret: float


@dataclass(frozen=True)
class ReplayedStudy:
    """One study and its three choices.

    Attributes:
        method, environment, number: which. seed: of the search, the first one of a trial.
        first, confirm, argmax: see the module.
        exhausted: True if `argmax` tried all configurations before its samples reached those of `confirm`.
    """

    method: str
    environment: str
    number: int
    seed: int
    first: Choice
    confirm: Choice
    argmax: Choice
    exhausted: bool = False


def replay(
    problem: SearchProblem, rule: StudyRule | None = None, *, studies: int = STUDIES, seed: int = 0
) -> list[ReplayedStudy]:
    """Return replayed studies of a method in an environment.

    Args:
        rule: none: that of `tune`. studies: their number. seed: of the orders of seeds and of the samplers.
    Raises:
        PflOpsError: numbers that can't be, or a table that is too small.
    """
    rule = rule or StudyRule()
    check(problem, rule, studies)
    return [_study(problem, rule, number, seed) for number in range(studies)]


def check(problem: SearchProblem, rule: StudyRule, studies: int) -> None:
    """Refuse numbers that can't be, and a table that is too small for them.

    Raises:
        PflOpsError: see above.
    """
    if not 1 <= studies <= MOST_STUDIES:
        raise PflOpsError(f"--studies must be in [1, {MOST_STUDIES:,}], got {studies}")
    check_confirmation(rule.confirm, rule.confirm_top)
    if rule.confirm < 1:
        raise PflOpsError("a replay compares choices with and without confirmation: --confirm must be at least 1")
    if rule.random_start < 0 or (rule.grace is not None and rule.grace < 1):
        raise PflOpsError(f"--random-start must be >= 0 and --grace >= 1, got {rule.random_start} and {rule.grace}")
    if rule.seeds_per_trial < 1:
        raise PflOpsError(f"--seeds-per-trial must be >= 1, got {rule.seeds_per_trial}")
    if rule.scheduler == "asha" and rule.seeds_per_trial > 1:
        raise PflOpsError("asha stops trials of one run: --scheduler paired or none, or leave it out")
    here, configurations, seeds = f"{problem.method} in {problem.environment}", len(problem.points), len(problem.seeds)
    if not 1 <= rule.trials <= configurations:
        raise PflOpsError(
            f"--trials must be in [1, {configurations}], the configurations that the table has of {here}; "
            f"got {rule.trials}"
        )
    if seeds < (needed := rule.seeds_per_trial + rule.confirm + 1):
        raise PflOpsError(
            f"the table has {count(seeds, 'seed')} of {here}: --confirm {rule.confirm} needs {needed}, "
            f"{rule.seeds_per_trial} "
            f"for the search, {rule.confirm} for the confirmation and at least one for the truth"
        )
    if rule.scheduler == "paired":
        _check_paired(problem, rule, here)


def _check_paired(problem: SearchProblem, rule: StudyRule, here: str) -> None:
    """Refuse the paired pruner if there is nothing to compare."""
    if rule.seeds_per_trial == 1:
        raise PflOpsError("paired stops a trial between two of its runs: --seeds-per-trial 2 or more")
    check_metric(problem.metric)
    if any(math.isfinite(value) and not problem.groups.get(run) for run, value in problem.values.items()):
        raise PflOpsError(
            f"the table has no scores by client group (column groups) of {here}, which paired compares: make a new one "
            "with pfl-ops tabulate"
        )


def nearest(space: Space, points: Mapping[int, Point], point: Point) -> int:
    """Return the number of the point nearest to one: of equally near ones the first.

    The distance is the root of the sum of squares over the parameters: a number counts by its place in its range (of
    its logarithm where it is drawn so), from 0 to 1; another choice, or a parameter that one of the two lacks, as 1.
    """
    here = space.encoded(point)
    return min(points, key=lambda number: (_distance(space, here, space.encoded(points[number])), number))


# -- one study --------------------------------------------------------------------------------------------------------


_TrialEnd: TypeAlias = tuple[float | None, dict[int, float], dict[str, Any]]
"""A trial that is over: its value (None: it has none), round -> value before, and user attributes."""


class _Replay:
    """A search on a table; the runs of its trials are looked up.

    Attributes:
        left: configurations that were not tried. runs, samples: spent.
    """

    def __init__(self, problem: SearchProblem, rule: StudyRule, seeds: Sequence[int], sampler_seed: int) -> None:
        self.problem, self.seeds = problem, seeds
        goal = Objective((problem.metric,), ("max" if problem.larger else "min",))
        self.study_storage = StudyStorage("replay", InMemoryStorage(), goal)
        self.study_storage.enqueue([problem.space.encoded(point) for point in problem.space.first])
        start = rule.random_start if rule.sampler == "tpe" else len(problem.points)
        self.search = Search(self.study_storage, problem.space, goal, problem.rounds, sampler_seed, start)
        parts = tuple(TrialPart(seed) for seed in seeds)
        self.combination = Combination(parts, goal.metrics, goal.metrics, goal.modes)
        self.pruner = PairedPruner(problem.larger, self.study_storage) if rule.early_stop == "paired" else None
        self.early_stop: EarlyStop | None = None
        first = rule.grace or problem.full_every
        if rule.early_stop == "asha" and first < problem.rounds:  # as in a study's session
            self.early_stop = EarlyStop(problem.metric, goal.modes[0], problem.rounds, first)
        self.left = dict(enumerate(problem.points))
        self.runs = self.samples = 0

    def step(self) -> None:
        """Do the next trial."""
        problem = self.problem
        proposal, point = self.search.ask()
        self.search.study.tell(proposal, state=TrialState.FAIL)
        number = nearest(problem.space, self.left, point)
        chosen = self.left.pop(number)
        recorded = FixedTrial(problem.space.encoded(chosen))
        problem.space(recorded)  # notes the distribution of each parameter
        value, curve, about = self._run(number) if len(self.seeds) == 1 else self._run_parts(number)
        self.search.study.add_trial(
            create_trial(
                state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
                values=None if value is None else [value],
                params=recorded.params,
                distributions=recorded.distributions,
                user_attrs={NUMBER: number, **about},
                intermediate_values=curve,
            )
        )

    def _run(self, number: int) -> _TrialEnd:
        """The trial of one run."""
        problem, key = self.problem, (number, self.seeds[0])
        end, value = self._end(number), problem.values[key]
        self.runs += 1
        self.samples += problem.cost(*key) if end is None else problem.samples[key][end]
        complete = end is None and math.isfinite(value)
        curve = {t: v for t, v in problem.curves[key].items() if end is None or t <= end}
        return (value if complete else None), curve, {}

    def _run_parts(self, number: int) -> _TrialEnd:
        """The trial of several runs, one after the other."""
        problem, combination, metric = self.problem, self.combination, self.problem.metric
        results: list[PartResult] = []
        for part in combination.parts:
            key = (number, part.seed)
            self.runs += 1
            self.samples += problem.cost(*key)
            if not math.isfinite(problem.values[key]):
                return None, {}, {}
            scored = {metric: problem.values[key]}
            results.append(PartResult(part, scored, rounds=problem.rounds, groups=problem.groups.get(key, {})))
            if len(results) < len(self.seeds) and self.pruner and self.pruner.is_worse(results, combination):
                rounds = problem.rounds * len(results) // len(self.seeds)
                return None, {rounds: value_of_stopped(results, combination)}, {}
        value = float(combination.report(results)[metric])
        return value, {problem.rounds: value}, {PARTS: [result.as_dict() for result in results]}

    def _end(self, number: int) -> int | None:
        """The round after which the next trial is stopped early; None: it runs to its end."""
        if self.early_stop is None:
            return None
        problem, key = self.problem, (number, self.seeds[0])
        trial = SimpleNamespace(
            trial_id=str(number), config={JOB: SimpleNamespace(metrics=(problem.metric,))}, last_result={}
        )
        self.early_stop.on_trial_add(None, trial)
        report: dict[str, float] = {}
        for t, score in sorted(problem.curves[key].items()):
            report = {ROUND: t, problem.metric: score}
            if t < problem.rounds and self.early_stop.on_trial_result(None, trial, report) == STOP:
                return t
        if math.isfinite(problem.values[key]):
            self.early_stop.on_trial_complete(None, trial, report)
        else:
            self.early_stop.on_trial_error(None, trial)
        return None

    def best(self) -> int | None:
        """The configuration of the best trial; None: none is complete."""
        found = self.study_storage.best()
        return _number(found[0][1]) if found else None

    def top(self, k: int) -> list[int]:
        """The configurations of the k best trials."""
        return [_number(trial) for _, trial in self.study_storage.top(k)]


def _study(problem: SearchProblem, rule: StudyRule, number: int, seed: int) -> ReplayedStudy:
    order = np.random.default_rng([seed, number]).permutation(problem.seeds).tolist()
    of_search = rule.seeds_per_trial
    seeds, new, rest = order[:of_search], order[of_search : of_search + rule.confirm], order[of_search + rule.confirm :]
    search = _Replay(problem, rule, seeds, seed * MOST_STUDIES + number)
    for _ in range(rule.trials):
        search.step()
    pick = search.best()
    first = Choice(pick, search.runs, search.samples, regret(problem, pick, rest))
    winner, runs = confirmed(problem, search.top(rule.confirm_top), new)
    spent = search.samples + sum(problem.cost(*run) for run in runs)
    with_confirmation = Choice(winner, first.runs + len(runs), spent, regret(problem, winner, rest))
    while search.left and search.samples < spent:
        search.step()
    best = search.best()
    alone = Choice(best, search.runs, search.samples, regret(problem, best, rest))
    return ReplayedStudy(
        problem.method, problem.environment, number, seeds[0], first, with_confirmation, alone, search.samples < spent
    )


def confirmed(
    problem: SearchProblem, top: Sequence[int], seeds: Sequence[int]
) -> tuple[int | None, list[tuple[int, int]]]:
    """Return the choice among the best configurations, and the runs (configuration, seed) that it takes.

    The looks are those of `confirm.Confirmations`: after three seeds, and after each further one.
    """
    runs: list[tuple[int, int]] = []
    if len(top) < 2:
        return (top[0] if top else None), runs
    values: dict[int, dict[int, float]] = {number: {} for number in top}
    lost: dict[int, str] = {}
    for looked in range(min(len(seeds), FEWEST), len(seeds) + 1):
        for seed in seeds[:looked]:
            for number in top:
                if number in lost or seed in values[number]:
                    continue
                runs.append((number, seed))
                value = problem.values[number, seed]
                if math.isfinite(value):
                    values[number][seed] = value
                else:
                    lost[number] = f"seed {seed}"
        result = judge(problem.metric, problem.larger, values, lost, seeds[:looked])
        winner = result.winner
        if result.separated or len(lost) >= len(top) - 1:
            break
    return winner, runs


def regret(problem: SearchProblem, chosen: int | None, seeds: Sequence[int]) -> float:
    """Return the regret of a configuration over seeds; NaN: it has no result with one of them, or nothing was chosen.

    A configuration that has no result with one of the seeds is not the best one either.
    """
    sign = 1 if problem.larger else -1
    means = [float(np.mean([sign * problem.truths[c, seed] for seed in seeds])) for c in range(len(problem.points))]
    if chosen is None or not math.isfinite(means[chosen]):
        return math.nan
    return float(np.nanmax(means) - means[chosen])


def _number(trial: FrozenTrial) -> int:
    return int(trial.user_attrs[NUMBER])


# -- points -----------------------------------------------------------------------------------------------------------


def _distance(space: Space, a: Point, b: Point) -> float:
    return math.hypot(*(_gap(parameter, a, b) for parameter in space.parameters))


def _gap(parameter: Parameter, a: Point, b: Point) -> float:
    name = parameter.name
    if name not in a and name not in b:
        return 0.0
    if name not in a or name not in b:
        return 1.0
    if parameter.kind == "choice":
        return float(a[name] != b[name])
    return abs(_place(parameter, a[name]) - _place(parameter, b[name]))


def _place(parameter: Parameter, value: object) -> float:
    """The place of a number in its range, from 0 to 1."""
    assert isinstance(value, int | float)
    low, high, x = parameter.low, parameter.high, float(value)
    if parameter.log:
        low, high, x = math.log(low), math.log(high), math.log(x)
    return (x - low) / (high - low) if high > low else 0.0
