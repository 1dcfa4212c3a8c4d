import pytest
import torch

from pfl_ops.algorithms.scaffold import Scaffold
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², J = 2 full-batch steps a round, η = ¼ (so Jη = ½), η_g = ½.

    Clients: b = (0, 6, 4, 9), n = (1, 3, 2, 1); cohorts {0, 1}, {1, 2}. Θ = 2, c = c_k = 0 at the start.
    A step is w − b ← ¾ (w − b); with a shift s the same towards b − s. Two steps: 9/16.

    Round 1   y = 0 + 2·9/16, 6 − 4·9/16                             = 1.125, 3.75
              Θ ← 2 + ½(mean y − 2)                                  = 2.21875           the mean is plain: 2.4375
              c_0 = (2 − 1.125)/½, c_1 = (2 − 3.75)/½                = 1.75, −3.5
              c ← ¼(1.75 − 3.5)                                      = −0.4375           over all N = 4
    Round 2   client 1: s = c − c_1 = 3.0625, towards 2.9375         y = 2.533203125
              client 2: s = c − 0 = −0.4375, towards 4.4375          y = 3.189453125
              Θ ← 2.21875 + ½(2.861328125 − 2.21875)                 = 2.5400390625
              c_1 = −3.5 + 0.4375 + (2.21875 − 2.533203125)/½        = −3.69140625
              c_2 = 0 + 0.4375 + (2.21875 − 3.189453125)/½           = −1.50390625
              c ← −0.4375 + ¼((−3.69140625 + 3.5) + (−1.50390625))   = −0.861328125
    """
    play, (first, last) = quadratic_play(
        Scaffold(global_lr=0.5), [0, 6, 4, 9], [1, 3, 2, 1], start=2, lr=0.25, steps=2, cohorts=[[0, 1], [1, 2]]
    )
    assert first["L2"][:, 0].tolist() == pytest.approx([1.125, 3.75])
    assert first["state/c"].item() == pytest.approx(-0.4375)
    assert first["state/central"].item() == pytest.approx(2.21875)
    assert last["L2"][:, 0].tolist() == pytest.approx([2.533203125, 3.189453125])
    assert last["L1"].item() == last["G"].item() == play.state["central"].item() == pytest.approx(2.5400390625)
    assert last["state/c_k"][:, 0].tolist() == pytest.approx([1.75, -3.69140625, -1.50390625, 0])
    assert play.state["c"].item() == pytest.approx(-0.861328125)


def test_the_servers_control_is_the_mean_of_all_clients():
    """c = (1/N) Σ c_k after every round, whoever took part: both start at 0, and c takes (1/N) of every change."""
    training = Training(rounds=4, local_epochs=2, batch_size=3, lr=0.1, precision="float64")
    play = MethodSimulation(ragged_task(), Scaffold(global_lr=0.7), training, stack=5)
    for values in play.run([[0, 2, 3], None, [1, 4], [2]]):
        c = values["state/c"]
        torch.testing.assert_close(c, values["state/c_k"].mean(dim=0), rtol=0, atol=1e-12)
        assert c.abs().max() > 0.01


def test_the_rate_is_the_rounds():
    """With decay the second round divides by J·η_1: c_k is the gradient at Θ_1 again (J = 1), 1.5 − 6 = −4.5.

    One client, b = 6, Θ = 0, η = ¼ then ⅛: Θ_1 = 1.5, c = c_k = −6; round 2: y = 1.5 + ⅛·4.5, c_k = (Θ_1 − y)/⅛ = −4.5.
    """
    play, _ = quadratic_play(Scaffold(), [6], lr=0.25, lr_decay=0.5)
    assert play.state["c"].item() == pytest.approx(-4.5)
    assert play.state["central"].item() == pytest.approx(1.5 + 4.5 / 8)


def test_clients_divide_by_their_own_number_of_steps():
    """E = 1, B = 1, n = (1, 3), so J = (1, 3); b = (0, 6), Θ = 2, η = ¼, and all samples of a client are b_k.

    y_0 = 2·¾ = 1.5;  y_1 = 6 − 4·(¾)³ = 4.3125
    c_0 = (2 − 1.5)/(1·¼) = 2;  c_1 = (2 − 4.3125)/(3·¼) = −37/12;  c = ½ (2 − 37/12) = −13/24
    """
    _, (only,) = quadratic_play(
        Scaffold(), [0, 6], [1, 3], start=2, lr=0.25, rounds=1, local_steps=None, local_epochs=1, batch_size=1
    )
    assert only["L2"][:, 0].tolist() == pytest.approx([1.5, 4.3125])
    assert only["state/c_k"][:, 0].tolist() == pytest.approx([2, -37 / 12])
    assert only["state/c"].item() == pytest.approx(-13 / 24)


def test_it_sends_two_vectors_each_way():
    play, _ = quadratic_play(Scaffold(), [0, 6])
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 2)  # P = 1


def test_an_experiment_with_momentum_or_adam_is_refused():
    from pfl_ops import Experiment

    assert Experiment.of("scaffold").algorithm == Scaffold()
    for changes in ({"training.momentum": 0.9}, {"training.optimiser": "adam"}):
        with pytest.raises(PflOpsError, match=r"scaffold needs training\.optimiser=sgd"):
            Experiment.of("scaffold", **changes)


class TestContract(AlgorithmContract):
    algorithm = Scaffold(global_lr=0.5)
