from typing import ClassVar

import pytest

from pfl_ops.algorithms.pfedme import PFedMe
from pfl_ops.errors import PflOpsError
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², R = 2 full-batch steps of K = 2, η = ½, η_p = ¼, λ = 1, so ηλ = ½; β = ¾.

    One φ-step: φ ← φ − ¼((φ − b) + (φ − w)) = ½ φ + ¼ b + ¼ w; two of them: ¼ φ + ⅜ (b + w). Then w ← ½ (w + φ).
    Clients: b = (0, 8, −4), n = (1, 3, 2); cohorts {0, 1}, {1, 2}; Θ = φ = 2 at the start.

    Round 1   client 0: φ = ½ + ⅜·2 = 1.25, w = 1.625;  φ = 0.3125 + ⅜·1.625 = 0.921875,  w = 1.2734375
              client 1: φ = ½ + ⅜·10 = 4.25, w = 3.125;  φ = 1.0625 + ⅜·11.125 = 5.234375, w = 4.1796875
              Θ ← ¼·2 + ¾·mean w = ½ + ¾·2.7265625 = 2.544921875           the mean is plain
    Round 2   φ starts at Θ again, not where it ended; a = ¼ Θ + ⅜ Θ.
    """
    play, (first, last) = quadratic_play(
        PFedMe(lam=1, inner_steps=2, inner_lr=0.25, beta=0.75), [0, 8, -4], [1, 3, 2],
        start=2, lr=0.5, steps=2, cohorts=[[0, 1], [1, 2]],
    )  # fmt: skip
    assert first["L1"][:, 0].tolist() == pytest.approx([0.921875, 5.234375, 2])
    assert first["L2"][:, 0].tolist() == pytest.approx([0.921875, 5.234375])
    assert first["G"].item() == pytest.approx(2.544921875)

    def client(b, central):
        w = phi = central
        for _ in range(2):
            phi = phi / 4 + 3 / 8 * (b + w)
            w = (w + phi) / 2
        return phi, w

    (phi_1, w_1), (phi_2, w_2) = client(8, 2.544921875), client(-4, 2.544921875)
    assert last["L1"][:, 0].tolist() == pytest.approx([0.921875, phi_1, phi_2])
    assert play.state["central"].item() == pytest.approx(2.544921875 / 4 + 3 / 8 * (w_1 + w_2))


def test_the_outer_rate_is_the_rounds_and_the_inner_one_its_own():
    """One client, b = 8, K = R = 1, λ = 1, η_p = ¼; η = ½, then ¼.

    From Θ = 0: φ = ¼·8 = 2, w = 1; then φ = 1 + ¼·7 = 2.75, w = 1 + ¼·1.75 = 1.4375.
    """
    _, (first, last) = quadratic_play(PFedMe(lam=1, inner_steps=1, inner_lr=0.25), [8], lr=0.5, lr_decay=0.5)
    assert (first["L1"].item(), first["G"].item()) == pytest.approx((2, 1))
    assert (last["L1"].item(), last["G"].item()) == pytest.approx((2.75, 1.4375))


def test_the_papers_setting_by_hand():
    """λ = 15, K = 5, η_p = 0.09, β = 1 and, recommended, R = 20, η = 0.005: a step of an experiment by default.

    b = 16, w = φ = Θ = 0. φ ← φ − 0.09 ((φ − 16) + 15 φ) = −0.44 φ + 1.44, whose fixed point is 1: after five
    φ = 1 + 0.44⁵.  w ← 0.005·15 φ = 0.075 φ.
    """
    from pfl_ops import Experiment

    chosen = Experiment.of("pfedme")
    assert (chosen.training.local_steps, chosen.training.lr) == (20, 0.005)
    _, (only,) = quadratic_play(chosen.algorithm, [16], lr=chosen.training.lr, rounds=1)
    assert only["L1"].item() == pytest.approx(1 + 0.44**5)
    assert only["G"].item() == pytest.approx(0.075 * (1 + 0.44**5))


def test_without_pull_the_global_model_stays():
    """λ = 0: φ_k is R·K steps of its own from Θ, w_k never moves: 8 (1 − (1 − ¼)⁶)."""
    _, (only,) = quadratic_play(PFedMe(lam=0, inner_steps=3, inner_lr=0.25), [8, 0], steps=2, rounds=1)
    assert only["G"].item() == 0
    assert only["L1"][:, 0].tolist() == pytest.approx([8 * (1 - 0.75**6), 0])


def test_many_inner_steps_reach_the_envelope():
    """φ → argmin ½(φ − b)² + (λ/2)(φ − w)² = (b + λ w)/(1 + λ); then w steps along the envelope's gradient."""
    _, (only,) = quadratic_play(PFedMe(lam=3, inner_steps=200, inner_lr=0.2), [8], start=4, lr=0.1, rounds=1)
    assert only["L1"].item() == pytest.approx((8 + 3 * 4) / 4)
    assert only["G"].item() == pytest.approx(4 - 0.1 * 3 * (4 - 5))


def test_rates_that_overshoot_are_refused():
    with pytest.raises(PflOpsError, match=r"pfedme needs η λ < 1, got 0\.1 x 10; lower training\.lr"):
        quadratic_play(PFedMe(lam=10), [0, 6], lr=0.1)


def test_an_experiment_with_another_optimiser_is_refused():
    from pfl_ops import Experiment

    assert Experiment.of("pfedme").training.local_steps == 20
    for changes in ({"training.momentum": 0.9}, {"training.optimiser": "adam"}, {"training.weight_decay": 0.1}):
        with pytest.raises(PflOpsError, match=r"pfedme needs training\."):
            Experiment.of("pfedme", **changes)


class TestContract(AlgorithmContract):
    algorithm = PFedMe(lam=2, inner_steps=2, inner_lr=0.2)
    pairs: ClassVar = {"beta": (PFedMe(lam=2), PFedMe(lam=2, beta=0.5))}
