import pytest

from pfl_ops.algorithms.fedsgd import FedSGD
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play


def test_two_rounds_by_hand(curved):
    """Samples (a, b) with the loss ½ a (w − b)², so g is the mean of a (w − b). Θ = 2; η = ½, then ¼.

    Client 0: (1, 0)                         g = w
    Client 1: (1, 6), (2, 3), (½, 8)         g = (3.5 w − 16)/3
    Client 2: (3, 2), (1, 10)                g = 2 w − 8
    Local epochs and a batch size are given, and have no say.

    Round 1   clients 0, 1: g = 2, −3; p = (¼, ¾)       Θ ← 2 − ½(¼·2 − ¾·3)                   = 2.875
              θ = 2 − ½·2, 2 + ½·3                      = 1, 3.5
    Round 2   clients 1, 2: g = −5.9375/3, −2.25; p = (3/5, 2/5)
              Θ ← 2.875 + ¼(3/5·5.9375/3 + 2/5·2.25)    = 3.396875
              θ = 2.875 + ¼·5.9375/3, 2.875 + ¼·2.25    = 3.3697917, 3.4375
    """
    federation = curved([[(1, 0)], [(1, 6), (2, 3), (0.5, 8)], [(3, 2), (1, 10)]], start=2)
    training = Training(rounds=2, local_epochs=3, batch_size=1, lr=0.5, lr_decay=0.5, precision="float64")
    first, last = MethodSimulation(federation, FedSGD(), training).run([[0, 1], [1, 2]])
    assert first["L1"].item() == first["G"].item() == first["state/central"].item() == pytest.approx(2.875)
    assert first["L2"][:, 0].tolist() == pytest.approx([1, 3.5])
    assert last["L1"].item() == last["G"].item() == last["state/central"].item() == pytest.approx(3.396875)
    assert last["L2"][:, 0].tolist() == pytest.approx([2.875 + 5.9375 / 12, 3.4375])


def test_uniform_weights():
    """b = (0, 6), n = (1, 3), Θ = 2, η = ½: g = 2, −4; Θ ← 2 − ½(½·2 − ½·4) = 2.5, then g = 2.5, −3.5: Θ ← 2.75."""
    play, _ = quadratic_play(FedSGD(), [0, 6], [1, 3], start=2, weighting="uniform")
    assert play.state["central"].item() == pytest.approx(2.75)


def test_it_sends_a_model_down_and_a_gradient_up():
    play, _ = quadratic_play(FedSGD(), [[0, 1, 2], [6, 5, 4]])
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (3, 3)


def test_what_is_not_a_plain_gradient_step_is_refused():
    from pfl_ops import Experiment

    assert Experiment.of("fedsgd").algorithm == FedSGD()
    for changes in ({"training.momentum": 0.9}, {"training.optimiser": "adam"}, {"training.weight_decay": 0.01}):
        with pytest.raises(PflOpsError, match=r"fedsgd needs training\.optimiser=sgd"):
            Experiment.of("fedsgd", **changes)


class TestContract(AlgorithmContract):
    algorithm = FedSGD()
