import pytest
import torch
from torch import nn

from pfl_ops.data.clients import Pool
from pfl_ops.testing import Federation

torch.set_num_threads(1)  # networks of some forty numbers: threads only wait for one another


def curved_square(net, w, x, y):
    """½ a (w − b)², samples are (a, b)."""
    return 0.5 * x[:, 0] * (w - x[:, 1]).square()


@pytest.fixture
def curved():
    """Makes a federation from each client's samples (a, b): F_k(w) = mean of ½ a (w − b)², one number w."""

    def make(clients, start=0.0):
        network = nn.Module()
        network.body = nn.Sequential()
        network.head = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(network.head.weight, start)
        samples = torch.tensor([sample for own in clients for sample in own], dtype=torch.float64)
        index = list(torch.arange(len(samples)).split([len(own) for own in clients]))
        pool = Pool(samples, torch.zeros(len(samples), dtype=torch.int64), index)
        return Federation(network, pool, 1, curved_square)

    return make


def half_square_of_product(net, w, x, y):
    """½ (h a x − target)², samples are (x, target)."""
    return 0.5 * (net(w, x[:, :1])[:, 0] - x[:, 1]).square()


@pytest.fixture
def product():
    """Three clients with x = 1, targets 4, 1, 2 and n = (1, 3, 2); model h·a with body a = 2, head h = 1."""
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.float64))
    network.head = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(network.body[0].weight, 2)
    nn.init.constant_(network.head.weight, 1)
    owner = torch.tensor([0, 1, 1, 1, 2, 2])
    samples = torch.tensor([[1.0, 4], [1, 1], [1, 2]], dtype=torch.float64)[owner]
    index = [(owner == k).nonzero()[:, 0] for k in range(3)]
    return Federation(network, Pool(samples, torch.zeros(6, dtype=torch.int64), index), 1, half_square_of_product)
