"""FedAvg in every environment of a study, on validation data: the scale of the scores there.

It is run once for each environment and seed of a trial, before the first trial. Its mean over these seeds is the scale
of the environment, for trials and for the runs with new seeds alike: it says how hard the environment is, so that all
environments count alike.
"""

import math
from collections import deque
from statistics import fmean
from typing import TYPE_CHECKING

from pfl_ops.errors import PflOpsError, by_key
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.report import SAMPLES
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.session.tracked_job import RunningPart, TrackedJobs
from pfl_ops.tuning.studies.environments import baseline_metric

if TYPE_CHECKING:
    from pfl_ops.tuning.session.session import Session


class Baselines(TrackedJobs):
    """A source of the runs of FedAvg that a study lacks; it is over at once if the study has no environments."""

    kind = "baseline"

    def __init__(self, session: "Session", share: ResourceShare, execution: Execution) -> None:
        super().__init__(session, share, execution)
        combination = session.settings.combination
        self.parts = combination.parts if combination and session.settings.environments else ()
        known = {(record["environment"], record["seed"]) for record in session.study_storage.baselines()}
        self._waiting = deque(i for i, part in enumerate(self.parts) if (part.environment, part.seed) not in known)

    @property
    def over(self) -> bool:
        """True once all have ended with a value."""
        return not (self._waiting or self.running or self._error)

    def _next(self) -> Job | None:
        if not self._waiting:
            return None
        i = self._waiting.popleft()
        return self._begin(i, self.session.children.baseline(self.parts[i]), self.parts[i])

    def _record(self, event: JobEvent, now: RunningPart) -> tuple[str, float]:
        session, part, last = self.session, now.part, now.job.last.metrics if now.job.last else {}
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
                seconds=now.job.seconds,
            )
        return wrong, values[metrics[0]]


def scales_of(session: "Session") -> dict[str, dict[str, float]]:
    """Return FedAvg's recorded scores: environment -> metric of the study -> mean over seeds."""
    by_environment = by_key((one["environment"], one["values"]) for one in session.study_storage.baselines())
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
