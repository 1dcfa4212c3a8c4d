"""Local training against a plain loop with PyTorch's own modules and optimisers; and the traps that were met once."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.algorithms.local import Local
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Training
from pfl_ops.federation.training.feed import Feed
from pfl_ops.models.cnn_tiny import CNNTiny
from pfl_ops.testing import Federation, MethodSimulation, ragged_task

SIZES = (5, 2, 8, 3, 7)
FEDERATION = ragged_task(SIZES)
CLIENTS = [0, 1, 3, 4]
WAYS = [None, 1, 2, 4]  # loop; stacks of one, of two (with a rest), of all
OPTIMISERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "adam": {"optimiser": "adam", "weight_decay": 0.1, "lr": 0.05},
}


def play(stack=None, federation=FEDERATION, **how):
    """Two epochs of batches of three: 4, 2, 2 and 6 steps for the clients above, the last of an epoch short."""
    how = {"rounds": 2, "local_epochs": 2, "batch_size": 3, "lr": 0.1, "precision": "float64", **how}
    return MethodSimulation(federation, Local(), Training(**how), stack=stack)


def plain_loop(p, client, start, *, loss=F.cross_entropy, only=None, batches=None):
    """The client's batches through an ordinary module, loss.backward() and an optimiser object; gives [P]."""
    module = copy.deepcopy(FEDERATION.network)
    with torch.no_grad():
        for name, value in p.task.layout.views(start).items():
            module.get_parameter(name).copy_(value)
    names = [b.name for b in p.task.layout.within(only)]
    trained = [module.get_parameter(name) for name in names]
    t = p.training
    if t.optimiser == "adam":
        optimiser = torch.optim.Adam(trained, lr=t.lr, weight_decay=t.weight_decay)
    else:
        optimiser = torch.optim.SGD(trained, lr=t.lr, momentum=t.momentum, weight_decay=t.weight_decay)
    (plan,) = p.trainer.plans([client], Length(), Keys(0, "train", p.t))
    own = FEDERATION.pool.index[client]
    for a, b in zip(plan.bounds, plan.bounds[1:], strict=False):
        samples = own[torch.from_numpy(plan.order[a:b])]
        optimiser.zero_grad()
        scores = module.head(module.body(FEDERATION.pool.x[samples]))
        loss(scores, FEDERATION.pool.y[samples]).backward()
        optimiser.step()
    return p.task.layout.flatten(dict(module.named_parameters()))


@pytest.fixture(params=WAYS, ids=["loop", "stacks of 1", "stacks of 2", "stack of 4"])
def stack(request):
    return request.param


# -- train ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_train_is_the_plain_loop(stack, optimiser):
    """Ragged clients, with every optimiser: no step is masked, none is lost, none is counted for another client."""
    p = play(stack, **OPTIMISERS[optimiser])
    theta = p.at(CLIENTS).train(p.task.initial)
    for row, client in zip(theta, CLIENTS, strict=True):
        torch.testing.assert_close(row, plain_loop(p, client, p.task.initial), rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("part", ["body", "head"])
def test_a_frozen_part_does_not_move(stack, optimiser, part):
    """Zeroing a gradient is not freezing: neither decay nor moments reach the other columns; no step counts there."""
    p = play(stack, **OPTIMISERS[optimiser])
    only = getattr(p.task.layout, part)
    theta = p.at(CLIENTS).train(p.task.initial, only=only)
    frozen = torch.ones(p.task.layout.size, dtype=torch.bool)
    frozen[only] = False
    assert torch.equal(theta[:, frozen], p.task.initial[frozen].expand(len(CLIENTS), -1))
    for row, client in zip(theta, CLIENTS, strict=True):
        torch.testing.assert_close(row, plain_loop(p, client, p.task.initial, only=only), rtol=0, atol=1e-12)


def test_each_client_has_its_own_start(stack):
    p = play(stack)
    start = torch.stack([p.task.initial + k for k in range(len(CLIENTS))])
    theta = p.at(CLIENTS).train(start)
    for row, client, own in zip(theta, CLIENTS, start, strict=True):
        torch.testing.assert_close(row, plain_loop(p, client, own), rtol=0, atol=1e-12)
    assert torch.equal(start[0], p.task.initial)


@pytest.mark.parametrize("own_loss", [False, True], ids=["block leaves", "flat leaf"])
@pytest.mark.parametrize("mu", [0.3, "each"])
def test_shift_and_pull_are_row_algebra(stack, own_loss, mu):
    """g + shift + μ (w − anchor): as gradients of ⟨shift, w⟩ + μ/2 ‖w − anchor‖² through autograd."""
    p = play(stack, momentum=0.9)
    r, width = p.at(CLIENTS), p.task.layout.size
    torch.manual_seed(1)
    shift, anchor = torch.randn(4, width).double(), torch.randn(width).double()
    mus = torch.tensor([0.1, 0.2, 0.3, 0.4] if mu == "each" else [mu] * 4, dtype=torch.float64)
    loss = plain_cross_entropy if own_loss else None
    got = r.train(p.task.initial, loss, shift=shift, pull=(mus if mu == "each" else mu, anchor))
    other = play(stack, momentum=0.9).at(CLIENTS)
    expected = other.train(p.task.initial, penalised, ctx={"shift": shift, "mu": mus, "anchor": anchor.expand(4, -1)})
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pull_of_a_weight_without_gradient_is_zero(stack, dtype):
    """A hidden unit that no sample makes active: its weights have no gradient, and at the anchor no pull either.

    Adam would turn any rounding of g + μ w − μ anchor into steps of up to η.
    """
    p = play(stack, optimiser="adam", lr=0.01, precision=dtype)
    weight, bias = p.task.layout.blocks[:2]
    start = p.task.initial.clone()
    start[bias.start] = -1e3  # tanh is -1 there, and its derivative 0
    theta = p.at(CLIENTS).train(start, pull=(0.3, start), epochs=3)
    own = slice(weight.start, weight.start + weight.stored[1])
    assert torch.equal(theta[:, own], start[own].expand(len(CLIENTS), -1))
    assert not torch.equal(theta[0], start)


def plain_cross_entropy(net, w, x, y):
    return F.cross_entropy(net(w, x), y, reduction="none")


def penalised(net, w, x, y, shift, mu, anchor):
    return plain_cross_entropy(net, w, x, y) + shift @ w + 0.5 * mu * (w - anchor).square().sum()


def test_rates_and_optimisers_of_ones_own(stack):
    """`lr` and `optimiser` stand in for the experiment's; nothing of its momentum goes into Adam."""
    p = play(stack, momentum=0.9)
    got = p.at(CLIENTS).train(p.task.initial, lr=0.05, optimiser="adam", epochs=2)
    expected = play(stack, optimiser="adam", lr=0.05).at(CLIENTS).train(p.task.initial)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_lengths_and_shares_of_ones_own(stack):
    """Steps, epochs, batch and share as asked for; a share's samples are those of its part, in every round."""
    p = play(stack)
    r = p.at(CLIENTS)
    assert r.steps().tolist() == [4, 2, 2, 6]
    assert r.steps(epochs=1).tolist() == [2, 1, 1, 3]
    assert r.steps(steps=5).tolist() == [5, 5, 5, 5]
    assert r.steps(epochs=1, batch=2, share=Share(0, 0.5)).tolist() == [1, 1, 1, 2]  # of 5, 2, 3, 7: 2, 1, 2, 4 samples
    seen = {}
    for t in (0, 1):
        p.t = t
        for share in (Share(0, 0.5), Share(0.5, 1), Share(0, 0.5, redraw=True)):
            plans = p.trainer.plans(CLIENTS, Length(epochs=1, share=share), Keys(0, "train", t))
            seen |= {(t, share, k): sorted(plan.order.tolist()) for k, plan in enumerate(plans)}
    low, high, drawn = Share(0, 0.5), Share(0.5, 1), Share(0, 0.5, redraw=True)
    for k, client in enumerate(CLIENTS):
        assert seen[0, low, k] == seen[1, low, k]
        assert sorted(seen[0, low, k] + seen[0, high, k]) == list(range(SIZES[client]))
    assert any(seen[0, drawn, k] != seen[1, drawn, k] for k in range(4))


def test_streams_do_not_disturb_each_other():
    """A walk in another stream changes no draw; a second one in the same stream draws anew."""

    def both(before=None):
        r = play().at(CLIENTS)
        if before is not None:
            r.train(r.task.initial, stream=before)
        return r.train(r.task.initial)

    alone = both()
    assert torch.equal(alone, both())
    assert torch.equal(alone, both("aside"))
    assert not torch.allclose(alone, both(""))


def test_a_client_trains_the_same_in_any_company(stack):
    p = play(stack)
    some, all_ = p.at([3]).train(p.task.initial), p.at([0, 1, 2, 3, 4]).train(p.task.initial)
    torch.testing.assert_close(some[0], all_[3], rtol=0, atol=1e-14)


def test_pinned():
    """Two rounds of training in two streams, in numbers: what loop = vmap can't see (a key that lacks a part)."""
    p = play(momentum=0.5)
    theta = p.at(CLIENTS).train(p.task.initial, stream="aside")
    p.t = 1
    theta = p.at(CLIENTS).train(theta)
    assert theta.sum(dim=1).tolist() == pytest.approx(
        [-3.474098385, -4.3197325114, -3.6321453697, -4.0660026128], abs=1e-9
    )


# -- walk -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("part", [None, "body", "head"])
def test_a_walk_that_descends_is_train(stack, optimiser, part):
    """b.descend on b.grad is r.train, frozen parts included."""
    p = play(stack, **OPTIMISERS[optimiser])
    only = part and getattr(p.task.layout, part)

    def step(m, b):
        return {"w": b.descend("w", m["w"], b.grad(m["w"], only=only), only=only)}

    start = p.task.initial.expand(4, -1)
    got = p.at(CLIENTS).walk({"w": start}, step)["w"]
    torch.testing.assert_close(got, p.at(CLIENTS).train(start, only=only), rtol=0, atol=1e-12)


def test_two_carries_have_two_optimisers(stack):
    """Moments belong to the carry's name: v, walked beside w, is as w alone from there."""
    p = play(stack, optimiser="adam")
    start = p.task.initial.expand(4, -1)

    def step(m, b):
        return {name: b.descend(name, m[name], b.grad(m[name])) for name in m}

    both = p.at(CLIENTS).walk({"w": start, "v": start + 1}, step)
    torch.testing.assert_close(both["v"], p.at(CLIENTS).train(start + 1), rtol=0, atol=1e-12)


def test_a_part_that_joins_late_starts_its_own_count(stack):
    """Two steps of the head, then of the body: Adam's count and moments are the part's, not shared.

    Each first step of Adam has length η in every column (m̂/√v̂ = ±1), whenever it is taken.
    """
    p = play(stack, optimiser="adam", lr=0.05)
    layout, start = p.task.layout, p.task.initial.expand(4, -1)

    def step(m, b):
        only = layout.head if b.j < 2 else layout.body
        return {"w": b.descend("w", m["w"], b.grad(m["w"], only=only), only=only)}

    two, three = (p.at(CLIENTS).walk({"w": start}, step, steps=steps)["w"] for steps in (2, 3))
    moved = (three - two).abs()
    assert (moved[:, layout.head] == 0).all()
    assert moved[:, layout.body].median().item() == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_one_tensor_under_two_names(stack, at):
    """A snapshot at step `at`, the last of some clients: theirs stays what it was when the others go on."""
    p = play(stack)
    start = p.task.initial.expand(4, -1)

    def step(m, b):
        w = b.descend("w", m["w"], b.grad(m["w"]))
        return {"w": w, "snap": w} if b.j + 1 == at else {"w": w}

    m = p.at(CLIENTS).walk({"w": start, "snap": torch.zeros_like(start)}, step)
    torch.testing.assert_close(m["w"], p.at(CLIENTS).train(start), rtol=0, atol=1e-12)
    for k, steps in enumerate((4, 2, 2, 6)):
        if at > steps:
            assert (m["snap"][k] == 0).all()
        elif at == steps:
            assert torch.equal(m["snap"][k], m["w"][k])
        else:
            (expected,) = p.at([CLIENTS[k]]).train(start[:1], steps=at)
            torch.testing.assert_close(m["snap"][k], expected, rtol=0, atol=1e-12)


def test_what_a_step_is_told(stack):
    """j, n, epoch and ends of each client: 5, 2, 3, 7 samples in batches of three, two epochs."""
    p = play(stack)
    seen = {k: [] for k in CLIENTS}

    def step(m, b):
        told = zip(m["k"].tolist(), b.n.tolist(), b.epoch.tolist(), b.ends.tolist(), strict=True)
        for k, n, epoch, ends in told:
            seen[int(k)].append((b.j, n, epoch, ends))
        assert b.lr == 0.1
        return {}

    p.at(CLIENTS).walk({"k": torch.tensor(CLIENTS)}, step)
    assert seen[1] == [(0, 2, 0, True), (1, 2, 1, True)]
    assert seen[0] == [(0, 3, 0, False), (1, 2, 0, True), (2, 3, 1, False), (3, 2, 1, True)]
    assert [s[1] for s in seen[4]] == [3, 3, 1, 3, 3, 1] and [s[0] for s in seen[4]] == list(range(6))


def test_losses_and_gradients_of_a_batch(stack):
    """b.loss and b.grad are means over real samples; `only` is zero elsewhere; a shared [P] goes to all."""
    p = play(stack)
    layout, w = p.task.layout, p.task.initial

    def step(m, b):
        for k, (client, n) in enumerate(zip(m["k"].tolist(), b.n.int().tolist(), strict=True)):
            leaf = w.clone().requires_grad_()
            mean = F.cross_entropy(p.task.net(leaf, b.x[k, :n]), b.y[k, :n])
            (g,) = torch.autograd.grad(mean, leaf)
            torch.testing.assert_close(b.loss(w)[k], mean.detach())
            torch.testing.assert_close(b.grad(w)[k], g)
            head = b.grad(w, only=layout.head)[k]
            torch.testing.assert_close(head[layout.head], g[layout.head])
            assert (head[layout.body] == 0).all() and client in CLIENTS
        return {}

    p.at(CLIENTS).walk({"k": torch.tensor(CLIENTS)}, step, epochs=1)


def test_padding_with_nan_in_the_data_is_never_seen():
    """Short batches are filled with the client's own samples: one client's NaN stays at home, in stacks too."""
    x = FEDERATION.pool.x.clone()
    x[FEDERATION.pool.index[2]] = math.nan
    x[0] = math.nan if 0 in FEDERATION.pool.index[2] else x[0]
    sick = Federation(FEDERATION.network, Pool(x, FEDERATION.pool.y, FEDERATION.pool.index), 3)
    theta = play(5, sick).at([0, 1, 2, 3, 4]).train(play().task.initial)
    assert [bool(row.isfinite().all()) for row in theta] == [True, True, False, True, True]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: {"v": m["w"]}, r"returned 'v', which is not in its carry \(w\) \(test_train.py:"),
        (lambda m: {"w": m["w"].sum(dim=1)}, r"a float64 tensor \[\d\] as 'w'; expected a float64 tensor \[\d, 27\]"),
        (lambda m: {"w": m["w"].float()}, r"a float32 tensor \[\d, 27\] as 'w'; expected a float64 tensor \[\d, 27\]"),
    ],
)
def test_wrong_steps(stack, wrong, message):
    p = play(stack)
    with pytest.raises(PflOpsError, match=message):
        p.at(CLIENTS).walk({"w": p.task.initial.expand(4, -1)}, lambda m, b: wrong(m))


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda net, w, x, y: F.cross_entropy(net(w, x), y), r"\[\]"),
        (lambda net, w, x, y: net(w, x), r"\[3, 3\]"),
        (lambda net, w, x, y: F.cross_entropy(net(w, x), y, reduction="none")[:, None], r"\[3, 1\]"),
    ],
)
def test_wrong_losses(stack, loss, got):
    p = play(stack)
    with pytest.raises(PflOpsError, match=rf"must give one value a sample, \[B\]; got {got} for B = 3"):
        p.at([0, 4]).train(p.task.initial, loss)


def test_a_carry_needs_a_row_for_each_client(stack):
    p = play(stack)
    with pytest.raises(PflOpsError, match="one row for each client: 4 clients"):
        p.at(CLIENTS).walk({"w": p.task.initial}, lambda m, b: {})


def test_float32_stays_float32(stack):
    """Integer counts divide without turning anything into another type."""
    p = play(stack, precision="float32")
    r = p.at(CLIENTS)
    theta = r.train(p.task.initial)
    change = (p.task.initial - theta) / (r.steps()[:, None] * r.lr)
    assert {v.dtype for v in (theta, change, r.weights @ theta, r.n / r.n.sum(), r.losses(theta))} == {torch.float32}


def test_bfloat16_sees_every_update(stack):
    """Autocast's cache of weights must not outlive a step: after 12 steps the result is near float32's."""
    trained = {}
    for lower in (False, True):
        p = play(stack, precision="float32", local_epochs=None, local_steps=12, lr=0.5)
        p.trainer.passes.bfloat16 = lower
        trained[lower] = p.at(CLIENTS).train(p.task.initial)
    far = (trained[False] - p.task.initial).abs().max()
    gap = (trained[True] - trained[False]).abs().max()
    assert 0 < gap < 0.05 * far and trained[True].dtype == torch.float32


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_convolutional_network_in_both_ways(optimiser):
    """uint8 images, normalised on the way; loop, stacks of two and of three agree, and a part may be frozen."""
    draws = np.random.default_rng(0)
    sizes = [5, 2, 4]
    x = torch.from_numpy(draws.integers(0, 256, (11, 8, 8, 1), dtype=np.uint8))
    index = list(torch.randperm(11, generator=torch.Generator().manual_seed(0)).split(sizes))
    torch.manual_seed(0)
    federation = Federation(
        CNNTiny((8, 8, 1), 3).double(), Pool(x, torch.from_numpy(draws.integers(0, 3, 11)), index), 3
    )
    ways = {}
    for way in (None, 2, 3):
        p = play(way, federation, **OPTIMISERS[optimiser])
        p.trainer.feed.mean.fill_(100.0)
        p.trainer.feed.scale.fill_(1 / 50)
        r = p.at([0, 1, 2])
        ways[way] = torch.stack([r.train(p.task.initial), r.train(p.task.initial, only=p.task.layout.head)])
    for way in (2, 3):
        torch.testing.assert_close(ways[way], ways[None], rtol=0, atol=1e-10)
    x_0, y_0 = p.trainer.feed.batch(index[1])
    module = copy.deepcopy(federation.network)
    torch.testing.assert_close(x_0, ((x[index[1]].double() - 100) / 50).movedim(-1, 1))
    torch.testing.assert_close(Net(module)(p.task.initial, x_0), module(x_0))
    assert y_0.tolist() == federation.pool.y[index[1]].tolist()


def test_a_feed_normalises_each_channel():
    """uint8 [n, H, W, C] by the data set's constants, in any arrangement of sample numbers."""
    x = torch.arange(2 * 2 * 3 * 2, dtype=torch.uint8).view(2, 2, 3, 2)
    feed = Feed(Pool(x, torch.tensor([4, 5]), [torch.tensor([1]), torch.tensor([0])]), np.array([1.0, 2.0]),
                np.array([2.0, 4.0]), torch.device("cpu"), torch.float64)  # fmt: skip
    images, labels = feed.batch(torch.tensor([[1, 0, 1]]))
    assert images.shape == (1, 3, 2, 2, 3) and labels.tolist() == [[5, 4, 5]]
    expected = ((x[1].double() - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])).movedim(-1, 0)
    torch.testing.assert_close(images[0, 0], expected)
    assert feed.x.dtype == torch.uint8


def test_a_network_of_any_layers_trains_in_both_ways():
    """GroupNorm and the like have no stacked form of their own; vmap gives them one."""
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Softplus(), nn.Unflatten(1, (2, 3)),
                                 nn.Conv1d(2, 2, 2), nn.Flatten())  # fmt: skip
    network.head = nn.Linear(4, 3)
    federation = Federation(network.double(), FEDERATION.pool, 3)
    loop, stacked = (play(way, federation, momentum=0.9).at(CLIENTS) for way in (None, 3))
    torch.testing.assert_close(loop.train(loop.task.initial), stacked.train(stacked.task.initial), rtol=0, atol=1e-10)
