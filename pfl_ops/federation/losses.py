"""Losses by name: the cross-entropy, and what a plug-in registers. Listing their names does not import torch."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from pfl_ops.errors import PflOpsError
from pfl_ops.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])

CROSS_ENTROPY = "cross_entropy"
LOSSES: Registry[Callable[..., Any]] = Registry("loss", {CROSS_ENTROPY: "pfl_ops.federation.network.cross_entropy"})
"""Name -> function, `loss(net, w, x, y) -> [B]`."""


def register(name: str) -> Callable[[F], F]:
    """Make a loss known by name: `training.loss=name`.

    The function is called as `loss(net, w, x, y)`: the network, one model's parameters [P], inputs [B, ...] and labels,
    int64 [B]. It returns one value a sample, [B], differentiable in w. It is written for one client; the engine takes
    the mean over a batch, and stacks clients with `torch.vmap`.

    Raises:
        PflOpsError: the name is taken, or the function needs more than these four arguments.

    >>> from pfl_ops.testing import scalar_net
    >>> @register("example_squared")
    ... def squared(net, w, x, y):
    ...     return (net(w, x)[:, 0] - y).square()
    >>> squared(scalar_net(), torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0]]), torch.tensor([30])).tolist()
    [1.0]
    """

    def add(function: F) -> F:
        for option in inspect.signature(function).parameters.values():
            if option.kind is option.KEYWORD_ONLY and option.default is option.empty:
                raise PflOpsError(
                    f"loss '{name}' is called as loss(net, w, x, y); give '{option.name}' a default value"
                )
        LOSSES.add(name, function)
        return function

    return add


def positional(function: Callable[..., Any]) -> int:
    """Return the number of arguments that a call has to give by position; 0 if Python can't tell.

    >>> positional(lambda net, w, x, y, scale=1.0: None)
    4
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def known(name: str) -> str:
    """Return the name itself, if there is a loss of that name; nothing is imported.

    Raises:
        PflOpsError: there is none; the message has the nearest name.

    >>> known("cross_entropy")
    'cross_entropy'
    >>> known("crossentropy")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: no loss named 'crossentropy'. Did you mean 'cross_entropy'? ...
    """
    if name not in LOSSES.builtin:
        LOSSES.get(name)
    return name
