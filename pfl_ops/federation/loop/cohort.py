"""The clients that take part in a round."""

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import State, Task
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.settings import DirichletParticipation, Participation, StragglerParticipation


def size(participation: Participation, n_clients: int) -> int:
    """C: the share of the clients, rounded (a half to the even number), at least one."""
    return max(1, min(n_clients, round(participation.share * n_clients)))


def probabilities(participation: Participation, n_clients: int, seed: int) -> np.ndarray | None:
    """Each client's probability in a single draw, the same in every round of a run, [N]; None: all clients alike.

    dirichlet: p ~ Dir(γ). stragglers: p_k ∝ `chance` for a straggler, 1 for another. A cohort is then drawn one after
    the other, each by p over those that are left.

    Raises:
        PflOpsError: fewer clients have a positive probability than a cohort needs, or it takes all clients, so that
            their probabilities would change nothing.
    """
    if isinstance(participation, DirichletParticipation):
        p = np.nan_to_num(rng.generator(seed, "participation").dirichlet(np.full(n_clients, participation.gamma)))
        setting, remedy = f"participation.gamma={participation.gamma:g}", "a larger gamma"
    elif isinstance(participation, StragglerParticipation):
        late = stragglers(participation, n_clients, seed)
        assert late is not None
        p = np.where(late, participation.chance, 1.0)
        setting, remedy = f"participation.chance={participation.chance:g}", "a larger chance"
    else:
        return None
    positive, wanted = int((p > 0).sum()), size(participation, n_clients)
    if 1 < wanted == positive == n_clients:
        raise PflOpsError(
            f"participation.kind={participation.kind} changes nothing where all {n_clients} clients take part in every "
            f"round (participation.share={participation.share:g}); use a smaller share, or kind uniform"
        )
    if positive < wanted:
        raise PflOpsError(
            f"{setting} leaves {positive} of {n_clients} clients with a positive probability, a cohort needs {wanted}; "
            f"use {remedy} or a smaller share"
        )
    return np.asarray(p / p.sum())


def stragglers(participation: Participation, n_clients: int, seed: int) -> np.ndarray | None:
    """Draw the stragglers, bool [N]: the share of the clients, rounded, but at least one and not all; None: the
    setting has none."""
    if not isinstance(participation, StragglerParticipation):
        return None
    number = min(max(round(participation.stragglers * n_clients), 1), n_clients - 1)
    late = np.zeros(n_clients, dtype=bool)
    late[rng.generator(seed, "participation").permutation(n_clients)[:number]] = True
    return late


def draw(method: Method, s: State, task: Task, p: np.ndarray | None, t: int) -> Tensor:
    """The cohort of round t, int64 [C]; a method that draws its own (`cohort`) may name a client more than once.

    Raises:
        PflOpsError: a method's own cohort is empty, or names a client that does not exist.
    """
    n = task.n_clients
    own = getattr(method, "cohort", None)
    if own is not None:
        clients = torch.as_tensor(own(s, task, rng.generator(task.seed, "cohort", t)), dtype=torch.int64).cpu()
        if clients.dim() != 1 or not len(clients) or bool(((clients < 0) | (clients >= n)).any()):
            raise PflOpsError(
                f"a method's own cohort must name some of the clients 0 to {n - 1}, got {clients.tolist()}"
            )
        return clients
    return torch.from_numpy(members(task.cohort_size, n, task.seed, p, t))


def members(size: int, n_clients: int, seed: int, p: np.ndarray | None, t: int) -> np.ndarray:
    """Draw the cohort of round t, ascending, int64 [C], for a method that does not draw its own.

    Args:
        size: C. p: as `probabilities` gives it.
    """
    if p is None and size == n_clients:
        return np.arange(n_clients)
    drawn = rng.generator(seed, "cohort", t).choice(n_clients, size, replace=False, p=p)
    return np.sort(drawn).astype(np.int64)
