"""The contract of a method: its arguments and its results.

A federation is a matrix: all local models are rows of `theta [N, P]`, the global model is a vector `[P]`. A method is
three functions on such tensors (`init`, `round`, `personal`); everything else, loops over clients and batches,
devices, optimisers, evaluation, checkpoints, is the engine's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.federation.network.cross_entropy import Loss
from pfl_ops.federation.network.layout import Layout
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.state.rows import ClientRows, State

Predict: TypeAlias = Callable[..., Tensor]
"""`predict(net, w [Q], x [B, ...], **ctx) -> scores [B, L]`: a module-level function, written for one client."""


@dataclass(frozen=True)
class Rows:
    """New values for some clients' rows of a `ClientRows`; the engine writes them once the round is over.

    Attributes:
        clients: client numbers, int64 [C], unique.
        values: their rows, [C, Q] (or [C] for one number a client).

    >>> from pfl_ops.federation.loop.simulate import commit
    >>> state = {"theta": ClientRows(torch.zeros(2), n=3)}
    >>> commit(state, {"theta": Rows(torch.tensor([1]), torch.tensor([[4.0, 5.0]]))})  # as the engine does
    >>> state["theta"][torch.tensor([0, 1])].tolist()
    [[0.0, 0.0], [4.0, 5.0]]
    """

    clients: Tensor
    values: Tensor


@dataclass(frozen=True)
class Models:
    """Models to be scored.

    Attributes:
        params: one row a client, [C, P], or one model that all share, [P].
        clients: whose rows these are, int64 [C]; None: `params` is shared.
        ctx: further rows [C, ...] that `predict` needs.
        predict: gives the scores of these models; None: the network's own forward pass.

    >>> theta, central = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([2.0, 3.0])
    >>> stages = {"L2": Models(theta, clients=torch.tensor([0, 5])), "G": Models(central)}
    >>> stages["L2"].clients.tolist(), stages["G"].clients is None
    ([0, 5], True)
    """

    params: Tensor
    clients: Tensor | None = None
    ctx: Mapping[str, Tensor] = field(default_factory=dict)
    predict: Predict | None = None

    def named(self, layout: Layout, row: int = 0) -> dict[str, Tensor]:
        """Return one model for a file, by name: its parameters, and what `predict` needs beside them.

        >>> layout = Layout({}, {"head.weight": (1, 2)})
        >>> models = Models(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), clients=torch.tensor([0, 5]))
        >>> {name: value.tolist() for name, value in models.named(layout, row=1).items()}
        {'head.weight': [[3.0, 4.0]]}
        """
        if self.clients is None:
            return {**layout.export(self.params), **self.ctx}
        own = {key: value[row].clone(memory_format=torch.contiguous_format) for key, value in self.ctx.items()}
        return {**layout.export(self.params[row].clone()), **own}  # copies: rows may be one row, expanded


@dataclass(frozen=True)
class Share:
    """A part of each client's data: positions [low, high) of its own permutation, as fractions of n_k.

    Both sides of a cut keep at least one sample where n_k >= 2. `redraw`: another permutation in every round.

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0], sizes=[2, 8])
    >>> count = lambda net, w, x, y: torch.ones(len(x))
    >>> [r.sweep(r.task.initial, count, share=share)[1].tolist() for share in (Share(0, 0.75), Share(0.75, 1))]
    [[1.0, 6.0], [1.0, 2.0]]
    """

    low: float = 0.0
    high: float = 1.0
    redraw: bool = False


Update: TypeAlias = dict[str, Tensor | Rows]
"""The changes of a round: whole tensors, or `Rows` of a `ClientRows`; names, shapes and dtypes as in `init`."""
Stage: TypeAlias = Models | Callable[[Tensor], Models]
Stages: TypeAlias = dict[str, Stage]
"""'L2' and 'G'; a missing key is an absent stage. A function clients -> Models is called only if it is evaluated.

A model that a method adapts to a client is L1 if the client keeps it or starts its next training from it (`personal`
returns it). It is L2 if it is used and dropped, as after fine-tuning (a function here; `own_stage` is "L2").
"""
StageName = Literal["L1", "L2", "G"]


@dataclass(frozen=True)
class Task:
    """Values that do not change during a run.

    Attributes:
        net: the network as a function of a flat vector.
        layout: names <-> columns of P.
        initial: Θ⁰, [P].
        sizes: n_k, int64 [N]. class_counts: int64 [N, L].
        rounds: T. cohort_size: C. seed: the run's seed.
        example: one batch of inputs [1, ...], as the network sees them.
        loss: F's per-sample loss, the experiment's `training.loss`.
        new_rows: makes the state of all clients, in memory or in a file.

    >>> from pfl_ops.testing import quadratic_round
    >>> task = quadratic_round([0.0, 6.0], sizes=[1, 3], start=2.0).task
    >>> task.n_clients, task.sizes.tolist(), task.initial.tolist(), task.layout.size
    (2, [1, 3], [2.0], 1)
    """

    net: Net
    layout: Layout
    initial: Tensor
    sizes: Tensor
    class_counts: Tensor
    rounds: int
    cohort_size: int
    seed: int
    example: Tensor
    loss: Loss
    new_rows: Callable[[Tensor, int], ClientRows] = ClientRows

    @property
    def n_clients(self) -> int:
        """N."""
        return len(self.sizes)

    def rows(self, value: Tensor) -> ClientRows:
        """State with one row a client, all equal to `value` ([Q], or a scalar); a row never written costs nothing.

        >>> from pfl_ops.testing import quadratic_round
        >>> task = quadratic_round([0.0, 6.0, 9.0]).task
        >>> rows = task.rows(torch.tensor([1.0, 2.0]))
        >>> len(rows), rows[torch.tensor([2, 0])].tolist()
        (3, [[1.0, 2.0], [1.0, 2.0]])
        """
        return self.new_rows(value, self.n_clients)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator for draws made once a run; one purpose, the same draws.

        >>> from pfl_ops.testing import quadratic_round
        >>> task = quadratic_round([0.0, 6.0]).task
        >>> int(task.rng("groups").integers(1000)) == int(task.rng("groups").integers(1000))
        True
        """
        return rng.generator(self.seed, "task", purpose)


__all__ = [
    "ClientRows",
    "Layout",
    "Loss",
    "Models",
    "Net",
    "Predict",
    "Rows",
    "Share",
    "Stage",
    "StageName",
    "Stages",
    "State",
    "Task",
    "Update",
]
