"""Ratios, shares of the peak, JSON, metrics, and the table that people read."""

import io
import json
import re
import statistics

import pytest
from rich.console import Console

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.measure import Series
from pfl_ops.bench.table import number, render

PLAIN, LOOP, STACKED, JAX = Label("plain"), Label("loop"), Label("vmap", chunk=20, workers=2), Label("jax")


def test_ratios_are_against_the_plain_loop(case):
    plain, loop, stacked, jax = case.rows
    assert case.ratio(plain, "train") == 1
    assert case.ratio(loop, "train") == 2.5  # 3 and 2
    assert case.ratio(loop, "evaluate") == pytest.approx(0.18)
    assert case.ratio(stacked, "round") == 25 and case.ratio(jax, "round") is None


def test_the_share_of_the_peak_is_against_its_best_repeat(case):
    plain, loop, stacked, _ = case.rows
    assert case.share(plain, "train") == pytest.approx(1500 * 1e6 / 1e10)
    assert case.share(loop, "evaluate") == pytest.approx(900 * 4e5 / 1e10)  # a forward pass
    assert case.share(stacked, "train") is None  # no peak was measured with two threads
    assert case.share(plain, "round") is None


def test_the_peak_with_two_threads_is_not_below_that_with_one(case):
    """Other load: 1e10 with one thread, 6e9 with two. The table had a share of the latter, too large by 67 %."""
    stacked = case.rows[2]
    case.peaks["float32", 2] = Series((5e9, 6e9))
    assert case.share(stacked, "train") == pytest.approx(statistics.median((123_456, 234_567)) * 1e6 / 1e10)


def test_ours_is_held_against_the_faster_jax(case):
    mine, peer, ratio = case.beside_jax()
    assert (mine.label, peer.label) == (STACKED, JAX)
    assert ratio == pytest.approx((123_456 / 1500 + 234_567 / 4000) / 2)
    case.rows.pop()
    assert case.beside_jax() is None


def test_what_auto_takes_is_held_against_the_fastest(case):
    """3,000 and 4,000 samples/s beside 123,456 and 234,567 in the same turns."""
    best, ratio, by_best_turns = case.beside_best()
    assert best.label == STACKED
    assert ratio == pytest.approx((3000 / 123_456 + 4000 / 234_567) / 2)
    assert by_best_turns == pytest.approx(4000 / 234_567)
    case.auto = STACKED
    assert case.beside_best()[1:] == (1.0, 1.0)
    case.auto = Label("vmap", chunk=7)
    assert case.beside_best() is None


def test_labels_name_threads():
    label = Label("vmap", chunk=5, threads=1)
    assert (str(label), label.key) == ("stacked 5, 1 thread", "vmap-5-threads-1/float32")


def test_everything_measured_is_in_the_json(report):
    found = json.loads(json.dumps(report.to_dict()))
    row = found["cases"][0]["rows"][1]
    assert row["train"] == {
        "unit": "samples/s", "n": 2, "median": 3500, "min": 3000, "max": 4000, "values": [3000, 4000],
        "given_up": False, "over_plain": 2.5, "share_of_peak": pytest.approx(0.35),
    }  # fmt: skip
    assert row["chosen_by_auto"] and row["peak_memory_mib"] == 600.4
    assert found["cases"][0]["auto_over_best"]["best"] == "stacked 20, 2 workers"
    assert found["cases"][0]["matmul_peak"][0]["values"] == [8e9, 1e10]
    assert {"cpu", "cpu_flags", "cores", "threads", "torch"} <= set(found["machine"])


def test_metrics_have_names_that_mlflow_takes(case):
    found = dict(case.metrics())
    assert found["mlp/b50/loop/float32/train/median"] == 3500
    assert found["mlp/b50/vmap-20-workers-2/float32/peak_memory_mib"] == 1_234.5
    assert "mlp/b50/jax/float32/round/median" not in found
    assert all(re.fullmatch(r"[\w./ -]+", name) for name in found)


def test_the_table_fits_a_hundred_columns(report):
    out = io.StringIO()
    Console(file=out, width=100).print(render(report))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    loop = next(line for line in lines if line.startswith("loop*"))
    assert loop.split()[1:8] == ["f32", "3,500", "3,000–4,000", "2.5", "35%", "~900", "0.2"]
    stacked = next(line for line in lines if line.startswith("stacked 20, 2 workers"))
    assert "179k" in stacked and "1,234" in stacked
    for part in ("mlp on mnist, B 50, sgd: 20 clients x 12 steps, 199,210 parameters", "10 f32 (1 thread)"):
        assert part in text
    assert "auto takes: loop, 0.02 times as fast as stacked 20, 2 workers (best turns: 0.02)" in text
    for part in ("skipped cnn, B 50: no data", "a line on who could not take part", "Medians of 5"):
        assert part in text


def test_a_choice_of_auto_that_was_not_measured_is_told(case, report):
    case.auto, case.rows[1].chosen = Label("vmap", chunk=7), False
    out = io.StringIO()
    Console(file=out, width=100).print(render(report))
    assert "auto takes: stacked 7" in out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"), [(0.4213, "0.421"), (99.96, "100"), (1914.3, "1,914"), (61_312, "61.3k"), (2.754e6, "2.75M")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text
