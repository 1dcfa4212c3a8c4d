"""A comparison as tables and one report."""

from collections.abc import Mapping
from datetime import datetime

import pandas as pd

from pfl_ops import metrics
from pfl_ops.reports.compare import Comparison, Line
from pfl_ops.reports.compared_pictures import pictures
from pfl_ops.reports.document import Block, Document, Entry, Head, Items, Row, Section, Table, Text
from pfl_ops.reports.numbers import VIEWS, chance, count, number, rounds_text, signed, size, spread, title_of
from pfl_ops.statistics import mean_std

COMMON = (
    *("data.name", "data.train_size", "partition.kind", "partition.clients", "model.name", "training.rounds"),
    *("training.local_epochs", "training.local_steps", "training.batch_size", "training.lr", "participation.share"),
    *("evaluation.split", "evaluation.subset"),
)

# -- in words ----------------------------------------------------------------------------------------------------------


def ahead(comparison: Comparison, line: Line) -> str:
    """How far a line is from the best: "best", or −0.041."""
    if line.difference is None:
        return "best" if line.values(comparison.metric, comparison.at) else "–"
    return signed(line.difference.difference) if line.difference.n else "no common seed"


def other_round(comparison: Comparison, line: Line) -> str:
    """The best round and its value, beside the last; or where the best ones are shown the last value."""
    if comparison.at == "best":
        return spread(line.values(comparison.metric, "final"))
    rounds = line.values("best/round")
    if not rounds:
        return "–"
    best = mean_std(line.values(comparison.metric, "best").values())[0]
    return f"{number(best)} @ {mean_std(rounds.values())[0]:.3g}"


# -- tables of plain data ----------------------------------------------------------------------------------------------


def summary(c: Comparison) -> pd.DataFrame:
    """See `Comparison.table`."""
    rows = []
    for line in c.lines:
        first, test = line.runs[0], line.difference
        row: dict[str, object] = {"label": line.label, "settings": line.settings, "method": first.method}
        row |= {"kind": first.kind, "n": len(line.runs)}
        row |= {"seeds": " ".join(str(run.seed) for run in line.runs), "split": first.split, "stage": line.stage}
        row |= _moments(c.metric, line.values(c.metric, c.at))
        for stage in line.stages:
            for metric in VIEWS.values():
                row |= _moments(f"{stage}/{metric}", line.values(f"{stage}/{metric}", c.at))
        row |= _moments("best/round", line.values("best/round"))
        row |= {f"best {c.metric}": mean_std(line.values(c.metric, "best").values())[0]}
        row |= {f"last {c.metric}": mean_std(line.values(c.metric, "final").values())[0]}
        if test is not None:
            row |= {"difference": test.difference, "low": test.low, "high": test.high, "p": test.p, "pairs": test.n}
        if c.target is not None:
            reached = line.rounds_to(c.target, c.target_metric)
            there = {seed: float(value) for seed, value in reached.items() if value is not None}
            row |= _moments(f"rounds to {c.target:g}", there) | {"reached": len(there)}
        row |= _moments("bytes", line.cost("cost/up_bytes", "cost/down_bytes"))
        row |= _moments("seconds", line.cost("cost/train_seconds"))
        rows.append(row)
    return pd.DataFrame(rows)


def by_run(c: Comparison) -> pd.DataFrame:
    """See `Comparison.runs`."""
    rows = []
    for line in c.lines:
        reached = line.rounds_to(c.target, c.target_metric) if c.target is not None else {}
        up, down, seconds = (line.cost(f"cost/{key}") for key in ("up_bytes", "down_bytes", "train_seconds"))
        for run in line.runs:
            s = run.seed
            row: dict[str, object] = {"run_id": run.run_id, "name": run.name, "experiment": run.experiment}
            row |= {"study": run.study, "kind": run.kind, "line": line.label, "method": run.method, "seed": s}
            row |= {"group": run.group}
            row |= {"split": run.split, "stage": run.stage, c.metric: line.values(c.metric, c.at).get(s)}
            if c.target is not None:
                row[f"rounds to {c.target:g}"] = reached.get(s)
            row |= {"up_bytes": up.get(s), "down_bytes": down.get(s), "train_seconds": seconds.get(s)}
            keys = (key for key in sorted(run.metrics) if key.startswith(("final/", "best/", "reached/")))
            row |= {key: run.metrics[key] for key in keys}
            rows.append(row | {f"param {path}": run.params[path] for path in sorted(run.params)})
    return pd.DataFrame(rows)


def _moments(name: str, values: Mapping[int, float]) -> dict[str, float | None]:
    mean, std = mean_std(values.values())
    return {name: mean, f"{name} std": std}


# -- tables of the report ----------------------------------------------------------------------------------------------


def results(c: Comparison) -> Table:
    """The table that answers: accuracies in the stage where each method is judged, and how far from the best."""
    views = dict(VIEWS)
    if c.metric not in views.values():
        views[title_of(c.metric)] = c.metric
    best = {metric: _best(c, metric) for metric in views.values()}
    rows = []
    for line in c.lines:
        title = Entry(line.label, below=tuple(filter(None, line.settings.split(", "))))
        entries = [title, Entry(str(len(line.runs)), len(line.runs)), Entry(line.stage)]
        for metric in views.values():
            values = line.values(metric, c.at)
            entries.append(_entry(values, mark="best" if values and line is best[metric] and len(c.lines) > 1 else ""))
        rows.append(Row((*entries, *_tested(c, line))))
    to_best = f"{title_of(c.metric)} less the best line's over common seeds, with its 95 % interval (paired t)."
    chances = (
        "Two-sided, corrected for the number of tests (Holm). The best line was found by the same numbers: p says how "
        "clear its lead is, and no more."
    )
    heads = (*map(Head, ("", "n", "stage", *views)), Head("vs best", note=to_best), Head("p", note=chances))
    notes = (
        "Mean ± sample standard deviation over n repetitions, at "
        + ("the last round." if c.at == "final" else "each run's best round."),
        "Accuracies are fractions, means over clients; Acc = Acc(L) + Acc(G). Stage: where the method is judged.",
    )
    caption = f"Ordered by {title_of(c.metric)}."
    return Table("results", caption, (heads,), tuple(rows), notes, c.table)


def _tested(c: Comparison, line: Line) -> tuple[Entry, Entry]:
    test = line.difference
    if test is None or not test.n:
        return Entry(ahead(c, line), mark="" if test is None else "muted"), Entry("–", mark="muted")
    between = f"{signed(test.low)} to {signed(test.high)}" if test.low is not None and test.high is not None else ""
    return (
        Entry(signed(test.difference), test.difference, below=(between,) if between else ()),
        Entry(chance(test.p), test.p, mark="" if test.p is None or test.p < 0.05 else "muted"),
    )


def stages(c: Comparison) -> Table:
    """Accuracies of every stage."""
    there = [stage for stage in metrics.STAGES if any(stage in line.stages for line in c.lines)]
    names = list(VIEWS)[:3]
    rows = [
        Row((Entry(line.label), *(_entry(line.values(f"{s}/{VIEWS[name]}", c.at)) for s in there for name in names)))
        for line in c.lines
    ]
    head = (Head(""), *(Head(stage, len(names)) for stage in there)), (Head(""), *map(Head, names * len(there)))
    note = "L1: as clients hold their models after the round; L2: after local training; G: the common model."
    return Table("stages", "Accuracy in every stage.", head, tuple(rows), (note,))


def costs(c: Comparison) -> Table:
    """When, and for how much."""
    head = ["", "last", "best", "best round"]
    if c.target is not None:
        head.append(f"rounds to {title_of(c.target_metric)} ≥ {c.target:g}")
    rows = []
    for line in c.lines:
        entries = [Entry(line.label), *(_entry(line.values(c.metric, at)) for at in ("final", "best"))]
        entries.append(_entry(line.values("best/round"), 1))
        if c.target is not None:
            reached = line.rounds_to(c.target, c.target_metric)
            there = [r for r in reached.values() if r is not None]
            entries.append(Entry(rounds_text(reached), mean_std(there)[0] if there else None))
        for keys in (["cost/up_bytes"], ["cost/down_bytes"]):
            values = line.cost(*keys)
            entries.append(Entry(size(values), mean_std(values.values())[0] if values else None))
        rows.append(Row((*entries, _entry(line.cost("cost/train_seconds"), 1))))
    notes = (
        f"{title_of(c.metric)} at the last round, where everything is scored, and at the best one (by Acc), as scored "
        "during the run: on the subset that the curves are of.",
        "Bytes: by all clients and to all of them, over all rounds. Seconds: training, on a machine as busy as it was.",
    )
    heads = tuple(map(Head, [*head, "sent", "received", "seconds"]))
    return Table("costs", "Rounds and cost.", (heads,), tuple(rows), notes)


def run_table(c: Comparison) -> Table:
    """The runs behind the lines."""
    rows = [
        Row(
            (
                Entry(run.run_id[:8], more=(run.run_id,)),
                *map(Entry, (run.name, line.label, run.experiment, str(run.seed))),
                _entry({s: v for s, v in line.values(c.metric, c.at).items() if s == run.seed}),
            )
        )
        for line in c.lines
        for run in line.runs
    ]
    head = tuple(map(Head, ("run", "name", "line", "experiment", "seed", title_of(c.metric))))
    return Table("runs", "The runs.", (head,), tuple(rows), data=c.runs)


def _entry(values: Mapping[int, float], digits: int = 3, mark: str = "") -> Entry:
    if not values:
        return Entry("–", mark="missing")
    return Entry(spread(values, digits), mean_std(values.values())[0], mark=mark)  # type: ignore[arg-type]


def _best(c: Comparison, metric: str) -> Line | None:
    sign = -1 if metrics.smaller_is_better(metric) else 1
    there = [line for line in c.lines if line.values(metric, c.at)]
    return max(there, key=lambda line: sign * mean_std(line.values(metric, c.at).values())[0], default=None)


# -- the report --------------------------------------------------------------------------------------------------------


def document(c: Comparison) -> Document:
    """See `Comparison.document`."""
    n = sum(len(line.runs) for line in c.lines)
    first: list[Block] = [Text(f"Not a fair comparison: {line}.", "warning") for line in c.complaints]
    first += [results(c), *(Text(f"{line[0].upper()}{line[1:]}.", "note") for line in c.remarks)]
    more = [stages(c)] if any(len(line.stages) > 1 for line in c.lines) else []
    sections = [
        Section("Which is best", tuple(first)),
        Section("Pictures", tuple(pictures(c))),
        Section("Stages, rounds and cost", (*more, costs(c))),
        Section("What was compared", (Items(_common(c)), run_table(c))),
    ]
    return Document(
        "compare",
        f"Compared: {_and(list(dict.fromkeys(line.runs[0].method for line in c.lines)))}",
        f"{count(len(c.lines), 'setting')}, {count(n, 'run')}",
        tuple(section for section in sections if section.blocks),
        f"pfl-ops compare, {datetime.now():%Y-%m-%d %H:%M}, from {c.place}",
    )


def _and(methods: list[str]) -> str:
    if len(methods) > 6:
        return f"{len(methods)} methods"
    return " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))


def _common(c: Comparison) -> tuple[tuple[str, str], ...]:
    """The settings that all runs share."""
    runs = [run for line in c.lines for run in line.runs]
    alike = {path: {run.params.get(path, "None") for run in runs} for path in COMMON}
    return tuple((path, values.pop()) for path, values in alike.items() if len(values) == 1 and values != {"None"})
