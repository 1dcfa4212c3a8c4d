"""Rows of a chunk as the leaves that PyTorch trains: the fast path's form of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.batch import Batch
from pfl_ops.federation.contract import Loss

if TYPE_CHECKING:
    from pfl_ops.federation.train import Trainer


class Spread:
    """Rows as the leaves that PyTorch trains: one contiguous leaf a parameter (`blocks`), or one flat leaf.

    Each parameter as a leaf of its own is about twice as fast as slices of one flat leaf; a loss of a method's own
    takes a flat vector and so gets the flat one.
    """

    def __init__(self, trainer: "Trainer", width: int, only: slice | None, rows: Tensor, blocks: bool) -> None:
        self.trainer, self.rows = trainer, rows
        self.layout = trainer.task.layout
        self.range = (only or slice(None)).indices(width)[:2]
        self.whole = self.range == (0, width)
        self.blocks = self.layout.within(slice(*self.range)) if blocks else ()
        self.rest = [b for b in self.layout.within(self.layout.net) if b not in self.blocks] if blocks else []
        self.by_block = blocks

    def pieces(self, value: Tensor) -> list[Tensor]:
        """[P] or [C, P] as this chunk's pieces, [1 or c, *stored] each."""
        start, stop = self.range
        value = value.detach()
        value = value[None] if value.dim() == 1 else value[self.rows]
        if not self.by_block:
            return [value[:, start:stop]]
        return [value[:, b.start : b.stop].unflatten(1, b.stored) for b in self.blocks]

    def leaves(self, start: Tensor) -> list[Tensor]:
        """Contiguous copies to train, [c, *stored] each."""
        return [
            p.expand(len(self.rows), *p.shape[1:]).clone(memory_format=torch.contiguous_format)
            for p in self.pieces(start)
        ]

    def fixed(self, start: Tensor) -> Tensor:
        """Rows as they were, [c, Q], for the columns that do not move; empty where all of them do."""
        if self.whole:
            return start.new_empty(len(self.rows), 0)
        return start.expand(len(self.rows), -1) if start.dim() == 1 else start[self.rows]

    def store(self, out: Tensor, leaves: list[Tensor], first: int, last: int) -> None:
        """Write rows first..last-1 of the leaves to `out`."""
        rows = self.rows[first:last]
        if not self.by_block:
            out[rows, self.range[0] : self.range[1]] = leaves[0][first:last]
        for block, leaf in zip(self.blocks, leaves if self.by_block else [], strict=True):
            out[rows, block.start : block.stop] = leaf[first:last].flatten(1)

    def gradient(
        self, leaves: list[Tensor], fixed: Tensor, b: Batch, loss: Loss | None, ctx: Mapping[str, Tensor], stream: str
    ) -> list[Tensor]:
        """Gradients of the mean loss in the leaves' shapes, contiguous."""
        if not self.by_block:
            start, stop = self.range
            w = leaves[0] if self.whole else torch.cat([fixed[:, :start], leaves[0], fixed[:, stop:]], dim=1)
            return [b.grad(w, loss, slice(start, stop), ctx)[:, start:stop].contiguous()]
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        with self.trainer.autocast():
            mean = self._mean_loss(leaves, fixed, b)
        grads = torch.autograd.grad(mean.sum(), leaves, allow_unused=True)
        self.trainer.meter.add(stream, (mean.detach() * b.n).sum(), b.total)
        return [torch.zeros_like(w) if g is None else g.contiguous() for g, w in zip(grads, leaves, strict=True)]

    def _mean_loss(self, leaves: list[Tensor], fixed: Tensor, b: Batch) -> Tensor:
        """Cross-entropy of each client's batch, [c]; a single client runs on ordinary kernels."""
        net = self.trainer.task.net
        moving = zip(self.blocks, leaves, strict=True)
        if len(leaves[0]) == 1:
            views = {k.name: k.view(leaf[0]) for k, leaf in moving}
            views |= {k.name: k.view(fixed[0, k.start : k.stop].view(k.stored)) for k in self.rest}
            return F.cross_entropy(net.forward(views, b.x[0]), b.y[0])[None]
        views = {k.name: k.view(leaf) for k, leaf in moving}
        views |= {k.name: k.view(fixed[:, k.start : k.stop].unflatten(1, k.stored)) for k in self.rest}
        scores = net.stacked(views, b.x)
        return b.mean(F.cross_entropy(scores.flatten(0, 1), b.y.flatten(), reduction="none").view(b.y.shape))
