import pytest

from pfl_ops.algorithms.fedprox import FedProx
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², two full-batch steps a round (in the first θ = Θ and nothing pulls), η = ½, μ = ½.

    Clients: b = (0, 6), n = (1, 3), so p = (¼, ¾). Θ = 2 at the start.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6)                                     = 1, 4
              θ = 1 − ½((1 − 0) + ½(1 − 2)), 4 − ½((4 − 6) + ½(4 − 2))           = 0.75, 4.5
              Θ ← ¼·0.75 + ¾·4.5                                                 = 3.5625
    Round 2   θ = 1.78125, 4.78125
              θ = 1.78125 − ½(1.78125 + ½(1.78125 − 3.5625))                     = 1.3359375
              θ = 4.78125 − ½((4.78125 − 6) + ½(4.78125 − 3.5625))               = 5.0859375
              Θ ← ¼·1.3359375 + ¾·5.0859375                                      = 4.1484375
    """
    play, (first, last) = quadratic_play(FedProx(mu=0.5), [0, 6], [1, 3], start=2, steps=2)
    assert first["L2"][:, 0].tolist() == pytest.approx([0.75, 4.5])
    assert last["L2"][:, 0].tolist() == pytest.approx([1.3359375, 5.0859375])
    assert play.state["central"].item() == last["L1"].item() == last["G"].item() == pytest.approx(4.1484375)


class TestContract(AlgorithmContract):
    algorithm = FedProx(mu=0.5)
