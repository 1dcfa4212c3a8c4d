"""Parts of a walk: its length and keys, clients' batches as rectangles, and one step of it as a method sees it.

Clients are sorted by their number of steps, so that those still at work are always the first rows of a chunk: there is
no step mask, and an optimiser's step count is shared. Rows are padded with real samples to a rectangle; the padding
carries weight zero in the mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.method.contract import Loss, Share
from pfl_ops.federation.network.layout import Block
from pfl_ops.federation.network.optim import Rowwise, Rule, after
from pfl_ops.federation.training import plan
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.leaves import cross_entropy, gradients

if TYPE_CHECKING:
    from pfl_ops.federation.training.train import Trainer

STRETCH = 1 << 19  # bytes of inputs that are made ready at once

Step = Callable[..., Mapping[str, Tensor]]
"""`step(m, b) -> changed rows`, or `step(m, b, b2, ...)` where a walk gives several batches a step."""


@dataclass(frozen=True)
class Length:
    """Length of a walk, its part of the data, and the number of batches that a step gets.

    Neither epochs nor steps: the experiment's.
    """

    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    share: Share | None = None
    stream: str = ""
    batches: int = 1


@dataclass(frozen=True)
class Keys:
    """Keys of the draws of one walk, beside the client: purpose, round, stream and call."""

    seed: int
    purpose: str
    round: int
    call: int = 0


@dataclass
class Meter:
    """Mean minibatch loss of a round's main stream, kept on the device until it is read."""

    total: Tensor | float = 0.0
    samples: int = 0
    by_stream: dict[str, int] = field(default_factory=dict)

    def add(self, stream: str, losses: Tensor, samples: int) -> None:
        self.by_stream[stream] = self.by_stream.get(stream, 0) + samples
        if stream == "":
            self.total = self.total + losses.double()  # float64: who adds what first must not show
            self.samples += samples

    def clear(self) -> None:
        """Start a new round."""
        self.total, self.samples, self.by_stream = 0.0, 0, {}

    @property
    def mean(self) -> float | None:
        return float(self.total) / self.samples if self.samples else None


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of a chunk by the same clients with batches of one width.

    Attributes:
        active: clients at work, c. total: real samples.
        x: inputs [J, c, B, ...]; y: labels [J, c, B].
        real: 1 on real samples, 0 on padding, [J, c, B]; share: the same over the batch's size. None: no padding.
    """

    active: int
    total: int
    x: Tensor
    y: Tensor
    real: Tensor | None
    share: Tensor | None


class Chunk:
    """Some clients' whole walk as rectangles, longest walk first.

    Attributes:
        rows: positions of these clients in the cohort, longest walk first.
        samples: sample numbers, [J, c, B]; short batches repeat their first sample.
        counts: real samples, int64 [J, c] on the host; 0 once a client has ended. n: the same on the device.
        active: clients still at work, [J]. width: samples of the longest batch, [J]. total: of all batches, [J].
        padded: whether any row is padded, [J].
    """

    def __init__(self, feed: Feed, clients: Sequence[int], rows: list[int], plans: Sequence[plan.Plan]) -> None:
        self.rows = rows
        steps = max((plans[i].steps for i in rows), default=0)
        self.counts = np.zeros((steps, len(rows)), np.int64)
        for column, i in enumerate(rows):
            self.counts[: plans[i].steps, column] = np.diff(plans[i].bounds)
        width = int(self.counts.max(initial=0))
        self.samples = torch.zeros((steps, len(rows), width), dtype=torch.int64, device=feed.device)
        self.epoch = np.zeros((steps, len(rows)), np.int64)
        self.ends = np.zeros((steps, len(rows)), bool)
        for column, i in enumerate(rows):
            p = plans[i]
            if not p.steps:
                continue
            at = p.bounds[:-1, None] + np.arange(width)
            at = np.where(at < p.bounds[1:, None], at, p.bounds[:-1, None])
            own = torch.from_numpy(p.order[at]).to(feed.device)
            self.samples[: p.steps, column] = feed.index[clients[i]][own]
            self.epoch[: p.steps, column] = p.epoch
            self.ends[: p.steps, column] = p.ends
        at_work = self.counts > 0
        self.active = at_work.sum(axis=1).tolist()
        self.width = self.counts.max(axis=1, initial=0).tolist()
        self.total = self.counts.sum(axis=1).tolist()
        self.padded = ((self.counts != self.counts.max(axis=1, initial=0)[:, None]) & at_work).any(axis=1).tolist()
        self.n = torch.from_numpy(self.counts).to(feed.device, feed.dtype)

    def stretches(self, feed: Feed) -> Iterator[Stretch]:
        """The steps in stretches whose inputs stay in the processor's cache."""
        sample = feed.x[0].numel() * torch.empty((), dtype=feed.dtype).element_size()
        first, steps = 0, len(self.active)
        while first < steps:
            kind = self.active[first], self.width[first], self.padded[first]
            active, width, padded = kind
            end, most = first + 1, first + max(1, STRETCH // max(sample * active * width, 1))
            while end < min(steps, most) and (self.active[end], self.width[end], self.padded[end]) == kind:
                end += 1
            x, y = feed.batch(self.samples[first:end, :active, :width])
            real = share = None
            if padded:
                n = self.n[first:end, :active, None]
                real = (torch.arange(width, device=n.device) < n).to(n.dtype)
                share = real / n
            yield Stretch(active, sum(self.total[first:end]), x, y, real, share)
            first = end

    def batches(
        self, trainer: "Trainer", stream: str, rule: Rule, optimisers: dict[Any, Rowwise] | None = None
    ) -> Iterator["Batch"]:
        """One `Batch` a step, over the clients still at work; `optimisers`: those of a chunk that is walked beside."""
        optimisers = {} if optimisers is None else optimisers
        for j, active in enumerate(self.active):
            yield Batch(trainer, self, j, active, stream, rule, optimisers)


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

    def __init__(
        self,
        trainer: "Trainer",
        chunk: Chunk,
        j: int,
        active: int,
        stream: str,
        rule: Rule,
        optimisers: dict[Any, Rowwise],
    ) -> None:
        self._trainer, self._chunk, self._active, self._stream = trainer, chunk, active, stream
        self._rule, self._optimisers = rule, optimisers
        self.j = j
        self.lr = rule.lr
        self.width, self.total, self.padded = chunk.width[j], chunk.total[j], chunk.padded[j]
        self.x, self.y = trainer.feed.batch(chunk.samples[j, :active, : self.width])

    def _vector(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.y.device)

    @cached_property
    def n(self) -> Tensor:
        """Real samples, [c], in the floating type of the run."""
        return self._chunk.n[self.j, : self._active]

    @property
    def epoch(self) -> Tensor:
        """Number of the epoch, int64 [c]."""
        return self._vector(self._chunk.epoch[self.j, : self._active])

    @property
    def ends(self) -> Tensor:
        """True if this is the last batch of the client's epoch, bool [c]."""
        return self._vector(self._chunk.ends[self.j, : self._active])

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
        return values.mean(dim=1) if self._weights is None else (values * self._weights).sum(dim=1)

    def _losses(self, w: Tensor, loss: Loss | None, ctx: Mapping[str, Tensor]) -> Tensor:
        return self.mean(self._trainer.per_sample(loss or self._trainer.task.loss, w, self.x, self.y, ctx))

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
        blocks = self._blocks(start, stop) if (loss or self._trainer.task.loss) is cross_entropy and not ctx else ()
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
        with self._trainer.twice_differentiable():
            losses = self._losses(whole, loss, ctx or {})
        (g,) = torch.autograd.grad(losses.sum(), leaf, create_graph=True)
        if g.requires_grad:  # else the loss is linear in w
            # not autograd.grad: with inputs it leaves out, in silence, a Function that is differentiable once
            torch.autograd.backward((g * v[:, start:stop]).sum())
        product = torch.zeros_like(g) if leaf.grad is None else leaf.grad
        return product.detach() if whole is leaf else F.pad(product.detach(), (start, w.shape[1] - stop))

    def _blocks(self, start: int, stop: int) -> tuple[Block, ...]:
        """The parameters in these columns; none where a column cuts one."""
        blocks = tuple(k for k in self._trainer.task.layout.blocks if k.start < stop and k.stop > start)
        return blocks if blocks and blocks[0].start >= start and blocks[-1].stop <= stop else ()

    def _by_block(self, w: Tensor, blocks: tuple[Block, ...]) -> Tensor:
        """`grad` of the task's cross-entropy, a leaf a parameter: that saves a copy of the row for each."""
        layout = self._trainer.task.layout
        pieces = {k.name: w[:, k.start : k.stop].unflatten(1, k.stored) for k in layout.blocks if k.stop <= w.shape[1]}
        rest = {k.name: k.view(pieces[k.name]) for k in layout.within(layout.net) if k not in blocks}
        grads = gradients(blocks, [pieces[k.name] for k in blocks], rest, self)
        return F.pad(torch.cat([g.flatten(1) for g in grads], 1), (blocks[0].start, w.shape[1] - blocks[-1].stop))

    def count(self, means: Tensor) -> None:
        """Add the mean loss of each client, [c], to `train/loss`; `grad` does so itself."""
        total = (means * self.n).sum() if self.padded else means.sum() * self.width
        self._trainer.meter.add(self._stream, total, self.total)

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
            return self._optimisers.setdefault(name, Rowwise(self._rule)).step(w, g)
        key = (name, only.start, only.stop)
        part = self._optimisers.setdefault(key, Rowwise(self._rule)).step(w[:, only], g[:, only])
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
        w, first, second = after(self._rule, m["w"], g, m["first"], m["second"], count[:, None])
        return {"w": w, "first": first, "second": second, "count": count}


def _leaf(w: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """The columns start..stop-1 of rows [c, Q] as a leaf to differentiate, and the rows with that leaf in place."""
    leaf = w[:, start:stop].contiguous().requires_grad_()
    if stop - start == w.shape[1]:
        return leaf, leaf
    return leaf, torch.cat([w[:, :start], leaf, w[:, stop:]], dim=1)
