"""The verbs of a round, each against its meaning written out."""

import itertools
import pickle

import pytest
import torch
from torch.nn import functional as F

from pfl_ops.algorithms.local import Local
from pfl_ops.federation.method import round as round_
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.settings import Training
from pfl_ops.testing import Federation, MethodSimulation, ragged_task

SIZES = (5, 2, 8, 3, 7)
FEDERATION = ragged_task(SIZES)
CLIENTS = [0, 1, 4]


def play(stack=None, weighting="samples", **how):
    how = {"rounds": 3, "batch_size": 3, "lr": 0.1, "precision": "float64", **how}
    return MethodSimulation(FEDERATION, Local(), Training(**how), stack=stack, weighting=weighting)


@pytest.fixture
def models():
    """A model for each of the three clients."""
    initial = play().task.initial
    torch.manual_seed(0)
    return initial + 0.3 * torch.randn(3, len(initial), dtype=torch.float64)


def data(client):
    own = FEDERATION.pool.index[client]
    return FEDERATION.pool.x[own], FEDERATION.pool.y[own]


# -- who, and with which weight ----------------------------------------------------------------------------------------


def test_a_cohort_is_sorted_and_unique():
    r = play().at([4, 1, 4, 0, 4])
    assert r.cohort.tolist() == [0, 1, 4]
    assert r.counts.tolist() == [1, 1, 3]
    assert r.n.tolist() == [5, 2, 7]
    assert r.class_counts.tolist() == [data(k)[1].bincount(minlength=3).tolist() for k in CLIENTS]


def test_weights():
    """samples: n_k x draws; uniform: draws; of the cohort, so that they sum to 1."""
    assert play().at(CLIENTS).weights.tolist() == pytest.approx([5 / 14, 2 / 14, 7 / 14])
    assert play().at([4, 1, 4, 0]).weights.tolist() == pytest.approx([5 / 21, 2 / 21, 14 / 21])
    assert play(weighting="uniform").at(CLIENTS).weights.tolist() == pytest.approx([1 / 3] * 3)
    assert play(weighting="uniform").at([4, 1, 4, 0]).weights.tolist() == pytest.approx([0.25, 0.25, 0.5])


def test_a_mean_is_over_draws_whatever_the_weighting():
    rows = torch.tensor([[1.0, 0], [3, 0], [8, 1]], dtype=torch.float64)
    for weighting in ("samples", "uniform"):
        assert play(weighting=weighting).at(CLIENTS).mean(rows).tolist() == pytest.approx([4, 1 / 3])
        assert play(weighting=weighting).at([4, 1, 4, 0]).mean(rows).tolist() == pytest.approx([5, 0.5])


def test_the_rate_of_the_round():
    p = play(lr_decay=0.5)
    assert p.at([0]).lr == 0.1
    p.t = 2
    assert p.at([0]).lr == pytest.approx(0.025)
    r = p.at([0])
    trained = r.train(r.task.initial, steps=1, batch=5)
    torch.testing.assert_close(trained[0], r.task.initial - 0.025 * r.grad(r.task.initial)[0])


def test_local_steps():
    assert play().at([0]).local_steps is None
    assert play(local_epochs=None, local_steps=7).at([0]).local_steps == 7


def test_a_round_can_not_be_captured():
    """A step that closes over r would drag the federation along to every worker."""
    with pytest.raises(TypeError, match="must not capture the round"):
        pickle.dumps(play().at(CLIENTS))


# -- functions of data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 500])
def test_sweep(models, batch):
    """Sums over a client's own samples and their number; any shape of values, in any portions."""

    def function(net, w, x, y, scale):
        return scale * torch.stack([net(w, x).square().sum(dim=1), y.to(x.dtype)], dim=1)

    scale = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    sums, counts = play().at(CLIENTS).sweep(models, function, ctx={"scale": scale}, batch=batch)
    assert counts.tolist() == [5, 2, 7]
    for k, client in enumerate(CLIENTS):
        x, y = data(client)
        scores = play().task.net(models[k], x)
        expected = scale[k] * torch.stack([scores.square().sum(), y.double().sum()])
        torch.testing.assert_close(sums[k], expected)


def test_losses(models):
    r = play().at(CLIENTS)
    for w in (models, models[0]):
        rows = w if w.dim() == 2 else w.expand(3, -1)
        expected = [F.cross_entropy(r.net(rows[k], data(c)[0]), data(c)[1]) for k, c in enumerate(CLIENTS)]
        torch.testing.assert_close(r.losses(w), torch.stack(expected))


def test_losses_on_a_share(models):
    """The same part of the data that a walk with this share sees."""
    p = play()
    share = Share(0.6, 1)
    losses = p.at(CLIENTS).losses(models, share=share)
    for k, client in enumerate(CLIENTS):
        positions = torch.from_numpy(p.trainer.positions(client, share, Keys(0, "train", 0)))
        x, y = (values[positions] for values in data(client))
        torch.testing.assert_close(losses[k], F.cross_entropy(p.task.net(models[k], x), y))


@pytest.mark.parametrize("at_once", [2, 500])
@pytest.mark.parametrize("stack", [None, 2, 3])
def test_full_gradients(models, stack, at_once, monkeypatch):
    """Of the mean loss over all of a client's samples, however ragged; without weight decay; in pieces or whole."""
    monkeypatch.setattr(round_, "FULL_GRADIENT_BATCH", at_once)
    r = play(stack, weight_decay=0.5).at(CLIENTS)
    for w in (models, models[0]):
        got = r.grad(w)
        for k, client in enumerate(CLIENTS):
            leaf = (w[k] if w.dim() == 2 else w).clone().requires_grad_()
            (expected,) = torch.autograd.grad(F.cross_entropy(r.net(leaf, data(client)[0]), data(client)[1]), leaf)
            torch.testing.assert_close(got[k], expected)


def test_square_norms(models):
    """Mean over a client's samples, each with a gradient of its own: not the length of their mean."""
    r = play().at(CLIENTS)
    for w in (models, models[0]):
        got = r.square_norms(w)
        for k, client in enumerate(CLIENTS):
            one = torch.func.grad(lambda w, x, y: F.cross_entropy(r.net(w, x[None]), y[None]))
            grads = torch.vmap(one, (None, 0, 0))(w[k] if w.dim() == 2 else w, *data(client))
            torch.testing.assert_close(got[k], grads.square().sum(dim=1).mean())


def test_class_means(models):
    """Mean feature of each class; zero where a client lacks it."""
    r = play().at(CLIENTS)
    means = r.class_means(models)
    assert means.shape == (3, 3, 3)
    lacking = 0
    for k, client in enumerate(CLIENTS):
        x, y = data(client)
        features = r.net.features(models[k], x)
        for c in range(3):
            own = features[y == c]
            lacking += len(own) == 0
            torch.testing.assert_close(means[k, c], own.mean(dim=0) if len(own) else torch.zeros(3).double())
    assert lacking


def test_cross_losses(models):
    """Losses of others' models on a client's own data."""
    r = play().at(CLIENTS)
    who = torch.tensor([[0, 2], [1, 0], [1, 2]])
    losses = r.cross(models, who)
    for k, client in enumerate(CLIENTS):
        for m, j in enumerate(who[k].tolist()):
            x, y = data(client)
            torch.testing.assert_close(losses[k, m], F.cross_entropy(r.net(models[j], x), y))


def test_verbs_that_draw_nothing_disturb_nothing(models):
    def trained(before):
        r = play().at(CLIENTS)
        if before:
            r.steps()
            r.losses(models, share=Share(0, 0.5))
            r.cross(models, torch.tensor([[0], [0], [0]]))
            r.class_means(models)
            r.grad(models)
            r.rng("server").random()
        return r.train(models)

    assert torch.equal(trained(False), trained(True))


def test_a_client_without_samples():
    """Nothing to sum, no step to take."""
    empty = ragged_task((3, 0))
    for stack in (None, 2):
        r = MethodSimulation(empty, Local(), Training(precision="float64"), stack=stack).at([0, 1])
        sums, counts = r.sweep(r.task.initial, r.task.loss)
        assert (sums[1], counts[1]) == (0, 0) and counts[0] == 3
        theta = r.train(r.task.initial)
        assert torch.equal(theta[1], r.task.initial) and not torch.equal(theta[0], r.task.initial)
        assert r.steps().tolist() == [1, 0]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_same_round_for_others():
    """r.over(clients) is what these clients would do in this round, with weights of their own."""
    p = play(lr_decay=0.5)
    p.t = 1
    r = p.at([0, 1])
    other = r.over(torch.tensor([3, 2]))
    assert other.cohort.tolist() == [2, 3] and other.weights.tolist() == pytest.approx([8 / 11, 3 / 11])
    assert (other.t, other.lr) == (1, r.lr)
    assert torch.equal(other.train(r.task.initial), p.at([2, 3]).train(r.task.initial))


def test_everybodys_data_as_one_client():
    """Its gradient is that of the mean over all samples, its walk the walk of a client that owns them all."""
    r = play().at(CLIENTS).pooled()
    assert r.cohort.tolist() == [0] and r.n.tolist() == [sum(SIZES)] and r.weights.tolist() == [1]
    assert r.class_counts.tolist() == [FEDERATION.pool.y.bincount(minlength=3).tolist()]
    leaf = play().task.initial.clone().requires_grad_()
    F.cross_entropy(r.net(leaf, FEDERATION.pool.x), FEDERATION.pool.y).backward()
    torch.testing.assert_close(r.grad(leaf)[0], leaf.grad)

    alone = Federation(FEDERATION.network, FEDERATION.pool.pooled(), 3)
    only = MethodSimulation(alone, Local(), Training(rounds=3, batch_size=3, lr=0.1, precision="float64"))
    mine = play()
    assert torch.equal(mine.at(CLIENTS).pooled().train(mine.task.initial), only.at([0]).train(only.task.initial))
    assert mine.trainer.meter.samples == sum(SIZES), "counted where the round's other verbs count"


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_rule_of_its_own(kind, models):
    """An optimiser, rate, momentum and decay instead of the experiment's: as if the experiment had them."""
    how = {"optimiser": kind, "lr": 0.03, "weight_decay": 0.0, **({"momentum": 0.5} if kind == "sgd" else {})}
    other = play(optimiser="sgd", momentum=0.9, weight_decay=0.3, lr=0.2)
    assert torch.equal(other.at(CLIENTS).train(models, **how), play(**how).at(CLIENTS).train(models))


@pytest.mark.parametrize("how", [{"momentum": 0.9, "weight_decay": 0.1}, {"optimiser": "adam", "weight_decay": 0.1}])
@pytest.mark.parametrize("stack", [None, 3])
def test_moments_that_are_carried_on(how, stack):
    """Two walks of one epoch that hand on w, moments and count are PyTorch's optimiser on the batches of both."""
    p = play(stack=stack, **how)
    zero = torch.zeros(3, len(p.task.initial), dtype=torch.float64)
    m = {"w": p.task.initial.expand(3, -1), "first": zero, "second": zero, "count": zero[:, 0]}
    r = p.at(CLIENTS)
    for _ in range(2):
        m = r.walk(m, lambda m, b: b.carry_on(m, b.grad(m["w"])))
    keys = [Keys(p.task.seed, "train", 0, call) for call in range(2)]
    for k, client in enumerate(CLIENTS):
        w = p.task.initial.clone().requires_grad_()
        decay = how["weight_decay"]
        adam = how.get("optimiser") == "adam"
        optimiser = (
            torch.optim.Adam([w], 0.1, weight_decay=decay)
            if adam
            else torch.optim.SGD([w], 0.1, momentum=0.9, weight_decay=decay)
        )
        for key in keys:
            (plan,) = p.trainer.plans([client], Length(), key)
            for start, stop in itertools.pairwise(plan.bounds):
                x, y = (values[plan.order[start:stop]] for values in data(client))
                optimiser.zero_grad()
                F.cross_entropy(p.task.net(w, x), y).backward()
                optimiser.step()
        torch.testing.assert_close(m["w"][k], w.detach(), rtol=0, atol=1e-12)


def test_the_servers_draws():
    """Keyed by round and purpose; evaluation draws from others than training."""
    p = play()
    first = p.at([0]).rng("candidates").random()
    assert first == p.at([0, 1]).rng("candidates").random()
    p.t = 1
    later = p.at([0]).rng("candidates").random()
    others = [p.at([0]).rng("order").random(), p.at([0], "evaluate").rng("candidates").random()]
    assert len({first, later, *others}) == 4


def test_traffic_is_the_whole_model_unless_said_otherwise():
    r = play().at(CLIENTS)
    assert (r.traffic.up, r.traffic.down) == (27, 27)
    r.sent(up=5)
    assert (r.traffic.up, r.traffic.down) == (5, 27)
    r.sent(down=0)
    assert (r.traffic.up, r.traffic.down) == (5, 0)


def test_the_meter_counts_samples_and_the_main_streams_loss():
    """One full-batch step: the mean loss before it, weighted by samples; other streams count as work only."""
    p = play(batch_size=None)
    r = p.at(CLIENTS)
    r.train(r.task.initial)
    r.train(r.task.initial + 1, stream="aside")
    expected = (r.losses(r.task.initial) * r.n).sum() / r.n.sum()
    assert p.trainer.meter.mean == pytest.approx(expected.item())
    assert p.trainer.meter.by_stream == {"": 14, "aside": 14}
