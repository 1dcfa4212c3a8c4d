from math import exp

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.algorithms.fedrod import FedROD, balanced_softmax, both
from pfl_ops.data.clients import Pool
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, ragged_task

TRAINING = Training(rounds=1, local_epochs=None, local_steps=2, batch_size=None, lr=0.5, precision="float64")


@pytest.fixture
def pair():
    """f = a x with a = 1, scores g = h f with h = (0, 0).

    Client 0: x = 1, 2, 2 of class 0 and 4 of class 1; client 1: x = 1 of class 0 and 3 of class 1.
    """
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.float64))
    network.head = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    nn.init.ones_(network.body[0].weight)
    nn.init.zeros_(network.head.weight)
    x = torch.tensor([[1.0], [2], [2], [4], [1], [3]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1, 0, 1])
    return Federation(network, Pool(x, y, [torch.arange(4), torch.tensor([4, 5])]), 2)


def sigma(z):
    return 1 / (1 + exp(-z))


def test_two_steps_by_hand(pair):
    """J = 2 full batches, η = ½; p = (⅔, ⅓).

    Of two classes the balanced softmax gives class 1 the share P = 1/(1 + (n_0/n_1) e^−z), z = (h_1 − h_0) f, and with
    s = P − [y = 1]:  ∂h_1 = mean s f = −∂h_0,  ∂a = mean s (h_1 − h_0) x. Heads stay opposite, (−h, h), so z = 2 h f.

    Step 1    All scores are 0: P = n_1/n, and ½ in the personal loss. a stays, for h = 0.
              client 0: h = −½ (¼·1 + ¼·2 + ¼·2 − ¾·4)/4 = 0.21875 (as P_k, by plain cross-entropy: −0.0625)
              its P_k:  −½ (½·1 + ½·2 + ½·2 − ½·4)/4 = −0.0625 (with g from after the step it would be less)
              client 1: classes are equal: both −½ (½·1 − ½·3)/2 = 0.25
    Step 2    f = x still. Client 0: z = 0.4375 x, n_0/n_1 = 3; its personal loss at z = (0.4375 − 0.125) x.
              Client 1: z = 0.5 x, n_0/n_1 = 1; its personal loss at z = (0.5 + 0.5) x.
    """
    only = MethodSimulation(pair, FedROD(), TRAINING).round()
    s = [1 / (1 + 3 * exp(-0.4375 * x)) - y for x, y in ((1, 0), (2, 0), (2, 0), (4, 1))]
    up = (s[0] * 1 + s[1] * 2 + s[2] * 2 + s[3] * 4) / 4  # mean s f = mean s x
    own = (sigma(0.3125 * 1) * 1 + sigma(0.3125 * 2) * 4 + (sigma(0.3125 * 4) - 1) * 4) / 4
    zero = [1 - 0.5 * up * 0.4375, -0.21875 + 0.5 * up, 0.21875 - 0.5 * up]
    assert only["L2"][0].tolist() == pytest.approx(zero)
    assert only["L2/personal"][0].tolist() == pytest.approx([0.0625 + 0.5 * own, -0.0625 - 0.5 * own])

    up = (sigma(0.5 * 1) * 1 + (sigma(0.5 * 3) - 1) * 3) / 2
    own = (sigma(1.0 * 1) * 1 + (sigma(1.0 * 3) - 1) * 3) / 2
    one = [1 - 0.5 * up * 0.5, -0.25 + 0.5 * up, 0.25 - 0.5 * up]
    assert only["L2"][1].tolist() == pytest.approx(one)
    assert only["L2/personal"][1].tolist() == pytest.approx([-0.25 + 0.5 * own, 0.25 - 0.5 * own])

    central = [(2 * a + b) / 3 for a, b in zip(zero, one, strict=True)]
    assert only["G"].tolist() == pytest.approx(central)
    assert only["L1"].tolist() == [pytest.approx(central)] * 2
    assert torch.equal(only["L1/personal"], only["L2/personal"])


def test_the_personal_head_gives_no_gradient_into_the_generic_model():
    """Whatever the P_k are, Θ and the θ_k are the same, bit for bit."""
    plays = [MethodSimulation(ragged_task(), FedROD(), TRAINING.model_copy(update={"batch_size": 3})) for _ in range(2)]
    rows = plays[1].state["personal"]
    rows.write(plays[1].everyone, 5 * torch.randn(5, 12, generator=torch.Generator().manual_seed(0)).double())
    for cohort in (None, [0, 3]):
        a, b = (play.round(cohort) for play in plays)
        assert torch.equal(a["G"], b["G"]) and torch.equal(a["L2"], b["L2"])
        assert not torch.equal(a["L2/personal"], b["L2/personal"])


def test_personal_heads_start_as_the_generic_head():
    """So that at the start everyone answers with 2 g."""
    play = MethodSimulation(ragged_task(), FedROD(), TRAINING)
    head, x = play.task.initial[play.task.layout.head], play.task.example
    held = play.personal()
    assert head.abs().min() > 0 and torch.equal(held.ctx["personal"], head.expand(5, -1))
    scores = held.predict(play.task.net, held.params[0], x, personal=held.ctx["personal"][0])
    torch.testing.assert_close(scores, 2 * play.task.net(play.task.initial, x))


def test_the_generic_model_answers_alone(pair):
    """G is Θ itself; L1 and L2 join the personal scores: f = 2·3 = 6, g = (−6, 3), P f = (12, 6)."""
    _, stages = (play := MethodSimulation(pair, FedROD(), TRAINING)).method.round(play.state, play.at([0, 1]))
    assert stages["G"].predict is None and stages["L2"].predict is both
    w, own = (torch.tensor(values, dtype=torch.float64) for values in ([2, -1, 0.5], [2.0, 1]))
    assert both(play.task.net, w, torch.tensor([[3.0]]).double(), personal=own).tolist() == [[6, 9]]


def test_classes_with_none_drop_out():
    """The loss is the balanced softmax of the other two classes alone; the third's scores get no gradient."""
    play = MethodSimulation(ragged_task(), FedROD(), TRAINING)
    net, layout = play.task.net, play.task.layout
    w, x = play.task.initial.clone().requires_grad_(), torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    x, y, counts = x.double(), torch.tensor([0, 2, 2, 0, 2, 2]), torch.tensor([2.0, 0, 4], dtype=torch.float64)
    found = balanced_softmax(net, w, x, y, counts=counts)
    expected = F.cross_entropy(net(w, x)[:, [0, 2]] + counts[[0, 2]].log(), y // 2, reduction="none")
    torch.testing.assert_close(found, expected)
    (g,) = torch.autograd.grad(found.sum(), w)
    assert layout.views(g)["head.weight"][1].tolist() == [0, 0, 0] and bool(g[layout.body].isfinite().all())
    assert bool((layout.views(g)["head.weight"][0] != 0).all())
    absent = balanced_softmax(net, w, x[:1], torch.tensor([1]), counts=counts)
    assert bool((0 * absent).isfinite())  # padding of weight 0 stays without effect, whatever its class


def test_it_needs_no_body():
    """Two heads on the samples themselves."""
    network = nn.Module()
    network.body, network.head = nn.Sequential(), nn.Linear(4, 3, dtype=torch.float64)
    federation = Federation(network, ragged_task().pool, 3)
    only = MethodSimulation(federation, FedROD(), TRAINING).round()
    assert only["L2"].shape == only["L2/personal"].shape == (5, 15)


def test_one_model_is_sent_each_way():
    play = MethodSimulation(ragged_task(), FedROD(), TRAINING)
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (27, 27)


class TestContract(AlgorithmContract):
    algorithm = FedROD()
