from math import exp

import pytest
import torch
from torch import nn

from pfl_ops.algorithms.fedproto import FedProto, nearest
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, ragged_task

TRAINING = Training(rounds=3, batch_size=None, lr=0.5, precision="float64")


@pytest.fixture
def pair():
    """f = a x with a = 1, scores h f with h = (0, 0); client 0: (1, 0), (3, 0), (2, 1), client 1: (4, 0), as (x, y)."""
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.float64))
    network.head = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    nn.init.ones_(network.body[0].weight)
    nn.init.zeros_(network.head.weight)
    x = torch.tensor([[1.0], [3], [2], [4]], dtype=torch.float64)
    return Federation(network, Pool(x, torch.tensor([0, 0, 1, 0]), [torch.arange(3), torch.tensor([3])]), 2)


def sigma(z):
    return 1 / (1 + exp(-z))


def test_three_rounds_by_hand(pair):
    """One full-batch step a round, η = ½, λ = ¾.

    Round 1   No prototypes. Scores are 0, so p = ½ and, the head being 0, a = 1 stays.
              client 0: ∂h_0 = mean (p − [y = 0]) f = (−½·1 − ½·3 + ½·2)/3 = −⅓     h ← (⅙, −⅙)
              client 1: ∂h_0 = −½·4 = −2                                            h ← (1, −1)
              class means: 0: 2 (two samples), 1: 2 (one);  0: 4 (one)
              c_0 ← (2·2 + 1·4)/3 = 8/3 (plain mean: 3), c_1 ← 2
    Round 2   With d = h_0 − h_1 the scores differ by d f, and cross-entropy has ∂a = −σ(−d f) d x for y = 0, σ(d f) d x
              for y = 1; the second term has ∂a = 2 λ (f − c_y) x. Mean over all samples:
              client 0: d = ⅓, f = x = 1, 3, 2            client 1: d = 2, f = x = 4
              c_0 ← (2·2a + 4a')/3, c_1 ← 2a
    Round 3   Client 1 alone: from then on class 1 has no prototype, and c_0 ← 4a''.
    """
    lam, c = 0.75, (8 / 3, 2)
    play = MethodSimulation(pair, FedProto(lam=lam), TRAINING)
    first = play.round()
    assert first["state/theta"].tolist() == [pytest.approx([1, 1 / 6, -1 / 6]), pytest.approx([1, 1, -1])]
    assert first["state/prototypes"][:, 0].tolist() == pytest.approx(c)
    assert first["state/known"].tolist() == [True, True]

    second = play.round()
    a_0 = 1 - 0.5 / 3 * (
        (-sigma(-1 / 3) / 3 + 2 * lam * (1 - c[0])) * 1
        + (-sigma(-3 / 3) / 3 + 2 * lam * (3 - c[0])) * 3
        + (sigma(2 / 3) / 3 + 2 * lam * (2 - c[1])) * 2
    )
    a_1 = 1 - 0.5 * (-sigma(-8) * 2 + 2 * lam * (4 - c[0])) * 4
    assert second["state/theta"][:, 0].tolist() == pytest.approx([a_0, a_1])
    assert second["state/prototypes"][:, 0].tolist() == pytest.approx([(2 * 2 * a_0 + 4 * a_1) / 3, 2 * a_0])

    third = play.round([1])
    assert third["state/known"].tolist() == [True, False]
    assert third["state/prototypes"][0, 0] == pytest.approx(4 * third["state/theta"][1, 0].item())
    assert torch.equal(third["state/theta"][0], second["state/theta"][0])


def test_plain_mean(pair):
    """Each client that has the class counts once: c_0 = (2 + 4)/2; client 0 drawn twice, (2 + 2 + 4)/3."""
    for cohort, c in (([0, 1], 3), ([0, 0, 1], 8 / 3)):
        only = MethodSimulation(pair, FedProto(average="mean"), TRAINING).round(cohort)
        assert only["state/prototypes"][:, 0].tolist() == pytest.approx([c, 2])


def test_a_client_drawn_twice_counts_twice(pair):
    """c_0 = (2·2·2 + 4)/5."""
    only = MethodSimulation(pair, FedProto(), TRAINING).round([0, 0, 1])
    assert only["state/prototypes"][:, 0].tolist() == pytest.approx([12 / 5, 2])


def test_a_class_without_prototype_pulls_nothing(pair):
    """After a round of client 1 alone client 0's step of class 1 is free: λ moves class 0 alone."""
    plays = [MethodSimulation(pair, FedProto(lam=lam), TRAINING) for lam in (0.0, 0.75)]
    free, pulled = (play.run([[1], [0]])[-1]["state/theta"][0, 0].item() for play in plays)
    c = 4  # client 1's class mean, its a still 1; client 0's head is still 0, so its a moves by the second term alone
    assert free == 1
    assert pulled == pytest.approx(1 - 0.5 / 3 * 2 * 0.75 * ((1 - c) * 1 + (3 - c) * 3))


def answers(play, stage, x, k):
    """Class that client k's model gives to x."""
    ctx = {name: value[k] for name, value in stage.ctx.items()}
    scores = stage.predict or (lambda net, w, x: net(w, x))
    return scores(play.task.net, stage.params[k], torch.tensor([[x]], dtype=torch.float64), **ctx).argmax().item()


def test_the_nearest_prototype_answers(pair):
    """After round 1: a = 1, c = (8/3, 2), so the border lies at f = 7/3, where no head with h_1 < 0 < h_0 has one."""
    play = MethodSimulation(pair, FedProto(), TRAINING)
    play.round()
    held = play.personal()
    assert [answers(play, held, x, k) for k in (0, 1) for x in (2.4, 2.3)] == [0, 1, 0, 1]


def test_answers_among_the_clients_own_classes(pair):
    """Client 1 has none of class 1."""
    play = MethodSimulation(pair, FedProto(answer="own"), TRAINING)
    play.round()
    held = play.personal()
    assert [answers(play, held, x, k) for k in (0, 1) for x in (2.4, 2.3)] == [0, 1, 0, 0]


def test_answers_by_the_head(pair):
    """The heads are (⅙, −⅙) and (1, −1): class 0 for every x > 0, class 1 below."""
    play = MethodSimulation(pair, FedProto(answer="head"), TRAINING)
    play.round()
    held = play.personal()
    assert [answers(play, held, x, k) for k in (0, 1) for x in (2.3, -2.3)] == [0, 1, 0, 1]


def test_without_prototypes_the_head_answers(pair):
    """Before the first round, in L2 of the first, and for a client none of whose own classes has one."""
    play = MethodSimulation(pair, FedProto(), TRAINING)
    held = play.personal()
    x = torch.tensor([[2.3], [-1.0]], dtype=torch.float64)
    w = torch.tensor([1.0, 0.25, 0.5], dtype=torch.float64)
    ctx = {name: value[0] for name, value in held.ctx.items()}
    assert torch.equal(nearest(play.task.net, w, x, **ctx), play.task.net(w, x))
    _, stages = play.method.round(play.state, play.at([0, 1]))
    assert not stages["L2"].ctx["known"].any()

    own = MethodSimulation(pair, FedProto(answer="own"), TRAINING)
    own.round([0])
    own.state["known"] = torch.tensor([False, True])
    assert own.personal().ctx["known"].tolist() == [[False, True], [False, False]]


def test_nearest_is_by_distance():
    """Against the distances themselves, among known prototypes only."""
    play = MethodSimulation(ragged_task(features=6, hidden=5, classes=4), FedProto(), TRAINING)
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(4, 5, generator=generator, dtype=torch.float64) + 0.5
    x = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    known = torch.tensor([True, True, False, True])
    f = play.task.net.features(play.task.initial, x)
    expected = (f[:, None] - prototypes).square().sum(dim=2).masked_fill(~known, torch.inf).argmin(dim=1)
    found = nearest(play.task.net, play.task.initial, x, prototypes=prototypes, known=known).argmax(dim=1)
    assert torch.equal(found, expected) and len(expected.unique()) > 1


def test_only_prototypes_that_exist_are_sent(pair):
    """D = 1. Client 0 has two classes, client 1 one: 1.5 means and as many counts up. Nothing comes down in round 1;
    then both classes, and after a round of client 1 alone class 0."""
    play = MethodSimulation(pair, FedProto(), TRAINING)
    traffic = []
    for cohort in ([0, 1], [1], [0]):
        r = play.at(cohort)
        _, stages = play.method.round(play.state, r)
        traffic.append((r.traffic.up, r.traffic.down))
        play.round(cohort)
    assert traffic == [(3, 0), (2, 2), (4, 1)]
    assert set(stages) == {"L2"}
    r = MethodSimulation(pair, FedProto(average="mean"), TRAINING).at([0, 1])
    FedProto(average="mean").round(play.state, r)
    assert r.traffic.up == 1.5


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedproto compares features of the body of a network, and this one has no"):
        quadratic_play(FedProto(), [0, 6])


class TestContract(AlgorithmContract):
    algorithm = FedProto(lam=0.5)
