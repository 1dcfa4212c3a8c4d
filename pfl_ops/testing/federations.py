"""Small federations, whose numbers can be checked by hand or are as uneven as real ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pfl_ops import rng
from pfl_ops.algorithms.base import Loss, Net
from pfl_ops.data.clients import Pool
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.models.base import Network


@dataclass(frozen=True)
class Federation:
    """Clients, a network and a loss, small enough to be looked at.

    Attributes:
        network: body and head; its parameters are Θ⁰.
        pool: samples by client; they reach the network as they are.
        n_classes: L. loss: of one sample; cross-entropy unless said otherwise.
    """

    network: nn.Module
    pool: Pool
    n_classes: int
    loss: Loss = cross_entropy

    @property
    def n_clients(self) -> int:
        """N."""
        return self.pool.n_clients


def ragged_task(
    sizes: Sequence[int] = (5, 2, 8, 3, 7), *, features: int = 4, hidden: int = 3, classes: int = 3, seed: int = 0
) -> Federation:
    """Clients of unequal size, each with data of its own kind, and a network of body and head (tanh: no kinks).

    Args:
        sizes: n_k. features: d. hidden: D. classes: L. seed: of data and Θ⁰.

    >>> federation = ragged_task(sizes=(3, 1))
    >>> federation.n_clients, federation.pool.sizes.tolist(), tuple(federation.pool.x.shape)
    (2, [3, 1], (4, 4))
    >>> sum(p.numel() for p in federation.network.parameters())  # 4 · 3 + 3, 3 · 3 + 3
    27
    """
    draws = rng.generator(seed, "ragged")
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = draws.permutation(len(owner))  # so that a client's samples don't lie side by side
    x = draws.normal(size=(len(owner), features)) + 0.5 * draws.normal(size=(len(sizes), features))[owner]
    y = draws.integers(0, classes, len(owner))
    index = [torch.from_numpy(np.flatnonzero(owner[order] == k)) for k in range(len(sizes))]
    pool = Pool(torch.from_numpy(x[order]), torch.from_numpy(y[order]), index)
    return Federation(_network(draws, features, hidden, classes), pool, classes)


def _network(draws: np.random.Generator, features: int, hidden: int, classes: int) -> nn.Module:
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
    network.head = nn.Linear(hidden, classes)
    network.double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(0.5 * draws.normal(size=tuple(parameter.shape))))
    return network


def quadratic_task(
    centres: Sequence[float] | Sequence[Sequence[float]], sizes: Sequence[int] | None = None, start: float = 0.0
) -> Federation:
    """Clients with F_k(w) = ½ ‖w − b_k‖², whose iterates have a closed form: each of the n_k samples is b_k.

    Args:
        centres: b_k, numbers (P = 1) or vectors. sizes: n_k; none: 1 each. start: Θ⁰, in every column.

    >>> federation = quadratic_task([[0.0, 1.0], [6.0, 7.0]], sizes=[1, 2])
    >>> federation.pool.x.tolist(), federation.pool.owner().tolist()
    ([[0.0, 1.0], [6.0, 7.0], [6.0, 7.0]], [0, 1, 1])
    """
    b = torch.tensor(centres, dtype=torch.float64).reshape(len(centres), -1)
    owner = torch.repeat_interleave(torch.arange(len(b)), torch.tensor(sizes or [1] * len(b)))
    network = nn.Module()
    network.body = nn.Sequential()
    network.head = nn.Linear(b.shape[1], 1, bias=False, dtype=torch.float64)
    nn.init.constant_(network.head.weight, start)
    index = [(owner == k).nonzero()[:, 0] for k in range(len(b))]
    return Federation(network, Pool(b[owner], torch.zeros(len(owner), dtype=torch.int64), index), 1, _half_square)


def _half_square(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """½ ‖w − x‖² a sample, [B]."""
    return 0.5 * (w - x).square().sum(dim=-1)


def scalar_net() -> Net:
    """Return a network of three numbers w = [v, u, c], float [3]: its feature is v x, its score u (v x) + c.

    >>> net = scalar_net()
    >>> net(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0]])).tolist()  # 3 (2 · 5) + 1
    [[31.0]]
    >>> net.layout.body, net.layout.head
    (slice(0, 1, None), slice(1, 3, None))
    """
    return Net(Network({"fc": nn.Linear(1, 1, bias=False)}, n_features=1, n_classes=1))
