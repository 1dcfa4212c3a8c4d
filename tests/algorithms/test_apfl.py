from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.apfl import APFL
from pfl_ops.algorithms.local import Local
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = ½, α = ½ at the start.

    Clients: b = (0, 3), n = (1, 3). Θ = v_k = 1 at the start.

    Round 1   w = v = v̄ = 1, so g = 1, −2 and v − w = 0: α stays
              w ← 1 − ½g = 0.5, 2        v ← 1 − ½·½·g = 0.75, 1.5        Θ ← mean w = 1.25 (plain: 1.625 by n_k)
    Round 2   w = 1.25
              client 0: v̄ = ½·0.75 + ½·1.25 = 1       g = 1         w ← 1.25 − ½·1.25 = 0.625
                        v ← 0.75 − ½·½·1 = 0.5         α ← ½ − ½·1·(0.75 − 1.25) = 0.75
              client 1: v̄ = ½·1.5 + ½·1.25 = 1.375    g = −1.625    w ← 1.25 + ½·1.75 = 2.125
                        v ← 1.5 + ½·½·1.625 = 1.90625  α ← ½ + ½·1.625·(1.5 − 1.25) = 0.703125
              Θ ← 1.375
    L2        0.75·0.5 + 0.25·0.625 = 0.53125,   0.703125·1.90625 + 0.296875·2.125 = 1.97119140625
    L1        0.75·0.5 + 0.25·1.375 = 0.71875,   0.703125·1.90625 + 0.296875·1.375 = 1.74853515625
    """
    play, (first, last) = quadratic_play(APFL(), [0, 3], [1, 3], start=1)
    assert first["state/alpha"].tolist() == [0.5, 0.5]
    assert first["state/personal"][:, 0].tolist() == pytest.approx([0.75, 1.5])
    assert first["G"].item() == pytest.approx(1.25)
    assert last["state/alpha"].tolist() == pytest.approx([0.75, 0.703125])
    assert last["state/personal"][:, 0].tolist() == pytest.approx([0.5, 1.90625])
    assert play.state["central"].item() == last["G"].item() == pytest.approx(1.375)
    assert last["L2"][:, 0].tolist() == pytest.approx([0.53125, 1.97119140625])
    assert last["L1"][:, 0].tolist() == pytest.approx([0.71875, 1.74853515625])


def test_alpha_at_every_step():
    """Two steps in one round. After the first (above) w = 0.5, 2 and v = 0.75, 1.5; then

    client 0: v̄ = 0.625, g = 0.625,  α ← ½ − ½·0.625·0.25 = 0.421875
    client 1: v̄ = 1.75,  g = −1.25,  α ← ½ − ½·(−1.25)·(−0.5) = 0.1875

    Once a round it moves at the first step only, where v = w = Θ⁰.
    """
    for every, alpha in (("step", [0.421875, 0.1875]), ("round", [0.5, 0.5])):
        _, (only,) = quadratic_play(APFL(every=every), [0, 3], [1, 3], start=1, rounds=1, steps=2)
        assert only["state/alpha"].tolist() == pytest.approx(alpha)


def test_alpha_stays_between_0_and_1():
    """Ten times the distances: client 0's α would be ½ + 25, client 1's ½ + 20.3; at every step also below 0."""
    _, (_, last) = quadratic_play(APFL(), [0, 30], start=10)
    assert last["state/alpha"].tolist() == [1, 1]
    _, (_, last) = quadratic_play(APFL(every="step"), [0, 30], start=10, steps=2)
    assert last["state/alpha"].min() == 0


def test_a_fixed_alpha():
    _, (_, last) = quadratic_play(APFL(alpha=0.25, adaptive=False), [0, 3], start=1)
    assert last["state/alpha"].tolist() == [0.25, 0.25]


def test_alone_at_alpha_1():
    """v̄ = v and the mixture is v: local training."""
    _, mixed = quadratic_play(APFL(alpha=1, adaptive=False), [0, 3, 5], [1, 3, 2], start=1, cohorts=[[0, 1], [1, 2]])
    _, alone = quadratic_play(Local(), [0, 3, 5], [1, 3, 2], start=1, cohorts=[[0, 1], [1, 2]])
    torch.testing.assert_close(mixed[-1]["L1"], alone[-1]["L1"])


def test_a_librarys_reading():
    """v trains apart and is mixed at a round's end; b = (0, 6), one full-batch step a round, η = 0.1, start 2.

    Round 1   g_w = g_v = 2, −4:  w = v = 1.8, 2.4,  v − w = 0, so α ← ½ − 0.1·0.02·½ = 0.499;  v = w;  Θ = 2.1
    Round 2   client 0: g_w = 2.1, g_v = 1.8:  w = 1.89, v = 1.62
              slope (0.499·1.8 + 0.501·2.1)·(1.62 − 1.89) + 0.02·0.499,  α ← 0.499 − 0.1·slope
              client 1: g_w = −3.9, g_v = −3.6:  w = 2.49, v = 2.76
              slope −(0.499·3.6 + 0.501·3.9)·(2.76 − 2.49) + 0.02·0.499
              v ← α v + (1 − α) w
    """
    _, (first, last) = quadratic_play(APFL(mixing="round"), [0, 6], start=2, lr=0.1)
    assert first["state/alpha"].tolist() == pytest.approx([0.499, 0.499])
    assert first["L1"][:, 0].tolist() == first["L2"][:, 0].tolist() == pytest.approx([1.8, 2.4])
    alpha = [
        0.499 - 0.1 * ((0.499 * 1.8 + 0.501 * 2.1) * -0.27 + 0.02 * 0.499),
        0.499 - 0.1 * (-(0.499 * 3.6 + 0.501 * 3.9) * 0.27 + 0.02 * 0.499),
    ]
    assert last["state/alpha"].tolist() == pytest.approx(alpha)
    v = [alpha[0] * 1.62 + (1 - alpha[0]) * 1.89, alpha[1] * 2.76 + (1 - alpha[1]) * 2.49]
    assert last["L1"][:, 0].tolist() == last["L2"][:, 0].tolist() == pytest.approx(v)
    assert last["G"].item() == pytest.approx((1.89 + 2.49) / 2)


class TestContract(AlgorithmContract):
    algorithm = APFL(alpha=0.4)
    pairs: ClassVar = {"every": (APFL(alpha=0.4), APFL(alpha=0.4, every="step"))}
