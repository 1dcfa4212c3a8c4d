import pytest

from pfl_ops.algorithms.local import Local
from pfl_ops.testing import AlgorithmContract, quadratic_play


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = ½.

    Clients: b = (0, 6, 10), n = (1, 3, 2); θ_k = 2 at the start. The third takes part in round 2 only.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6), 2      = 1, 4, 2
    Round 2   θ = 1, 4 − ½(4 − 6), 2 − ½(2 − 10)     = 1, 5, 6        the first stays away
    G: the plain mean over all three, 7/3 and then 4 (weighted by n_k it would be 17/6 and 28/6).
    """
    _, (first, second) = quadratic_play(Local(), [0, 6, 10], [1, 3, 2], start=2, cohorts=[[0, 1], [1, 2]])
    assert first["L1"][:, 0].tolist() == pytest.approx([1, 4, 2])
    assert second["L1"][:, 0].tolist() == pytest.approx([1, 5, 6])
    assert first["L2"][:, 0].tolist() == pytest.approx([1, 4])  # the cohort's, in its order
    assert [first["G"].item(), second["G"].item()] == pytest.approx([7 / 3, 4])


def test_nothing_is_sent():
    play, _ = quadratic_play(Local(), [0, 6])
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (0, 0)


class TestContract(AlgorithmContract):
    algorithm = Local()
