import pytest

from pfl_ops.algorithms.fedper import FedPer
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play

TRAINING = Training(rounds=2, batch_size=None, lr=0.125, precision="float64")


def test_two_rounds_by_hand(product):
    """F_k = ½ (h a − y_k)², one full-batch step of both: a ← a − ⅛ (h a − y) h, h ← h − ⅛ (h a − y) a.

    y = (4, 1, 2), n = (1, 3, 2); a = 2, h = 1 at the start.

    Round 1   clients 0, 1: p = (¼, ¾), residuals −2, 1
              a = 2 + ¼, 2 − ⅛ = 2.25, 1.875               h = 1 + ½, 1 − ¼ = 1.5, 0.75
              Θ_body ← ¼·2.25 + ¾·1.875 = 1.96875          mean head (1.5 + 0.75 + 1)/3 = 13/12
    Round 2   clients 0, 2: p = (⅓, ⅔), from a = 1.96875 and their own h = 1.5, 1; residuals −1.046875, −0.03125
              a = 1.96875 + ⅛·1.046875·1.5 = 2.1650390625             1.96875 + ⅛·0.03125 = 1.97265625
              h = 1.5 + ⅛·1.046875·1.96875 = 1.75762939453125         1 + ⅛·0.03125·1.96875 = 1.0076904296875
              Θ_body ← (2.1650390625 + 2·1.97265625)/3                client 1 keeps h = 0.75
    """
    play = MethodSimulation(product, FedPer(), TRAINING)
    first, last = play.run([[0, 1], [0, 2]])
    assert first["L2"].tolist() == [[2.25, 1.5], [1.875, 0.75]]
    assert first["L1"].tolist() == [[1.96875, 1.5], [1.96875, 0.75], [1.96875, 1]]
    assert first["G"].tolist() == pytest.approx([1.96875, 13 / 12])

    assert last["L2"].tolist() == [
        pytest.approx([2.1650390625, 1.75762939453125]),
        pytest.approx([1.97265625, 1.0076904296875]),
    ]
    body = (2.1650390625 + 2 * 1.97265625) / 3
    assert last["L1"][:, 0].tolist() == pytest.approx([body] * 3)
    assert last["L1"][:, 1].tolist() == pytest.approx([1.75762939453125, 0.75, 1.0076904296875])
    assert last["G"].tolist() == pytest.approx([body, (1.75762939453125 + 0.75 + 1.0076904296875) / 3])


def test_only_the_body_is_sent(product):
    play = MethodSimulation(product, FedPer(), TRAINING)
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (1, 1)


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedper shares the body of a network, and this one has no body"):
        quadratic_play(FedPer(), [0, 6])


class TestContract(AlgorithmContract):
    algorithm = FedPer()
