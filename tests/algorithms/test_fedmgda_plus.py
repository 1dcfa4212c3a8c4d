from typing import ClassVar

import numpy as np
import pytest

from pfl_ops.algorithms.fedmgda_plus import FedMGDAPlus
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task

PLANE = [[3, 4], [2, -2], [-5, 1]]


def test_two_rounds_by_hand():
    """F_k(w) = ½ ‖w − b_k‖², one full-batch step, η = ½, ε = 0.1, η_g = 2; b = (3, 4), (2, −2), n = (1, 3).

    Round 1   Θ = 0: Θ − θ_k = −½ b_k, so ĝ = −(3, 4)/5, −(1, −1)/√2, whose product is −1/(5√2). Unbounded the shortest
              mixture of two vectors of length 1 is their mean; λ0 = (¼, ¾) lets it be (0.35, 0.65) at most.
              Θ ← 2 (0.35 (0.6, 0.8) + 0.65 (1, −1)/√2)
    Round 2   the same from there: ĝ_k = (Θ − b_k)/‖Θ − b_k‖, and the mean again is out of reach.
    """
    _, rounds = quadratic_play(FedMGDAPlus(global_lr=2), PLANE[:2], [1, 3])
    theta, b = np.zeros(2), np.array(PLANE[:2], dtype=float)
    for values in rounds:
        g = (theta - b) / np.linalg.norm(theta - b, axis=1, keepdims=True)
        assert values["L2"].numpy() == pytest.approx((theta + b) / 2)
        theta = theta - 2 * (np.array([0.35, 0.65]) @ g)
        assert values["G"].numpy() == pytest.approx(theta)
        assert values["L1"].numpy() == pytest.approx(theta)
    first = 2 * (0.35 * np.array([0.6, 0.8]) + 0.65 * np.array([1, -1]) / np.sqrt(2))
    assert rounds[0]["G"].numpy() == pytest.approx(first)


def test_anywhere_on_the_simplex():
    """ε = 1: of ĝ = −(1, 0), −(0, 1) (b = (4, 0), (0, 9): only directions count) the mean, whatever n_k.

    η_g none: the round's η = ½, so Θ = ½ (½, ½).
    """
    _, (only,) = quadratic_play(FedMGDAPlus(eps=1, global_lr=None), [[4, 0], [0, 9]], [1, 3], rounds=1)
    assert only["G"].tolist() == pytest.approx([0.25, 0.25])


def test_the_rounds_rate_decays_with_the_experiments():
    """As above, at η = ½ and then ¼; Θ_1 = (¼, ¼), ĝ = (−15, 1)/√226 and (1, −35)/√1226, the mean of both.

    One step of length ¼: Θ_2 = Θ_1 − ¼·½ (ĝ_1 + ĝ_2).
    """
    _, (_, last) = quadratic_play(FedMGDAPlus(eps=1, global_lr=None), [[4, 0], [0, 9]], [1, 3], lr_decay=0.5)
    mean = (np.array([-15, 1]) / np.sqrt(226) + np.array([1, -35]) / np.sqrt(1226)) / 2
    assert last["G"].numpy() == pytest.approx(0.25 - 0.25 * mean)


def test_at_the_given_weights():
    """ε = 0: λ = p_k, here plain: Θ = −Σ ⅓ ĝ_k with ĝ_k = −b_k/‖b_k‖; a client drawn twice counts twice."""
    units = np.array(PLANE) / np.linalg.norm(PLANE, axis=1, keepdims=True)
    for cohort, weights in (([0, 1, 2], [1 / 3] * 3), ([0, 1, 1, 2], [1 / 4, 1 / 2, 1 / 4])):
        _, (only,) = quadratic_play(FedMGDAPlus(eps=0), PLANE, [1, 3, 2], rounds=1, weighting="uniform",
                                    cohorts=[cohort])  # fmt: skip
        assert only["G"].numpy() == pytest.approx(np.array(weights) @ units)


def test_a_client_that_did_not_move_is_left_out():
    """b = (0, 0) = Θ of client 1, n = (1, 2, 3): λ0 is (¼, ¾) over the others, so λ = (0.35, 0.65) with ε 0.1.

    With its row the shortest mixture would be it alone, and with λ0 = (⅙, ⅓, ½) λ_0 would be 4/15 at most.
    """
    _, (only,) = quadratic_play(FedMGDAPlus(), [[3, 4], [0, 0], [2, -2]], [1, 2, 3], rounds=1)
    assert only["G"].numpy() == pytest.approx(0.35 * np.array([0.6, 0.8]) + 0.65 * np.array([1, -1]) / np.sqrt(2))


def test_where_nobody_moves_the_model_stays():
    _, (only,) = quadratic_play(FedMGDAPlus(), [2, 2], start=2, rounds=1)
    assert only["G"].item() == 2


@pytest.mark.parametrize("eps", [0.02, 0.1, 1.0])
def test_the_step_is_the_shortest(eps):
    """Optimality (KKT) on random federations: with u = Σ λ_k ĝ_k, no weight may usefully move from k to j.

    λ_k can fall above its lower bound, λ_j rise below its upper one, and then ⟨u, ĝ_k⟩ <= ⟨u, ĝ_j⟩. λ is found from the
    step by least squares: the rows are independent.
    """
    training = Training(rounds=1, local_epochs=1, batch_size=2, lr=0.3, precision="float64")
    at_bounds = 0
    for seed in range(8):
        play = MethodSimulation(ragged_task(seed=seed), FedMGDAPlus(eps=eps), training, stack=5, seed=seed)
        values = play.round()
        moved = (play.task.initial - values["L2"]).numpy()
        g = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        u = (play.task.initial - values["G"]).numpy()
        lam = np.linalg.lstsq(g.T, u, rcond=None)[0]
        prior = np.array([5, 2, 8, 3, 7]) / 25
        low, high = (prior - eps).clip(min=0), (prior + eps).clip(max=1)
        assert lam @ g == pytest.approx(u, abs=1e-9)
        assert lam.sum() == pytest.approx(1, abs=1e-8)
        assert (lam >= low - 1e-8).all() and (lam <= high + 1e-8).all()
        slope = g @ u
        can_fall, can_rise = lam > low + 1e-6, lam < high - 1e-6
        if can_fall.any() and can_rise.any():
            assert slope[can_fall].max() <= slope[can_rise].min() + 1e-6
        at_bounds += int((~can_fall | ~can_rise).sum())
    assert at_bounds, "no draw has a weight at its bound"


def test_a_model_that_is_lost_is_refused():
    with pytest.raises(PflOpsError, match=r"not finite.*smaller training\.lr"):
        quadratic_play(FedMGDAPlus(), [1e300, 6], lr=1e6, steps=3, rounds=1)


def test_it_sends_a_model_each_way():
    play, _ = quadratic_play(FedMGDAPlus(), PLANE, rounds=1)
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 2)  # P = 2


class TestContract(AlgorithmContract):
    algorithm = FedMGDAPlus()
    pairs: ClassVar = {"eps": (FedMGDAPlus(eps=0), FedMGDAPlus(eps=0.3))}
