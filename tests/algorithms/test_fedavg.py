import pytest

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.testing import AlgorithmContract, quadratic, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = ½.

    Clients: b = (0, 6), n = (1, 3), so p = (¼, ¾). Θ = 2 at the start.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6)            = 1, 4            Θ ← ¼·1 + ¾·4 = 3.25
    Round 2   θ = 3.25 − ½·3.25, 3.25 − ½(3.25 − 6)     = 1.625, 4.625    Θ ← 3.875
    """
    play, (_, last) = quadratic_play(FedAvg(), [0, 6], [1, 3], start=2)
    assert play.state["central"].item() == pytest.approx(3.875)
    assert last["L1"].tolist() == last["G"].tolist() == pytest.approx([3.875])  # one model, which all share
    assert last["L2"][:, 0].tolist() == pytest.approx([1.625, 4.625])


def test_uniform_weights():
    """Round 1 as above, Θ ← ½·1 + ½·4 = 2.5; round 2: θ = 1.25, 4.25, Θ ← 2.75."""
    assert quadratic(FedAvg(), [0, 6], [1, 3], start=2, weighting="uniform")["central"].item() == pytest.approx(2.75)


def test_weights_are_of_the_cohort():
    """b = (0, 6, 8), n = (1, 3, 4): clients 0 and 1 (¼, ¾), then client 1 drawn once and client 2 twice (3, 8 of 11).

    Round 1   Θ ← 3.25
    Round 2   θ = 4.625, 5.625     Θ ← (3·4.625 + 8·5.625)/11 = 58.875/11
    """
    state = quadratic(FedAvg(), [0, 6, 8], [1, 3, 4], start=2, cohorts=[[0, 1], [2, 1, 2]])
    assert state["central"].item() == pytest.approx(58.875 / 11)


def test_the_learning_rate_decays_by_round():
    """η = ½, then ¼: round 2 is θ = 3.25 − ¼·3.25, 3.25 − ¼(3.25 − 6) = 2.4375, 3.9375; Θ ← 3.5625."""
    state = quadratic(FedAvg(), [0, 6], [1, 3], start=2, lr_decay=0.5)
    assert state["central"].item() == pytest.approx(3.5625)


class TestContract(AlgorithmContract):
    algorithm = FedAvg()
