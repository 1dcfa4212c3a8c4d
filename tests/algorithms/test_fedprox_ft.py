import pytest
import torch

from pfl_ops.algorithms.fedprox_ft import FedProxFT
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², two full-batch steps a round with μ = ½, three without a pull to fine-tune; η = ½.

    Clients: b = (0, 6, 10), n = (1, 3, 2); cohorts {0, 1}, {1, 2}. Θ = 2 at the start.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6)                                     = 1, 4
              θ = 1 − ½((1 − 0) + ½(1 − 2)), 4 − ½((4 − 6) + ½(4 − 2))           = 0.75, 4.5
              Θ ← ¼·0.75 + ¾·4.5                                                 = 3.5625
              v = 3.5625/8, 6 − 2.4375/8                                         = 0.4453125, 5.6953125
    Round 2   θ = 4.78125, 6.78125
              θ = 4.78125 − ½((4.78125 − 6) + ½(4.78125 − 3.5625))               = 5.0859375
              θ = 6.78125 − ½((6.78125 − 10) + ½(6.78125 − 3.5625))              = 7.5859375
              Θ ← (3·5.0859375 + 2·7.5859375)/5                                  = 6.0859375
              v = 6 + 0.0859375/8, 10 − 3.9140625/8                              = 6.0107421875, 9.5107421875
    """
    _, (first, last) = quadratic_play(
        FedProxFT(mu=0.5, fine_epochs=3), [0, 6, 10], [1, 3, 2], start=2, steps=2, cohorts=[[0, 1], [1, 2]]
    )
    assert first["L1"].item() == first["G"].item() == first["state/central"].item() == pytest.approx(3.5625)
    assert first["L2"][:, 0].tolist() == pytest.approx([0.4453125, 5.6953125])
    assert last["L1"].item() == last["G"].item() == last["state/central"].item() == pytest.approx(6.0859375)
    assert last["L2"][:, 0].tolist() == pytest.approx([6.0107421875, 9.5107421875])


def test_fine_tuning_is_as_long_as_training_unless_told():
    """b = 6, J = 3, η = ¼, μ = 3: θ = 2 + ¼·4 = 3, where 3·1 holds against 3: it stays, Θ ← 3; v = 6 − (¾)³·3."""
    _, (only,) = quadratic_play(FedProxFT(mu=3), [6], start=2, lr=0.25, steps=3, rounds=1)
    assert only["G"].item() == pytest.approx(3)
    assert only["L2"].item() == pytest.approx(6 - 3 * 0.75**3)


def test_anybody_may_fine_tune_the_new_model_before_it_is_kept():
    """One step, in which nothing pulls: half the way from the new Θ to b = 0 and 10."""
    play, _ = quadratic_play(FedProxFT(), [0, 6, 10], start=2)
    update, stages = play.method.round(play.state, play.at([0, 1]))
    central = update["central"].item()
    models = stages["L2"](torch.tensor([2, 0]))
    assert models.clients.tolist() == [0, 2]
    assert models.params[:, 0].tolist() == pytest.approx([central / 2, (central + 10) / 2])


def test_one_model_is_sent_each_way():
    play, _ = quadratic_play(FedProxFT(), [[0, 1], [6, 5]])
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 2)


class TestContract(AlgorithmContract):
    algorithm = FedProxFT(mu=0.5, fine_epochs=2)
