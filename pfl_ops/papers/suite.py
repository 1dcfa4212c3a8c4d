"""A suite: one table or figure of a paper as data, from the grid of its experiments to the claims about it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

from pfl_ops import metric_keys
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.precedence import excluded
from pfl_ops.errors import PflOpsError, unknown
from pfl_ops.papers import substitute
from pfl_ops.papers.claims import Claim, Verdict, decided
from pfl_ops.papers.exhibits import Exhibit
from pfl_ops.papers.expression import Labels, matching
from pfl_ops.papers.provenance import Departure, Source, Sources, sources_of
from pfl_ops.papers.published import Published
from pfl_ops.papers.rules import ChoiceRule
from pfl_ops.results import Result

Changes: TypeAlias = Mapping[str, Any]
"""{path of the experiment: value}, as flags and files have them."""

ScaleName: TypeAlias = Literal["smoke", "small", "medium", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "small", "medium", "full")
"""From the smallest to the largest."""

CellResults: TypeAlias = Mapping[str, Sequence[Result]]
"""Name of a cell -> its repetitions that are finished."""

Divergences: TypeAlias = Mapping[str, Mapping[int, str]]
"""Name of a cell -> seed -> "diverged at round 7, lr 0.4", of its repetitions whose training diverged."""


class KeptRuns(NamedTuple):
    """Repetitions of a suite that are over: those that finished, and those whose training diverged."""

    outcomes: CellResults
    diverged: Divergences


@dataclass(frozen=True)
class Level:
    """One value of an axis of the grid.

    Attributes:
        changes: what it sets.
        title: as the paper's table has it; "": the level's name.
        at: what it sets beyond that at a scale: {"small": {"partition.clients": 20}}.
        stages: what a stage in a measure's key means here, where methods are scored at different ones: {"P": "L2"}
            reads "test/P/local/mean" as "test/L2/local/mean".
    """

    changes: Changes = field(default_factory=dict)
    title: str = ""
    at: Mapping[str, Changes] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)


def method(title: str, name: str, **settings: Any) -> Level:
    """Return the level of a method with settings of its own: method("Ditto", "ditto", lam=1.0)."""
    return Level({"algorithm.name": name, **{f"algorithm.{key}": value for key, value in settings.items()}}, title)


Axis: TypeAlias = Mapping[str, Level]


@dataclass(frozen=True)
class Scale:
    """A size at which a suite runs.

    Attributes:
        changes: what differs from scale full.
        repetitions: n.
        note: why these numbers, in a sentence.
    """

    changes: Changes = field(default_factory=dict)
    repetitions: int = 1
    note: str = ""


@dataclass(frozen=True)
class Measure:
    """A number that the exhibit shows of a cell.

    Attributes:
        key: tracked key without `final/` or `best/`: "test/L1/acc"; "test/L2/local/mean@90" is the first round in which
            the value is 90 or more, "test/L2/local/mean#20" its value in round 20, "test/L2/local/mean#best" its
            highest value over the scored rounds from 1 on.
        title: as the paper's table has it.
        unit: the paper's number is ours times this. A target is in it, too: "…@90" with unit 100 is 90 %; the round
            itself is not multiplied.
        digits: decimals shown; with 0 a mean of several runs has one.
        better: which way is better; "": neither; None: by the key, low for rounds to a target, losses and costs.

    >>> [Measure(key, "").better for key in ("test/L1/acc", "test/L1/acc@90", "train/loss", "method/gamma/mean")]
    ['high', 'low', 'low', '']
    """

    key: str
    title: str
    unit: float = 100.0
    digits: int = 2
    better: Literal["high", "low", ""] | None = None

    def __post_init__(self) -> None:
        if self.better is None:
            key = self.key.partition("#")[0]
            low = "@" in key or metric_keys.smaller_is_better(key)
            object.__setattr__(self, "better", "" if metric_keys.is_neutral(key) else "low" if low else "high")


@dataclass(frozen=True)
class Cell:
    """One cell of the grid: "path/fliu", a label of each axis in their order."""

    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """The labels, joined."""
        return "/".join(self.labels.values())


@dataclass(frozen=True)
class Suite:
    """One table or figure of a paper.

    Attributes:
        name: "fliu/table1". title: what it shows. source: paper and exhibit, and which round its numbers are of.
        base: the experiment, as far as all cells share it; a cell's axes add to it, in their order. At least one axis
            names the method.
        axes: name -> its levels by label; labels are letters, digits, dots and underscores.
        measures: numbers of a cell, in the order of the exhibit.
        exhibits: what the report shows.
        published: (cell, measure's key) -> the paper's number, in the paper's unit.
        spread_over: what a published ± is over: "repetitions", "clients"; "": there is none, or it is not said.
        repetitions: n at scale full; its source says whether the paper states it.
        at: a cell's number is that of the last round, "final", or of the best one, "best".
        claims: sentences of the paper that can be true or false of numbers.
        sources: origin of each setting's value at scale full, see `provenance`.
        departures: differences from the paper that no single setting shows. damage: what extraction lost.
        unmeasured: what the exhibit shows and the suite does not, and why.
        absent: names of cells that the grid has not ("iid/apfl").
        exceptions: pattern of cells, as in claims -> what these set beyond their levels ("cifar10/*/fedfomo"); a level,
            where it depends on the scale.
        instead: data set -> the one that stands in for it where it can't be had; at smoke that is digits where none is
            named here.
        medium: the paper's sizes with a network that two CPU cores can train; its n is that of full. No change: the
            paper's own network is small enough.
        small, smoke: the suite at these scales; smoke is cut further, see `substitute.cut`.
        rule: by which settings that the paper does not state are chosen on validation data; None: there is none.
        file: name of the user's file that it comes from; "": it is the package's own.
        choices: name of the file of choices that the user gave it (`--choices`); "": none.
    """

    name: str
    title: str
    source: str
    axes: Mapping[str, Axis]
    measures: tuple[Measure, ...]
    exhibits: tuple[Exhibit, ...]
    base: Changes = field(default_factory=dict)
    published: Mapping[tuple[str, str], Published] = field(default_factory=dict)
    spread_over: Literal["repetitions", "clients", ""] = ""
    repetitions: int = 1
    at: Literal["final", "best"] = "final"
    claims: tuple[Claim, ...] = ()
    sources: Sources = ()
    departures: tuple[Departure, ...] = ()
    damage: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    exceptions: Mapping[str, Changes | Level] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    medium: Scale = field(default_factory=Scale)
    small: Scale = field(default_factory=Scale)
    smoke: Scale = field(default_factory=Scale)
    rule: ChoiceRule | None = None
    file: str = ""
    choices: str = ""

    @property
    def paper(self) -> str:
        """ "fliu" of "fliu/table1"."""
        return self.name.partition("/")[0]

    @property
    def command(self) -> str:
        """The command line that runs it, but for its scale."""
        file = f" --suite {shlex.quote(self.file)}" if self.file else ""
        choices = f" --choices {shlex.quote(self.choices)}" if self.choices else ""
        return f"pfl-ops reproduce {self.name}{file}{choices}"

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the grid but the absent ones."""
        found = (Cell(dict(zip(self.axes, labels, strict=True))) for labels in product(*self.axes.values()))
        return tuple(cell for cell in found if cell.name not in self.absent)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the cells."""
        return frozenset(cell.name for cell in self.cells)

    @cached_property
    def labels(self) -> Labels:
        """Axis -> its labels."""
        return {axis: list(levels) for axis, levels in self.axes.items()}

    def cell(self, name: str) -> Cell:
        """The cell of that name.

        Raises:
            PflOpsError: there is none; the message has the nearest.
        """
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise unknown(f"cell of {self.name}", name, [cell.name for cell in self.cells])

    def sample(self) -> tuple[Cell, ...]:
        """The fewest cells, nearly, in which every level of every axis occurs: along the grid's diagonal first."""
        longest = max(map(len, self.axes.values()))
        diagonal = ["/".join(list(axis)[i % len(axis)] for axis in self.axes.values()) for i in range(longest)]
        missing = {(axis, label) for axis, levels in self.axes.items() for label in levels}
        chosen: set[str] = set()
        for cell in sorted(self.cells, key=lambda cell: cell.name not in diagonal):  # stable: else in the grid's order
            if missing & set(cell.labels.items()):
                chosen.add(cell.name)
                missing -= set(cell.labels.items())
        return tuple(cell for cell in self.cells if cell.name in chosen)

    def stages(self, cell: Cell) -> dict[str, str]:
        """Return the stages that measures' keys name in a cell: its levels' `stages`, which go into its results."""
        levels = (self.axes[axis][label] for axis, label in cell.labels.items())
        return {name: stage for level in levels for name, stage in level.stages.items()}

    def measure(self, key: str) -> Measure:
        """The measure of that key.

        Raises:
            PflOpsError: the suite has none; the message has the nearest.
        """
        for measure in self.measures:
            if measure.key == key:
                return measure
        raise unknown(f"measure of {self.name}", key, [measure.key for measure in self.measures])

    def scale(self, name: ScaleName) -> Scale:
        """Return the suite's size of that name; full: the paper's, as far as the paper states it."""
        paper = Scale(repetitions=self.repetitions)
        medium = replace(self.medium, repetitions=self.repetitions)
        return {"smoke": self.smoke, "small": self.small, "medium": medium, "full": paper}[name]

    def departures_at(self, scale: ScaleName) -> tuple[Departure, ...]:
        """Return the departures that hold at a scale; one on a choice for it takes the place of the general one."""
        own = any(one.of_choice and one.scale == scale for one in self.departures)
        return tuple(one for one in self.departures if one.scale == scale or not (one.scale or (own and one.of_choice)))

    def experiment(self, cell: Cell, scale: ScaleName = "full", *, data: str | None = None) -> Experiment:
        """Return the runs of a cell, with as many repetitions as the scale has.

        Args:
            data: the data set that stands in for the cell's own; none: its own.
        Raises:
            PflOpsError: the settings contradict each other.
        """
        key = (cell.name, scale, data)
        if key not in self._experiments:
            self._experiments[key] = self._compose(cell, scale, data)
        return self._experiments[key]

    @cached_property
    def _experiments(self) -> dict[tuple[str, ScaleName, str | None], Experiment]:
        """Experiments that were composed before."""
        return {}

    def _compose(self, cell: Cell, scale: ScaleName, data: str | None) -> Experiment:
        levels = [self.axes[axis][label] for axis, label in cell.labels.items()]
        for pattern, more in self.exceptions.items():
            if cell.name in matching(pattern, self.labels):
                levels.append(more if isinstance(more, Level) else Level(more))
        size = self.scale(scale)
        changes: dict[str, Any] = {"evaluation.final": "all", **self.base}
        for more in (*(one.changes for one in levels), size.changes, *(one.at.get(scale, {}) for one in levels)):
            changes |= _instead(more, changes)
        try:
            whole = Experiment.compose(flags={**changes, "repetitions": size.repetitions})
            whole = substitute.moved(whole, data) if data else whole
            return substitute.cut(whole) if scale == "smoke" else whole
        except PflOpsError as error:
            raise type(error)(f"{self.name}, cell {cell.name}: {error}") from error

    @cached_property
    def states_repetitions(self) -> bool:
        """True if the paper states the number of repetitions at full, which is one for all cells."""
        return self._of_repetitions is not None and self._of_repetitions.kind == "stated"

    @property
    def papers_repetitions(self) -> str:
        """The paper's own number of repetitions; "": it states none."""
        source = self._of_repetitions
        if source is None or source.kind not in ("stated", "departure"):
            return ""
        return str(self.repetitions) if source.kind == "stated" else source.said

    @cached_property
    def _of_repetitions(self) -> Source | None:
        covering = [
            source for source in self.sources if source.covers("repetitions", {"repetitions": self.repetitions})
        ]
        return covering[-1] if covering else None

    def sources_of(self, cell: Cell) -> dict[str, Source | None]:
        """Return the origin of each setting of a cell's full experiment, by path; None: the suite lists none."""
        return sources_of(self.experiment(cell), self.sources)

    @property
    def first_seed(self) -> int:
        """The seed of every cell's first repetition."""
        return int(self.base.get("seed", 0))

    def judged(self, outcomes: CellResults | None = None, diverged: Divergences | None = None) -> tuple[Verdict, ...]:
        """Return the verdicts on all claims, ours decided as one family.

        Args:
            outcomes: finished repetitions of cells; none: the paper's own numbers. diverged: those that diverged.
        """
        values = self._published if outcomes is None else partial(self._ours, outcomes)
        found = tuple(
            claim.judge(
                values, self.labels, self.names, exact=outcomes is None, first=self.first_seed, diverged=diverged or {}
            )
            for claim in self.claims
        )
        return found if outcomes is None else decided(found)

    def _published(self, cell: str, key: str) -> dict[int, float]:
        found = self.published.get((cell, key))
        return {} if found is None or found.value is None else {0: found.value}

    def _ours(self, outcomes: CellResults, cell: str, key: str) -> dict[int, float]:
        unit = self.measure(key).unit
        values = {one.seed: one.value(key, self.at, unit) for one in outcomes.get(cell, ())}
        return {seed: value for seed, value in values.items() if value is not None}

    def numbers(self) -> Iterator[tuple[Cell, Measure, Published]]:
        """Each published number with its cell and measure."""
        for (cell, key), published in self.published.items():
            yield self.cell(cell), self.measure(key), published


def differences(full: Experiment, here: Experiment) -> dict[str, tuple[Any, Any]]:
    """Return {path: (value of the one, of the other)} wherever they differ; None: there is no such setting."""
    one, other = full.flat, here.flat
    paths = [path for path in {**one, **other} if path not in ("repetitions", "seed")]
    return {path: (one.get(path), other.get(path)) for path in paths if one.get(path) != other.get(path)}


def _instead(more: Changes, before: Mapping[str, Any]) -> dict[str, Any]:
    """`more`, and none for what it replaces: a level's local steps go before the base's local epochs."""
    named = [path for path, value in more.items() if value is not None]
    replaced = [path for path in excluded(named) if path in before and path not in named]
    return {**more, **dict.fromkeys(replaced)}
