"""Bodies and heads: what the methods share that keep one of them at home."""

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.contract import Task


def whole(body: Tensor, heads: Tensor) -> Tensor:
    """Models [C, P] of bodies ([P_body] for all, or [C, P_body]) and heads (the same with P_head), one of them rows."""
    clients = len(heads) if heads.dim() == 2 else len(body)
    return torch.cat([body.expand(clients, -1), heads.expand(clients, -1)], dim=1)


def needs_body(task: Task, name: str, does: str = "shares") -> None:
    """Refuse a network that is nothing but a head.

    Args:
        name: of the method, for the message. does: what it does to the body.
    Raises:
        PflOpsError: the network has no parameters before its last layer.
    """
    if task.layout.body.stop == 0:
        raise PflOpsError(f"{name} {does} the body of a network, and this one has no body; take model mlp or cnn")


__all__ = ["needs_body", "whole"]
