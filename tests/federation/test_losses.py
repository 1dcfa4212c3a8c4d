"""Losses that a user brings: registered by name, part of a run's identity, refused in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pfl_ops
from pfl_ops import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.settings import Execution
from pfl_ops.registry import load_plugin

PLUGIN = '''
import torch
from torch.nn import functional as F

from pfl_ops import register


@register("quadratic")
def quadratic(net, w, x, y):
    """Half the squared distance of the first columns of w to the sample."""
    return 0.5 * (w[: x.shape[-1]] - x).square().sum(dim=-1)


@register("regression")
def regression(net, w, x, y):
    """Squared error of the first score to the label as a number."""
    return (net(w, x)[:, 0] - y).square()


@register("same_as_cross_entropy")
def same_as_cross_entropy(net, w, x, y):
    return F.cross_entropy(net(w, x), y, reduction="none")


@register("branches")
def branches(net, w, x, y):
    values = (net(w, x)[:, 0] - y).square()
    return values if values.detach().sum().item() > 1 else 2 * values


@register("one_number")
def one_number(net, w, x, y):
    return F.cross_entropy(net(w, x), y)


@register("fails")
def fails(net, w, x, y):
    return net(w, x) @ y


@register("constant")
def constant(net, w, x, y):
    return torch.zeros(len(y))


@register("imaginary")
def imaginary(net, w, x, y):
    return net(w, x)[:, 0] * 1j


@register("leaves")
def leaves(net, w, x, y):
    raise SystemExit(0)


@register("uncaught")
def uncaught(net, w, x, y):
    raise type("Uncaught", (BaseException,), {})
'''
ONE_AT_A_TIME = Execution(device="cpu", way="loop", workers=1, threads=1)
STACKED = Execution(device="cpu", way="vmap", chunk=3, workers=1, threads=1)
TWO_PROCESSES = Execution(device="cpu", way="loop", workers=2, threads=1)


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    """The plug-in's file; what it registers is forgotten afterwards."""
    file = tmp_path_factory.mktemp("plugin") / "mine.py"
    file.write_text(PLUGIN)
    before = set(LOSSES.names())
    load_plugin(file)
    yield file
    for name in set(LOSSES.names()) - before:
        del LOSSES._found[name]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """30 samples of four features with labels 0, 1, 2; and 12 for the test."""
    draws, file = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "mine.npz"
    arrays = {
        f"x_{part}": draws.normal(2, 3, size=(n, 4)).astype(np.float32) for part, n in (("train", 30), ("test", 12))
    }
    arrays |= {f"y_{part}": np.arange(n) % 3 for part, n in (("train", 30), ("test", 12))}
    np.savez(file, **arrays)
    return file


def experiment(data: Path, loss: str, method: str = "fedavg", **more: object) -> Experiment:
    """Four clients, a linear model, float64; steps of all of a client's data."""
    flags = {
        "training.loss": loss, "training.batch_size": None, "training.local_steps": 2, "training.rounds": 3,
        "training.lr": 0.1, "training.precision": "float64", "model.name": "linear", "partition.clients": 4,
        "partition.kind": "iid", **more,
    }  # fmt: skip
    return Experiment.of(method, dataset=str(data), **flags)


def trained(chosen: Experiment, execution: Execution = ONE_AT_A_TIME):
    """Θ⁰ and Θ after the last round, and train/loss of each round."""
    simulation = chosen.build(execution=execution)
    try:
        start = simulation.task.initial.clone()
        losses = [record.metrics["train/loss"] for record in simulation.run() if record.round]
        return start, simulation.state["central"], losses
    finally:
        simulation.close()


def test_a_quadratic_trains_to_its_closed_form(data):
    """F_k = mean ½ ‖u − x‖² in the first four columns u of w, and no other column has a gradient.

    A step of all samples is u ← u − η (u − m_k), m_k the client's mean; J = 2 steps and the mean over samples give
    Θ ← m + (1 − η)² (Θ − m), m the mean of all training data, which are normalised: m = 0. After T = 3 rounds
    Θ = 0.9⁶ Θ⁰. The first step's loss is F(Θ⁰) = ½ (‖Θ⁰‖² + 4), for the variance of each feature is 1; train/loss is
    the mean over both steps, so below it.
    """
    start, end, losses = trained(experiment(data, "quadratic"))
    torch.testing.assert_close(end[:4], 0.9**6 * start[:4], rtol=0, atol=1e-6)
    torch.testing.assert_close(end[4:], start[4:], rtol=0, atol=1e-14)  # the mean over clients rounds
    assert start[:4].abs().max() > 0.1 and losses[0] <= 0.5 * (float(start[:4].square().sum()) + 4) + 1e-5


def test_a_regression_takes_labels_as_numbers(data):
    """It ends where the first score is the least-squares fit of y: the mean gradient of (s(x) − y)² vanishes."""
    chosen = experiment(data, "regression", **{"training.rounds": 75, "training.local_steps": 1, "training.lr": 0.4})
    _, end, losses = trained(chosen)
    arrays = np.load(data)
    x = (arrays["x_train"] - arrays["x_train"].mean(axis=0)) / arrays["x_train"].std(axis=0)
    design = np.column_stack([x, np.ones(len(x))])
    fit, (rest,), *_ = np.linalg.lstsq(design, arrays["y_train"].astype(float), rcond=None)
    found = [*end[:4].tolist(), end[12].item()]  # 3 x 4 weights, then 3 biases
    assert found == pytest.approx(fit.tolist(), abs=1e-5)
    assert losses[-1] == pytest.approx(rest / len(x), abs=1e-5)


def test_the_same_loss_gives_the_same_run(data):
    """The cross-entropy written by hand trains as the package's own, which takes faster paths."""
    own, plain = (trained(experiment(data, name)) for name in ("same_as_cross_entropy", "cross_entropy"))
    torch.testing.assert_close(own[1], plain[1], rtol=0, atol=1e-12)
    assert own[2] == pytest.approx(plain[2])


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("way", [STACKED, TWO_PROCESSES], ids=["stacked", "workers"])
def test_a_loss_trains_the_same_in_each_execution(data, way):
    one, other = (trained(experiment(data, "regression"), execution)[1] for execution in (ONE_AT_A_TIME, way))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_loss_with_branches_trains_one_client_at_a_time(data):
    """`auto` chooses the loop; asking for vmap is refused."""
    chosen = experiment(data, "branches")
    simulation = chosen.build(execution=Execution(device="cpu", workers=1, threads=1))
    assert simulation.resolved.way == "loop"
    simulation.close()
    with pytest.raises(PflOpsError, match=r"this network or loss can't be stacked .*use --way loop"):
        chosen.build(execution=STACKED)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("one_number", r"loss 'one_number' must give one value a sample, \[B\]; got \[\] for B = \d+ \(mine\.py:31\)$"),
        ("fails", r"loss 'fails' fails: RuntimeError: .* \(mine\.py:38\)$"),
        ("constant", r"loss 'constant' must be differentiable in w: .* \(mine\.py:\d+\)$"),
        ("imaginary", r"loss 'imaginary' must give real numbers; got complex128 \(mine\.py:\d+\)$"),
        ("leaves", r"loss 'leaves' fails: SystemExit: 0 \(mine\.py:\d+\)$"),
        ("uncaught", r"loss 'uncaught' fails: Uncaught \(mine\.py:\d+\)$"),
    ],
)
def test_a_loss_that_cannot_train_is_refused_in_one_line(data, loss, message):
    with pytest.raises(PflOpsError, match=message) as refused:
        experiment(data, loss).build(execution=ONE_AT_A_TIME)
    assert "\n" not in str(refused.value)


def test_an_unknown_loss_is_refused_with_the_nearest_name(data):
    with pytest.raises(
        PflOpsError, match=r"^no loss named 'quadratik'\. Did you mean 'quadratic'\? \(pfl-ops list losses\)$"
    ):
        experiment(data, "quadratik")


@pytest.mark.parametrize("method", ["fedrod", "fedproto", "fedpac", "splitgp", "cd2_pfed", "fedas"])
def test_methods_made_of_cross_entropy_refuse_another_loss(data, method):
    channels = {"algorithm.split": "channels"} if method == "fedas" else {}
    chosen = experiment(data, "regression", method, **{"model.name": "mlp"}, **channels)
    with pytest.raises(PflOpsError, match=f"^{method} needs training.loss=cross_entropy"):
        chosen.build(execution=ONE_AT_A_TIME)


def test_what_is_no_loss_is_refused_when_it_is_registered():
    with pytest.raises(PflOpsError, match=r"register\('three'\): .* is no Algorithm, .* no loss\(net, w, x, y\)"):
        pfl_ops.register("three")(lambda w, x, y: x)
    with pytest.raises(PflOpsError, match=r"loss 'huber' is called as loss\(net, w, x, y\); give 'delta' a default"):

        @pfl_ops.register("huber")
        def huber(net, w, x, y, *, delta): ...

    with pytest.raises(PflOpsError, match="loss 'cross_entropy' is already defined"):
        pfl_ops.register("cross_entropy")(lambda net, w, x, y: x)
    assert not {"three", "huber"} & set(LOSSES.names())


def test_a_loss_enters_the_identity_with_its_code(data, plugin):
    """The cross-entropy is the engine's: its results version speaks for it."""
    plain, own = experiment(data, "cross_entropy"), experiment(data, "quadratic")
    assert "loss" not in plain.identity()["code"] and len(own.identity()["code"]["loss"]) == 64
    assert own.identity()["training"]["loss"] == "quadratic"
    before = own.hash
    plugin.write_text(PLUGIN + "EDITED = True\n")
    load_plugin(plugin)
    assert own.hash != before
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    assert own.hash == before != plain.hash
