"""A study's trials as jobs: proposed by Optuna, tracked while they run, told to Optuna and to who watches."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from optuna.trial import Trial

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import FAILURE, ROUND, Failure, ObjectiveMissing
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.metrics import summands
from pfl_ops.spaces import Point
from pfl_ops.tuning.events import Event, OnEvent
from pfl_ops.tuning.ledger import PARTS, STATE, state_of
from pfl_ops.tuning.parts import Combination, PartResult, failure_of, spent_so_far
from pfl_ops.tuning.search import Search


class TrialRun(Protocol):
    """A trial's child run: `tracking.Run` is one."""

    def log(self, records: Iterable[Record]) -> None: ...
    def tags(self, tags: Mapping[str, object]) -> None: ...
    def text(self, text: str, name: str) -> None: ...
    def complete(self) -> None: ...
    def finish(self, status: str = "FINISHED", patience: float = 30.0) -> bool: ...


MakeJob: TypeAlias = Callable[[int, Point, int], Job]
"""(number of the trial, point, index of the part) -> job; its number is that of the trial times the number of parts,
plus the index."""
OpenRun: TypeAlias = Callable[[int, Point, int], TrialRun]
"""(number, point, index of the part) -> tracked run; one that a killed driver began is found again."""


@dataclass
class _Running:
    """A trial between its proposal and its end.

    Attributes:
        waiting: jobs of parts that have not been given out. given: index of a part -> its last report, of those that
            were given out and have not ended. runs: index -> tracked run, of those. begun: index -> its start, seconds.
        results: index -> result, of those that have ended. failure: why the trial has no value.
    """

    trial: Trial
    point: Point
    waiting: deque[Job] = field(default_factory=deque)
    given: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    runs: dict[int, TrialRun] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    results: dict[int, PartResult] = field(default_factory=dict)
    failure: Failure | None = None


class Trials:
    """The source of a study's trials, and what is done with what happens to them.

    Args:
        search: proposes them. missing: number of trials to run. wanted: trials of the whole study.
        make: a job of a trial. open_run: its run.
        on_event: told of everything; may be None.
        on_pruned: called with the point of each trial that was stopped early or diverged; may be None.
        is_over: True once a budget is spent; then only trials that were cut short are still run.
        combination: the parts of a trial, and how its value is made of theirs; None: a trial is one run.
    Attributes:
        hopeless: why no further trial makes sense; None: all is well.
    """

    def __init__(
        self, search: Search, missing: int, wanted: int, make: MakeJob, open_run: OpenRun, on_event: OnEvent | None,
        on_pruned: Callable[[Point], None] | None = None, is_over: Callable[[], bool] = lambda: False,
        combination: Combination | None = None,
    ) -> None:  # fmt: skip
        self.search, self.missing, self.wanted, self.make, self.open_run = search, missing, wanted, make, open_run
        self.on_event, self.on_pruned, self.is_over = on_event, on_pruned, is_over
        self.combination = combination
        self.n_parts = len(combination.parts) if combination else 1
        self.running: dict[int, _Running] = {}
        self.hopeless: ObjectiveMissing | None = None

    def next(self) -> Job | None:
        """The next job, of a trial that has begun before one of a new trial; None: all have been given out, or a budget
        is spent."""
        for now in self.running.values():
            if now.waiting and not self.hopeless:
                return self._give(now)
        while self.missing and not self.hopeless:
            proposal = self.search.ask_again() if self.is_over() else self.search.ask()
            if proposal is None:
                return None
            self.missing -= 1
            trial, point = proposal
            number = self.search.ledger.number(trial.number)
            results = self._kept(trial)
            try:
                jobs = [self.make(number, point, part) for part in range(self.n_parts) if part not in results]
            except PflOpsError as error:  # a point that no experiment can have
                self.search.end(trial, {}, Failure(in_a_line(error)))
                continue
            now = self.running[number] = _Running(trial, point, deque(jobs), results=results)
            for result in results.values():
                if result.error:
                    self._fail(now, Failure(f"{result.part} {result.error}", diverged=True))
            if now.waiting:
                return self._give(now)
            self._end_of_parts(number)
        return None

    def _kept(self, trial: Trial) -> dict[int, PartResult]:
        """The results of the parts that had ended when the trial was cut short."""
        if self.combination is None:
            return {}
        index = {part: i for i, part in enumerate(self.combination.parts)}
        results = map(PartResult.from_dict, trial.user_attrs.get(PARTS, ()))
        return {index[result.part]: result for result in results}

    def _give(self, now: _Running) -> Job:
        job = now.waiting.popleft()
        now.given[job.number % self.n_parts] = {}
        return job

    def take(self, event: JobEvent) -> None:
        """Note what happened to a trial's job."""
        number, part = divmod(event.job.number, self.n_parts)
        now = self.running[number]
        match event.kind:
            case "started":
                first = not now.begun
                now.begun.setdefault(part, time.monotonic())
                if part not in now.runs:
                    now.runs[part] = self.open_run(number, now.point, part)
                if self.combination is None or first:
                    self._tell("start", number)
            case "rounds":
                now.runs[part].log(event.records)
                if FAILURE not in event.report:
                    self._report(number, part, event.report)
            case "ended" if self.combination is None:
                self._end(number, event)
            case "ended":
                self._end_part(number, part, event)

    def _report(self, number: int, part: int, report: Mapping[str, Any]) -> None:
        now = self.running[number]
        if self.combination is not None:
            now.given[part] = report
            so_far = [*now.results.values(), *(self._result(now, p, last) for p, last in now.given.items())]
            self.search.spend(now.trial, spent_so_far(so_far))
            rounds = sum(result.rounds for result in so_far)
            self._tell("report", number, {**report, ROUND: rounds}, rounds=self.n_parts * self.search.rounds)
            return
        if not report["done"]:  # the last report is told with the end
            self.search.report(now.trial, report)
        self._tell("report", number, report)

    def close(self) -> None:
        """Let go of the runs that are still open: their trials were cut short, and will be continued."""
        for now in self.running.values():
            for run in now.runs.values():
                run.finish("KILLED", patience=0)
        self.running.clear()

    def _end(self, number: int, event: JobEvent) -> None:
        now = self.running[number]
        self.search.end(now.trial, event.report, event.failure)
        if event.failure and event.failure.hopeless:
            self.hopeless = ObjectiveMissing(event.failure.line)
        frozen = self.search.ledger.study.get_trials(deepcopy=False)[now.trial.number]
        error, state = str(frozen.user_attrs.get("error", "")), state_of(frozen)
        run = now.runs.get(0) or self.open_run(number, now.point, 0)  # else its process died before it began
        _finish(run, state, error, event.account)
        if state in ("pruned", "diverged") and self.on_pruned is not None:
            self.on_pruned(now.point)
        point = self.running.pop(number).point
        self._tell("end", number, event.report, point, state=state, error=error)

    # -- trials of several parts --------------------------------------------------------------------------------------

    def _end_part(self, number: int, part: int, event: JobEvent) -> None:
        now = self.running[number]
        failure = event.failure or self._problem(event.report)
        run = now.runs.pop(part, None) or self.open_run(number, now.point, part)
        now.given.pop(part)
        result = self._result(now, part, event.report, failure)
        now.results[part] = result
        if failure is None or failure.diverged:  # one that failed otherwise is run again if the trial is cut short
            self.search.keep_parts(now.trial, [r.as_dict() for r in now.results.values() if r.error or r.values])
        state = "complete" if failure is None else "diverged" if failure.diverged else "failed"
        _finish(run, state, failure.line if failure else "", event.account)
        if failure:
            if failure.hopeless:
                self.hopeless = ObjectiveMissing(failure.line)
            assert self.combination is not None
            self._fail(now, failure_of(self.combination.parts[part], failure))
        if not now.waiting and not now.given:
            self._end_of_parts(number)

    def _end_of_parts(self, number: int) -> None:
        """End a trial of which all parts have ended that were begun."""
        assert self.combination is not None
        now = self.running[number]
        results = [now.results[part] for part in sorted(now.results)]
        if now.failure:
            report = {ROUND: min(result.rounds for result in results), **spent_so_far(results)}
        else:
            report = self.combination.report(results)
        self.search.end(now.trial, report, now.failure)
        frozen = self.search.ledger.study.get_trials(deepcopy=False)[now.trial.number]
        error, state = str(frozen.user_attrs.get("error", "")), state_of(frozen)
        if state == "diverged" and self.on_pruned is not None:
            self.on_pruned(now.point)
        point = self.running.pop(number).point
        self._tell("end", number, {} if now.failure else report, point, state=state, error=error)

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
        seconds = time.monotonic() - now.begun.get(part, time.monotonic())
        error = failure.line if failure and failure.diverged else ""
        metrics = () if failure else self.combination.metrics
        return PartResult.of(self.combination.parts[part], report, metrics, seconds, error)

    def _tell(
        self, kind: Any, number: int, report: Mapping[str, Any] | None = None, point: Point | None = None,
        rounds: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        if self.on_event is None:
            return
        report, ledger = report or {}, self.search.ledger
        keys = [key for metric in self.search.objective.metrics for key in (metric, *summands(metric))]
        with ledger.reading_once():
            event = Event(
                kind,
                ledger.name,
                self.wanted,
                done=ledger.done(),
                running=sum(bool(now.begun) for now in self.running.values()),
                trial=number,
                round=int(report.get("round", 0)),
                rounds=rounds or self.search.rounds,
                values={key: float(report[key]) for key in keys if key in report and FAILURE not in report},
                params=self.running[number].point if point is None else point,
                best=self.search.best(),
                **more,
            )
        self.on_event(event)


def _finish(run: TrialRun, state: str, error: str, account: str) -> None:
    """Close the tracked run of a trial, or of a part of one, that has ended."""
    run.tags({STATE: state} | ({"pfl_ops.error": error} if error else {}))
    if account:
        run.text(account, "error.txt")
    run.finish("FAILED" if error else "FINISHED", patience=0)
