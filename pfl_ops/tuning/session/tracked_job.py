"""Jobs of a study and their runs in MLflow."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfl_ops import tag_names
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import FAILURE
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.studies.parts import TrialPart
from pfl_ops.units import with_unit

if TYPE_CHECKING:
    from pfl_ops.tracking import Run
    from pfl_ops.tuning.session.children import ChildRun
    from pfl_ops.tuning.session.session import Session


class TrackedJob:
    """A job between its making and its end; its run is opened when the job starts.

    Args:
        open_run: opens the run; one that a killed driver began is found again.
    Attributes:
        begun: True once it has started. last: latest round's record. report: latest report that tells no failure.
    """

    def __init__(self, open_run: "Callable[[], Run]") -> None:
        self._open_run = open_run
        self._run: Run | None = None
        self._start = time.monotonic()
        self._start_ms = 0  # on the clock of records
        self._before: dict[int, float] = {}  # round -> seconds, of rounds that were computed before the start
        self.begun = False
        self.last: Record | None = None
        self.report: Mapping[str, Any] = {}

    @property
    def seconds(self) -> float:
        """Time since it started, or was made, and of the rounds before a kill that it goes on from."""
        return time.monotonic() - self._start + self.seconds_before

    @property
    def seconds_before(self) -> float:
        """Time of the rounds that were computed before it started."""
        return sum(self._before.values())

    def take(self, event: JobEvent) -> None:
        """Note that it started, once more after its process died, or finished rounds."""
        run = self._opened()
        if event.kind == "started":
            if not self.begun:
                self._start, self._start_ms = time.monotonic(), time.time_ns() // 1_000_000
            self.begun = True
        else:
            run.log(event.records)
            self._before |= {
                record.round: sum(record.metrics.get(f"cost/{what}_seconds", 0.0) for what in ("train", "eval"))
                for record in event.records
                if record.time < self._start_ms
            }
            self.last = event.records[-1] if event.records else self.last
            self.report = self.report if FAILURE in event.report else event.report

    def end(self, error: str, account: str, tags: Mapping[str, object] | None = None) -> None:
        """Close its run: as failed if there is an error.

        Args:
            account: what is known of the error, at length. tags: further ones.
        """
        run = self._opened()  # a process that died before it began has opened none
        if found := {**(tags or {}), **({tag_names.ERROR: error} if error else {})}:
            run.tags(found)
        if account:
            run.text(account, "error.txt")
        run.finish("FAILED" if error else "FINISHED", patience=0)
        self._run = None

    def cut_short(self) -> None:
        """Let go of its run if it is open: the job will be continued."""
        if self._run is not None:
            self._run.finish("KILLED", patience=0)

    def _opened(self) -> "Run":
        self._run = self._run or self._open_run()
        return self._run


@dataclass
class RunningPart:
    """A run between its job's making and its end.

    Attributes:
        part: seed and environment. job: the job. trial: number of the trial whose configuration it has; None: of none.
    """

    part: TrialPart
    job: TrackedJob
    trial: int | None = None


class TrackedJobs:
    """A source of the jobs of a study that are no trials and no tests, each tracked below the study's run.

    Args:
        session: the study's. share, execution: of each job.
    Attributes:
        kind: of its events. running: number of a job -> its run.
    """

    kind: str

    def __init__(self, session: "Session", share: ResourceShare | None, execution: Execution) -> None:
        self.session, self.share, self.execution = session, share, execution
        self.running: dict[int, RunningPart] = {}
        self._error: Exception | None = None

    def next(self) -> Job | None:
        """The next run; None: none, as long as none of those that run has ended."""
        try:
            return None if self._error else self._next()
        except Exception as error:  # Ray, which asks for jobs, would wrap it
            self._error = error
            return None

    def _next(self) -> Job | None:
        """Begin the next run; None: as in `next`."""
        raise NotImplementedError

    def _begin(self, number: int, run: "ChildRun", part: TrialPart, trial: int | None = None) -> Job:
        assert self.share is not None
        job = run.job(number, self.execution, self.share)
        self.running[number] = RunningPart(part, TrackedJob(run.open), trial)
        return job

    def take(self, event: JobEvent) -> None:
        """Note what happened to a run's job."""
        now = self.running[event.job.number]
        if event.kind == "ended":
            wrong, value = self._record(event, now)
            now.job.end(wrong, event.account)
            del self.running[event.job.number]
            told = wrong or with_unit(self.session.settings.objective.metrics[0], value)
            self.session.tell(self.kind, now.trial, f"{now.part}: {told}")
            return
        now.job.take(event)
        if event.kind == "started":
            self.session.tell(self.kind, now.trial, f"{now.part} starts")

    def _record(self, event: JobEvent, now: RunningPart) -> tuple[str, float]:
        """Record a run that has ended; return why it has no value ("": it has one), and its value."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the runs that are still open: they were cut short, and will be continued."""
        for now in self.running.values():
            now.job.cut_short()
        self.running.clear()

    def check(self) -> None:
        """Raise what went wrong.

        Raises:
            PflOpsError: a run has no result.
        """
        if self._error:
            raise self._error
