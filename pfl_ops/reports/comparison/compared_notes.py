"""Notes on the scores of a comparison: those that stand on a part of the samples, or of the clients."""

from collections.abc import Sequence

from pfl_ops import metric_keys, metrics
from pfl_ops.comparison import Line
from pfl_ops.display.tables import covered, loss_notes, sampling_notes
from pfl_ops.errors import count
from pfl_ops.reports.comparison.comparison_data import BEST_ROUND, ComparisonData, Group
from pfl_ops.reports.comparison.fairness import ABSENT, clients_at_l2, other_best_of, scored_cohort, some_labels
from pfl_ops.results import Result

OPTIMISTIC = "best round: chosen on the data that it is scored on, so scores are too high on average"
SUBSET = "best round: Acc(G) is of the subset of pooled samples that curves have, so best may be below last"


def best_notes(c: ComparisonData, group: Group) -> tuple[str, ...]:
    """Return a line each on best rounds that are compared, that were scored on a subset of the pooled samples, on a
    cohort alone, or are the best of other rounds (the table of best rounds has a warning in place of this line).

    The last round is scored on more, so that its score may be above that of the best round, even if it is that round.
    """
    found = [OPTIMISTIC] if c.at == "best" else []
    error = metric_keys.error_key(f"/{group.metric}")  # tracked where the samples are a subset
    names = (name for line in group.lines for run in line.runs for name in run.metrics)
    if error and any(name.startswith("best/") and name.endswith(error) for name in names):
        found.append(SUBSET)
    shown = (group.metric, *(["L2/local/mean"] if c.at == "best" else []))  # the best round's other stages are shown
    of_cohort = [line for line in group.lines if any(_at_best_cohort(line, metric) for metric in shown)]
    if of_cohort:
        some = any(clients_at_l2(line.runs[0]) is not None for line in of_cohort)
        found.append(
            f"best round: {', '.join(line.label for line in of_cohort)} (L2) is scored on that round's cohort "
            f"alone, other stages {'' if some else 'and the last round '}on absent clients too"
        )
    elsewhere = [
        line.label for line in group.lines if line.values(BEST_ROUND) and not line.values("local/mean", "best")
    ]
    if elsewhere:
        found.append(f"best round: that of {some_labels(elsewhere)} is by another stage, since its own has no curves")
    with_best = {line.label: line.runs for line in group.lines if line.values(BEST_ROUND)}  # trials have none
    if c.at == "final" and (other := other_best_of(with_best)):
        found.append(other)
    return tuple(found)


def _at_best_cohort(line: Line, metric: str) -> bool:
    """True if a line has a score of its best round that is of that round's cohort."""
    return bool(scored_cohort(line.runs[0], metric, "best")) and bool(line.values(metric, "best"))


def scored_notes(group: Group) -> tuple[str, ...]:
    """Return a line each on scores of the last round that stand on a part of the samples, or of the clients, and on
    training losses of several methods.

    Lines are named if it is not true of all of them.
    """
    found = loss_notes(group.metric, [line.runs[0].method for line in group.lines])
    sampled = [line for line in group.lines if any(run.final_samples is not None for run in line.runs)]
    found += sampling_notes(
        [run.metrics for line in sampled for run in line.runs], f"Acc(G) of the last round{_of(sampled, group)}"
    )
    drawn = [line for line in group.lines if any(run.drawn_clients for run in line.runs)]
    for told in dict.fromkeys(told for line in drawn for run in line.runs if (told := run.drawn_clients)):
        found.append(f"{told} are scored, drawn once for each run{_of(drawn, group)} (evaluation.clients)")
    few = [line for line in group.lines if any(_lacking(run) for run in line.runs)]
    if few:
        pairs = [pair for line in few for run in line.runs if (pair := _at_l2(run))]
        named = "" if len(few) == len(group.lines) else f"; {some_labels([line.label for line in few])}"
        found.append(f"{covered(*zip(*pairs, strict=True))} ({ABSENT}=last{named})")
    l2 = "L2/local/mean"
    partial = [line for line in group.lines if scored_cohort(line.runs[0], l2) and line.values(l2)]
    if partial:
        found.append(f"L2{_of(partial, group)} is of the last round's cohort alone, without a full evaluation")
    return tuple(found)


def p_notes(c: ComparisonData, group: Group) -> tuple[str, ...]:
    """Return a line each on p values of fewer seeds than a line has, on lines or metrics without one, and on
    differences without p that are of fewer seeds than the means beside them."""
    if metric_keys.is_neutral(group.metric):
        return (f"{group.metric} is neither better large nor small: there is no best line, and no p value",)
    few: dict[tuple[int, int], list[str]] = {}
    of_part: dict[int, list[str]] = {}
    most = len(group.lines[0].values(group.metric, c.at))
    for line in group.lines:
        test = line.difference
        lacks = test is not None and c.at == "final" and test.n_tested < 2 <= test.n
        if test is not None and (lacks or (test.p is not None and test.n_tested < len(line.runs))):
            few.setdefault((test.n_tested, test.n), []).append(line.label)
        elif test is not None and test.p is None and 0 < test.n < max(most, len(line.values(group.metric, c.at))):
            of_part.setdefault(test.n, []).append(line.label)
    told = []
    for (tested, common), names in few.items():
        of, ends = some_labels(names), "the test ends at the first one that a line lacks"
        if tested < 2:
            told.append(f"no p of {of}: {ends}, after {tested} of {common} common seeds")
        elif tested < common:
            told.append(f"p of {of} is over {tested} of {common} common seeds: {ends}")
        else:
            told.append(f"p of {of} is over {count(common, 'seed')}, those of which both lines have a value")
    for n, names in of_part.items():
        told.append(f"difference of {some_labels(names)} to the first: over {count(n, 'common seed')}, means over all")
    return tuple(told)


def _of(lines: Sequence[Line], group: Group) -> str:
    """ " of 'fliu', 'ditto'"; "": these are all lines of the group."""
    return "" if len(lines) == len(group.lines) else f" of {some_labels([line.label for line in lines])}"


def _at_l2(run: Result) -> tuple[int, int] | None:
    """Clients with a score at L2, and at another stage, see `clients_at_l2`; None: all have one."""
    found = clients_at_l2(run)
    keys = (metrics.key(run.split, stage, "local", "clients", prefix="final/") for stage in ("L1", "G"))
    others = [int(run.metrics[key]) for key in keys if key in run.metrics]
    most = max(others) if others else run.n_clients
    return None if found is None or most is None else (found, most)


def _lacking(run: Result) -> bool:
    pair = _at_l2(run)
    return pair is not None and pair[0] < pair[1]
