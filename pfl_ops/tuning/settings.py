"""What defines a study: recorded with it, and compared when it is resumed."""

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pfl_ops import metrics, spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, echo
from pfl_ops.spaces import Space
from pfl_ops.tuning.budget import MOST_TRIALS, budget_text, check_budget
from pfl_ops.tuning.objective import Objective, objective
from pfl_ops.tuning.parts import Combination, TrialPart

Scheduler: TypeAlias = Literal["asha", "none"]

TRIALS = 12
CONFIRM, CONFIRM_TOP = 5, 3  # new seeds at most, configurations
MOST_CONFIRMED = 1000  # seeds, or configurations
SEED_OFFSET = 1000  # of the new seeds of a confirmation, from the experiment's; those of trials and tests are below
COMMON = "pfl_ops.common"  # tag


@dataclass(frozen=True)
class Settings:
    """A study.

    Attributes:
        experiment: as trials run it, but for their points.
        space: what is varied. objective: what is optimised.
        scheduler: "asha" stops bad trials early. trials: how many are wanted, in all.
        common: the part of the space that the methods of a comparison share; None: it shares none.
        confirm: most new seeds with which the best configurations are run again before the choice; 0: none.
        confirm_top: number of these configurations.
        hours: of the search, wall time over all calls. samples: gradient samples of all trials. None: no limit.
        terminate: trials in a row without a better value that end the search; 0: no such limit.
        seeds_per_trial: runs of a trial, with the seeds seed, seed + 1, ..., of which its value is the mean.
    """

    experiment: Experiment
    space: Space
    objective: Objective
    scheduler: Scheduler = "asha"
    trials: int = TRIALS
    common: Space | None = None
    confirm: int = CONFIRM
    confirm_top: int = CONFIRM_TOP
    hours: float | None = None
    samples: int | None = None
    terminate: int = 0
    seeds_per_trial: int = 1

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        space: Space | str | Path | None = None,
        trials: int | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        scheduler: str | None = None,
        hold: Collection[str] = (),
        common: Space | None = None,
        confirm: int | None = None,
        confirm_top: int | None = None,
        hours: float | None = None,
        samples: float | None = None,
        terminate: int | None = None,
        seeds_per_trial: int | None = None,
    ) -> "Settings":
        """Checked settings; every mistake that can be seen before the first trial is an error here."""
        check_seeds(seeds_per_trial)
        seeds = seeds_per_trial or 1
        if trials is not None and trials < 1:
            raise PflOpsError(f"trials must be >= 1, got {trials}")
        if scheduler not in (None, "asha", "none"):
            raise PflOpsError(f"scheduler must be asha or none, got '{echo(scheduler)}'")
        fixed: dict[str, Any] = {"evaluation.split": "validation", "evaluation.stages": "all", "repetitions": 1}
        if experiment.data.pooled and experiment.partition.seed is None:
            fixed["partition.seed"] = experiment.seed  # else a trial would see what the finals are tested on
        base = experiment.override(fixed)
        goal = objective(base, metric or metrics.key("validation", experiment.algorithm.own_stage, "acc"), mode)
        if scheduler == "asha" and not goal.single:
            raise PflOpsError(
                "asha stops trials by one metric; several run to the end: --scheduler none, or leave it out"
            )
        if scheduler == "asha" and seeds > 1:
            raise PflOpsError(
                f"asha compares trials while they run, and a trial of {seeds} seeds has a value only when all have "
                "ended: --scheduler none, or leave it out"
            )
        varied = space if isinstance(space, Space) else spaces.read(space, experiment.algorithm.name)
        by_steps = {"training.local_epochs"} if base.training.local_steps is not None else set()
        varied = spaces.hold(varied, {*hold, *by_steps}, base)
        spaces.check(varied, base)
        choice: Scheduler = "none" if scheduler == "none" or not goal.single or seeds > 1 else "asha"
        shared = spaces.hold(common, {*hold, *by_steps}, base) if common else None
        limit = trials or (MOST_TRIALS if hours or samples else TRIALS)
        made = cls(base, varied, goal, choice, limit, shared, CONFIRM if goal.single else 0, seeds_per_trial=seeds)
        return made.confirming(confirm, confirm_top).within(hours, samples, terminate)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Settings":
        """As `as_dict` recorded them; a plug-in that they name must be loaded."""
        return cls(
            Experiment.model_validate(record["experiment"]),
            spaces.from_dict(record["space"], record["space_source"]),
            Objective(tuple(record["metrics"]), tuple(record["modes"])),
            record["scheduler"],
            record["trials"],
            spaces.from_dict(common, spaces.COMMON) if (common := record.get("common")) else None,
            record.get("confirm", 0),  # a study of an earlier version made its choice without
            record.get("confirm_top", CONFIRM_TOP),
            record.get("hours"),
            record.get("samples"),
            record.get("terminate", 0),
            record.get("seeds_per_trial", 1),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the study's own record and for a YAML artifact."""
        return {
            "experiment": self.experiment.resolved,
            "space": self.space.as_yaml(),
            "space_source": self.space.source,
            "metrics": list(self.objective.metrics),
            "modes": list(self.objective.modes),
            "scheduler": self.scheduler,
            "trials": self.trials,
            "common": self.common.as_yaml() if self.common else None,
            "confirm": self.confirm,
            "confirm_top": self.confirm_top,
            "hours": self.hours,
            "samples": self.samples,
            "terminate": self.terminate,
            **({"seeds_per_trial": self.seeds_per_trial} if self.seeds_per_trial > 1 else {}),
        }

    @property
    def combination(self) -> Combination | None:
        """The parts of every trial, and the rule that makes its value of theirs; None: a trial is one run."""
        if self.seeds_per_trial == 1:
            return None
        parts = tuple(TrialPart(self.experiment.seed + i) for i in range(self.seeds_per_trial))
        return Combination(parts, self.objective.metrics)

    @property
    def n_parts(self) -> int:
        """Runs of a trial."""
        return self.seeds_per_trial

    @property
    def full_every(self) -> int:
        """Rounds between evaluations of every view: what ASHA's rungs are multiples of."""
        return math.lcm(self.experiment.evaluation.every, self.experiment.evaluation.global_every)

    @property
    def restrictions(self) -> dict[str, str]:
        """Values and ranges of the method in place of common ranges, {path: value or range}."""
        return spaces.restrictions(spaces.Method(self.experiment, self.space), self.common) if self.common else {}

    @property
    def tags(self) -> dict[str, str]:
        """By which comparisons know runs that were chosen from one common space under one budget."""
        if self.common is None:
            return {}
        seeds = f", {self.seeds_per_trial} seeds a trial" if self.seeds_per_trial > 1 else ""
        seeds += f", {self.confirm} new seeds of {self.confirm_top}" if self.confirm else ""
        return {COMMON: f"{self.common.digest[:12]}, {budget_text(self)}{seeds}: {' '.join(self.common.keys)}"}

    def wanting(self, trials: int) -> "Settings":
        """The same study with another number of trials."""
        return replace(self, trials=trials)

    def confirming(self, confirm: int | None, top: int | None) -> "Settings":
        """The same study with other numbers of seeds and of configurations to confirm; None: as they are.

        Raises:
            PflOpsError: they can't be, or there are several objectives.
        """
        check_confirmation(confirm, top)
        if confirm and not self.objective.single:
            raise PflOpsError("a choice by several objectives is not confirmed: --confirm 0, or leave it out")
        return replace(
            self,
            confirm=self.confirm if confirm is None else confirm,
            confirm_top=self.confirm_top if top is None else top,
        )

    def as_recorded(self, record: Mapping[str, Any]) -> "Settings":
        """The same study with the budgets of a record but that of trials."""
        return replace(
            self, hours=record.get("hours"), samples=record.get("samples"), terminate=record.get("terminate", 0)
        )

    def within(self, hours: float | None, samples: float | None, terminate: int | None = None) -> "Settings":
        """The same study with other budgets; None: as they are.

        Raises:
            PflOpsError: they can't be, or there are several objectives, which have no best value.
        """
        check_budget(hours, samples, terminate)
        if terminate and not self.objective.single:
            raise PflOpsError("a search by several objectives has no best value: leave out --terminate")
        return replace(
            self,
            hours=self.hours if hours is None else float(hours),
            samples=self.samples if samples is None else int(samples),
            terminate=self.terminate if terminate is None else terminate,
        )

    def digest(self, data_dir: str | None) -> str:
        """SHA-256 of all that may not change between a study's beginning and its resumption; trials may."""
        parts = [self.experiment.digest(data_dir), self.space.digest, self.objective.metrics, self.objective.modes]
        more = [{"seeds_per_trial": self.seeds_per_trial}] if self.seeds_per_trial > 1 else []
        return hashlib.sha256(json.dumps([*parts, self.scheduler, *more]).encode()).hexdigest()

    def difference(self, other: "Settings") -> str:
        """The first thing in which two studies differ, for a message; "": none that shows."""
        mine, theirs = self.experiment.flat, other.experiment.flat
        for path in [*theirs, *mine]:
            if mine.get(path) != theirs.get(path):
                return f"{path}={mine.get(path)}, not {theirs.get(path)}"
        if self.space.digest != other.space.digest:
            return f"another search space ({self.space.source})"
        if self.objective != other.objective:
            return f"metric {', '.join(self.objective.metrics)} ({', '.join(self.objective.modes)})"
        if self.seeds_per_trial != other.seeds_per_trial:
            return f"--seeds-per-trial {self.seeds_per_trial}, not {other.seeds_per_trial}"
        return f"scheduler {self.scheduler}" if self.scheduler != other.scheduler else ""


def check_confirmation(confirm: int | None, top: int | None) -> None:
    """Refuse numbers of seeds and configurations that can't be.

    Raises:
        PflOpsError: one is out of its range.
    """
    for name, value, least in (("--confirm", confirm, 0), ("--confirm-top", top, 2)):
        if value is not None and not least <= value <= MOST_CONFIRMED:
            raise PflOpsError(f"{name} must be in [{least}, {MOST_CONFIRMED:,}], got {value}")


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
