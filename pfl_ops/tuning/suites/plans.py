"""The plan of a reproduction: the runs of some suites at a scale, their data, and those that are there already."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pfl_ops.config.experiment import Experiment
from pfl_ops.data.datasets import here
from pfl_ops.data.sources import OTHER_DATA
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import Cell, Changes, ScaleName, Suite, overrides

DATA = "data.name"


@dataclass(frozen=True)
class CellRun:
    """One repetition of a cell.

    Attributes:
        experiment: what is run. digest: its identity. number: of the repetition, from 0.
        suite, cell: where it was met first.
        substitute: the data set in place of the cell's own; "": none.
        changes: those of the plan that change this cell's experiment.
    """

    experiment: Experiment
    digest: str
    number: int
    suite: Suite
    cell: Cell
    substitute: str = ""
    changes: Changes = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its run: path/fliu seed 0."""
        return f"{self.cell.name} seed {self.experiment.seed}"


@dataclass(frozen=True)
class Part:
    """A suite in a plan.

    Attributes:
        chosen: names of the cells that are to be run. jobs: repetitions of each cell, chosen or not.
        stand_ins: cell -> the data set in place of its own. problems: cell -> why it can't be run.
        changes: settings that the user changes in all cells that have them; see `papers.overrides`.
    """

    suite: Suite
    chosen: tuple[str, ...]
    jobs: Mapping[str, tuple[CellRun, ...]]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)

    @property
    def wanted(self) -> Iterator[CellRun]:
        """The repetitions of the chosen cells."""
        for cell in self.chosen:
            yield from self.jobs.get(cell, ())

    def repetition(self, cell: str, number: int, data_dir: str | None) -> CellRun:
        """Return a repetition of a cell beyond those that are planned."""
        first = self.jobs[cell][0]
        experiment = first.experiment.repetition(number)
        return replace(first, experiment=experiment, digest=experiment.digest(data_dir), number=number)

    def with_job(self, job: CellRun) -> "Part":
        """Return the suite's part with one more repetition of a cell."""
        return replace(self, jobs={**self.jobs, job.cell.name: (*self.jobs[job.cell.name], job)})


@dataclass(frozen=True)
class ReproductionPlan:
    """Several suites at one scale."""

    scale: ScaleName
    parts: tuple[Part, ...]

    @property
    def wanted(self) -> tuple[CellRun, ...]:
        """Every run once, though several suites may show it; the first repetition of all cells comes first."""
        jobs: dict[str, CellRun] = {}
        for part in self.parts:
            for job in part.wanted:
                jobs.setdefault(job.digest, job)
        return tuple(sorted(jobs.values(), key=lambda job: job.number))


def plan(
    chosen: Sequence[tuple[Suite, Sequence[Cell]]],
    scale: ScaleName,
    *,
    repetitions: int | None = None,
    data_dir: str | None = None,
    changes: Changes | None = None,
) -> ReproductionPlan:
    """A plan for those cells of those suites.

    Args:
        chosen: suites with the cells to run. scale: their size. repetitions: n; none: the scale's.
        data_dir: where the data lie. changes: {path: value} for all cells that have the path.
    Raises:
        PflOpsError: there is nothing to run, since cells can't be; the first reason. No cell has one of the paths.
    """
    changes = changes or {}
    overrides.check_changes([suite for suite, _ in chosen], changes)
    made = ReproductionPlan(
        scale, tuple(_part(suite, cells, scale, repetitions, data_dir, changes) for suite, cells in chosen)
    )
    problems = [(part.suite, cell, reason) for part in made.parts for cell, reason in part.problems.items()]
    if problems and not made.wanted:
        suite, cell, reason = problems[0]
        raise PflOpsError(f"{_named(suite, cell)}{reason}")
    return made


def _part(
    suite: Suite,
    cells: Sequence[Cell],
    scale: ScaleName,
    repetitions: int | None,
    data_dir: str | None,
    changes: Changes,
) -> Part:
    names = {cell.name for cell in cells}
    cells = cells if suite.measures else ()  # who holds what: a picture that needs the data and no run
    jobs: dict[str, tuple[CellRun, ...]] = {}
    stand_ins: dict[str, str] = {}
    problems: dict[str, str] = {}
    for cell in suite.cells:
        try:
            own = overrides.changed(suite.experiment(cell, scale), changes)
            data = substitute(suite, own.data.name, scale, data_dir)
            unchanged = suite.experiment(cell, scale, data=data)
            experiment = overrides.changed(
                unchanged, {path: changes[path] for path in changes if not data or path != DATA}
            )
            mine = overrides.applicable(unchanged, changes) if experiment != unchanged else {}
            each = [experiment.repetition(i) for i in range(repetitions or experiment.repetitions)]
            jobs[cell.name] = tuple(
                CellRun(one, one.digest(data_dir), i, suite, cell, data or "", mine) for i, one in enumerate(each)
            )
        except PflOpsError as error:
            if cell.name in names:
                told = str(error).removeprefix(_named(suite, cell.name))
                problems[cell.name] = told.replace(
                    OTHER_DATA, "take --scale smoke, which uses other data in its place."
                )
            continue
        if data:
            stand_ins[cell.name] = data
    return Part(suite, tuple(cell.name for cell in cells), jobs, stand_ins, problems, changes)


def _named(suite: Suite, cell: str) -> str:
    """The beginning of a message about a cell."""
    return f"{suite.name}, cell {cell}: "


def substitute(suite: Suite, data: str, scale: ScaleName, data_dir: str | None = None) -> str | None:
    """The data set that takes the place of one that is not here; None: it is here, or has to be fetched.

    A smoke run fetches nothing.
    """
    if here(data, data_dir=data_dir):
        return None
    other = suite.instead.get(data)
    if other and here(other, data_dir=data_dir):
        return other
    return "digits" if scale == "smoke" else None
