"""The plan of a table of trials: configurations of methods, environments and seeds, and the experiment of each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import pandas as pd
from optuna.storages import InMemoryStorage

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.section import check_last_seed
from pfl_ops.spaces import Axes, Point, grid_points
from pfl_ops.spaces.space import short
from pfl_ops.tuning.studies.environments import Environment
from pfl_ops.tuning.studies.samplers import DecimalRandomSampler
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage
from pfl_ops.tuning.studies.tested import tested_key
from pfl_ops.tuning.tables.trial_table import RunRecord, TrialTable, rows_of

CONFIGURATIONS, SEEDS = 40, 15
MOST_OF_A_TABLE = 10_000  # configurations or seeds
DRAWS = 100  # at most, for each configuration that is wanted

Split: TypeAlias = Literal["validation", "test"]


@dataclass(frozen=True, eq=False)
class TableRun:
    """One run of a table.

    Attributes:
        settings: of its method, as for a study. number: of the configuration. point: it.
        environment, seed, split: in, with and on which it is run.
    """

    settings: Settings
    number: int
    point: Point
    environment: Environment
    seed: int
    split: Split

    @property
    def experiment(self) -> Experiment:
        """As a study's trial runs it; on test data as the test of a choice, scored after the last round alone."""
        base = self.environment.of(self.settings.experiment).override({**self.point, "seed": self.seed})
        if self.split == "validation":
            return base
        last = {"evaluation.every": base.training.rounds, "evaluation.global_every": base.training.rounds}
        return base.override({"evaluation.split": "test", **last})

    @property
    def metric(self) -> str:
        """The objective, on the data of this run."""
        metric = self.settings.objective.metrics[0]
        return metric if self.split == "validation" else tested_key(metric)

    @property
    def stages(self) -> tuple[str, ...] | None:
        """Those to score; None: all."""
        return self.settings.objective.stages if self.split == "validation" else None

    def __str__(self) -> str:
        method, split = self.settings.experiment.algorithm.name, self.split
        return f"{method} configuration {self.number}, {self.environment.name}, seed {self.seed}, {split}"


@dataclass(frozen=True)
class TablePlan:
    """All runs of a table.

    Attributes:
        settings: of each method. points: its configurations, alike in order. seeds: of each configuration.
    """

    settings: tuple[Settings, ...]
    points: tuple[tuple[Point, ...], ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(
        cls,
        settings: Sequence[Settings],
        configurations: int = CONFIGURATIONS,
        seeds: int = SEEDS,
        axes: Axes | None = None,
    ) -> "TablePlan":
        """Return a plan: the first points of each space, then points drawn evenly from it, or all points of a grid.

        Args:
            settings: of each method, as `Settings.of` checks them. configurations, seeds: numbers of them.
            axes: of a grid whose space (`spaces.grid_space`) is that of the settings; `configurations` is not used.
        Raises:
            PflOpsError: numbers that can't be, several objectives, a method twice, a seed without a score at L2, or a
                point of the grid that a method refuses.
        """
        for flag, value in (("--configurations", configurations), ("--seeds", seeds)):
            if not 1 <= value <= MOST_OF_A_TABLE:
                raise PflOpsError(f"{flag} must be in [1, {MOST_OF_A_TABLE:,}], got {value}")
        for one in settings:
            if not one.objective.single:
                raise PflOpsError("a table is of one metric: give --metric once")
            if not one.objective.metrics[0].startswith("val/"):
                raise PflOpsError(
                    f"a table needs a metric on validation data, val/..., got '{one.objective.metrics[0]}'"
                )
        first = settings[0].experiment.seed
        check_last_seed(first, seeds, "seeds")
        for one in settings:
            one.scored_clients.check(range(first, first + seeds))
        points = tuple(tuple(grid(one, axes) if axes else sample(one, configurations)) for one in settings)
        return cls(tuple(settings), points, tuple(range(first, first + seeds)))

    @cached_property
    def runs(self) -> list[TableRun]:
        """A run on validation data, then the one on test data, of each configuration; a seed after the other."""
        return [
            TableRun(one, number, point, environment, seed, split)
            for seed in self.seeds
            for one, points in zip(self.settings, self.points, strict=True)
            for environment in environments(one)
            for number, point in enumerate(points)
            for split in ("validation", "test")
        ]  # fmt: skip

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The file's entries on each method."""
        return {
            one.experiment.algorithm.name: {
                "metric": one.objective.metrics[0],
                "truth": tested_key(one.objective.metrics[0]),
                "mode": one.objective.modes[0],
                "rounds": one.experiment.training.rounds,
                "full_every": one.experiment.evaluation.full_every,
                "space": one.space.as_yaml(),
                "space_source": one.space.source,
                "experiment": one.experiment.resolved,
            }
            for one in self.settings
        }

    def table(self, finished: Mapping[TableRun, RunRecord]) -> TrialTable:
        """Return the table of finished runs; `finished` has them all."""
        rows: list[dict[str, Any]] = []
        by_split = iter(self.runs)
        for validation, test in zip(by_split, by_split, strict=True):
            run = {
                "method": validation.settings.experiment.algorithm.name,
                "configuration": validation.number,
                "environment": validation.environment.name,
                "seed": validation.seed,
            }
            rows += rows_of(run, validation.point, finished[validation], finished[test])
        return TrialTable(pd.DataFrame(rows), self.methods)


def environments(settings: Settings) -> tuple[Environment, ...]:
    """Return the environments of a study; one that names none has its experiment's, named after the partition."""
    return settings.environments or (Environment(settings.experiment.partition.kind, {}),)


def sample(settings: Settings, number: int) -> list[Point]:
    """Return different configurations: the first points of the space, then random ones, the same for a seed.

    A space with fewer points gives all that were drawn. A longer sample begins with the shorter one.
    """
    space, found = settings.space, dict[str, Point]()
    for point in space.first:
        _add(found, dict(point), settings)
    study = StudyStorage("sample", InMemoryStorage(), settings.objective).study
    study.sampler = DecimalRandomSampler(settings.experiment.seed)
    drawn: set[str] = set()  # an experiment takes far longer than a draw
    for _ in range(DRAWS * number):
        if len(found) >= number:
            break
        point = space(study.ask())
        if (key := repr(point)) not in drawn:
            drawn.add(key)
            _add(found, point, settings)
    return list(found.values())[:number]


def grid(settings: Settings, axes: Axes) -> list[Point]:
    """Return the points of a grid, each of which the method takes in all environments.

    Raises:
        PflOpsError: a field is held or an environment sets it, a point is refused, or two are one experiment.
    """
    for key in axes:
        if not settings.space.of(key):
            raise PflOpsError(f"--grid {key} is set by an environment or held, too: leave one of them out")
    points, known = grid_points(axes, settings.space), dict[str, Point]()
    for point in points:
        try:
            experiments = [one.of(settings.experiment).override(point) for one in environments(settings)]
        except PflOpsError as error:
            raise PflOpsError(f"--grid has {short(point)}, which is refused: {error}") from None
        if (other := known.setdefault(experiments[0].to_yaml(), point)) is not point:
            raise PflOpsError(f"--grid has one experiment twice: {short(other)}; {short(point)}")
    return points


def _add(found: dict[str, Point], point: Point, settings: Settings) -> None:
    """Add a point, under its experiment, if that is new and possible in all environments."""
    try:
        experiments = [environment.of(settings.experiment).override(point) for environment in environments(settings)]
    except PflOpsError:
        return
    found.setdefault(experiments[0].to_yaml(), point)
