import pytest
import torch

from pfl_ops.algorithms.fedrep import FedRep
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play


def training(**how):
    return Training(**{"rounds": 2, "batch_size": None, "lr": 0.125, "precision": "float64", **how})


def test_two_rounds_by_hand(product):
    """F_k = ½ (h a − y_k)², ∇_h = (h a − y) a, ∇_a = (h a − y) h; E_h = 2, E_b = 1 full-batch steps, η = ⅛.

    Clients 0 and 1 take part: y = (4, 1), n = (1, 3), so p = (¼, ¾). a = 2, h = 1 at the start.

    Round 1   head (a = 2, so h ← h/2 + y/4): 1 → 1.5 → 1.75             1 → 0.75 → 0.625
              body: a ← 2 − ⅛(3.5 − 4)·1.75 = 2.109375                    2 − ⅛(1.25 − 1)·0.625 = 1.98046875
              a ← ¼·2.109375 + ¾·1.98046875 = 2.0126953125                client 2 keeps h = 1: mean head 1.125
    Round 2   head (h ← h − ⅛(h a − y) a):  1.75 → 1.8702040 → 1.9295406     0.625 → 0.5601070 → 0.5280738
              body (a ← a − ⅛(h a − y) h):  2.0407756                        2.0085465
              a ← ¼·2.0407756 + ¾·2.0085465 = 2.0166038                      mean head (1.9295406 + 0.5280738 + 1)/3
    """
    play = MethodSimulation(product, FedRep(head_epochs=2, body_epochs=1), training())
    first, last = play.run([[0, 1], [0, 1]])
    assert first["L2"].tolist() == [pytest.approx([2.109375, 1.75]), pytest.approx([1.98046875, 0.625])]
    assert first["L1"][:, 0].tolist() == pytest.approx([2.0126953125] * 3)
    assert first["L1"][:, 1].tolist() == pytest.approx([1.75, 0.625, 1])
    assert first["G"].tolist() == pytest.approx([2.0126953125, 1.125])

    assert last["L2"].tolist() == [
        pytest.approx(row, abs=1e-7) for row in ([2.0407756, 1.9295406], [2.0085465, 0.5280738])
    ]
    assert last["G"].tolist() == pytest.approx([2.0166038, 1.1525381], abs=1e-7)
    assert play.state["body"].item() == last["L1"][2, 0].item() == last["G"][0].item()


def test_schedule_steps(product):
    """J = 3: two head steps as above, then one step of both from the same values:

    client 0: h = 1.75, residual −0.5: h ← 1.75 + ⅛·0.5·2 = 1.875, a ← 2 + ⅛·0.5·1.75 = 2.109375
    client 1: h = 0.625, residual 0.25: h ← 0.625 − ⅛·0.25·2 = 0.5625, a ← 2 − ⅛·0.25·0.625 = 1.98046875
    """
    play = MethodSimulation(product, FedRep(schedule="steps"), training(local_epochs=None, local_steps=3))
    only = play.round([0, 1])
    assert only["L2"].tolist() == [pytest.approx([2.109375, 1.875]), pytest.approx([1.98046875, 0.5625])]


def test_one_step_is_of_the_whole_model(product):
    """J = 1, no head step: from a = 2, h = 1, residual −2: h ← 1 + ⅛·2·2 = 1.5, a ← 2 + ⅛·2·1 = 2.25."""
    play = MethodSimulation(product, FedRep(schedule="steps"), training(local_epochs=None, local_steps=1))
    assert play.round([0])["L2"].tolist() == [pytest.approx([2.25, 1.5])]


def test_the_frozen_part_stays_under_decay_and_adam(product):
    """No head step moves the body by a bit, whatever the optimiser adds to a zero gradient."""
    for how in ({"weight_decay": 0.5}, {"optimiser": "adam", "weight_decay": 0.5}, {"momentum": 0.9}):
        play = MethodSimulation(product, FedRep(), training(**how))
        r = play.at([0, 1])
        start = torch.tensor([[2.0, 1], [2, 1]], dtype=torch.float64)
        trained = r.train(start, only=r.layout.head, epochs=3)
        assert trained[:, 0].tolist() == [2, 2] and (trained[:, 1] != 1).all()


def test_steps_need_local_steps(product):
    with pytest.raises(PflOpsError, match=r"set training\.local_steps"):
        MethodSimulation(product, FedRep(schedule="steps"), training()).round()


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedrep shares the body of a network, and this one has no body"):
        quadratic_play(FedRep(), [0, 6])


def test_only_the_body_is_sent(product):
    play = MethodSimulation(product, FedRep(), training())
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (1, 1)


class TestContract(AlgorithmContract):
    algorithm = FedRep(head_epochs=2)
