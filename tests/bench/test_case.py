"""The work that all candidates share: data, steps, operations a sample."""

import copy

import numpy as np
import pytest
import torch
from bench_case import small

from pfl_ops.bench.case import Work, as_written, count, normalised
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.training.feed import Feed
from pfl_ops.models import MODELS
from pfl_ops.models.base import build


def network(name, shape):
    return build(MODELS.get(name)(), shape, 10, seed=0)


def test_operations_are_counted_as_by_hand():
    """Forward: 2 x multiplications. Backward: as much for the weights, and for the inputs of all but the first layer.

    linear 784 x 10. mlp 784 x 200, 200 x 200, 200 x 10. cnn6 on 28 x 28: 24 x 24 x 32 x 25, 8 x 8 x 64 x 25 x 32,
    1024 x 512, 512 x 10.
    """
    assert count(network("linear", (28, 28, 1)), (28, 28, 1)) == Work(train=4 * 7840, forward=2 * 7840)
    first, rest = 156_800, 42_000
    assert count(network("mlp", (28, 28, 1)), (28, 28, 1)) == Work(4 * first + 6 * rest, 2 * (first + rest))
    first, rest = 460_800, 3_276_800 + 524_288 + 5_120
    assert count(network("cnn6", (28, 28, 1)), (28, 28, 1)) == Work(4 * first + 6 * rest, 2 * (first + rest))


def test_operations_of_an_lstm_are_counted_as_by_hand():
    """Lines of 6 characters, embedding 3, two layers of 4 units, 10 classes.

    Multiplications forward: four gates a character, 6 · 4 · 4 · (3 + 4) and 6 · 4 · 4 · (4 + 4), then 4 · 10. Backward:
    twice as many, less 4 · 4 · 4 a layer: the state before the first character has no gradient.
    """
    section = MODELS.get("char_lstm")(characters=10, embedding=3, hidden=4)
    forward = 2 * (6 * 16 * 7 + 6 * 16 * 8 + 40)
    onednn = torch.backends.mkldnn.enabled
    assert count(build(section, (6,), 10, seed=0), (6,)) == Work(3 * forward - 2 * 2 * 64, forward)
    assert torch.backends.mkldnn.enabled == onednn


def test_counting_leaves_no_gradient():
    one = network("mlp", (8, 8, 1))
    count(one, (8, 8, 1))
    assert all(p.grad is None for p in one.parameters())


def test_a_network_as_written_is_the_same_function_with_relu_first(tiny):
    before = copy.deepcopy(tiny.network.state_dict())
    written = as_written(tiny.network)
    kinds = [type(layer).__name__ for layer in written.body]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear", "ReLU"]
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(written(x), tiny.network(x))
    assert list(written.state_dict()) == list(before)  # parameters keep their names
    with torch.no_grad():
        written.head.bias.add_(1)
    assert torch.equal(tiny.network.head.bias, before["head.bias"])  # a copy


def test_samples_are_normalised_as_the_engine_does(tiny):
    x, y = normalised(tiny.data.train, tiny.data)
    feed = Feed(tiny.data.train, tiny.data.mean, tiny.data.std, torch.device("cpu"), torch.float32)
    theirs, labels = feed.batch(torch.arange(len(y)))
    assert x.is_contiguous() and torch.allclose(x, theirs, atol=1e-6) and torch.equal(y, labels)


def test_every_client_has_as_many_full_batches():
    """1,438 training digits for 4 clients: 359 or 360 each, 35 full batches of 10 and 7 of 50."""
    assert small("linear").steps == 35
    case = small("linear", batch=50)
    assert (case.steps, case.samples) == (7, 4 * 7 * 50)
    assert small("linear", steps=2).steps == 2
    sizes = case.data.train.sizes.numpy()
    assert np.ptp(sizes) <= 1 and sizes.sum() == 1438


def test_heavy_networks_take_fewer_steps(monkeypatch):
    monkeypatch.setattr("pfl_ops.bench.case.HEAVY", 4 * 10 * 12 * 2560)  # 12 steps of linear on 64 features
    assert small("linear").steps == 12
    monkeypatch.setattr("pfl_ops.bench.case.HEAVY", 1)
    assert small("linear").steps == 3


def test_answers_count_both_views(linear):
    assert linear.answers == 4 * 60 + 359  # and the 359 held-out digits, each by its own client's model
    assert linear.models.shape == (4, 650)
    assert len({tuple(row) for row in linear.models.tolist()}) == 4


def test_the_test_set_is_cut_only_while_it_is_large_enough():
    assert small("linear", evaluate_images=359).section.train_size == 12_000
    with pytest.raises(PflOpsError, match="digits has 359 test images, 360 are asked for"):
        small("linear", evaluate_images=360)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"clients": 200}, "each of 200 clients holds 7 samples of digits, less than a batch of 10"),
        ({"steps": 36}, "an epoch of linear on digits, B 10 has 35 full batches a client; steps can't be 36"),
    ],
)
def test_too_little_data_is_said_in_one_line(given, line):
    with pytest.raises(PflOpsError, match=line):
        small("linear", **given)
