"""Methods at equal cost: the best validation score of each search within the smallest budget that all have spent."""

import math
from collections.abc import Sequence

import pandas as pd
from optuna.trial import TrialState

from pfl_ops.comparison import EQUAL
from pfl_ops.tuning.findings.leaderboard import MethodStudy, same_clients
from pfl_ops.tuning.studies import study_storage as study_storages

COSTS = ("trials", "samples", "sent_bytes", "seconds")


def equal_cost(entries: Sequence[MethodStudy]) -> pd.DataFrame:
    """Rank methods within equal budgets of their searches, once for each kind of cost.

    Trials count in the order in which they ended, whatever their state; runs with new seeds and test runs do not. The
    budget is the smallest total above 0 among the methods with a complete trial: `local` sends no bytes, and is within
    each budget of them. A method has the best value of the complete trials that ended within it.

    Returns:
        a row for each kind of cost and method: cost: trials, samples (gradient samples), sent_bytes (up and down, all
        clients), seconds (summed over trials, though they run side by side, without the start of processes); budget;
        method; spent: by the whole search; trials: that ended within the budget; trial, validation: the best of them,
        NaN: none is complete; rank: of equal values the same, NA: values of different clients
        (`leaderboard.same_clients`). A cost that is not known of every method, or that none
        has, has no rows.
    """
    searches = {entry.plan.method: _search(entry) for entry in entries}
    rows = []
    for cost in COSTS:
        totals = {
            method: float(search[cost].sum()) for method, search in searches.items() if search["value"].notna().any()
        }
        if not totals or any(search[cost].isna().any() for search in searches.values()):
            continue
        budget = min((total for total in totals.values() if total > 0), default=0.0)
        if not budget:
            continue
        for entry in entries:
            method = entry.plan.method
            search = searches[method]
            within = search[search[cost].cumsum() <= budget * (1 + 1e-12)]  # sums of the same numbers in another order
            complete = within.dropna(subset=["value"]).sort_values("value", ascending=not entry.larger, kind="stable")
            trial, value = complete[["trial", "value"]].iloc[0] if len(complete) else (math.nan, math.nan)
            rows.append((cost, budget, method, float(search[cost].sum()), len(within), float(trial), float(value)))
    columns = ["cost", "budget", "method", "spent", "trials", "trial", "validation", "rank"]
    table = pd.DataFrame(rows, columns=columns[:-1])
    values = table["validation"].astype(float).round(EQUAL) * (1 if same_clients(entries) else math.nan)
    ranks = values.groupby(table["cost"]).rank(method="min", ascending=not entries[0].larger)
    return table.assign(rank=ranks.astype("Int64"))[columns]


def notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Return a line with the order of the methods at each equal cost of the search; none if they have no ranks."""
    if table["method"].nunique() < 2 or table["rank"].isna().all():
        return ()
    orders = []
    for cost, part in table.groupby("cost", sort=False):
        ranked = part.dropna(subset=["rank"]).sort_values("rank", kind="stable")
        orders.append(f"{str(cost).replace('_', ' ')}: {_order(ranked)}")
    told = "Order by the best validation score of the search, not by tests, at equal"
    return (f"{told} {'; '.join(orders)}.",)


def _order(ranked: pd.DataFrame) -> str:
    """Methods, best first: "a, b = c" where b and c are tied."""
    pairs = list(zip(ranked["method"], ranked["rank"], strict=True))
    text = ""
    for i, (method, rank) in enumerate(pairs):
        text += ("" if i == 0 else " = " if rank == pairs[i - 1][1] else ", ") + method
    return text


def _search(entry: MethodStudy) -> pd.DataFrame:
    """The trials of a search in the order in which they ended: trial, value (NaN: not complete), and `COSTS`."""
    ended = [(number, trial) for number, trial in entry.study_storage.trials() if trial.state.is_finished()]
    rows = [
        (
            number,
            float(trial.values[0]) if trial.state is TrialState.COMPLETE else math.nan,
            1,
            trial.user_attrs.get(study_storages.SAMPLES, 0),
            trial.user_attrs.get(study_storages.SENT_BYTES, math.nan),
            study_storages.seconds_of(trial) or 0.0,
        )
        for number, trial in sorted(ended, key=lambda pair: (pair[1].datetime_complete, pair[0]))
    ]
    return pd.DataFrame(rows, columns=["trial", "value", *COSTS]).astype(dict.fromkeys(("value", *COSTS), float))
