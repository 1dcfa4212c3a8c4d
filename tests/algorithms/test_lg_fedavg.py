import pytest

from pfl_ops.algorithms.lg_fedavg import LGFedAvg
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task

TRAINING = Training(rounds=2, batch_size=None, lr=0.125, precision="float64")


def test_two_rounds_by_hand(product):
    """F_k = ½ (h a − y_k)², one full-batch step of both: a ← a − ⅛ (h a − y) h, h ← h − ⅛ (h a − y) a.

    y = (4, 1, 2), n = (1, 3, 2); a = 2, h = 1 at the start.

    Round 1   clients 0, 1: p = (¼, ¾), residuals −2, 1
              a = 2 + ¼, 2 − ⅛ = 2.25, 1.875               h = 1 + ½, 1 − ¼ = 1.5, 0.75
              Θ_head ← ¼·1.5 + ¾·0.75 = 0.9375
    Round 2   clients 0, 2: p = (⅓, ⅔), from h = 0.9375 and their own a = 2.25, 2; residuals −1.890625, −0.125
              a = 2.25 + ⅛·1.890625·0.9375 = 2.4715576171875          2 + ⅛·0.125·0.9375 = 2.0146484375
              h = 0.9375 + ⅛·1.890625·2.25 = 1.46923828125            0.9375 + ⅛·0.125·2 = 0.96875
              Θ_head ← (1.46923828125 + 2·0.96875)/3                  client 1 keeps a = 1.875
    """
    play = MethodSimulation(product, LGFedAvg(), TRAINING)
    first, last = play.run([[0, 1], [0, 2]])
    assert first["L2"].tolist() == [[2.25, 1.5], [1.875, 0.75]]
    assert first["L1"].tolist() == [[2.25, 0.9375], [1.875, 0.9375], [2, 0.9375]]

    assert last["L2"].tolist() == [
        pytest.approx([2.4715576171875, 1.46923828125]),
        pytest.approx([2.0146484375, 0.96875]),
    ]
    assert last["L1"][:, 0].tolist() == pytest.approx([2.4715576171875, 1.875, 2.0146484375])
    assert last["L1"][:, 1].tolist() == pytest.approx([(1.46923828125 + 2 * 0.96875) / 3] * 3)


def test_there_is_no_global_model(product):
    assert "G" not in MethodSimulation(product, LGFedAvg(), TRAINING).round()


def test_only_the_head_is_sent():
    """D = 3 features, L = 3 classes: 12 of P = 27 numbers."""
    play = MethodSimulation(ragged_task(), LGFedAvg(), TRAINING)
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (12, 12)


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="lg_fedavg keeps the body of a network, and this one has no body"):
        quadratic_play(LGFedAvg(), [0, 6])


class TestContract(AlgorithmContract):
    algorithm = LGFedAvg()
