"""What is behind a suite's numbers: settings that differ from the paper's or are open there, runs, machine, cost."""

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

import pandas as pd

from pfl_ops.federation.estimate import duration
from pfl_ops.machine import cpu_model
from pfl_ops.papers import Outcome
from pfl_ops.reports.document import Block, Entry, Head, Items, Row, Table, Text
from pfl_ops.reports.ran import Ran

MOST = 5  # pairs of values of one setting that are told apart
BYTES = ("cost/up_bytes", "cost/down_bytes")
TAGS = {
    "pfl_ops.device": "device",
    "pfl_ops.cpu": "processor",
    "version.python": "Python",
    "version.torch": "PyTorch",
    "version.ray": "Ray",
    "version.mlflow": "MLflow",
    "version.pfl-ops": "pfl-ops",
    "pfl_ops.git_revision": "revision",
}


def differences(ran: Ran) -> Iterator[Block]:
    """Every setting that is not the paper's own at this scale, and in which cells."""
    rows: list[tuple[str, str, str, str]] = []
    if ran.suite.repetitions != ran.n:
        rows.append(("repetitions", str(ran.suite.repetitions), str(ran.n), "all cells"))
    by_path: dict[str, dict[tuple[str, str], list[str]]] = {}
    for cell, found in ran.differences.items():
        for path, (paper, here) in found.items():
            by_path.setdefault(path, {}).setdefault((shown(paper), shown(here)), []).append(cell)
    for path, pairs in by_path.items():
        if len(pairs) > MOST:
            cells = [cell for found in pairs.values() for cell in found]
            theirs, ours = ({pair[side] for pair in pairs} for side in (0, 1))
            rows.append((path, _several(theirs), _several(ours), _where(ran, cells)))
        else:
            rows += [(path, *pair, _where(ran, cells)) for pair, cells in pairs.items()]
    if not rows:
        yield Text("Nothing: every cell has the paper's own setting, as far as the paper states one.")
        return
    heads = ("setting", "the paper", "here", "where")
    body = [Row(tuple(Entry(text if i else f"`{text}`") for i, text in enumerate(row))) for row in rows]
    note = "Settings that are not listed are the paper's, or among those that it leaves open."
    yield Table("differences", f"What scale {ran.scale} changes", (tuple(map(Head, heads)),), tuple(body), (note,))


def left_open(ran: Ran) -> Iterator[Block]:
    """What the paper does not state and what was chosen; what is damaged, and what is not measured."""
    if ran.suite.ours:
        flats = [ran.suite.experiment(ran.suite.cell(cell)).flat for cell in ran.differences]
        body = []
        for path, reason in ran.suite.ours.items():
            values = list(dict.fromkeys(shown(flat[path]) for flat in flats if path in flat))
            body.append(
                Row((Entry(f"`{path}`"), Entry(", ".join(values[:4]) + ", …" * (len(values) > 4)), Entry(reason)))
            )
        heads = tuple(map(Head, ("setting", "chosen", "why")))
        yield Table("ours", "What the paper does not state: these values are ours", (heads,), tuple(body))
    if ran.suite.damage:
        yield Text("What extraction of the paper's text damaged:")
        yield Items(tuple(("", text) for text in ran.suite.damage))
    if ran.suite.unmeasured:
        yield Text("What it shows and this does not:")
        yield Items(tuple(("", text) for text in ran.suite.unmeasured))


def cost(ran: Ran) -> Iterator[Block]:
    """The runs by cell, and what they ran on."""
    outcomes = [outcome for cell in ran.suite.cells for outcome in ran.outcomes.get(cell.name, ())]
    if ran.problems:
        yield Text("Could not be run:")
        yield Items(tuple(ran.problems.items()))
    items = dict(ran.about)
    for tag, title in TAGS.items():
        values = sorted({outcome.tags[tag] for outcome in outcomes if outcome.tags.get(tag)})
        said = ", ".join(values) or (_here(tag) if outcomes else "")
        if said:
            items.setdefault(title, said)
    seconds = [outcome.seconds for outcome in outcomes if not math.isnan(outcome.seconds)]
    if seconds:
        items["computing"] = f"{duration(sum(seconds))} in {len(seconds)} runs"
    sent = [value for value in map(traffic, outcomes) if value is not None]
    if sent:
        items["sent"] = amount(sum(sent))
    if items:
        yield Items(tuple(items.items()))
    if outcomes:
        yield _runs(ran)


def _runs(ran: Ran) -> Table:
    rows, each = [], []
    for cell in ran.suite.cells:
        found = ran.outcomes.get(cell.name, [])
        if not found:
            continue
        seconds = _mean([outcome.seconds for outcome in found])
        sent = _mean([value for value in map(traffic, found) if value is not None])
        rows.append(
            Row((
                Entry(cell.name, link=ran.link(found[0])),
                Entry(str(len(found)), len(found)),
                Entry(", ".join(str(outcome.seed) for outcome in found)),
                Entry("–", mark="muted") if math.isnan(seconds) else Entry(duration(seconds), seconds),
                Entry("–", mark="muted") if math.isnan(sent) else Entry(amount(sent), sent),
            ))
        )  # fmt: skip
        each += [
            {
                "cell": cell.name,
                "seed": outcome.seed,
                "run": outcome.run_id,
                "seconds": outcome.seconds,
                "sent_bytes": traffic(outcome),
                "data": ran.stand_ins.get(cell.name, ""),
            }
            for outcome in found
        ]
    heads = tuple(map(Head, ("cell", "n", "seeds", "time a run", "sent a run")))
    note = "Time: of training and evaluation. Sent: by the server and all clients together."
    return Table("runs", "Every cell that was run", (heads,), tuple(rows), (note,), pd.DataFrame(each))


def traffic(outcome: Outcome) -> float | None:
    """Bytes sent in all rounds, up and down; None: not read."""
    curves = [outcome.curve(key) for key in BYTES]
    return sum(sum(curve.values()) for curve in curves) if any(curves) else None


def amount(count: float) -> str:
    """1.2 GB"""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def shown(value: Any) -> str:
    """A setting's value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _here(tag: str) -> str:
    """What a run of this process would be tagged with."""
    if tag == "pfl_ops.cpu":
        return cpu_model() or ""
    if tag == "version.python":
        return platform.python_version()
    try:
        return installed(tag.removeprefix("version.")) if tag.startswith("version.") else ""
    except PackageNotFoundError:
        return ""


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _several(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else f"{len(values)} values"


def _where(ran: Ran, cells: Sequence[str]) -> str:
    """Which cells these are, by the axis that tells them apart from the others, where one does."""
    whole: Mapping[str, Any] = ran.differences
    if len(cells) == len(whole):
        return "all cells"
    for axis in ran.labels:
        labels = dict.fromkeys(ran.suite.cell(cell).labels[axis] for cell in cells)
        there = [cell for cell in whole if ran.suite.cell(cell).labels[axis] in labels]
        if len(there) == len(cells):
            return f"{axis} {', '.join(ran.title(axis, label) for label in labels)}"
    return cells[0] if len(cells) == 1 else f"{len(cells)} of {len(whole)} cells"
