"""A study's trials as jobs: proposed by Optuna, tracked while they run, told to Optuna and to who watches."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import Trial

from pfl_ops import tag_names
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import FAILURE, ROUND, Failure, ObjectiveMissing
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.metric_keys import summands
from pfl_ops.spaces import Point
from pfl_ops.tuning.session.children import Children
from pfl_ops.tuning.session.events import Event, OnEvent
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.session.tracked_job import TrackedJob
from pfl_ops.tuning.studies.paired import PairedPruner, by_group, value_of_stopped
from pfl_ops.tuning.studies.parts import Combination, PartResult, failure_of, spent_so_far
from pfl_ops.tuning.studies.study_storage import PARTS


@dataclass
class _Running:
    """A trial between its proposal and its end.

    Attributes:
        waiting: jobs of parts that have not been given out. given: index of a part -> its job, of the others.
        results: index -> result, of those that have ended. failure: why the trial has no value.
        stopped: True once it is worse than another trial, so that no further part starts.
    """

    trial: Trial
    point: Point
    waiting: deque[Job] = field(default_factory=deque)
    given: dict[int, TrackedJob] = field(default_factory=dict)
    results: dict[int, PartResult] = field(default_factory=dict)
    failure: Failure | None = None
    stopped: bool = False

    @property
    def begun(self) -> bool:
        """True once one of its jobs has started."""
        return any(job.begun for job in self.given.values())


@dataclass(eq=False)
class Trials:
    """The source of a study's trials, and what is done with what happens to them.

    Attributes:
        search: proposes them. missing: number of trials to run. wanted: trials of the whole study.
        children: makes their runs. share, execution: of each job.
        on_event: told of everything; may be None.
        is_over: True once a budget is spent; then only trials that were cut short are still run.
        combination: the parts of a trial, and how its value is made of theirs; None: a trial is one run.
        pruner: stops trials between two parts, which then start one after the other; None: no trial is stopped so.
        hopeless: why no further trial makes sense; None: all is well.
    """

    search: Search
    missing: int
    wanted: int
    children: Children
    share: ResourceShare
    execution: Execution
    on_event: OnEvent | None = None
    is_over: Callable[[], bool] = lambda: False
    combination: Combination | None = None
    pruner: PairedPruner | None = None
    running: dict[int, _Running] = field(init=False, default_factory=dict)
    hopeless: ObjectiveMissing | None = field(init=False, default=None)

    @property
    def n_parts(self) -> int:
        """Runs of each trial."""
        return len(self.combination.parts) if self.combination else 1

    def next(self) -> Job | None:
        """The next job, of a trial that has begun before one of a new trial; None: all have been given out, or a budget
        is spent."""
        for number, now in self.running.items():
            waits_for_result = self.pruner is not None and now.given.keys() - now.results.keys()
            if now.waiting and not self.hopeless and not waits_for_result:
                return self._give(number, now)
        while self.missing and not self.hopeless:
            proposal = self.search.ask_again() if self.is_over() else self.search.ask()
            if proposal is None:
                return None
            self.missing -= 1
            trial, point = proposal
            number = self.search.study_storage.number(trial.number)
            results = self._kept(trial)
            try:
                jobs = [self._job(number, point, part) for part in range(self.n_parts) if part not in results]
            except PflOpsError as error:  # a point that no experiment can have
                self.search.end(trial, {}, Failure(in_a_line(error)))
                continue
            now = self.running[number] = _Running(trial, point, deque(jobs), results=results)
            for result in results.values():
                if result.error:
                    self._fail(now, Failure(f"{result.part} {result.error}", diverged=True))
            self._judge(now)  # a driver may have been killed before it did
            if now.waiting:
                return self._give(number, now)
            self._end_of_parts(number)
        return None

    def _kept(self, trial: Trial) -> dict[int, PartResult]:
        """The results of the parts that had ended when the trial was cut short."""
        if self.combination is None:
            return {}
        index = {part: i for i, part in enumerate(self.combination.parts)}
        results = map(PartResult.from_dict, trial.user_attrs.get(PARTS, ()))
        return {index[result.part]: result for result in results}

    def _job(self, number: int, point: Point, part: int) -> Job:
        """Return the job of a part; its number is that of the trial times the number of parts, plus its index."""
        metrics = self.combination.metrics if self.combination else self.search.objective.metrics
        run = self.children.trial(number, point, part)
        return run.job(number * self.n_parts + part, self.execution, self.share, metrics)

    def _give(self, number: int, now: _Running) -> Job:
        job = now.waiting.popleft()
        part = job.number % self.n_parts
        now.given[part] = TrackedJob(self.children.trial(number, now.point, part).open)
        return job

    def take(self, event: JobEvent) -> None:
        """Note what happened to a trial's job."""
        number, part = divmod(event.job.number, self.n_parts)
        now = self.running[number]
        match event.kind:
            case "started":
                first = not now.begun
                now.given[part].take(event)
                if self.combination is None or first:
                    self._tell("start", number)
            case "rounds":
                now.given[part].take(event)
                if FAILURE not in event.report:
                    self._report(number, event.report)
            case "ended" if self.combination is None:
                self._end(number, event)
            case "ended":
                self._end_part(number, part, event)

    def _report(self, number: int, report: Mapping[str, Any]) -> None:
        now = self.running[number]
        if self.combination is not None:
            going = [(index, job) for index, job in now.given.items() if index not in now.results]
            so_far = [*now.results.values(), *(self._result(now, index, job.report) for index, job in going)]
            self.search.note_cost(now.trial, spent_so_far(so_far))
            rounds = sum(result.rounds for result in so_far)
            self._tell("report", number, {**report, ROUND: rounds}, rounds=self.n_parts * self.search.rounds)
            return
        if not report["done"]:  # the last report belongs to the trial's end
            self.search.report(now.trial, report)
        self._tell("report", number, report)

    def close(self) -> None:
        """Let go of the runs that are still open: their trials were cut short, and will be continued."""
        for now in self.running.values():
            for job in now.given.values():
                job.cut_short()
        self.search.close()
        self.running.clear()

    def _end(self, number: int, event: JobEvent) -> None:
        now = self.running[number]
        self.search.keep_seconds(now.trial, now.given[0].seconds)
        error, state = self.search.end(now.trial, event.report, event.failure)
        if event.failure and event.failure.hopeless:
            self.hopeless = ObjectiveMissing(event.failure.line)
        now.given[0].end(error, event.account, {tag_names.TRIAL_STATE: state})
        self._leave(number, event.report, state, error)

    def _leave(self, number: int, report: Mapping[str, Any], state: str, error: str) -> None:
        """Let go of a trial that is over; nothing goes on from the checkpoints of one without a value."""
        point = self.running.pop(number).point
        if state in ("pruned", "diverged"):
            self.children.forget(point)
        self._tell("end", number, report, point, state=state, error=error)

    # -- trials of several parts --------------------------------------------------------------------------------------

    def _end_part(self, number: int, part: int, event: JobEvent) -> None:
        now = self.running[number]
        failure = event.failure or self._problem(event.report)
        result = self._result(now, part, event.report, failure)
        assert self.combination is not None
        if self.pruner is not None and failure is None:
            (metric,) = self.combination.metrics
            clients = self.children.trial(number, now.point, part).clients()
            result = replace(result, groups=by_group(clients, metric))
        now.results[part] = result
        if failure is None or failure.diverged:  # one that failed otherwise is run again if the trial is cut short
            self.search.keep_parts(now.trial, [r.as_dict() for r in now.results.values() if r.error or r.values])
        state = "complete" if failure is None else "diverged" if failure.diverged else "failed"
        now.given[part].end(failure.line if failure else "", event.account, {tag_names.TRIAL_STATE: state})
        if failure:
            if failure.hopeless:
                self.hopeless = ObjectiveMissing(failure.line)
            self._fail(now, failure_of(self.combination.parts[part], failure))
        self._judge(now)
        if not now.waiting and now.given.keys() <= now.results.keys():
            self._end_of_parts(number)

    def _end_of_parts(self, number: int) -> None:
        """End a trial of which all parts have ended that were begun."""
        assert self.combination is not None
        now = self.running[number]
        results = [now.results[part] for part in sorted(now.results)]
        if now.failure:
            report = {ROUND: min(result.rounds for result in results), **spent_so_far(results)}
        elif now.stopped:
            report = self._report_of_stopped(results)
        else:
            report = self.combination.report(results)
        error, state = self.search.end(now.trial, report, now.failure)
        self._leave(number, {} if now.failure else report, state, error)

    def _judge(self, now: _Running) -> None:
        """Start no further part of a trial that is worse than another."""
        if self.pruner is None or self.combination is None or not (now.waiting and now.results) or now.failure:
            return
        now.stopped = self.pruner.is_worse(list(now.results.values()), self.combination)
        if now.stopped:
            now.waiting.clear()

    def _report_of_stopped(self, results: Sequence[PartResult]) -> dict[str, Any]:
        """Return the report of a trial without its last parts: rounds are its share of a whole trial's."""
        assert self.combination is not None
        (name,) = self.combination.names
        rounds = sum(result.rounds for result in results) // self.n_parts
        return {name: value_of_stopped(results, self.combination), ROUND: rounds, **spent_so_far(results)}

    def _fail(self, now: _Running, failure: Failure) -> None:
        """Note why a trial has no value, and start no further part of it; divergence counts more than other causes."""
        if now.failure is None or (failure.diverged and not now.failure.diverged):
            now.failure = failure
        now.waiting.clear()

    def _problem(self, report: Mapping[str, Any]) -> Failure | None:
        """The cause if a run that has not failed has no finite value."""
        assert self.combination is not None
        for metric in self.combination.metrics:
            if metric not in report:
                return Failure("ended without a report")
            if not math.isfinite(report[metric]):
                return Failure(f"{metric} is {report[metric]} after round {report[ROUND]}")
        return None

    def _result(
        self, now: _Running, part: int, report: Mapping[str, Any], failure: Failure | None = None
    ) -> PartResult:
        assert self.combination is not None
        error = failure.line if failure and failure.diverged else ""
        metrics = () if failure else self.combination.metrics
        return PartResult.of(self.combination.parts[part], report, metrics, now.given[part].seconds, error)

    def _tell(
        self, kind: Any, number: int, report: Mapping[str, Any] | None = None, point: Point | None = None,
        rounds: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        if self.on_event is None:
            return
        report, study_storage = report or {}, self.search.study_storage
        keys = [key for metric in self.search.objective.metrics for key in (metric, *summands(metric))]
        with study_storage.reading_once():
            event = Event(
                kind,
                study_storage.name,
                self.wanted,
                done=study_storage.done(),
                running=sum(now.begun for now in self.running.values()),
                trial=number,
                round=int(report.get("round", 0)),
                rounds=rounds or self.search.rounds,
                values={key: float(report[key]) for key in keys if key in report and FAILURE not in report},
                params=self.running[number].point if point is None else point,
                best=self.search.best(),
                **more,
            )
        self.on_event(event)
