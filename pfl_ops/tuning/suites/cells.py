"""Events of a call of `reproduce`, the suites that it hands over, and finished cells at other scales."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pfl_ops import tag_names
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.papers import CellResults, ScaleName, Suite
from pfl_ops.papers.exhibits import Curves, Energy
from pfl_ops.papers.measure_keys import history_keys
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.results import Result
from pfl_ops.tracking import Run
from pfl_ops.tracking.runs.run import now
from pfl_ops.tuning.suites.plans import CellRun, Part


@dataclass(frozen=True, kw_only=True)
class Reproduced(SuiteRun):
    """A suite as far as it has been run, earlier calls included.

    Attributes:
        part: what was planned of it. run: the suite's own run; a report belongs among its artifacts.
    """

    part: Part
    run: Run

    def keep(self, report: Path, metrics: Mapping[str, float]) -> None:
        """Put a report into the suite's run, and numbers that sum it up."""
        self.run.artifact(report, "report")
        self.run.log([Record(0, dict(metrics), now())])


Kind: TypeAlias = Literal["read", "begin", "claim", "start", "round", "end", "failed"]


@dataclass(frozen=True)
class CellEvent:
    """An event of a call of `reproduce`, or of one of its cells.

    Attributes:
        kind: read (of many finished runs), begin (of all), claim (which gets further seeds), start, round, end or
            failed (of a job).
        job: which. done, wanted: jobs that are over in this call, and all that it has to do.
        round: finished rounds. text: what is read; what it will take; why a job failed.
    """

    kind: Kind
    done: int
    wanted: int
    job: CellRun | None = None
    round: int = 0
    text: str = ""


OnCell: TypeAlias = Callable[[CellEvent], None]
OnSuite: TypeAlias = Callable[[Reproduced], None]


def needed(suite: Suite) -> set[str]:
    """The tracked keys of which a report of the suite wants the history."""
    asked = [measure.key for measure in suite.measures]
    asked += [f"{exhibit.key}@0" for exhibit in suite.exhibits if isinstance(exhibit, Curves | Energy)]
    meanings = {tuple(suite.stages(cell).items()) for cell in suite.cells}
    tracked = {tracked for key in asked for stages in meanings for tracked in history_keys(key, dict(stages))}
    energy = any(isinstance(exhibit, Energy) for exhibit in suite.exhibits)
    return {*tracked, *(("cost/up_bytes", "cost/clients") if energy else ())}


def elsewhere(part: Part, scale: ScaleName, finished: Iterable[Result]) -> dict[str, CellResults]:
    """Return the cells of a suite that are finished at another scale, as far as their runs say so.

    Of several runs with one seed it is the newest: the suite was changed since the others. Runs with settings that a
    user changed are no part of it; for a part with changed settings there is none.
    """
    if part.changes:
        return {}
    found: dict[str, dict[str, dict[int, Result]]] = {}
    cells = {cell.name: part.suite.stages(cell) for cell in part.suite.cells}
    for run in finished:
        other, cell = run.tags.get(tag_names.SCALE, ""), run.tags.get(tag_names.CELL, "")
        here = run.tags.get(tag_names.SUITE) == part.suite.name and cell in cells
        here = here and run.tags.get(tag_names.CHOICES, "") == part.suite.choices
        if here and other != scale and not {tag_names.SUBSTITUTE, tag_names.CHANGED} & set(run.tags):
            found.setdefault(other, {}).setdefault(cell, {})[run.seed] = replace(run, stages=cells[cell])
    return {scale: {cell: list(each.values()) for cell, each in of.items()} for scale, of in found.items()}
