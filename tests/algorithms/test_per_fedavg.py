from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.per_fedavg import PerFedAvg
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task

FULL = Training(rounds=2, local_epochs=None, local_steps=1, batch_size=None, lr=0.5, precision="float64")


def test_two_rounds_by_hand(curved):
    """f_k(w) = mean of ½ a (w − b)², one full-batch step a round, α = ½, η = ½.

    With curvature ā and minimum c a client has ∇f(w) = ā (w − c) and H = ā, so ∇f(w̃) = (1 − αā) ā (w − c) and

        w ← w − η (1 − αā)² ā (w − c).                     FO would have (1 − αā), plain training (1 − αā)⁰

    Client 0: (1, 8): ā = 1, c = 8.    Client 1: (1, 0), (2, 0), (3, 0): ā = 2, c = 0, so αā = 1: it stays.
    Client 2: (4, 4), (2, 4): ā = 3, c = 4, so 1 − αā = −½. Θ = 4 at the start; the mean is plain, n = (1, 3, 2).

    Round 1, clients 0, 1   w_0 = 4 − ½·¼·1·(−4) = 4.5,  w_1 = 4                        Θ ← 4.25
             L2 = Θ − ½ ∇f_k(Θ)    v_0 = 4.25 + ½·3.75 = 6.125,  v_1 = 4.25 − ½·2·4.25 = 0
    Round 2, clients 0, 2   w_0 = 4.25 + ⅛·3.75 = 4.71875,  w_2 = 4.25 − ½·¼·3·0.25 = 4.15625    Θ ← 4.4375
             v_0 = 4.4375 + ½·3.5625 = 6.21875,  v_2 = 4.4375 − ½·3·0.4375 = 3.78125
    """
    clients = [[(1.0, 8.0)], [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)], [(4.0, 4.0), (2.0, 4.0)]]
    play = MethodSimulation(curved(clients, start=4.0), PerFedAvg(alpha=0.5), FULL)
    first, last = play.run([[0, 1], [0, 2]])
    assert first["G"].tolist() == first["L1"].tolist() == [4.25]
    assert first["L2"].tolist() == [[6.125], [0.0]]
    assert last["G"].tolist() == last["L1"].tolist() == play.state["central"].tolist() == [4.4375]
    assert last["L2"].tolist() == [[6.21875], [3.78125]]


def quartic(net, w, x, y):
    """¼ w⁴ a sample: ∇f = w³, H = 3 w²."""
    return 0.25 * w.pow(4).sum().expand(len(x))


@pytest.mark.parametrize(
    ("variant", "g"),
    [
        # w = 1, α = ¼: w̃ = ¾, ∇f(w̃) = 27/64, H = 3
        ("exact", 27 / 64 * (1 - 3 / 4)),
        # ((1 + δg)³ − (1 − δg)³) / 2δ = 3g + δ²g³ with δ = ½
        ("hf", 27 / 64 - 1 / 4 * (3 * 27 / 64 + 1 / 4 * (27 / 64) ** 3)),
        ("fo", 27 / 64),
    ],
)
def test_variants_by_hand(variant, g, curved):
    """On ¼ w⁴ the three variants take three different steps w ← 1 − β g; β is given, and η would be twice that."""
    federation = curved([[(1.0, 1.0)]], start=1.0)
    federation = type(federation)(federation.network, federation.pool, 1, quartic)
    method = PerFedAvg(alpha=0.25, beta=0.25, delta=0.5, variant=variant)
    (only,) = MethodSimulation(federation, method, FULL).run([None])
    assert only["G"].item() == pytest.approx(1 - g / 4, abs=1e-14)


@pytest.mark.parametrize("variant", ["exact", "hf", "fo"])
@pytest.mark.parametrize("stack", [None, 2])
def test_three_batches_in_their_roles(variant, stack):
    """A network of 27 numbers, two epochs of batches of three, against whole Hessians of each batch.

    The batches are taken from the client's three plans and never from the verbs; D, D' and D'' are not exchangeable.
    """
    federation, alpha, beta, delta = ragged_task((5, 2, 8, 3, 7)), 0.3, 0.2, 0.01
    training = Training(rounds=1, local_epochs=2, batch_size=3, lr=beta, precision="float64")
    play = MethodSimulation(federation, PerFedAvg(alpha=alpha, delta=delta, variant=variant), training, stack=stack)
    net, start, clients = play.task.net, play.task.initial.clone(), [0, 3, 4]
    ends = []
    for k in clients:
        own, w = federation.pool.index[k], start
        plans = [play.trainer.plans([k], Length(), Keys(0, "train", 0), nth)[0] for nth in range(3)]
        for j in range(plans[0].steps):
            batches = [own[torch.from_numpy(p.order[p.bounds[j] : p.bounds[j + 1]])] for p in plans]
            losses = [
                lambda v, i=i: F.cross_entropy(net(v, federation.pool.x[i]), federation.pool.y[i]) for i in batches
            ]
            df, df1, df2 = (torch.func.grad(loss) for loss in losses)
            g = df1(w - alpha * df(w))
            product = {
                "exact": torch.func.hessian(losses[2])(w) @ g,
                "hf": (df2(w + delta * g) - df2(w - delta * g)) / (2 * delta),
                "fo": torch.zeros_like(g),
            }[variant]
            w = w - beta * (g - alpha * product)
        ends.append(w)
    values = play.round(clients)
    torch.testing.assert_close(values["G"], torch.stack(ends).mean(dim=0), rtol=0, atol=1e-12)
    for k, adapted in zip(clients, values["L2"], strict=True):
        own = federation.pool.index[k]
        g = torch.func.grad(lambda v, i=own: F.cross_entropy(net(v, federation.pool.x[i]), federation.pool.y[i]))
        expected = values["G"] - alpha * g(values["G"])
        torch.testing.assert_close(adapted, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["exact", "hf", "fo"])
def test_the_difference_of_gradients_is_refused_with_dropout(variant):
    """(∇f(w + δ g) − ∇f(w − δ g)) / 2δ of two networks with other units left out is noise over δ, no H g."""
    federation = ragged_task()
    federation.network.body = nn.Sequential(*federation.network.body, nn.Dropout(0.3))
    training = Training(rounds=1, lr=0.1, precision="float64")
    before = torch.random.get_rng_state()
    refused = (
        pytest.raises(PflOpsError, match="variant=hf needs a network without dropout") if variant == "hf" else None
    )
    with refused or nullcontext():
        MethodSimulation(federation, PerFedAvg(variant=variant), training)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_given_rate_is_that_of_the_round():
    """β replaces η with its decay, and is what is tracked as the round's rate."""
    for beta, rates in ((None, [0.5, 0.25]), (0.125, [0.125, 0.125])):
        play, _ = quadratic_play(PerFedAvg(beta=beta), [8], lr=0.5, lr_decay=0.5, rounds=1)
        for t, rate in enumerate(rates):
            play.t = t
            r = play.at([0])
            play.method.round(play.state, r)
            assert r.lr == rate


def test_without_adaptation_it_is_fedavg():
    """α = 0 and full batches, where D' is D: FedAvg with uniform weights, in each variant."""
    training = Training(rounds=2, local_epochs=2, batch_size=None, lr=0.2, momentum=0.9, precision="float64")
    expected = MethodSimulation(ragged_task(), FedAvg(), training, weighting="uniform").run([[0, 2, 3], [1, 4]])
    for variant in ("exact", "hf", "fo"):
        found = MethodSimulation(ragged_task(), PerFedAvg(alpha=0, variant=variant), training).run([[0, 2, 3], [1, 4]])
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one["G"], other["G"], rtol=0, atol=1e-12)


def test_where_the_variants_come_to_rest(curved):
    """Two clients f_k = ½ a_k (w − b_k)², a = (1, 3), b = (0, 6), α = ¼; 100 full rounds of η = ½.

    FedAvg rests at Σ a b / Σ a = 4.5. Per-FedAvg rests where Σ (1 − αa)² a (w − b) = 0: weights (9/16)·1 and
    (1/16)·3, so w = 6·3/12 = 1.5; the first-order variant, with (1 − αa), at weights ¾, ¾: w = 3.
    """
    federation = curved([[(1.0, 0.0)], [(3.0, 6.0)]])
    for variant, rest in (("exact", 1.5), ("hf", 1.5), ("fo", 3.0)):
        play = MethodSimulation(
            federation, PerFedAvg(alpha=0.25, variant=variant), FULL.model_copy(update={"rounds": 100})
        )
        assert play.run([None] * 100)[-1]["G"].item() == pytest.approx(rest, abs=1e-6)


class TestContract(AlgorithmContract):
    algorithm = PerFedAvg(alpha=0.2, variant="hf", delta=0.1)
    pairs: ClassVar = {"beta": (PerFedAvg(alpha=0.2), PerFedAvg(alpha=0.2, beta=0.01))}


class TestExactContract(AlgorithmContract):
    algorithm = PerFedAvg(alpha=0.2)
    pairs: ClassVar = {
        "beta": (PerFedAvg(alpha=0.2), PerFedAvg(alpha=0.2, beta=0.01)),
        "delta": (PerFedAvg(alpha=0.2, variant="hf"), PerFedAvg(alpha=0.2, variant="hf", delta=0.1)),
    }
