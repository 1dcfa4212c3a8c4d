import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from pfl_ops.algorithms.channels import Channels
from pfl_ops.algorithms.fedas import FedAS
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, ragged_task

SAMPLES = (  # (x, y) of each client
    [(1.0, 4)],
    [(1.0, 1), (0.5, 3), (-1.0, 2)],
    [(2.0, 1), (1.0, 0)],
)
A, H = np.array([0.75, -0.5]), np.array([1.0, 0.5])
LR, ALIGN_LR = 0.125, 0.5


def squared(net, w, x, y):
    """½ (h·f − y)², f = a x: two features, the label is the target."""
    return 0.5 * (net(w, x)[:, 0] - y).square()


def federation(clients=SAMPLES):
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 2, bias=False, dtype=torch.float64))
    network.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        network.body[0].weight.copy_(torch.from_numpy(A[:, None]))
        network.head.weight.copy_(torch.from_numpy(H[None]))
    x = torch.tensor([[x] for own in clients for x, _ in own], dtype=torch.float64)
    y = torch.tensor([y for own in clients for _, y in own])
    index = list(torch.arange(len(x)).split([len(own) for own in clients]))
    return Federation(network, Pool(x, y, index), 5, squared)


def training(**how):
    return Training(**{"rounds": 3, "batch_size": None, "lr": LR, "precision": "float64", **how})


def residuals(model, own):
    a, h = model
    return [(a @ h * x - y, x) for x, y in own]


def step(model, own):
    """∇_a = mean e x h, ∇_h = mean e x a, e = h·a x − y."""
    a, h = model
    slope = np.mean([e * x for e, x in residuals(model, own)])
    return a - LR * slope * h, h - LR * slope * a


def aligned(a, old, own):
    """∇_a mean over samples and both features of (a x − a_old x)² = (a − a_old) mean x²."""
    return a - ALIGN_LR * (a - old) * np.mean([x * x for x, _ in own])


def trace(model, own):
    """Mean of ‖∇‖² = e² x² (‖a‖² + ‖h‖²)."""
    a, h = model
    return np.mean([e * e * x * x for e, x in residuals(model, own)]) * (a @ a + h @ h)


def flat(a, h):
    return pytest.approx(np.concatenate([a, h]))


def test_two_rounds_by_hand():
    """One full-batch step of each kind; clients 0 and 1, then 0 and 2, whose first training nothing is aligned before.

    The weights are the traces', not n_k's (1, 3, 2), and the change counts from Θ_body as received.
    """
    play = MethodSimulation(federation(), FedAS(align_lr=ALIGN_LR), training())
    zero, one, two = SAMPLES

    (a0, h0), (a1, h1) = step((A, H), zero), step((A, H), one)
    t0, t1 = trace((a0, h0), zero), trace((a1, h1), one)
    a = A + (t0 * (a0 - A) + t1 * (a1 - A)) / (t0 + t1)
    first = play.round([0, 1])
    assert first["L2"].tolist() == [flat(a0, h0), flat(a1, h1)]
    assert first["G"].tolist() == flat(a, (h0 + h1 + H) / 3)
    assert first["L1"].tolist() == [flat(aligned(a, a0, zero), h0), flat(aligned(a, a1, one), h1), flat(a, H)]

    (b0, k0), (b2, k2) = step((aligned(a, a0, zero), h0), zero), step((a, H), two)
    t0, t2 = trace((b0, k0), zero), trace((b2, k2), two)
    b = a + (t0 * (b0 - a) + t2 * (b2 - a)) / (t0 + t2)
    last = play.round([0, 2])
    assert last["L2"].tolist() == [flat(b0, k0), flat(b2, k2)]
    assert last["G"].tolist() == flat(b, (k0 + h1 + k2) / 3)
    held = flat(aligned(b, b0, zero), k0), flat(aligned(b, a1, one), h1), flat(aligned(b, b2, two), k2)
    assert last["L1"].tolist() == list(held), "client 1 aligns to where it was a round ago"


def after_one(method, **how):
    """A play after a round of clients 0 and 1, and what they trained."""
    play = MethodSimulation(federation(), method, training(**how))
    return play, play.round([0, 1])


@pytest.mark.parametrize("how", [{"optimiser": "adam"}, {"momentum": 0.9, "weight_decay": 0.5}])
def test_alignment_is_plain_sgd_whatever_trains(how):
    """B = 1: a pass of client 1's three steps a ← a − η_align (a − a_old) x², in some order; the factors commute."""
    play, first = after_one(FedAS(align_lr=ALIGN_LR), **how, batch_size=1)
    a, old = first["G"][:2].numpy(), first["L2"][1, :2].numpy()
    left = np.prod([1 - ALIGN_LR * x * x for x, _ in SAMPLES[1]])
    assert play.personal().params[1, :2].tolist() == pytest.approx(old + left * (a - old))


def test_eq_3_by_the_letter():
    """One step of 1 on the sum over samples and features: a ← a − 2 (a − a_old) Σ x², whatever η_align and B."""
    play, first = after_one(FedAS(align_rule="letter"), batch_size=2)
    a = first["G"][:2].numpy()
    for k, own in enumerate(SAMPLES[:2]):
        old = first["L2"][k, :2].numpy()
        expected = a - 2 * (a - old) * sum(x * x for x, _ in own)
        assert play.personal().params[k, :2].tolist() == pytest.approx(expected)


def test_alignment_off():
    play, first = after_one(FedAS(align="off"))
    assert play.personal().params[:, :2].tolist() == [first["G"][:2].tolist()] * 3
    assert FedAS(align=False) == FedAS(align="off") and FedAS(align=True) == FedAS()


def test_alignment_beside_training():
    """∇_a gains μ (a − a_old) mean x²; nothing happens on receipt, and client 2, never trained, lacks the term."""
    play, first = after_one(FedAS(align="parallel", align_weight=0.75))
    a = first["G"][:2].numpy()
    assert play.personal().params[0, :2].tolist() == pytest.approx(a)
    last = play.round([1, 2])
    for row, k, weight in ((0, 1, 0.75), (1, 2, 0.0)):
        own, old = SAMPLES[k], first["L2"][1, :2].numpy()
        head = first["L1"][k, 2:].numpy()
        b, h = step((a, head), own)
        b = b - LR * weight * (a - old) * np.mean([x * x for x, _ in own])
        assert last["L2"][row].tolist() == flat(b, h)


def test_alignment_to_the_others():
    """To the class means of all other clients' last features; classes that nobody else has stay out of it."""
    play = MethodSimulation(
        ragged_task((4, 3, 5), classes=4, seed=5), FedAS(align="global", align_lr=0.3), training(lr=0.5)
    )
    play.round([0, 1])
    first = {0: play.state["old"][torch.tensor([0])][0], 1: play.state["old"][torch.tensor([1])][0]}
    last = play.round([1, 2])
    olds = {**first, 1: last["state/old"][1], 2: last["state/old"][2]}
    net, pool, body = play.task.net, play.trainer.feed, play.task.layout.body
    unknown = 0
    for k in range(3):
        own = pool.index[k]
        sums, counts = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
        for j in set(range(3)) - {k}:
            theirs = pool.index[j]
            f = net.features(olds[j], pool.x[theirs])
            for i, c in enumerate(pool.y[theirs].tolist()):
                sums[c] += f[i]
                counts[c] += 1
        a = play.state["central"][body].clone().requires_grad_()
        away = [
            (f - sums[c] / counts[c]).square().mean()
            for f, c in zip(net.features(a, pool.x[own]), pool.y[own].tolist(), strict=True)
            if counts[c]
        ]
        unknown += len(own) - len(away)
        (g,) = torch.autograd.grad(sum(away) / len(own), a)
        torch.testing.assert_close(last["L1"][k, body], a.detach() - 0.3 * g)
    assert unknown, "every class is somebody else's, too"


def test_what_is_noted():
    """α' and α as they went into the average; nothing of α where it is not asked for."""
    _, first = after_one(FedAS())
    models = [(w[:2], w[2:]) for w in first["L2"].numpy()]
    alpha = [trace(model, SAMPLES[k]) for k, model in enumerate(models)]
    assert first["note/trace"].tolist() == pytest.approx(alpha)
    assert first["note/weight"].tolist() == pytest.approx([a / sum(alpha) for a in alpha])
    _, plain = after_one(FedAS(synchronize=False))
    assert plain["note/weight"].tolist() == [0.5, 0.5] and "note/trace" not in plain


def test_the_probe_puts_back_what_matters_most():
    """Full batches: a parameter's Fisher information is its squared gradient; a third of 27 parameters is 9."""
    play = MethodSimulation(ragged_task(), FedAS(substitute=1 / 3), training(local_epochs=6, lr=2.0))
    first = play.round()
    net, feed, columns = play.task.net, play.trainer.feed, set()
    for k, w in enumerate(first["L2"]):
        x, y = feed.x[feed.index[k]], feed.y[feed.index[k]]
        leaf = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(leaf, x), y), leaf)
        top = g.square().topk(9).indices
        columns.add(tuple(sorted(top.tolist())))
        back = w.clone()
        back[top] = play.task.initial[top]
        assert first["note/top"][k] == (net(back, x).argmax(dim=1) == y).double().mean()
        assert first["note/whole"][k] == (net(w, x).argmax(dim=1) == y).double().mean()
    assert len(columns) == 5, "every client has parameters of its own that matter"
    assert first["note/top"].mean() < first["note/whole"].mean()
    unseen = MethodSimulation(ragged_task(), FedAS(), training(local_epochs=6, lr=2.0)).round()
    assert torch.equal(first["L2"], unseen["L2"]) and torch.equal(first["G"], unseen["G"])


def test_alignment_never_touches_another_client():
    """Other clients make no difference, and Θ is as it was: no body that clients change in turn."""
    how = training(batch_size=3, rounds=2, local_epochs=2, lr=0.2)
    alone, together = (MethodSimulation(ragged_task(), FedAS(align_lr=0.5), how) for _ in range(2))
    alone.round()
    before = together.round()
    everyone = together.personal().params
    for k in reversed(range(5)):
        torch.testing.assert_close(together.personal(torch.tensor([k])).params[0], everyone[k])
    assert torch.equal(together.values()["state/central"], before["state/central"])
    one, all_of_them = alone.round([3])["L2"], together.round()["L2"]
    torch.testing.assert_close(one[0], all_of_them[3])


@pytest.mark.parametrize("batch", [1, 2, None])
def test_fisher_variants(batch):
    """With S = Σ e x over a set of samples, ‖Σ ∇‖² = S² (‖a‖² + ‖h‖²): over the client, or over each batch's mean."""
    found = {}
    for kind in ("sample", "dataset", "batch"):
        play = MethodSimulation(federation(), FedAS(fisher=kind), training(batch_size=batch))
        r = play.at([0, 1, 2])
        found[kind] = play.method._trace(r, play.task.initial.expand(3, -1)).tolist()
    size = A @ A + H @ H
    assert found["sample"] == pytest.approx([trace((A, H), own) for own in SAMPLES])
    sums = [sum(e * x for e, x in residuals((A, H), own)) for own in SAMPLES]
    assert found["dataset"] == pytest.approx([s * s * size for s in sums])
    if batch == 1:
        assert found["batch"] == pytest.approx([len(own) * trace((A, H), own) for own in SAMPLES])
    elif batch is None:
        assert found["batch"] == pytest.approx([(s / len(o)) ** 2 * size for s, o in zip(sums, SAMPLES, strict=True)])
    else:  # clients 0 and 2 have one batch; client 1 has two of its three samples, and one
        assert found["batch"][2] == pytest.approx((sums[2] / 2) ** 2 * size)
        e = [e * x for e, x in residuals((A, H), SAMPLES[1])]
        pairs = [((sum(e) - alone) / 2) ** 2 + alone**2 for alone in e]
        assert any(found["batch"][1] == pytest.approx(pair * size) for pair in pairs)


@pytest.mark.parametrize(
    ("how", "traces", "expected"),
    [
        ("proportional", [1, 3, 4], [1 / 8, 3 / 8, 4 / 8]),
        ("proportional", [0, 0, 0], [1 / 3] * 3),
        ("softmax", [0, math.log(3), math.log(4)], [1 / 8, 3 / 8, 4 / 8]),
        ("softmax", [1e4, 1e4, 0], [1 / 2, 1 / 2, 0]),
        ("min_max", [1, 3, 4], [0, 2 / 5, 3 / 5]),
        ("min_max", [7, 7, 7], [1 / 3] * 3),
    ],
)
def test_weights(how, traces, expected, monkeypatch):
    """α' sums to 1; where α says nothing, clients weigh alike."""
    play = MethodSimulation(federation(), FedAS(normalise=how), training())
    monkeypatch.setattr(FedAS, "_trace", lambda self, r, w: torch.tensor(traces, dtype=torch.float64))
    found = play.method._weights(play.at([0, 1, 2]), play.task.initial)
    assert found.tolist() == pytest.approx(expected) and float(found.sum()) == pytest.approx(1)


def test_drawn_twice_counts_twice(monkeypatch):
    monkeypatch.setattr(FedAS, "_trace", lambda self, r, w: torch.tensor([1.0, 3.0], dtype=torch.float64))
    for synchronize, expected in ((True, [2 / 5, 3 / 5]), (False, [2 / 3, 1 / 3])):
        play = MethodSimulation(federation(), FedAS(synchronize=synchronize), training())
        assert play.method._weights(play.at([0, 0, 1]), play.task.initial).tolist() == pytest.approx(expected)


def test_synchronisation_off_is_a_plain_mean():
    """Of bodies, though n_k are 1 and 3 and the experiment weighs by samples."""
    _, first = after_one(FedAS(synchronize=False))
    assert first["G"][:2].tolist() == pytest.approx(first["L2"][:, :2].mean(dim=0).tolist())


def test_eq_8_with_its_further_1_over_m():
    _, plain = after_one(FedAS())
    _, shrunk = after_one(FedAS(shrink=True))
    half = [(a + b) / 2 for a, b in zip(plain["G"][:2].tolist(), A, strict=True)]
    assert shrunk["G"][:2].tolist() == pytest.approx(half)
    _, without = after_one(FedAS(shrink=True, synchronize=False))
    assert without["G"][:2].tolist() == pytest.approx(without["L2"][:, :2].mean(dim=0).tolist())


def test_channels_in_the_place_of_body_and_head():
    """Only shared columns are aligned, by f of the whole model; private ones, in body and head, stay as they were."""
    method = FedAS(split="channels", align_lr=0.5, channels=Channels(share=1.0, temporal=False))
    play = MethodSimulation(ragged_task(hidden=4), method, training(rounds=3, lr=0.5))
    play.run([None, None])
    play.t = 1
    private = method.channels.private(play.task, 1)
    held = play.personal().params
    kept, own = method._kept(play.task), play.state["own"][play.everyone]
    assert not own[:, ~private[kept]].any(), "what is not yet private is nobody's own"
    bare = play.state["central"].repeat(5, 1)
    bare[:, kept] += own
    body = torch.arange(len(private)) < play.task.layout.body.stop
    assert torch.equal(held[:, private | ~body], bare[:, private | ~body])
    assert (held[:, ~private & body] != bare[:, ~private & body]).all() and private[body].any()
    leaf = bare[0].clone().requires_grad_()
    net, feed = play.task.net, play.trainer.feed
    x, old = feed.x[feed.index[0]], play.state["old"][torch.tensor([0])][0]
    (g,) = torch.autograd.grad((net.features(leaf, x) - net.features(old, x)).square().mean(), leaf)
    torch.testing.assert_close(held[0], bare[0] - 0.5 * g * ~private)


def test_alignment_beside_training_needs_the_head_split():
    with pytest.raises(ValidationError, match="align parallel needs split head"):
        FedAS(split="channels", align="parallel")


@pytest.mark.parametrize("split", ["head", "channels"])
def test_a_network_without_a_body_is_refused(split):
    with pytest.raises(PflOpsError, match="fedas shares the body of a network, and this one has no body"):
        quadratic_play(FedAS(split=split), [0, 6])


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        (FedAS(), 15 + 1, 15),
        (FedAS(synchronize=False), 15, 15),
        (FedAS(align="global"), 15 + 1 + 12, 15 + 12),
        (FedAS(split="channels"), 27 + 1, 27),
    ],
)
def test_what_is_sent(method, up, down):
    """Of 15 parameters in the body and 12 in the head; α; L (D + 1) = 12 class sums and counts."""
    play = MethodSimulation(ragged_task(), method, training())
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (up, down)


class TestContract(AlgorithmContract):
    algorithm = FedAS()
    pairs: ClassVar = {
        "align_weight": (FedAS(align="parallel"), FedAS(align="parallel", align_weight=3.0)),
        "channels": (FedAS(split="channels"), FedAS(split="channels", channels=Channels(share=1.0))),
    }
    federation = ragged_task(hidden=4)


class TestContractWithChannels(AlgorithmContract):
    algorithm = FedAS(split="channels", align="global", fisher="batch", channels=Channels(share=1.0), substitute=0.3)
    pairs: ClassVar = {
        "align_weight": TestContract.pairs["align_weight"],
        "channels": TestContract.pairs["channels"],
        "align": (FedAS(split="channels"), FedAS(split="channels", align="off")),
    }
    federation = ragged_task(hidden=4)
