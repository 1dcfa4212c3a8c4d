"""A study's trials as jobs: proposed by Optuna, tracked while they run, told to Optuna and to who watches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from optuna.trial import Trial

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import FAILURE, Failure, ObjectiveMissing
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.metrics import summands
from pfl_ops.spaces import Point
from pfl_ops.tuning.events import Event, OnEvent
from pfl_ops.tuning.ledger import state_of
from pfl_ops.tuning.search import Search


class TrialRun(Protocol):
    """A trial's child run: `tracking.Run` is one."""

    def log(self, records: Iterable[Record]) -> None: ...
    def tags(self, tags: Mapping[str, object]) -> None: ...
    def text(self, text: str, name: str) -> None: ...
    def complete(self) -> None: ...
    def finish(self, status: str = "FINISHED", patience: float = 30.0) -> bool: ...


MakeJob: TypeAlias = Callable[[int, Point], Job]
OpenRun: TypeAlias = Callable[[int, Point], TrialRun]
"""(number, point) -> the trial's run; one that a killed driver began is found again."""


@dataclass
class _Running:
    """A trial between its proposal and its end."""

    trial: Trial
    point: Point
    run: TrialRun | None = None


class Trials:
    """The source of a study's trials, and what is done with what happens to them.

    Args:
        search: proposes them. missing: number of trials to run. wanted: trials of the whole study.
        make: a trial's job. open_run: its run.
        on_event: told of everything; may be None.
        on_pruned: called with the point of each trial that was stopped early or diverged; may be None.
        is_over: True once a budget is spent; then only trials that were cut short are still run.
    Attributes:
        hopeless: why no further trial makes sense; None: all is well.
    """

    def __init__(
        self, search: Search, missing: int, wanted: int, make: MakeJob, open_run: OpenRun, on_event: OnEvent | None,
        on_pruned: Callable[[Point], None] | None = None, is_over: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.search, self.missing, self.wanted, self.make, self.open_run = search, missing, wanted, make, open_run
        self.on_event, self.on_pruned, self.is_over = on_event, on_pruned, is_over
        self.running: dict[int, _Running] = {}
        self.hopeless: ObjectiveMissing | None = None

    def next(self) -> Job | None:
        """The next trial; None: all have been given out, or a budget is spent."""
        while self.missing and not self.hopeless:
            proposal = self.search.ask_again() if self.is_over() else self.search.ask()
            if proposal is None:
                return None
            self.missing -= 1
            trial, point = proposal
            number = self.search.ledger.number(trial.number)
            try:
                job = self.make(number, point)
            except PflOpsError as error:  # a point that no experiment can have
                self.search.end(trial, {}, Failure(in_a_line(error)))
                continue
            self.running[number] = _Running(trial, point)
            return job
        return None

    def take(self, event: JobEvent) -> None:
        """Note what happened to a trial's job."""
        number = event.job.number
        now = self.running[number]
        match event.kind:
            case "started":
                now.run = now.run or self.open_run(number, now.point)
                self._tell("start", number)
            case "rounds":
                assert now.run is not None
                now.run.log(event.records)
                if FAILURE not in event.report:
                    if not event.report["done"]:  # the last report is told with the end
                        self.search.report(now.trial, event.report)
                    self._tell("report", number, event.report)
            case "ended":
                self._end(number, event)

    def close(self) -> None:
        """Let go of the runs that are still open: their trials were cut short, and will be continued."""
        for now in self.running.values():
            if now.run is not None:
                now.run.finish("KILLED", patience=0)
        self.running.clear()

    def _end(self, number: int, event: JobEvent) -> None:
        now = self.running[number]
        self.search.end(now.trial, event.report, event.failure)
        if event.failure and event.failure.hopeless:
            self.hopeless = ObjectiveMissing(event.failure.line)
        frozen = self.search.ledger.study.get_trials(deepcopy=False)[now.trial.number]
        error, state = str(frozen.user_attrs.get("error", "")), state_of(frozen)
        run = now.run or self.open_run(number, now.point)  # else its process died before it began
        run.tags({"pfl_ops.trial_state": state} | ({"pfl_ops.error": error} if error else {}))
        if event.account:
            run.text(event.account, "error.txt")
        run.finish("FAILED" if error else "FINISHED", patience=0)
        if state in ("pruned", "diverged") and self.on_pruned is not None:
            self.on_pruned(now.point)
        point = self.running.pop(number).point
        self._tell("end", number, event.report, point, state=state, error=error)

    def _tell(
        self, kind: Any, number: int, report: Mapping[str, Any] | None = None, point: Point | None = None, **more: Any
    ) -> None:
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
                running=sum(now.run is not None for now in self.running.values()),
                trial=number,
                round=int(report.get("round", 0)),
                rounds=self.search.rounds,
                values={key: float(report[key]) for key in keys if key in report and FAILURE not in report},
                params=self.running[number].point if point is None else point,
                best=self.search.best(),
                **more,
            )
        self.on_event(event)
