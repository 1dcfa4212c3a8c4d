import itertools

import pytest
import torch

from pfl_ops.algorithms.ditto import Ditto
from pfl_ops.algorithms.local import Local
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic, quadratic_play, ragged_task


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = ½, λ = ½.

    Clients: b = (0, 6), n = (1, 3), so p = (¼, ¾). Θ = v_k = 2 at the start.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6)                    = 1, 4        Θ ← ¼·1 + ¾·4 = 3.25
              v = 2 − ½((2 − 0) + ½·0), 2 − ½((2 − 6) + ½·0)    = 1, 4        (the pull is to the Θ received: 2)
    Round 2   θ = 3.25 − ½·3.25, 3.25 − ½(3.25 − 6)             = 1.625, 4.625   Θ ← 3.875
              v = 1 − ½((1 − 0) + ½(1 − 3.25))                  = 1.0625
              v = 4 − ½((4 − 6) + ½(4 − 3.25))                  = 4.8125
    """
    play, (_, last) = quadratic_play(Ditto(lam=0.5), [0, 6], [1, 3], start=2)
    assert play.state["central"].item() == last["G"].item() == pytest.approx(3.875)
    assert last["L1"][:, 0].tolist() == last["L2"][:, 0].tolist() == pytest.approx([1.0625, 4.8125])


def test_absent_clients_hold_their_models():
    """Client 1 misses round 2: v_1 stays 4, Θ is client 0's θ = 3.25 − ½·3.25 alone."""
    state = quadratic(Ditto(lam=0.5), [0, 6], [1, 3], start=2, cohorts=[None, [0]])
    assert state["personal"][torch.arange(2)][:, 0].tolist() == pytest.approx([1.0625, 4])
    assert state["central"].item() == pytest.approx(1.625)


def test_personal_epochs():
    """E_v = 2 beside E = 1 in round 1: v = 1 − ½((1 − 0) + ½(1 − 2)) = 0.75, 4 − ½((4 − 6) + ½(4 − 2)) = 4.5."""
    _, (only,) = quadratic_play(
        Ditto(lam=0.5, personal_epochs=2), [0, 6], [1, 3], start=2, rounds=1, local_steps=None, local_epochs=1
    )
    assert only["L1"][:, 0].tolist() == pytest.approx([0.75, 4.5])
    assert only["G"].item() == pytest.approx(3.25)


def test_without_pull_the_personal_models_are_local_training():
    """Up to the order of summation: the two draw their batches in streams of their own, so take all samples at once."""
    training = Training(rounds=2, local_epochs=3, batch_size=None, lr=0.3, precision="float64")
    alone, tied = (MethodSimulation(ragged_task(), m, training).run([[0, 3], None]) for m in (Local(), Ditto(lam=0.0)))
    torch.testing.assert_close(tied[-1]["L1"], alone[-1]["L1"], rtol=0, atol=1e-12)


def test_the_two_models_walk_through_batches_of_their_own(curved):
    """λ = 0, B = 1, E = 1, one client of four samples (a, b), both from Θ = 1: each steps w ← w − η a (w − b).

    θ, which is G of a client alone, and v are each the result of one of the 4! orders. Over six rounds from the same Θ
    the two orders differ at least once: with common batches v = θ in all of them.
    """
    samples, lr = [(1.0, 0.0), (2.0, 3.0), (0.5, -4.0), (1.5, 8.0)], 0.25
    ends = []
    for order in itertools.permutations(samples):
        w = 1.0
        for a, b in order:
            w -= lr * a * (w - b)
        ends.append(w)
    training = Training(rounds=6, local_epochs=1, batch_size=1, lr=lr, precision="float64")
    apart = 0
    for t in range(6):
        play = MethodSimulation(curved([samples], start=1.0), Ditto(lam=0.0), training)
        play.t = t
        values = play.round()
        theta, v = values["G"].item(), values["L2"].item()
        assert all(min(abs(w - end) for end in ends) < 1e-12 for w in (theta, v))
        apart += abs(theta - v) > 1e-6
    assert apart


def test_the_training_loss_is_that_of_the_models_that_are_sent():
    """train/loss is F_k at Θ, over samples: Θ = 3.25 in round 2 (by hand above), b = (0, 6), n = (1, 3), J = 1.

    ¼·½·3.25² + ¾·½·2.75² = 4.15625; the personal models, at 1 and 4 by then, walk through batches of their own and have
    another mean loss, ¼·½·1² + ¾·½·2² = 1.625.
    """
    play, _ = quadratic_play(Ditto(lam=0.5), [0, 6], [1, 3], start=2, rounds=1)
    play.trainer.meter.clear()
    play.round()
    assert play.trainer.meter.mean == pytest.approx(4.15625)


class TestContract(AlgorithmContract):
    algorithm = Ditto(lam=0.5)
