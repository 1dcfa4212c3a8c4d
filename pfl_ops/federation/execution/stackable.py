"""Losses that clients can be stacked under: found by one training step of each."""

import inspect
from collections.abc import Callable

import torch

from pfl_ops.errors import PflOpsError, ended_by_signal, in_a_line, place
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.method.round import LocalTraining, Round
from pfl_ops.system.memory import out_of_memory


def stacks(name: str, trainer: Callable[[int | None], LocalTraining]) -> bool:
    """Take one training step with a loss, and say whether clients can be stacked under it.

    Args:
        name: of the loss. trainer: makes a trainer that stacks so many clients; None: one client at a time.
    Returns:
        True if `torch.vmap` takes the loss; False for branches on data and the like.
    Raises:
        PflOpsError: the loss fails for a single client too, or does not return one differentiable value a sample.
    """
    if name in LOSSES.builtin:
        return True
    _try(name, trainer(None))
    try:
        _try(name, trainer(2))
    except PflOpsError:
        return False
    return True


def _try(name: str, trainer: LocalTraining) -> None:
    """One step of two clients; its draws are keyed apart from those of a run."""
    r = Round(trainer, 0, torch.arange(min(2, trainer.task.n_clients)), weighting="uniform", purpose="loss")
    try:
        r.train(trainer.task.initial, steps=1)
    except PflOpsError:
        raise
    except BaseException as error:  # a user's function may raise anything
        if out_of_memory(error) or ended_by_signal(error):
            raise
        file = inspect.getsourcefile(LOSSES.get(name))
        raise PflOpsError(f"loss '{name}' fails: {in_a_line(error)}{place(error, file)}") from error
