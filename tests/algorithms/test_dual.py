"""The parts that DRFA and DRDM share: clients drawn by λ, losses guessed from a second cohort, λ's projected step."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from pfl_ops import rng
from pfl_ops.algorithms import dual
from pfl_ops.algorithms.drfa import DRFA
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import MethodSimulation, quadratic_task, ragged_task


def play(federation, m, batch_size=None):
    """A federation whose cohorts are of m clients."""
    training = Training(rounds=3, local_epochs=None, local_steps=2, batch_size=batch_size, lr=0.5, precision="float64")
    play = MethodSimulation(federation, DRFA(), training, stack=2)
    play.trainer.task = replace(play.task, cohort_size=m)
    return play


def test_it_starts_at_the_shares_of_data():
    lam = dual.by_size(play(quadratic_task([0, 0, 0], [1, 3, 2]), 3).task)
    assert lam.tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_are_drawn_by_it_with_replacement(dtype):
    """3,000 draws: as often as λ says, within five standard deviations; a client without weight never."""
    lam = torch.tensor([0.1, 0, 0.6, 0.3], dtype=dtype)
    clients = dual.drawn(lam, 3000, rng.generator(0, "test"))
    assert clients.dtype == torch.int64
    assert np.bincount(clients, minlength=4) / 3000 == pytest.approx(lam.numpy(), abs=5 * np.sqrt(0.25 / 3000))
    assert not (clients == 1).any()


def test_losses_of_a_second_cohort_stand_for_all():
    """F_k(2) = ½ (2 − b_k)² = 2, 8, 32, 0.5, m = 2 of N = 4: two clients at twice their loss, the others at 0.

    The mean over 200 rounds is F_k: a client is in U every second time, so the mean's standard deviation is F_k / 14.
    """
    p, losses = play(quadratic_task([0, 6, 10, 3]), 2), torch.tensor([2, 8, 32, 0.5], dtype=torch.float64)
    found = []
    for p.t in range(200):
        v = dual.guessed_losses(p.at([0]), torch.tensor([2.0], dtype=torch.float64))
        assert int((v != 0).sum()) == 2
        assert torch.equal(v[v != 0], 2 * losses[v != 0])
        found.append(v)
    assert torch.stack(found).mean(dim=0).numpy() == pytest.approx(losses.numpy(), rel=0.3)


def test_a_second_cohort_of_everyone_is_exact():
    v = dual.guessed_losses(play(quadratic_task([0, 6, 10]), 3).at([1]), torch.tensor([2.0], dtype=torch.float64))
    assert v.tolist() == [2, 8, 32]


def test_each_of_them_looks_at_one_minibatch():
    """B = 2: the mean loss of some two samples of its own, another two in another round."""
    federation = ragged_task((5, 4, 6))
    p = play(federation, 3, batch_size=2)
    w = p.task.initial
    seen = set()
    for p.t in range(6):
        v = dual.guessed_losses(p.at([0]), w)
        for k, index in enumerate(federation.pool.index):
            each = [p.task.loss(p.task.net, w, federation.pool.x[index], federation.pool.y[index])[[i, j]].mean()
                    for i, j in combinations(range(len(index)), 2)]  # fmt: skip
            assert min(abs(float(v[k] - loss)) for loss in each) < 1e-12
        seen.add(round(v[2].item(), 9))
    assert len(seen) > 1


def test_it_ascends_and_stays_on_the_simplex():
    """(0.2, 0.3, 0.5) + ½ (0, 0.4, 1.6) = (0.2, 0.5, 1.3): the two large ones less 0.4, the small one 0."""
    lam = dual.ascended(torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0, 0.4, 1.6]), 0.5)
    assert lam.tolist() == pytest.approx([0, 0.1, 0.9])


def test_a_loss_that_is_lost_is_refused():
    with pytest.raises(PflOpsError, match=r"not finite.*smaller training\.lr"):
        dual.ascended(torch.tensor([0.5, 0.5]), torch.tensor([1.0, float("nan")]), 0.1)
