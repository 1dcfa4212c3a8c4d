import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from pfl_ops.algorithms.splitgp import SplitGP, surer_exit
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, ragged_task

SAMPLES = (  # (x, y) of each client
    [(1.0, 0), (2.0, 1), (-1.0, 1)],
    [(3.0, 1)],
    [(0.5, 1), (2.0, 0)],
)
A, C, H = 0.75, -0.5, np.array([0.6, -0.2])
GAMMA, LAM, LR = 0.3, 0.25, 0.5


def federation(clients=SAMPLES):
    """u = a x leaves the client's side, scores H c u leave the server's."""
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    network.head = nn.Linear(1, 2, bias=False)
    network.double()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), (A, C, H), strict=True):
            parameter.copy_(torch.tensor(value, dtype=torch.float64).view_as(parameter))
    x = torch.tensor([[x] for own in clients for x, _ in own], dtype=torch.float64)
    y = torch.tensor([y for own in clients for _, y in own])
    index = list(torch.arange(len(x)).split([len(own) for own in clients]))
    return Federation(network, Pool(x, y, index), 2)


def training(**how):
    return Training(**{"rounds": 2, "batch_size": None, "lr": LR, "precision": "float64", **how})


def softmax(s):
    return np.exp(s) / np.exp(s).sum()


def step(w, own):
    """One full-batch step of w = (a, c, H, exit's weights W and biases b); both exits reach a, by W and by c H."""
    a, c, h, weight, bias = w[0], w[1], w[2:4], w[4:6], w[6:8]
    g = np.zeros(8)
    for x, y in own:
        u = a * x
        at_client = GAMMA * (softmax(weight * u + bias) - np.eye(2)[y])
        at_server = (1 - GAMMA) * (softmax(h * c * u) - np.eye(2)[y])
        g[0] += (at_client @ weight + at_server @ h * c) * x
        g[1] += at_server @ h * u
        g[2:4] += at_server * c * u
        g[4:6] += at_client * u
        g[6:8] += at_client
    return w - LR * g / len(own)


CLIENT, SERVER = [0, 4, 5, 6, 7], [1, 2, 3]


def test_two_rounds_by_hand():
    """Clients 0 and 1, n = (3, 1), then 0 and 2, n = (3, 2): the server's side is the weighted mean, the client's λ own
    and 1 − λ of it; client 1 keeps its side of round 1, client 2 starts from the first one."""
    play = MethodSimulation(federation(), SplitGP(gamma=GAMMA, lam=LAM), training())
    start = play.task.initial.numpy()
    assert start[:4].tolist() == [A, C, *H] and start[4:6].any() and not start[6:].any()
    central, held = start, [start[CLIENT]] * 3
    for cohort, p in (([0, 1], (3 / 4, 1 / 4)), ([0, 2], (3 / 5, 2 / 5))):
        w = {}
        for k in cohort:
            received = central.copy()
            received[CLIENT] = held[k]
            w[k] = step(received, SAMPLES[k])
        central = sum(share * row for share, row in zip(p, w.values(), strict=True))
        held = [LAM * w[k][CLIENT] + (1 - LAM) * central[CLIENT] if k in w else held[k] for k in range(3)]

        found = play.round(cohort)
        assert found["L2"].tolist() == [pytest.approx(row) for row in w.values()]
        assert found["G"].tolist() == pytest.approx(central)
        assert found["L1"][:, CLIENT].tolist() == [pytest.approx(side) for side in held]
        assert found["L1"][:, SERVER].tolist() == [pytest.approx(central[SERVER])] * 3


@pytest.mark.parametrize(("threshold", "who"), [(0.0, "ss"), (0.3, "cs"), (0.68, "cs"), (0.7, "cc")])
def test_the_client_answers_where_it_is_sure(threshold, who):
    """Two samples, u = 4 and 0: W = (1, −1) gives scores (4, −4), entropy 0.003, and (0, 0), log 2 = 0.693 nats.

    In bits the second would be 1, above all of these; the server's scores are H c u = (−1.2, 0.4) and (0, 0).
    """
    play = MethodSimulation(federation(), SplitGP(), training())
    w = torch.tensor([1.0, C, *H, 1, -1, 0, 0], dtype=torch.float64)
    x = torch.tensor([[4.0], [0]], dtype=torch.float64)
    found = surer_exit(play.task.net, w, x, threshold=torch.tensor(threshold), depth=1).tolist()
    assert found[0] == pytest.approx({"c": [4, -4], "s": [-1.2, 0.4]}[who[0]])
    w[6:] = 1  # equal biases, which only the client's exit has: they tell who answers without a change of entropy
    found = surer_exit(play.task.net, w, x, threshold=torch.tensor(threshold), depth=1).tolist()
    assert found[1] == pytest.approx({"c": [1, 1], "s": [0, 0]}[who[1]])


def test_an_entropy_of_just_the_threshold_is_sure():
    play = MethodSimulation(federation(), SplitGP(), training())
    w = torch.tensor([1.0, C, *H, 0, 0, 1, 1], dtype=torch.float64)
    x = torch.ones(1, 1, dtype=torch.float64)
    logs = torch.log_softmax(torch.ones(1, 2, dtype=torch.float64), dim=1)
    just = -(logs.exp() * logs).sum()
    assert float(just) == pytest.approx(math.log(2))
    assert surer_exit(play.task.net, w, x, threshold=just, depth=1).tolist() == [[1, 1]]


def test_all_stages_answer_with_two_exits():
    play = MethodSimulation(federation(), SplitGP(threshold=0.4), training())
    r = play.at([0, 1])
    _, stages = play.method.round(play.state, r)
    for models, shape in ((stages["L2"], (2,)), (stages["G"], ()), (play.personal(), (3,))):
        assert models.predict.func is surer_exit and models.ctx["threshold"].shape == shape
        assert bool((models.ctx["threshold"] == 0.4).all())


def test_the_exit_stands_on_what_leaves_the_cut():
    """Of a 4-6-5-3 network: 6 numbers behind the first layer, 5 behind the second, where the server has the head."""
    for depth, width in ((1, 6), (2, 5)):
        play = MethodSimulation(deep(), SplitGP(depth=depth), training())
        views = play.task.layout.views(play.task.initial)
        assert views["exit.weight"].shape == (3, width)
        assert play.state["client"].base.numel() == play.task.net.cut(depth).stop + 3 * width + 3


def test_networks_that_cannot_be_cut_so_are_refused():
    with pytest.raises(PflOpsError, match="splitgp shares the body of a network, and this one has no body"):
        quadratic_play(SplitGP(), [0, 6])
    with pytest.raises(PflOpsError, match="cut behind one of its body's 2 layers with parameters, got 3"):
        MethodSimulation(deep(), SplitGP(depth=3), training())


def test_a_whole_model_is_sent_each_way():
    play = MethodSimulation(federation(), SplitGP(), training())
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (8, 8)


def deep():
    """`ragged_task` with two layers in the body."""
    plain = ragged_task()
    network = nn.Module()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh())
        network.head = nn.Linear(5, 3)
    return Federation(network.double(), plain.pool, plain.n_classes)


class TestContract(AlgorithmContract):
    algorithm = SplitGP()
    federation: ClassVar[Federation] = deep()
