"""Parts of a trial: runs of one configuration, of whose scores the trial's value is made.

A trial of a plain study is one run and has no parts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from pfl_ops.jobs.report import ERRORS, LOSSES, ROUND, SAMPLES, SENT_BYTES, Failure
from pfl_ops.metrics import summands
from pfl_ops.statistics import mean_std

STDS = "stds"  # key of a combined report: {metric: sample standard deviation over seeds}


@dataclass(frozen=True)
class TrialPart:
    """One run of a trial.

    Attributes:
        seed: of the run.
    """

    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed}"


@dataclass(frozen=True)
class PartResult:
    """A part that has ended, with a value or because its training diverged.

    Attributes:
        part: the run.
        values: tracked key -> value after the last round, of the objective and its summands.
        errors: tracked key -> standard error of the evaluation, of the values that were scored on a sample.
        losses: training loss of the first and of the last round.
        rounds: that were finished. samples: gradient samples. sent_bytes: up and down. seconds: wall time.
        error: how it diverged; "": it has a value.
    """

    part: TrialPart
    values: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    rounds: int = 0
    samples: int = 0
    sent_bytes: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @classmethod
    def of(
        cls, part: TrialPart, report: Mapping[str, Any], metrics: Sequence[str], seconds: float, error: str
    ) -> "PartResult":
        """The result of a run whose last report this is."""
        keys = [key for metric in metrics for key in (metric, *summands(metric)) if key in report]
        return cls(
            part,
            {} if error else {key: float(report[key]) for key in keys},
            {} if error else {key: float(value) for key, value in report.get(ERRORS, {}).items()},
            tuple(map(float, report.get(LOSSES, ()))),
            int(report.get(ROUND, 0)),
            int(report.get(SAMPLES, 0)),
            float(report.get(SENT_BYTES, 0.0)),
            seconds,
            error,
        )

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "PartResult":
        """As `as_dict` recorded it."""
        return cls(**{**record, "part": TrialPart(**record["part"]), "losses": tuple(record["losses"])})

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the study storage."""
        return asdict(self)


@dataclass(frozen=True)
class Combination:
    """The rule that makes a trial's value of its parts: the mean over seeds.

    Attributes:
        parts: of every trial, in the order in which they start. metrics: tracked keys.
    """

    parts: tuple[TrialPart, ...]
    metrics: tuple[str, ...]

    def __str__(self) -> str:
        return f"the mean over {len(self.parts)} seeds"

    def report(self, results: Sequence[PartResult]) -> dict[str, Any]:
        """Return one report for the whole trial, with the keys of a run's report and `STDS`.

        Args:
            results: of all parts.
        """
        found: dict[str, Any] = {}
        for key in dict.fromkeys(key for metric in self.metrics for key in (metric, *summands(metric))):
            if all(key in result.values for result in results):
                found[key] = fmean(result.values[key] for result in results)
        spreads = {metric: mean_std([result.values[metric] for result in results])[1] for metric in self.metrics}
        errors = {
            metric: math.hypot(*(result.errors[metric] for result in results)) / len(results)
            for metric in self.metrics
            if all(metric in result.errors for result in results)
        }
        return {
            **spent_so_far(results),
            **found,
            ROUND: min(result.rounds for result in results),
            LOSSES: max((result.losses for result in results), key=_remaining),
            STDS: {metric: spread for metric, spread in spreads.items() if spread is not None},
            ERRORS: errors,
        }


def spent_so_far(results: Sequence[PartResult]) -> dict[str, Any]:
    """Return the cost of parts together, with the keys of a report.

    >>> one = PartResult(TrialPart(0), samples=10, sent_bytes=3.0)
    >>> spent_so_far([one, one])
    {'samples': 20, 'sent_bytes': 6.0}
    """
    return {
        SAMPLES: sum(result.samples for result in results),
        SENT_BYTES: sum(result.sent_bytes for result in results),
    }


def failure_of(part: TrialPart, failure: Failure) -> Failure:
    """Return a part's failure as that of its trial.

    >>> failure_of(TrialPart(1), Failure("diverged at round 4", diverged=True)).line
    'seed 1 diverged at round 4'
    """
    line = failure.line if failure.diverged else f": {failure.line}"
    return Failure(f"{part}{' ' * failure.diverged}{line}", failure.hopeless, failure.diverged, failure.died)


def _remaining(losses: Sequence[float]) -> float:
    """The share of the first round's training loss that the last one has; 0: not known."""
    return losses[-1] / losses[0] if len(losses) > 1 and losses[0] > 0 else 0.0
