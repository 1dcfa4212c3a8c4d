"""The papers' networks beside their layers written out, in the papers' order."""

import pytest
import torch
from torch.nn import functional as F

from pfl_ops.models import MODELS, build
from pfl_ops.models.base import example_of


def kmnist_cnn(p, x, padding=2, convolutions=2):
    """Convolution, max-pooling, ReLU; convolution, max-pooling, ReLU; flatten, FC, ReLU, FC."""
    for i in range(1, convolutions + 1):
        x = F.conv2d(x, p[f"body.conv{i}.weight"], p[f"body.conv{i}.bias"], padding=padding)
        x = F.relu(F.max_pool2d(x, 2, 2))
    x = F.relu(x.flatten(1) @ p["body.fc.weight"].T + p["body.fc.bias"])
    return x @ p["head.weight"].T + p["head.bias"]


def cnn(p, x):
    """The same layers as of `kmnist_cnn`, of McMahan's widths."""
    return kmnist_cnn(p, x)


def cnn_cifar(p, x):
    """McMahan's layers with one more convolution, ReLU and pooling."""
    return kmnist_cnn(p, x, convolutions=3)


def cnn_tiny(p, x):
    """McMahan's layers with 3x3 convolutions."""
    return kmnist_cnn(p, x, padding=1)


def mlp(p, x):
    """The 2NN of McMahan et al.: FC, ReLU, FC, ReLU, FC."""
    x = x.flatten(1)
    for i in (1, 2):
        x = F.relu(x @ p[f"body.fc{i}.weight"].T + p[f"body.fc{i}.bias"])
    return x @ p["head.weight"].T + p["head.bias"]


def cnn6(p, x):
    """As PFLlib's FedAvgCNN: convolution without padding, ReLU, max-pooling, twice; FC, ReLU, FC."""
    for i in (1, 2):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"body.conv{i}.weight"], p[f"body.conv{i}.bias"])), 2)
    x = F.relu(x.flatten(1) @ p["body.fc.weight"].T + p["body.fc.bias"])
    return x @ p["head.weight"].T + p["head.bias"]


def fakelenet5(p, x):
    """Convolution, ReLU, 2x2 max-pooling, twice; FC 384, ReLU, FC 192, ReLU, classifier."""
    for i in (1, 2):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"body.conv{i}.weight"], p[f"body.conv{i}.bias"])), 2)
    return mlp(p, x)


def lenet5(p, x):
    """The same layers as FakeLeNet-5's, of other widths."""
    return fakelenet5(p, x)


@pytest.mark.parametrize(
    ("plain", "shape", "convolutions"),
    [
        (mlp, (3, 4, 2), []),
        (cnn, (5, 8, 3), [(32, 3, 5, 5), (64, 32, 5, 5)]),
        (cnn_cifar, (8, 9, 3), [(32, 3, 5, 5), (64, 32, 5, 5), (64, 64, 5, 5)]),
        (cnn_tiny, (8, 5, 1), [(16, 1, 3, 3), (32, 16, 3, 3)]),
        (kmnist_cnn, (12, 9, 1), [(16, 1, 5, 5), (32, 16, 5, 5)]),
        (cnn6, (18, 16, 3), [(32, 3, 5, 5), (64, 32, 5, 5)]),
        (fakelenet5, (16, 21, 3), [(64, 3, 5, 5), (64, 64, 5, 5)]),
        (lenet5, (16, 21, 3), [(6, 3, 5, 5), (16, 6, 5, 5)]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_network_is_its_layers_written_out(plain, shape, convolutions):
    network = build(MODELS.get(plain.__name__)(), shape, 10, seed=1).double()
    p = dict(network.named_parameters())
    assert [tuple(v.shape) for v in p.values() if v.dim() == 4] == convolutions
    x = example_of(shape).double() * 3
    assert torch.allclose(network(x), plain(p, x), rtol=1e-12, atol=1e-14)


def test_fully_connected_layers_have_the_papers_widths():
    widths = {
        name: [v.shape[0] for k, v in build(MODELS.get(name)(), (32, 32, 3), 100, 0).named_parameters() if v.dim() == 2]
        for name in ("cnn6", "fakelenet5", "lenet5")
    }
    assert widths == {"cnn6": [512, 100], "fakelenet5": [384, 192, 100], "lenet5": [120, 84, 100]}
