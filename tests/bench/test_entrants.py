"""The choice of entrants, by trials whose outcome the tests set."""

from dataclasses import replace

import pytest
from bench_case import small

from pfl_ops.bench import entrants
from pfl_ops.bench.candidate import Label
from pfl_ops.bench.entrants import CaseCandidates
from pfl_ops.errors import PflOpsError

PLAIN, LOOP = Label("plain"), Label("loop")


def stacked(chunk, workers=1):
    return Label("vmap", chunk=chunk, workers=workers)


@pytest.fixture
def enter(monkeypatch):
    """Runs `CaseCandidates` on candidates that reach the given rates; those that are not named are refused."""
    made = []

    def run(rates, auto=None, model="linear", **given):
        class Entrant:
            figures = ("train", "evaluate", "round")
            count = 1

            def __init__(self, case, label, threads):
                if label not in rates:
                    raise PflOpsError("this can't be")
                self.label, self.open, self.tried = label, True, []
                self.figures = ("train",) if label.way.startswith("jax") else self.figures
                made.append(self)

            def trial(self, figure):
                self.tried.append(figure)
                rate = rates[self.label]
                return (rate if isinstance(rate, int) else rate[figure]) / found._amounts[figure]

            def close(self):
                self.open = False

        monkeypatch.setattr(entrants, "Entrant", Entrant)
        monkeypatch.setattr(entrants, "built", lambda: run.built)
        case = small(model, **{"precision": "float32", "chunk": (2, 3, 4), "workers": (1, 2), **given})
        found = CaseCandidates(case, None, auto)
        found.enter()
        return found

    run.made, run.built = made, False
    return run


def taking_part(found, figure):
    return [timed.candidate.label for timed in found.timed[figure]]


def test_larger_stacks_are_not_tried_once_one_is_far_behind(enter):
    found = enter({PLAIN: 10, LOOP: 30, stacked(2): 14, stacked(3): 100})
    assert found.labels == [PLAIN, LOOP, stacked(2)]
    assert taking_part(found, "train") == taking_part(found, "round") == [PLAIN, LOOP]
    assert found.rough == {stacked(2): {f: entrants.Series((14.0,), True) for f in ("train", "evaluate")}}
    assert [one.open for one in enter.made] == [True, True, False]  # what is given up holds no process


def test_larger_stacks_of_a_slower_precision_are_tried_while_they_gain(enter):
    """float64 beside float32 with 200: 20, 60, 150, 90. Its stacks ended with 60, as far behind as larger ones."""
    f64 = {chunk: Label("vmap", "float64", chunk) for chunk in (2, 3, 4)}
    rates = {PLAIN: 10, LOOP: 50, stacked(2): 200, stacked(3): 150, stacked(4): 120, Label("loop", "float64"): 20}
    rates |= {f64[2]: 60, f64[3]: 150, f64[4]: 90}
    found = enter(rates, precision=("float32", "float64"), workers=(1,))
    assert f64[3] in taking_part(found, "train") and f64[2] in found.rough and f64[4] in found.rough


def test_compiled_kernels_are_measured_where_built_and_covered(enter):
    enter.built = True
    compiled = replace(LOOP, kernels="compiled")
    only = {"chunk": (), "workers": (1,)}
    assert enter({PLAIN: 10, LOOP: 30, compiled: 70}, **only).labels == [PLAIN, LOOP, compiled]
    assert (str(compiled), compiled.key) == ("loop, compiled", "loop-compiled/float32")
    assert enter({PLAIN: 10, LOOP: 30, compiled: 70}, optimiser="adam", **only).labels == [PLAIN, LOOP, compiled]
    assert enter({PLAIN: 10, LOOP: 30, compiled: 70}, model="cnn_tiny", **only).labels == [PLAIN, LOOP]


def test_references_are_measured_however_slow(enter):
    found = enter({PLAIN: 10, LOOP: 2, stacked(2): 90, stacked(3): 100, stacked(4): 60})
    assert taking_part(found, "train") == [PLAIN, LOOP, stacked(2), stacked(3), stacked(4)]


def test_what_auto_takes_is_measured_however_slow(enter):
    rates = {PLAIN: 10, LOOP: 90, stacked(2): 100, stacked(3): 20, stacked(7): 30}
    found = enter(rates, auto=stacked(7))
    assert taking_part(found, "train") == [PLAIN, LOOP, stacked(2), stacked(7)]
    assert taking_part(enter(rates, auto=stacked(3)), "train") == [PLAIN, LOOP, stacked(2), stacked(3)]


def test_workers_share_the_best_stack(enter):
    found = enter({PLAIN: 10, LOOP: 50, stacked(2): 60, stacked(3): 80, stacked(4): 70, stacked(3, 2): 120})
    assert stacked(3, 2) in taking_part(found, "train")
    assert "no loop, 2 workers in float32: this can't be" in found.notes


def test_no_worker_processes_are_no_default(enter):
    """`--workers none` was taken as 1 and one a core; a value that is there twice was measured twice."""
    rates = {PLAIN: 10, LOOP: 50, stacked(2): 60, Label("loop", workers=2): 90}
    found = enter(rates, workers="none", chunk="2,2", precision="float32,float32")
    assert found.labels == [PLAIN, LOOP, stacked(2)]


def test_each_figure_has_its_own_verdict(enter):
    """Slow in training, fast in evaluation: it is measured where it is good, and rounds follow training."""
    found = enter({PLAIN: 10, LOOP: 50, stacked(2): {"train": 20, "evaluate": 90}}, chunk=(2,))
    assert taking_part(found, "evaluate") == [PLAIN, LOOP, stacked(2)]
    assert taking_part(found, "train") == taking_part(found, "round") == [PLAIN, LOOP]
    assert found.series(stacked(2))["train"].given_up


def test_only_what_is_asked_for_is_tried(enter):
    """JAX evaluates nothing, so it isn't even started."""
    found = enter({PLAIN: 10, LOOP: 50, Label("jax"): 60}, chunk=(), workers=(1,), measure=("evaluate",))
    assert [one.label for one in enter.made] == [PLAIN, LOOP] and not found.notes
    assert list(found.timed) == ["evaluate"] and all(one.tried == ["evaluate"] for one in enter.made)


def test_without_jax_there_is_one_line(enter, monkeypatch):
    monkeypatch.setattr(entrants, "find_spec", lambda name: None)
    found = enter({PLAIN: 10, LOOP: 50}, chunk=(), workers=(1,))
    assert found.notes == ["no JAX scan in float32: JAX is not installed (the extra `peers`)"]


def test_jax_takes_part_in_training(enter, monkeypatch):
    monkeypatch.setattr(entrants, "find_spec", lambda name: object())
    scan, vmapped = Label("jax"), Label("jax-vmap")
    found = enter({PLAIN: 10, LOOP: 50, scan: 60, vmapped: 70}, chunk=(), workers=(1,))
    assert taking_part(found, "train") == [PLAIN, LOOP, scan, vmapped]
    assert taking_part(found, "evaluate") == [PLAIN, LOOP]


def test_all_processes_end(enter):
    found = enter({PLAIN: 10, LOOP: 50}, chunk=(), workers=(1,))
    found.close()
    assert not any(one.open for one in enter.made)
