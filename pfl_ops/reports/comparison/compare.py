"""Result runs side by side: repetitions as one line, in each group the best first, and how sure a difference is."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pfl_ops import metric_keys, tag_names
from pfl_ops.comparison import TARGETED, Line, Test, Values, ordered
from pfl_ops.config.arguments import ArgumentError, checked
from pfl_ops.csv_text import to_csv
from pfl_ops.errors import PflOpsError, by_key, count, echo, in_a_line, listed, nearest, sentence
from pfl_ops.files import write_named
from pfl_ops.reports.comparison import compared, fairness
from pfl_ops.reports.comparison.compared import size_of
from pfl_ops.reports.comparison.compared_cards import card
from pfl_ops.reports.comparison.comparison_data import BEST_ROUND, TEST_DESCRIPTIONS, ComparisonData, Group
from pfl_ops.reports.comparison.labels import group_titles, labels
from pfl_ops.reports.comparison.tracked import SelectedRuns, select
from pfl_ops.reports.numbers import order_text, title_of
from pfl_ops.reports.pages.document import Document
from pfl_ops.results import At, Result
from pfl_ops.tracking import Store
from pfl_ops.tracking.runs.finished import read_ahead
from pfl_ops.units import check_target

SCORES = {"Acc": "acc", "Acc(L)": "local/mean", "Acc(G)": "global/mean"}


@dataclass(frozen=True)
class Comparison(ComparisonData):
    __doc__ = ComparisonData.__doc__

    def __repr__(self) -> str:
        return f"Comparison({size_of(self)}, ordered {order_text(self.metric)})"

    def _repr_html_(self) -> str:
        return card(self)

    @property
    def table(self) -> pd.DataFrame:
        """One row a line: means and standard deviations over repetitions, in full precision.

        Columns are those of the page and the terminal: "setting", "n", "Acc(L) %", "difference to the first %",
        "sent MiB" and so on. "Acc(L) % std" is a sample standard deviation, "95 % low" and "95 % high" are the ends of
        the difference's interval. "diverged seeds" is a number; a setting that has some has no mean.
        """
        return compared.summary(self)

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run, in full precision: the columns of `table` that a run has, then its metrics and settings.

        Columns that begin with "final/", "best/" and "reached/" are tracked keys with the values that MLflow has:
        accuracies are fractions there. "param …" are settings. A mean over runs whose setting has "diverged seeds",
        which have no row, would be too good.
        """
        return compared.by_run(self)

    def document(self) -> Document:
        """The whole comparison as a report: tables, curves, clients, cost."""
        return compared.document(self)

    def to_html(self, file: Path | str) -> Path:
        """Write the report as one page that needs nothing else."""
        from pfl_ops.reports.pages.html import to_html

        return write_named(file, to_html(self.document()))

    def to_csv(self, file: Path | str) -> Path:
        """Write `runs`."""
        return write_named(file, to_csv(self.runs))

    def to_latex(self, file: Path | str) -> Path:
        """Write the tables of results, and those of rounds and costs, one each a group, for booktabs."""
        from pfl_ops.reports.pages.latex import to_latex

        lost = [map(sentence, _diverged(group.lines, ())) for group in self.groups]
        tables = [
            compared.results(self, group, (*compared.warning(group), *told, *compared.reading(self)))
            for group, told in zip(self.groups, lost, strict=True)
        ]
        tables += [compared.costs(self, group, compared.COST_READING) for group in self.groups]
        return write_named(file, "\n".join(map(to_latex, tables)))


@checked
def compare(
    *names: str,
    where: str | None = None,
    tags: Mapping[str, str] | None = None,
    trials: bool = False,
    metric: str | None = None,
    target: float | None = None,
    at: At = "final",
    test: Test = "anytime",
    with_clients: bool = True,
    with_curves: bool = True,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
) -> Comparison:
    """Compare tracked runs: repetitions of one setting are a line, settings that can be compared are a group.

    A group has one data set, partition, network and split. Within it, each line has the difference of its mean to the
    first line's over common seeds, d = 1/n Σ (a_i − b_i), and a p value, corrected for all pairs of the group (Holm),
    since the same values decide which line is first. There is no p value if two lines differ in more than what is
    compared. The first line is called the best if its p values to all others are below 0.05.

    Args:
        names, where, tags, trials: which runs, see `tracked.select`. None of them: all but cells of suites at scale
            smoke. A run without an end is left out unless it is named itself; then it has no rank.
        metric: what decides which is best: a tracked key, or the end of one, for which each run's split, and the stage
            in which its method is judged, are put in front ("local/worst", "G/acc"). None: acc.
        target: a value whose first round is counted: of `metric`, or if that is None of Acc(L). Accuracies are
            fractions: 0.9 is 90 %.
        at: values of the last round ("final"), or of each run's best ("best"), which have no p value: each was chosen
            on the data that it is scored on, and of noisier scores the best is higher by chance.
        test: "anytime", `statistics.anytime`: seeds may be added, and compared again, until the answer is clear; a seed
            that a line lacks ends the test there. "t", the paired t test: if n was fixed before the runs.
        with_clients, with_curves: read the tables of clients, and the values of each round, which the report draws.
        home, tracking_uri: work folder and MLflow's address, as for `run`.
    Returns:
        The groups by title; in each, the line with the highest mean first, and lines by name, without p, if a metric is
        neither better large nor small ("train/lr", "best/round"). Values are as tracked, accuracies as
        fractions; the tables of the result are in percent and MiB.
    Raises:
        ArgumentError: a name that is no text, such as a result or a list of names.
        PflOpsError: no such run or metric (the message has the nearest), a target that no value can reach or of a
            metric that should fall, or nothing that has finished.

    >>> found = compare()  # of fliu and fedavg on digits and kmnist, two seeds each
    >>> [(group.title, [line.label for line in group.lines]) for group in found.groups]
    [('digits, lsqs', ['fliu', 'fedavg']), ('kmnist, lsqs', ['fedavg', 'fliu'])]
    >>> round(found.groups[0].lines[1].difference.difference, 3)  # of Acc(L) + Acc(G), as a fraction
    -0.15
    >>> print(found.table[["group", "setting", "n", "Acc(L) %", "difference to the first %"]].to_string(index=False))
           group setting  n  Acc(L) %  difference to the first %
    digits, lsqs    fliu  2      80.5                        NaN
    digits, lsqs  fedavg  2      70.5                      -15.0
    kmnist, lsqs  fedavg  2      90.5                        NaN
    kmnist, lsqs    fliu  2      80.5                      -15.0
    """
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(
                f"compare() takes names of runs and studies as text, got a {type(name).__name__}: "
                "compare(result.hash, other.hash), compare(study.name), compare(*names)"
            )
    if at not in ("final", "best"):
        raise PflOpsError(f"at must be final or best, got '{echo(at)}'")
    if test not in TEST_DESCRIPTIONS:
        raise PflOpsError(f"test must be anytime or t, got '{echo(test)}'")
    if (metric or "").startswith("reached/"):
        raise PflOpsError("rounds to a target are counted by target=0.9 (--target), which says who never reached it")
    if metric is not None and metric.startswith("best/") and metric != BEST_ROUND:
        rest = echo(metric.removeprefix("best/"))
        raise PflOpsError(f"values of best rounds, which have no p value, are compared by {rest} at='best' (--at best)")
    if metric is not None and at == "final":
        metric = metric.removeprefix("final/")  # the same value; curves and the clients behind it go by the bare key
    aim = TARGETED if metric is None else metric
    if target is not None:
        _check_target(target, aim)
    with closing(Store.open(home, tracking_uri)) as store:
        chosen = select(store, names, where=where, tags=tags, trials=trials)
        meant = [*chosen.runs, *chosen.started]
        metric = _checked(metric, meant, at)
        usual = metric or _usual(meant, at)
        rounds = {aim} if target is not None else set()
        rounds |= {usual, aim, "acc", "local/mean", "global/mean", *metric_keys.TRAFFIC_COSTS} if with_curves else set()
        first = {run.group: run for run in sorted(chosen.runs, key=lambda run: -run.seed)}
        progress = {*SCORES.values(), "cost/train_seconds"}
        scored, runs = rounds | fairness.CHOOSING, []
        for run in chosen.runs:
            keys = scored if run is first[run.group] else rounds
            runs.append(read_ahead(store, run, keys | progress if _is_pruned(run.tags) else keys))
        runs += [read_ahead(store, run, scored | progress) for run in chosen.started]
        tables, unread = _clients(runs) if with_clients else ({}, [])
        place = store.target.label
    members = fairness.grouped(runs)
    titles = group_titles([fairness.ground(some[0]) for some in members])
    groups = [
        _group(title, some, chosen, metric or _usual(some, at), at, test, "" if target is None else aim)
        for title, some in sorted(zip(titles, members, strict=True), key=lambda pair: pair[0])
    ]
    remarks = (*_remarks(chosen, groups, at, trials), *unread)
    return Comparison(tuple(groups), usual, at, target, aim, remarks, tables, place, test, with_curves)


def _check_target(target: float, metric: str) -> None:
    """Raise if a target of this metric says nothing: every run reaches it, or none can."""
    if metric_keys.smaller_is_better(metric) or metric_keys.is_neutral(metric):
        how = "neither better large nor small" if metric_keys.is_neutral(metric) else "better the smaller it is"
        raise PflOpsError(f"a target is a value to rise to, and {metric} is {how}")
    check_target(target, metric)


def _group(
    title: str, runs: Sequence[Result], chosen: SelectedRuns, metric: str, at: At, test: Test, target_metric: str
) -> Group:
    lines, fair = _ordered(_lines(runs, chosen.diverged), metric, at, test, chosen.late)
    rows = {line.label: line.runs for line in lines if not (line.unfinished or line.diverged)}  # these are not compared
    unfair = fairness.complaints(rows, at, metric, target_metric)
    if late := [line.label for line in lines if _has_one_of(chosen.late, line)]:
        unfair.append(f"the study changed its choice after a test of a former one: {listed(late)}")
    return Group(title, lines, metric, fair, tuple(unfair))


def _remarks(chosen: SelectedRuns, groups: Sequence[Group], at: At, trials: bool) -> Iterator[str]:
    """The remarks on what was left out, with names by which it is compared."""
    if n := sum(chosen.smoke.values()):
        cells = f"{count(n, 'cell')} of suites at scale smoke {'is' if n == 1 else 'are'} left out"
        yield f"{cells}; name them to compare them: {listed(sorted(chosen.smoke), 3)}"
    if n := sum(chosen.former.values()):
        runs = f"{count(n, 'test run')} of former choices {'is' if n == 1 else 'are'} left out"
        yield f"{runs}, of {listed([f'study {name}' for name in sorted(chosen.former)], 3)}"
    if chosen.unfinished:
        yield f"not finished, and left out: {listed(chosen.unfinished)}"
    if chosen.untested and trials:
        yield f"neither test runs nor trials, and left out: {listed(chosen.untested)}"
    elif chosen.untested:
        yield f"no test runs, and left out: {listed(chosen.untested)}; --trials compares trials"
    for group in groups:
        yield from _without_value(group, at)
    yield from _diverged([line for group in groups for line in group.lines], chosen.diverged)


def _has_one_of(ids: Collection[str], line: Line) -> bool:
    return any(run.run_id in ids for run in line.runs)


def _without_value(group: Group, at: At) -> list[str]:
    """The remark on lines of a group that have no value of its metric."""
    lost = [line.label for line in group.lines if not line.values(group.metric, at) and not line.diverged]
    at_round = "best" if at == "best" else "last"
    return [f"no {title_of(group.metric).removesuffix(' %')} at the {at_round} round: {listed(lost)}"] if lost else []


def _clients(runs: Sequence[Result]) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Tables of clients by run id, and a line on those that can't be read: a comparison goes on without them."""
    tables: dict[str, pd.DataFrame] = {}
    unread: dict[str, str] = {}
    for run in runs:
        if run.state != "finished":
            continue
        try:
            table = run.clients
        except PflOpsError as error:
            unread[run.name] = in_a_line(error, 300)
            continue
        if len(table):
            tables[str(run.run_id)] = table
    if not unread:
        return tables, []
    first = next(iter(unread.values()))
    others = f"; nor those of {listed(list(unread)[1:])}" if len(unread) > 1 else ""
    return tables, [f"clients are not drawn: {first}{others}"]


def _diverged(lines: Sequence[Line], lost: Sequence[Result]) -> list[str]:
    """Remarks: each setting of which some repetitions diverged, and the names of runs of which all did."""
    told = [
        f"no mean of {line.label}, {len(line.diverged)} of {len(line.runs) + len(line.diverged)} seeds diverged: "
        + "; ".join(line.diverged)
        for line in lines
        if line.diverged
    ]
    shown = {line.runs[0].group for line in lines}
    gone = [f"{run.name} ({run.tags[tag_names.DIVERGED]})" for run in lost if run.group not in shown]
    return [*told, *([f"diverged, and left out: {listed(gone)}"] if gone else [])]


def _lines(runs: Sequence[Result], lost: Sequence[Result]) -> list[Line]:
    by_seed = sorted(lost, key=lambda run: run.seed)
    diverged = by_key((run.group, f"seed {run.seed} {run.tags[tag_names.DIVERGED]}") for run in by_seed)
    settings_of = by_key((run.group + ("" if run.state == "finished" else str(run.run_id)), run) for run in runs)
    members = [sorted(some, key=lambda run: run.seed) for some in settings_of.values()]
    told = labels([some[0].settings for some in members], [_trial(some[0]) for some in members])
    ends = [_unfinished(some[0]) for some in members]
    names = [
        f"{name}, seed {some[0].seed} ({end})" if end else name
        for (name, _), some, end in zip(told, members, ends, strict=True)
    ]
    lines = []
    for name, some, (_, settings), end in zip(names, members, told, ends, strict=True):
        group = some[0].group
        label = f"{name} #{group[:6]}" if names.count(name) > 1 else name
        lost_seeds = () if end else tuple(diverged.get(group, ()))
        lines.append(Line(label, tuple(some), settings, diverged=lost_seeds, unfinished=end))
    return lines


def _unfinished(run: Result) -> str:
    """ "running, round 12 of 20, Acc(G) of round 10", where that is scored less often; "" of a finished run."""
    if run.state == "finished" and not _is_pruned(run.tags):
        return ""
    rounds = run.history.dropna(how="all").index
    last = int(rounds.max()) if len(rounds) else 0
    scored = {title: max(curve) for title, metric in SCORES.items() if (curve := run.by_round(metric))}
    rounds_of = sorted(set(scored.values()) - {last}, reverse=True)
    if rounds_of and len(set(scored.values())) == 1:
        values = [f"scores of round {rounds_of[0]}"]
    else:
        values = [f"{' and '.join(title for title in scored if scored[title] == t)} of round {t}" for t in rounds_of]
    state = "stopped early" if _is_pruned(run.tags) else run.state
    return ", ".join([f"{state}, round {last} of {run.length}", *values])


def _is_pruned(tags: Mapping[str, str]) -> bool:
    return tags.get(tag_names.TRIAL_STATE) == "pruned"


def _trial(run: Result) -> str | None:
    """A trial goes by its number: fliu trial-003."""
    return f"{run.method} {run.trial}" if run.trial else None


def _ordered(
    lines: Sequence[Line], metric: str, at: At, test: Test, late: Collection[str]
) -> tuple[tuple[Line, ...], bool]:
    """Return the lines by their means with their differences to the first; and True if one may be called the best.

    Args:
        late: ids of runs without a p value, see `SelectedRuns`.
    """

    def values(line: Line) -> Values:
        return {} if line.unfinished else line.values(metric, at)

    def alike(a: Line, b: Line) -> bool:
        if at == "best" or not (
            fairness.same_clients(a.runs, b.runs, metric) and fairness.same_machines(a.runs, b.runs, metric)
        ):
            return False
        return not fairness.differing(a.runs[0], b.runs[0], metric) and fairness.same_partitions(a.runs, b.runs)

    smaller, ranked = metric_keys.smaller_is_better(metric), not metric_keys.is_neutral(metric)
    found = ordered(
        lines, values, test, smaller=smaller, ranked=ranked, alike=alike, withdrawn=lambda line: _has_one_of(late, line)
    )
    fair = all(fairness.comparable(line.runs[0], found[0].runs[0], metric) for line in found if line.difference)
    return found, fair and at == "final"


def _checked(metric: str | None, runs: Sequence[Result], at: At) -> str | None:
    """The metric, if a run has it.

    Raises:
        PflOpsError: none has; the message has the nearest.
    """
    if metric is None or any(run.value(metric, at) is not None for run in runs):
        return metric
    if at == "best" and any(run.value(metric) is not None for run in runs):
        raise PflOpsError(f"{echo(metric)} has no value at the best round, which has scores alone; --at final has one")
    if at == "final" and any(run.key(metric) in run.metrics for run in runs):
        best = "; --at best has one" if any(run.value(metric, "best") is not None for run in runs) else ""
        raise PflOpsError(f"{echo(metric)} has no value in the full evaluation after the last round{best}")
    tracked = {key.removeprefix("final/") for run in runs for key in run.metrics}
    full = sorted(key for key in tracked if not key.startswith(("best/", "reached/", "pfl_ops/")))
    short = {key.split("/", i)[-1] for key in full if key.startswith(("val/", "test/")) for i in (1, 2)}
    close = metric_keys.completed(metric, [*full, *short]) or nearest(metric, [*full, *short])
    hint = f"did you mean '{close}'?" if close else f"for example {', '.join(full[:3])}"
    raise PflOpsError(f"none of these runs has a metric '{echo(metric)}'; {hint}")


def _usual(runs: Sequence[Result], at: At) -> str:
    """Acc = Acc(L) + Acc(G), or Acc(L) where no run has both."""
    return "acc" if any(run.value("acc", at) is not None for run in runs) else "local/mean"
