"""Divergence: a loss or a parameter that is not finite. Whatever is computed from it means nothing."""

import math
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import Models, Rows, Update
from pfl_ops.federation.scoring.evaluate import Scores


class Diverged(PflOpsError):
    """A run whose training diverged. Its finished rounds before are kept; the run is FAILED.

    Args:
        round_: the first one that is not finite, from 1. lr: the local learning rate of that round.
        client: one whose model is not finite; None: the loss or a shared value is.
        cost: tracked costs of that round, which has no record: "cost/up_bytes", ...; none: not known.
    """

    exit_code = 3

    def __init__(
        self, round_: int, lr: float, client: int | None = None, cost: Mapping[str, float] | None = None
    ) -> None:
        who = "" if client is None else f", client {client}"
        super().__init__(f"diverged at round {round_}{who}, lr {lr:.4g}")
        self.round, self.lr, self.client = round_, lr, client
        self.cost = cost or {}

    def again(self) -> "Diverged":
        """Return an equal error, to be raised where this one is kept: it would hold all that its traceback has."""
        return Diverged(self.round, self.lr, self.client, self.cost)

    def as_list(self) -> list[float | int | None]:
        """Return the arguments of the error but for the cost, for JSON."""
        return [self.round, self.lr, self.client]


def check(
    round_: int,
    lr: float,
    loss: float | None,
    update: Update,
    stages: Mapping[str, Models | Callable[[Tensor], Models | None]],
) -> Diverged | None:
    """Look for values that are not finite among those that a round changed.

    Args:
        round_: from 1. lr: of this round. loss: mean training loss; None: nothing was trained.
        update: new state, tensors of any shape or rows [C, Q]. stages: the round's models, [C, P] or [P]; those that
            are functions are not called.
    Returns:
        the error to raise, with a client's number if a client's row is not finite; None: all is finite.
    """
    by_client = [value for value in update.values() if isinstance(value, Rows) and value.values.is_floating_point()]
    shared = [value for value in update.values() if isinstance(value, Tensor) and value.is_floating_point()]
    fine = loss is None or math.isfinite(loss)
    if fine and all(map(_finite, shared)) and all(_finite(rows.values) for rows in by_client):
        return None
    held = [(rows.clients, rows.values) for rows in by_client]
    held += [
        (models.clients, models.params)
        for models in stages.values()
        if isinstance(models, Models) and models.clients is not None
    ]
    for clients, values in held:
        bad = (~values.reshape(len(values), -1).sum(dim=1).isfinite()).nonzero()[:, 0]
        if len(bad):
            return Diverged(round_, lr, int(clients[bad[0].to(clients.device)]))
    return Diverged(round_, lr)


def check_scored(round_: int, lr: float, scores: Iterable[Scores]) -> Diverged | None:
    """Look for models that are not finite among those that were scored: a stage may train its models when it is asked.

    Args:
        round_: from 1. lr: of this round. scores: of its stages.

    >>> print(check_scored(3, 0.4, [Scores(np.ones(2)), Scores(np.ones(2), not_finite=[7, 9])]))
    diverged at round 3, client 7, lr 0.4
    """
    return next((Diverged(round_, lr, client) for each in scores for client in each.not_finite), None)


def _finite(values: Tensor) -> bool:
    """Return True if the sum of the values is finite: one pass without a mask. A sum that overflows is divergence."""
    return bool(values.sum().isfinite())
