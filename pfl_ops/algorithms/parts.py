"""What several methods are made of: bodies and heads, copies that are fine-tuned."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.contract import ClientRows, Models, Task
from pfl_ops.federation.leaves import cross_entropy
from pfl_ops.federation.round import Round


def whole(body: Tensor, heads: Tensor) -> Tensor:
    """Models [C, P] of bodies ([P_body] for all, or [C, P_body]) and heads (the same with P_head), one of them rows."""
    clients = len(heads) if heads.dim() == 2 else len(body)
    return torch.cat([body.expand(clients, -1), heads.expand(clients, -1)], dim=1)


def with_mean_head(body: Tensor, kept: ClientRows, clients: Tensor, heads: Tensor) -> Models:
    """G where heads stay at home: a body [P_body] with the mean of all N heads.

    Args:
        kept: the heads [N, P_head] as they were. clients, heads: those that this round changes, [C, P_head].
    """
    return Models(torch.cat([body, kept.mean(clients, heads)]))


def counted_steps(r: Round, name: str) -> int:
    """J, for methods whose equation names a step.

    Args:
        name: of the method, for the message.
    Raises:
        PflOpsError: the experiment counts epochs.
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
    """
    if task.layout.body.stop == 0:
        raise PflOpsError(f"{name} {does} the body of a network, and this one has no body; take model mlp or cnn")


def needs_cross_entropy(task: Task, name: str) -> None:
    """Refuse another loss than the one that the method's own loss is made of.

    Args:
        name: of the method, for the message.
    Raises:
        PflOpsError: `training.loss` is another one.
    """
    if task.loss is not cross_entropy:
        raise PflOpsError(f"{name} needs training.loss=cross_entropy: it trains on a loss that is made of it")


def fine_tuned(r: Round, central: Tensor, **how: Any) -> Callable[[Tensor], Models]:
    """A stage: what any clients make of a copy of Θ that they don't keep, trained when it is asked for.

    Args:
        central: Θ, [P]. how: of `Round.train`.
    """

    def stage(clients: Tensor) -> Models:
        own = r.over(clients)
        return Models(own.train(central, stream="fine", **how), own.cohort)

    return stage


__all__ = ["counted_steps", "fine_tuned", "needs_body", "whole", "with_mean_head"]
