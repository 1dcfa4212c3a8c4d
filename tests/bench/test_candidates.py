"""The plain loop and ours do the same work: same accuracies of the same models, same number of samples."""

import copy
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench_case import small

from pfl_ops.bench.candidate import Label
from pfl_ops.bench.load import PERIOD, other_load
from pfl_ops.bench.ours import EngineCandidate, chosen
from pfl_ops.bench.plain import PlainLoop
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.execution.choose import Resolved
from pfl_ops.federation.network.net import Net

LOOP, STACKED = Label("loop"), Label("vmap", chunk=3)


def test_names():
    both = Label("vmap", "bfloat16", 20, 2)
    assert (str(both), both.key) == ("stacked 20, 2 workers", "vmap-20-workers-2/bfloat16")
    assert (str(LOOP), LOOP.key) == ("loop", "loop/float32")


@pytest.mark.parametrize("label", [LOOP, STACKED], ids=str)
@pytest.mark.parametrize("model", ["linear", "cnn_tiny"])
def test_both_judge_the_same_models_alike(model, label):
    case = small(model)
    local, pooled = PlainLoop(case).evaluate()
    scores = EngineCandidate(case, label).evaluate()
    assert np.allclose(scores.local, local) and np.allclose(scores.pooled, pooled)
    assert len(set(pooled)) > 1  # models that differ


def test_evaluation_is_never_answered_from_memory(tiny, monkeypatch):
    ours = EngineCandidate(tiny, LOOP)
    asked = []
    scorer = type(ours._judge.scorer)
    answers = scorer._answers
    monkeypatch.setattr(scorer, "_answers", lambda self, m, s: asked.append(len(m.params)) or answers(self, m, s))
    first, second = ours.evaluate(), ours.evaluate()
    assert sum(asked) == 2 * 4 and np.array_equal(first.pooled, second.pooled)


def test_training_that_diverges_is_timed_to_the_end(tiny, monkeypatch):
    case = type(tiny).experiment
    monkeypatch.setattr(type(tiny), "experiment", lambda *given: case(*given).override({"training.lr": 1e6}))
    ours = EngineCandidate(tiny, LOOP)
    assert [ours.round().round for _ in range(4)] == [1, 2, 3, 4] and ours.simulation.diverged is not None


def test_ours_trains_every_client_for_so_many_steps(linear):
    """As `Round.train` does, with other batches at each call."""
    ours = EngineCandidate(linear, STACKED)
    first, second = ours.train(), ours.train()
    meter = ours.simulation.trainer.meter
    assert sum(meter.by_stream.values()) == 2 * linear.samples
    expected = ours.simulation.round_at(0, torch.arange(4)).train(ours.simulation.task.initial)
    assert torch.equal(first, expected) and not torch.equal(first, second)


def test_the_plain_loop_trains_every_client_for_so_many_steps(linear, monkeypatch):
    plain = PlainLoop(linear)
    seen = []
    forward = type(plain.network).forward
    monkeypatch.setattr(type(plain.network), "forward", lambda self, x: seen.append(len(x)) or forward(self, x))
    before = [p.clone() for p in plain.network.parameters()]
    trained = plain.train()
    assert seen == [10] * 5 * 4
    assert all(torch.equal(a, b) for a, b in zip(before, plain.network.parameters(), strict=True))  # the start stays
    assert len({model.head.bias[0].item() for model in trained}) == 4


@pytest.mark.parametrize(("optimiser", "tolerance"), [("sgd", 1e-4), ("adam", 1e-2)])
def test_the_plain_loop_is_the_engine_s_training(optimiser, tolerance):
    """Full batches leave no draw: one step from the same start gives the same parameters (Adam divides by gradients
    that are nearly zero)."""
    case = small("mlp", batch=359, steps=1, optimiser=optimiser)
    whole = [len(own) == 359 for own in case.data.train.index]
    layout = Net(case.network).layout
    theirs = torch.stack([layout.flatten(dict(m.named_parameters())) for m in PlainLoop(case).train()])
    ours = EngineCandidate(case, LOOP).train()
    assert any(whole)  # a client with a sample more leaves one out
    moved = (ours - layout.flatten(dict(case.network.named_parameters()))).abs().max()
    assert (ours - theirs)[whole].abs().max() < tolerance * moved


def test_a_plain_round_averages_and_judges(linear, monkeypatch):
    """Four models that each know one answer, c, the last one best: so the average knows the last one's."""
    plain = PlainLoop(linear)
    models = []
    for c in range(4):
        model = copy.deepcopy(plain.network)
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.eye(10)[c] * (1 + c))
        models.append(model)
    monkeypatch.setattr(plain, "train", lambda: models)
    own, average = plain.round()
    shares = [[float((y == c).float().mean()) for c in range(4)] for _, y in plain.held]
    assert own == pytest.approx([shares[k][k] for k in range(4)])
    assert average == pytest.approx([share[3] for share in shares])


def test_ours_goes_on_round_after_round(linear):
    ours = EngineCandidate(linear, STACKED)
    rounds = [ours.round() for _ in range(3)]
    assert [r.round for r in rounds] == [1, 2, 3]
    assert rounds[0].metrics["cost/samples_per_second"] > 0
    assert "test/L2/local/mean" in rounds[0].metrics and "test/L2/global/mean" not in rounds[0].metrics


def test_a_probe_does_the_share_of_work_that_it_says(linear):
    ours = EngineCandidate(linear, STACKED)
    assert ours.probe("train") == 3 * 2 / (4 * 5)
    assert sum(ours.simulation.trainer.meter.by_stream.values()) == 3 * 2 * 10
    assert ours.probe("evaluate") == 3 / 4 and ours.probe("round") == 1


def test_what_the_engine_refuses_is_refused(linear):
    with pytest.raises(PflOpsError, match="tf32"):
        EngineCandidate(linear, Label("loop", "tf32"))


def test_what_auto_takes_is_a_label(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    found = chosen(tiny, threads=1)
    assert found.way in ("loop", "vmap") and found.precision == "float32"
    assert found.way == "vmap" or found.chunk == 1


@pytest.mark.parametrize(
    ("resolved", "asked", "label"),
    [
        ({"way": "loop", "threads": 7}, None, Label("loop")),
        ({"way": "loop", "threads": 1}, None, Label("loop", threads=1)),
        ({"way": "loop", "threads": 1}, 1, Label("loop")),
        ({"way": "vmap", "chunk": 5, "threads": 1, "workers": 7}, None, Label("vmap", chunk=5, workers=7)),
    ],
)
def test_what_auto_takes_names_threads_that_are_not_the_default(tiny, resolved, asked, label, monkeypatch):
    """Seven cores: a process of one thread is another candidate than one of all."""
    found = Resolved(**{"device": "cpu", "chunk": 1, "precision": "float32", "torch": "", **resolved})
    monkeypatch.setattr(choose, "threads", lambda execution: execution.threads or 7)
    built = SimpleNamespace(resolved=found, close=lambda: None)
    monkeypatch.setattr(Experiment, "build", lambda self, **_: built)
    assert chosen(tiny, threads=asked) == label


def test_the_choice_is_timed_whatever_is_kept(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    timed, measure = [], choose.measure
    monkeypatch.setattr(choose, "measure", lambda *args, **given: timed.append(1) or measure(*args, **given))
    for _ in range(2):
        chosen(tiny, threads=1)
    assert len(timed) == 2


def test_other_load_takes_a_core_and_ends():
    import psutil

    before = psutil.Process().children()
    with other_load(0.5):
        [process] = [p for p in psutil.Process().children() if p not in before]
        while process.cpu_times().user < 0.05 + 3 * PERIOD:  # it works on, without an end
            time.sleep(0.01)
    assert not process.is_running()
    before = psutil.Process().children()
    with other_load(0.0):
        assert psutil.Process().children() == before
