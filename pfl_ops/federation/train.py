"""Local training: every client walks through its own batches, one client at a time or stacked. One meaning, two ways.

What a client sees depends on (seed, purpose, round, client, stream, call) alone. Clients are sorted by their number
of steps, so that those still at work are always the first rows of a chunk: there is no step mask, and an optimiser's
step count is shared. Rows are padded with real samples to a rectangle; the padding carries weight zero in the mean.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops import rng
from pfl_ops.errors import PflOpsError
from pfl_ops.federation import plan
from pfl_ops.federation.contract import Loss, Net, Share, Task
from pfl_ops.federation.feed import Feed
from pfl_ops.federation.optim import Leaves, Rowwise, Rule

Step = Callable[[dict[str, Tensor], "Batch"], Mapping[str, Tensor]]


def cross_entropy(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """−log softmax(net(w, x))_y, [B]: the loss of every method that does not bring its own."""
    return F.cross_entropy(net(w, x), y, reduction="none")


@dataclass(frozen=True)
class Length:
    """How long a walk is, and on which part of the data. Neither epochs nor steps: the experiment's."""

    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    share: Share | None = None
    stream: str = ""


@dataclass(frozen=True)
class Keys:
    """What the draws of one walk are keyed by, beside the client: purpose, round, stream and call."""

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


class Chunk:
    """Some clients' whole walk as rectangles, longest walk first.

    Attributes:
        rows: positions of these clients in the cohort, longest walk first.
        samples: sample numbers, [J, c, B]; short batches repeat their first sample.
        counts: real samples, int64 [J, c] on the host; 0 once a client has ended.
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
        self.active = (self.counts > 0).sum(axis=1)

    def batches(self, trainer: "Trainer", stream: str, rule: Rule) -> Iterator["Batch"]:
        """One `Batch` a step, over the clients still at work."""
        optimisers: dict[Any, Rowwise] = {}
        for j, active in enumerate(self.active.tolist()):
            yield Batch(trainer, self, j, active, stream, rule, optimisers)


class Batch:
    """One step of a walk, for the `c` clients still at work; what a method's own step is given as `b`.

    Attributes:
        j: the step's number, from 0. lr: η of the round.
        x: inputs [c, B, ...]; y: labels [c, B]. Rows shorter than B are padded; every verb knows.
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
        counts = chunk.counts[j, :active]
        self.width = int(counts.max())
        self.total = int(counts.sum())
        self._counts = counts
        self.x, self.y = trainer.feed.batch(chunk.samples[j, :active, : self.width])

    def _vector(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.y.device)

    @cached_property
    def n(self) -> Tensor:
        """Real samples, [c], in the floating type of the run."""
        return self._vector(self._counts).to(self._trainer.feed.dtype)

    @property
    def epoch(self) -> Tensor:
        """Number of the epoch, int64 [c]."""
        return self._vector(self._chunk.epoch[self.j, : self._active])

    @property
    def ends(self) -> Tensor:
        """Whether this is the last batch of the client's epoch, bool [c]."""
        return self._vector(self._chunk.ends[self.j, : self._active])

    @cached_property
    def _weights(self) -> Tensor | None:
        """[c, B]: 1/n_real on real samples, 0 on padding; None when no row is padded."""
        if int(self._counts.min()) == self.width:
            return None
        real = torch.arange(self.width, device=self.y.device) < self._vector(self._counts)[:, None]
        return real.to(self._trainer.feed.dtype) / self.n[:, None]

    def mean(self, values: Tensor) -> Tensor:
        """Mean over a row's real samples: [c, B] -> [c]."""
        return values.mean(dim=1) if self._weights is None else (values * self._weights).sum(dim=1)

    def _losses(self, w: Tensor, loss: Loss | None, ctx: Mapping[str, Tensor]) -> Tensor:
        return self.mean(self._trainer.per_sample(loss or self._trainer.task.loss, w, self.x, self.y, ctx))

    def _rows(self, w: Tensor) -> Tensor:
        return w.expand(self._active, -1) if w.dim() == 1 else w

    def loss(self, w: Tensor, loss: Loss | None = None, ctx: Mapping[str, Tensor] | None = None) -> Tensor:
        """Mean loss of rows `w` ([c, Q] or [Q]) on this batch, [c]."""
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
        """
        w = self._rows(w).detach()
        start, stop, _ = (only or slice(None)).indices(w.shape[1])
        leaf = w[:, start:stop].contiguous().requires_grad_()
        whole = leaf if stop - start == w.shape[1] else torch.cat([w[:, :start], leaf, w[:, stop:]], dim=1)
        losses = self._losses(whole, loss, ctx or {})
        (g,) = torch.autograd.grad(losses.sum(), leaf)
        self._trainer.meter.add(self._stream, (losses.detach() * self.n).sum(), self.total)
        return g if whole is leaf else F.pad(g, (start, w.shape[1] - stop))

    def descend(self, name: str, w: Tensor, g: Tensor, only: slice | None = None) -> Tensor:
        """One step of the experiment's optimiser on carry `name`: new rows.

        Outside `only` nothing moves: no decay, no moment. Moments and step count belong to (name, only).
        """
        if only is None:
            return self._optimisers.setdefault(name, Rowwise(self._rule)).step(w, g)
        key = (name, only.start, only.stop)
        part = self._optimisers.setdefault(key, Rowwise(self._rule)).step(w[:, only], g[:, only])
        new = w.clone()
        new[:, only] = part
        return new


class Trainer:
    """Walks clients through their batches in one of the two ways.

    Args:
        task: the network and its loss.
        feed: training samples on the device.
        rule: optimiser with the first round's learning rate.
        length: the experiment's epochs or steps, and batch size.
        chunk: clients stacked at once; None: the loop way, one client at a time on ordinary kernels.
        bfloat16: run forward passes under autocast.
        draws: the network may draw numbers itself (dropout), from PyTorch's own generator.
    """

    def __init__(
        self,
        task: Task,
        feed: Feed,
        rule: Rule,
        length: Length,
        chunk: int | None,
        bfloat16: bool = False,
        draws: bool = False,
    ) -> None:
        self.task, self.feed, self.rule, self.length = task, feed, rule, length
        self.chunk = chunk
        self.bfloat16, self.draws = bfloat16, draws
        self.meter = Meter()

    # -- what every verb stands on ------------------------------------------------------------------------------------

    def autocast(self) -> AbstractContextManager[Any]:
        """A context of its own for each forward pass: autocast's cache of weights goes stale under in-place updates."""
        return torch.autocast(self.feed.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The network as it answers rather than learns: dropout off."""
        modes = [(layer, layer.training) for layer in self.task.net.network.modules()]
        self.task.net.network.eval()
        try:
            yield
        finally:
            for layer, mode in modes:
                layer.training = mode

    def per_sample(self, loss: Loss, w: Tensor, x: Tensor, y: Tensor, ctx: Mapping[str, Tensor]) -> Tensor:
        """Per-sample losses [c, B] of rows `w` [c, Q] on x [c, B, ...], y [c, B]."""
        net = self.task.net
        with self.autocast():
            if loss is cross_entropy and not ctx and len(w) > 1:
                scores = net.scores(w, x)
                values = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
            else:
                values = self.mapped(loss, w, x, y, ctx)
        if values.shape != y.shape:
            got = list(values.shape[1:])
            raise PflOpsError(f"loss '{_name(loss)}' must give one value a sample, [B]; got {got} for B = {y.shape[1]}")
        return values.to(w.dtype)

    def mapped(
        self, function: Callable[..., Tensor], w: Tensor, x: Tensor, y: Tensor | None, ctx: Mapping[str, Tensor]
    ) -> Tensor:
        """`function(net, w, x[, y], **ctx)`, written for one client, on c of them."""
        net, names = self.task.net, list(ctx)
        labels = () if y is None else (y,)

        def one(w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
            return function(net, w, x, *rest[: len(labels)], **dict(zip(names, rest[len(labels) :], strict=True)))

        rows = (w, x, *labels, *ctx.values())
        if len(w) == 1:
            return one(*(r[0] for r in rows))[None]
        return torch.vmap(one)(*rows)

    def plans(self, clients: Sequence[int], length: Length, keys: Keys) -> list[plan.Plan]:
        """The batch plan of each client, positions among its own samples."""
        epochs, steps = length.epochs, length.steps
        if epochs is None and steps is None:
            epochs, steps = self.length.epochs, self.length.steps
        batch = length.batch or self.length.batch
        found = []
        for k in clients:
            n = int(self.feed.sizes[k])
            positions = self.positions(k, length.share, keys)
            generator = rng.generator(keys.seed, keys.purpose, keys.round, k, length.stream, keys.call)
            p = plan.draw(
                n if positions is None else len(positions), batch=batch, epochs=epochs, steps=steps, rng=generator
            )
            if positions is not None:
                p = plan.Plan(positions[p.order], p.bounds, p.epoch, p.ends)
            found.append(p)
        return found

    def positions(self, client: int, share: Share | None, keys: Keys) -> np.ndarray | None:
        """Positions of a share of the client's samples; None: all of them."""
        if share is None:
            return None
        when = (keys.purpose, keys.round) if share.redraw else ()
        return plan.part(int(self.feed.sizes[client]), share, rng.generator(keys.seed, "share", client, *when))

    def groups(self, clients: Sequence[int], length: Length, keys: Keys) -> Iterator[Chunk]:
        """The cohort in chunks, longest walks first. What a network draws is keyed as a client's batches are."""
        plans = self.plans(clients, length, keys)
        order = sorted(range(len(clients)), key=lambda i: -plans[i].steps)
        size = self.chunk or 1
        cuda = [self.feed.device] if self.feed.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda) if self.draws else nullcontext():
            for at in range(0, len(order), size):
                if self.draws:
                    walk = (keys.round, clients[order[at]], length.stream, keys.call)
                    torch.manual_seed(rng.torch_seed(keys.seed, f"network/{keys.purpose}", *walk))
                yield Chunk(self.feed, clients, order[at : at + size], plans)

    # -- walk: a method's own step ------------------------------------------------------------------------------------

    def walk(
        self, clients: Sequence[int], carry: Mapping[str, Tensor], step: Step, length: Length, keys: Keys, rule: Rule
    ) -> dict[str, Tensor]:
        """Each client through its plan by `step`; see `Round.walk`."""
        out = {name: value.clone() for name, value in carry.items()}
        for chunk in self.groups(clients, length, keys):
            rows = torch.tensor(chunk.rows)
            m = {name: value[rows.to(value.device)] for name, value in carry.items()}
            at_work = len(chunk.rows)
            for b in chunk.batches(self, length.stream, rule):
                if b._active < at_work:
                    for name, value in m.items():
                        out[name][rows[b._active : at_work].to(value.device)] = value[b._active :]
                        m[name] = value[: b._active]
                    at_work = b._active
                for name, value in step(dict(m), b).items():
                    m[name] = _checked(name, value, m)
            for name, value in m.items():
                out[name][rows[:at_work].to(value.device)] = value
        return out

    # -- train: the fast path -----------------------------------------------------------------------------------------

    def train(
        self,
        clients: Sequence[int],
        start: Tensor,
        length: Length,
        keys: Keys,
        rule: Rule,
        *,
        loss: Loss | None = None,
        ctx: Mapping[str, Tensor] | None = None,
        shift: Tensor | None = None,
        pull: tuple[float | Tensor, Tensor] | None = None,
        only: slice | None = None,
    ) -> Tensor:
        """Minibatch training of every client from `start`; see `Round.train`. Returns [C, Q]."""
        out = (
            start.detach().expand(len(clients), -1).clone() if only else start.new_empty(len(clients), start.shape[-1])
        )
        for chunk in self.groups(clients, length, keys):
            self._train_chunk(out, start.detach(), chunk, length.stream, rule, loss, ctx or {}, shift, pull, only)
        return out

    def _train_chunk(
        self,
        out: Tensor,
        start: Tensor,
        chunk: Chunk,
        stream: str,
        rule: Rule,
        loss: Loss | None,
        ctx: Mapping[str, Tensor],
        shift: Tensor | None,
        pull: tuple[float | Tensor, Tensor] | None,
        only: slice | None,
    ) -> None:
        rows = torch.tensor(chunk.rows, device=out.device)
        spread = _Spread(self, out.shape[1], only, rows, blocks=loss is None and self.task.loss is cross_entropy)
        leaves = spread.leaves(start)
        fixed = spread.fixed(start)
        shifts = None if shift is None else spread.pieces(shift)
        anchors = None if pull is None else spread.pieces(pull[1])
        optimiser = Leaves(rule, leaves)
        at_work = len(chunk.rows)
        for b in chunk.batches(self, stream, rule):
            if b._active < at_work:
                spread.store(out, leaves, b._active, at_work)
                at_work = b._active
                leaves = [leaf[:at_work] for leaf in leaves]
                fixed = fixed[:at_work]
                shifts = shifts and [s[:at_work] if len(s) > 1 else s for s in shifts]
                anchors = anchors and [a[:at_work] if len(a) > 1 else a for a in anchors]
                optimiser.shrink(at_work)
            now = {name: value[rows[:at_work]] for name, value in ctx.items()}
            grads = spread.gradient(leaves, fixed, b, loss, now, stream)
            if shifts is not None:
                for g, s in zip(grads, shifts, strict=True):
                    g.add_(s)
            if anchors is not None and pull is not None:
                mu = pull[0]
                for g, w, a in zip(grads, leaves, anchors, strict=True):
                    if isinstance(mu, Tensor):
                        g.add_(_column(mu[rows[:at_work]], g) * (w - a))
                    else:
                        g.add_(w, alpha=mu).sub_(a, alpha=mu)
            optimiser.step(leaves, grads)
        spread.store(out, leaves, 0, at_work)

    # -- sweep: a function summed over data ---------------------------------------------------------------------------

    @torch.no_grad()
    def sweep(
        self,
        clients: Sequence[int],
        w: Tensor,
        function: Loss,
        keys: Keys,
        *,
        share: Share | None = None,
        ctx: Mapping[str, Tensor] | None = None,
        batch: int = 500,
    ) -> tuple[Tensor, Tensor]:
        """`function` summed over each client's own samples; see `Round.sweep`."""
        sums: Tensor | None = None
        counts = torch.zeros(len(clients), dtype=self.feed.dtype, device=self.feed.device)
        for i, k in enumerate(clients):
            positions = self.positions(k, share, keys)
            own = self.feed.index[k]
            own = own if positions is None else own[torch.from_numpy(positions).to(own.device)]
            counts[i] = len(own)
            row = w[None] if w.dim() == 1 else w[i : i + 1]
            now = {name: value[i : i + 1] for name, value in (ctx or {}).items()}
            for samples in own.split(batch):
                x, y = self.feed.batch(samples)
                with self.autocast(), self.answering():
                    values = self.mapped(function, row, x[None], y[None], now)[0]
                if sums is None:
                    sums = values.new_zeros(len(clients), *values.shape[1:], dtype=self.feed.dtype)
                sums[i] += values.sum(dim=0)
        if sums is None:
            raise PflOpsError("none of these clients has a sample to sweep over")
        return sums, counts


class _Spread:
    """Rows as the leaves that PyTorch trains: one contiguous leaf a parameter (`blocks`), or one flat leaf.

    Each parameter as a leaf of its own is about twice as fast as slices of one flat leaf; a loss of a method's own
    takes a flat vector and so gets the flat one.
    """

    def __init__(self, trainer: Trainer, width: int, only: slice | None, rows: Tensor, blocks: bool) -> None:
        self.trainer, self.rows = trainer, rows
        self.layout = trainer.task.layout
        self.loop = len(rows) == 1
        self.range = (only or slice(None)).indices(width)[:2]
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
        """Rows as they were, [c, Q], for the columns that do not move."""
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
            g = b.grad(torch.cat([fixed[:, :start], leaves[0], fixed[:, stop:]], dim=1) if stop - start < fixed.shape[1]
                       else leaves[0], loss, slice(start, stop), ctx)  # fmt: skip
            return [g[:, start:stop].contiguous()]
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        net, trainer = self.trainer.task.net, self.trainer
        with trainer.autocast():
            if self.loop:
                views = {k.name: k.view(leaf[0]) for k, leaf in zip(self.blocks, leaves, strict=True)}
                views |= {k.name: k.view(fixed[0, k.start : k.stop].view(k.stored)) for k in self.rest}
                mean = F.cross_entropy(net.forward(views, b.x[0]), b.y[0])
            else:
                views = {k.name: k.view(leaf) for k, leaf in zip(self.blocks, leaves, strict=True)}
                views |= {k.name: k.view(fixed[:, k.start : k.stop].unflatten(1, k.stored)) for k in self.rest}
                scores = net.stacked(views, b.x)
                values = F.cross_entropy(scores.flatten(0, 1), b.y.flatten(), reduction="none").view(b.y.shape)
                mean = b.mean(values)
        used = [leaf for leaf in leaves]
        grads = torch.autograd.grad(mean.sum(), used, allow_unused=True)
        trainer.meter.add(stream, (mean.detach() * b.n).sum(), b.total)
        return [torch.zeros_like(w) if g is None else g.contiguous() for g, w in zip(grads, leaves, strict=True)]


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def _checked(name: str, value: Tensor, m: Mapping[str, Tensor]) -> Tensor:
    if name not in m:
        raise PflOpsError(f"a step returned '{name}', which is not in its carry ({', '.join(m)})")
    if value.shape != m[name].shape or value.dtype != m[name].dtype:
        raise PflOpsError(
            f"a step returned '{name}' as {list(value.shape)} {value.dtype}, "
            f"its carry is {list(m[name].shape)} {m[name].dtype}"
        )
    return value.detach()
