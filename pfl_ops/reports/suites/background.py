"""Background of a suite's numbers: damage of the text, runs, machine, cost."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from pfl_ops import tag_names
from pfl_ops.errors import count, format_bytes
from pfl_ops.federation.loop.estimate import duration
from pfl_ops.metric_keys import TRAFFIC_COSTS
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import ItemList, PageBlock, Row, Table, TableCell, Text
from pfl_ops.results import Result

TAGS = {
    tag_names.DEVICE: "device",
    tag_names.CPU: "processor",
    "version.python": "Python",
    "version.torch": "PyTorch",
    "version.ray": "Ray",
    "version.mlflow": "MLflow",
    "version.pfl-ops": "pfl-ops",
    tag_names.GIT_REVISION: "revision",
}


def left_open(run: SuiteRun) -> Iterator[PageBlock]:
    """Parts of the paper's text that are damaged, and parts of the exhibit that are not measured."""
    if run.suite.damage:
        yield Text("What extraction of the paper's text damaged:")
        yield ItemList(tuple(("", text) for text in run.suite.damage))
    if run.suite.unmeasured:
        yield Text("What it shows and this does not:")
        yield ItemList(tuple(("", text) for text in run.suite.unmeasured))


def cost(run: SuiteRun) -> Iterator[PageBlock]:
    """The runs by cell, and what they ran on."""
    outcomes = [outcome for cell in run.suite.cells for outcome in run.outcomes.get(cell.name, ())]
    if run.problems:
        yield Text("Could not be run:")
        yield ItemList(tuple(run.problems.items()))
    items = dict(run.about)
    for tag, title in TAGS.items():
        values = [outcome.tags[tag] for outcome in outcomes if outcome.tags.get(tag)]
        if values:
            part = f" ({len(values)} of {count(len(outcomes), 'run')})" * (len(values) < len(outcomes))
            items.setdefault(title, ", ".join(sorted(set(values))) + part)
    if rows := sum(outcome.measures is not None for outcome in outcomes):
        items["from a results file"] = f"{count(rows, 'run')}, of which time and machine are not known here"
    seconds = [outcome.seconds for outcome in outcomes if not math.isnan(outcome.seconds)]
    if seconds:
        items["computing"] = f"{duration(sum(seconds))} in {count(len(seconds), 'run')}"
    sent = [value for value in map(traffic, outcomes) if value is not None]
    if sent:
        items["sent"] = _size(sum(sent))
    if items:
        yield ItemList(tuple(items.items()))
    if outcomes:
        yield _runs(run)


def _runs(run: SuiteRun) -> Table:
    rows, each = [], []
    for cell in run.suite.cells:
        found = run.outcomes.get(cell.name, [])
        if not found:
            continue
        seconds = _mean([outcome.seconds for outcome in found])
        sent = _mean([value for value in map(traffic, found) if value is not None])
        costs = (
            TableCell("–", mark="muted") if math.isnan(value) else TableCell(shown(value), value)
            for value, shown in ((seconds, duration), (sent, _size))
        )
        seeds = ", ".join(str(outcome.seed) for outcome in found)
        rows.append(Row.of(TableCell(cell.name, link=run.link(found[0])), len(found), seeds, *costs))
        each += [
            {
                "cell": cell.name,
                "seed": outcome.seed,
                "run": outcome.run_id,
                "seconds": outcome.seconds,
                "sent_bytes": traffic(outcome),
                "data": run.stand_ins.get(cell.name, ""),
            }
            for outcome in found
        ]
    heads = ("cell", "n", "seeds", "time a run", "sent a run")
    note = "Time: of training and evaluation. Sent: by the server and all clients together."
    return Table.of("runs", "Every cell that was run", heads, rows, [note], pd.DataFrame(each))


def traffic(outcome: Result) -> float | None:
    """Bytes sent in all rounds, up and down; None: not read."""
    return outcome.spent(*TRAFFIC_COSTS)


def _size(sent: float) -> str:
    return format_bytes(round(sent))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
