"""Runs side by side: lines, order, tests, warnings; and the command, on a store of recorded runs."""

import csv
import doctest
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from full_disk import full_disk
from rich.console import Console
from typer.testing import CliRunner, Result

from pfl_ops import statistics
from pfl_ops.cli import app
from pfl_ops.cli.compare_tables import _columns, show
from pfl_ops.comparison import Line, ordered
from pfl_ops.config.experiment import Experiment
from pfl_ops.display.tables import chance
from pfl_ops.errors import PflOpsError
from pfl_ops.metric_keys import SUMMED_COSTS
from pfl_ops.reports import numbers as numbers_module
from pfl_ops.reports.comparison import compare as compare_module
from pfl_ops.reports.comparison import compared_cards
from pfl_ops.reports.comparison import labels as labels_module
from pfl_ops.reports.comparison.compare import Comparison, compare
from pfl_ops.reports.comparison.compared import (
    ahead,
    costs,
    document,
    folded,
    highest,
    reading,
    results,
    stages,
    text_of,
)
from pfl_ops.reports.comparison.compared_notes import OPTIMISTIC, best_notes, p_notes, scored_notes
from pfl_ops.reports.comparison.comparison_data import Group
from pfl_ops.reports.comparison.fairness import BEST_ROUNDS
from pfl_ops.reports.comparison.labels import group_titles, labels
from pfl_ops.reports.numbers import in_unit, mean_mebibytes, rounds_text, spread, target_title, title_of
from pfl_ops.reports.pages.document import Document, Picture, Table, Text
from pfl_ops.reports.pages.html import to_html
from pfl_ops.results import Result as FinishedRun
from pfl_ops.tracking import RunInfo, Store
from pfl_ops.tracking.runs.finished import choice_tag
from pfl_ops.units import difference_title, signed

SEEDS = {"fliu": (0.6, 0.7, 0.8), "fedavg": (0.59, 0.68, 0.77), "ditto": (0.3, 0.4)}


@pytest.fixture
def store(made: Any, shelf: Any) -> Any:
    """Three methods; the first is 0.01, 0.02, 0.03 above the second; the third lacks a seed."""
    runs = [made(method, seed, acc) for method, accs in SEEDS.items() for seed, acc in enumerate(accs)]
    curves = {
        run.run_id: {
            "test/L1/local/mean": [0.1, 0.4 + seed / 10, 0.5 + seed / 10],
            "test/L1/global/mean": [0.1, math.nan, 0.3],
            "cost/up_bytes": [math.nan, 1000.0, 1000.0],
            "cost/down_bytes": [math.nan, 500.0, 548.0],
            "cost/train_seconds": [math.nan, 1.5, 2.5],
        }
        for run in runs
        for seed in [int(run.params["seed"])]
    }
    return shelf(runs, curves)


def go(store: Any, *names: str, **how: Any) -> Comparison:
    with opening(store):
        return compare(*names, **how)


@contextmanager
def opening(store: Any) -> Iterator[None]:
    """Let `compare` open this store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_module.Store, "open", lambda *_: store)
        yield


def texts(report: Document) -> list[Text]:
    return [block for section in report.sections for block in section.blocks if isinstance(block, Text)]


# -- lines ------------------------------------------------------------------------------------------------------------


def test_repetitions_are_one_line_and_the_best_is_first(store: Any) -> None:
    found = go(store)
    assert [line.label for line in found.lines] == ["fliu", "fedavg", "ditto"]
    assert [[run.seed for run in line.runs] for line in found.lines] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    assert found.metric == "acc" and found.lines[0].values("acc") == pytest.approx({0: 0.9, 1: 1.05, 2: 1.2})
    assert found.lines[0].stages == ["L1", "G"]


def test_the_difference_is_tested_over_common_seeds(store: Any) -> None:
    first, second, third = go(store, metric="local/mean", test="t").lines
    assert first.difference is None and second.difference and third.difference
    assert second.difference.difference == pytest.approx(-0.02) and second.difference.n == 3
    assert third.difference.n == 2 and third.difference.p is None  # 0.3 less twice: a spread of 0 tests nothing
    # t = −2√3, see test_statistics. Of fedavg less ditto, 0.29 and 0.28, p is 0.011; doubled by Holm, it is less
    assert second.difference.p == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))


def test_p_is_anytime_valid_unless_n_was_fixed(store: Any) -> None:
    """Differences 0.01, 0.02, 0.03: s = 0.06, v = 0.0014, D = v − s²/3.1, e_3 = √(0.1/3.1) (v/D)^1.5 = 2.551.

    Seed 0 alone has e = 1 and seeds 0, 1 have 1.53. ditto is less by 0.3 in two seeds: equal differences, p = 1. Of
    fedavg less ditto, 0.29 and 0.28, p is 1/e_2 = 0.219. Holm: 3 · 0.219, then 2 · 0.392.
    """
    found = go(store, metric="local/mean")
    first, second, third = found.lines
    assert found.test == "anytime" and first.difference is None and second.difference and third.difference
    e = math.sqrt(0.1 / 3.1) * (0.0014 / (0.0014 - 0.0036 / 3.1)) ** 1.5
    assert second.difference.p == pytest.approx(2 / e) == pytest.approx(0.784, abs=5e-4)
    assert third.difference.p == 1.0 and third.difference.n == 2
    low, high = statistics.confidence_sequence([-0.01, -0.02, -0.03])
    assert (second.difference.low, second.difference.high) == (pytest.approx(low[-1]), pytest.approx(high[-1]))
    assert third.difference.low is None
    p_marks = [row.entries[-1].mark for row in results(found, found.groups[0]).rows]
    assert p_marks == ["muted"] * 3, "a p value from 5 % on decides nothing"
    text = " ".join(reading(found))
    assert "p: anytime-valid paired test" in text and "confidence sequence" in text and "fixed before" not in text
    fixed = " ".join(reading(go(store, metric="local/mean", test="t")))
    assert "p: paired t test" in fixed and "n was fixed before the runs" in fixed and "anytime" not in fixed
    assert set(found.table["test"].dropna()) == {"anytime"}


def test_a_seed_that_is_missing_ends_the_test(made: Any, shelf: Any) -> None:
    """fedavg has no seed 2: seeds 0 and 1 are tested, whatever the others say."""
    accs = {"fliu": (0.6, 0.7, 0.8, 0.9, 0.95, 0.96), "fedavg": (0.5, 0.61, 0.0, 0.81, 0.85, 0.855)}
    runs = [made(m, s, a) for m, some in accs.items() for s, a in enumerate(some) if a]
    difference = go(shelf(runs), metric="local/mean").lines[1].difference
    assert difference is not None and (difference.n, difference.n_tested) == (5, 2)
    assert difference.p == pytest.approx(1 / statistics.e_process([0.1, 0.09])[-1]) and difference.low is None


def test_seeds_of_p_are_said_where_they_are_fewer(made: Any, shelf: Any) -> None:
    """fedavg has no seed 2 of 0 to 5, ditto none of the first four; fedprox has all of fliu's. The number of common
    seeds, 5, stood alone beside p in the table. A t test is over all common seeds."""
    accs = {"fliu": (0.6, 0.7, 0.8, 0.9, 0.95, 0.96), "fedprox": (0.59, 0.7, 0.79, 0.9, 0.94, 0.96)}
    accs |= {"fedavg": (0.5, 0.61, 0.0, 0.81, 0.85, 0.855), "ditto": (0, 0, 0, 0, 0.1, 0.12)}
    runs = [made(m, s, a) for m, some in accs.items() for s, a in enumerate(some) if a]
    (group,) = (found := go(shelf(runs), metric="local/mean")).groups
    ends = "the test ends at the first one that a line lacks"
    told = (
        f"p of 'fedavg' is over 2 of 5 common seeds: {ends}",
        f"no p of 'ditto': {ends}, after 0 of 2 common seeds",
    )
    assert p_notes(found, group) == told
    table = found.table.set_index("setting")
    assert table.loc["fedavg", ["common seeds", "p seeds"]].tolist() == [5, 2]
    page = results(found, group)
    assert page.notes[-2:] == tuple(f"{line[0].upper()}{line[1:]}." for line in told)
    shown = io.StringIO()
    show(found, Console(file=shown, width=300))
    assert all(line in shown.getvalue() for line in told)
    more = [*runs, made("fedprox", 6, 0.5)]
    (group,) = (found := go(shelf(more), metric="local/mean", test="t")).groups
    assert p_notes(found, group) == ("p of 'fedprox' is over 6 seeds, those of which both lines have a value",)
    assert found.table.set_index("setting").loc["fedavg", ["common seeds", "p seeds"]].tolist() == [5, 5]


def test_a_difference_without_p_says_of_how_many_seeds_it_is(made: Any, shelf: Any) -> None:
    """fliu's mean is (0.6 + 0.9 + 0.9)/3 = 0.8; ditto has 0.7 in seed 0 alone, 0.1 more than fliu there. fedavg has the
    seeds 2 and 3, local none of fliu's."""
    runs = [made("fliu", s, a) for s, a in enumerate((0.6, 0.9, 0.9))]
    runs += [made("ditto", 0, 0.7), made("fedavg", 2, 0.5), made("fedavg", 3, 0.5), made("local", 7, 0.3)]
    (group,) = (found := go(shelf(runs), metric="local/mean")).groups
    assert [line.label for line in group.lines] == ["fliu", "ditto", "fedavg", "local"]
    assert group.lines[1].difference is not None and group.lines[1].difference.difference == pytest.approx(0.1)
    told = "difference of 'ditto', 'fedavg' to the first: over 1 common seed, means over all"
    assert p_notes(found, group) == (told,)
    (group,) = (found := go(shelf(runs[:1] + runs[3:4]), metric="local/mean")).groups
    assert p_notes(found, group) == ()


def test_the_best_line_is_told_apart_from_every_other(made: Any, shelf: Any) -> None:
    """With five seeds e may reach 51² = 2601. ditto is as far from fliu as fedavg is, in its mean, but varies more."""
    noise = (0.001, -0.002, 0.0, 0.002, -0.001)
    runs = [made("fliu", s, 0.8) for s in range(5)] + [made("fedavg", s, 0.7 + x) for s, x in enumerate(noise)]
    (group,) = (found := go(shelf(runs), metric="local/mean")).groups
    assert ahead(found, group, group.lines[0]) == "best" and group.lines[1].difference.p < 0.001
    runs += [made("ditto", s, 0.7 + 50 * x) for s, x in enumerate(noise)]
    (group,) = (found := go(shelf(runs), metric="local/mean")).groups
    assert group.lines[0].label == "fliu" and len(group.lines) == 3
    assert ahead(found, group, group.lines[0]) == "highest"
    assert {line.label: line.difference.p < 0.05 for line in group.lines[1:]} == {"fedavg": True, "ditto": False}


@pytest.mark.parametrize("test", ["anytime", "t"])
@pytest.mark.parametrize(("metric", "word"), [("local/mean", "highest"), ("train/loss", "lowest")])
def test_ahead_first_line_loses_on_common_seeds_not_best(metric: str, word: str, test: Any) -> None:
    """fliu has the better mean, of ten seeds: 0.808, fedavg's of five is 0.7624. In all five fedavg is better by 0.05.

    fliu: (0.70 + 0.72 + 0.71 + 0.73 + 0.70 + 0.90 + 0.91 + 0.92 + 0.90 + 0.91)/10 = 8.10/10; its first five have 0.712,
    fedavg has 0.712 + 0.0504. A loss is 1 less these values.
    """
    fliu = (0.70, 0.72, 0.71, 0.73, 0.70, 0.90, 0.91, 0.92, 0.90, 0.91)
    fedavg = [value + more for value, more in zip(fliu, (0.050, 0.052, 0.049, 0.051, 0.050), strict=False)]
    smaller = metric == "train/loss"

    def line(method: str, values: Sequence[float]) -> Line:
        key = f"final/{metric}" if smaller else f"final/test/L1/{metric}"
        found = [1 - value if smaller else value for value in values]
        return Line(method, tuple(FinishedRun.of_numbers(seed, {key: value}) for seed, value in enumerate(found)))

    lines = ordered([line("fliu", fliu), line("fedavg", fedavg)], lambda one: one.values(metric), test, smaller=smaller)
    assert [one.label for one in lines] == ["fliu", "fedavg"]
    assert lines[1].difference and lines[1].difference.p is not None and lines[1].difference.p < 0.001
    assert lines[1].difference.difference == pytest.approx(-0.0504 if smaller else 0.0504)
    group = Group("digits", lines, metric)
    found = Comparison((group,), metric, test=test)
    assert ahead(found, group, lines[0]) == word


def test_ahead_another_line_with_the_first_ones_mean_tied(made: Any, shelf: Any) -> None:
    """The first of two equal lines stood as the highest, by their names; a third one behind them changes nothing."""
    runs = [made(method, seed, value) for seed in range(3) for method, value in (("fliu", 0.8), ("fedavg", 0.8))]
    for more in ([], [made("ditto", seed, 0.7) for seed in range(3)]):
        (group,) = (found := go(shelf(runs + more), metric="local/mean")).groups
        assert [ahead(found, group, line) for line in group.lines][:2] == ["highest, tied", "±0.00"]
    assert ahead(found, group, group.lines[2]) == "−10.00"


def test_ahead_only_untested_seeds_favour_first_not_best(made: Any, shelf: Any) -> None:
    """Seed 5 of fedavg is missing: seeds 0 to 4 are tested, where fedavg is better by 0.05; over all it is worse.

    Mean of the common seeds: (5 · 0.05 − 10 · 0.2)/15 < 0, of the tested ones 0.05 > 0.
    """
    noise = (0.001, -0.002, 0.0, 0.002, -0.001)
    runs = [made("fliu", seed, 0.7) for seed in range(16)]
    runs += [made("fedavg", seed, 0.75 + x) for seed, x in enumerate(noise)]
    runs += [made("fedavg", seed, 0.5) for seed in range(6, 16)]
    (group,) = (found := go(shelf(runs), metric="local/mean")).groups
    difference = group.lines[1].difference
    assert group.lines[0].label == "fliu" and difference.p < 0.05 and difference.difference < 0
    assert difference.tested_difference == pytest.approx(0.05)
    assert ahead(found, group, group.lines[0]) == "highest"
    assert [row.entries[-1].mark for row in results(found, group).rows] == ["muted", ""]


def test_tests_after_a_former_choice_was_tested_have_no_p_value(made: Any, study: Any, shelf: Any) -> None:
    """The former choice is left out, and without p are all differences to the present one."""
    above = study("fliu-study", "5" * 32)
    below = {"parent": above.run_id, "experiment": "fliu-study", "tags": {"pfl_ops.kind": "final"}}
    old = made("fliu", 0, 0.9, group="1" * 64, **below, **{"training.lr": 0.5})
    new = [made("fliu", seed, 0.6 + seed / 100, group="2" * 64, **below) for seed in range(3)]
    alone = [made("fedavg", seed, 0.5 - seed / 100, experiment="fliu-study") for seed in range(3)]
    now = replace(above, tags={**above.tags, "pfl_ops.choice": choice_tag(["2" * 64])})
    third = [made("fedprox", seed, 0.4 - seed / 50, experiment="fliu-study") for seed in range(3)]
    found = go(shelf([now, old, *new, *alone, *third]), test="t")
    assert [line.label for line in found.lines] == ["fliu", "fedavg", "fedprox"]
    assert all(line.difference and line.difference.p is None for line in found.lines[1:])
    assert found.complaints == ("the study changed its choice after a test of a former one: fliu",)
    before = go(shelf([now, *new, *alone]), test="t")
    assert before.lines[1].difference and before.lines[1].difference.p < 0.05 and not before.complaints


def test_named_study_without_tests_left_out_and_told(made: Any, study: Any, shelf: Any) -> None:
    """A study with `--repetitions 0` has trials alone, which are compared on request."""
    above = study("untested", "7" * 32)
    trial = made("fliu", 0, trial=0, parent=above.run_id, experiment="untested", tags={"pfl_ops.study": "untested"})
    shelved = shelf([made("fedavg", 0), above, trial])
    found = go(shelved, "fedavg*", "untested", with_clients=False)
    assert [line.label for line in found.lines] == ["fedavg"]
    assert found.remarks == ("no test runs, and left out: untested; --trials compares trials",)
    assert not go(shelved, "fedavg*", with_clients=False).remarks
    assert not go(shelved, "fedavg*", "untested", trials=True, with_clients=False).remarks


def test_p_is_corrected_for_the_number_of_lines(made: Any, shelf: Any) -> None:
    """All three pairs have the same p: any of them might have been the first."""
    lines = {"fliu": (0.6, 0.7, 0.8), "fedavg": (0.59, 0.68, 0.77), "ditto": (0.58, 0.66, 0.74)}  # 0.02, 0.04, 0.06
    runs = [made(m, s, a) for m, accs in lines.items() for s, a in enumerate(accs)]
    found = go(shelf(runs), metric="local/mean", test="t")
    once = 1 - 2 * math.sqrt(3) / math.sqrt(14)
    assert [line.difference.p for line in found.lines if line.difference] == pytest.approx([3 * once, 3 * once])


@pytest.mark.parametrize("metric", ["train/lr", "best/round", "method/gamma/mean"])
def test_neutral_metric_has_no_best_line_order_or_p(made: Any, shelf: Any, metric: str) -> None:
    """fliu was first as "best", p < 0.001, with the smaller rate and with the later best round."""
    runs = [made(method, seed) for method in ("fliu", "fedavg") for seed in range(5)]
    for i, run in enumerate(runs):
        run.metrics[metric] = (9.0 if run.params["algorithm.name"] == "fliu" else 4.0) + 0.01 * (i % 3)
    if metric == "train/lr":  # the smaller one was called better
        for run in runs:
            run.metrics[metric] = 13.0 - run.metrics[metric]
    (group,) = (found := go(shelf(runs), metric=metric, test="t")).groups
    first, second = group.lines
    assert (first.label, second.label) == ("fedavg", "fliu")
    assert second.difference.n == 5 and second.difference.p is second.difference.low is None
    assert ahead(found, group, first) == "–"
    page = results(found, group)
    assert f"ordered by name, with {metric}" in page.caption and highest(found, group, metric) == ()
    note = f"{metric} is neither better large nor small: there is no best line, and no p value"
    shown = io.StringIO()
    show(found, Console(file=shown, width=80))
    text = " ".join(shown.getvalue().split())
    assert note in text and "highest" not in text and "lowest" not in text
    with pytest.raises(PflOpsError, match="neither better large nor small"):
        go(shelf(runs), metric=metric, target=0.5)


def test_smaller_is_better_where_it_is(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0), made("fedavg", 0)]
    runs[0].metrics["train/loss"], runs[1].metrics["train/loss"] = 2.0, 1.0
    found = go(shelf(runs), metric="train/loss")
    assert [line.label for line in found.lines] == ["fedavg", "fliu"]
    (told,) = scored_notes(found.groups[0])
    assert told.startswith("train/loss is that of each method's main training")
    assert not scored_notes(go(shelf(runs), metric="acc").groups[0])
    assert not scored_notes(go(shelf(runs[:1]), metric="train/loss").groups[0])


def test_bytes_and_seconds_are_compared_by_their_sums(made: Any, shelf: Any) -> None:
    """10 + 1 bytes are more than 3 + 4, though fewer in the last round."""
    runs, each = [made("fliu", 0), made("fedavg", 0)], [[10.0, 1.0], [3.0, 4.0]]
    for run, sent in zip(runs, each, strict=True):
        run.metrics["cost/up_bytes"] = sent[-1]
    curves = {run.run_id: {"cost/up_bytes": [math.nan, *sent]} for run, sent in zip(runs, each, strict=True)}
    first, second = go(shelf(runs, curves), metric="cost/up_bytes").lines
    assert (first.label, first.values("cost/up_bytes")) == ("fedavg", {0: 7.0})
    assert (second.label, second.difference and second.difference.difference) == ("fliu", 4.0)


@pytest.mark.parametrize(
    ("metric", "title", "values"),
    [
        ("train/loss", "train/loss", [2.0, 1.5]),
        ("cost/up_bytes", "cost/up_bytes MiB", [2.0, 3.5]),
        ("local/worst", "", []),
    ],
)
def test_picture_of_a_metric_in_another_unit_is_apart(
    made: Any, shelf: Any, metric: str, title: str, values: list[float]
) -> None:
    """A loss of 2 and 2 MiB had one axis "accuracy" with accuracies; bytes were drawn as they are, under "MiB", each
    round by itself, where the table has their sum."""
    curve = [math.nan, 2.0 * 2**20, 1.5 * 2**20] if metric == "cost/up_bytes" else [math.nan, 2.0, 1.5]
    runs = [made("fliu", 0), made("fedavg", 0)]
    for run in runs:
        run.metrics[metric if "local" not in metric else "final/test/L1/local/worst"] = 0.1
    key = metric if "local" not in metric else "test/L1/local/worst"
    curves = {run.run_id: {key: curve, "test/L1/local/mean": [0.1, 0.2, 0.3]} for run in runs}
    found = go(shelf(runs, curves), metric=metric, with_clients=False)
    drawn = {picture.name: picture.draw() for picture in document(found).each(Picture)}
    accuracies = [axes.get_title(loc="left") or axes.get_title() for axes in drawn["curves"].axes]
    assert len(accuracies) == (1 if title else 2) and ("metric" in drawn) is bool(title)
    if title:
        (axes,) = drawn["metric"].axes
        assert axes.get_ylabel() == title and axes.lines[0].get_ydata().tolist() == values


def test_best_round_of_one_seed_is_a_whole_number(made: Any, shelf: Any) -> None:
    """fedavg has two seeds with rounds 2 and 3, and one without."""
    runs = [made("fliu", 0, 0.6), *(made("fedavg", s, 0.5) for s in range(3))]
    runs[2].metrics["best/round"] = 3.0
    del runs[3].metrics["best/round"]
    found = go(shelf(runs), metric="local/mean", with_clients=False)
    rounds = ["2", "2.5 ± 0.7 (2 of 3)"]
    assert [text_of(line, "best/round") for line in found.lines] == rounds
    assert [row.entries[2].text for row in costs(found, found.groups[0]).rows] == rounds


def test_values_of_the_best_round(store: Any) -> None:
    found = go(store, at="best")
    assert found.lines[0].values("acc", "best") == pytest.approx({0: 1.15, 1: 1.3, 2: 1.45})


def test_best_rounds_have_no_p_value_and_no_best(made: Any, shelf: Any) -> None:
    """Both end at 60 %. The noisier one, which had 70 % once, is 10 points above the other in each seed by that alone,
    with differences of 10 ± 0.1 points.
    """
    runs = [made(m, s, 0.6 + 0.001 * s, tags={"pfl_ops.own_stage": "L1"}) for m in ("fliu", "fedavg") for s in range(5)]
    for run in runs:
        seed, is_noisy = int(run.params["seed"]), run.params["algorithm.name"] == "fliu"
        run.metrics["best/test/L1/local/mean"] = 0.6 + (0.1 + 0.001 * (seed % 2)) * is_noisy
    last, best = (go(shelf(runs), metric="local/mean", at=at, with_clients=False) for at in ("final", "best"))
    assert last.groups[0].fair and last.complaints == ()
    assert [ahead(best, best.groups[0], line) for line in best.lines] == ["highest", "−10.04"]
    assert best.lines[1].difference and best.lines[1].difference.p is None
    assert best.complaints == (BEST_ROUNDS,) and best_notes(best, best.groups[0]) == (OPTIMISTIC,)
    assert best_notes(last, last.groups[0]) == () == go(shelf(runs[:5]), at="best", with_clients=False).complaints


def test_rounds_to_a_target_and_cost(store: Any) -> None:
    line = go(store, target=0.6).lines[0]
    assert line.rounds_to(0.6) == {0: None, 1: 2, 2: 1}  # 0.5; 0.6 at last; 0.6 at once
    assert line.cost("cost/up_bytes", "cost/down_bytes") == {0: 3048.0, 1: 3048.0, 2: 3048.0}
    assert line.cost("cost/train_seconds") == {0: 4.0, 1: 4.0, 2: 4.0}


def test_rounds_are_read_only_for_what_needs_them(made: Any, shelf: Any) -> None:
    """A table of runs with sums of costs needs those of one repetition, among which the best round was chosen;
    targets and curves need those of all.
    """
    runs = [made("fedavg", 0), made("fliu", 1), made("fliu", 0)]
    for run in runs[1:]:
        run.metrics.update({f"total/{key}": 7.0 for key in SUMMED_COSTS})
    older = runs[0].run_id
    curves = {older: {"cost/up_bytes": [math.nan, 3.0, 4.0], "cost/train_seconds": [math.nan, 3.0, 4.0]}}

    def asked(**how: Any) -> list[set[str]]:
        kept = shelf(runs, curves)
        found = go(kept, with_clients=False, **{"with_curves": False, **how})
        assert all(set(line.cost(key).values()) == {7.0} for line in found.lines for key in curves[older])
        keys = {run: {key.removeprefix("test/L1/") for key in keys} for run, keys in kept.asked}
        assert set(SUMMED_COSTS) <= keys[older]
        return [keys.get(run.run_id, set()) - set(SUMMED_COSTS) for run in runs]

    best, own = {"acc", "local/mean"}, {"local/mean"}
    assert asked() == [best, set(), best]
    assert asked(target=0.5) == [best, own, best]
    curves |= {run.run_id: curves[older] for run in runs[1:]}
    assert asked(with_curves=True) == [best | {"global/mean"}] * 3


@pytest.mark.parametrize("sums", [False, True])
def test_no_curves_are_drawn_unless_they_were_asked_for(made: Any, shelf: Any, sums: bool) -> None:
    """A page had those of one repetition as "means of 2 repetitions", or ended in a KeyError where runs have sums."""
    runs = [made(method, seed) for method in ("fedavg", "fliu") for seed in (0, 1)]
    for run in runs if sums else ():
        run.metrics.update({f"total/{key}": 7.0 for key in SUMMED_COSTS})
    curves = {run.run_id: {"test/L1/local/mean": [0.1, 0.4], "cost/up_bytes": [math.nan, 8.0]} for run in runs}

    def drawn(**how: Any) -> list[str]:
        found = go(shelf(runs, curves), with_clients=False, **how)
        return [picture.name for picture in document(found).each(Picture)]

    assert drawn() == ["curves", "local-global", "cost"] and drawn(with_curves=False) == ["local-global"]


def test_a_target_is_of_own_data_unless_a_metric_is_named(store: Any) -> None:
    assert go(store, target=0.5).target_metric == "local/mean"
    assert go(store, target=0.5, metric="global/mean").target_metric == "global/mean"


def test_lines_without_the_metric_are_last_and_told(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, None), made("fedavg", 0, 0.5), made("ditto", 0, status="FAILED")]
    found = go(shelf(runs), with_clients=False)
    assert [line.label for line in found.lines] == ["fedavg", "fliu"]
    assert found.remarks == (
        "not finished, and left out: ditto-seed0",
        "no Acc(L)+Acc(G) at the last round: fliu",
    )
    assert found.lines[1].difference is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"metric": "L1/lokal/mean"}, "none of these runs has a metric 'L1/lokal/mean'; did you mean 'L1/local/mean'"),
        ({"metric": "L1/local"}, "none of these runs has a metric 'L1/local'; did you mean 'L1/local/mean'"),
        ({"metric": "test/L2/acc"}, "none of these runs has a metric 'test/L2/acc'; did you mean 'test/L1/acc'"),
        ({"metric": "?"}, "'.'; for example test/G/local/mean, test/L1/acc"),
        ({"metric": "local/worst", "at": "best"}, "local/worst has no value at the best round, which has scores alone"),
        ({"metric": "reached/test/L1/local/mean_90"}, "rounds to a target are counted by target=0.9"),
        ({"metric": "best/test/L1/acc"}, "best rounds, which have no p value, are compared by test/L1/acc at='best'"),
        ({"at": "last"}, "at must be final or best, got 'last'"),
        ({"test": "u"}, "test must be anytime or t, got 'u'"),
    ],
)
def test_mistakes_are_one_line(store: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(PflOpsError, match=message) as caught:
        go(store, **how)
    assert "\n" not in str(caught.value)


# -- labels -----------------------------------------------------------------------------------------------------------


def flat(method: str, **settings: Any) -> dict[str, str]:
    changes = {path.replace("__", "."): value for path, value in settings.items()}
    return {path: str(value) for path, value in Experiment.of(method).override(changes).flat.items()}


def test_a_label_is_the_method_and_what_tells_its_lines_apart() -> None:
    faster = {"training__lr": 0.1}
    rows = [flat("fedavg"), flat("fedavg", **faster, seed=4), flat("fedavg", **faster, data__name="mnist")]
    assert [label for label, _ in labels(rows)] == [
        "fedavg, digits, lr 0.05", "fedavg, digits, lr 0.1", "fedavg, mnist, lr 0.1",
    ]  # fmt: skip


def test_rows_with_one_name_are_told_apart_by_the_seed_of_the_partition() -> None:
    """They were "fedavg #3927e8" and "fedavg #ca9cee", and nothing said which one has one partition for all seeds."""
    rows = [flat("fedavg"), flat("fedavg", partition__seed=5), flat("fliu", partition__seed=5)]
    assert [label for label, _ in labels(rows)] == ["fedavg", "fedavg, partition.seed 5", "fliu"]
    rows[1] = flat("fedavg", partition__seed=5, training__lr=0.1)
    assert [label for label, _ in labels(rows)] == ["fedavg, lr 0.05", "fedavg, lr 0.1", "fliu"]
    assert [label for label, _ in labels(rows[:1] * 2, ["trial-001"] * 2)] == ["trial-001"] * 2


def test_settings_of_a_kind_are_told_by_the_kind() -> None:
    rows = [flat("fliu", algorithm__gamma__kind="adaptive"), flat("fliu", algorithm__gamma__kind="fixed")]
    assert [label for label, _ in labels(rows)] == ["fliu, gamma adaptive", "fliu, gamma fixed"]
    rows = [flat("fliu", algorithm__gamma={"kind": "fixed", "value": value}) for value in (0.25, 0.5)]
    assert [label for label, _ in labels(rows)] == ["fliu, gamma.value 0.25", "fliu, gamma.value 0.5"]
    rows = [flat("fedavg"), flat("fedavg", training__local_steps=5)]
    assert [label for label, _ in labels(rows)] == ["fedavg, local_epochs 1", "fedavg, local_steps 5"]


def test_a_list_of_stages_is_one_setting() -> None:
    """Commas separate settings: in pages and LaTeX "stages ('L1'", "'L2'" and "'G')" were three of them."""
    all_stages, one = (flat("fliu"), flat("fedavg", evaluation__stages="G"))
    assert labels([all_stages, one])[1][1].split(", ")[-1] == "stages G"
    assert "stages L1+L2+G" in labels([all_stages, one])[0][1].split(", ")


def test_what_methods_differ_in_does_not_lengthen_their_names() -> None:
    found = labels([flat("fliu", training__lr=0.001), flat("fedavg", training__lr=0.1)])
    assert [label for label, _ in found] == ["fliu", "fedavg"]
    assert "lr 0.001" in found[0][1] and "lr 0.1" in found[1][1]


def test_lines_that_nothing_known_tells_apart_have_their_hash(made: Any, shelf: Any) -> None:
    found = go(shelf([made(group="aaaaaaaa"), made(group="bbbbbbbb")]))
    assert {line.label for line in found.lines} == {"fliu #aaaaaa", "fliu #bbbbbb"}


def test_a_target_is_of_what_should_rise(store: Any) -> None:
    """A spread of 0.3 is "0.1 or more" from the start, which would be told as the best."""
    with pytest.raises(PflOpsError, match="local/std is better the smaller it is"):
        go(store, metric="local/std", target=0.1)


# -- groups -----------------------------------------------------------------------------------------------------------


def test_the_examples_of_compare_labels_and_numbers_are_true(recorded_runs: Any) -> None:
    for module in (compare_module, labels_module, numbers_module):
        finder, runner = doctest.DocTestFinder(recurse=True), doctest.DocTestRunner()
        for example in finder.find(module, globs={**vars(module), "compare": compare}):
            with opening(recorded_runs):
                runner.run(example)
        assert runner.tries and not runner.failures


@pytest.mark.parametrize(
    ("other", "title"),
    [
        ({"data.name": "kmnist"}, "kmnist, lsqs"),
        ({"data.train_size": 500}, "digits, lsqs, train_size 500"),
        ({"partition.kind": "path"}, "digits, path"),
        ({"partition.clients": 7}, "digits, lsqs, clients 7"),
        ({"model.name": "linear"}, "digits, lsqs, linear"),
        ({"model.hidden": 16}, "digits, lsqs, hidden 16"),
        ({"evaluation.split": "validation"}, "digits, lsqs, validation data"),
    ],
)
def test_nothing_is_best_across_groups(made: Any, shelf: Any, other: dict[str, Any], title: str) -> None:
    """The values of the other group are larger, and change neither order, difference nor p of the first."""
    runs = [made("fliu", s, acc) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fedavg", s, acc) for s, acc in enumerate((0.59, 0.68, 0.77))]
    alone = go(shelf(runs), metric="local/mean")
    others = [made("ditto", s, acc, **other) for s, acc in enumerate((0.9, 0.91, 0.93))]
    for run in others:  # of the split that it is scored on
        run.metrics["final/val/L1/local/mean"] = run.metrics["final/test/L1/local/mean"]
    found = go(shelf([*others, *runs]), metric="local/mean")
    first, second = sorted(found.groups, key=lambda group: group.title == title)
    assert second.title == title and [line.label for line in second.lines] == ["ditto"]
    assert [(line.label, line.difference) for line in first.lines] == [
        (line.label, line.difference) for line in alone.lines
    ]
    assert ahead(found, first, first.lines[0]) == "highest" and ahead(found, second, second.lines[0]) == "–"
    assert found.complaints == ()


def test_a_setting_is_called_by_what_varies_within_its_group(made: Any, shelf: Any) -> None:
    """lr varies on kmnist only; between the groups also the clients."""
    kmnist = {"data.name": "kmnist", "partition.clients": 5}
    runs = [made("fliu", 0), made("fliu", 0, **kmnist), made("fliu", 0, **kmnist, **{"training.lr": 0.2})]
    found = go(shelf(runs))
    assert [(group.title, sorted(line.label for line in group.lines)) for group in found.groups] == [
        ("digits, lsqs", ["fliu"]),
        ("kmnist, lsqs", ["fliu, lr 0.05", "fliu, lr 0.2"]),
    ]


def test_files_of_one_name_in_two_folders_are_two_groups() -> None:
    grounds = [{"data.name": f"/{folder}/mine.npz", "partition.kind": "natural"} for folder in "ab"]
    assert group_titles(grounds) == ["mine.npz, natural (1)", "mine.npz, natural (2)"]


def test_a_setting_that_a_run_does_not_have_makes_no_group(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0), made("fedavg", 0), made("ditto", 0)]
    del runs[1].params["data.pooled"]
    assert len(go(shelf(runs)).groups) == 1


def test_page_says_every_shared_setting_and_a_method_s_own(made: Any, shelf: Any) -> None:
    """Adam stands in no line's name, nor does λ of the one line of ditto; η is in the names, since it differs."""
    adam = {"training.optimiser": "adam", "training.batch_size": None}
    runs = [made("ditto", seed, **adam, **{"algorithm.lam": 0.3}) for seed in (0, 1)]
    runs += [made("fedavg", seed, **adam, **{"training.lr": 0.2}) for seed in (0, 1)]
    [shared] = [text.more for text in texts(go(shelf(runs)).document()) if "all runs of" in text.text]
    assert {"training.optimiser: adam", "training.batch_size: none", "ditto's algorithm.lam: 0.3"} <= {*shared}
    named = {line.partition(":")[0] for line in shared}
    assert named.isdisjoint({"seed", "training.lr", "algorithm.name", "repetitions", "algorithm.lam"})


def test_each_group_has_its_notes_and_its_correction(made: Any, shelf: Any) -> None:
    """One test in each group: p is not doubled. Only kmnist lacks a seed."""
    accs = {"fliu": (0.6, 0.7, 0.8), "fedavg": (0.59, 0.68, 0.77)}
    runs = [
        made(m, s, a, **{"data.name": d}) for d in ("digits", "kmnist") for m in accs for s, a in enumerate(accs[m])
    ]
    runs = [run for run in runs if run.name != "fliu-seed2" or run.params["data.name"] == "digits"]
    found = go(shelf(runs), metric="local/mean", test="t")
    once = 1 - 2 * math.sqrt(3) / math.sqrt(14)
    assert found.groups[0].complaints == () and found.groups[0].lines[1].difference.p == pytest.approx(once)
    assert found.complaints == ("kmnist, lsqs: only seeds 0, 1 are shared: 0 to 2 ('fedavg'); 0, 1 ('fliu')",)


def test_clients_with_other_samples_take_the_p_value(made: Any, shelf: Any) -> None:
    runs = [made("fliu", s, acc) for s, acc in enumerate((0.6, 0.7, 0.8))]
    other = {"tags": {"pfl_ops.partition_hash": "x"}}
    runs += [made("fedavg", s, acc, **(other if s == 1 else {})) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean")
    assert found.complaints == ("clients hold other samples in seed 1",)
    assert found.lines[1].difference is not None and found.lines[1].difference.p is None


@pytest.mark.parametrize(
    ("tag", "one", "other", "told"),
    [
        ("pfl_ops.content", "data=1e10000000000000", "data=2f3a4b5c00000000", "content"),
        ("pfl_ops.code", "algorithm=aaaaaaaaaa model=1e10000000000000", "model=2f3a4b5c00000000", "network's code"),
    ],
)
def test_other_content_of_one_name_is_another_group(
    made: Any, shelf: Any, tag: str, one: str, other: str, told: str
) -> None:
    """A data file, or a plug-in's network, that was edited between the runs of two methods."""
    runs = [made("fliu", s, 0.6 + s / 100, tags={tag: one}) for s in range(4)]
    runs += [made("fedavg", s, 0.2 + s / 70, tags={tag: other}) for s in range(4)]
    found = go(shelf(runs), with_clients=False)
    assert [(group.title, [line.label for line in group.lines]) for group in found.groups] == [
        (f"digits, lsqs, {told} #1e1000", ["fliu"]),
        (f"digits, lsqs, {told} #2f3a4b", ["fedavg"]),
    ]
    del runs[0].tags[tag]  # of an earlier version: it may be either
    assert len(go(shelf(runs[:1] + runs[4:]), with_clients=False).groups) == 1


def test_code_and_content_of_other_names_are_not_told() -> None:
    grounds = [
        {"data.name": "digits", "partition.kind": "iid", "model.name": name, "model.network's code": code}
        for name, code in (("linear", "#aa"), ("mlp", "#bb"))
    ]
    assert group_titles(grounds) == ["digits, iid, linear", "digits, iid, mlp"]


@pytest.mark.parametrize(
    ("methods", "title"),
    [
        (["fliu"], "fliu"),
        (["fliu", "fedavg"], "fliu and fedavg"),
        (["fliu", "fedavg", "ditto"], "fliu, fedavg and ditto"),
        (["fliu", "fedavg", "ditto", "apfl", "fedrep", "local"], "fliu, fedavg, ditto, apfl, fedrep and local"),
        (["fliu", "fedavg", "ditto", "apfl", "fedrep", "local", "fedper"], "7 methods"),
    ],
)
def test_title_of_the_page_names_up_to_six_methods_each_once(
    made: Any, shelf: Any, methods: list[str], title: str
) -> None:
    runs = [made(method, seed, 0.9 - number / 10) for number, method in enumerate(methods) for seed in (0, 1)]
    assert document(go(shelf(runs), with_clients=False)).title == f"Compared: {title}"


def test_methods_of_edited_code_are_named_by_it(made: Any, shelf: Any) -> None:
    tags = [{"pfl_ops.code": f"algorithm={digit * 16} version=2"} for digit in "12"]
    runs = [made("fliu", 0, 0.6, tags=one, group=one["pfl_ops.code"]) for one in tags]
    found = go(shelf([*runs, made("fedavg", 0, 0.5, tags=tags[0])]), with_clients=False)
    assert [line.label for line in found.lines] == ["fliu, code #111111", "fliu, code #222222", "fedavg"]


def test_a_group_without_acc_is_ordered_by_own_data(made: Any, shelf: Any) -> None:
    """A run's Acc(L) stood under "Acc(L)+Acc(G) %" in the table of runs."""
    runs = [made(method, 0, acc, **{"data.name": "kmnist"}) for method, acc in (("fliu", 0.5), ("fedavg", 0.6))]
    for run in runs:
        del run.metrics["final/test/L1/acc"]
    found = go(shelf([made(), *runs]))
    assert [(group.metric, group.lines[0].label) for group in found.groups] == [
        ("acc", "fliu"),
        ("local/mean", "fedavg"),
    ]
    tables = {table.name: table for table in document(found).each(Table)}
    assert tables["runs"].columns[-1] == tables["groups"].columns[-1] == "Acc(L)+Acc(G) %"
    assert [row.entries[-1].text for row in tables["runs"].rows] == ["75.0", "Acc(L) % 60.0", "Acc(L) % 50.0"]
    assert [row.entries[-1].text for row in tables["groups"].rows] == ["75.0", "Acc(L) % 60.0"]


def test_run_without_the_value_of_its_group_has_a_dash_alone(made: Any, shelf: Any) -> None:
    runs = [made("fliu", seed, 0.5, **{"data.name": "kmnist"}) for seed in (0, 1)]
    for run in runs:
        del run.metrics["final/test/L1/acc"]
    del runs[1].metrics["final/test/L1/local/mean"]
    tables = {table.name: table for table in document(go(shelf([made(), *runs]))).each(Table)}
    assert [row.entries[-1].text for row in tables["runs"].rows] == ["75.0", "Acc(L) % 50.0", "–"]


def test_cells_at_scale_smoke_stay_out_unless_named(made: Any, shelf: Any) -> None:
    tags = {"pfl_ops.scale": "smoke"}
    store = shelf([made("fliu", 0), made("fedavg", 0, experiment="fliu-table1-smoke", tags=tags)])
    found = go(store, with_clients=False)
    assert [line.label for line in found.lines] == ["fliu"]
    assert found.remarks == (
        "1 cell of suites at scale smoke is left out; name them to compare them: fliu-table1-smoke",
    )
    for names, how in (
        (["fliu-table1-smoke"], {}), (["fedavg-seed0"], {}), (["fliu-table1*"], {}), ([], {"tags": tags}),
    ):  # fmt: skip
        named = go(store, *names, **how, with_clients=False)
        assert [line.label for line in named.lines] == ["fedavg"] and named.remarks == ()
    with pytest.raises(PflOpsError, match="left out unless they are named: pfl-ops compare fliu-table1-smoke"):
        go(shelf(store.kept[1:]))


def test_an_unfinished_run_that_is_named_has_no_rank(made: Any, shelf: Any) -> None:
    """Its accuracy is the highest, in round 1 of 20; it has a line of its own beside the finished seed."""
    runs = [made("fliu", 0, 0.5), made("fedavg", 0, 0.4), made("fedavg", 1, 0.9, status="RUNNING", name="mine")]
    store = shelf(runs, {runs[2].run_id: {"test/L1/local/mean": [0.1, 0.9]}})
    assert go(store, with_clients=False).remarks == ("not finished, and left out: mine",)
    found = go(store, "*", "mine", metric="local/mean", with_clients=False)
    assert [line.label for line in found.lines] == ["fliu", "fedavg", "fedavg, seed 1 (running, round 1 of 20)"]
    (group,) = found.groups
    assert [ahead(found, group, line) for line in group.lines] == ["highest", "−10.00", "not finished"]
    assert found.lines[2].values("local/mean") == {1: 0.9} and found.lines[2].difference is None
    assert found.complaints == () and found.remarks == ()
    assert [row.entries[3].mark for row in results(found, group).rows] == ["best", "", "muted"]
    assert [line.label for line in go(store, "mine").lines] == ["fedavg, seed 1 (running, round 1 of 20)"]
    assert document(found)


def test_values_of_an_unfinished_run_say_their_round(made: Any, shelf: Any) -> None:
    """Acc(G) is scored in every second round: in round 3 it is that of round 2, and so is the sum."""
    run = made("fedavg", 1, 0.9, status="RUNNING", name="mine")
    nan = math.nan
    seconds, seldom = {"cost/train_seconds": [1.0] * 4}, [0.1, nan, 0.2, nan]
    for local, told in (([0.1, 0.2, 0.3, 0.4], "Acc and Acc(G)"), (seldom, "scores")):
        curves = {"test/L1/local/mean": local, "test/L1/global/mean": seldom, "test/L1/acc": seldom, **seconds}
        (line,) = go(shelf([run], {run.run_id: curves}), "mine", with_clients=False).lines
        assert line.label == f"fedavg, seed 1 (running, round 3 of 20, {told} of round 2)"


def test_a_target_in_percent_is_refused(store: Any) -> None:
    with pytest.raises(PflOpsError, match=r"is a fraction, 0\.9 for 90 %; no local/mean reaches 90"):
        go(store, target=90)
    assert go(store, target=1.5, metric="acc").target == 1.5


def test_equal_means_are_marked_alike(made: Any, shelf: Any) -> None:
    """fliu and fedavg are 65.0 % as shown; the worst client of all is 0 %, which singles nothing out."""
    accs = {"fliu": (0.6, 0.7002), "fedavg": (0.6, 0.7), "ditto": (0.5, 0.55)}
    runs = [made(method, seed, acc) for method, each in accs.items() for seed, acc in enumerate(each)]
    for run in runs:
        run.metrics["final/test/L1/local/worst"] = 0.0
    found = go(shelf(runs), with_clients=False)
    rows = results(found, found.groups[0]).rows
    assert [(row.entries[3].text, row.entries[3].mark) for row in rows] == [
        ("65.0 ± 7.1", "best"),
        ("65.0 ± 7.1", "best"),
        ("52.5 ± 3.5", ""),
    ]
    assert [row.entries[6].mark for row in rows] == ["", "", ""]


# -- many lines -------------------------------------------------------------------------------------------------------


METHODS = ("fliu", "fedavg", "ditto", "apfl", "fedrep", "fedper", "local", "lg_fedavg", "fedamp", "fedbabu")


def many(made: Any, shelf: Any, settings: list[dict[str, Any]]) -> Any:
    """A run of each of these settings, with method, and curves of three rounds."""
    runs = [made(s["method"], 0, 0.3 + i / 100, **{k: v for k, v in s.items() if k != "method"}) for i, s in
            enumerate(settings)]  # fmt: skip
    curve = [0.1, 0.4, 0.5]
    cost = {key: [math.nan, 1e6, 1e6] for key in ("cost/up_bytes", "cost/down_bytes", "cost/train_seconds")}
    curves = {
        run.run_id: {"test/L1/local/mean": curve, "test/L1/global/mean": [v / 2 for v in curve], **cost} for run in runs
    }
    return shelf(runs, curves)


def thirteen(made: Any, shelf: Any) -> Any:
    more = [{"method": "fliu", "algorithm.gamma": {"kind": "fixed", "value": v}} for v in (0.25, 0.5, 0.75)]
    return many(made, shelf, [*({"method": method} for method in METHODS), *more])


def sixty(made: Any, shelf: Any) -> Any:
    """30 on digits, 18 on kmnist by another partition, 12 on digits with another network; rounds and rates vary."""
    places = [{}] * 30 + [{"data.name": "kmnist", "partition.kind": "dirichlet"}] * 18 + [{"model.name": "linear"}] * 12
    return many(
        made,
        shelf,
        [
            {"method": METHODS[i % 10], "training.lr": 0.01 * (1 + i // 10), "training.rounds": 20 + i % 3, **place}
            for i, place in enumerate(places)
        ],
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("lines", "groups", "panels"),
    [
        (thirteen, ["digits, lsqs"], [13]),
        (sixty, ["digits, lsqs, cnn_tiny", "digits, lsqs, linear", "kmnist, dirichlet"], [30, 2, 18]),
    ],
)
def test_the_page_of_many_lines(
    made: Any, shelf: Any, monkeypatch: pytest.MonkeyPatch, lines: Any, groups: list[str], panels: list[int]
) -> None:
    """Up to 12 lines: a panel a metric and a legend of all; more: a panel a line."""
    table = pd.DataFrame({"client": [0, 1], "stage": ["L1", "L1"], "local": [0.4, 0.6]})
    monkeypatch.setattr("pfl_ops.tracking.runs.finished.TrackedRun.clients", table)
    found = go(lines(made, shelf), target=0.5)
    assert [group.title for group in found.groups] == groups
    report = document(found)
    curves = [picture for picture in report.each(Picture) if picture.name.startswith("curves")]
    assert [len(picture.panels) for picture in curves] == panels
    assert [len(picture.legend) for picture in curves] == [12 if n == 2 else 3 for n in panels]
    page = to_html(report)
    labels = [line.label for line in found.lines]
    assert all(f"<span>{label}</span>" in page or f">{label}</p>" in page for label in labels)
    assert max(len(picture.legend) for picture in report.each(Picture)) <= 13
    shown = [text.text for text in texts(report) if text.kind == "warning"]
    assert all(len(text) < 200 for text in shown) and len(shown) == (len(groups) if len(groups) > 1 else 0)


@pytest.mark.filterwarnings("error")
def test_a_whole_picture_of_many_lines_is_as_high_as_its_names(made: Any, shelf: Any) -> None:
    """The files of a report have the legend inside: the axes keep their height, and no name is cut."""
    found = go(thirteen(made, shelf), with_clients=False)
    for picture in document(found).each(Picture):
        figure = picture.draw()
        figure.draw_without_rendering()
        assert all(axes.bbox.height > 100 for axes in figure.axes)
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


def test_long_notes_are_folded_on_a_terminal(made: Any, shelf: Any) -> None:
    found = go(sixty(made, shelf), with_clients=False)
    said = {}
    for notes in (False, True):
        remarks = Console(width=5000, record=True, file=io.StringIO())
        show(found, Console(width=200, file=io.StringIO()), remarks, notes)
        said[notes] = remarks.export_text().splitlines()
    assert len(said[False]) == 4 and max(map(len, said[False])) < 200
    assert said[False][
        0
    ] == "not a fair comparison (digits, lsqs, cnn_tiny): the rounds differ; the methods are not " + (
        "trained alike, so differences between these have no p value"
    )
    assert said[False][-1] == "--notes prints these notes in full"
    assert said[True] == [
        f"not a fair comparison ({group.title}): {line}" for group in found.groups for line in group.complaints
    ]


# -- what is unfair ---------------------------------------------------------------------------------------------------


def test_alike_runs_have_nothing_to_complain_of(made: Any, shelf: Any) -> None:
    assert go(shelf([made("fliu", 0), made("fedavg", 0)])).complaints == ()


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            {"participation.share": 0.5},
            "other clients take part in a round, or count otherwise: share=1.0 ('fliu'); share=0.5 ('fedavg')",
        ),
        ({"training.rounds": 5}, "the rounds differ: rounds=20 ('fliu'); rounds=5 ('fedavg')"),
        ({"evaluation.subset": 30}, "other clients or subsets are scored: subset=auto ('fliu'); subset=30 ('fedavg')"),
        (
            {"evaluation.absent": "last"},
            "other clients or subsets are scored: absent=train ('fliu'); absent=last ('fedavg')",
        ),
        ({"tags": {"pfl_ops.partition_hash": "x"}}, "clients hold other samples in seed 0"),
        ({"seed": 3}, "no seed is shared: 0 ('fliu'); 3 ('fedavg')"),
    ],
)
def test_what_makes_a_comparison_unfair(made: Any, shelf: Any, other: dict[str, Any], complaint: str) -> None:
    assert go(shelf([made("fliu", 0), made("fedavg", **{"seed": 0, **other})])).complaints == (complaint,)


def test_one_line_of_another_task_leaves_a_group_without_a_best(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, 0.9), made("fedavg", 0, 0.8), made("ditto", 0, 0.7, **{"participation.share": 0.5})]
    for some, best in ((runs, ["", "", ""]), (runs[:2], ["best", ""])):
        (group,) = (found := go(shelf(some), metric="local/mean", with_clients=False)).groups
        assert group.fair == ("best" in best)
        assert [row.entries[3].mark for row in results(found, group).rows] == best


def test_each_stage_that_some_line_has_is_shown(made: Any, shelf: Any) -> None:
    """fedavg alone has a score at L2."""
    runs = [made("fliu", 0, 0.9), made("fedavg", 0, 0.8)]
    runs[1].metrics["final/test/L2/local/mean"] = 0.75
    (group,) = (found := go(shelf(runs), metric="local/mean", with_clients=False)).groups
    shown = stages(found, group)
    place = 1 + 3 * ([head.text for head in shown.head[0]].index("L2") - 1)
    assert [row.entries[place].value for row in shown.rows] == [None, pytest.approx(75)]


@pytest.mark.parametrize(("share", "told"), [(0.1, ()), (0.3, ("other clients or subsets are scored: ",))])
def test_another_validation_share_counts_where_it_is_scored(
    made: Any, shelf: Any, share: float, told: tuple[str, ...]
) -> None:
    """Test scores do not depend on it; 0.1 is that of runs on test data, 0.3 of runs on validation data."""
    split = {} if share == 0.1 else {"evaluation.split": "validation"}
    runs = [made("fliu", s, acc, **split) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [
        made("fedavg", s, acc, **split, **{"evaluation.validation_share": share})
        for s, acc in enumerate((0.59, 0.68, 0.77))
    ]
    for run in runs:
        run.metrics.update({key.replace("test", "val"): value for key, value in run.metrics.items()})
    found = go(shelf(runs), metric="local/mean", with_clients=False)
    (difference,) = [line.difference for line in found.lines if line.difference]
    assert (difference.p is None) is bool(told)
    assert [line.startswith(told) for line in found.complaints] == [True] * len(told)


def test_best_rounds_of_other_looks_take_the_p_value_and_are_named(made: Any, shelf: Any) -> None:
    """Acc(G) of a global model is scored in each round, that of clients' models in every fifth: with the same settings
    one best round is the best of five, the other of two. The last round is the same one, and so are the rounds in which
    Acc(L) can reach a target.
    """
    runs = [
        made(m, s, a)
        for m, accs in (("fedavg", (0.6, 0.7, 0.8)), ("fliu", (0.59, 0.68, 0.77)))
        for s, a in enumerate(accs)
    ]
    curves = {}
    for run in runs:
        acc = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
        seldom = [0.2, *[math.nan] * 2, 0.5, math.nan, 0.7]
        curves[run.run_id] = {
            "test/L1/local/mean": acc,
            "test/L1/acc": seldom if run.params["algorithm.name"] == "fliu" else acc,
        }
    store = shelf(runs, curves)
    told = (
        "best rounds were chosen among other rounds (the best of more is higher by chance): "
        "1 to 5 ('fedavg'); 3, 5 ('fliu')"
    )
    last = go(store, metric="local/mean", target=0.5, with_clients=False)
    assert last.complaints == () and last.lines[1].difference and last.lines[1].difference.p is not None
    assert best_notes(last, last.groups[0]) == (told,)
    best = go(store, metric="local/mean", at="best", with_clients=False)
    assert told in best.complaints and not best.groups[0].fair
    assert best_notes(best, best.groups[0]) == (OPTIMISTIC,)
    assert best.lines[1].difference and best.lines[1].difference.p is None
    (line,) = go(store, metric="acc", target=0.5, with_clients=False).complaints
    assert line == "other rounds have acc, so rounds to a target differ: 1 to 5 ('fedavg'); 3, 5 ('fliu')"
    for curve in (curves[run.run_id] for run in runs if run.params["algorithm.name"] == "fliu"):
        del curve["test/L1/acc"]
    (line,) = go(shelf(runs, curves), metric="acc", target=0.5, with_clients=False).complaints
    assert line == "other rounds have acc, so rounds to a target differ: 1 to 5 ('fedavg'); none ('fliu')"


def test_line_without_best_value_not_in_note_on_best_rounds(made: Any, shelf: Any) -> None:
    """`evaluation.stages=L2`: the best round is that of L2, and L1 has none; the note had `;  ('fliu')`."""
    runs = [made("fedavg", 0), made("fliu", 0), made("ditto", 0)]
    accs = {"fedavg": [0.1, 0.2, 0.3], "fliu": [0.1, math.nan, math.nan], "ditto": [0.1, 0.2, 0.3]}
    curves = {run.run_id: {"test/L1/acc": accs[run.params["algorithm.name"]]} for run in runs}
    found = go(shelf(runs, curves), with_clients=False)
    assert best_notes(found, found.groups[0]) == ()


@pytest.mark.parametrize("metric", ["best/round", "train/loss"])
def test_compare_without_best_values_has_no_column_of_them(made: Any, shelf: Any, metric: str) -> None:
    """A best round has scores alone: `best best/round` was empty. The note on best rounds stays, on narrow terminals
    too, where the column `best round` has no room. Best rounds are among rounds 1 and 2, or 2 alone.
    """
    runs = [made(method, seed) for method in ("fliu", "fedavg") for seed in range(2)]
    for run in runs:
        run.metrics["train/loss"] = 0.5
    accs = {"fliu": [0.1, 0.2, 0.3], "fedavg": [0.1, math.nan, 0.3]}
    curves = {run.run_id: {"test/L1/acc": accs[run.params["algorithm.name"]]} for run in runs}
    found = go(shelf(runs, curves), metric=metric, with_clients=False)
    (group,) = found.groups
    assert f"best {metric}" not in {*_columns(found, group), *found.table.columns, *found.runs.columns}
    heads, cells = [head.text for head in costs(found, group).head[0]], costs(found, group).rows[0].entries
    assert heads[:3] == ["setting", "best round", "sent MiB"] and cells[1].text == "2.0 ± 0.0"
    for width in (60, 200) if metric == "best/round" else (200,):
        shown = io.StringIO()
        show(found, Console(file=shown, width=width))
        assert "best rounds were chosen among other rounds" in " ".join(shown.getvalue().split())
    acc = go(shelf(runs, curves), metric="acc", with_clients=False)
    assert "best Acc(L)+Acc(G) %" in acc.table.columns
    for run in runs:  # as trials, which have curves and no best round
        run.metrics.pop("best/round", None)
    assert not any("among other" in note for note in best_notes(acc, acc.groups[0]))


@pytest.mark.parametrize("second", ["L1", "L2"])
def test_best_rounds_of_a_cohort_take_the_p_value(made: Any, shelf: Any, second: str) -> None:
    """In a round L2 is scored on the cohort, here a quarter of the clients, at the end on all; L1 always on all.

    Two best rounds at L2 are of two cohorts.
    """
    runs = []
    for method, stage, accs in (("fliu", "L2", (0.6, 0.7, 0.8)), ("fedavg", second, (0.59, 0.68, 0.77))):
        for seed, acc in enumerate(accs):
            run = made(method, seed, acc, tags={"pfl_ops.own_stage": stage}, **{"participation.share": 0.25})
            for key in ("final/test/", "best/test/"):
                run.metrics[f"{key}{stage}/local/mean"] = acc
            runs.append(run)
    store = shelf(runs)
    last = go(store, metric="local/mean", with_clients=False)
    assert last.complaints == () and last.lines[1].difference and last.lines[1].difference.p is not None
    both = second == "L2"
    named = "fliu, fedavg (L2) is" if both else "fliu (L2) is"
    line = f"best round: {named} scored on that round's cohort alone, "
    line += "other stages and the last round on absent clients too"
    console = Console(width=300, file=io.StringIO())
    show(last, console)
    assert line in console.file.getvalue().splitlines() and costs(last, last.groups[0]).notes == (f"B{line[1:]}.",)
    best = go(store, metric="local/mean", at="best", with_clients=False)
    told = "a score at L2 is of a cohort alone: "
    told += (
        "each best round has its own"
        if both
        else "the best round's cohort, 0.25 of the clients ('fliu'); absent clients too ('fedavg')"
    )
    assert told in best.complaints and not best.groups[0].fair
    assert told in go(store, metric="local/mean", target=0.5, with_clients=False).complaints
    assert best.lines[1].difference and best.lines[1].difference.p is None
    other = go(store, metric="L1/local/mean", at="best", with_clients=False)
    assert not any("cohort" in line for line in other.complaints)


def test_cohorts_that_a_method_draws_itself_are_cohorts_too(made: Any, shelf: Any) -> None:
    """drdm draws with replacement: 7 and 6 of 12 clients are scored at L2 in a round, at a share of participation of 1.
    The best round at L2 was said to be of all clients. The last round happened to draw all of them."""
    runs = []
    for method, counts in (("drdm", (7, 6)), ("fedavg", (12, 12))):
        for seed, n in enumerate(counts):
            run = made(method, seed, 0.5)
            scores = {"L2/local/mean": 0.6 + seed / 10, "L2/local/clients": float(n), "L1/local/clients": 12.0}
            run.metrics.update({f"{start}test/{key}": v for start in ("", "best/") for key, v in scores.items()})
            run.metrics["test/L2/local/clients"] = 12.0
            run.metrics.update({"final/test/L2/local/mean": 0.5, "final/test/L2/local/clients": 12.0})
            runs.append(run)
    best = go(shelf(runs), metric="L2/local/mean", at="best", with_clients=False)
    told = "the best round's cohort, drawn by the method itself ('drdm'); absent clients too ('fedavg')"
    assert f"a score at L2 is of a cohort alone: {told}" in best.complaints
    last = go(shelf(runs), metric="L2/local/mean", with_clients=False)
    assert not any("cohort" in line for line in last.complaints)
    tracked = go(shelf(runs), metric="final/test/L2/local/mean", with_clients=False)  # as MLflow names it
    assert tracked.complaints == last.complaints and tracked.metric == "test/L2/local/mean"
    with pytest.raises(PflOpsError, match="no value at the best round"):
        go(shelf(runs), metric="final/test/L2/local/mean", at="best", with_clients=False)
    assert any("drdm (L2) is scored on that round" in line for line in best_notes(last, last.groups[0]))


def test_l2_of_best_rounds_is_said_to_be_of_a_cohort(made: Any, shelf: Any) -> None:
    """Methods judged at L1 show L2 of the best round too, which is of that round's cohort. One line compares nothing.

    The note is below the table of the best rounds, also in LaTeX; at the last round L2 is of all clients.
    """
    runs = [made("fliu", s, acc, **{"participation.share": 0.25}) for s, acc in enumerate((0.6, 0.7))]
    for run in runs:
        run.metrics.update({f"{at}test/L2/local/mean": 0.9 for at in ("final/", "best/")})
    note = "best round: fliu (L2) is scored on that round's cohort alone, "
    note += "other stages and the last round on absent clients too"
    best = go(shelf(runs), metric="local/mean", at="best", with_clients=False)
    console = Console(width=60, file=io.StringIO())
    show(best, console)
    assert " ".join(note.split()) in " ".join(console.file.getvalue().split())
    assert results(best, best.groups[0]).notes[-1] == f"B{note[1:]}." and costs(best, best.groups[0]).notes == ()
    assert not any("cohort" in line for line in best.complaints)
    last = go(shelf(runs), metric="local/mean", target=0.5, with_clients=False)
    assert last.complaints == () and not any("cohort" in line for line in results(last, last.groups[0]).notes)


def test_a_best_round_by_another_stage_is_named(made: Any, shelf: Any) -> None:
    """With evaluation.stages=G the curves of ditto, judged at L1, have G alone: its best round is by Acc of G."""
    runs = [made("fliu", 0, 0.6), made("ditto", 0, 0.5, **{"evaluation.stages": "G"})]
    for run in runs:
        own = {key: value for key, value in run.metrics.items() if not key.startswith("best/test/")}
        run.metrics.clear()
        stage = "L1" if run.params["algorithm.name"] == "fliu" else "G"
        run.metrics.update({**own, "best/round": 2.0, f"best/test/{stage}/local/mean": 0.5})
    found = go(shelf(runs), metric="local/mean", with_clients=False)
    told = "best round: that of 'ditto' is by another stage, since its own has no curves"
    assert told in best_notes(found, found.groups[0])
    fair = go(shelf(runs[:1]), metric="local/mean", with_clients=False)
    assert not any("another stage" in note for note in best_notes(fair, fair.groups[0]))


def test_mean_over_some_repetitions_says_of_how_many(made: Any, shelf: Any) -> None:
    """Two of three seeds have a client with ten samples: (0.2 + 0.4) / 2; all of them have Acc(L)."""
    runs = [made("fliu", s, 0.6) for s in range(3)]
    for run, worst in zip(runs, (0.2, 0.4), strict=False):
        run.metrics["final/test/L1/local/worst_min10"] = worst
    found = go(shelf(runs), metric="local/worst_min10", with_clients=False)
    (line,), (row,) = found.lines, results(found, found.groups[0]).rows
    assert text_of(line, "local/worst_min10") == "30.0 ± 14.1 (2 of 3)" == row.entries[7].text
    assert text_of(line, "local/mean") == "60.0 ± 0.0" == row.entries[3].text


def test_target_at_l2_of_one_line_is_no_unfair_comparison(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, 0.6, tags={"pfl_ops.own_stage": "L2"}, **{"participation.share": 0.25})]
    runs[0].metrics.update({"final/test/L2/local/mean": 0.9, "best/test/L2/local/mean": 0.9})
    assert go(shelf(runs), metric="local/mean", target=0.5, with_clients=False).complaints == ()


def test_trials_of_a_cohort_stand_beside_trials_of_all_clients_without_a_p_value(made: Any, shelf: Any) -> None:
    """A trial has no full evaluation: its last score at L2 is of the cohort, the same one in all trials of a seed."""
    runs = [
        made(m, s, 0.5 + s / 10, trial=s, **{"participation.share": 0.25}) for m in ("fliu", "ditto") for s in (0, 1)
    ]
    for run in runs:
        run.tags["pfl_ops.own_stage"] = "L2"
        run.metrics["val/L2/local/mean"] = 0.4
    names = [f"{m} trial-00{n}" for m in ("fliu", "ditto") for n in (0, 1)]
    alike = go(shelf(runs), *names, metric="local/mean", with_clients=False)
    assert not any("cohort" in line for line in alike.complaints)
    note = "L2 is of the last round's cohort alone, without a full evaluation"
    assert note in scored_notes(alike.groups[0]) and best_notes(alike, alike.groups[0]) == ()
    for run in runs[2:]:
        run.tags["pfl_ops.own_stage"] = "L1"
    found = go(shelf(runs), *names, metric="local/mean", with_clients=False)
    told = "a score at L2 is of a cohort alone: absent clients too ('ditto trial-000'"
    (line,) = [line for line in found.complaints if line.startswith(told)]
    assert "; the last round's cohort, 0.25 of the clients ('fliu trial-000'" in line
    assert not found.groups[0].fair


@pytest.mark.parametrize(("metric", "tested"), [("test/L1/synthetic_50/mean", False), ("acc", True)])
def test_synthetic_views_of_other_weights_take_the_p_value(made: Any, shelf: Any, metric: str, tested: bool) -> None:
    """One counts each client's test set alike, the other by its samples: two quantities. Other scores are the same."""
    equal = {"evaluation.synthetic": (50,), "evaluation.equal_tests": True}
    runs = [made("fliu", seed, 0.5 + seed / 100, **equal) for seed in range(3)]
    runs += [made("fedavg", seed, 0.3, **{"evaluation.synthetic": (50,)}) for seed in range(3)]
    for run in runs:
        run.metrics["final/test/L1/synthetic_50/mean"] = run.metrics["final/test/L1/local/mean"]
    found = go(shelf(runs), metric=metric, with_clients=False)
    told = "clients' test sets count otherwise: equal_tests=True ('fliu'); equal_tests=False ('fedavg')"
    assert found.complaints == (() if tested else (told,))
    assert found.groups[0].fair == tested and (found.lines[1].single_p is not None) == tested


@pytest.mark.parametrize(
    ("metric", "device", "tested"),
    [("cost/train_seconds", "cuda", False), ("cost/train_seconds", "cpu", True), ("cost/up_bytes", "cuda", True)],
)
def test_times_on_another_machine_take_the_p_value(
    made: Any, shelf: Any, metric: str, device: str, tested: bool
) -> None:
    """A method on a GPU was the best, faster with p < 0.05, beside one on a CPU. What is sent does not depend on it."""
    runs = []
    for method, on, seconds in (("fliu", device, 1.0), ("fedavg", "cpu", 2.0)):
        for seed in range(4):
            runs.append(made(method, seed, tags={"pfl_ops.device": on, "pfl_ops.threads": "2"}))
            runs[-1].metrics[f"total/{metric}"] = runs[-1].metrics[metric] = seconds + seed / 100 * seconds
    found = go(shelf(runs), metric=metric, with_clients=False, with_curves=False)
    told = f"{metric} was measured on other devices, processors, threads or workers in seed 0, 1, 2, 3"
    assert found.complaints == (() if tested else (told,))
    assert ahead(found, found.groups[0], found.lines[0]) == ("best" if tested else "lowest")
    assert (found.lines[1].single_p is not None) == tested


@pytest.mark.parametrize(("metric", "tested"), [("train/loss", False), ("acc", True)])
def test_training_losses_of_other_losses_take_the_p_value(made: Any, shelf: Any, metric: str, tested: bool) -> None:
    """One method under two losses is compared by its scores; the two losses are two quantities."""
    runs = [made("fedavg", seed, 0.5 + seed / 100) for seed in range(4)]
    runs += [made("fedavg", seed, 0.3) for seed in range(4)]
    for i, run in enumerate(runs):
        run.params["training.loss"] = "cross_entropy" if i < 4 else "focal"
        run.tags["pfl_ops.group_hash"] = run.params["training.loss"]
        run.metrics["train/loss"] = (0.5 if i < 4 else 0.1) + int(run.params["seed"]) / 100 * (1 + i // 4)
    found = go(shelf(runs), metric=metric, with_clients=False)
    told = "train/loss is of other losses: loss=focal ('fedavg, loss focal'); loss=cross_entropy"
    assert [line.startswith(told) for line in found.complaints] == [True] * (not tested)
    assert found.groups[0].fair == tested and (found.lines[1].single_p is not None) == tested


def test_results_of_another_version_of_the_engine_take_the_p_value(made: Any, shelf: Any) -> None:
    runs = [made("fliu", s, acc, tags={"pfl_ops.code": "version=2"}) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fedavg", s, acc, tags={"pfl_ops.code": "version=1"}) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean", with_clients=False)
    assert found.complaints == (
        "the engine's results are of other versions: results version=2 ('fliu'); results version=1 ('fedavg')",
    )
    assert not found.groups[0].fair and found.lines[1].difference and found.lines[1].difference.p is None


def test_test_data_divided_by_another_rule_take_the_p_value(made: Any, shelf: Any) -> None:
    """Runs of before have no word of it in their tag, and clients of theirs were tested on other samples."""
    now = {"pfl_ops.code": "held_out=on-average version=2"}
    runs = [made("fliu", s, acc, tags=now) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fedavg", s, acc, tags={"pfl_ops.code": "version=2"}) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean", with_clients=False)
    assert found.complaints == (
        "the engine's results are of other versions: rule for test data=on-average ('fliu'); "
        "rule for test data=none ('fedavg')",
    )
    assert not found.groups[0].fair and found.lines[1].difference and found.lines[1].difference.p is None


def test_a_global_view_on_other_samples_takes_the_p_value_and_is_named(made: Any, shelf: Any) -> None:
    """Beside it stands how far the choice of samples may move a mean: 0.6 points, the largest of all runs."""

    def sampled(seed: int, error: float) -> Any:
        run = made("fedavg", seed, 0.5 + seed / 100)
        more = {"final/test/L1/global/samples": 1000.0, "final/test/L1/global/se": error}
        return replace(run, metrics={**run.metrics, **more})

    found = go(
        shelf(
            [*(made("fliu", seed, 0.6) for seed in (0, 1, 2)), sampled(0, 0.004), sampled(1, 0.006), sampled(2, 0.005)]
        )
    )
    assert found.complaints == ("Acc(G) of the last round stands on other samples: all ('fliu'); 1,000 ('fedavg')",)
    assert found.lines[1].difference and found.lines[1].difference.p is None
    told = (
        "Acc(G) of the last round of 'fedavg': from 1,000 of the samples, one set for all models, standard error up to "
        "0.6 points (all: evaluation.final=all)"
    )
    screen = io.StringIO()
    show(found, Console(file=io.StringIO(), width=200), Console(file=screen, width=400))
    assert scored_notes(found.groups[0]) == (told,) and told in screen.getvalue()


def test_a_note_on_samples_stands_at_its_group_alone(made: Any, shelf: Any, tmp_path: Path) -> None:
    """The LaTeX table of kmnist, of which all samples were scored, had the note of digits."""
    runs = [made("fliu", 0, 0.6), made("fliu", 0, 0.6, **{"data.name": "kmnist"})]
    runs[0] = replace(runs[0], metrics={**runs[0].metrics, "final/test/L1/global/samples": 50.0})
    found = go(shelf(runs))
    assert [bool(scored_notes(group)) for group in found.groups] == [True, False]
    digits, kmnist = found.to_latex(tmp_path / "t.tex").read_text().split(r"\end{table}")[:2]
    assert "from 50 of the samples" in digits and "of the samples" not in kmnist


def test_latex_has_all_columns_and_says_what_is_unfair(made: Any, shelf: Any, tmp_path: Path) -> None:
    """Terminal and page have rounds to a target, costs and the warning; the LaTeX table ended with p."""
    runs = [made("fliu", 0, 0.6), made("fedavg", 0, 0.5, **{"training.rounds": 7})]
    found = go(shelf(runs), target=0.5)
    tables = found.to_latex(tmp_path / "t.tex").read_text().split(r"\end{table}")[:-1]
    assert len(tables) == 2 and "rounds to Acc(L)" in tables[1] and "received MiB" in tables[1]
    assert f"Not a fair comparison: {folded(found.complaints)}." in tables[0]
    assert "MiB: sent by all" in tables[1] and "MiB: sent by all" not in tables[0]


def test_latex_names_the_seeds_that_diverged(made: Any, shelf: Any, tmp_path: Path) -> None:
    """The setting had n = 1 and dashes, without a word."""
    lost = {"pfl_ops.diverged": "diverged at round 7, client 12, lr 0.4"}
    runs = [made("fliu", 0), made("fedavg", 0), made("fedavg", 1, None, status="FAILED", tags=lost)]
    table, _ = go(shelf(runs), with_clients=False).to_latex(tmp_path / "t.tex").read_text().split(r"\end{table}")[:-1]
    assert "No mean of fedavg, 1 of 2 seeds diverged: seed 1 diverged at round 7, client 12, lr 0.4." in table


def test_metric_of_the_curves_alone_is_said_to_be_so(made: Any, shelf: Any) -> None:
    """The curves stand on a subset, with an error, and the last evaluation on all samples, without one. The line said
    "did you mean 'global/se'?"."""
    runs = [made("fliu", 0, 0.6)]
    runs[0] = replace(runs[0], metrics={**runs[0].metrics, "test/L1/global/se": 0.01})
    with pytest.raises(PflOpsError, match=r"^global/se has no value in the full evaluation after the last round$"):
        go(shelf(runs), metric="global/se")
    runs[0].metrics["best/test/L1/global/se"] = 0.01
    with pytest.raises(PflOpsError, match=r"last round; --at best has one$"):
        go(shelf(runs), metric="global/se")


def test_clients_behind_l2_with_absent_last_are_told(made: Any, shelf: Any) -> None:
    """fedavg: 14 and 12 of 20 clients have taken part, drdm, which draws its own cohorts, 13 and 12: no p value."""
    last = {"evaluation.absent": "last", "participation.share": 0.3}

    def run(method: str, seed: int, n: int, **more: Any) -> Any:
        one = made(method, seed, 0.5 + seed / 100, **{**last, **more})
        start = "final/test"
        counts = {f"{start}/L1/local/clients": 20.0, f"{start}/L2/local/clients": float(n)}
        return replace(one, metrics={**one.metrics, **counts, f"{start}/L2/local/mean": 0.4 + n / 100})

    two = [run("fedavg", 0, 14), run("fedavg", 1, 12)]
    steps = {"training.local_epochs": None, "training.local_steps": 5}
    own = [run("drdm", seed, n, **steps) for seed, n in enumerate((13, 12))]
    alike = go(shelf([*two, run("ditto", 0, 14), run("ditto", 1, 12)]), metric="L2/local/mean")
    line = "L2: of the 12 to 14 of 20 clients that have taken part in a round (evaluation.absent=last)"
    assert scored_notes(alike.groups[0]) == (line,) and not alike.complaints
    assert alike.lines[1].difference and alike.lines[1].difference.p is not None

    fedavg = [run("fedavg", seed, n, **steps) for seed, n in enumerate((14, 12))]
    other = go(shelf([*fedavg, *own]), metric="L2/local/mean")
    assert other.complaints == ("a score at L2 is of other clients in seed 0",)
    assert other.lines[1].difference and other.lines[1].difference.p is None
    at_l1 = go(shelf([*fedavg, *own]), metric="L1/local/mean")
    assert not at_l1.complaints and at_l1.lines[1].difference and at_l1.lines[1].difference.p is not None


def test_a_drawn_number_of_clients_is_told(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, 0.5, tags={"pfl_ops.clients": "300"}), made("fedavg", 0, 0.5)]
    told = "200 of 300 clients are scored, drawn once for each run of 'fliu' (evaluation.clients)"
    assert scored_notes(go(shelf(runs)).groups[0]) == (told,)


def test_other_training_takes_the_p_value_and_is_named(made: Any, shelf: Any) -> None:
    """Of two methods; of one method, the training is what is compared."""
    adam = {"training.optimiser": "adam", "training.lr": 0.001}
    runs = [made("fliu", s, acc, **adam) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fedavg", s, acc) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean")
    assert found.complaints == (
        "the methods are not trained alike, so differences between these have no p value: "
        "lr=0.001 optimiser=adam ('fliu'); lr=0.05 optimiser=sgd ('fedavg')",
    )
    second = found.lines[1].difference
    assert second is not None and second.p is None and second.difference == pytest.approx(-0.02)

    runs = [made("fliu", s, acc, **adam) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fliu", s, acc) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean")
    assert found.complaints == () and found.lines[1].difference and found.lines[1].difference.p is not None


COMMON = "0123456789ab, 12 trials: training.optimiser training.lr participation.weighting"


@pytest.mark.parametrize(
    ("theirs", "tested"),
    [
        (COMMON, True),
        (COMMON.replace("12 trials", "48 trials"), False),  # another budget
        (COMMON.replace("01", "10"), False),  # another space
        (COMMON.replace(" training.lr", ""), False),
        (None, False),
    ],
)
def test_settings_chosen_from_one_common_space_are_no_complaint(
    made: Any, shelf: Any, theirs: str | None, tested: bool
) -> None:
    adam = {"training.optimiser": "adam", "training.lr": 0.001, "participation.weighting": "uniform"}
    tags = {"pfl_ops.common": COMMON}
    runs = [made("fliu", s, acc, tags=tags, **adam) for s, acc in enumerate((0.6, 0.7, 0.8))]
    tags = {} if theirs is None else {"pfl_ops.common": theirs}
    runs += [made("fedavg", s, acc, tags=tags) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean")
    second = found.lines[1].difference
    assert second is not None and (second.p is not None) is tested
    assert (found.complaints == ()) is tested


@pytest.mark.parametrize(
    "other",
    [{"training.rounds": 7}, {"participation.share": 0.5}, {"evaluation.clients": 3}],
)
@pytest.mark.parametrize("method", ["fedavg", "fliu"])
def test_nothing_is_tested_across_experiments(made: Any, shelf: Any, method: str, other: dict[str, Any]) -> None:
    runs = [made("fliu", s, acc) for s, acc in enumerate((0.6, 0.7, 0.8))]
    runs += [made(method, s, acc, **other) for s, acc in enumerate((0.59, 0.68, 0.77))]
    found = go(shelf(runs), metric="local/mean")
    assert len(found.complaints) == 1 and found.lines[1].difference and found.lines[1].difference.p is None
    (group,) = found.groups
    assert not group.fair and [ahead(found, group, line) for line in group.lines] == ["highest", "−2.00"]
    assert not any(entry.mark == "best" for row in results(found, group).rows for entry in row.entries)


def test_a_setting_that_did_not_exist_yet_is_no_difference(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0), made("fedavg", 0)]
    del runs[0].params["training.loss"]
    assert go(shelf(runs)).complaints == ()


def test_a_seed_that_diverged_is_counted_and_takes_the_mean(made: Any, shelf: Any) -> None:
    """fedavg's other seeds are the best of all; of ditto nothing is left."""
    tags = {"pfl_ops.diverged": "diverged at round 7, client 12, lr 0.4"}
    runs = [made("fliu", s, 0.5) for s in range(3)] + [made("fedavg", s, 0.9) for s in range(2)]
    runs += [made("fedavg", 2, None, status="FAILED", tags=tags), made("ditto", 0, None, status="FAILED", tags=tags)]
    found = go(shelf(runs), with_clients=False)
    assert [line.label for line in found.lines] == ["fliu", "fedavg"]
    assert found.lines[1].values("acc") == {} and found.lines[1].difference is None
    assert found.remarks == (
        "no mean of fedavg, 1 of 3 seeds diverged: seed 2 diverged at round 7, client 12, lr 0.4",
        "diverged, and left out: ditto-seed0 (diverged at round 7, client 12, lr 0.4)",
    )
    assert [ahead(found, found.groups[0], line) for line in found.lines] == ["–", "1 of 3 diverged"]
    assert pd.isna(found.table.set_index("setting")["Acc(L)+Acc(G) %"]["fedavg"])
    assert found.table["diverged seeds"].tolist() == [0, 1]
    assert found.runs.groupby("setting")["diverged seeds"].unique().str[0].to_dict() == {"fliu": 0, "fedavg": 1}
    assert document(found)


def test_curves_have_the_rounds_that_all_seeds_have(made: Any, shelf: Any) -> None:
    """At L2 a cohort may have no scored client: round 1 of seed 0, round 2 of seed 1. The mean of round 1 was seed
    1's value, 0.9, with "n = 2", and the line fell to 0.2 in round 2."""
    nan = math.nan
    runs = [made("fliu", seed) for seed in (0, 1)]
    values = [0.1, nan, 0.2, 0.3], [0.1, 0.9, nan, 0.5]
    curves = {
        run.run_id: {"test/L1/local/mean": of, "test/L1/global/mean": [0.1] * 4}
        for run, of in zip(runs, values, strict=True)
    }
    found = go(shelf(runs, curves), with_clients=False)
    assert found.lines[0].shared_curve("local/mean").index.tolist() == [0, 3]
    curves[runs[0].run_id]["test/L1/local/mean"] = [0.1, nan, 0.2, nan]  # one round in common is no curve
    one = go(shelf(runs, curves), with_clients=False).lines[0]
    assert one.shared_curve("local/mean").index.tolist() == [0, 1, 2, 3] and not one.is_partly_drawn("local/mean")
    (picture,) = [one for one in document(found).each(Picture) if one.name == "curves"]
    local, pooled = picture.draw().axes
    assert local.lines[0].get_xdata().tolist() == [0, 3] and pooled.lines[0].get_xdata().tolist() == [0, 1, 2, 3]
    assert local.lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.4])
    assert picture.caption.endswith("Rounds in which only some of the repetitions were scored are left out.")


def test_a_line_of_which_a_seed_diverged_has_no_curves(store: Any) -> None:
    line = go(store, target=0.6).lines[0]
    assert line.rounds_to(0.6) and len(line.curve("local/mean").columns)
    lost = replace(line, diverged=("seed 2 diverged at round 7, lr 0.4",))
    assert lost.rounds_to(0.6) == {} and not len(lost.curve("local/mean").columns)


def test_lines_of_which_a_seed_diverged_are_no_complaint(made: Any, shelf: Any) -> None:
    """They have no value to compare. Of two seeds that all others have "only seed 1 is shared" was said."""
    runs = [made(method, s, 0.5) for method in ("fliu", "fedavg") for s in range(2)]
    runs += [made("ditto", 1, 0.9, **{"training.lr": 0.4})]
    lost = {"pfl_ops.diverged": "diverged at round 7, client 12, lr 0.4"}
    runs += [made("ditto", 0, None, status="FAILED", tags=lost, **{"training.lr": 0.4})]
    curves = {
        run.run_id: {"test/L1/acc": [0.1, 0.2] if run.name.startswith("ditto") else [0.1, 0.2, 0.3]} for run in runs
    }
    found = go(shelf(runs, curves), with_clients=False)
    assert found.complaints == () and len(found.lines) == 3
    assert best_notes(found, found.groups[0]) == ()
    assert len(found.remarks) == 1 and found.remarks[0].startswith("no mean of ditto, 1 of 2 seeds diverged")


def test_pictures_have_no_line_of_which_a_seed_diverged(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other two seeds had a row among the clients, with a mean that is too high, and "never" beside the target.

    The caption counted them among the repetitions of the curves, which it does not have.
    """
    table = pd.DataFrame({"client": [0, 1], "stage": ["L1", "L1"], "local": [0.5, 0.9]})
    monkeypatch.setattr("pfl_ops.tracking.runs.finished.TrackedRun.clients", table)
    whole = go(store, target=0.6)
    lines = tuple(
        replace(line, diverged=("seed 2 diverged at round 7",)) if line.label == "ditto" else line
        for line in whole.groups[0].lines
    )
    found = replace(whole, groups=(replace(whole.groups[0], lines=lines),))
    drawn = {picture.name: picture for picture in document(found).each(Picture)}
    assert [panel.title for panel in drawn["clients"].panels] == ["fliu", "fedavg"]
    assert [panel.title for panel in drawn["rounds"].panels] == ["fliu (2 of 3)", "fedavg (2 of 3)"]
    assert "means of 3 repetitions" in drawn["curves"].caption


def test_picture_of_rounds_without_the_metric_has_no_row(store: Any) -> None:
    """A run without scores of a stage had "never" there; the table has a dash."""
    curves = {run.run_id: dict(store.curves[run.run_id]) for run in store.kept}
    for run in store.kept:
        curves[run.run_id]["test/L2/local/mean"] = [math.nan, 0.5, 0.6] if run.name.startswith("fliu") else []
        run.metrics["final/test/L2/local/mean"] = 0.6
    store.curves = curves
    drawn = {p.name: p for p in document(go(store, metric="L2/local/mean", target=0.6)).each(Picture)}
    assert [panel.title for panel in drawn["rounds"].panels] == ["fliu"]


def test_a_trial_beside_a_run(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, **{"evaluation.split": "validation"}), made("fedavg", 0, trial=7)]
    runs[0].metrics["val/L1/local/mean"] = 0.5
    found = go(shelf(runs), trials=True, metric="local/mean")
    assert not found.groups[0].fair and found.groups[0].title == "digits, lsqs, validation data"
    assert {line.label for line in found.lines} == {"fliu", "fedavg trial-007"}
    assert found.complaints == (
        "trials, scored on validation data and trained on less, stand beside runs: runs ('fliu'); "
        "trials ('fedavg trial-007')",
    )


STOPPED = "fliu trial-000, seed 0 (stopped early, round 2 of 20)"


def test_trials_go_by_their_number_and_their_settings_stand_beside(made: Any, shelf: Any) -> None:
    runs = [made("fliu", 0, trial=0, **{"training.lr": 0.1}, tags={"pfl_ops.trial_state": "pruned"})]
    runs += [made("fliu", 0, trial=1, **{"training.lr": 0.2})]
    runs += [made("fliu", 0, **{"training.lr": 0.2})]
    found = go(shelf(runs, {runs[0].run_id: {"cost/train_seconds": [math.nan, 1.0, 1.0]}}), trials=True)
    assert {group.title: {line.label: line.settings for line in group.lines} for group in found.groups} == {
        "digits, lsqs": {"fliu": ""},
        "digits, lsqs, validation data": {"fliu trial-001": "lr 0.2", STOPPED: "lr 0.1"},
    }


def test_a_trial_that_was_stopped_early_is_ranked_behind_complete_ones(made: Any, shelf: Any) -> None:
    """Its value, 0.9 of an earlier round, was "highest" before 0.8 of a last one."""
    runs = [made("fliu", 0, trial=0, **{"training.lr": 0.1}, tags={"pfl_ops.trial_state": "pruned"})]
    runs += [made("fliu", 0, trial=number, **{"training.lr": number / 10}) for number in (2, 3)]
    for run, value in zip(runs, (0.9, 0.7, 0.8), strict=True):
        run.metrics["val/L1/local/mean"] = value
    kept = shelf(runs, {runs[0].run_id: {"cost/train_seconds": [math.nan, 1.0, 1.0]}})
    (group,) = (found := go(kept, trials=True, metric="local/mean", with_curves=False)).groups
    assert [(line.label, ahead(found, group, line)) for line in group.lines] == [
        ("fliu trial-003", "highest"), ("fliu trial-002", "−10.00"), (STOPPED, "not finished"),
    ]  # fmt: skip


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_as_people_read_them() -> None:
    assert (spread({}), spread({0: 0.5}), spread({0: 0.5, 1: 0.7})) == ("–", "0.500", "0.600 ± 0.141")
    assert (chance(None), chance(0.0004), chance(0.0312)) == ("–", "<0.001", "0.031")
    assert (chance(0.0496), chance(0.04996), chance(0.05)) == ("0.0496", "0.04996", "0.05")  # the first two were 0.05
    assert [mean_mebibytes({0: n * 2**20} if n else {}) for n in (0, 0.001, 0.5, 3.256, 2500)] == [
        "–", "<0.01", "0.5", "3.26", "2,500",
    ]  # fmt: skip
    assert signed(-0.041, "acc") == "−4.10" and signed(0.5, "train/loss") == "+0.5000"
    assert in_unit({0: 0.5}, "L2/local/q10") == {0: 50.0} and in_unit({0: 0.5}, "method/gamma/mean") == {0: 0.5}
    assert (rounds_text({}), rounds_text({0: None}), rounds_text({0: 7})) == ("–", "never", "7")
    assert rounds_text({0: 7, 1: None, 2: 9}) == "8 (2 of 3)"
    assert rounds_text({0: 1510, 1: None, 2: 1600}) == "1555 (2 of 3)"  # was 1.56e+03
    assert (title_of("acc"), title_of("L2/local/worst"), title_of("train/loss"), title_of("cost/up_bytes")) == (
        "Acc(L)+Acc(G) %", "L2 worst client %", "train/loss", "cost/up_bytes MiB",
    )  # fmt: skip
    assert (difference_title("local/mean"), difference_title("train/loss")) == (
        "difference to the first %", "difference to the first",
    )  # fmt: skip
    assert target_title("acc", 1.5) == "rounds to Acc(L)+Acc(G) ≥ 150 %"


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [190, 120, 80, 70])
def test_the_table_fits_the_terminal(store: Any, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    show(go(store, target=0.6), console)
    text = console.export_text()
    assert "fliu" in text and "highest" in text and "105.0 ± 15.0" in text  # never given up: the one that decides
    notes = ("no room for", "p:", "p of ", "no p of ")  # one line each, which a terminal breaks
    wide = [line for line in text.splitlines() if len(line.rstrip()) > width and not line.startswith(notes)]
    assert wide == []
    assert ("no room for" in text) == (width < 190)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_number_is_cut_on_a_narrow_terminal(store: Any, width: int) -> None:
    """With a target, "1.5 (2 of 3)" was "1.5 (2 o" at 60 columns; at 80, names had 24 columns, and n and p none."""
    console = Console(width=width, record=True, file=io.StringIO())
    show(go(store, target=0.6), console)
    text = console.export_text()
    assert console.width == width
    (left_out,) = (line for line in text.splitlines() if line.startswith("no room for"))
    assert left_out.endswith({80: "Acc(G) %, Acc(L) %", 60: ", rounds to Acc(L) ≥ 60 %", 40: ", p, n"}[width])
    assert text.count("1.5 (2 of 3)") == (2 if width == 80 else 0)
    assert "105.0 ± 15.0" in text and "−45.00" in text
    assert all("(2 of" not in line or line.endswith(")") for line in map(str.rstrip, text.splitlines()))


def test_a_narrow_terminal_keeps_n_and_p(made: Any, shelf: Any) -> None:
    """Settings below a method's name took half of 80 columns: n, p, Acc(L) and Acc(G) had no room.

    They are broken behind a comma. Notes on best rounds say of which group they are, as those on fairness do.
    """
    alike = {"training.lr": 0.002, "training.local_epochs": 1}
    runs = [made("fliu", s, a, **alike) for s, a in enumerate((0.6, 0.7, 0.8))]
    runs += [made("fedavg", s, a, **alike | {"training.lr": 0.05}) for s, a in enumerate((0.5, 0.5, 0.7))]
    runs += [made("pfedme", s, 0.4, **{"training.local_steps": 20, "training.lr": 0.05}) for s in range(3)]
    runs += [made("fliu", s, 0.5, **alike, **{"partition.kind": "path"}) for s in range(2)]
    curves = {run.run_id: {"test/L1/acc": [0.1, math.nan, 0.3]} for run in runs}
    curves[runs[0].run_id] = {"test/L1/acc": [0.1, 0.2, 0.3]}
    for run in runs:
        run.metrics.update({"best/round": 2, "best/test/L1/acc": 0.3})
    found = go(shelf(runs, curves), with_clients=False)
    narrow = Console(width=80, record=True, file=io.StringIO())
    show(found, narrow)
    text = narrow.export_text()
    heads = next(line.split() for line in text.splitlines() if line.startswith("setting"))
    assert heads[:3] == ["setting", "n", "stage"] and heads[-1] == "p"
    assert "optimiser sgd, lr 0.002" in text or "lr 0.002" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(("no room", "p:")))
    wide = Console(width=250, record=True, file=io.StringIO())
    show(found, wide)
    (told,) = (line for line in wide.export_text().splitlines() if "best rounds were chosen among other rounds" in line)
    assert told.startswith("digits, lsqs: best rounds")


@pytest.mark.parametrize(
    ("width", "metric", "told"), [(250, "acc", True), (250, "local/mean", False), (80, "acc", False)]
)
def test_a_best_round_on_a_subset_is_said_to_be_one(made: Any, shelf: Any, width: int, metric: str, told: bool) -> None:
    """The last round has 1.05 on all pooled samples, and the best one 1.04 on the subset of the curves.

    Local scores have no subset; on a narrow terminal the column of the best round is left out.
    """
    runs = [made("fliu", seed, 0.7) for seed in range(2)]
    for run in runs:
        run.metrics.update({"best/round": 10, "best/test/L1/acc": 1.04, "best/test/L1/global/se": 0.01})
    console = Console(width=width, record=True, file=io.StringIO())
    show(go(shelf(runs), metric=metric), console)
    assert ("best may be below last" in " ".join(console.export_text().split())) == told


def test_the_report_of_a_comparison(store: Any) -> None:
    found = go(store, target=0.6, with_clients=False)
    report = document(found)
    assert [table.name for table in report.each(Table)] == ["results", "stages", "costs", "runs"]
    assert [picture.name for picture in report.each(Picture)] == ["curves", "local-global", "rounds", "cost"]
    (warning,) = (text for text in texts(report) if text.kind == "warning")
    assert warning.text == "Not a fair comparison: only seeds 0, 1 are shared."
    assert warning.more == ("only seeds 0, 1 are shared: 0 to 2 ('fliu', 'fedavg'); 0, 1 ('ditto')",)
    first = results(found, found.groups[0]).rows[0].entries
    assert (first[0].text, first[1].text, first[3].text, first[3].mark) == ("fliu", "3", "70.0 ± 10.0", "best")
    assert [row.entries[3].text for row in costs(found, found.groups[0]).rows] == [
        "1.5 (2 of 3)", "1.5 (2 of 3)", "2 (1 of 2)",
    ]  # fmt: skip
    for picture in report.each(Picture):
        assert picture.draw().axes


def test_small_multiples_draw_the_reference_below_a_line(made: Any, shelf: Any) -> None:
    """The grey line of the best setting, drawn last, hid the line that a panel is about."""
    runs = [made("fliu", 0, 0.9 - i / 100, **{"training.lr": i + 1}) for i in range(14)]
    curves = {run.run_id: {"test/L1/local/mean": [0.1, 0.2, 0.3]} for run in runs}
    report = document(go(shelf(runs, curves), with_clients=False))
    (picture,) = (one for one in report.each(Picture) if one.name == "curves")
    shown = [[line.get_label() for line in panel.draw().axes[0].lines] for panel in picture.panels if panel.draw]
    assert shown[0] == ["Acc(L), own data"] and len(shown) == 14
    assert shown[1] == ["Acc(L), own data: fliu, lr 1", "Acc(L), own data"]


def test_clients_are_drawn_where_they_are_kept(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"client": [0, 1, 0], "stage": ["L1", "L1", "G"], "local": [0.5, math.nan, 0.1]})
    monkeypatch.setattr("pfl_ops.tracking.runs.finished.TrackedRun.clients", table)
    assert "clients" in {picture.name for picture in document(go(store)).each(Picture)}
    assert "clients" not in {picture.name for picture in document(go(store, with_clients=False)).each(Picture)}


def whole_table(file: Path) -> None:
    pd.DataFrame({"client": [0, 1], "stage": ["L1"] * 2, "local": [0.5, 0.25]}).to_parquet(file)


def cut_table(file: Path) -> None:
    whole_table(file)
    file.write_bytes(file.read_bytes()[:-30])


def other_table(file: Path) -> None:
    pd.DataFrame({"client": [0], "local": [0.5]}).to_parquet(file)


def text_table(file: Path) -> None:
    pd.DataFrame({"client": [0], "stage": ["L1"], "local": ["0.5"]}).to_parquet(file)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_table, "ArrowInvalid: "),
        (other_table, "ValueError: it has no column stage"),
        (text_table, "ValueError: its column local holds "),
        (lambda file: file.write_bytes(b""), "ArrowInvalid: "),
        (lambda file: file.mkdir(), ""),
    ],
)
def test_a_damaged_table_of_clients_is_one_line_and_left_out(
    store: Any, monkeypatch: pytest.MonkeyPatch, damage: Any, reason: str
) -> None:
    damaged = store.kept[1]

    def download(run: RunInfo, path: str, to: str) -> Path:
        file = Path(to, path)
        (damage if run.run_id == damaged.run_id else whole_table)(file)
        return file

    monkeypatch.setattr(store, "download", download)
    found = go(store)
    (line,) = found.remarks
    assert line.startswith(f"clients are not drawn: run '{damaged.name}': clients.parquet can't be read ({reason}")
    assert "\n" not in line and len(line) < 400
    assert set(found.clients) == {run.run_id for run in store.kept} - {damaged.run_id}
    assert "clients" in {picture.name for picture in document(found).each(Picture)}


def test_tables_that_are_missing_are_told_in_one_line(store: Any) -> None:
    (line,) = go(store).remarks
    assert line.startswith("clients are not drawn: run 'fliu-seed0': clients.parquet can't be read (run ")
    assert line.endswith("; nor those of fliu-seed1, fliu-seed2, fedavg-seed0, fedavg-seed1, fedavg-seed2 and 2 more")
    assert go(store, with_clients=False).remarks == ()


def test_a_full_temporary_folder_leaves_the_comparison(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    found = go(store)
    assert len(found.lines) == 3 and "No such file or directory" in found.remarks[0]


@pytest.mark.parametrize("write", ["to_html", "to_csv", "to_latex"])
def test_a_full_disk_leaves_the_old_page(store: Any, tmp_path: Path, write: str) -> None:
    found, file = go(store, with_clients=False), tmp_path / "page"
    file.write_text("old")
    with full_disk(after=100), pytest.raises(PflOpsError) as error:
        getattr(found, write)(file)
    assert str(error.value) == f"can't write {file}: File too large"
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_name_in_the_csv_is_no_formula(made: Any, shelf: Any, tmp_path: Path) -> None:
    runs = [made("fliu", 0, name="=HYPERLINK(0)"), made("fedavg", 0, 0.4, name="-1")]
    file = go(shelf(runs)).to_csv(tmp_path / "a.csv")
    assert [row["name"] for row in csv.DictReader(file.open())] == ["'=HYPERLINK(0)", "-1"]


def test_tables_in_full_precision(store: Any) -> None:
    found = go(store, target=0.6)
    table = found.table.set_index("setting")
    both = "Acc(L)+Acc(G) %"
    assert table.loc["fliu", both] == pytest.approx(105) and table.loc["fliu", f"{both} std"] == pytest.approx(15)
    assert table.loc["fedavg", "difference to the first %"] == pytest.approx(-3)
    assert table.loc["ditto", "common seeds"] == 2 and table.loc["fliu", "reached"] == 2
    assert table.loc["fliu", "sent MiB"] == 2000 / 2**20 and table.loc["fliu", "received MiB"] == 1048 / 2**20
    runs = found.runs
    assert len(runs) == 8 and runs["run_id"].is_unique
    one = runs[(runs["method"] == "fedavg") & (runs["seed"] == 1)].iloc[0]
    assert one["final/test/L1/local/mean"] == 0.68 and one["param training.rounds"] == "20"
    assert one["rounds to Acc(L) ≥ 60 %"] == 2 and one["sent MiB"] == 2000 / 2**20 and one["Acc(L) %"] == 68
    assert table.loc["fliu", "rounds to Acc(L) ≥ 60 %"] == 1.5


def test_table_csv_page_and_terminal_have_the_same_column_names(store: Any) -> None:
    """Each name on the terminal is in the table; a run has all but those of several runs; the page has all."""
    found = go(store, target=0.6)
    (group,) = found.groups
    console = Console(width=300, record=True, file=io.StringIO())
    show(found, console)
    heads = _columns(found, group)
    printed = " ".join(console.export_text().split())
    assert all(word in printed for head in heads for word in head.split())
    assert set(heads) <= set(found.table)
    assert set(heads) - {"n", "difference to the first %", "p"} <= set(found.runs)
    assert set(heads) == {*results(found, group).columns, *costs(found, group).columns}
    assert not any("bytes" in name or "acc" in name for name in found.table)


# -- the command, on a real store -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    round: int
    metrics: dict[str, float]
    time: int = 1_700_000_000_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Iterator[Path]:
    """Two methods, two seeds, three rounds each, and a run that was killed."""
    folder = furnish(tmp_path_factory.mktemp("home"))
    with Store.open(folder) as store:
        for method, accs in {"fliu": (0.8, 0.9), "fedavg": (0.5, 0.7)}.items():
            for seed, acc in enumerate(accs):
                e = Experiment.of(method, seed=seed, rounds=2)
                tags = {"pfl_ops.experiment_hash": f"{method}{seed}", "pfl_ops.group_hash": method, "team": "a"}
                run = store.run(
                    "digits-lsqs", f"{method}-seed{seed}", identity=f"{method}{seed}", params=e.flat, tags=tags
                )
                curve = [{f"test/L1/{v}/mean": acc * t / 2 for v in ("local", "global")} for t in range(3)]
                run.log(Record(t, {**at, "cost/up_bytes": 10.0, "cost/down_bytes": 10.0}) for t, at in enumerate(curve))
                run.log([Record(2, {f"final/test/L1/{k}": acc for k in ("local/mean", "global/mean", "local/worst")})])
                run.log([Record(2, {"final/test/L1/acc": 2 * acc})])
                run.table({"client": [0, 1], "stage": ["L1"] * 2, "local": [acc, acc / 2]}, "clients.parquet")
                run.finish("KILLED" if (method, seed) == ("fedavg", 1) else "FINISHED")
    yield folder


def cli(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setenv("PFL_OPS_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return CliRunner().invoke(app, ["compare", *words])


def test_the_command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, table, tex = (tmp_path / name for name in ("c.html", "new/c.csv", "c.tex"))
    result = cli(home, monkeypatch, "--html", str(page), "--csv", str(table), "--latex", str(tex), "--target", "0.6")
    assert result.exit_code == 0, result.output
    assert "2 settings, 3 runs" in result.stdout and "170.0 ± 14.1" in result.stdout
    assert result.stderr.splitlines() == [
        "not a fair comparison: the methods are not trained alike, so differences between these have no p value: "
        "lr=0.001 optimiser=adam ('fliu'); lr=0.05 optimiser=sgd ('fedavg')",
        "not a fair comparison: only seed 0 is shared: 0, 1 ('fliu'); 0 ('fedavg')",
        "not finished, and left out: fedavg-seed1",
    ]
    assert "<svg" in page.read_text() and 'id="figure-clients"' in page.read_text()
    rows = list(csv.DictReader(table.open()))
    assert [(row["method"], row["seed"], row["final/test/L1/acc"]) for row in rows] == [
        ("fliu", "0", "1.6"), ("fliu", "1", "1.8"), ("fedavg", "0", "1.0"),
    ]  # fmt: skip
    assert "\\toprule" in tex.read_text() and "170.0" in tex.read_text()


def test_the_command_finds_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(*words: str) -> str:
        result = cli(home, monkeypatch, *words)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()[0]

    assert first("fliu*").startswith("1 setting, 2 runs, ")
    assert "2 runs" in first("--filter", "params.`algorithm.name` = 'fliu'", "--tag", "team=a")
    assert first("fedavg-seed0").startswith("1 setting, 1 run, ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flui-seed0"], "no run, study or experiment named 'flui-seed0'; did you mean 'fliu-seed0'?"),
        (["--tag", "team"], "--tag needs key=value, got 'team'"),
        (["--tag", "team=b"], "no run is left to compare: there are 4 runs, in digits-lsqs (4)"),
        (["--filter", "params.lr like"], "Invalid"),
        (["--metric", "ac"], "none of these runs has a metric 'ac'; did you mean 'acc'?"),
        (["--at", "end"], "'end' is not one of 'final', 'best'"),
        (["--test", "u"], "'u' is not one of 'anytime', 't'"),
    ],
)
def test_errors_are_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    result = cli(home, monkeypatch, *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


# -- notebooks --------------------------------------------------------------------------------------------------------


def test_a_comparison_is_one_line_of_text(recorded_runs: Any) -> None:
    assert repr(go(recorded_runs)) == "Comparison(4 settings, 8 runs in 2 groups, ordered by Acc(L)+Acc(G) %)"


def test_a_comparison_in_a_notebook_has_a_table_a_group_and_pictures(recorded_runs: Any) -> None:
    """Without curves the first picture is local against global accuracy."""
    html = go(recorded_runs)._repr_html_()
    assert html.count("<table>") == html.count("<svg") == html.count("<details open>") == 2
    assert '<tr><td style="text-align:left">fliu' in html and 'pfl-chosen"' not in html  # two seeds: "highest"
    assert "−15.00" in html and "not shown" not in html and "<script" not in html


def test_a_comparison_in_a_notebook_has_the_best_line_alone_in_bold(made: Any, shelf: Any) -> None:
    """The highest line was bold in all columns, whatever the test says, and beside a higher value of another line."""
    accs = {"fliu": [0.9 + i / 100 for i in range(6)], "fedavg": [0.5, 0.52, 0.49, 0.51, 0.5, 0.48]}
    runs = [made(method, seed, acc) for method, some in accs.items() for seed, acc in enumerate(some)]
    assert [go(shelf(runs[:n] + runs[6 : 6 + n]))._repr_html_().count('class="pfl-chosen"') for n in (2, 6)] == [0, 1]


def test_a_comparison_in_a_notebook_opens_its_first_groups(recorded_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = go(recorded_runs)
    monkeypatch.setattr(compared_cards, "MOST_OPEN", 1)
    html = found._repr_html_()
    assert (html.count("<details open>"), html.count("<details>"), html.count("<svg")) == (1, 1, 1)
    monkeypatch.setattr(compared_cards, "MOST_GROUPS", 1)
    assert "1 more group in `table`" in found._repr_html_()


def test_a_broken_comparison_is_shown_without_an_error(recorded_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = go(recorded_runs)
    monkeypatch.setattr(compared_cards, "pictures", lambda *_: 1 / 0)
    html = found._repr_html_()
    assert html.count("<table>") == 2 and html.count("not shown: ZeroDivisionError") == 2
    assert replace(found, groups=None, remarks=None)._repr_html_().count("not shown: TypeError") == 3
