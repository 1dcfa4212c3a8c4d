from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.fedala import FedALA
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task, ragged_task

PLAIN = Training(rounds=2, batch_size=None, lr=0.125, precision="float64")


def passes(play, cohort):
    """Passes over W's data that the next round takes, by client."""
    r, found = play.at(cohort), dict.fromkeys(cohort, 0)
    over = r.over

    def counted(clients):
        for k in clients.tolist():
            found[k] += 1
        return over(clients)

    r.over = counted
    play.method.round(play.state, r)
    return found


def test_three_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = 3/2, so that θ = b − ½ (start − b); η_w = 0.01.

    b = (0, 6, 4), n = (1, 3, 2), Θ = θ^old = 2 and W = 1 at the start; one parameter, so it is the top layer.

    Round 1   clients 0, 1: Θ = θ^old, nothing to learn, start = 2.  θ = −1, 8    Θ ← ¼·(−1) + ¾·8 = 5.75
    Round 2   the same two. A pass is one step, W ← W − 0.01 (θ̂ − b)(Θ − θ^old), so that with c = Θ − θ^old
              θ̂ − b shrinks by 1 − 0.01 c² in each; it starts at Θ − b:
              client 0: c = 6.75,  5.75 · 0.544375^n       losses before the steps ½ (…)², n = 0, 1, …
              client 1: c = −2.25, −0.25 · 0.949375^n
              Client 1's losses lie within 0.03: 11 passes. Client 0's: of n = 1..10 a deviation of 1.47, of 2..11 0.43,
              of 3..12 0.129, of 4..13 0.038: 14 passes.
              start = 0 + 5.75 · 0.544375^14, 6 − 0.25 · 0.949375^11      θ = b − ½ (start − b)
    Round 3   clients 1, 2. Client 1 takes one pass from the W that it has. Client 2 comes with θ^old = Θ⁰ = 2, c and
              Θ − 4 being small: 11 passes.
    """
    play, (first, second) = quadratic_play(
        FedALA(weight_lr=0.01), [0, 6, 4], [1, 3, 2], start=2, lr=1.5, cohorts=[[0, 1], [0, 1]]
    )
    assert first["state/weights"].tolist() == [[1], [1], [1]] and not first["state/learnt"].any()
    assert first["state/theta"][:, 0].tolist() == [-1, 8, 2]
    assert first["G"].item() == 5.75
    assert first["L1"][:, 0].tolist() == [5.75, 5.75, 5.75]

    start = [5.75 * 0.544375**14, 6 - 0.25 * 0.949375**11]
    weight = [(start[0] + 1) / 6.75, (start[1] - 8) / -2.25]
    theta = [-0.5 * start[0], 6 - 0.5 * (start[1] - 6)]
    central = 0.25 * theta[0] + 0.75 * theta[1]
    assert second["state/weights"][:, 0].tolist() == pytest.approx([*weight, 1])
    assert second["state/learnt"].tolist() == [True, True, False]
    assert second["L2"][:, 0].tolist() == second["state/theta"][:2, 0].tolist() == pytest.approx(theta)
    assert second["G"].item() == pytest.approx(central)
    held = [t + (central - t) * w for t, w in zip(theta, weight, strict=True)]
    assert second["L1"][:, 0].tolist() == pytest.approx([*held, central])

    third = play.round([1, 2])
    old, new = theta[1], central
    weight_1 = weight[1] - 0.01 * (old + (new - old) * weight[1] - 6) * (new - old)
    start_2 = 4 + (new - 4) * (1 - 0.01 * (new - 2) ** 2) ** 11
    assert third["state/weights"][:, 0].tolist() == pytest.approx([weight[0], weight_1, (start_2 - 2) / (new - 2)])
    assert third["L2"][:, 0].tolist() == pytest.approx(
        [6 - 0.5 * (old + (new - old) * weight_1 - 6), 4 - 0.5 * (start_2 - 4)]
    )


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, {0: 14, 1: 11}),
        ({"spread": 0.13}, {0: 13, 1: 11}),  # 0.1286 of the ten; with nine in the denominator 0.1356
        ({"spread": 0.0}, {0: 100, 1: 100}),
        ({"most_passes": 12}, {0: 12, 1: 11}),
        ({"most_passes": 2}, {0: 2, 1: 2}),
    ],
    ids=str,
)
def test_how_long_the_first_learning_takes(how, expected):
    """As in round 2 above; none before it, one pass after it."""
    clients = quadratic_task([0, 6, 4], [1, 3, 2], start=2)
    play = MethodSimulation(clients, FedALA(weight_lr=0.01, **how), PLAIN.model_copy(update={"lr": 1.5}))
    assert passes(play, [0, 1]) == {0: 0, 1: 0}
    play.round([0, 1])
    assert passes(play, [0, 1]) == expected
    play.round([0, 1])
    assert passes(play, [0, 1]) == {0: 1, 1: 1}


def test_lower_layers_are_the_global_ones(product):
    """F_k = ½ (h a − y_k)², one step, η = ⅛; y = (4, 1), n = (1, 3); a = 2, h = 1; η_w = ¼, one pass, p = 1.

    Round 1   (a, h): θ = (2.25, 1.5), (1.875, 0.75)           Θ ← ¼ θ_0 + ¾ θ_1 = (1.96875, 0.9375)
    Round 2   W = 1 and θ̂ = Θ at first; ∂h = (h a − y) a at Θ, and W ← 1 − ¼ ∂h (0.9375 − h^old)
              client 0: W = 1 − ¼·(−2.154296875·1.96875)·(−0.5625)     client 1: 1 − ¼·(0.845703125·1.96875)·0.1875
              start = (1.96875, h^old + (0.9375 − h^old) W), and from there a step of both
    """
    play = MethodSimulation(product, FedALA(weight_lr=0.25, most_passes=1), PLAIN)
    _, second = play.run([[0, 1], [0, 1]])
    weight = [1 - 2.154296875 * 1.96875 * 0.5625 / 4, 1 - 0.845703125 * 1.96875 * 0.1875 / 4]
    assert second["state/weights"][:2, 0].tolist() == pytest.approx(weight)
    for k, (own, w, y) in enumerate(zip((1.5, 0.75), weight, (4, 1), strict=True)):
        a, h = 1.96875, own + (0.9375 - own) * w
        left = h * a - y
        assert second["L2"][k].tolist() == pytest.approx([a - left * h / 8, h - left * a / 8])


def test_more_layers(product):
    """p = 2: the body is mixed too. Client 0's ∂a = (h a − y) h = −2.154296875·0.9375 at Θ, and a^old = 2.25."""
    play = MethodSimulation(product, FedALA(layers=2, weight_lr=0.25, most_passes=1), PLAIN)
    _, second = play.run([[0, 1], [0, 1]])
    assert second["state/weights"][0].tolist() == pytest.approx(
        [1 - 2.154296875 * 0.9375 * 0.28125 / 4, 1 - 2.154296875 * 1.96875 * 0.5625 / 4]
    )


def test_weights_stay_between_0_and_1():
    """With a rate of 1 the first step of client 0 would end at 1 − 5.75·6.75 < 0; of ragged clients some reach 1."""
    _, (_, last) = quadratic_play(FedALA(most_passes=1), [0, 6], [1, 3], start=2, lr=1.5)
    assert last["state/weights"][0].item() == 0
    training = Training(rounds=4, batch_size=3, lr=0.5, precision="float64")
    seen = [
        v["state/weights"] for v in MethodSimulation(ragged_task(), FedALA(weight_lr=20.0), training).run([None] * 4)
    ]
    assert all(bool(((w >= 0) & (w <= 1)).all()) for w in seen)
    assert {0.0, 1.0} <= set(seen[-1].flatten().tolist()) and bool(((seen[-1] > 0) & (seen[-1] < 1)).any())


def test_weights_learn_on_a_share_drawn_anew_each_round(curved):
    """Two samples, s = 50: each pass of a round sees the same one; over the rounds both are seen.

    A step is W ← W − η_w a (θ̂ − b)(Θ − θ^old) of one sample (a, b); the two have their own, the mean a third.
    """
    play = MethodSimulation(
        curved([[(1.0, -3.0), (1.0, 5.0)], [(1.0, 9.0)]], start=2.0),
        FedALA(share=50, weight_lr=1e-3, most_passes=3),
        PLAIN.model_copy(update={"rounds": 12}),
    )
    found = set()
    last = play.round()
    for t in range(1, 12):
        theta, central, weight = last["state/theta"][0].item(), last["G"].item(), last["state/weights"][0].item()
        last = play.round()
        away = central - theta
        after = []
        for b in (-3, 5):
            w = weight
            for _ in range(3 if t == 1 else 1):
                w = min(max(w - 1e-3 * (theta + away * w - b) * away, 0), 1)
            after.append(w)
        closest = min((0, 1), key=lambda i: abs(after[i] - last["state/weights"][0].item()))
        assert last["state/weights"][0].item() == pytest.approx(after[closest], abs=1e-12)
        assert abs(after[0] - after[1]) > 1e-6
        found.add(closest)
    assert found == {0, 1}


def test_one_clients_learning_does_not_hang_on_anothers():
    """Passes differ from client to client; what each sees in them does not."""
    training = Training(rounds=2, batch_size=2, lr=0.5, precision="float64")
    counts, weights = [], []
    for cohort in ([0, 1, 2, 3, 4], [2, 4]):
        play = MethodSimulation(ragged_task(), FedALA(spread=0.01), training)
        play.round()
        counts.append(passes(play, cohort))
        weights.append(play.round(cohort)["state/weights"])
    assert len(set(counts[0].values())) > 1 and {k: counts[0][k] for k in (2, 4)} == counts[1]
    assert torch.equal(weights[0][[2, 4]], weights[1][[2, 4]])


def test_every_pass_of_a_round_sees_the_same_minibatches():
    """With W held at 1 the final loss is the same in each, so even a tiny spread is met after eleven."""
    play = MethodSimulation(
        ragged_task(), FedALA(weight_lr=0.0, spread=1e-9), PLAIN.model_copy(update={"batch_size": 2})
    )
    play.round()
    assert passes(play, [0, 1, 4]) == {0: 11, 1: 11, 4: 11}


def test_too_many_layers_are_refused(product):
    with pytest.raises(PflOpsError, match=r"fedala needs algorithm\.layers <= 2, the network's layers; got 3"):
        MethodSimulation(product, FedALA(layers=3), PLAIN)


class TestContract(AlgorithmContract):
    algorithm = FedALA(most_passes=12)
    pairs: ClassVar = {
        "spread": (FedALA(spread=0.0, most_passes=14), FedALA(spread=10.0, most_passes=14)),
        "most_passes": (FedALA(spread=0.0, most_passes=2), FedALA(spread=0.0, most_passes=3)),
    }
