"""Tests for a method of one's own: the contract that every method keeps, and small federations to play it on.

    from pfl_ops.testing import AlgorithmContract, quadratic

    class TestContract(AlgorithmContract):
        algorithm = Mine(lam=0.5)

    def test_one_round_by_hand():
        state = quadratic(Mine(lam=0.5), centres=[0.0, 6.0], sizes=[1, 3], start=2.0, lr=0.5, rounds=1)
        assert state["central"].tolist() == [3.25]

The package's own methods inherit the same class. Everything here runs in float64 on the CPU within a second or so.
Examples in docstrings use `quadratic_round` and `scalar_net`, whose numbers can be checked by hand.
"""

from pfl_ops.testing.contract import AlgorithmContract
from pfl_ops.testing.federations import Federation, quadratic_task, ragged_task, scalar_net
from pfl_ops.testing.simulation import MethodSimulation, Values, quadratic, quadratic_play, quadratic_round

__all__ = [
    "AlgorithmContract",
    "Federation",
    "MethodSimulation",
    "Values",
    "quadratic",
    "quadratic_play",
    "quadratic_round",
    "quadratic_task",
    "ragged_task",
    "scalar_net",
]
