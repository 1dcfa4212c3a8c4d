"""Scores, trials and leaderboards as rows of text: the same in a terminal and in a notebook."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from pfl_ops.errors import count
from pfl_ops.metric_keys import summands
from pfl_ops.metrics import ENOUGH, ERROR, SAMPLES, STAGES, in_percent
from pfl_ops.statistics import LEVEL, mean_std
from pfl_ops.units import difference_title, exact, heading, mebibytes, part_of, signed, unit_of, with_unit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TableRows:
    """A table as text.

    Attributes:
        title: above it. heads: of its columns. rows: as wide as the head.
        left: columns of words, which are aligned to the left; all others hold numbers.
        chosen: row that is singled out; None: there is none.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})
    chosen: int | None = None


class FinishedRun(Protocol):
    """The attributes of a run that a table of scores needs; `results.Result` is one."""

    @property
    def params(self) -> Mapping[str, str]: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def final(self) -> Mapping[str, float]: ...
    @property
    def clients(self) -> "pd.DataFrame": ...
    @property
    def n_clients(self) -> int | None: ...


# -- runs --------------------------------------------------------------------------------------------------------------


STAGES_TOLD = {
    "L2": "L2: clients' own models after local training",
    "G": "G: the global model made from them",
    "L1": "L1: what clients hold after the update",
}
MODEL_TOLD = "G: the one model of all"  # of a method without clients' models


def scores(results: Sequence[FinishedRun], split: str) -> TableRows:
    """Return the full last evaluation, a row a stage; mean ± standard deviation over the repetitions that have a value.

    Args:
        results: the repetitions.
        split: "val" or "test".
    """
    n = f", mean ± std of {len(results)}" if len(results) > 1 else ""
    rows = []
    for stage in _stages(results, split):
        finals = [
            [result.final.get(f"final/{split}/{stage}/{key}", math.nan) for result in results]
            for key in ("local/mean", "global/mean", "acc", "local/worst")
        ]
        local, pooled, both, worst = finals
        at = _samples_of_the_worst(results[0], stage) if len(results) == 1 else ""
        enough = [_worst(result, stage, ENOUGH) for result in results]
        rows.append((stage, percent(local), percent(pooled), percent(both), percent(worst) + at, percent(enough)))
    heads = ("stage", "Acc(L)", "Acc(G)", "Acc(L)+Acc(G)", "worst client", f"worst, n ≥ {ENOUGH}")
    return TableRows(f"last round, {split}{n}", heads, tuple(rows))


def score_notes(results: Sequence[FinishedRun], split: str) -> list[str]:
    """Return notes on `scores`: the stages in the order in which they come, which clients are scored, small test sets,
    and rounds to targets."""
    stages = _stages(results, split)
    told = [
        "; ".join(text for stage, text in STAGES_TOLD.items() if stage in stages) if stages != ["G"] else MODEL_TOLD
    ]
    told += sampling_notes([result.final for result in results], "Acc(G)")
    sizes = [result.clients.drop_duplicates("client")["n_held"] for result in results if len(result.clients)]
    few, none = ([int((size < least).sum()) for size in sizes] for least in (ENOUGH, 1))
    n, scored = results[0].n_clients, len(sizes[0]) if sizes else 0
    is_drawn = n is not None and 0 < scored < n
    if is_drawn:
        told.append(f"{scored:,} of {n:,} clients are scored, drawn once for each run (evaluation.clients)")
    if "L2" in stages and sizes:
        told.append(_covered(results, sizes, split))
    if any(few):
        what = "test" if split == "test" else "validation"
        told.append(
            f"n: a client's {what} samples; {_range(few)} of {scored}{' scored' * is_drawn} clients have fewer than "
            f"{ENOUGH}"
            + (f", {_range(none)} of them none; clients with none count in Acc(G) alone" if any(none) else "")
        )
    return [line for line in (*told, *target_notes(results, split)) if line]


LOSS = "train/loss"
REACHED = {"Acc(L)": "local/mean", "Acc(G)": "global/mean", "worst client": "local/worst"}
"""Values that targets are for."""
NEVER = "never"


def target_notes(results: Sequence[FinishedRun], split: str) -> list[str]:
    """Return a line on each of `evaluation.targets`: the first scored round that has it, by stage; "never": none.

    The mean ± standard deviation over the repetitions, or with " (3 of 5)" the mean over those that have reached it.
    """
    params, told = results[0].params, []
    for target in map(float, re.findall(r"[0-9][0-9.e-]*", params.get("evaluation.targets", ""))):
        stages: dict[str, dict[str, str]] = {}
        for stage, (name, value) in product(STAGES, REACHED.items()):
            key = f"{split}/{stage}/{value}"
            if any(key in result.metrics for result in results):
                stages.setdefault(stage, {})[name] = _first_round(results, key, target)
        each = (
            f"{stage}{_cohort(results, split) if stage == 'L2' else ''} {', '.join(map(' '.join, rounds.items()))}"
            for stage, rounds in stages.items()
        )
        is_reached = any(value != NEVER for rounds in stages.values() for value in rounds.values())
        if stages:
            scored = _pooled_rounds(stages, params)
            told.append(
                f"first scored round with {in_percent(target)} %: {'; '.join(each) if is_reached else NEVER}{scored}"
            )
    return told


def _pooled_rounds(stages: Mapping[str, Mapping[str, str]], params: Mapping[str, str]) -> str:
    """Say that Acc(G) of clients' own models is scored in few rounds, where it has a first one."""
    every = math.lcm(*(int(params.get(f"evaluation.{name}", 1)) for name in ("every", "global_every")))
    is_shown = any(stages.get(stage, {}).get("Acc(G)", NEVER) != NEVER for stage in ("L1", "L2"))
    return f" (Acc(G) of clients' own models is scored every {every} rounds)" if is_shown and every != 1 else ""


def _cohort(results: Sequence[FinishedRun], split: str) -> str:
    """Return " (of the round's cohort)" if scores at L2 are of fewer clients than those of other stages.

    A method may draw its own cohorts, so that this holds at a share of participation of 1 too.
    """
    is_part = float(results[0].params.get("participation.share", 1)) < 1
    for run in results:
        l2, *others = (run.metrics.get(f"{split}/{stage}/local/clients", 0) for stage in ("L2", "L1", "G"))
        is_part |= 0 < l2 < max(others)
    return " (of the round's cohort)" if is_part else ""


def _first_round(results: Sequence[FinishedRun], key: str, target: float) -> str:
    """Return "7", "6.3 ± 0.6", "6.5 (2 of 3)" or "never"."""
    found = [result.final.get(f"reached/{key}_{in_percent(target)}", math.nan) for result in results]
    mean, std = mean_std(found)
    k = sum(map(math.isfinite, found))
    if k == 0:
        return NEVER
    if len(found) == 1:
        return f"{mean:.0f}"
    return f"{mean:.1f}" + (f" ± {std:.1f}" if k == len(found) else part_of(k, len(found)))


def _covered(results: Sequence[FinishedRun], sizes: "Sequence[pd.Series]", split: str) -> str:
    """Return the line on L2 if some clients with samples have no score there, as with absent=last; "": all have.

    Args:
        sizes: held-out samples of each client that is scored, a series for each result.
    """
    most = [int((size > 0).sum()) for size in sizes]
    key = f"final/{split}/L2/local/clients"
    found = [int(result.final.get(key, n)) for result, n in zip(results, most, strict=False)]
    return covered(found, most) if found != most else ""


def covered(found: Sequence[int], most: Sequence[int]) -> str:
    """Return the line on clients behind L2 with absent=last; `most`: those that could have a score, of each run.

    >>> covered([12, 14], [20, 20])
    'L2: of the 12 to 14 of 20 clients that have taken part in a round'
    """
    return f"L2: of the {_range(found)} of {_range(most)} clients that have taken part in a round"


def _range(counts: Sequence[int]) -> str:
    """Return "2", or "1 to 2" where seeds, which have partitions of their own, differ."""
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def sampling_notes(finals: Sequence[Mapping[str, float]], what: str) -> list[str]:
    """Return the line on a global view that stands on a part of the test data, if it does.

    Args:
        finals: `final/…` keys of runs. what: the values, in words.

    >>> sampling_notes([{"final/test/L1/global/samples": 1000, "final/test/L1/global/se": 0.006}], "Acc(G)")
    ['Acc(G): from 1,000 of the samples, one set for all models, standard error 0.6 points (all: evaluation.final=all)']
    """
    ends = (f"/global/{SAMPLES}", f"/global/{ERROR}")
    samples, errors = (
        [v for final in finals for k, v in final.items() if k.startswith("final/") and k.endswith(end)] for end in ends
    )
    if not samples:
        return []
    numbers = " to ".join(f"{number:,.0f}" for number in sorted({min(samples), max(samples)}))
    error = f", standard error {'up to ' * (len(errors) > 1)}{100 * max(errors):.1f} points" if errors else ""
    return [f"{what}: from {numbers} of the samples, one set for all models{error} (all: evaluation.final=all)"]


def loss_notes(metric: str, methods: Collection[str]) -> list[str]:
    """Return the line on several methods that are ordered by their training losses; []: they are not.

    >>> loss_notes("train/loss", ["fedrep", "fedavg"])[0][:49]
    "train/loss is that of each method's main training"
    """
    if metric != LOSS or len(set(methods)) < 2:
        return []
    return [
        f"{LOSS} is that of each method's main training (of fedrep the heads', of ditto the global model's), so it may "
        "be of other models"
    ]


def _stages(results: Sequence[FinishedRun], split: str) -> list[str]:
    keys = {key for result in results for key in result.final}
    return [stage for stage in STAGES if any(key.startswith(f"final/{split}/{stage}/") for key in keys)]


def _of_stage(result: FinishedRun, stage: str) -> "pd.DataFrame":
    clients = result.clients
    return clients[(clients["stage"] == stage) & clients["local"].notna()] if len(clients) else clients


def _samples_of_the_worst(result: FinishedRun, stage: str) -> str:
    """Return " (n 3)", the samples behind the worst client's accuracy; " (4 clients, n 3 to 9)" if several have it."""
    rows = _of_stage(result, stage)
    sizes = rows["n_held"][rows["local"] == rows["local"].min()].tolist()
    several = f"{count(len(sizes), 'client')}, " if len(sizes) > 1 else ""
    return f" ({several}n {_range(sizes)})" if sizes else ""


def _worst(result: FinishedRun, stage: str, least: int) -> float:
    """The worst accuracy among clients with so many samples; NaN: there are none."""
    rows = _of_stage(result, stage)
    return float(rows["local"][rows["n_held"] >= least].min()) if len(rows) else math.nan


def percent(values: Sequence[float]) -> str:
    """91.2 %, or 91.2 ± 0.4 % (sample standard deviation), with " (3 of 5)" of those that are no NaN."""
    mean, std = mean_std(values)
    return with_unit("acc", mean, std) + part_of(sum(map(math.isfinite, values)), len(values))


# -- studies -----------------------------------------------------------------------------------------------------------


def chosen(point: Mapping[str, object]) -> TableRows:
    """Return the settings of the chosen trial, with all digits: another run with them is the same run."""
    return TableRows(
        "", ("chosen", "value"), tuple((path, exact(value)) for path, value in point.items()), frozenset({0, 1})
    )


def trials(
    trials: "pd.DataFrame", metrics: Sequence[str], modes: Sequence[str], chosen: int, title: str, most: int = 12
) -> TableRows:
    """Return the trials of a study, best first; the chosen one has a star.

    Trials that were stopped early or diverged come after the complete ones: their values are of earlier rounds.

    Args:
        trials: `Study.table`, or rows of it.
        metrics, modes: the objective's, "max" or "min" for each; the first one decides the order.
        chosen: number of the chosen trial.
        title: above the table.
        most: rows that are shown.
    """
    ordered = trials.sort_values(metrics[0], ascending=modes[0] == "min", kind="stable", na_position="last")
    ordered = ordered.sort_values("state", key=lambda states: states != "complete", kind="stable")
    more = f", the best {most} of {len(ordered)} trials" if len(ordered) > most else ""
    parts = [part for metric in metrics for part in summands(metric) if part in trials and part not in metrics]
    stages = {name.split("/")[1] if name != heading(name) else "" for name in metrics}  # "": the head is a whole key
    of_one = len(stages) == 1 and stages != {""}
    more += f", validation scores of {min(stages)}" if of_one else ""
    spreads = {metric: f"{metric}/std" for metric in metrics if f"{metric}/std" in trials}
    more += ", mean ± std over seeds" if spreads else ""
    known = {"trial", "state", "rounds", "seconds", "samples", "sent_bytes", "error", "note", *metrics, *parts}
    known |= set(spreads.values())
    starts = tuple(f"{metric}/" for metric in metrics)
    known |= {name for name in map(str, trials.columns) if name.startswith(starts)}
    heads = ["trial", "state", "rounds"]
    for name in (*parts, *metrics):
        of = f" of {name.split('/')[1]}" if heading(name) != name and not of_one else ""
        heads.append(heading(name) + of)
    heads += ["seconds", "settings"]
    rows: list[tuple[str, ...]] = []
    star = None
    for row in ordered.head(most).to_dict("records"):
        point = [
            f"{str(key).removeprefix('algorithm.')}={_short(value)}"
            for key, value in row.items()
            if key not in known and _is(value)
        ]
        values = [_score(m, row[m], row.get(spreads.get(m, ""))) for m in (*parts, *metrics)]
        star = len(rows) if row["trial"] == chosen else star
        mark = "*" if row["trial"] == chosen else ""
        note = f"  ({row['note']})" if row.get("note") else ""
        settings = (row["error"] or " ".join(point)) + note
        first = f"{mark}{row['trial']:03d}", row["state"], str(row["rounds"])
        rows.append((*first, *values, _short(row["seconds"]), settings))
    return TableRows(title + more, tuple(heads), tuple(rows), frozenset({1, len(heads) - 1}), star)


def environments(table: "pd.DataFrame") -> TableRows:
    """Return the scores of a study's choice and of FedAvg in each environment, a row each.

    Args:
        table: `Study.environments`.
    """
    several = table["metric"].nunique() > 1
    rows = []
    for row in table.to_dict("records"):
        metric, test = row["metric"], [row["fedavg_test"], row["choice_test"], row["ratio_test"]]
        name = row["environment"] + (" (held out)" if row["held_out"] else "")
        validation = [_score(metric, row["fedavg"]), _score(metric, row["choice"]), _ratio(row["ratio"])]
        stds = row["fedavg_std"], row["choice_std"]
        tested = [*(_score(metric, value, std) for value, std in zip(test, stds, strict=False)), _ratio(test[2])]
        rows.append((name, *([heading(metric)] if several else []), *validation, *tested))
    n = int(table["n"].max()) if len(table) else 0
    what = "" if several or not len(table) else f", {heading(table['metric'].iloc[0])}"
    seeds = f", test: {f'mean ± std of {n} seeds' if n > 1 else '1 seed'}" if n else ", test data closed"
    heads = ("FedAvg val", "choice val", "ratio", "FedAvg test", "choice test", "ratio")
    return TableRows(
        f"environments{what}{seeds}", ("environment", *(["metric"] if several else []), *heads), tuple(rows)
    )


def _ratio(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


RANKED_BY = {"test": "test score", "confirmed": "validation score over new seeds", "validation": "validation score"}


def ranked_by(table: "pd.DataFrame") -> str:
    """Return the column of a leaderboard by which methods are ranked, a key of `RANKED_BY`.

    Args:
        table: `Benchmark.table`.
    """
    if table["test"].notna().any():
        return "test"
    return "confirmed" if table.loc[table["status"] == "complete", "confirmed_n"].gt(0).all() else "validation"


def ranking(table: "pd.DataFrame") -> str:
    """Return the scores by which a leaderboard is ranked, in words; `table`: as for `ranked_by`."""
    return f"ranked by {RANKED_BY[ranked_by(table)]}" if table["rank"].notna().any() else "not ranked"


def leaderboard(table: "pd.DataFrame", name: str) -> TableRows:
    """Return the leaderboard of a benchmark, a row a method, best first.

    Args:
        table: `Benchmark.table`. name: the benchmark's.
    """
    n = int(table["test_runs"].max())
    over = f", test: mean ± std of {n} seeds" if n > 1 else ""
    over += f", {ranking(table)} after {searched(table)}"
    right = ("validation", "test", difference_title(table["metric"].iloc[0]), "p", "Acc(L)", "Acc(G)", "worst client")
    rows = tuple(
        (
            str(row["rank"]) if _is(row["rank"]) else "–",
            row["method"] + " *" * bool(row["restricted"]),
            row["scored_at"],
            with_unit(row["metric"], row["validation"]),
            tested(row),
            signed(row["difference"], row["metric"]) if math.isfinite(row["difference"]) else "",
            chance(row["p_holm"]) if math.isfinite(row["p_holm"]) else "",
            *(percent([row[view]]) + part(row, view) for view in ("local", "global", "worst")),
        )
        for row in table.to_dict("records")
    )
    first = 0 if rows and rows[0][0] == "1" else None
    return TableRows(f"benchmark {name}{over}", ("", "method", "scored at", *right), rows, frozenset({0, 1, 2}), first)


def tested(row: Mapping[Any, Any]) -> str:
    """Return the test score of a row of a leaderboard: "60.0 ± 0.4 %", "60.0 ± 0.4 % (4 of 7)", "diverged"."""
    return "diverged" if row["status"] == "diverged" else with_unit(row["metric"], row["test"], row["std"]) + part(row)


def part(row: Mapping[Any, Any], view: str = "") -> str:
    """Return " (4 of 7)" after a mean over 4 of 7 test runs in a row of a leaderboard; "": over all of them.

    Args:
        row: of `Benchmark.table`. view: column of the mean, "local"; "": the test score.
    """
    return part_of(row[f"n_{view}" if view else "n"], row["test_runs"])


def equal_cost(costs: "pd.DataFrame", metric: str) -> TableRows:
    """Return the methods' best validation scores at equal cost, a row a method, a column for each kind of cost.

    Args:
        costs: `Benchmark.costs`. metric: validation key.
    """
    kinds = {str(cost): part.set_index("method") for cost, part in costs.groupby("cost", sort=False)}
    heads = [f"equal {cost.replace('_', ' ')}: {_amount(cost, part['budget'].iloc[0])}" for cost, part in kinds.items()]
    rows = tuple(
        (method, *(_at_equal_cost(part.loc[method].to_dict(), metric) for part in kinds.values()))
        for method in dict.fromkeys(costs["method"])
    )
    return TableRows("search at equal cost, validation", ("method", *heads), rows)


def _at_equal_cost(row: Mapping[str, Any], metric: str) -> str:
    n = count(row["trials"], "trial")
    if not _is(row["validation"]):
        return f"–  ({n})"
    rank = f"{row['rank']}.  " if _is(row["rank"]) else ""
    return f"{rank}{with_unit(metric, row['validation'])}  ({n})"


def _amount(cost: str, value: float) -> str:
    """A budget in its unit: 12, 1,200,000, 3.2 MiB, 61.5 s."""
    return {"sent_bytes": mebibytes(value), "seconds": f"{value:,.1f} s"}.get(cost, f"{value:,.0f}")


def searched(table: "pd.DataFrame") -> str:
    """Return the number of trials that methods had: "12 trials each", "8 to 12 trials".

    Args:
        table: `Benchmark.table`.
    """
    least, most = int(table["trials"].min()), int(table["trials"].max())
    return f"{count(least, 'trial')} each" if least == most else f"{least} to {most} trials"


def choices(table: "pd.DataFrame") -> TableRows:
    """Return the chosen settings of a benchmark, a row a method, or why there are none.

    Args:
        table: `Benchmark.table`.
    """
    rows = tuple(
        (
            row["method"],
            f"{int(row['trial']):03d}" if _is(row["trial"]) else "–",
            f"{row['status']}: {row['error']}" if row["error"] else row["settings"],
        )
        for row in table.to_dict("records")
    )
    return TableRows("chosen", ("method", "trial", "settings"), rows, frozenset({0, 2}))


def chance(p: float | None) -> str:
    """A p value in two digits, or in as many as tell it from the level; a dash if there is no test.

    >>> [chance(p) for p in (0.0312, 0.0004, 0.0496, 0.0502, None)]
    ['0.031', '<0.001', '0.0496', '0.05', '–']
    """
    if p is None:
        return "–"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return "<0.001" if p < 0.001 else next(text for text in texts if (float(text) < LEVEL) == (p < LEVEL))


def _score(metric: str, value: float | None, std: float | None = None) -> str:
    """A score in its unit, with its standard deviation; of a metric without a unit in four digits."""
    if value is not None and unit_of(metric).name:
        return with_unit(metric, value, std)
    return _short(value) + (f" ± {_short(std)}" if _is(value) and std is not None and _is(std) else "")


def _is(value: object) -> bool:
    """True if a cell holds anything: a parameter that does not exist in a trial is NaN, a missing rank is NA."""
    import pandas as pd

    return value is not None and value is not pd.NA and bool(value == value)


def _short(value: object) -> str:
    if not _is(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
