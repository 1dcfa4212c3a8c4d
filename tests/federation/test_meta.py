"""Several batches in one step, and Hessian-vector products: what meta-learning asks of a walk."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops import Experiment
from pfl_ops.algorithms.local import Local
from pfl_ops.data.clients import Pool
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.settings import Execution, Training
from pfl_ops.models.char_lstm import CharLSTM
from pfl_ops.testing import Federation, MethodSimulation, quadratic_task, ragged_task

FEDERATION = ragged_task((5, 2, 8, 3, 7))
CLIENTS = [0, 1, 3, 4]
WAYS = [None, 1, 2, 4]  # loop; stacks of one, of two, of all


def play(stack=None, federation=FEDERATION, **how):
    """Two epochs of batches of three: 4, 2, 2 and 6 steps for the clients above, the last of an epoch short."""
    how = {"rounds": 2, "local_epochs": 2, "batch_size": 3, "lr": 0.1, "precision": "float64", **how}
    return MethodSimulation(federation, Local(), Training(**how), stack=stack)


@pytest.fixture(params=WAYS, ids=["loop", "stacks of 1", "stacks of 2", "stack of 4"])
def stack(request):
    return request.param


# -- several batches --------------------------------------------------------------------------------------------------


def seen(p, batches, **how):
    """Inputs of each client's real samples, by client and batch: a list of [n, d], one a step."""
    found = {(k, i): [] for k in CLIENTS for i in range(batches)}

    def step(m, *given):
        assert len(given) == batches
        for i, b in enumerate(given):
            assert torch.equal(b.n, given[0].n) and torch.equal(b.ends, given[0].ends) and b.j == given[0].j
            for row, (k, n) in enumerate(zip(m["k"].tolist(), b.n.int().tolist(), strict=True)):
                found[k, i].append(b.x[row, :n].clone())
        return {}

    p.at(CLIENTS).walk({"k": torch.tensor(CLIENTS)}, step, batches=batches, **how)
    return found


def test_each_batch_goes_through_the_data_in_its_own_order(stack):
    """In an epoch each of three batches shows each sample once; the orders are not those of one another."""
    found = seen(play(stack), 3, epochs=1)
    for k in CLIENTS:
        own = FEDERATION.pool.x[FEDERATION.pool.index[k]]
        orders = [torch.cat(found[k, i]) for i in range(3)]
        for order in orders:
            assert sorted(order.tolist()) == sorted(own.tolist())
    assert not torch.equal(torch.cat(found[4, 0]), torch.cat(found[4, 1]))
    assert not torch.equal(torch.cat(found[4, 1]), torch.cat(found[4, 2]))


def test_the_first_batch_is_that_of_a_plain_walk(stack):
    """So a method that takes one more batch trains on what it did; and a further one moves none before it."""
    one, two, three = (seen(play(stack), batches) for batches in (1, 2, 3))
    for k in CLIENTS:
        for key, less, more in (((k, 0), one, two), ((k, 0), two, three), ((k, 1), two, three)):
            assert all(map(torch.equal, less[key], more[key])) and len(less[key]) == len(more[key])


def test_batches_are_drawn_alike_in_any_company():
    """A client's batches depend on its own keys, not on who is stacked with it, nor on other streams."""
    alone, stacked = seen(play(None), 2, stream="meta"), seen(play(4), 2, stream="meta")
    assert all(all(map(torch.equal, alone[key], stacked[key])) for key in alone)
    other = seen(play(None), 2, stream="other")
    assert not all(map(torch.equal, alone[4, 1], other[4, 1]))


def test_all_batches_come_from_the_share():
    """A share of the data is cut once: no batch shows a sample outside it."""
    found = seen(play(), 3, epochs=1, share=Share(0.0, 0.5))
    shown = [sorted(torch.cat(found[4, i]).tolist()) for i in range(3)]
    assert len(shown[0]) == 4 and shown[0] == shown[1] == shown[2]


def test_moments_belong_to_the_carry_whichever_batch_descends(stack):
    """Adam on alternating batches is one optimiser: its second step is no first one, which has length η everywhere."""
    p = play(stack, optimiser="adam", lr=0.05)
    start = p.task.initial.expand(4, -1)

    def step(m, b, other):
        of = b if b.j % 2 == 0 else other
        return {"w": of.descend("w", m["w"], torch.ones_like(m["w"]) * (1 + b.j))}

    def plain(m, b):
        return {"w": b.descend("w", m["w"], torch.ones_like(m["w"]) * (1 + b.j))}

    both = p.at(CLIENTS).walk({"w": start}, step, batches=2, steps=3)["w"]
    assert torch.equal(both, p.at(CLIENTS).walk({"w": start}, plain, steps=3)["w"])


# -- Hessian-vector products ------------------------------------------------------------------------------------------


def direction(w, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=tuple(w.shape))).to(w)


def squared(net, w, x, y, scale):
    """A loss of a method's own, with a row for each client."""
    return scale * (net(w, x) - y[:, None]).square().sum(dim=1)


@pytest.mark.parametrize("own", [False, True], ids=["cross-entropy", "own loss"])
def test_hvp_is_the_hessian_times_the_vector(stack, own):
    """Against the whole Hessian [27, 27] of each client's mean loss over its real samples, by `torch.func.hessian`.

    `only` is the block of the Hessian in those columns; rows are independent; nothing is counted as a loss.
    """
    p = play(stack)
    net, layout, start = p.task.net, p.task.layout, p.task.initial.expand(4, -1)
    w, v = start + 0.3 * direction(start), direction(start, 1)
    carry = {"w": w, "v": v, "scale": torch.linspace(0.5, 2, 4, dtype=torch.float64)}
    shown = []

    def step(m, b):
        loss, ctx = (squared, {"scale": m["scale"]}) if own else (None, {})
        got = b.hvp(m["w"], m["v"], loss, ctx=ctx)
        head = b.hvp(m["w"], m["v"], loss, only=layout.head, ctx=ctx)
        shared = b.hvp(p.task.initial, m["v"][0], loss, ctx=ctx)
        assert not got.requires_grad
        for k, n in enumerate(b.n.int().tolist()):
            x, y, scale = b.x[k, :n], b.y[k, :n], m["scale"][k]

            def mean(w, x=x, y=y, scale=scale):
                return squared(net, w, x, y, scale).mean() if own else F.cross_entropy(net(w, x), y)

            h = torch.func.hessian(mean)(m["w"][k])
            torch.testing.assert_close(got[k], h @ m["v"][k], rtol=0, atol=1e-12)
            block = h[layout.head, layout.head] @ m["v"][k, layout.head]
            torch.testing.assert_close(head[k, layout.head], block, rtol=0, atol=1e-12)
            assert (head[k, layout.body] == 0).all()
            expected = torch.func.hessian(mean)(p.task.initial) @ m["v"][0]
            torch.testing.assert_close(shared[k], expected, rtol=0, atol=1e-12)
            shown.append(k)
        return {}

    p.trainer.meter.clear()
    p.at(CLIENTS).walk(carry, step, epochs=1)
    assert len(shown) == 2 + 1 + 1 + 3 and p.trainer.meter.mean is None


def test_hvp_of_quadratics():
    """F_k(w) = ½ ‖w − b_k‖² has the Hessian 1, whatever the batch."""
    p = MethodSimulation(quadratic_task([0.0, 6.0], [1, 3]), Local(), Training(rounds=1, precision="float64"), stack=2)
    carry = {"w": torch.zeros(2, 1, dtype=torch.float64)}

    def step(m, b):
        return {"w": b.hvp(m["w"], torch.tensor([[2.0], [-3.0]], dtype=torch.float64)[: len(m["w"])])}

    assert p.at([0, 1]).walk(carry, step, steps=1)["w"].tolist() == [[2.0], [-3.0]]


def linear(net, w, x, y):
    return (w * torch.arange(len(w)).to(w)).sum().expand(len(x))


def linear_in_the_body(net, w, x, y):
    return net.features(w, x).sum(dim=1) + w[net.layout.head].sum()


def test_hvp_of_a_loss_without_curvature_is_zero(stack):
    """A loss that is linear in w, or in the columns that are asked for, has a gradient that depends on nothing."""
    p = play(stack)
    w = p.task.initial.expand(4, -1)

    def step(m, b):
        v = torch.ones_like(m["w"])
        assert torch.equal(b.hvp(m["w"], v, linear), torch.zeros_like(v))
        assert torch.equal(b.hvp(m["w"], v, linear_in_the_body, only=p.task.layout.head), torch.zeros_like(v))
        return {}

    p.at(CLIENTS).walk({"w": w}, step, steps=1)


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_hvp_in_other_precisions(stack, precision, within):
    """The dtype stays float32; it is float64's within the precision."""
    found = {}
    for name in ("float64", precision):
        p = play(stack, precision="float32" if name != "float64" else name)
        p.trainer.passes.bfloat16 = name == "bfloat16"
        w = p.task.initial.expand(4, -1)
        v = direction(w)
        found[name] = p.at(CLIENTS).walk({"w": w}, lambda m, b, v=v: {"w": b.hvp(m["w"], v[: len(m["w"])])}, steps=1)
    got, exact = found[precision]["w"], found["float64"]["w"]
    assert got.dtype == torch.float32
    assert (got.double() - exact).norm() <= within * exact.norm()


def quotient(b, w, v, eps=1e-6):
    """(∇F(w + εv) − ∇F(w − εv)) / 2ε: between kinks it differs from H v by O(ε²)."""
    return (b.grad(w + eps * v) - b.grad(w - eps * v)) / (2 * eps)


def check_quotients(r):
    """Compare `hvp` and `quotient` on a batch of four of each client."""
    w = r.task.initial.expand(len(r.cohort), -1)
    v = direction(w)
    errors = []

    def step(m, b):
        rows = len(m["w"])
        got, near = b.hvp(m["w"], v[:rows]), quotient(b, m["w"], v[:rows])
        errors.append(float((got - near).norm() / near.norm()))
        return {}

    r.walk({"w": w}, step, steps=1, batch=4)
    assert errors and max(errors) < 1e-5


@pytest.mark.parametrize("model", ["mlp", "cnn", "cnn_tiny"])
@pytest.mark.parametrize("way", [{"way": "loop"}, {"way": "vmap", "chunk": 3}], ids=["loop", "stack of 3"])
def test_hvp_of_convolutional_networks(model, way):
    """Convolutions and pooling have second derivatives, stacked too."""
    experiment = Experiment.of(
        "fedavg", dataset="digits", model=model, clients=3, train_size=60, precision="float64", local_steps=1
    )
    simulation = experiment.build(execution=Execution(device="cpu", workers=1, threads=1, **way))
    check_quotients(simulation.round_at(0, torch.arange(3)))


def test_hvp_of_a_recurrent_network():
    """An embedding and LSTM layers, one client at a time, as they always run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = CharLSTM((6,), 7, characters=7, embedding=3, hidden=5).double()
    draws = np.random.default_rng(0)
    codes, labels = draws.integers(0, 7, (12, 6)), draws.integers(0, 7, 12)
    pool = Pool(torch.from_numpy(codes), torch.from_numpy(labels), list(torch.arange(12).split([5, 7])))
    check_quotients(play(None, Federation(network, pool, 7)).at([0, 1]))


def test_a_layer_without_second_derivative_says_so():
    """PyTorch's own words: nothing is approximated silently."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * g

    def once(net, w, x, y):
        return Once.apply(net(w, x)).square().sum(dim=1)

    p = play(None)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        w = p.task.initial.expand(1, -1)
        p.at([0]).walk({"w": w}, lambda m, b: {"w": b.hvp(m["w"], m["w"], once)}, steps=1)


def test_recurrent_layers_are_differentiated_twice_without_cudnn():
    """cuDNN has no second derivative of its recurrent layers; other networks keep cuDNN."""
    p = play()
    with p.trainer.passes.twice_differentiable():
        assert torch.backends.cudnn.enabled
    p.task.net.network.extra = nn.LSTM(2, 2)
    try:
        with p.trainer.passes.twice_differentiable():
            assert not torch.backends.cudnn.enabled
    finally:
        del p.task.net.network.extra
    assert torch.backends.cudnn.enabled
