"""Rows of a chunk as the leaves that are trained: one contiguous leaf a parameter, moved in place.

A parameter that is a leaf of its own is about twice as fast as a slice of one flat leaf; a loss of a method's own
takes a flat vector and so gets the flat one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_ops.federation.method.batch import Batch
from pfl_ops.federation.method.contract import Loss
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.layout import Layout
from pfl_ops.federation.network.optim import Rule


@dataclass
class GradientTerms:
    """Terms that are added to a gradient without autograd, leaf by leaf: shift + μ (w − anchor).

    Attributes:
        shift, anchor: pieces [1 or c, ...]; None: no such term. mu: one number, or one a client [c].
    """

    shift: list[Tensor] | None = None
    mu: float | Tensor = 0.0
    anchor: list[Tensor] | None = None

    def first(self, rows: int) -> "GradientTerms":
        """Return the terms of the first `rows` clients."""

        def cut(pieces: list[Tensor] | None) -> list[Tensor] | None:
            return pieces and [p[:rows] if len(p) > 1 else p for p in pieces]

        return GradientTerms(
            cut(self.shift), self.mu[:rows] if isinstance(self.mu, Tensor) else self.mu, cut(self.anchor)
        )

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
                    g.add_(w - a, alpha=self.mu)

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
    """Rows of a chunk as the leaves that are trained: one a parameter (`blocks`), or one flat leaf.

    Args:
        layout: of the rows. out: the rows of the cohort, [C, Q], to which a row goes when its walk ends.
        rows: positions of the chunk's clients in the cohort, longest walk first. start: the rows before, [C, Q] or [Q].
        only: the columns that move; None: all. shift, pull: of `Round.train`.

    Attributes:
        at_work: number of the clients that train still, the first ones, c.
        leaves: contiguous, [c, *stored] each; `names`: of the parameters.
        fixed: rows as they were, [c, Q], for the columns that do not move; empty where all of them do.
        terms: shift and pull, in pieces [1 or c, *stored].
    """

    def __init__(
        self, layout: Layout, out: Tensor, rows: Sequence[int], start: Tensor, only: slice | None, blocks: bool,
        shift: Tensor | None, pull: tuple[float | Tensor, Tensor] | None,
    ) -> None:  # fmt: skip
        self.layout, self.out, self.rows = layout, out, torch.tensor(rows, device=out.device)
        self.range = (only or slice(None)).indices(out.shape[1])[:2]
        self.whole = self.range == (0, out.shape[1])
        self.blocks = self.layout.within(slice(*self.range)) if blocks else ()
        self.rest = [b for b in self.layout.within(self.layout.net) if b not in self.blocks] if blocks else []
        self.names = [b.name for b in self.blocks]
        self.by_block, self.at_work = blocks, len(rows)
        self.leaves = [
            p.expand(len(rows), *p.shape[1:]).clone(memory_format=torch.contiguous_format) for p in self._pieces(start)
        ]
        if self.whole:
            self.fixed = start.new_empty(len(rows), 0)
        else:
            self.fixed = start.expand(len(rows), -1) if start.dim() == 1 else start[self.rows]
        mu, anchor = pull if pull is not None else (0.0, None)
        self.terms = GradientTerms(
            None if shift is None else self._pieces(shift),
            mu[self.rows] if isinstance(mu, Tensor) else mu,
            None if anchor is None else self._pieces(anchor),
        )

    def _pieces(self, value: Tensor) -> list[Tensor]:
        """[P] or [C, P] as this chunk's pieces, [1 or c, *stored] each."""
        start, stop = self.range
        value = value.detach()
        value = value[None] if value.dim() == 1 else value[self.rows]
        if not self.by_block:
            return [value[:, start:stop]]
        return [value[:, b.start : b.stop].unflatten(1, b.stored) for b in self.blocks]

    def end(self, active: int) -> bool:
        """Write the rows from `active` on to `out`: their walks are over. Return False if there are none."""
        if active == self.at_work:
            return False
        columns = [(block.start, block.stop) for block in self.blocks] if self.by_block else [self.range]
        for (start, stop), leaf in zip(columns, self.leaves, strict=True):
            self.out[:, start:stop].index_copy_(0, self.rows[active : self.at_work], leaf[active:].flatten(1))
        self.at_work, self.leaves = active, [w[:active] for w in self.leaves]
        self.fixed, self.terms = self.fixed[:active], self.terms.first(active)
        return True

    def gradient(self, b: Batch, loss: Loss | None, ctx: Mapping[str, Tensor]) -> list[Tensor]:
        """Gradients of the mean loss in the leaves' shapes, [c, *stored] each, contiguous."""
        if not self.by_block:
            start, stop = self.range
            leaf, fixed = self.leaves[0], self.fixed
            w = leaf if self.whole else torch.cat([fixed[:, :start], leaf, fixed[:, stop:]], dim=1)
            return [b.grad(w, loss, slice(start, stop), ctx)[:, start:stop].contiguous()]
        return b.gradients(self.blocks, self.leaves, self.resting())

    def direct(self, chain: Chain, rule: Rule, compiled: bool) -> bool:
        """True if a step can go straight into the weights: on a chain of linear layers plain SGD, and where kernels are
        compiled any optimiser that moves nothing else."""
        return self.by_block and (rule.plain or (compiled and {*self.names} <= chain.names))

    def resting(self) -> dict[str, Tensor]:
        """The network's parameters that do not move, by name, [c, *shape] each."""
        return {k.name: k.view(self.fixed[:, k.start : k.stop].unflatten(1, k.stored)) for k in self.rest}


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))
