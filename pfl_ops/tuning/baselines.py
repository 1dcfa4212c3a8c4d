"""FedAvg in every environment of a study, on validation data: the scale of the scores there.

It is run once for each environment and seed of a trial, before the first trial. Its mean over these seeds is the scale
of the environment, for trials and for the runs with new seeds alike: it says how hard the environment is, so that all
environments count alike.
"""

import math
from collections import deque
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import SAMPLES
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.environments import baseline_metric
from pfl_ops.tuning.parts import TrialPart
from pfl_ops.tuning.tracked_job import TrackedJob
from pfl_ops.units import with_unit

if TYPE_CHECKING:
    from pfl_ops.tuning.session import Session


class Baselines:
    """A source of the runs of FedAvg that a study lacks; it is over at once if the study has no environments.

    Args:
        session: the study's. share, execution: of each job.
    """

    def __init__(self, session: "Session", share: ResourceShare, execution: Execution) -> None:
        self.session, self.share, self.execution = session, share, execution
        combination = session.settings.combination
        self.parts = combination.parts if combination and session.settings.environments else ()
        known = {(record["environment"], record["seed"]) for record in session.study_storage.baselines()}
        self._waiting = deque(i for i, part in enumerate(self.parts) if (part.environment, part.seed) not in known)
        self._running: dict[int, TrackedJob] = {}
        self._error: Exception | None = None

    @property
    def over(self) -> bool:
        """True once all have ended with a value."""
        return not (self._waiting or self._running or self._error)

    def next(self) -> Job | None:
        """The next run; None: none, as long as none of those that run has ended."""
        try:
            return None if self._error or not self._waiting else self._start(self._waiting.popleft())
        except Exception as error:  # Ray, which asks for jobs, would wrap it
            self._error = error
            return None

    def _start(self, i: int) -> Job:
        run = self.session.children.baseline(self.parts[i])
        job = run.job(i, self.execution, self.share)
        self._running[i] = TrackedJob(run.open)
        return job

    def take(self, event: JobEvent) -> None:
        """Note what happened to a run's job."""
        now, part = self._running[event.job.number], self.parts[event.job.number]
        if event.kind == "ended":
            self._end(event, now, part)
            return
        now.take(event)
        if event.kind == "started":
            self.session.tell("baseline", text=f"{part} starts")

    def close(self) -> None:
        """Let go of the runs that are still open: they were cut short, and will be continued."""
        for now in self._running.values():
            now.cut_short()
        self._running.clear()

    def check(self) -> None:
        """Raise what went wrong.

        Raises:
            PflOpsError: a run has no value by which a score can be divided.
        """
        if self._error:
            raise self._error

    def _end(self, event: JobEvent, now: TrackedJob, part: TrialPart) -> None:
        session, last = self.session, now.last.metrics if now.last else {}
        metrics = session.settings.objective.metrics
        values = {metric: float(last.get(baseline_metric(metric), math.nan)) for metric in metrics}
        wrong = event.failure.line if event.failure else _problem(values)
        if wrong:
            again = event.failure is not None and not event.failure.diverged
            todo = "run it again with --resume" if again else "leave this environment out, or choose another --metric"
            error = f"FedAvg in {part}: {wrong}, so that scores there can't be divided by its score; {todo}"
            self._error = self._error or PflOpsError(error)
        else:
            session.study_storage.keep_baseline(
                environment=part.environment,
                seed=part.seed,
                values=values,
                samples=int(event.report.get(SAMPLES, 0)),
                seconds=now.seconds,
            )
        now.end(wrong, event.account)
        del self._running[event.job.number]
        session.tell("baseline", text=f"{part}: {wrong or with_unit(metrics[0], values[metrics[0]])}")


def scales_of(session: "Session") -> dict[str, dict[str, float]]:
    """Return FedAvg's recorded scores: environment -> metric of the study -> mean over seeds."""
    by_environment: dict[str, list[dict[str, Any]]] = {}
    for record in session.study_storage.baselines():
        by_environment.setdefault(record["environment"], []).append(record["values"])
    metrics = session.settings.objective.metrics
    return {
        name: {metric: fmean(values[metric] for values in some) for metric in metrics}
        for name, some in by_environment.items()
    }


def _problem(values: dict[str, float]) -> str:
    """The first value that nothing can be divided by; "": there is none."""
    for metric, value in values.items():
        if not (math.isfinite(value) and value > 0):
            return f"{baseline_metric(metric)} is {value:g}"
    return ""
