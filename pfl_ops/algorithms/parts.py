"""Parts of several methods: bodies and heads, copies that are fine-tuned."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import ClientRows, Models, Task
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.network.cross_entropy import cross_entropy


def whole(body: Tensor, heads: Tensor) -> Tensor:
    """Models [C, P] of bodies ([P_body] for all, or [C, P_body]) and heads (the same with P_head), one of them rows.

    >>> whole(torch.tensor([1.0, 2.0]), heads=torch.tensor([[8.0], [9.0]])).tolist()
    [[1.0, 2.0, 8.0], [1.0, 2.0, 9.0]]
    """
    clients = len(heads) if heads.dim() == 2 else len(body)
    return torch.cat([body.expand(clients, -1), heads.expand(clients, -1)], dim=1)


def with_mean_head(body: Tensor, kept: ClientRows, clients: Tensor, heads: Tensor) -> Models:
    """G of a method whose heads are client state: a body [P_body] with the mean of all N heads, [P].

    Args:
        kept: the heads [N, P_head] as they were. clients, heads: those that this round changes, [C, P_head].

    >>> kept = ClientRows(torch.tensor([0.0]), n=4)
    >>> model = with_mean_head(torch.tensor([1.0, 2.0]), kept, torch.tensor([0, 3]), torch.tensor([[8.0], [4.0]]))
    >>> model.params.tolist()  # (8 + 0 + 0 + 4) / 4
    [1.0, 2.0, 3.0]
    """
    return Models(torch.cat([body, kept.mean(clients, heads)]))


def counted_steps(r: Round, name: str) -> int:
    """Return J, for methods whose equation names a step.

    Args:
        name: of the method, for the message.
    Raises:
        PflOpsError: the experiment counts epochs.

    >>> from pfl_ops.testing import quadratic_round
    >>> counted_steps(quadratic_round([0.0], steps=3), "drfa")
    3
    >>> counted_steps(quadratic_round([0.0], local_epochs=1, steps=None), "drfa")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: drfa counts steps; set training.local_steps
    """
    if r.local_steps is None:
        raise PflOpsError(f"{name} counts steps; set training.local_steps")
    return r.local_steps


def needs_body(task: Task, name: str, does: str = "shares") -> None:
    """Refuse a network that is nothing but a head.

    Args:
        name: of the method, for the message. does: what it does to the body.
    Raises:
        PflOpsError: the network has no parameters before its last layer.

    >>> from pfl_ops.testing import quadratic_round
    >>> needs_body(quadratic_round([0.0]).task, "fedrep")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: fedrep shares the body of a network, and this one has no body; take model mlp or cnn
    """
    if task.layout.body.stop == 0:
        raise PflOpsError(f"{name} {does} the body of a network, and this one has no body; take model mlp or cnn")


def needs_cross_entropy(task: Task, name: str) -> None:
    """Refuse another loss than the one that the method's own loss is made of.

    Args:
        name: of the method, for the message.
    Raises:
        PflOpsError: `training.loss` is another one.

    >>> from pfl_ops.testing import quadratic_round
    >>> needs_cross_entropy(quadratic_round([0.0]).task, "fedrod")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: fedrod needs training.loss=cross_entropy: it trains on a loss that is made of it
    """
    if task.loss is not cross_entropy:
        raise PflOpsError(f"{name} needs training.loss=cross_entropy: it trains on a loss that is made of it")


def fine_tuned(r: Round, central: Tensor, **how: Any) -> Callable[[Tensor], Models]:
    """Return a stage: a copy of Θ that clients fine-tune and drop; it is trained when the stage is evaluated.

    Args:
        central: Θ, [P]. how: of `Round.train`.
    Returns:
        A function of clients, int64 [C], to `Models` [C, P].

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0, 9.0], start=2.0, clients=[0])
    >>> stage = fine_tuned(r, r.task.initial, steps=2)
    >>> stage(torch.tensor([1])).params.tolist()  # 2, 4, 5: also for a client that was not in the cohort
    [[5.0]]
    """

    def stage(clients: Tensor) -> Models:
        own = r.over(clients)
        return Models(own.train(central, stream="fine", **how), own.cohort)

    return stage


__all__ = ["counted_steps", "fine_tuned", "needs_body", "whole", "with_mean_head"]
