"""The dual variable λ of max_λ Σ_k λ_k F_k: clients drawn by it, all losses guessed from a few, its projected step."""

import numpy as np
import torch
from torch import Tensor

from pfl_ops.algorithms.base import Batch, Round, Task
from pfl_ops.algorithms.solvers import project_to_simplex
from pfl_ops.errors import PflOpsError


def by_size(task: Task) -> Tensor:
    """λ_0 = n_k / n, [N].

    >>> from pfl_ops.testing import quadratic_round
    >>> by_size(quadratic_round([0.0, 6.0], sizes=[1, 3]).task).tolist()
    [0.25, 0.75]
    """
    sizes = task.sizes.to(task.initial)
    return sizes / sizes.sum()


def drawn(lam: Tensor, m: int, generator: np.random.Generator) -> Tensor:
    """Draw m clients with probabilities λ [N], with replacement: int64 [m].

    >>> drawn(torch.tensor([0.0, 1.0, 0.0]), 3, np.random.default_rng(0)).tolist()
    [1, 1, 1]
    """
    p = lam.double().cpu().numpy()
    return torch.from_numpy(generator.choice(len(p), m, p=p / p.sum()))


def guessed_losses(r: Round, model: Tensor) -> Tensor:
    """All clients' losses at a model, [N], from a second cohort U of m clients, uniform without replacement.

        v_k = (N / m) f_k(model; ξ) for k ∈ U, one minibatch each; 0 for the others

    Its mean over U and ξ is (F_1, ..., F_N): the factor N / m makes up for the clients not drawn.

    Args:
        model: [P].

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0], start=2.0)  # U is all clients here, so N / m = 1
    >>> guessed_losses(r, r.task.initial).tolist()  # ½ 2² and ½ 4²
    [2.0, 8.0]
    """
    n, m = r.task.n_clients, r.task.cohort_size
    second = r.over(torch.from_numpy(r.rng("second").choice(n, m, replace=False)))

    def step(_: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        return {"loss": b.loss(model)}

    losses = second.walk({"loss": model.new_zeros(m)}, step, steps=1, stream="second")["loss"]
    return model.new_zeros(n).index_copy(0, second.cohort.to(model.device), losses * (n / m))


def ascended(lam: Tensor, v: Tensor, rate: float) -> Tensor:
    """λ ← Π_Δ(λ + rate · v), [N], of losses v [N]; Π_Δ is the Euclidean projection onto the simplex.

    Raises:
        PflOpsError: a loss is not finite.

    >>> ascended(torch.tensor([0.5, 0.5]), torch.tensor([2.0, 8.0]), rate=0.0625).tolist()  # (0.625, 1) − 0.3125
    [0.3125, 0.6875]
    """
    if not bool(v.isfinite().all()):
        raise PflOpsError("a client's loss is not finite, so its weight has no next value; use a smaller training.lr")
    return project_to_simplex(lam + rate * v)


def sent_twice(r: Round) -> None:
    """Note a round's traffic: Θ down, θ_k and a snapshot up; and each of the second cohort receives Θ'.

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([[0.0, 1.0], [6.0, 7.0]])  # P = 2, and both cohorts are all clients
    >>> sent_twice(r)
    >>> r.traffic
    Traffic(up=4, down=4.0)
    """
    p, second = r.layout.size, r.task.cohort_size
    r.sent(up=2 * p, down=p + p * second / len(r.cohort))
