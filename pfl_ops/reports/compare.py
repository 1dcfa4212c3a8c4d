"""Any tracked runs side by side: repetitions as one row, the best first, and how sure the difference is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import pandas as pd

from pfl_ops import metrics
from pfl_ops.csv_text import to_csv
from pfl_ops.errors import PflOpsError, echo, in_a_line, nearest
from pfl_ops.files import write_named
from pfl_ops.reports.fairness import complaints, differing
from pfl_ops.reports.labels import labels
from pfl_ops.reports.tracked import COSTS, DIVERGED, Tracked, clients, select, with_history
from pfl_ops.statistics import Paired, holm, mean_std, paired
from pfl_ops.tracking import Store

if TYPE_CHECKING:
    from pfl_ops.reports.document import Document

At: TypeAlias = Literal["final", "best"]
Values: TypeAlias = dict[int, float]
"""Seed -> value."""

TARGETED = "local/mean"  # what a target is of, unless a metric is named


@dataclass(frozen=True)
class Line:
    """One setting with its repetitions.

    Attributes:
        label: its method, and the settings in which it differs from the method's other lines.
        runs: by seed.
        settings: others in which it differs from lines of other methods, in words.
        difference: to the best line over common seeds, with p after Holm's correction; None: it is the best itself, or
            has no value. Without p where the two differ in more than what is compared, see `fairness.differing`.
        diverged: repetitions whose training diverged, "seed 2 diverged at round 7, lr 0.4". Then it has no values, no
            curves and no rounds to a target: the other seeds alone would flatter it.
    """

    label: str
    runs: tuple[Tracked, ...]
    settings: str = ""
    difference: Paired | None = None
    diverged: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Where its method is judged."""
        return self.runs[0].stage

    @property
    def stages(self) -> list[str]:
        """Those that were scored, its own first."""
        there = [s for s in metrics.STAGES if self.values(f"{s}/local/mean") or self.values(f"{s}/global/mean")]
        return sorted(there, key=lambda stage: stage != self.stage)

    def values(self, metric: str, at: At = "final") -> Values:
        """A metric of each repetition that has it: of the last round (its full evaluation), or of the best one."""
        return {} if self.diverged else _present({run.seed: _value(run, metric, at) for run in self.runs})

    def rounds_to(self, target: float, metric: str = TARGETED) -> dict[int, int | None]:
        """The first round in which each repetition has the target; None: never."""
        return {
            run.seed: metrics.rounds_to(dict(zip(curve.index.tolist(), curve.tolist(), strict=True)), target)
            for run in (() if self.diverged else self.runs)
            if len(curve := run.history[run.key(metric)].dropna())
        }

    def cost(self, *keys: str) -> Values:
        """The sum of tracked costs over all rounds of each repetition, as `cost("cost/up_bytes")`."""
        there = [run for run in self.runs if run.history[[*keys]].notna().to_numpy().any()]
        return {run.seed: float(run.history[[*keys]].to_numpy(na_value=0).sum()) for run in there}

    def curve(self, metric: str) -> pd.DataFrame:
        """A metric over rounds, a column a seed; without columns where nobody has it."""
        found = {} if self.diverged else {run.seed: run.history[run.key(metric)] for run in self.runs}
        return pd.DataFrame(found).sort_index().dropna(how="all").dropna(axis=1, how="all")


@dataclass(frozen=True)
class Comparison:
    """Lines side by side.

    Attributes:
        lines: the best first, those without a value last.
        metric: what they are ordered and tested by: a tracked key, or the end of one ("acc", "L2/local/worst").
        at: "final", of the last round; "best", of each run's best.
        target: whose first round is told, or None. target_metric: what it is of.
        complaints: why these numbers should not be read side by side.
        remarks: what was left out.
        clients: run id -> table of clients, where it was asked for.
        place: the store, in words.
    """

    lines: tuple[Line, ...]
    metric: str
    at: At = "final"
    target: float | None = None
    target_metric: str = TARGETED
    complaints: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    clients: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    place: str = ""

    @property
    def table(self) -> pd.DataFrame:
        """One row a line: means and standard deviations over repetitions, in full precision."""
        from pfl_ops.reports.compared import summary

        return summary(self)

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run, in full precision: what it was, every `final/…` and `best/…` value, and its costs."""
        from pfl_ops.reports.compared import by_run

        return by_run(self)

    def document(self) -> "Document":
        """The whole comparison as a report: tables, curves, clients, cost."""
        from pfl_ops.reports.compared import document

        return document(self)

    def to_html(self, file: Path | str) -> Path:
        """Write the report as one page that needs nothing else."""
        from pfl_ops.reports.html import to_html

        return write_named(file, to_html(self.document()))

    def to_csv(self, file: Path | str) -> Path:
        """Write `runs`."""
        return write_named(file, to_csv(self.runs))

    def to_latex(self, file: Path | str) -> Path:
        """Write the table of results, for booktabs."""
        from pfl_ops.reports.compared import results
        from pfl_ops.reports.latex import to_latex

        return write_named(file, to_latex(results(self)))


def compare(
    *names: str,
    where: str | None = None,
    tags: Mapping[str, str] | None = None,
    trials: bool = False,
    metric: str | None = None,
    target: float | None = None,
    at: At = "final",
    with_clients: bool = True,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
    store: Store | None = None,
) -> Comparison:
    """Tracked runs side by side, repetitions of one setting as one line.

    Args:
        names, where, tags, trials: which runs, see `tracked.select`. None of them: all.
        metric: what decides which is best: a tracked key, or the end of one, for which each run's split, and the stage
            in which its method is judged, are put in front ("local/worst", "G/acc"). None: acc.
        target: a value whose first round is told: of `metric`, or if that is None of Acc(L).
        at: values of the last round ("final"), or of each run's best ("best").
        with_clients: read the tables of clients too, which the report draws.
        home, tracking_uri: work folder and MLflow's address, as for `run`. store: an open one instead.
    Raises:
        PflOpsError: no such run or metric (the nearest is told), a target of a metric that should fall, or nothing
            that has finished.
    """
    from contextlib import closing, nullcontext

    if at not in ("final", "best"):
        raise PflOpsError(f"at must be final or best, got '{echo(at)}'")
    if target is not None and metric is not None and metrics.smaller_is_better(metric):
        raise PflOpsError(f"a target is a value to rise to, and {metric} is better the smaller it is")
    with nullcontext(store) if store else closing(Store.open(home, tracking_uri)) as store:
        chosen = select(store, names, where=where, tags=tags, trials=trials)
        metric = _checked(metric, chosen.runs, at)
        aim = TARGETED if metric is None else metric
        metric = metric or _usual(chosen.runs, at)
        wanted = {metric, aim, "acc", "local/mean", "global/mean", *COSTS}
        runs = with_history(store, chosen.runs, wanted)
        tables, unread = _clients(store, runs) if with_clients else ({}, [])
        place = store.target.label
    lines = _ordered(_lines(runs, chosen.diverged), metric, at)
    told = [f"not finished, and left out: {_listed(chosen.unfinished)}"] if chosen.unfinished else []
    told += [
        f"no {metric} at the {at if at == 'best' else 'last'} round: {line.label}"
        for line in lines
        if not line.values(metric, at) and not line.diverged
    ]
    told += _diverged(lines, chosen.diverged)
    told += unread
    unfair = complaints({line.label: line.runs for line in lines})
    if at == "best" and any(run.split == "test" for run in runs):
        unfair.append("the best rounds were chosen on the test data, which flatters")
    return Comparison(lines, metric, at, target, aim, tuple(unfair), tuple(told), tables, place)


def _clients(store: Store, runs: Sequence[Tracked]) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Tables of clients by run id, and a line on those that can't be read: a comparison goes on without them."""
    tables: dict[str, pd.DataFrame] = {}
    unread: dict[str, str] = {}
    for run in runs:
        try:
            table = clients(store, run)
        except PflOpsError as error:
            unread[run.name] = in_a_line(error, 300)
            continue
        if table is not None:
            tables[run.run_id] = table
    if not unread:
        return tables, []
    first = next(iter(unread.values()))
    others = f"; nor those of {_listed(list(unread)[1:])}" if len(unread) > 1 else ""
    return tables, [f"clients are not drawn: {first}{others}"]


def _diverged(lines: Sequence[Line], lost: Sequence[Tracked]) -> list[str]:
    """Remarks: each setting of which some repetitions diverged, and the names of runs of which all did."""
    told = [
        f"{line.label} has no mean, {len(line.diverged)} of {len(line.runs) + len(line.diverged)} seeds diverged: "
        + "; ".join(line.diverged)
        for line in lines
        if line.diverged
    ]
    shown = {line.runs[0].group for line in lines}
    gone = [f"{run.name} ({run.tags[DIVERGED]})" for run in lost if run.group not in shown]
    return [*told, *([f"diverged, and left out: {_listed(gone)}"] if gone else [])]


def _lines(runs: Sequence[Tracked], lost: Sequence[Tracked] = ()) -> list[Line]:
    diverged: dict[str, list[str]] = {}
    for run in sorted(lost, key=lambda run: run.seed):
        diverged.setdefault(run.group, []).append(f"seed {run.seed} {run.tags[DIVERGED]}")
    groups: dict[str, list[Tracked]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    members = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    told = labels([group[0].params for group in members], [_trial(group[0]) for group in members])
    names = [name for name, _ in told]
    unique = [
        f"{name} #{group[0].group[:6]}" if names.count(name) > 1 else name
        for name, group in zip(names, members, strict=True)
    ]
    early = [["stopped early"] * (g[0].tags.get("pfl_ops.trial_state") == "pruned") for g in members]
    settings = [", ".join(filter(None, [more, *stop])) for (_, more), stop in zip(told, early, strict=True)]
    return [
        Line(name, tuple(group), more, diverged=tuple(diverged.get(group[0].group, ())))
        for name, group, more in zip(unique, members, settings, strict=True)
    ]


def _trial(run: Tracked) -> str | None:
    """A trial goes by its number: fliu trial-003."""
    if run.kind != "trial":
        return None
    return f"{run.method} {run.name.removeprefix(run.method).strip()}"


def _ordered(lines: Sequence[Line], metric: str, at: At) -> tuple[Line, ...]:
    """The best first, and how far each other one is from it."""
    sign = 1 if metrics.smaller_is_better(metric) else -1
    valued = [line for line in lines if line.values(metric, at)]
    valued.sort(key=lambda line: sign * mean_std(line.values(metric, at).values())[0])
    if not valued:
        return tuple(lines)
    best = valued[0].values(metric, at)
    pairs = [paired(line.values(metric, at), best) for line in valued[1:]]
    fair = [not differing(line.runs[0], valued[0].runs[0]) for line in valued[1:]]
    tests = [pair if alike else replace(pair, p=None) for pair, alike in zip(pairs, fair, strict=True)]
    corrected = [replace(test, p=p) for test, p in zip(tests, holm([test.p for test in tests]), strict=True)]
    others = [replace(line, difference=test) for line, test in zip(valued[1:], corrected, strict=True)]
    return (valued[0], *others, *(line for line in lines if line not in valued))


def _value(run: Tracked, metric: str, at: At) -> float | None:
    key = run.key(metric)
    if at == "best":
        return run.metrics.get(f"best/{key}")
    return run.metrics.get(f"final/{key}", run.metrics.get(key))


def _checked(metric: str | None, runs: Sequence[Tracked], at: At) -> str | None:
    """The metric, if a run has it.

    Raises:
        PflOpsError: none has; the nearest is told.
    """
    if metric is None or any(_value(run, metric, at) is not None for run in runs):
        return metric
    tracked = {key.removeprefix("final/") for run in runs for key in run.metrics}
    full = sorted(key for key in tracked if not key.startswith(("best/", "reached/", "pfl_ops/")))
    short = {key.split("/", i)[-1] for key in full if key.startswith(("val/", "test/")) for i in (1, 2)}
    close = nearest(metric, [*full, *short])
    hint = f"did you mean '{close}'?" if close else f"for example {', '.join(full[:3])}"
    raise PflOpsError(f"none of these runs has a metric '{echo(metric)}'; {hint}")


def _usual(runs: Sequence[Tracked], at: At) -> str:
    """Acc = Acc(L) + Acc(G), or Acc(L) where no run has both."""
    return "acc" if any(_value(run, "acc", at) is not None for run in runs) else "local/mean"


def _present(values: Mapping[int, float | None]) -> Values:
    return {seed: value for seed, value in values.items() if value is not None and value == value}


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
