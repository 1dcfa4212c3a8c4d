"""Settings of a suite's cells with their origins: stated by the paper, at scale full, and here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from pfl_ops.errors import by_key
from pfl_ops.papers import Cell
from pfl_ops.papers.provenance import Source
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Mark, PageBlock, Row, Table, TableCell, Text

MOST_VALUES = 5  # rows of one setting; more are summed up in one
UNKNOWN = "–"
HEADS = ("setting", "stated", "ours at full", "here", "where", "origin")
HERE = HEADS.index("here")

SET = "(--set)"  # behind a value that the user changed

SettingGroup: TypeAlias = Literal[
    "set", "changed", "substitute", "runs", "departure", "assumption", "none", "stated", "no effect"
]
TITLES: Mapping[SettingGroup, str] = {
    "set": "Changed by --set",
    "changed": "Changed by scale {scale}",
    "substitute": "Changed with the data set, which is not here",
    "runs": "Another number of repetitions than scale {scale} has",
    "departure": "Run otherwise than the paper states",
    "none": "Origin not recorded",
    "assumption": "Assumptions: the paper states no value",
    "stated": "Stated by the paper",
    "no effect": "Without effect on the results of these cells",
}
OPEN: Sequence[SettingGroup] = ("set", "changed", "substitute", "runs", "departure", "none", "assumption")
SETTLED: Sequence[SettingGroup] = ("stated", "no effect")


@dataclass(frozen=True)
class SettingLine:
    """One setting of one cell: its group, and the texts of a row without `where`."""

    group: SettingGroup
    path: str
    stated: str
    full: str
    here: str
    origin: str


@dataclass(frozen=True)
class Origins:
    """The settings of the cells of a report."""

    run: SuiteRun

    @cached_property
    def lines(self) -> dict[SettingLine, list[str]]:
        """Each line, and the cells that have it."""
        names = self.run.differences
        return by_key((line, name) for name in names for line in self._of_cell(self.run.suite.cell(name)))

    def _of_cell(self, cell: Cell) -> Iterator[SettingLine]:
        sources = self.run.suite.sources_of(cell)
        full: Mapping[str, Any] = self.run.suite.experiment(cell).flat
        here = {**self.run.experiment(cell).flat, "repetitions": self.run.n}
        unset = self.run.unchanged(cell).flat
        of_scale = self.run.suite.experiment(cell, self.run.scale).flat
        for path in {**full, **here}:
            source = sources.get(path)
            at_full, at_scale = (shown(settings[path]) if path in settings else UNKNOWN for settings in (full, here))
            group: SettingGroup = source.kind if source else "none"
            origin = source.text if source else "comes with another setting" if path not in full else "not recorded"
            if at_full != at_scale:
                group, origin = "changed", f"{source.kind}: {origin}" if source else origin
                if path == "repetitions" and here[path] != of_scale[path]:
                    group = "runs"
                elif unset.get(path) != of_scale.get(path):
                    group = "substitute"
            if path != "repetitions" and here.get(path) != unset.get(path):
                group, at_scale = "set", f"{at_scale} {SET}"
            yield SettingLine(group, path, statement(source, at_full), at_full, at_scale, origin)

    def rows(self, groups: Sequence[SettingGroup]) -> Iterator[Row]:
        """The rows of these groups, each group under its title."""
        for group in groups:
            of_group = {line: cells for line, cells in self.lines.items() if line.group == group}
            if of_group:
                yield Row(title=TITLES[group].format(scale=self.run.scale), kind="block")
            for path in dict.fromkeys(line.path for line in of_group):
                yield from self._of_path(path, {line: of_group[line] for line in of_group if line.path == path})

    def _of_path(self, path: str, lines: Mapping[SettingLine, Sequence[str]]) -> Iterator[Row]:
        if len(lines) > MOST_VALUES:
            stated, full, here, origin = (
                summary(getattr(line, name) for line in lines) for name in ("stated", "full", "here", "origin")
            )
            every = [cell for cells in lines.values() for cell in cells]
            lines = {SettingLine(next(iter(lines)).group, path, stated, full, here, origin): every}
        for line, cells in lines.items():
            mark: Mark = "open" if line.group in ("set", "changed", "substitute", "runs") else ""
            texts = (f"`{path}`", line.stated, line.full, line.here, where(self.run, cells), line.origin)
            yield Row(tuple(TableCell(text, mark=mark if i == HERE else "") for i, text in enumerate(texts)))

    def count(self, group: SettingGroup) -> int:
        """Number of settings in a group."""
        return len({line.path for line in self.lines if line.group == group})


def blocks(origins: Origins) -> Iterator[PageBlock]:
    """Settings that the scale changes, that are run otherwise than stated, and that the paper does not state."""
    scale = origins.run.scale
    counts = {group: origins.count(group) for group in TITLES}
    parts = [
        f"{counts['stated']} stated by the paper",
        f"{counts['assumption']} not stated, for which a value is assumed",
        f"{counts['departure']} run otherwise than stated",
        f"{counts['no effect']} without effect",
    ]
    parts += [f"{counts['changed']} changed by scale {scale}"] if scale != "full" else []
    parts += [f"{counts['substitute']} changed with the data set"] if counts["substitute"] else []
    parts += [f"{counts['set']} changed by --set"] if counts["set"] else []
    parts += [f"{counts['none']} of unrecorded origin"] if counts["none"] else []
    yield Text(
        f"Settings of these cells: {', '.join(parts)}. A setting counts once for each origin that it has in them."
    )
    rows = tuple(origins.rows(OPEN))
    if rows:
        note = "Stated: the paper's value, – where it states none. Each cell's whole configuration is linked below."
        yield Table.of("settings", "Settings that are not simply the paper's", HEADS, rows, [note])


def departures(run: SuiteRun) -> Iterator[PageBlock]:
    """Differences from the paper that no single setting shows, with their effect."""
    if found := run.suite.departures_at(run.scale):
        rows = (Row.of(one.text, one.effect or "not measured") for one in found)
        note = "Single settings that are run otherwise than stated are in the next table."
        yield Table.of("departures", "Departures from the paper", ("departure", "effect"), rows, [note])


def settled(origins: Origins) -> Iterator[PageBlock]:
    """Settings that run as the paper states them, and those without effect."""
    rows = tuple(origins.rows(SETTLED))
    if rows:
        yield Table.of("stated", "Settings that run as stated, and those without effect", HEADS, rows)


def configurations(run: SuiteRun) -> Iterator[PageBlock]:
    """The whole configuration of each cell, here and at full, as files that `pfl-ops run --config` reads."""
    scales = list(dict.fromkeys((run.scale, "full")))
    rows = [
        Row.of(cell.name, *(TableCell(f"at {scale}", link=place(cell, scale)) for scale in scales))
        for cell in run.suite.cells
    ]
    if rows:
        columns = ("cell", *("here" if scale == run.scale else f"at {scale}" for scale in scales))
        note = "Every value of a cell. Run one with: pfl-ops run --config FILE"
        yield Table.of("configurations", "Each cell's configuration", columns, rows, [note])


def files(run: SuiteRun) -> dict[str, str]:
    """Return {path below the report's folder: text} of the configurations."""
    found = {}
    for cell in run.suite.cells:
        for scale in dict.fromkeys((run.scale, "full")):
            experiment = run.experiment(cell) if scale == run.scale else run.suite.experiment(cell, scale)
            changed = (
                f", changed by --set: {run.changes_in_words}" if scale == run.scale and cell.name in run.changed else ""
            )
            about = f"# {run.suite.name}, cell {cell.name}, scale {scale}{changed}\n"
            found[place(cell, scale)] = f"{about}{experiment.to_yaml()}"
    return found


def place(cell: Cell, scale: str) -> str:
    """Return the path of a cell's configuration below the report's folder."""
    return f"configurations/{scale}/{cell.name.replace('/', '-')}.yaml"


def statement(source: Source | None, value: str) -> str:
    """Return what the paper states of a setting whose value at full is `value`."""
    if source is None or source.kind in ("assumption", "no effect"):
        return UNKNOWN
    return source.said if source.kind == "departure" else value


def shown(value: Any) -> str:
    """Return a setting's value as a YAML file has it, shortly."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value)) or "empty"
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary(values: Iterator[str]) -> str:
    """Return the value itself where all are equal, else their number."""
    different = dict.fromkeys(values)
    return next(iter(different)) if len(different) == 1 else f"{len(different)} values"


def where(run: SuiteRun, cells: Sequence[str]) -> str:
    """Return the cells by the axis that tells them apart from the others, where one does."""
    whole: Mapping[str, Any] = run.differences
    if len(cells) == len(whole):
        return "all cells"
    for axis in run.suite.labels:
        labels = dict.fromkeys(run.suite.cell(cell).labels[axis] for cell in cells)
        there = [cell for cell in whole if run.suite.cell(cell).labels[axis] in labels]
        if len(there) == len(cells):
            return f"{axis} {', '.join(run.title(axis, label) for label in labels)}"
    return cells[0] if len(cells) == 1 else f"{len(cells)} of {len(whole)} cells"
