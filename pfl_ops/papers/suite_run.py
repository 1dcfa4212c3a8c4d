"""A suite as far as it has been run: what its report is made from."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from pfl_ops.config.experiment import Experiment
from pfl_ops.data.datasets import BUILTIN
from pfl_ops.errors import PflOpsError, count
from pfl_ops.federation.scoring.synthetic import companions_of_each
from pfl_ops.metrics import synthetic_view
from pfl_ops.papers import overrides
from pfl_ops.papers.claims import Claim, Verdict
from pfl_ops.papers.conditions import CellNumber
from pfl_ops.papers.expression import matching
from pfl_ops.papers.published import Published
from pfl_ops.papers.suite import Cell, CellResults, Changes, Divergences, Measure, ScaleName, Suite, differences
from pfl_ops.results import Result

FEWEST_SEEDS = 3  # whose scores are the same, from which on a network gives one answer
OPTIMISER = "training.optimiser"
POOLED = ("test/G/global/mean", "test/L1/global/mean")
"""Accuracies on pooled data. They show networks that give one answer, in suites of other measures too."""
CLASS_SHARES = (0.75, 1.25)
"""Bounds of a class's share among the test samples of the package's sets of images, as multiples of the mean share.
MNIST's classes have 0.89 to 1.14 of it."""


class OneAnswer(NamedTuple):
    """A cell whose networks give one answer to all inputs.

    Attributes:
        share: their accuracy on pooled data, the share of one class. seeds: that have it. of: all seeds.
    """

    share: float
    seeds: int
    of: int

    def __str__(self) -> str:
        return f"{100 * self.share:.2f} %" + f", {self.seeds} of {self.of} seeds" * (self.seeds < self.of)


Counts: TypeAlias = Callable[[str], Any]
"""Name of a cell -> who holds how many samples of each class, int [K, L]; None: not known."""


@dataclass(frozen=True)
class SuiteRun:
    """A suite, and what is known of its cells.

    Attributes:
        suite, scale: what was run. outcomes: finished repetitions of its cells, at this scale.
        chosen: names of the cells that this run was to have; none: all.
        stand_ins: cell -> the data set in place of its own. problems: cell -> why it could not be run.
        diverged: repetitions without a result since their training diverged. The mean of the other ones is too good: it
            is shown with their number, and takes no part in a comparison with other cells.
        elsewhere: other scales -> finished repetitions there.
        link: address of a repetition's run. counts: of a cell's partition. about: further lines on the machine.
        changes: settings that the user changed in all cells that have them (`--set`).
        outdated: rows of an earlier version of the suite, in the file that it was read from.
        uncounted: finished repetitions behind the planned ones, of earlier calls, which are not among the outcomes.
    """

    suite: Suite
    scale: ScaleName
    outcomes: CellResults
    chosen: Sequence[str] | None = None
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    diverged: Divergences = field(default_factory=dict)
    elsewhere: Mapping[str, CellResults] = field(default_factory=dict)
    link: Callable[[Result], str | None] = lambda outcome: None
    counts: Counts = lambda cell: None
    about: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    outdated: int = 0
    uncounted: int = 0

    @property
    def n_failed(self) -> int:
        """Number of cells that have a problem or diverged repetitions, and no result."""
        return sum(cell not in self.outcomes for cell in {**self.problems, **self.diverged})

    def unchanged(self, cell: Cell) -> Experiment:
        """Return the experiment of a cell at this scale, on the data that it runs on, without the user's changes."""
        return self.suite.experiment(cell, self.scale, data=self.stand_ins.get(cell.name))

    def experiment(self, cell: Cell) -> Experiment:
        """Return the experiment of a cell as it is run; where the changes can't be made, without them."""
        unchanged = self.unchanged(cell)
        moved = cell.name in self.stand_ins
        changes = {path: value for path, value in self.changes.items() if not moved or path != "data.name"}
        try:
            return overrides.changed(unchanged, changes)
        except PflOpsError:  # a cell that can't be run; its problem is reported
            return unchanged

    @cached_property
    def changed(self) -> list[str]:
        """Names of the cells that the user's changes make another experiment."""
        if not self.changes:
            return []
        return [cell.name for cell in self.suite.cells if self.experiment(cell) != self.unchanged(cell)]

    @cached_property
    def reduced(self) -> bool:
        """True if the scale makes some cell that was run another experiment than at full; the user's changes and
        substitute data aside."""
        cells = [cell for cell in self.suite.cells if cell.name in self.outcomes] or list(self.suite.cells)
        return any(differences(self.suite.experiment(c), self.suite.experiment(c, self.scale)) for c in cells)

    @cached_property
    def changes_in_words(self) -> str:
        """The user's changes in a line: "training.lr=0.05, training.rounds=20"; "": none."""
        return ", ".join(overrides.as_flags(self.changes))

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """The suite's settings of the user: the file of choices, and the changes; (): it runs as it is."""
        return altered(self.suite, self.changes)

    @cached_property
    def command(self) -> str:
        """The command line that runs it."""
        sets = "".join(f" --set {shlex.quote(one)}" for one in overrides.as_flags(self.changes))
        return f"{self.suite.command} --scale {self.scale}{sets}"

    @cached_property
    def n(self) -> int:
        """Repetitions of most finished cells; of the scale where there is none."""
        counts = [len(found) for found in self.outcomes.values() if found]
        return max(set(counts), key=counts.count) if counts else self.suite.scale(self.scale).repetitions

    @cached_property
    def uncounted_in_words(self) -> str:
        """A line on seeds of earlier calls that do not count here; "": there are none."""
        if not self.uncounted:
            return ""
        runs = f"{count(self.uncounted, 'finished run')} of further seeds"
        return f"{runs} not counted (--until-decided or a larger --repetitions counts them)"

    def lost(self, cell: str) -> str:
        """Return the number of a cell's repetitions that diverged, as text: "1 of 3 diverged"; "": none did."""
        lost = len(self.diverged.get(cell, ()))
        return f"{lost} of {lost + len(self.outcomes.get(cell, ()))} diverged" if lost else ""

    @cached_property
    def one_answer(self) -> dict[str, OneAnswer]:
        """Cells whose networks give one answer to all inputs, in three seeds or more.

        Told by an accuracy on pooled data that is exactly the same in these seeds, the share of one class in the test
        set: in all seeds, and below 0.9; or in more than half of them, and below half of the highest of all cells on
        that data set, for a few of many trained networks agree by chance. For the same reason it is no share that no
        class has, see `CLASS_SHARES`. Means of such a cell are of a failed training, not of its method. A cell for
        which the paper prints this very number is left out: there the failure is what it reports.
        """
        units = dict.fromkeys(POOLED, 1.0)
        units |= {one.key: one.unit for one in self.suite.measures if one.key.endswith("/global/mean")}
        experiments = {cell.name: self.experiment(cell) for cell in self.suite.cells if self.outcomes.get(cell.name)}
        found: dict[str, OneAnswer] = {}
        printed = set()
        for key, unit in units.items():
            values = {cell: self._values(self.outcomes[cell], key, unit) for cell in experiments}
            highest: dict[str, float] = {}
            for cell, those in values.items():
                data = experiments[cell].data.name
                highest[data] = max([*those, highest.get(data, 0.0)])
            for cell, those in values.items():
                for value, seeds in Counter(those).most_common(1):
                    of_half = highest[experiments[cell].data.name] / 2
                    below = 0.9 * unit if seeds == len(those) else of_half
                    often = seeds >= FEWEST_SEEDS and 2 * seeds > len(those)
                    if often and value < below and _may_be_a_class(value / unit, experiments[cell]):
                        found[cell] = OneAnswer(value / unit, seeds, len(those))
                        if self._printed(cell, key, value):
                            printed.add(cell)
        return {cell: one for cell, one in found.items() if cell not in printed}

    def _values(self, runs: Sequence[Result], key: str, unit: float) -> list[float]:
        return [value for one in runs if (value := one.value(key, self.suite.at, unit)) is not None]

    def _printed(self, cell: str, key: str, value: float) -> bool:
        """True if the paper prints this value there, as it rounds."""
        published = self.suite.published.get((cell, key))
        if published is None or published.value is None:
            return False
        half = 0.5 * 10 ** -self.suite.measure(key).digits
        return abs(value - published.value) <= half + 1e-9

    @cached_property
    def optimisers(self) -> dict[str, dict[str, bool]]:
        """Optimisers of finished cells that some claim compares although they differ there: {optimiser: {cell: it is
        our assumption}}; none: {}."""
        finished = [cell for cell in self.suite.cells if self.outcomes.get(cell.name)]
        named = {cell.name: self.experiment(cell).training.optimiser for cell in finished}
        mixed: set[str] = set()
        labels, there = self.suite.labels, self.suite.names
        for cells in chain.from_iterable(claim.compared(labels, there) for claim in self.suite.claims):
            if len({named[cell] for cell in cells & named.keys()}) > 1:
                mixed |= cells & named.keys()
        found: dict[str, dict[str, bool]] = {}
        for cell in (cell for cell in finished if cell.name in mixed):
            source = self.suite.sources_of(cell).get(OPTIMISER)
            found.setdefault(named[cell.name], {})[cell.name] = source is not None and source.kind == "assumption"
        return found

    @cached_property
    def verdicts(self) -> tuple[Verdict | None, ...]:
        """The verdict on each claim in our numbers; None: it is not judged, at smoke or since it cannot be."""
        if self.scale == "smoke":
            return (None,) * len(self.suite.claims)
        return tuple(
            verdict if verdict.status == "not run" or self.is_judged(claim) else None
            for claim, verdict in zip(self.suite.claims, self.suite.judged(self.outcomes, self.diverged), strict=True)
        )

    def is_judged(self, claim: Claim) -> bool:
        """False for a claim about substitute data, about a network that gives one answer to all inputs (but
        `Claim.untrained`), or about an S-acc. that is L-acc."""
        unfit = set(self.stand_ins) & set(self.outcomes) | (set() if claim.untrained else set(self.one_answer))
        of = self.suite.labels, self.suite.names
        return not (unfit & claim.cells(*of) or set(self.own_alone) & claim.numbers(*of))

    @cached_property
    def own_alone(self) -> dict[CellNumber, int]:
        """Numbers that are S-acc. by name, and L-acc. in fact, with the number of clients: too few for c percent of
        them to be one."""
        found = {}
        for cell in (cell for cell in self.suite.cells if self.outcomes.get(cell.name)):
            experiment = self.experiment(cell)
            n_clients = experiment.partition.clients
            views = {synthetic_view(c): c for c in experiment.evaluation.synthetic}
            for key in (measure.key for measure in self.suite.measures):
                percent = next((views[part] for part in key.split("/") if part in views), 0)
                if percent and n_clients and not companions_of_each(n_clients, percent):
                    found[CellNumber(cell.name, key)] = n_clients
        return found

    @cached_property
    def judged(self) -> list[tuple[Claim, Verdict, Verdict | None]]:
        """Each claim with the verdicts on it in the paper's numbers and in ours."""
        return list(zip(self.suite.claims, self.suite.judged(), self.verdicts, strict=True))

    def cells(self, pattern: str) -> list[Cell]:
        """The cells of a pattern, in the suite's order; "": all."""
        meant = matching(pattern, self.suite.labels)
        return [cell for cell in self.suite.cells if cell.name in meant]

    def title(self, axis: str, label: str) -> str:
        """Of a level, as the paper has it."""
        return self.suite.axes[axis][label].title or label

    def name(self, cell: Cell, axes: Sequence[str]) -> str:
        """Of a cell among those that differ in these axes."""
        return ", ".join(self.title(axis, cell.labels[axis]) for axis in axes) or cell.name

    def varying(self, cells: Sequence[Cell], but: Sequence[str] = ()) -> list[str]:
        """Axes in which some of the cells differ."""
        return [
            axis for axis in self.suite.labels if axis not in but and len({cell.labels[axis] for cell in cells}) > 1
        ]

    def values(self, cell: str, measure: Measure, scale: str = "") -> list[float]:
        """A measure of each finished repetition, in the paper's unit; `scale`: another one."""
        found = self.elsewhere.get(scale, {}) if scale else self.outcomes
        return self._values(found.get(cell, ()), measure.key, measure.unit)

    def published(self, cell: str, measure: Measure) -> Published | None:
        """Return the number that the paper prints there."""
        return self.suite.published.get((cell, measure.key))

    @cached_property
    def differences(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Cell -> {path: (paper's value, value here)}, of cells that were run; of all where none was."""
        cells = [cell for cell in self.suite.cells if cell.name in self.outcomes] or list(self.suite.cells)
        return {cell.name: differences(self.suite.experiment(cell), self.experiment(cell)) for cell in cells}


def _may_be_a_class(share: float, experiment: Experiment) -> bool:
    """True if a class may have this share of the pooled test samples of an experiment; it may if that is not known.

    It is known of the package's sets of images in their published split, whose classes are nearly equally frequent.
    Classes that no client holds have no test sample.
    """
    info = BUILTIN.get(experiment.data.name)
    if info is None or len(info.shape) < 3 or experiment.data.pooled:
        return True
    held = (experiment.get("partition.clients") or 1) * (experiment.get("partition.classes_per_client") or math.inf)
    low, high = CLASS_SHARES
    return low / info.n_classes <= share <= high / min(info.n_classes, held)


def altered(suite: Suite, changes: Changes) -> tuple[str, ...]:
    """Return what the user gave a suite: ("choices=kmnist.yaml", "training.lr=0.05")."""
    return (*((f"choices={suite.choices}",) if suite.choices else ()), *overrides.as_flags(changes))
