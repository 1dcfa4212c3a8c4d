"""Parts of a trial: runs of one configuration, of whose scores the trial's value is made.

A trial of a plain study is one run and has no parts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from pfl_ops.errors import PflOpsError, by_key, count
from pfl_ops.jobs.report import ERRORS, LOSSES, ROUND, SAMPLES, SENT_BYTES, Failure
from pfl_ops.metric_keys import summands
from pfl_ops.section import SEED_OFFSET
from pfl_ops.statistics import mean_std
from pfl_ops.tuning.studies.environments import Aggregate
from pfl_ops.tuning.studies.objective import Mode

STDS = "stds"  # key of a combined report: {metric: sample standard deviation over seeds}
SCORES = "scores"  # likewise: {metric: {environment: mean over seeds}}


@dataclass(frozen=True)
class TrialPart:
    """One run of a trial.

    Attributes:
        seed: of the run. environment: its name; "": the study's experiment.
    """

    seed: int
    environment: str = ""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "TrialPart":
        """Return the part of a recorded run; one of an earlier version names no environment."""
        return cls(record["seed"], record.get("environment", ""))

    def __str__(self) -> str:
        return f"{self.environment}, seed {self.seed}" if self.environment else f"seed {self.seed}"


@dataclass(frozen=True)
class PartResult:
    """A part that has ended, with a value or because its training diverged.

    Attributes:
        part: the run.
        values: tracked key -> value after the last round, of the objective and its summands.
        errors: tracked key -> standard error of the evaluation, of the values that were scored on a sample.
        losses: training loss of the first and of the last round.
        rounds: that were finished. samples: gradient samples. sent_bytes: up and down. seconds: wall time.
        groups: group of clients -> mean score, see `paired.by_group`; {}: not recorded.
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
    groups: Mapping[str, float] = field(default_factory=dict)

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
    """The rule that makes a trial's value of its parts: the mean over seeds, and over environments, or the worst one's.

    With environments each score is divided by FedAvg's in the same environment. The worst environment is that with the
    worst mean over seeds.

    Attributes:
        parts: of every trial, in the order in which they start. metrics: tracked keys. names: of the trial's values.
        modes: "max" or "min" for each. aggregate: over environments.
        scales: environment -> metric -> FedAvg's score there; {}: scores are taken as they are.
    """

    parts: tuple[TrialPart, ...]
    metrics: tuple[str, ...]
    names: tuple[str, ...]
    modes: tuple[Mode, ...]
    aggregate: Aggregate = "mean"
    scales: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def environments(self) -> tuple[str, ...]:
        """Names of the environments; ("",): there is one, the study's experiment."""
        return tuple(dict.fromkeys(part.environment for part in self.parts))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of a trial."""
        return tuple(dict.fromkeys(part.seed for part in self.parts))

    def __str__(self) -> str:
        n = len(self.seeds)
        over_seeds = f"the mean over {count(n, 'seed')}"
        if self.environments == ("",):
            return over_seeds
        k = len(self.environments)
        over = f"over {count(k, 'environment')} ({', '.join(self.environments)})"
        value = f"the mean {over}" if self.aggregate == "mean" else f"the worst score {over}"
        return f"{value}{f' of {over_seeds}' if n > 1 else ''}, each score divided by FedAvg's there"

    def report(self, results: Sequence[PartResult]) -> dict[str, Any]:
        """Return one report for the whole trial, with the keys of a run's report, `STDS` and `SCORES`.

        Args:
            results: of all parts, or of those with one seed.
        """
        found: dict[str, Any] = {}
        stds: dict[str, float] = {}
        errors: dict[str, float] = {}
        scores: dict[str, dict[str, float]] = {}
        for metric, name, mode in zip(self.metrics, self.names, self.modes, strict=True):
            with_value = [result for result in results if metric in result.values]
            found[name], std, error, scores[name] = self._combined(with_value, metric, mode)
            stds |= {} if std is None else {name: std}
            errors |= {} if error is None else {name: error}
            for key in summands(name):
                if all(key in result.values for result in results):
                    found[key] = fmean(result.values[key] for result in results)
        return {
            **spent_so_far(results),
            **found,
            ROUND: min(result.rounds for result in results),
            LOSSES: max((result.losses for result in results), key=_remaining),
            STDS: stds,
            ERRORS: errors,
            SCORES: {} if self.environments == ("",) else scores,
        }

    def _combined(
        self, results: Sequence[PartResult], metric: str, mode: Mode
    ) -> tuple[float, float | None, float | None, dict[str, float]]:
        """Value, its deviation over seeds, the standard error of the evaluation, and {environment: score}."""
        by_seed = sorted(results, key=lambda result: result.part.seed)
        by_environment = by_key((result.part.environment, result) for result in by_seed)
        scales = {name: self.scales[name][metric] if self.scales else 1.0 for name in by_environment}
        scores = {name: [one.values[metric] / scales[name] for one in some] for name, some in by_environment.items()}
        means = {name: fmean(some) for name, some in scores.items()}
        counted = list(means)
        if self.aggregate == "worst":
            counted = [(min if mode == "max" else max)(means, key=lambda name: means[name])]
        over_seeds = [fmean(some) for some in zip(*(scores[name] for name in counted), strict=True)]
        parts = [(one, scales[name]) for name in counted for one in by_environment[name]]
        known = [one.errors[metric] / scale for one, scale in parts if metric in one.errors]
        error = math.hypot(*known) / len(parts) if known else None
        return fmean(means[name] for name in counted), mean_std(over_seeds)[1], error, means


def check_seeds(seeds_per_trial: int | None) -> None:
    """Refuse numbers of seeds that can't be.

    Raises:
        PflOpsError: fewer than one, or so many that a trial would have a seed of the confirmation.
    """
    if seeds_per_trial is not None and not 1 <= seeds_per_trial <= SEED_OFFSET:
        raise PflOpsError(
            f"--seeds-per-trial must be in [1, {SEED_OFFSET:,}], got {seeds_per_trial}: the confirmation has the seeds "
            f"from seed + {SEED_OFFSET} on"
        )


def check_same_seeds(seeds_per_trial: int | None, name: str, recorded: int) -> None:
    """Refuse another number of seeds than a study was begun with; None: as it was begun.

    Raises:
        PflOpsError: it differs.
    """
    if seeds_per_trial not in (None, recorded):
        raise PflOpsError(
            f"'{name}' was begun with --seeds-per-trial {recorded}, not {seeds_per_trial}: leave it out, or choose "
            "another --name"
        )


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
