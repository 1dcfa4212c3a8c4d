"""A benchmark's tables: who is ahead, by how much, and what each method spent to get there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pfl_ops.comparison import EQUAL, Line, Test, Values, ordered
from pfl_ops.display.tables import ranked_by
from pfl_ops.errors import count
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.metric_keys import TIME_COSTS, TRAFFIC_COSTS
from pfl_ops.results import Result
from pfl_ops.statistics import Difference, mean_std
from pfl_ops.tracking.runs.run import now
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.session.begin import PreparedStudy
from pfl_ops.tuning.studies.study_storage import StudyStorage, point_of
from pfl_ops.units import exact, part_of, with_unit

SCORE_KEYS = {"local": "local/mean", "global": "global/mean", "worst": "local/worst"}
"""Columns -> keys of a stage."""


@dataclass(frozen=True)
class MethodStudy:
    """A method's part of a benchmark.

    Attributes:
        plan, study_storage: its study. study: how that ended; None: it failed. error: why.
    """

    plan: PreparedStudy
    study_storage: StudyStorage
    study: Study | None = None
    error: str = ""

    @property
    def metric(self) -> str:
        """The validation key that chose the method's configuration."""
        return self.plan.settings.objective.metrics[0]

    @property
    def larger(self) -> bool:
        """True if larger is better."""
        return self.plan.settings.objective.modes[0] == "max"

    @property
    def stage(self) -> str:
        """The stage at which the method is scored: L1, L2 or G."""
        return self.plan.settings.objective.stages[0]

    @property
    def finals(self) -> Sequence[Result]:
        return self.study.finals if self.study else ()

    @cached_property
    def line(self) -> Line:
        """Its test runs, as `compare` has them: without values if one diverged, since the other seeds flatter it."""
        lost = sorted(self.study.diverged.items()) if self.study else ()
        return Line(self.plan.method, tuple(self.finals), diverged=tuple(f"seed {seed} {how}" for seed, how in lost))

    @property
    def scores(self) -> Values:
        """{seed: test value} of the key that the configuration was chosen by."""
        return self.line.values(self.metric.removeprefix("val/"))

    def mean(self, key: str) -> tuple[float, int]:
        """Mean over seeds of a test value of its stage, "local/worst", and the number of seeds; NaN: there is none."""
        values = self.line.values(f"{self.stage}/{key}")
        return mean_std(values.values())[0], len(values)


def leaderboard(entries: Sequence[MethodStudy]) -> pd.DataFrame:
    """One row a method, best first; those that failed, or of which a test run diverged, at the end.

    Ranked by the mean test score. If the test data stayed closed, by the choices' mean validation score over the new
    seeds, if all have one, else by that of the search; but there is no rank if these are scores of different clients
    (`same_clients`). Equal scores share a rank.

    Returns:
        rank; method; scored_at, metric: stage and validation key; status: complete, diverged (a test run) or failed;
        validation: score of the chosen trial; test, std, n: mean and sample standard deviation over the n seeds that
            have a score, of `test_runs` finished test runs;
        difference, low, high, p, p_holm: less the first one's over the `common` seeds that both have a score of, its
            95 % interval and test, and p corrected after Holm for all pairs of methods, since the same scores decide
            which is first; of the first one, and where there are fewer than two seeds, nothing; p_seeds: number of
            seeds of which p is: anytime ends at the first seed that either lacks;
        p_test: that test: t, the paired t test, where the number of seeds was fixed before the first test run;
            anytime (`statistics.anytime`) where a choice that had been tested has more seeds now, or fewer;
        local, global, worst: means of Acc(L), Acc(G) and the worst client's accuracy over seeds; n_local, n_global,
            n_worst: numbers of seeds that have these;
        trials, complete, pruned, diverged, failed: numbers of trials; diverged_tests: of test runs; sampled: of trials
            that are no starting points;
        confirmed, confirmed_std, confirmed_n: mean and sample standard deviation of the choice on validation data over
            the new seeds; separated: True if these tell it from the other repeated configurations;
        tuned: number of settings that were varied; restricted: what the method has in place of common ranges;
        search_seconds, search_samples: of all trials and runs with new seeds, samples as in `StudyStorage.table`;
            test_seconds, sent_bytes: of one test run, on average;
        openings: how often the test data were opened; trial, settings: what was chosen;
        error; study; run_id.
    """
    lines = {line.label: line for line in compared(entries)}
    rows = [_row(entry, lines[entry.plan.method]) for entry in entries]
    table = pd.DataFrame(rows)
    by = ranked_by(table)
    score = table[by].astype(float).round(EQUAL)
    score = score.where((table["status"] == "complete") & (by == "test" or same_clients(entries)))
    rank = score.rank(method="min", ascending=not entries[0].larger)
    table.insert(0, "rank", rank.astype("Int64"))
    table = table.assign(order=rank).sort_values("order", kind="stable", na_position="last").drop(columns="order")
    return table.reset_index(drop=True).assign(p_test=p_test(entries))


def same_clients(entries: Sequence[MethodStudy]) -> bool:
    """True if validation scores of all methods are over the same clients: all of them, or the last round's cohort."""
    each = [entry.plan.settings.scored_clients for entry in entries]
    return len({one.share for one in each}) == 1 and not any(one.difference for one in each)


def p_test(entries: Sequence[MethodStudy]) -> Test:
    """Return the test of the leaderboard: anytime if a choice that had been tested has more seeds now, or fewer."""
    return "anytime" if any(map(_seeds_changed, entries)) else "t"


def compared(entries: Sequence[MethodStudy]) -> tuple[Line, ...]:
    """Return the test runs of each method, the best first, with their differences to the first one's.

    Without p where two methods differ in more than what is compared (`differing`), and where the choice of one was
    changed after a test: a search that goes on because of a test has more looks than a test at a fixed n counts.
    """
    of = {entry.plan.method: entry for entry in entries}
    changed = {entry.plan.method for entry in entries if choice_changed(entry)}
    return ordered(
        [entry.line for entry in entries],
        lambda line: of[line.label].scores,
        p_test(entries),
        smaller=not entries[0].larger,
        alike=lambda a, b: not differing(of[a.label], of[b.label]),
        withdrawn=lambda line: line.label in changed,
    )


def traces(entries: Sequence[MethodStudy]) -> pd.DataFrame:
    """One row a trial: method, trial, state, value, best (of the complete ones so far), seconds."""
    rows = []
    for entry in entries:
        table = entry.study_storage.table([entry.metric])
        values = pd.to_numeric(table[entry.metric]).astype(float)
        complete = values.where(table["state"] == "complete")
        best = (complete.cummax() if entry.larger else complete.cummin()).ffill()
        columns = (table["trial"], table["state"], values, best, table["seconds"])
        rows += [(entry.plan.method, *row) for row in zip(*columns, strict=True)]
    return pd.DataFrame(rows, columns=["method", "trial", "state", "value", "best", "seconds"])


def tests(entries: Sequence[MethodStudy]) -> pd.DataFrame:
    """One row a test run that was finished: method, seed, score, local, global, worst, run_id."""
    rows = []
    for entry in entries:
        keys = (entry.metric.removeprefix("val/"), *(f"{entry.stage}/{key}" for key in SCORE_KEYS.values()))
        for result in entry.finals:
            values = [math.nan if (value := result.value(key)) is None else value for key in keys]
            rows.append((entry.plan.method, result.seed, *values, result.run_id))
    return pd.DataFrame(rows, columns=["method", "seed", "score", "local", "global", "worst", "run_id"])


def points(entry: MethodStudy) -> list[Record]:
    """The leaderboard's numbers that one study alone decides, for its own run: columns of MLflow's page. NaN: none.

    None for a study of several objectives, or of something that is no score of a stage: it has no place in a ranking.
    """
    goal = entry.plan.settings.objective
    if not goal.single or not goal.stages:
        return []
    row = _row(entry, entry.line)
    kept = ("validation", "test", "std", "local", "global", "worst", "search_seconds", "test_seconds", "sent_bytes")
    found = {f"leaderboard/{name}": float(row[name]) for name in kept}
    return [Record(row["n"], found, now())]


def summary(entry: MethodStudy) -> str:
    """Return the end of a study in one line."""
    best = entry.study_storage.chosen()
    assert best is not None
    chosen = f"validation {with_unit(entry.metric, best[1].values[0])} (trial {best[0]:03d})"
    mean, std = mean_std(entry.scores.values())
    if entry.line.diverged:
        return f"{chosen}, {_divergence(entry)}"
    if math.isnan(mean):
        return chosen
    k, n = len(entry.scores), len(entry.finals)
    return f"{chosen}, test {with_unit(entry.metric, mean, std)} over {f'{k} of ' * (k < n)}{count(n, 'seed')}"


def markdown(table: pd.DataFrame, notes: Sequence[str]) -> str:
    """The leaderboard as MLflow's page shows it above a run."""
    shown = ["| | method | scored at | validation | test | n | settings |", "|--:|---|---|--:|--:|--:|---|"]
    for row in table.to_dict("records"):
        test = "" if math.isnan(row["test"]) else with_unit(row["metric"], row["test"], row["std"])
        test += part_of(row["n"], row["test_runs"])
        value = "" if math.isnan(row["validation"]) else with_unit(row["metric"], row["validation"])
        rank = "" if pd.isna(row["rank"]) else row["rank"]
        told = f"{row['status']}: {row['error']}" if row["error"] else row["settings"]
        shown.append(f"| {rank} | {row['method']} | {row['scored_at']} | {value} | {test} | {row['n']} | {told} |")
    return "\n".join([*shown, "", *(f"- {note}" for note in notes)])


# -- a row ------------------------------------------------------------------------------------------------------------


def _confirmed_row(entry: MethodStudy) -> dict[str, Any]:
    found = entry.study.confirmation if entry.study else None
    if found is None or found.winner in found.lost:
        return {"confirmed": math.nan, "confirmed_std": math.nan, "confirmed_n": 0, "separated": False}
    spread = math.nan if found.spread is None else found.spread
    mean, n = found.means[found.winner], len(found.seeds)
    return {"confirmed": mean, "confirmed_std": spread, "confirmed_n": n, "separated": found.separated}


def _row(entry: MethodStudy, line: Line) -> dict[str, Any]:
    best = entry.study_storage.chosen()
    trials = entry.study_storage.table([entry.metric])
    repeated = entry.study_storage.confirmations()
    states = trials["state"].value_counts()
    mean, std = mean_std(entry.scores.values())
    views = {name: entry.mean(key) for name, key in SCORE_KEYS.items()}
    return {
        "method": entry.plan.method,
        "scored_at": entry.stage,
        "metric": entry.metric,
        "status": "failed" if entry.error else "diverged" if line.diverged else "complete",
        "validation": float((best[1].values or [math.nan])[0]) if best else math.nan,
        "test": mean,
        "std": math.nan if std is None else std,
        "n": len(entry.scores),
        "test_runs": len(entry.finals),
        **{name: math.nan if value is None else value for name, value in _difference(line).items()},
        "p_test": "",
        **{name: mean for name, (mean, _) in views.items()},
        **{f"n_{name}": n for name, (_, n) in views.items()},
        "trials": len(trials),
        **{state: int(states.get(state, 0)) for state in ("complete", "pruned", "diverged", "failed")},
        "diverged_tests": len(line.diverged),
        "sampled": entry.study_storage.sampled(),
        **_confirmed_row(entry),
        "tuned": len(entry.plan.settings.space.varied),
        "restricted": restriction_text(entry),
        "search_seconds": float(pd.to_numeric(trials["seconds"]).sum() + sum(run["seconds"] for run in repeated)),
        "search_samples": int(trials["samples"].sum() + sum(run["samples"] for run in repeated)),
        "test_seconds": mean_std(line.cost(*TIME_COSTS).values())[0],
        "sent_bytes": mean_std(line.cost(*TRAFFIC_COSTS).values())[0],
        "openings": len(entry.study_storage.openings()),
        "trial": best[0] if best else None,
        "settings": settings_text(point_of(best[1])) if best else "",
        "error": entry.error or _divergence(entry),
        "study": entry.plan.name,
        "run_id": entry.study.run_id if entry.study else None,
    }


def _difference(line: Line) -> dict[str, float | None]:
    """The columns of a line's difference to the first one, and of its test."""
    found = line.difference or Difference(math.nan)
    numbers = {"difference": found.difference, "low": found.low, "high": found.high, "common": found.n}
    numbers["p_seeds"] = found.n_tested
    return {**numbers, "p": line.single_p, "p_holm": found.p}


def settings_text(point: Mapping[str, Any]) -> str:
    """A configuration as flags say it, with all digits: training.lr=0.01 gamma.kind=adaptive."""
    return " ".join(f"{path.removeprefix('algorithm.')}={exact(value)}" for path, value in point.items())


def restriction_text(entry: MethodStudy) -> str:
    """Values and ranges in place of common ranges, in a few words: "optimiser sgd, lr 0.001 to 0.06 (log)"."""
    return ", ".join(f"{path.rpartition('.')[2]} {told}" for path, told in entry.plan.settings.restrictions.items())


def _divergence(entry: MethodStudy) -> str:
    """Test runs that diverged, and where: "1 of 3 test runs: seed 2 diverged at round 7, client 12, lr 0.4"."""
    lost = entry.line.diverged
    return f"{len(lost)} of {len(lost) + len(entry.finals)} test runs: {'; '.join(lost)}" if lost else ""


def differing(a: MethodStudy, b: MethodStudy) -> dict[str, tuple[str, str]]:
    """Settings, other than the methods' own, that differ between two entries: {path: (value in a, value in b)}.

    A setting that both search over the same range is left out, as is all that the two share (`Settings.common`): what
    one of them has in place of a common range, it requires.
    """

    def states(entry: MethodStudy) -> dict[str, str]:
        settings = entry.plan.settings
        fixed = {path: str(value) for path, value in settings.experiment.flat.items()}
        return fixed | {key: "; ".join(map(str, settings.space.of(key))) for key in settings.space.keys}

    mine, theirs = states(a), states(b)
    one, two = a.plan.settings.common, b.plan.settings.common
    shared = set(one.keys) if one and two and one.parameters == two.parameters else set()
    paths = [path for path in {**mine, **theirs} if not path.startswith("algorithm.") and path not in shared]
    pairs = {path: (mine.get(path, "none"), theirs.get(path, "none")) for path in paths}
    if one and two and one.first != two.first:  # one of them joined later
        other = "other " * (len(one.first) == len(two.first))  # a method recommends something else than before
        told = f"from {len(two.first)} {other}recommendations"
        pairs["first trials"] = f"from {len(one.first)} recommendations", told
    return {path: (value, other) for path, (value, other) in pairs.items() if value != other}


def _seeds_changed(entry: MethodStudy) -> bool:
    """True if a choice was tested with some seeds first, and with more of them later, or has fewer of them now."""
    opened = [(opening["params"], set(opening["seeds"])) for opening in entry.study_storage.openings()]
    if any(a == b and few < more for i, (a, few) in enumerate(opened) for b, more in opened[i + 1 :]):
        return True
    if entry.study is None or (best := entry.study_storage.chosen()) is None:
        return False
    now = {run.seed for run in entry.finals} | set(entry.study.diverged)
    return any(params == point_of(best[1]) and now < seeds for params, seeds in opened)


def choice_changed(entry: MethodStudy) -> bool:
    """True if the test data were opened for another choice first."""
    opened, chosen = entry.study_storage.openings(), entry.study_storage.chosen()
    return bool(opened) and chosen is not None and opened[0]["params"] != point_of(chosen[1])
