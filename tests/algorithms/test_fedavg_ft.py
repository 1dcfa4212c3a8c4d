import pytest
import torch

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fedavg_ft import FedAvgFT
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, two to fine-tune; η = ½, then ¼: a step leaves ½, then ¾.

    Clients: b = (0, 6, 10), n = (1, 3, 2); cohorts {0, 1}, {1, 2}. Θ = 2 at the start.

    Round 1   θ = 1, 4                                       Θ ← ¼·1 + ¾·4                       = 3.25
              v = 3.25/4, 6 − 2.75/4                                                             = 0.8125, 5.3125
    Round 2   θ = 6 − ¾·2.75, 10 − ¾·6.75 = 3.9375, 4.9375   Θ ← (3·3.9375 + 2·4.9375)/5         = 4.3375
              v = 6 − 9/16·1.6625, 10 − 9/16·5.6625                                = 5.06484375, 6.81484375
    """
    _, (first, last) = quadratic_play(
        FedAvgFT(fine_epochs=2), [0, 6, 10], [1, 3, 2], start=2, lr_decay=0.5, cohorts=[[0, 1], [1, 2]]
    )
    assert first["L1"].item() == first["G"].item() == first["state/central"].item() == pytest.approx(3.25)
    assert first["L2"][:, 0].tolist() == pytest.approx([0.8125, 5.3125])
    assert last["L1"].item() == last["G"].item() == last["state/central"].item() == pytest.approx(4.3375)
    assert last["L2"][:, 0].tolist() == pytest.approx([5.06484375, 6.81484375])


def test_fine_tuning_is_as_long_as_training_unless_told():
    """Without draws (full batches) and with a constant η, fine-tuning is what FedAvg trains in the next round."""
    tuned, plain = (quadratic_play(m, [0, 6, 10], [1, 3, 2], start=2, steps=3)[1] for m in (FedAvgFT(), FedAvg()))
    torch.testing.assert_close(tuned[0]["L2"], plain[1]["L2"], rtol=0, atol=1e-12)


def test_nobody_fine_tunes_unless_it_is_scored_and_then_anybody_may():
    """L2 is a function of clients: those of the cohort, or others."""
    play, _ = quadratic_play(FedAvgFT(), [0, 6, 10], start=2)
    update, stages = play.method.round(play.state, play.at([0, 1]))
    assert set(update) == {"central"} and callable(stages["L2"])
    central = update["central"].item()
    models = stages["L2"](torch.tensor([2, 0]))
    assert models.clients.tolist() == [0, 2]
    assert models.params[:, 0].tolist() == pytest.approx([central / 2, (central + 10) / 2])


def test_one_model_is_sent_each_way():
    play, _ = quadratic_play(FedAvgFT(), [[0, 1], [6, 5]])
    r = play.at([0, 1])
    play.method.round(play.state, r)[1]["L2"](torch.tensor([0, 1]))
    assert (r.traffic.up, r.traffic.down) == (2, 2)


class TestContract(AlgorithmContract):
    algorithm = FedAvgFT(fine_epochs=2)
