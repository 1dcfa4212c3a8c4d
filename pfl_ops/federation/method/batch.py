"""One step of a walk, for all clients of a chunk that still have batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.method.contract import Loss
from pfl_ops.federation.method.walk import Meter
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.layout import LayoutBlock
from pfl_ops.federation.network.optim import Rowwise, Rule, after
from pfl_ops.federation.network.passes import Passes, mean_over_samples


@dataclass(frozen=True)
class Walk:
    """Values that all steps of a chunk's walk share.

    Attributes:
        passes: losses and gradients of the network. meter: takes the losses of `stream`.
        rule: the experiment's optimiser. optimisers: its moments, by carry; chunks that are walked together share them.
    """

    passes: Passes
    meter: Meter
    stream: str
    rule: Rule
    optimisers: dict[Any, Rowwise] = field(default_factory=dict)


class Rectangles(Protocol):
    """Batches of a chunk's clients, as `Batch` reads them; see `training.chunk.Chunk`.

    Attributes:
        n: real samples, [J, c]. epoch: number of the epoch, int64 [J, c]. ends: last batch of its epoch, bool [J, c].
        width: samples of the longest batch, [J]. total: of all batches, [J]. padded: whether any row is padded, [J].
    """

    n: Tensor
    epoch: Tensor
    ends: Tensor
    width: list[int]
    total: list[int]
    padded: list[bool]


class Batch:
    """One step of a walk for the `c` clients that still have batches; a method's own step gets it as `b`.

    Attributes:
        j: the step's number, from 0. lr: η of the round.
        x: inputs [c, B, ...]; y: labels [c, B]. Rows shorter than B are padded; the verbs leave the padding out.

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0], sizes=[3])
    >>> def step(m, b):
    ...     print(b.j, b.n.tolist(), b.epoch.tolist(), b.ends.tolist(), list(b.x.shape))
    ...     return {}
    >>> m = r.walk({}, step, epochs=2, batch=2)  # three samples: batches of 2 and of 1
    0 [2.0] [0] [False] [1, 2, 1]
    1 [1.0] [0] [True] [1, 1, 1]
    2 [2.0] [1] [False] [1, 2, 1]
    3 [1.0] [1] [True] [1, 1, 1]
    """

    def __init__(self, walk: Walk, chunk: Rectangles, j: int, active: int, x: Tensor, y: Tensor) -> None:
        self._walk, self._chunk, self._active = walk, chunk, active
        self.j = j
        self.lr = walk.rule.lr
        self.width, self.total, self.padded = chunk.width[j], chunk.total[j], chunk.padded[j]
        self.x, self.y = x, y

    @property
    def _passes(self) -> Passes:
        return self._walk.passes

    @cached_property
    def n(self) -> Tensor:
        """Real samples, [c], in the floating type of the run."""
        return self._chunk.n[self.j, : self._active]

    @property
    def epoch(self) -> Tensor:
        """Number of the epoch, int64 [c]."""
        return self._chunk.epoch[self.j, : self._active]

    @property
    def ends(self) -> Tensor:
        """True if this is the last batch of the client's epoch, bool [c]."""
        return self._chunk.ends[self.j, : self._active]

    @cached_property
    def _weights(self) -> Tensor | None:
        """[c, B]: 1/n_real on real samples, 0 on padding; None when no row is padded."""
        if not self.padded:
            return None
        real = torch.arange(self.width, device=self.y.device) < self.n[:, None]
        return real / self.n[:, None]

    def mean(self, values: Tensor) -> Tensor:
        """Mean over a row's real samples: [c, B] -> [c].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], sizes=[1, 3])
        >>> carry = {"x": torch.zeros(2).double()}
        >>> r.walk(carry, lambda m, b: {"x": b.mean(b.x[..., 0])}, steps=1)["x"].tolist()  # each sample is b_k
        [0.0, 6.0]
        """
        return mean_over_samples(values, self._weights)

    def _losses(self, w: Tensor, loss: Loss | None, ctx: Mapping[str, Tensor]) -> Tensor:
        return self.mean(self._passes.per_sample(loss or self._passes.task_loss, w, self.x, self.y, ctx))

    def _rows(self, w: Tensor) -> Tensor:
        return w.expand(self._active, -1) if w.dim() == 1 else w

    def loss(self, w: Tensor, loss: Loss | None = None, ctx: Mapping[str, Tensor] | None = None) -> Tensor:
        """Mean loss of rows `w` ([c, Q] or [Q]) on this batch, [c].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)
        >>> central, carry = r.task.initial, {"F": torch.zeros(2).double()}
        >>> r.walk(carry, lambda m, b: {"F": b.loss(central)}, steps=1)["F"].tolist()  # ½ (2 − 0)² and ½ (2 − 6)²
        [2.0, 8.0]
        """
        with torch.no_grad():
            return self._losses(self._rows(w), loss, ctx or {})

    def grad(
        self, w: Tensor, loss: Loss | None = None, only: slice | None = None, ctx: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Gradient of the mean loss at rows `w`, [c, Q]; outside the columns `only` it is zero.

        Args:
            w: rows [c, Q], or one row [Q] for all.
            loss: per-sample loss; None: the task's.
            only: columns to differentiate.
            ctx: rows [c, ...] passed to the loss by name.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([[0.0, 1.0], [6.0, 7.0]], start=2.0)
        >>> start = {"w": r.task.initial.expand(2, 2)}
        >>> r.walk(start, lambda m, b: {"w": b.grad(m["w"])}, steps=1)["w"].tolist()  # w − b_k
        [[2.0, 1.0], [-4.0, -5.0]]
        >>> r.walk(start, lambda m, b: {"w": b.grad(m["w"], only=slice(0, 1))}, steps=1)["w"].tolist()
        [[2.0, 0.0], [-4.0, 0.0]]
        """
        w = self._rows(w).detach()
        start, stop, _ = (only or slice(None)).indices(w.shape[1])
        blocks = self._blocks(start, stop) if (loss or self._passes.task_loss) is cross_entropy and not ctx else ()
        if blocks:
            return self._by_block(w, blocks)
        leaf, whole = _leaf(w, start, stop)
        losses = self._losses(whole, loss, ctx or {})
        (g,) = torch.autograd.grad(losses.sum(), leaf)
        self.count(losses.detach())
        return g if whole is leaf else F.pad(g, (start, w.shape[1] - stop))

    def hvp(
        self,
        w: Tensor,
        v: Tensor,
        loss: Loss | None = None,
        only: slice | None = None,
        ctx: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Hessian-vector products H_k v_k, [c, Q]; H_k = ∇²F_k(w_k; b) is the Hessian of the mean loss on this batch.

            H v = ∇_w ⟨∇F(w; b), v⟩          two backward passes, exact up to rounding; H itself is never formed

        Its loss is not counted in `train/loss`. At a kink of a network or loss (ReLU, max-pooling) it is the derivative
        that autograd gives.

        Args:
            w: rows [c, Q], or one row [Q] for all.
            v: rows [c, Q], or one row [Q] for all.
            loss: per-sample loss; None: the task's.
            only: the block of H in these columns: v is read there alone, and the result is zero elsewhere.
            ctx: rows [c, ...] passed to the loss by name.
        Raises:
            RuntimeError: a layer has no second derivative in PyTorch.

        A gradient step whose length is exact for a quadratic loss:

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)
        >>> def step(m, b):
        ...     g = b.grad(m["w"])
        ...     length = (g * g).sum(1) / (g * b.hvp(m["w"], g)).sum(1)
        ...     return {"w": m["w"] - length[:, None] * g}
        >>> r.walk({"w": r.task.initial.expand(2, 1)}, step, steps=1)["w"].tolist()
        [[0.0], [6.0]]

        Source: Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 6(1), 1994.
        """
        w, v = self._rows(w).detach(), self._rows(v).detach()
        start, stop, _ = (only or slice(None)).indices(w.shape[1])
        leaf, whole = _leaf(w, start, stop)
        with self._passes.twice_differentiable():
            losses = self._losses(whole, loss, ctx or {})
        (g,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)
        if g.requires_grad:  # else the loss is linear in w
            # not autograd.grad: with inputs it leaves out, in silence, a Function that is differentiable once
            torch.autograd.backward((g * v[:, start:stop]).sum())
        product = torch.zeros_like(g) if leaf.grad is None else leaf.grad
        return product.detach() if whole is leaf else F.pad(product.detach(), (start, w.shape[1] - stop))

    def _blocks(self, start: int, stop: int) -> tuple[LayoutBlock, ...]:
        """The parameters in these columns; none where a column cuts one."""
        blocks = tuple(k for k in self._passes.net.layout.blocks if k.start < stop and k.stop > start)
        return blocks if blocks and blocks[0].start >= start and blocks[-1].stop <= stop else ()

    def _by_block(self, w: Tensor, blocks: tuple[LayoutBlock, ...]) -> Tensor:
        """`grad` of the task's cross-entropy, a leaf a parameter: that saves a copy of the row for each."""
        layout = self._passes.net.layout
        pieces = {k.name: w[:, k.start : k.stop].unflatten(1, k.stored) for k in layout.blocks if k.stop <= w.shape[1]}
        rest = {k.name: k.view(pieces[k.name]) for k in layout.within(layout.net) if k not in blocks}
        grads = self.gradients(blocks, [pieces[k.name] for k in blocks], rest)
        return F.pad(torch.cat([g.flatten(1) for g in grads], 1), (blocks[0].start, w.shape[1] - blocks[-1].stop))

    def gradients(
        self, blocks: tuple[LayoutBlock, ...], leaves: list[Tensor], rest: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Gradients of each client's mean cross-entropy, counted as by `grad`; see `Passes.gradients`."""
        means, grads = self._passes.gradients(blocks, leaves, rest, self.x, self.y, self._weights)
        self.count(means)
        return grads

    def count(self, means: Tensor) -> None:
        """Add the mean loss of each client, [c], to `train/loss`; `grad` does so itself."""
        total = (means * self.n).sum() if self.padded else means.sum() * self.width
        self._walk.meter.add(self._walk.stream, total, self.total)

    def descend(self, name: str, w: Tensor, g: Tensor, only: slice | None = None) -> Tensor:
        """One step of the experiment's optimiser on carry `name`: new rows [c, Q] of rows `w` and gradients `g` [c, Q].

        Outside `only` nothing moves: no decay, no moment. Moments and step count belong to (name, only).

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0], start=8.0, lr=0.5, momentum=0.5)
        >>> step = lambda m, b: {"w": b.descend("w", m["w"], b.grad(m["w"]))}
        >>> r.walk({"w": r.task.initial[None]}, step, steps=1)["w"].tolist()  # v = 8, w = 8 − 0.5 · 8
        [[4.0]]
        >>> r.walk({"w": r.task.initial[None]}, step, steps=2)["w"].tolist()  # v = 0.5 · 8 + 4, w = 4 − 0.5 · 8
        [[0.0]]
        """
        if only is None:
            return self._walk.optimisers.setdefault(name, Rowwise(self._walk.rule)).step(w, g)
        key = (name, only.start, only.stop)
        part = self._walk.optimisers.setdefault(key, Rowwise(self._walk.rule)).step(w[:, only], g[:, only])
        new = w.clone()
        new[:, only] = part
        return new

    def carry_on(self, m: Mapping[str, Tensor], g: Tensor) -> dict[str, Tensor]:
        """One step of the experiment's optimiser whose moments outlive the walk, because they are carried along.

        Args:
            m: holds w, first, second [c, Q] and count [c]: the rows, the optimiser's moments and its steps so far, all
                but w starting at 0.
            g: gradients [c, Q].
        Returns:
            The same four after the step.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0], start=8.0, lr=0.5, momentum=0.5)
        >>> zero = torch.zeros(1, 1).double()
        >>> m = {"w": r.task.initial[None], "first": zero, "second": zero, "count": zero[0]}
        >>> for _ in range(2):  # two walks of one step; `descend` would forget the moment in between
        ...     m = r.walk(m, lambda m, b: b.carry_on(m, b.grad(m["w"])), steps=1)
        >>> m["w"].tolist(), m["first"].tolist(), m["count"].tolist()
        ([[0.0]], [[8.0]], [2.0])
        """
        count = m["count"] + 1
        w, first, second = after(self._walk.rule, m["w"], g, m["first"], m["second"], count[:, None])
        return {"w": w, "first": first, "second": second, "count": count}


def _leaf(w: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """The columns start..stop-1 of rows [c, Q] as a leaf to differentiate, and the rows with that leaf in place."""
    leaf = w[:, start:stop].contiguous().requires_grad_()
    if stop - start == w.shape[1]:
        return leaf, leaf
    return leaf, torch.cat([w[:, :start], leaf, w[:, stop:]], dim=1)
