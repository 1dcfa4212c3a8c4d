"""Sentences below a leaderboard: what its scores are of, which test, what was searched, what is unfair."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from pfl_ops.comparison import TEST_SEEDS, TESTS, Test
from pfl_ops.display import tables
from pfl_ops.errors import by_key, sentence
from pfl_ops.tuning.findings import leaderboard
from pfl_ops.tuning.findings.leaderboard import MethodStudy
from pfl_ops.tuning.findings.study import SAMPLED
from pfl_ops.units import deviation, with_unit


def notes(entries: Sequence[MethodStudy], table: pd.DataFrame) -> tuple[str, ...]:
    """Return the notes that a reader of the leaderboard needs, a sentence or two each."""
    unlike = _unlike(entries, table)
    changed = [entry.plan.method for entry in entries if leaderboard.choice_changed(entry)]
    first = str(table["method"][0])
    untested = table["method"] if first in changed else {*unlike, *changed}
    found = (
        _scored(entries),
        _cohorts(entries),
        _drawn(entries),
        _seeds(entries, table, set(untested)),
        _parts(table),
        _seeds_per_trial(entries),
        _evaluation_errors(entries),
        _confirmed(entries),
        *_ties(entries),
        _unfair(first, unlike),
        _changed(changed),
        _shared(entries),
        _own_settings(entries),
        _ends(entries),
        _budget(table),
        *tables.sampling_notes([run.final for entry in entries for run in entry.finals], "Acc(G) of test runs"),
        *_test_data(entries),
        *_failures(table),
    )
    return tuple(filter(None, found))


def _scored(entries: Sequence[MethodStudy]) -> str:
    by_stage = by_key((entry.stage, entry.plan.method) for entry in entries)
    if len(by_stage) == 1:
        metric = entries[0].metric
        means = " (Acc(L) + Acc(G))" if metric.endswith("/acc") else ""
        return f"Every method is chosen by {metric} and tested by test{metric.removeprefix('val')}{means}, last round."
    at = ", ".join(f"{stage} ({', '.join(methods)})" for stage, methods in by_stage.items())
    return (
        f"Each method is scored on the models that its clients would use: {at}. "
        "For one stage for all give a metric, such as val/L1/acc."
    )


def _cohorts(entries: Sequence[MethodStudy]) -> str:
    """The clients behind validation scores, if they are not all."""
    by_method = {entry.plan.method: entry.plan.settings.scored_clients for entry in entries}
    few = {name: one.share for name, one in by_method.items() if one.share < 1 or one.difference}
    if not few:
        return ""
    least = min((by_method[name] for name in few), key=lambda one: one.share)
    share = f", {least.share:.3g} of the clients{least.drawn}" if least.share < 1 else ""
    told = f"Validation scores of {', '.join(few)} (L2) are those of the last round's cohort{share}"
    if reasons := list(dict.fromkeys(why for name in few if (why := by_method[name].difference))):
        told += f", not the same clients in all trials ({'; '.join(reasons)})"
    if not leaderboard.same_clients(entries):
        told += "; those of other methods are of absent clients too" if len(few) < len(by_method) else ""
        told += ". They are not comparable, and methods have no rank by them"
    return f"{told}. Tests score absent clients too."


def _drawn(entries: Sequence[MethodStudy]) -> str:
    """The clients that tests score, if they are drawn."""
    found = dict.fromkeys(told for entry in entries for run in entry.finals if (told := run.drawn_clients))
    return f"{'; '.join(found)} are scored, drawn once for each run (evaluation.clients)." if found else ""


def _seeds(entries: Sequence[MethodStudy], table: pd.DataFrame, untested: Collection[str]) -> str:
    """The test behind the differences; `untested`: methods without a p value, see `compared`."""
    good = table[table["status"] == "complete"]
    if not len(good):  # no method has a rank
        return ""
    n = int(good["n"].max())
    closed = "No test run has a score" if good["test_runs"].any() else "The test data stayed closed"
    if n == 0 and good["rank"].isna().all():
        return f"{closed}: no method has a rank."
    if n == 0 and tables.ranked_by(table) == "confirmed":
        rows = zip(good["method"], good["metric"], good["confirmed"], good["confirmed_n"], strict=True)
        means = ", ".join(f"{method} {with_unit(metric, mean)} (n = {k})" for method, metric, mean, k in rows)
        return f"{closed}: ranked by mean validation scores over the new seeds, {means}."
    if n == 0:
        seeds_per_trial = entries[0].plan.settings.seeds_per_trial
        of = "of one seed" if seeds_per_trial == 1 else f"means over {seeds_per_trial} seeds"
        return f"{closed}: ranked by validation scores, {of}."
    if n == 1:
        return "One seed: no spread, and no telling whether a difference is more than chance; --repetitions gives more."
    tied = [str(m) for m in good["method"][good["rank"] == 1]]
    tie = f"A tie for the first rank: {', '.join(tied)}." if len(tied) > 1 else ""
    several = good[(good["common"] > 1) & ~good["method"].isin(list(untested))]
    tested, lost = several[several["p_seeds"] > 1], several["method"][several["p_seeds"] < 2]
    if len(lost):
        ends = "the test ends at the first seed of which a method has no score"
        tie = f"No p value of {', '.join(lost)}: {ends}. {tie}".rstrip()
    if not len(tested):
        return tie
    lines = {line.label: line for line in leaderboard.compared(entries)}
    smaller = not entries[0].larger
    worse, better = (
        [str(method) for method in tested["method"] if lines[method].is_behind(smaller=losing)]
        for losing in (smaller, not smaller)  # the first one may be behind over the seeds that both have
    )
    close = [str(method) for method in tested["method"] if method not in {*worse, *better}]
    seeds = " to ".join(map(str, sorted({tested["p_seeds"].min(), tested["p_seeds"].max()})))
    test: Test = table["p_test"].iloc[0]
    how = f"{TESTS[test]} over {seeds} seeds, {TEST_SEEDS[test]}, on the same partition in each"
    family = len(good) + int(((table["status"] == "diverged") & (table["test_runs"] > 0)).sum())
    how += ", p corrected for all pairs of methods (Holm)" if family > 2 else ""
    first = good["method"].iloc[0]
    told = [f"{'not ' * bool(close)}told apart from {first}: {', '.join(close or worse)}"] if close or worse else []
    told += [f"better than {first} over the seeds that both have: {', '.join(better)}"] if better else []
    return f"Differences to the first: {how}; at 5 % {'; '.join(told)}. {tie}".rstrip()


def _parts(table: pd.DataFrame) -> str:
    """Means over the test runs that have a value, where others have none; methods of which none has a score."""
    rows = [row for row in table.to_dict("records") if row["status"] == "complete"]
    parts = [part for row in rows for view in ("", *leaderboard.SCORE_KEYS) if (part := tables.part(row, view).strip())]
    told = [f"{parts[0]}: the mean over the test runs that have a value."] if parts else []
    none = [row["method"] for row in rows if row["test_runs"] and not row["n"]]
    told += [f"No rank, since no test run has a score: {', '.join(none)}."] if 0 < len(none) < len(rows) else []
    return " ".join(told)


def _seeds_per_trial(entries: Sequence[MethodStudy]) -> str:
    seeds = entries[0].plan.settings.seeds_per_trial
    return f"A trial's validation score is the mean over {seeds} seeds, the same for all." if seeds > 1 else ""


def _evaluation_errors(entries: Sequence[MethodStudy]) -> str:
    """The largest standard error of the evaluation of chosen trials; "": all samples were scored."""
    found = [entry.study.standard_errors.get(entry.metric) for entry in entries if entry.study]
    known = [error for error in found if error is not None]
    if not known:
        return ""
    largest = deviation(max(known), entries[0].metric)
    what = "The validation scores of the chosen trials have a standard error of the evaluation of"
    return f"{what}{' up to' * (len(known) > 1)} {largest}: {SAMPLED}."


def _confirmed(entries: Sequence[MethodStudy]) -> str:
    """The choices that were made among the best configurations with new seeds, and those that had no rival."""
    told, alone = [], []
    for entry in entries:
        if entry.study is None:
            continue
        if found := entry.study.confirmation:
            how = f"{'' if found.separated else 'not '}separated after {len(found.seeds)}"
            if found.winner in found.lost:
                how = "as by the search, since every one diverged"
            elif found.second is None:
                how = f"after {len(found.seeds)}, since every other one diverged"
            changed = f", not trial {found.first:03d} as the search" if found.changed else ""
            told.append(f"{entry.plan.method} {how}{changed}")
        elif entry.plan.settings.confirm:
            alone.append(entry.plan.method)
    if not told:
        return ""
    how = "Chosen among the best configurations, repeated with new seeds on validation data"
    others = f" Not repeated, since only one configuration is complete: {', '.join(alone)}." if alone else ""
    return f"{how}: {'; '.join(told)}.{others}"


def _ties(entries: Sequence[MethodStudy]) -> list[str]:
    """Lines on trials that were as good in the search as the choice: it was the first of them."""
    told = ((entry.plan.method, entry.study.tie_note) for entry in entries if entry.study)
    return [f"{method}: {note}." for method, note in told if note]


def _unlike(entries: Sequence[MethodStudy], table: pd.DataFrame) -> dict[str, str]:
    """{method: differences to the first one} of methods that `differing` excludes from the test."""
    by_method = {entry.plan.method: entry for entry in entries}
    first, *others = (by_method[method] for method in table["method"])
    told = {}
    for other in others:
        pairs = leaderboard.differing(first, other).items()
        if pairs:
            words = (f"{path.rpartition('.')[2]} {theirs}, not {mine}" for path, (mine, theirs) in pairs)
            told[other.plan.method] = f"{other.plan.method} has {'; '.join(words)}"
    return told


def _unfair(first: str, unlike: Mapping[str, str]) -> str:
    return f"Not a fair comparison with {first}, so without a p value: {'. '.join(unlike.values())}." if unlike else ""


def _changed(methods: Sequence[str]) -> str:
    """A note on methods whose choice was changed after a test of an earlier one; "": there is none."""
    if not methods:
        return ""
    return (
        f"Without a p value: the choice of {', '.join(methods)} was changed after a test of an earlier one, and the "
        "search may have gone on because of that test; a new study with other seeds (--seed, --name) has a p value."
    )


def _shared(entries: Sequence[MethodStudy]) -> str:
    """The ranges that all methods are searched over, and the methods that are restricted."""
    shared = [entry for entry in entries if entry.plan.settings.common]
    if len(shared) < 2:
        return ""
    common = shared[0].plan.settings.common
    assert common is not None
    names = ", ".join(key.rpartition(".")[2] for key in common.keys)
    told = f"Searched over the same ranges by all methods: {names}." if names else ""
    held = [f"{entry.plan.method} ({text})" for entry in shared if (text := leaderboard.restriction_text(entry))]
    told += f" * Restricted by what the method requires: {', '.join(held)}." if held else ""
    few = [
        f"{entry.plan.method} {len(entry.plan.settings.space.first)}"
        for entry in shared
        if len(entry.plan.settings.space.first) > entry.plan.settings.trials
    ]
    if few:
        told += f" Fewer trials than recommended settings to try first: {', '.join(few)}."
    return told


def _test_data(entries: Sequence[MethodStudy]) -> list[str]:
    """Lines on the data of the tests, which are the same for all methods."""
    told = next(filter(None, (entry.study.test_data_notes for entry in entries if entry.study)), ())
    return [sentence(line) for line in told]


def _own_settings(entries: Sequence[MethodStudy]) -> str:
    """Settings that a method recommends, as far as they hold here and were not tuned, nor required."""
    own = []
    for entry in entries:
        experiment, space = entry.plan.settings.experiment, entry.plan.settings.space
        known = {*space.keys, *entry.plan.settings.restrictions, *experiment.ignored()}
        kept = {p: v for p, v in experiment.algorithm.recommended.items() if p not in known and experiment.get(p) == v}
        if kept:
            own.append(f"{entry.plan.method} {leaderboard.settings_text(kept)}")
    return f"Settings that methods bring along: {'; '.join(own)}." if own else ""


def _ends(entries: Sequence[MethodStudy]) -> str:
    """Numbers of choices that lie at an end of their range."""
    found = [(entry.plan.method, entry.study.ends) for entry in entries if entry.study]
    told = "; ".join(f"{method} {', '.join(ends)}" for method, ends in found if ends)
    return f"Chosen at an end of the range, beyond which nothing was tried: {told}." if told else ""


def _budget(table: pd.DataFrame) -> str:
    said = []
    for column, what in (("failed", "without a result"), ("diverged", "that diverged")):
        numbers = zip(table["method"], table[column], table["trials"], strict=True)
        lost = [f"{method} {k} of {n}" for method, k, n in numbers if k]
        said += [f"Trials {what}: {', '.join(lost)}."] if lost else []
    return " ".join(said)


def _failures(table: pd.DataFrame) -> list[str]:
    bad = table[table["status"] != "complete"]
    rows = zip(bad["method"], bad["status"], bad["error"], strict=True)
    return [f"{method} {status}: {error}." for method, status, error in rows]
