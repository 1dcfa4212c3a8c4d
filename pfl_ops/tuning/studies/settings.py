"""The definition of a study: recorded with it, and compared when it is resumed."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pfl_ops import metrics, spaces, tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.precedence import excluded
from pfl_ops.errors import PflOpsError, count, echo
from pfl_ops.federation.losses import LOSSES
from pfl_ops.section import SEED_OFFSET
from pfl_ops.spaces import Space
from pfl_ops.tuning.studies.environments import Aggregate, Environment, baseline, check_environments, tuned_and_held_out
from pfl_ops.tuning.studies.limits import MOST_TRIALS, NO_LIMITS, StudyLimits
from pfl_ops.tuning.studies.objective import Objective, objective
from pfl_ops.tuning.studies.paired import check_paired
from pfl_ops.tuning.studies.parts import Combination, TrialPart, check_seeds
from pfl_ops.tuning.studies.scored_clients import ScoredClients

Scheduler: TypeAlias = Literal["asha", "paired", "none"]

TRIALS = 20
RANDOM_START = 8  # trials with a result before the sampler has a model
CONFIRM, CONFIRM_TOP = 3, 2  # new seeds at most, configurations
EARLIER: dict[str, Any] = {
    "confirm": 0,  # the choice was made without
    "confirm_top": CONFIRM_TOP,
    "random_start": 5,
    "finals": 1,
    "hours": None,
    "samples": None,
    "terminate": 0,
}
"""Settings that records of earlier versions may lack, with the values that these versions had."""


@dataclass(frozen=True)
class Settings:
    """A study.

    Attributes:
        experiment: as trials run it, but for their points.
        space: what is varied. objective: what is optimised.
        scheduler: "asha" stops bad trials early, "paired" those of several runs between two of these.
        trials: how many are wanted, in all.
        common: the part of the space that the methods of a comparison share; None: it shares none.
        confirm: most new seeds with which the best configurations are run again before the choice; 0: none.
        confirm_top: number of these configurations.
        hours: of the search, wall time over all calls. samples: gradient samples of all trials. None: no limit.
        terminate: trials in a row without a better value that end the search; 0: no such limit.
        seeds_per_trial: runs of a trial, with the seeds seed, seed + 1, ..., of which its value is the mean.
        environments: in which every trial is run; (): in the experiment itself. held_out: in which the choice alone is
            tested, with FedAvg. aggregate: value over environments.
        random_start: trials with a result, first points among them, before the sampler's model proposes any.
        finals: test runs of the choice, as the last call had them.
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
    environments: tuple[Environment, ...] = ()
    held_out: tuple[Environment, ...] = ()
    aggregate: Aggregate = "mean"
    random_start: int = RANDOM_START
    finals: int = 1

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        space: Space | str | Path | None = None,
        limits: StudyLimits = NO_LIMITS,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        scheduler: str | None = None,
        hold: Collection[str] = (),
        common: Space | None = None,
        seeds_per_trial: int | None = None,
        environments: Sequence[str] = (),
        vary: Mapping[str, Sequence[Any]] | None = None,
        held_out: Sequence[str] = (),
        aggregate: str | None = None,
    ) -> "Settings":
        """Checked settings; every mistake that can be seen before the first trial is an error here."""
        check_seeds(seeds_per_trial)
        check_environments(environments, vary, held_out, aggregate)
        seeds = seeds_per_trial or 1
        if "evaluation.split" in hold:
            raise PflOpsError(
                "evaluation.split is not set by hand here: trials are scored on validation data, tests on test data"
            )
        if scheduler not in (None, "asha", "paired", "none"):
            raise PflOpsError(f"scheduler must be asha, paired or none, got '{echo(scheduler)}'")
        fixed: dict[str, Any] = {"evaluation.split": "validation", "evaluation.stages": "all", "repetitions": 1}
        if experiment.data.pooled and experiment.partition.seed is None:
            fixed["partition.seed"] = experiment.seed  # else a trial would see what the finals are tested on
        base = experiment.override(fixed)
        varied = space if isinstance(space, Space) else spaces.read(space, experiment.algorithm.name)
        if isinstance(space, str | Path):
            base = spaces.in_unit_of(varied, base, hold)
        goal = objective(base, metric or metrics.key("validation", experiment.algorithm.own_stage, "acc"), mode)
        if scheduler in ("asha", "paired") and not goal.single:
            raise PflOpsError(
                f"{scheduler} stops trials by one metric; several run to the end: --scheduler none, or leave it out"
            )
        tuned, apart = tuned_and_held_out(base, environments, vary, held_out, hold)
        several = seeds > 1 or bool(tuned)
        if scheduler == "asha" and several:
            what = f"in {len(tuned)} environments" if tuned else f"of {seeds} seeds"
            raise PflOpsError(
                f"asha compares trials while they run, and a trial {what} has a value only when all of its runs have "
                "ended: --scheduler paired or none, or leave it out"
            )
        if scheduler == "paired":
            check_paired(goal.metrics[0], several, aggregate)
        by_steps = {"training.local_epochs"} if base.training.local_steps is not None else set()
        set_by_environments = {path for one in (*tuned, *apart) for path in one.changes}
        held = {*hold, *excluded(hold), *by_steps}  # a value of an excluded field would clear the one that is held
        varied = spaces.hold(varied, {*held, *set_by_environments}, base)
        spaces.check(varied, base)
        for one in (*tuned, *apart):
            try:
                spaces.check(varied, one.of(base))
            except PflOpsError as error:
                raise PflOpsError(f"environment '{one.name}': {error}") from error
        usual: Scheduler = "asha" if goal.single and not several else "none"
        shared = spaces.hold(common, held, base) if common else None
        made = cls(
            base,
            varied,
            goal,
            cast(Scheduler | None, scheduler) or usual,
            MOST_TRIALS if limits.hours or limits.samples else TRIALS,
            shared,
            CONFIRM if goal.single else 0,
            seeds_per_trial=seeds,
            environments=tuned,
            held_out=apart,
            aggregate="worst" if aggregate == "worst" else "mean",
        )
        made = made.limited(limits)
        made.scored_clients.check(made.search_seeds)
        return made

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Settings":
        """As `as_dict` recorded them; a plug-in that they name must be loaded."""
        return cls(
            Experiment.model_validate(record["experiment"]),
            spaces.from_dict(record["space"], record["space_source"]),
            Objective(tuple(record["metrics"]), tuple(record["modes"])),
            record["scheduler"],
            common=spaces.from_dict(common, spaces.COMMON) if (common := record.get("common")) else None,
            seeds_per_trial=record.get("seeds_per_trial", 1),
            environments=tuple(Environment(**one) for one in record.get("environments", ())),
            held_out=tuple(Environment(**one) for one in record.get("held_out", ())),
            aggregate=record.get("aggregate", "mean"),
        ).as_recorded(record)

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
            **{name: getattr(self, name) for name in EARLIER},
            **self._several,
        }

    @property
    def _several(self) -> dict[str, Any]:
        """The settings of trials of several runs, as plain values; {}: a trial is one run, as in earlier versions."""
        found: dict[str, Any] = {"seeds_per_trial": self.seeds_per_trial} if self.seeds_per_trial > 1 else {}
        if self.environments:
            for key, some in (("environments", self.environments), ("held_out", self.held_out)):
                found[key] = [{"name": one.name, "changes": dict(one.changes)} for one in some]
            found["aggregate"] = self.aggregate
        return found

    @property
    def combination(self) -> Combination | None:
        """The parts of every trial, and the rule that makes its value of theirs; None: a trial is one run."""
        if self.seeds_per_trial == 1 and not self.environments:
            return None
        seeds = [self.experiment.seed + i for i in range(self.seeds_per_trial)]
        names = [one.name for one in self.environments] or [""]
        parts = tuple(TrialPart(seed, name) for seed in seeds for name in names)
        metrics, modes = self.objective.metrics, self.objective.modes
        return Combination(parts, metrics, self.goal.metrics, modes, self.aggregate)

    @property
    def goal(self) -> Objective:
        """The optimised values: the objective, or with environments the values made of the scores in all of them."""
        if not self.environments:
            return self.objective
        names = tuple(f"{metric}/of_fedavg/{self.aggregate}" for metric in self.objective.metrics)
        return Objective(names, self.objective.modes)

    @property
    def at_once(self) -> int:
        """Runs of a trial that may go on at the same time."""
        return 1 if self.scheduler == "paired" else self.n_parts

    @property
    def n_parts(self) -> int:
        """Runs of a trial."""
        return self.seeds_per_trial * max(1, len(self.environments))

    @property
    def example(self) -> Experiment:
        """The experiment of a trial's first run, but for its point: what is measured to plan a study."""
        return self.environments[0].of(self.experiment) if self.environments else self.experiment

    @property
    def in_environments(self) -> list[Experiment]:
        """The experiment in each environment; of a study without any the experiment itself."""
        return [one.of(self.experiment) for one in self.environments] or [self.experiment]

    @property
    def scored_clients(self) -> ScoredClients:
        """The clients behind a trial's scores."""
        return ScoredClients(self.objective, self.space, self.in_environments)

    @property
    def search_seeds(self) -> list[int]:
        """Seeds of the trials' runs, then of the confirmation."""
        first = self.experiment.seed
        confirming = range(first + SEED_OFFSET, first + SEED_OFFSET + self.confirm)
        return [*range(first, first + self.seeds_per_trial), *confirming]

    @property
    def has_one_network(self) -> bool:
        """True if all runs have the same network and data set, so that what is fast for one is for all."""
        is_varied = any(key.startswith("model.") for key in self.space.keys)
        return not is_varied and not any(
            path.startswith(("model.", "data.")) for one in self.environments for path in one.changes
        )

    @property
    def same_in_all(self) -> dict[str, Any]:
        """{path: value} of the experiment's fields that no trial and no environment changes."""
        changed = {*self.space.keys, *(path for one in (*self.environments, *self.held_out) for path in one.changes)}
        changed |= excluded(changed)
        sections = tuple(
            path.removesuffix(end) for path in changed for end in ("kind", "name") if path.endswith(f".{end}")
        )
        kept = self.experiment.flat.items()
        return {path: value for path, value in kept if path not in changed and not path.startswith(sections)}

    def label(self, experiment: Experiment) -> str:
        """<algorithm>-<dataset>-<partition>, or of several environments <algorithm>-environments, for names.

        Args:
            experiment: as the user described it.
        """
        return f"{experiment.algorithm.name}-environments" if self.environments else experiment.label

    def environment(self, name: str) -> Environment:
        """The environment of that name, tuned or held out; "": the experiment itself."""
        if not name:
            return Environment("", {})
        return next(one for one in (*self.environments, *self.held_out) if one.name == name)

    @property
    def budget_text(self) -> str:
        """The budgets of the search in words: "12 trials, 0.5 h, 2,000,000 samples"."""
        parts = [count(self.trials, "trial")] if self.trials < MOST_TRIALS else []
        parts += [f"{self.hours:g} h"] if self.hours else []
        parts += [f"{self.samples:,} samples"] if self.samples else []
        parts += [f"an end after {count(self.terminate, 'trial')} without a better value"] if self.terminate else []
        return ", ".join(parts) or "no limit of trials"

    @property
    def has_several_budgets(self) -> bool:
        """True if anything but the number of trials may end the search."""
        return bool(self.hours or self.samples or self.terminate)

    @property
    def restrictions(self) -> dict[str, str]:
        """Values and ranges of the method in place of common ranges, {path: value or range}."""
        return spaces.restrictions(spaces.MethodSpace(self.experiment, self.space), self.common) if self.common else {}

    @property
    def tags(self) -> dict[str, str]:
        """By which comparisons know runs that were chosen from one common space under one budget."""
        if self.common is None:
            return {}
        seeds = f", {self.seeds_per_trial} seeds a trial" if self.seeds_per_trial > 1 else ""
        seeds += f", {self.confirm} new seeds of {self.confirm_top}" if self.confirm else ""
        return {tag_names.COMMON: f"{self.common.digest[:12]}, {self.budget_text}{seeds}: {' '.join(self.common.keys)}"}

    def as_recorded(self, record: Mapping[str, Any]) -> "Settings":
        """The same study with the limits, the random start and the test runs of a record; one of an earlier version
        lacks some."""
        recorded = {name: record.get(name, value) for name, value in EARLIER.items()}
        return replace(self, trials=record["trials"], **recorded)

    @property
    def limits(self) -> StudyLimits:
        """All that a later call may change."""
        return StudyLimits(**{one.name: getattr(self, one.name) for one in fields(StudyLimits)})

    def limited(self, limits: StudyLimits) -> "Settings":
        """The same study with other limits, where they are given.

        Raises:
            PflOpsError: there are several objectives, which have no best value.
        """
        if limits.confirm and not self.objective.single:
            raise PflOpsError("a choice by several objectives is not confirmed: --confirm 0, or leave it out")
        if limits.terminate and not self.objective.single:
            raise PflOpsError("a search by several objectives has no best value: leave out --terminate")
        return replace(self, **limits.given)

    def digest(self, data_dir: str | None) -> str:
        """SHA-256 of all that may not change between a study's beginning and its resumption; trials may."""
        parts = [self.experiment.digest(data_dir), self.space.digest, self.objective.metrics, self.objective.modes]
        more: list[dict[str, Any]] = [self._several] if self._several else []
        for one in (*self.environments, *self.held_out):
            here = one.of(self.experiment)
            more.append({one.name: [here.digest(data_dir), baseline(here).digest(data_dir)]})
        if named := self._digests_of_choices(data_dir):
            more.append(named)
        return hashlib.sha256(json.dumps([*parts, self.scheduler, *more]).encode()).hexdigest()

    def _digests_of_choices(self, data_dir: str | None) -> dict[str, str]:
        """Digests of the experiment with each choice of the space that names a user's loss or a file of weights: the
        experiment's own digest does not cover what these contain."""
        return {
            f"{parameter.key}={value}": self.experiment.override({parameter.key: value}).digest(data_dir)
            for parameter in self.space.parameters
            for value in parameter.choices
            if (parameter.key == "training.loss" and value not in LOSSES.builtin)
            or (parameter.key == "model.weights" and value is not None)
        }

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
        for name in ("seeds_per_trial", "environments", "held_out", "aggregate"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                return f"--{name.replace('_', '-')} {_shown(one)}, not {_shown(two)}"
        return f"scheduler {self.scheduler}" if self.scheduler != other.scheduler else ""


def check_top(given: StudyLimits, settings: Settings) -> None:
    """Refuse a number of configurations to confirm in a study that confirms none.

    Args:
        given: the limits of a call. settings: of the study, with these limits and those that it remembers.
    Raises:
        PflOpsError: the message says why nothing is confirmed.
    """
    if given.confirm_top is None or settings.confirm:
        return
    why = "nothing is confirmed (--confirm 0)"
    if not settings.objective.single:
        why = "a choice by several objectives is not confirmed"
    raise PflOpsError(f"--confirm-top has no effect: {why}; leave it out")


def _shown(setting: object) -> str:
    """A setting in a message: environments by their names."""
    return (",".join(one.name for one in setting) or "none") if isinstance(setting, tuple) else str(setting)
