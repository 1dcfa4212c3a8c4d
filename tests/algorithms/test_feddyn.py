import pytest
import torch

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.feddyn import FedDyn
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², J = 2 full-batch steps a round, η = ¼, α = ½.

    Clients: b = (0, 6, 4, 9), n = (1, 3, 2, 1); cohorts {0, 1}, {1, 2}. Θ = 2, g = h = 0 at the start.
    A step is w − ¼((w − b) − g + ½(w − Θ)) = ⅝ w + ¼(b + g + ½Θ).

    Round 1   θ = 1.5, 3, then ⅝·1.5 + ¼·1, ⅝·3 + ¼·7                     = 1.1875, 3.625
              g_0 = −½(1.1875 − 2), g_1 = −½(3.625 − 2)                   = 0.40625, −0.8125
              h ← −⅛(−0.8125 + 1.625)                                     = −0.1015625           over all N = 4
              Θ ← 2.40625 − h/½                                           = 2.609375             the mean is plain
    Round 2   client 1: ¼(6 − 0.8125 + 1.3046875) = 1.623046875;          θ = 3.25390625, then 3.65673828125
              client 2: ¼(4 + 1.3046875) = 1.326171875;                   θ = 2.95703125, then 3.17431640625
              g_1 ← −0.8125 − ½(3.65673828125 − 2.609375)                 = −1.336181640625
              g_2 ← −½(3.17431640625 − 2.609375)                          = −0.282470703125
              h ← −0.1015625 − ⅛(1.04736328125 + 0.56494140625)           = −0.3031005859375
              Θ ← 3.41552734375 − h/½                                     = 4.021728515625
    """
    _, (first, last) = quadratic_play(
        FedDyn(alpha=0.5), [0, 6, 4, 9], [1, 3, 2, 1], start=2, lr=0.25, steps=2, cohorts=[[0, 1], [1, 2]]
    )
    assert first["L2"][:, 0].tolist() == pytest.approx([1.1875, 3.625])
    assert first["state/g"][:, 0].tolist() == pytest.approx([0.40625, -0.8125, 0, 0])
    assert first["state/h"].item() == pytest.approx(-0.1015625)
    assert first["state/central"].item() == pytest.approx(2.609375)
    assert last["L2"][:, 0].tolist() == pytest.approx([3.65673828125, 3.17431640625])
    assert last["state/g"][:, 0].tolist() == pytest.approx([0.40625, -1.336181640625, -0.282470703125, 0])
    assert last["state/h"].item() == pytest.approx(-0.3031005859375)
    assert last["L1"].item() == last["G"].item() == last["state/central"].item() == pytest.approx(4.021728515625)


def test_h_is_the_mean_of_all_g_always():
    """Whoever takes part, however often, with any optimiser."""
    training = Training(rounds=4, batch_size=3, lr=0.1, momentum=0.9, weight_decay=0.1, precision="float64")
    play = MethodSimulation(ragged_task(), FedDyn(alpha=0.3), training)
    for cohort in ([0, 2, 3], [4], None, [1, 4]):
        play.round(cohort)
        g = play.state["g"][play.everyone]
        assert g.abs().max() > 1e-3
        torch.testing.assert_close(play.state["h"], g.mean(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cohorts", [[None], [[0, 1], [1, 2], [0, 2]]], ids=["everyone", "two of three"])
def test_it_comes_to_rest_at_the_global_optimum_and_fedavg_does_not(curved, cohorts):
    """F_k = ½ a_k (w − b_k)² with a = (1, 4, 2), b = (0, 6, −3), J = 5 steps, η = 0.1.

    Σ F_k is least at Σ a b / Σ a = (24 − 6)/7. J steps leave q_k = (1 − η a_k)^J of a client's distance, so with all
    clients FedAvg rests where Σ (1 − q_k)(w − b_k) = 0: q = 0.9⁵, 0.6⁵, 0.8⁵, at w ≈ 1.7547.
    At rest each g_k is ∇F_k at the optimum.
    """
    optimum = 18 / 7
    federation = curved([[(1, 0)], [(4, 6)] * 3, [(2, -3)] * 2])
    rounds = 120 // len(cohorts) * cohorts
    training = Training(rounds=len(rounds), local_epochs=None, local_steps=5, lr=0.1, precision="float64")
    play = MethodSimulation(federation, FedDyn(alpha=1), training)
    last = play.run(rounds)[-1]
    assert last["state/central"].item() == pytest.approx(optimum, abs=1e-9)
    assert last["state/g"][:, 0].tolist() == pytest.approx([optimum, 4 * (optimum - 6), 2 * (optimum + 3)], abs=1e-8)
    assert last["state/h"].item() == pytest.approx(0, abs=1e-9)

    kept = [1 - (1 - 0.1 * a) ** 5 for a in (1, 4, 2)]
    rest = (6 * kept[1] - 3 * kept[2]) / sum(kept)
    average = (
        MethodSimulation(federation, FedAvg(), training, weighting="uniform").run(rounds)[-1]["state/central"].item()
    )
    assert abs(average - optimum) > 0.1 and abs(rest - optimum) > 0.5
    if cohorts == [None]:
        assert average == pytest.approx(rest, abs=1e-9)


def test_a_model_is_sent_each_way_and_g_stays_at_home():
    play, _ = quadratic_play(FedDyn(), [[0, 1], [6, 5]])
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 2)


class TestContract(AlgorithmContract):
    algorithm = FedDyn(alpha=0.5)
