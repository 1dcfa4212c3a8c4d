"""Rows of a chunk as the leaves that are trained: one contiguous leaf a parameter, moved in place.

A parameter that is a leaf of its own is about twice as fast as a slice of one flat leaf; a loss of a method's own
takes a flat vector and so gets the flat one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.losses import CROSS_ENTROPY, register
from pfl_ops.federation.method.contract import Loss, Net
from pfl_ops.federation.network.layout import Block
from pfl_ops.federation.network.optim import Rule

if TYPE_CHECKING:
    from pfl_ops.federation.method.batch import Batch
    from pfl_ops.federation.network.chain import Layer
    from pfl_ops.federation.training.train import Trainer


@register(CROSS_ENTROPY)
def cross_entropy(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """−log softmax(net(w, x))_y, [B], of one model w [P] on inputs x [B, ...] and labels y, int64 [B].

    >>> from pfl_ops.federation.network.net import Net
    >>> from pfl_ops.models.base import Network
    >>> net = Net(Network({}, n_features=1, n_classes=4))  # four weights, four biases
    >>> loss = cross_entropy(net, torch.zeros(8), torch.tensor([[5.0]]), torch.tensor([2]))
    >>> round(float(loss), 4)  # four equal scores: ln 4
    1.3863
    """
    return F.cross_entropy(net(w, x), y, reduction="none")


@dataclass
class Terms:
    """Terms that are added to a gradient without autograd, leaf by leaf: shift + μ (w − anchor).

    Attributes:
        shift, anchor: pieces [1 or c, ...]; None: no such term. mu: one number, or one a client [c].
    """

    shift: list[Tensor] | None = None
    mu: float | Tensor = 0.0
    anchor: list[Tensor] | None = None

    def first(self, rows: int) -> "Terms":
        """Return the terms of the first `rows` clients."""

        def cut(pieces: list[Tensor] | None) -> list[Tensor] | None:
            return pieces and [p[:rows] if len(p) > 1 else p for p in pieces]

        return Terms(cut(self.shift), self.mu[:rows] if isinstance(self.mu, Tensor) else self.mu, cut(self.anchor))

    def add(self, grads: list[Tensor], leaves: list[Tensor]) -> None:
        """g ← g + shift + μ (w − anchor), in place; gradients and leaves [c, *stored] each."""
        if self.shift is not None:
            for g, s in zip(grads, self.shift, strict=True):
                g.add_(s)
        if self.anchor is not None:
            for g, w, a in zip(grads, leaves, self.anchor, strict=True):
                if isinstance(self.mu, Tensor):
                    g.add_(_column(self.mu, g) * (w - a))
                else:
                    g.add_(w, alpha=self.mu).sub_(a, alpha=self.mu)

    def descend(self, i: int, w: Tensor, rule: Rule) -> None:
        """w ← (1 − η(λ + μ)) w − η (shift − μ anchor) on leaf i, w [c, *stored], in place: SGD without the loss."""
        decay = rule.weight_decay + (self.mu if self.anchor is not None else 0.0)
        if isinstance(decay, Tensor):
            w.mul_(_column(1 - rule.lr * decay, w))
        elif decay:
            w.mul_(1 - rule.lr * decay)
        if self.anchor is not None:
            pulled = self.anchor[i] * (_column(self.mu, w) if isinstance(self.mu, Tensor) else self.mu)
            w.add_(pulled, alpha=rule.lr)
        if self.shift is not None:
            w.sub_(self.shift[i], alpha=rule.lr)


class Spread:
    """Rows as the leaves that are trained: one a parameter (`blocks`), or one flat leaf."""

    def __init__(self, trainer: "Trainer", width: int, only: slice | None, rows: Tensor, blocks: bool) -> None:
        self.trainer, self.rows = trainer, rows
        self.layout = trainer.task.layout
        self.range = (only or slice(None)).indices(width)[:2]
        self.whole = self.range == (0, width)
        self.blocks = self.layout.within(slice(*self.range)) if blocks else ()
        self.rest = [b for b in self.layout.within(self.layout.net) if b not in self.blocks] if blocks else []
        self.names = [b.name for b in self.blocks]
        self.by_block = blocks

    def pieces(self, value: Tensor) -> list[Tensor]:
        """[P] or [C, P] as this chunk's pieces, [1 or c, *stored] each."""
        start, stop = self.range
        value = value.detach()
        value = value[None] if value.dim() == 1 else value[self.rows]
        if not self.by_block:
            return [value[:, start:stop]]
        return [value[:, b.start : b.stop].unflatten(1, b.stored) for b in self.blocks]

    def terms(self, shift: Tensor | None, pull: tuple[float | Tensor, Tensor] | None) -> Terms:
        """Return `shift` and `pull` of `Round.train`, [C, Q] or [Q], as this chunk's pieces, [1 or c, *stored] each."""
        mu, anchor = pull if pull is not None else (0.0, None)
        return Terms(
            None if shift is None else self.pieces(shift),
            mu[self.rows] if isinstance(mu, Tensor) else mu,
            None if anchor is None else self.pieces(anchor),
        )

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
        """Write rows first..last-1 of the leaves, [c, *stored] each, to `out` [C, Q]."""
        columns = [(block.start, block.stop) for block in self.blocks] if self.by_block else [self.range]
        for (start, stop), leaf in zip(columns, leaves, strict=True):
            out[:, start:stop].index_copy_(0, self.rows[first:last], leaf[first:last].flatten(1))

    def gradient(
        self, leaves: list[Tensor], fixed: Tensor, b: "Batch", loss: Loss | None, ctx: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Gradients of the mean loss in the leaves' shapes, [c, *stored] each, contiguous."""
        if not self.by_block:
            start, stop = self.range
            w = leaves[0] if self.whole else torch.cat([fixed[:, :start], leaves[0], fixed[:, stop:]], dim=1)
            return [b.grad(w, loss, slice(start, stop), ctx)[:, start:stop].contiguous()]
        return gradients(self.blocks, leaves, self.resting(fixed), b)

    def direct(self, rule: Rule) -> bool:
        """True if a step can go straight into the weights: plain SGD on a chain of linear layers."""
        return self.by_block and self.trainer.chain is not None and rule.kind == "sgd" and not rule.momentum

    def resting(self, fixed: Tensor) -> dict[str, Tensor]:
        """The network's parameters that do not move, by name, [c, *shape] each."""
        return {k.name: k.view(fixed[:, k.start : k.stop].unflatten(1, k.stored)) for k in self.rest}


def gradients(blocks: tuple[Block, ...], leaves: list[Tensor], rest: Mapping[str, Tensor], b: "Batch") -> list[Tensor]:
    """Gradients of each client's mean cross-entropy on `b`, in the leaves' shapes, contiguous.

    Args:
        blocks, leaves: the parameters that move, [c, *stored] each. rest: the network's others, name -> [c, *shape].
    """
    if b._trainer.chain is not None:
        by_name: dict[str | None, Tensor] = {}
        with torch.no_grad():
            for layer, d, h in _back(blocks, leaves, rest, b):
                by_name |= {layer.weight: torch.bmm(d.mT, h), layer.bias: d.sum(dim=1)}
        return [
            by_name[k.name] if k.name in by_name else torch.zeros_like(w) for k, w in zip(blocks, leaves, strict=True)
        ]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    with b._trainer.autocast():
        mean = _mean_loss(blocks, leaves, rest, b)
    grads = torch.autograd.grad(mean.sum(), leaves, allow_unused=True)
    b.count(mean.detach())
    return [torch.zeros_like(w) if g is None else g.contiguous() for g, w in zip(grads, leaves, strict=True)]


def _back(
    blocks: tuple[Block, ...], leaves: list[Tensor], rest: Mapping[str, Tensor], b: "Batch"
) -> "Iterator[tuple[Layer, Tensor, Tensor]]":
    """A chain's way back from the losses of a batch; see `Chain.backward`."""
    chain = b._trainer.chain
    assert chain is not None
    moving = {k.name: leaf for k, leaf in zip(blocks, leaves, strict=True)}
    mean, back = chain.backward({**rest, **moving}, moving, b.x, b.y, b._weights)
    b.count(mean)
    return back


def _mean_loss(blocks: tuple[Block, ...], leaves: list[Tensor], rest: Mapping[str, Tensor], b: "Batch") -> Tensor:
    """Cross-entropy of each client's batch, [c]; a single client runs on ordinary kernels."""
    net = b._trainer.task.net
    moving = zip(blocks, leaves, strict=True)
    if len(leaves[0]) == 1:
        # squeezed, not indexed: the gradient of an index is a matrix of zeros to be filled
        views = {k.name: k.view(leaf.squeeze(0)) for k, leaf in moving} | {name: w[0] for name, w in rest.items()}
        return F.cross_entropy(net.forward(views, b.x[0]), b.y[0])[None]
    scores = net.stacked({k.name: k.view(leaf) for k, leaf in moving} | dict(rest), b.x)
    return b.mean(F.cross_entropy(scores.flatten(0, 1), b.y.flatten(), reduction="none").view(b.y.shape))


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))
