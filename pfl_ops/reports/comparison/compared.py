"""A comparison as tables and one report. Column names and units are the same in all of them: see `numbers`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pandas as pd

from pfl_ops import metric_keys, metrics
from pfl_ops.comparison import EQUAL, LEVEL, Line, Test
from pfl_ops.display.tables import chance
from pfl_ops.errors import by_key, count, sentence
from pfl_ops.reports import numbers
from pfl_ops.reports.comparison.compared_notes import best_notes, p_notes, scored_notes
from pfl_ops.reports.comparison.compared_pictures import pictures
from pfl_ops.reports.comparison.comparison_data import BEST_ROUND, TEST_DESCRIPTIONS, ComparisonData, Group
from pfl_ops.reports.numbers import HEADINGS, order_text, title_of
from pfl_ops.reports.pages.document import (
    Document,
    Head,
    Mark,
    PageBlock,
    PageSection,
    Row,
    Table,
    TableCell,
    Text,
    anchor,
)
from pfl_ops.results import At, Result
from pfl_ops.statistics import mean_std
from pfl_ops.units import MIB, difference_title, part_of, signed, unit_of

TRAFFIC = {"sent MiB": "cost/up_bytes", "received MiB": "cost/down_bytes"}
"""Column -> tracked cost of a round: by all clients, and to all of them."""
SECONDS = "train seconds"
INTERVALS: Mapping[Test, str] = {
    "anytime": "confidence sequence, which holds at every number of seeds at once (unbounded for one or two)",
    "t": "interval (paired t)",
}
SEQUENTIAL = (
    "The anytime-valid test takes the seeds in order, up to the first one that a line lacks. Before it is corrected, p "
    "is at least 0.22 with two seeds, 0.032 with three and 0.0038 with four. Equal differences decide nothing."
)


# -- in words ----------------------------------------------------------------------------------------------------------


BEST = "best"
"""Word of `ahead` for a first line that the test tells apart from all others."""


def ahead(c: ComparisonData, group: Group, line: Line) -> str:
    """Return the difference to the first line as text: "−4.10", or what stands there of a line without one.

    "best" is said of the first line of a fair group of two or more if the test tells every other one apart from it, on
    the losing side; else it is the "highest", or "lowest", and "tied" if another one has its mean.
    """
    if line.unfinished:
        return "not finished"
    if line.diverged:
        return f"{len(line.diverged)} of {len(line.runs) + len(line.diverged)} diverged"
    if line.difference is not None:
        return signed(line.difference.difference, group.metric) if line.difference.n else "no common seed"
    ranked = [one for one in group.lines if one.is_ranked(group.metric, c.at)]
    if len(ranked) < 2 or line not in ranked or metric_keys.is_neutral(group.metric):
        return "–"
    smaller = metric_keys.smaller_is_better(group.metric)
    if group.fair and all(one.is_behind(smaller=smaller) for one in ranked if one.difference):
        return BEST
    means = [round(mean_std(one.values(group.metric, c.at).values())[0], EQUAL) for one in ranked]
    return f"{'lowest' if smaller else 'highest'}{', tied' * (means.count(means[0]) > 1)}"


def text_of(line: Line, metric: str, at: At = "final") -> str:
    """Return a metric of a line in its unit, without the unit's name: "91.2 ± 0.4", see `_of_runs`."""
    values = line.values(metric, at)
    return _spread(values, metric) + _of_runs(line, values)


def _spread(values: Mapping[int, float], metric: str) -> str:
    if metric == BEST_ROUND:
        return numbers.rounds_text(values)
    return numbers.spread(numbers.in_unit(values, metric), unit_of(metric).digits)


def _of_runs(line: Line, values: Mapping[int, float]) -> str:
    """Return " (3 of 5)" for a mean over the seeds that have a value, if others of the line have none; else ""."""
    n = len({run.seed for run in line.runs})
    return part_of(len(values), n)


def shown_metrics(group: Group) -> dict[str, str]:
    """Return column -> metric: the views of a stage, and the metric that decides."""
    return HEADINGS if group.metric in HEADINGS.values() else {**HEADINGS, title_of(group.metric): group.metric}


def other_rounds(c: ComparisonData, group: Group) -> dict[str, tuple[str, At]]:
    """Return column -> (metric, "final" or "best") of the round that is not compared, and the best round's number.

    The first one is left out if no line has a value of it: a best round has scores alone.
    """
    word = "last" if c.at == "best" else "best"
    at: At = "final" if c.at == "best" else "best"
    has_value = any(line.values(group.metric, at) for line in group.lines)
    other: dict[str, tuple[str, At]] = {f"{word} {title_of(group.metric)}": (group.metric, at)} if has_value else {}
    return other | {"best round": (BEST_ROUND, "final")}


# -- tables of plain data ----------------------------------------------------------------------------------------------


def summary(c: ComparisonData) -> pd.DataFrame:
    """See `Comparison.table`."""
    return pd.DataFrame([_line_row(c, group, line) for group in c.groups for line in group.lines])


def _line_row(c: ComparisonData, group: Group, line: Line) -> dict[str, object]:
    """The row of a line in `Comparison.table`."""
    first, test = line.runs[0], line.difference
    row: dict[str, object] = {
        "group": group.title,
        "setting": line.label,
        "other settings": line.settings,
        "method": first.method,
        "kind": first.kind,
        "state": first.state,
        "n": len(line.runs),
        "diverged seeds": len(line.diverged),
        "seeds": " ".join(str(run.seed) for run in line.runs),
        "split": first.split,
        "stage": line.stage,
    }
    columns = shown_metrics(group) | {
        title_of(f"{stage}/{metric}"): f"{stage}/{metric}"
        for stage in line.stages
        if stage != line.stage
        for metric in HEADINGS.values()
    }
    for name, metric in columns.items():
        row |= _moments(name, numbers.in_unit(line.values(metric, c.at), metric))
    if test is not None:
        factor = unit_of(group.metric).factor
        row |= {
            difference_title(group.metric): test.difference * factor,
            "95 % low": None if test.low is None else test.low * factor,
            "95 % high": None if test.high is None else test.high * factor,
            "p": test.p,
            "common seeds": test.n,
            "p seeds": test.n_tested,
            "test": c.test,
        }
    for name, (metric, at) in other_rounds(c, group).items():
        row |= _moments(name, numbers.in_unit(line.values(metric, at), metric))
    if c.target is not None:
        reached = line.rounds_to(c.target, c.target_metric)
        there = {seed: float(value) for seed, value in reached.items() if value is not None}
        row |= _moments(numbers.target_title(c.target_metric, c.target), there) | {"reached": len(there)}
    for name, cost in TRAFFIC.items():
        row |= _moments(name, {seed: value / MIB for seed, value in line.cost(cost).items()})
    return row | _moments(SECONDS, line.cost("cost/train_seconds"))


def by_run(c: ComparisonData) -> pd.DataFrame:
    """See `Comparison.runs`."""
    return pd.DataFrame([row for group in c.groups for line in group.lines for row in _run_rows(c, group, line)])


def _run_rows(c: ComparisonData, group: Group, line: Line) -> Iterator[dict[str, object]]:
    """The rows of the runs of a line in `Comparison.runs`."""
    columns = {name: (metric, c.at) for name, metric in shown_metrics(group).items()} | other_rounds(c, group)
    values = {name: numbers.in_unit(line.values(metric, at), metric) for name, (metric, at) in columns.items()}
    reached = line.rounds_to(c.target, c.target_metric) if c.target is not None else {}
    costs = {name: line.cost(key) for name, key in TRAFFIC.items()}
    seconds = line.cost("cost/train_seconds")
    for run in line.runs:
        s = run.seed
        row: dict[str, object] = {
            "run_id": run.run_id,
            "name": run.name,
            "experiment": run.place,
            "study": run.study,
            "kind": run.kind,
            "state": run.state,
            "group": group.title,
            "setting": line.label,
            "method": run.method,
            "seed": s,
            "group_hash": run.group,
            "diverged seeds": len(line.diverged),
            "split": run.split,
            "stage": run.stage,
        }
        row |= {name: by_seed.get(s) for name, by_seed in values.items()}
        if c.target is not None:
            row[numbers.target_title(c.target_metric, c.target)] = reached.get(s)
        row |= {name: by_seed[s] / MIB if s in by_seed else None for name, by_seed in costs.items()}
        row[SECONDS] = seconds.get(s)
        keys = (key for key in sorted(run.metrics) if key.startswith(("final/", "best/", "reached/")))
        row |= {key: run.metrics[key] for key in keys}
        yield row | {f"param {path}": run.params[path] for path in sorted(run.params)}


def _moments(name: str, values: Mapping[int, float]) -> dict[str, float | None]:
    mean, std = mean_std(values.values())
    return {name: mean, f"{name} std": std}


# -- tables of the report ----------------------------------------------------------------------------------------------


COST_READING = (
    "Best round: by Acc(L)+Acc(G), as scored during the run, on the subset that the curves are of. It may be below the "
    "last round, which may stand on other samples.",
    "MiB: sent by all clients, and received by all, over all rounds. Seconds: training, on a machine with its other "
    "load.",
)
"""Notes that hold for the table of rounds and costs of every group."""


def reading(c: ComparisonData) -> tuple[str, ...]:
    """Return the notes that hold for the table of results of every group."""
    at_round = "the last round" if c.at == "final" else "each run's best round"
    return (
        f"Mean ± sample standard deviation over n repetitions, at {at_round}; (3 of 5): over the 3 that have a value. "
        "Accuracies are means over clients.",
        "Stage: L1, what clients hold after the update; L2, their models after local training; G, the global model. "
        "Each method is judged in its own stage.",
        "Difference to the first: mean over common seeds of the line's value less the first line's, for accuracies in "
        f"percentage points, with its 95 % {INTERVALS[c.test]}, not corrected.",
        f"p: {TEST_DESCRIPTIONS[c.test]}; two-sided, corrected for all pairs of the group (Holm), since the same "
        "values decide which line is first. There is neither p nor interval if two lines differ in more than what is "
        "compared, nor of best rounds.",
        *([SEQUENTIAL] if c.test == "anytime" else []),
        "Best: the first line, if every other line is worse than it over common seeds, with p below 0.05. Otherwise it "
        "is the highest, or the lowest: of the means over all seeds that each line has; tied if another line has the "
        "same mean. The highest means of a column, "
        "as shown, are marked, whatever the test says.",
    )


def headings(c: ComparisonData, group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns behind the settings: those of the results, and those of rounds and costs."""
    target = [] if c.target is None else [numbers.target_title(c.target_metric, c.target)]
    results = ("n", "stage", *shown_metrics(group), difference_title(group.metric), "p")
    return results, (*other_rounds(c, group), *target, *TRAFFIC, SECONDS)


def cells(c: ComparisonData, group: Group, line: Line) -> dict[str, TableCell]:
    """Return the cell of a line in each column of `headings`."""
    found = {"n": TableCell(str(len(line.runs)), len(line.runs)), "stage": TableCell(line.stage)}
    found |= {name: _entry(line, metric, c.at) for name, metric in shown_metrics(group).items()}
    found[difference_title(group.metric)], found["p"] = _tested(c, group, line)
    found |= {name: _entry(line, metric, at) for name, (metric, at) in other_rounds(c, group).items()}
    if c.target is not None:
        reached = line.rounds_to(c.target, c.target_metric)
        there = [r for r in reached.values() if r is not None]
        mean = mean_std(there)[0] if there else None
        found[numbers.target_title(c.target_metric, c.target)] = TableCell(numbers.rounds_text(reached), mean)
    for name, cost in TRAFFIC.items():
        values = line.cost(cost)
        mean = mean_std(values.values())[0] / MIB if values else None
        found[name] = TableCell(numbers.mean_mebibytes(values), mean)
    seconds = line.cost("cost/train_seconds")
    found[SECONDS] = TableCell(numbers.spread(seconds, 1), mean_std(seconds.values())[0] if seconds else None)
    return found


def results(c: ComparisonData, group: Group, notes: tuple[str, ...] = ()) -> Table:
    """Return the main table: accuracies in the stage where each method is judged, and differences to the best."""
    heads = headings(c, group)[0]
    best = {name: highest(c, group, metric) for name, metric in shown_metrics(group).items()}
    rows = []
    for line in group.lines:
        found = cells(c, group, line)
        for name in best:
            mark: Mark = "best" if line in best[name] else "muted" if line.unfinished else ""
            found[name] = found[name] if found[name].mark == "missing" else replace(found[name], mark=mark)
        title = TableCell(line.label, below=tuple(filter(None, line.settings.split(", "))))
        rows.append(Row((title, *(found[head] for head in heads))))
    at_round = "at the last round" if c.at == "final" else "at each run's best round"
    caption = f"{group.title}: {group.size}, {at_round}, ordered {order_text(group.metric)}."
    table = summary(c)
    data = table[table["group"] == group.title]
    told = (*scored_notes(group), *p_notes(c, group), *(best_notes(c, group) if c.at == "best" else ()))
    all_notes = (*notes, *map(sentence, told))
    return Table.of(_name(c, group, "results"), caption, ("setting", *heads), rows, all_notes, data)


def _tested(c: ComparisonData, group: Group, line: Line) -> tuple[TableCell, TableCell]:
    test = line.difference
    if test is None or not test.n:
        return TableCell(ahead(c, group, line), mark="" if test is None else "muted"), TableCell("–", mark="muted")
    ends = () if test.low is None or test.high is None else (test.low, test.high)
    between = (" to ".join(signed(end, group.metric) for end in ends),) if ends else ()
    return (
        TableCell(signed(test.difference, group.metric), test.difference * unit_of(group.metric).factor, below=between),
        TableCell(chance(test.p), test.p, mark="" if test.p is None or test.p < LEVEL else "muted"),
    )


def stages(c: ComparisonData, group: Group) -> Table:
    """Return the accuracies of every stage."""
    there = [stage for stage in metrics.STAGES if any(stage in line.stages for line in group.lines)]
    names = list(HEADINGS)[:3]
    rows = [
        Row((TableCell(line.label), *(_entry(line, f"{s}/{HEADINGS[name]}", c.at) for s in there for name in names)))
        for line in group.lines
    ]
    over = (Head(""), *(Head(stage, len(names)) for stage in there))
    head = (over, (Head("setting"), *map(Head, names * len(there))))
    return Table(_name(c, group, "stages"), f"{group.title}: accuracy in every stage.", head, tuple(rows))


def costs(c: ComparisonData, group: Group, notes: tuple[str, ...] = ()) -> Table:
    """Return rounds and costs."""
    heads = headings(c, group)[1]
    each = ((line, cells(c, group, line)) for line in group.lines)
    rows = [Row((TableCell(line.label), *(found[head] for head in heads))) for line, found in each]
    of_group = tuple(map(sentence, best_notes(c, group))) if c.at == "final" else ()
    caption = f"{group.title}: rounds and cost."
    return Table.of(_name(c, group, "costs"), caption, ("setting", *heads), rows, (*notes, *of_group))


def run_table(c: ComparisonData) -> Table:
    """Return the runs behind the lines."""
    rows = [
        Row.of(
            TableCell(str(run.run_id)[:8], more=(str(run.run_id),)),
            *(run.name, group.title, line.label, run.place, str(run.seed)),
            _in_words(c, group, _entry(line, group.metric, c.at, seed=run.seed)),
        )
        for group in c.groups
        for line in group.lines
        for run in line.runs
    ]
    heads = ("run", "name", "group", "setting", "experiment", "seed", title_of(c.metric))
    return Table.of("runs", "The runs of all groups.", heads, rows, data=by_run(c))


def overview(c: ComparisonData) -> Table:
    """Return the first line of each group."""
    rows = []
    for group in c.groups:
        first = group.lines[0]
        said = ahead(c, group, first)
        word = f"{said}: {first.label}" if said.startswith(("best", "highest", "lowest")) else first.label
        rows.append(
            Row.of(
                TableCell(group.title, link=f"#{anchor(group.title)}"),
                len(group.lines),
                sum(len(line.runs) for line in group.lines),
                word,
                _in_words(c, group, TableCell(text_of(first, group.metric, c.at))),
            )
        )
    caption = "Groups: lines of different groups can not be compared."
    return Table.of("groups", caption, ("group", "settings", "runs", "first", title_of(c.metric)), rows)


def _in_words(c: ComparisonData, group: Group, cell: TableCell) -> TableCell:
    """Return a value under the heading of the comparison's metric, with its own name if the group has another one."""
    named = group.metric != c.metric and cell.mark != "missing"
    return replace(cell, text=f"{title_of(group.metric)} {cell.text}") if named else cell


def _entry(line: Line, metric: str, at: At, seed: int | None = None) -> TableCell:
    """A metric of a line, or of one of its runs."""
    values = {s: v for s, v in line.values(metric, at).items() if seed in (None, s)}
    if not values:
        return TableCell("–", mark="missing")
    of = _of_runs(line, values) if seed is None else ""
    mean = mean_std(numbers.in_unit(values, metric).values())[0]
    return TableCell(_spread(values, metric) + of, mean)


def highest(c: ComparisonData, group: Group, metric: str) -> tuple[Line, ...]:
    """Return the lines with the highest mean of a metric as shown (lowest, where smaller is better), which are marked.

    (): the group is not fair, all lines with a value have the same mean, or no mean is better than another one.
    """
    if metric_keys.is_neutral(metric):
        return ()
    sign, unit = -1 if metric_keys.smaller_is_better(metric) else 1, unit_of(metric)
    there = [line for line in group.lines if line.is_ranked(metric, c.at)] if group.fair else []
    means = [
        sign * round(mean_std(numbers.in_unit(line.values(metric, c.at), metric).values())[0], unit.digits)
        for line in there
    ]
    top = max(means, default=0.0)
    return tuple(line for line, mean in zip(there, means, strict=True) if mean == top > min(means))


def _name(c: ComparisonData, group: Group, what: str) -> str:
    """The name of a group's table or picture: with the group's number if there are several."""
    return what if len(c.groups) == 1 else f"{what}-{c.groups.index(group) + 1}"


# -- the report --------------------------------------------------------------------------------------------------------


def document(c: ComparisonData) -> Document:
    """See `Comparison.document`."""
    first: list[PageBlock] = [overview(c)] if len(c.groups) > 1 else []
    told = tuple(map(sentence, c.remarks))
    if told:
        first.append(Text(told[0], "note") if len(told) == 1 else Text(f"{len(told)} remarks", "note", told))
    first.append(Text("How to read the tables", "note", (*reading(c), *COST_READING)))
    sections = [PageSection("", tuple(first))]
    sections += [PageSection(group.title, _blocks(c, group)) for group in c.groups]
    sections.append(PageSection("Runs", (run_table(c),), folded=True))
    return Document(
        "compare",
        f"Compared: {_and(list(dict.fromkeys(line.runs[0].method for line in c.lines)))}",
        f"{size_of(c)}, ordered {order_text(c.metric)}",
        tuple(sections),
        f"pfl-ops compare, {datetime.now():%Y-%m-%d %H:%M}, from {c.place}",
    )


def size_of(c: ComparisonData) -> str:
    """Return the numbers of settings, runs and groups in words."""
    n = sum(len(line.runs) for line in c.lines)
    groups = f" in {len(c.groups)} groups" if len(c.groups) > 1 else ""
    return f"{count(len(c.lines), 'setting')}, {count(n, 'run')}{groups}"


def folded(complaints: tuple[str, ...]) -> str:
    """Return complaints in short: what differs, without who has what."""
    return "; ".join(line.partition(": ")[0] for line in complaints)


def warning(group: Group) -> tuple[str, ...]:
    """Return the line above an unfair comparison; (): it is fair."""
    return (f"Not a fair comparison: {folded(group.complaints)}.",) if group.complaints else ()


def _blocks(c: ComparisonData, group: Group) -> tuple[PageBlock, ...]:
    blocks: list[PageBlock] = []
    blocks += [Text(line, "warning", group.complaints) for line in warning(group)]
    blocks += [results(c, group), *pictures(c, group, lambda what: _name(c, group, what))]
    blocks += [stages(c, group)] if any(len(line.stages) > 1 for line in group.lines) else []
    blocks.append(costs(c, group))
    if common := _common(group):
        blocks.append(Text("Settings that all runs of this group, or of a method, share", "note", common))
    return tuple(blocks)


def _and(methods: list[str]) -> str:
    if len(methods) > 6:
        return f"{len(methods)} methods"
    return " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))


def _common(group: Group) -> tuple[str, ...]:
    """The settings that all runs of a group share, and those of a method itself that all runs of this method do."""
    runs = [run for line in group.lines for run in line.runs]
    everywhere = _alike(runs)
    own = {method: _alike(some) for method, some in by_key((run.method, run) for run in runs).items()}
    return tuple(f"{path}: {text}" for path, text in everywhere.items()) + tuple(
        f"{method}'s {path}: {text}"
        for method, settings in own.items()
        for path, text in settings.items()
        if path.startswith("algorithm.") and path not in {"algorithm.name", *everywhere}
    )


def _alike(runs: Sequence[Result]) -> dict[str, str]:
    """The settings that all of these runs have with one value; how many repetitions were asked for is none."""
    values = by_key((path, text) for run in runs for path, text in run.params.items() if path != "repetitions")
    return {
        path: found[0].lower() if found[0] == "None" else found[0]
        for path, found in values.items()
        if len(found) == len(runs) and len(set(found)) == 1
    }
