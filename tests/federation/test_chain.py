"""Fully connected networks by hand: autograd finds the same gradients, and makes the same steps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.algorithms.local import Local
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Training
from pfl_ops.models.cnn_tiny import CNNTiny
from pfl_ops.testing import Federation, MethodSimulation, ragged_task

CLIENTS = [0, 1, 3, 4]
RAGGED = ragged_task((5, 2, 8, 3, 7))


def network(*body, head=None):
    """Body and head in float64, always with the same first parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = nn.Module()
        made.body = nn.Sequential(*(layer() for layer in body))
        width = next((layer.out_features for layer in reversed(made.body) if isinstance(layer, nn.Linear)), 4)
        made.head = head or nn.Linear(width, 3)
    return made.double()


CHAINS = {
    "linear": network(),
    "no bias": network(lambda: nn.Linear(4, 5, bias=False), nn.ReLU),
    "two hidden": network(nn.Flatten, lambda: nn.Linear(4, 6), nn.ReLU, lambda: nn.Linear(6, 5), nn.ReLU),
    "no ReLU between": network(lambda: nn.Linear(4, 6), lambda: nn.Linear(6, 5), nn.ReLU),
}


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


def play(net, stack, by_hand=True, **how):
    """Two epochs of batches of three, the last of an epoch short; `by_hand` off: the same by autograd."""
    how = {"rounds": 2, "local_epochs": 2, "batch_size": 3, "lr": 0.1, "precision": "float64", **how}
    p = MethodSimulation(Federation(net, RAGGED.pool, 3), Local(), Training(**how), stack=stack)
    assert p.trainer.passes.chain is not None
    if not by_hand:
        p.trainer.passes.chain = None
    return p


@pytest.mark.parametrize(
    "net",
    [
        network(lambda: nn.Linear(4, 3), nn.Tanh),
        network(nn.ReLU, lambda: nn.Linear(4, 3)),
        network(lambda: nn.Linear(4, 3), nn.ReLU, nn.Dropout),
        CNNTiny((8, 8, 1), 3),
    ],
    ids=["another activation", "ReLU on the input", "dropout", "convolutions"],
)
def test_other_networks_are_no_chain(net):
    assert Chain.of(Net(net)) is None


def test_the_way_back_on_paper():
    """One sample x = (1, 2), one hidden unit h = relu(x₁ + x₂) = 3, scores (h, 0), label 1.

    p = (e³, 1) / (e³ + 1), loss = −log p₁ = log(e³ + 1), ∂loss/∂scores = p − (0, 1) = (p₀, −p₀);
    ∂loss/∂head = (3 p₀, −3 p₀); ∂loss/∂h = p₀ · 1 + (−p₀) · 0 = p₀, so ∂loss/∂W₁ = (p₀, 2 p₀).
    """
    net = network(lambda: nn.Linear(2, 1), nn.ReLU, head=nn.Linear(1, 2))
    w = {
        "body.0.weight": torch.tensor([[[1.0, 1.0]]]),
        "body.0.bias": torch.zeros(1, 1),
        "head.weight": torch.tensor([[[1.0], [0.0]]]),
        "head.bias": torch.zeros(1, 2),
    }
    chain = Chain.of(Net(net))
    losses, back = chain.backward(w, list(w), torch.tensor([[[1.0, 2.0]]]), torch.tensor([[1]]), None)
    e3 = torch.tensor(3.0).exp()
    p = e3 / (e3 + 1)
    torch.testing.assert_close(losses, torch.log(e3 + 1)[None])
    (head, d_head, h_head), (first, d_first, h_first) = back
    assert (head.weight, first.weight) == ("head.weight", "body.0.weight")
    torch.testing.assert_close(d_head.mT @ h_head, torch.stack([3 * p, -3 * p]).view(1, 2, 1))
    torch.testing.assert_close(d_first.mT @ h_first, torch.stack([p, 2 * p]).view(1, 1, 2))


@pytest.mark.parametrize("stack", [None, 2, 4])
@pytest.mark.parametrize("part", [None, "head", "body"])
@pytest.mark.parametrize(
    "how", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"optimiser": "adam", "lr": 0.05}], ids=str
)
def test_training_is_what_autograd_makes_of_it(chain, stack, part, how):
    """Short batches, clients that end early, rows of their own, shift and pull, frozen parts."""
    found = []
    for by_hand in (True, False):
        p = play(chain, stack, by_hand, **how)
        only = p.task.layout.head if part == "head" or not len(chain.body) else part and p.task.layout.body
        draws = torch.Generator().manual_seed(5)
        start = p.task.initial + torch.randn(len(CLIENTS), p.task.layout.size, dtype=torch.float64, generator=draws)
        shift = torch.randn(len(CLIENTS), p.task.layout.size, dtype=torch.float64, generator=draws)
        mu = torch.tensor([0.1, 0.0, 0.5, 0.2], dtype=torch.float64)
        r = p.at(CLIENTS)
        found.append([
            r.train(start, only=only),
            r.train(p.task.initial, shift=shift, pull=(0.3, p.task.initial), only=only),
            r.train(start, shift=shift[0], pull=(mu, start), only=only),
        ])  # fmt: skip
        found[-1].append(p.trainer.meter.mean)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    assert not torch.equal(found[0][0], start)


@pytest.mark.parametrize("stack", [None, 4])
def test_a_steps_gradient_is_what_autograd_makes_of_it(chain, stack):
    """`b.grad` on rows with a block of a method's own behind them, whole and in part."""

    def step(m, b):
        w = m["w"]
        flat = b.grad(w, lambda net, w, x, y: cross_entropy(net, w, x, y))
        torch.testing.assert_close(b.grad(w), flat, rtol=0, atol=1e-12)
        head = b.grad(w, only=p.task.layout.head)
        torch.testing.assert_close(head[:, p.task.layout.head], flat[:, p.task.layout.head], rtol=0, atol=1e-12)
        assert not head[:, p.task.layout.body].any()
        return {"w": w - 0.1 * flat}

    p = play(chain, stack)
    start = torch.cat([p.task.initial, torch.ones(2, dtype=torch.float64)])
    rows = p.at(CLIENTS).walk({"w": start.expand(len(CLIENTS), -1)}, step)["w"]
    torch.testing.assert_close(rows[:, :-2], p.at(CLIENTS).train(p.task.initial), rtol=0, atol=1e-12)
    assert (rows[:, -2:] == 1).all()


def test_the_network_itself_agrees():
    """The same batch through the module."""
    net = copy.deepcopy(CHAINS["two hidden"])
    p = play(net, 2, batch_size=None, local_epochs=1)
    (row,) = p.at([2]).train(p.task.initial)
    x, y = RAGGED.pool.x[RAGGED.pool.index[2]], RAGGED.pool.y[RAGGED.pool.index[2]]
    F.cross_entropy(net.head(net.body(x)), y).backward()
    expected = {name: w.detach() - 0.1 * w.grad for name, w in net.named_parameters()}
    torch.testing.assert_close(row, p.task.layout.flatten(expected), rtol=0, atol=1e-12)


class Extended(Local):
    """With a block of its own, which no loss sees."""

    def extra(self, task):
        return {"more": (2, 3)}


@pytest.mark.parametrize("stack", [None, 2, 4])
def test_a_block_that_the_loss_does_not_see_still_decays_and_is_pulled(stack):
    """Client 1 takes two steps: w ← (1 − η(λ + μ)) w − η (s − μ a) each, with η = 0.1, λ = 0.2, μ = 0.3."""
    how = Training(rounds=1, local_epochs=2, batch_size=3, lr=0.1, weight_decay=0.2, precision="float64")
    p = MethodSimulation(Federation(CHAINS["two hidden"], RAGGED.pool, 3), Extended(), how, stack=stack)
    columns = p.task.layout.extra["more"]
    start, s, a = (torch.full_like(p.task.initial, value) for value in (1.0, 0.5, 2.0))
    rows = p.at(CLIENTS).train(start, shift=s, pull=(0.3, a))
    once = 0.95 * 1.0 - 0.1 * (0.5 - 0.3 * 2.0)
    twice = 0.95 * once - 0.1 * (0.5 - 0.3 * 2.0)
    torch.testing.assert_close(rows[1, columns], torch.full((6,), twice, dtype=torch.float64), rtol=0, atol=1e-12)
