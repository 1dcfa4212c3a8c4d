"""Lengths of single samples' gradients, against gradients that were written down."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.federation.network import fisher
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.net import Net

IMAGE = (2, 9, 8)
BODIES = {
    "linear layers": lambda: [nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.ReLU()],
    # its first convolution has more places than inputs and outputs, its second fewer
    "convolutions": lambda: [
        nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 20, (2, 3), stride=(2, 1), bias=False),
        nn.ReLU(), nn.Flatten(), nn.Linear(80, 4),
    ],
    "dilated": lambda: [nn.Conv2d(2, 2, 3, dilation=2, padding=(0, 1)), nn.Flatten(), nn.Linear(60, 4)],
    "a linear layer at each place": lambda: [nn.Linear(8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(54, 4)],
    "groups": lambda: [nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(168, 4)],
    "normalised": lambda: [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(168, 4)],
    "in place": lambda: [nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(168, 4)],
    "no body": lambda: [nn.Flatten(), nn.Identity()],
}  # fmt: skip
BY_LAYER = {"linear layers", "convolutions", "dilated", "a linear layer at each place", "in place", "no body"}


def network(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Module()
        made.body = nn.Sequential(*BODIES[kind]())
        made.head = nn.Linear(144 if kind == "no body" else 4, 3)
        x = torch.randn(6, *IMAGE, dtype=torch.float64)
    net = Net(made.double())
    return net, net.layout.flatten(dict(made.named_parameters())), x, torch.tensor([0, 1, 2, 2, 1, 0])


def written_down(net, w, x, y, loss=cross_entropy):
    """One sample after the other: its gradient, squared and added up."""
    lengths = []
    for i in range(len(x)):
        leaf = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(net, leaf, x[i : i + 1], y[i : i + 1])[0], leaf)
        lengths.append(float((g * g).sum()))
    return lengths


@pytest.mark.parametrize("kind", BODIES)
def test_lengths_are_those_of_the_gradients(kind, monkeypatch):
    net, w, x, y = network(kind)
    used = []
    by_layer = fisher._by_layer
    monkeypatch.setattr(fisher, "_by_layer", lambda *args: used.append(kind) or by_layer(*args))
    with torch.no_grad():
        found = fisher.square_lengths(net, w, x, y)
    assert found.tolist() == pytest.approx(written_down(net, w, x, y), rel=1e-10)
    assert bool(used) == (kind in BY_LAYER) and not found.requires_grad


def doubled(net, w, x, y):
    return 2 * F.cross_entropy(net(w, x), y, reduction="none")


def test_any_other_loss_goes_sample_by_sample():
    net, w, x, y = network("linear layers")
    found = fisher.square_lengths(net, w, x, y, loss=doubled)
    assert found.tolist() == pytest.approx([4 * v for v in written_down(net, w, x, y)])


def test_columns_beyond_the_network_add_nothing():
    net, w, x, y = network("convolutions")
    longer = torch.cat([w, torch.ones(3, dtype=w.dtype)])
    assert torch.equal(fisher.square_lengths(net, longer, x, y), fisher.square_lengths(net, w, x, y))
