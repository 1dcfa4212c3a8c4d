"""Patches of the engine under which a method's numbers stay, or which note what a method asks of it."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from pfl_ops.algorithms.base import Round, Task
from pfl_ops.federation.misuse import captured, name_of
from pfl_ops.federation.training import plan
from pfl_ops.federation.training.chunk import Chunk


@contextmanager
def other_padding() -> Iterator[None]:
    """Fill up short batches with sample 0 instead of the batch's own first sample."""
    plain = Chunk.__init__

    def init(self: Chunk, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.samples[torch.arange(self.samples.shape[-1]) >= torch.from_numpy(self.counts)[..., None]] = 0

    with mock.patch.object(Chunk, "__init__", init):
        yield


@contextmanager
def draws_by_size() -> Iterator[None]:
    """Draw the same batches and shares for all clients of one size, whatever their numbers and the round."""
    draw, part = plan.draw, plan.part
    with (
        mock.patch.object(plan, "draw", lambda n, *, rng, **given: draw(n, rng=np.random.default_rng(n), **given)),
        mock.patch.object(plan, "part", lambda n, share, rng: part(n, share, np.random.default_rng(n))),
    ):
        yield


@contextmanager
def noting_draws() -> Iterator[list[str]]:
    """Yield a list of the purposes for which a method draws by `r.rng` or `task.rng` meanwhile."""
    drawn: list[str] = []

    def noting(draw: Callable[[Any, str], np.random.Generator]) -> Any:
        def call(drawer: Any, purpose: str) -> np.random.Generator:
            drawn.append(purpose)
            return draw(drawer, purpose)

        return call

    with mock.patch.object(Round, "rng", noting(Round.rng)), mock.patch.object(Task, "rng", noting(Task.rng)):
        yield drawn


@contextmanager
def noting_bound_rows() -> Iterator[set[str]]:
    """Yield the names of functions that bind a tensor with as many rows as the round that is given them has clients."""
    names: set[str] = set()
    verbs = {verb: getattr(Round, verb) for verb in ("train", "walk", "sweep")}

    def noting(verb: str) -> Any:
        def call(r: Round, *args: Any, **given: Any) -> Any:
            functions = [value for value in (*args, *given.values()) if callable(value)]
            for function in functions:
                rows = [value.shape[0] for value in captured(function) if isinstance(value, Tensor) and value.dim()]
                names.update({name_of(function)} if len(r.cohort) in rows else ())
            return verbs[verb](r, *args, **given)

        return call

    with mock.patch.multiple(Round, **{verb: noting(verb) for verb in verbs}):
        yield names


class ProcessesHere:
    """Two processes whose jobs are done in this one, on copies of all that would travel."""

    count = 2

    def __init__(self, held: Mapping[str, Any]) -> None:
        self.held = held

    def ask(
        self, do: Any, parts: Sequence[Any], given: Mapping[str, Any],
        outs: Mapping[str, tuple[Sequence[int], torch.dtype]],
    ) -> tuple[list[Any], dict[str, Tensor]]:  # fmt: skip
        """Return the results in the order of the parts, and the tensors that they fill together."""
        import cloudpickle

        tensors = {name: torch.zeros(tuple(shape), dtype=dtype) for name, (shape, dtype) in outs.items()}
        message = cloudpickle.dumps((dict(self.held), dict(given)))
        answers = []
        for part in parts:
            held, own = pickle.loads(message)
            answers.append(do(held, part, **own, outs=tensors))
        return answers, tensors
