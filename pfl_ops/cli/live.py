"""Tables at the end of a command: scores of runs, trials of a study."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from pfl_ops.metrics import ENOUGH, STAGES, summands
from pfl_ops.units import heading, unit_of, with_unit

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.results import Result


STAGES_TOLD = {
    "L2": "L2: clients' own models after local training",
    "G": "G: the global model made from them",
    "L1": "L1: what clients hold after the update",
}


def results_table(results: "Sequence[Result]", split: str) -> Table:
    """The full last evaluation, a row a stage; mean ± standard deviation over repetitions.

    Args:
        results: the repetitions.
        split: "val" or "test".
    """
    n = f", mean ± std of {len(results)}" if len(results) > 1 else ""
    table = Table(title=f"last round, {split}{n}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("stage")
    for name in ("Acc(L)", "Acc(G)", "Acc(L)+Acc(G)", "worst client", f"worst, n ≥ {ENOUGH}"):
        table.add_column(name, justify="right")
    for stage in _stages(results, split):
        finals = [
            [result.final.get(f"final/{split}/{stage}/{key}", math.nan) for result in results]
            for key in ("local/mean", "global/mean", "acc", "local/worst")
        ]
        local, pooled, both, worst = finals
        at = _samples_of_the_worst(results[0], stage) if len(results) == 1 else ""
        enough = [_worst(result, stage, ENOUGH) for result in results]
        table.add_row(
            stage, percent(local), percent(pooled), percent(both), percent(worst) + at, percent(enough)
        )  # fmt: skip
    return table


def results_notes(results: "Sequence[Result]", split: str) -> list[str]:
    """Return notes on `results_table`: the stages in the order in which they come, and small test sets."""
    stages = _stages(results, split)
    told = ["; ".join(text for stage, text in STAGES_TOLD.items() if stage in stages)]
    clients = results[0].clients
    sizes = clients.drop_duplicates("client")["n_held"].tolist() if len(clients) else []
    few = sum(size < ENOUGH for size in sizes)
    if few:
        what = "test" if split == "test" else "validation"
        told.append(f"n: a client's {what} samples; {few} of {len(sizes)} clients have fewer than {ENOUGH}")
    return told


def _stages(results: "Sequence[Result]", split: str) -> list[str]:
    return [stage for stage in STAGES if any(key.startswith(f"final/{split}/{stage}/") for key in results[0].final)]


def _of_stage(result: "Result", stage: str) -> "pd.DataFrame":
    clients = result.clients
    return clients[(clients["stage"] == stage) & clients["local"].notna()] if len(clients) else clients


def _samples_of_the_worst(result: "Result", stage: str) -> str:
    """ " (n 3)": on how many samples the worst client's accuracy stands."""
    rows = _of_stage(result, stage)
    return f" (n {rows.sort_values('local')['n_held'].iloc[0]})" if len(rows) else ""


def _worst(result: "Result", stage: str, least: int) -> float:
    """The worst accuracy among clients with so many samples; NaN: there are none."""
    rows = _of_stage(result, stage)
    return float(rows["local"][rows["n_held"] >= least].min()) if len(rows) else math.nan


def percent(values: Sequence[float]) -> str:
    """91.2 %, or 91.2 ± 0.4 % (sample standard deviation)."""
    if not all(map(math.isfinite, values)):
        return "–"
    if len(values) < 2:
        return f"{100 * values[0]:.1f} %"
    return f"{100 * statistics.fmean(values):.1f} ± {100 * statistics.stdev(values):.1f} %"


def trials_table(trials: "pd.DataFrame", metrics: Sequence[str], chosen: int, title: str, most: int = 12) -> Table:
    """The trials of a study, best first; the chosen one is marked.

    Args:
        trials: `Study.table`, or rows of it.
        metrics: the objective's, the first one decides the order (larger first).
        chosen: number of the chosen trial.
        title: above the table.
        most: rows that are shown.
    """
    from rich.text import Text

    rows = trials.sort_values(metrics[0], ascending=False, na_position="last")
    more = f", the best {most} of {len(rows)} trials" if len(rows) > most else ""
    parts = [part for metric in metrics for part in summands(metric) if part in trials and part not in metrics]
    stages = {name.split("/")[1] for name in metrics if name != heading(name)}
    more += f", validation scores of {min(stages)}" if len(stages) == 1 else ""
    table = Table(title=title + more, title_justify="left", title_style="bold", box=None, pad_edge=False)
    known = {"trial", "state", "rounds", "seconds", "samples", "error", "note", *metrics, *parts}
    table.add_column("trial", justify="right")
    table.add_column("state")
    table.add_column("rounds", justify="right")
    for name in (*parts, *metrics):
        of = f" of {name.split('/')[1]}" if heading(name) != name and len(stages) > 1 else ""
        table.add_column(heading(name) + of, justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("settings", overflow="fold")
    for row in rows.head(most).to_dict("records"):
        point = [
            f"{str(key).removeprefix('algorithm.')}={_short(value)}"
            for key, value in row.items()
            if key not in known and _is(value)
        ]
        scores = [
            with_unit(m, row[m]) if unit_of(m).name and _is(row[m]) else _short(row[m]) for m in (*parts, *metrics)
        ]
        cells = [str(row["rounds"]), *scores, _short(row["seconds"])]
        mark = "*" if row["trial"] == chosen else ""
        note = f"  ({row['note']})" if row.get("note") else ""
        table.add_row(f"{mark}{row['trial']:03d}", row["state"], *cells, Text((row["error"] or " ".join(point)) + note))
    return table


def _is(value: object) -> bool:
    """Whether a cell holds anything: a parameter that does not exist in a trial is NaN."""
    return value is not None and value == value


def _short(value: object) -> str:
    if not _is(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
