"""Local training: every client walks through its own batches, one client at a time or stacked. One meaning, two ways.

What a client sees depends on (seed, purpose, round, client, stream, call) alone.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.errors import PflOpsError, echo
from pfl_ops.federation.method.batch import Walk
from pfl_ops.federation.method.contract import Loss, Share, Task
from pfl_ops.federation.method.walk import Keys, Length, Meter, Step
from pfl_ops.federation.misuse import MisuseError, kind, name_of, repeatable
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.optim import Leaves, Moments, Rule
from pfl_ops.federation.network.passes import Passes
from pfl_ops.federation.training import plan
from pfl_ops.federation.training.chunk import STRETCH, Chunk
from pfl_ops.federation.training.compiled import CompiledDescent, takes
from pfl_ops.federation.training.descent import Descent
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.leaves import Spread


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
        compiled: take steps on linear layers by the compiled kernels, which are built on this machine.
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
        compiled: bool = False,
    ) -> None:
        self.task, self.feed, self.rule, self.length = task, feed, rule, length
        self.chunk, self.compiled = chunk, compiled
        self.bfloat16, self.draws = bfloat16, draws
        self.passes = Passes(task.net, task.loss, feed.device, bfloat16)
        self.meter = Meter()

    @cached_property
    def as_one(self) -> "Trainer":
        """The same training for one client, number 0, that holds all data; it counts on this one's meter."""
        sizes, counts = self.task.sizes, self.task.class_counts
        task = replace(self.task, sizes=sizes.sum(0, keepdim=True), class_counts=counts.sum(0, keepdim=True))
        one = Trainer(task, self.feed.as_one(), self.rule, self.length, None, self.bfloat16, self.draws, self.compiled)
        one.meter = self.meter
        return one

    @property
    def _is_compiled(self) -> bool:
        """True if there are compiled kernels to use, and they can read the samples."""
        return self.compiled and takes(self.feed)

    # -- batch plans --------------------------------------------------------------------------------------------------

    def plans(self, clients: Sequence[int], length: Length, keys: Keys, nth: int = 0) -> list[plan.Plan]:
        """The batch plan of each client, positions among its own samples.

        Args:
            nth: which of the independent plans of a walk with several batches a step; they differ in the order alone.
        """
        epochs, steps = length.epochs, length.steps
        if epochs is None and steps is None:
            epochs, steps = self.length.epochs, self.length.steps
        batch = length.batch or self.length.batch
        found = []
        for k in clients:
            n = int(self.feed.sizes[k])
            positions = self.positions(k, length.share, keys)
            further = (nth,) if nth else ()
            generator = rng.generator(keys.seed, keys.purpose, keys.round, k, length.stream, keys.call, *further)
            p = plan.draw(
                n if positions is None else len(positions), batch=batch, epochs=epochs, steps=steps, rng=generator
            )
            if positions is not None:
                p = plan.Plan(positions[p.order], p.bounds, p.epoch, p.ends)
            found.append(p)
        return found

    def steps(self, clients: Sequence[int], length: Length, keys: Keys) -> list[int]:
        """Return the steps of each client's plan; only shares are drawn."""
        own = self.length if length.epochs is None and length.steps is None else length
        shares = {k: self.positions(k, length.share, keys) for k in clients}
        sizes = [int(self.feed.sizes[k]) if p is None else len(p) for k, p in shares.items()]
        batch = length.batch or self.length.batch
        return [plan.steps_of(n, batch=batch, epochs=own.epochs, steps=own.steps) for n in sizes]

    def positions(self, client: int, share: Share | None, keys: Keys) -> np.ndarray | None:
        """Positions of a share of the client's samples, int64 [m]; None: all of them."""
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
        """Take `step` at each batch of each client; carry rows [C, ...] by name, see `Round.walk`."""
        with repeatable(step):
            out = {name: value.clone() for name, value in carry.items()}
            further = [self.plans(clients, length, keys, nth) for nth in range(1, length.batches)]
            for chunk in self.groups(clients, length, keys):
                positions = torch.tensor(chunk.rows)
                rows = {device: positions.to(device) for device in {value.device for value in carry.values()}}
                m = {name: value[rows[value.device]] for name, value in carry.items()}
                at_work = len(chunk.rows)
                walk = Walk(self.passes, self.meter, length.stream, rule)
                chunks = [chunk, *(Chunk(self.feed, clients, chunk.rows, plans) for plans in further)]
                for b, *more in zip(*(c.batches(self.feed, walk) for c in chunks), strict=True):
                    if b._active < at_work:
                        for name, value in m.items():
                            out[name][rows[value.device][b._active : at_work]] = value[b._active :]
                            m[name] = value[: b._active]
                        at_work = b._active
                    for key, changed in _changes(step, step(dict(m), b, *more), m).items():
                        m[key] = changed.detach()
                for name, value in m.items():
                    out[name][rows[value.device][:at_work]] = value
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
        start = start.detach()
        out = start.expand(len(clients), -1).clone() if only else start.new_empty(len(clients), start.shape[-1])
        own, chain = loss or self.task.loss, self.passes.chain
        by_block = loss is None and own is cross_entropy
        with nullcontext() if own is cross_entropy else repeatable(own):
            for chunk in self.groups(clients, length, keys):
                spread = Spread(self.task.layout, out, chunk.rows, start, only, by_block, shift, pull)
                if chain is not None and spread.direct(chain, rule, self._is_compiled):
                    self._descend(chain, chunk, spread, length.stream, rule)
                else:
                    self._step(chunk, spread, Walk(self.passes, self.meter, length.stream, rule), loss, ctx or {})
                spread.end(0)
                del spread  # its leaves, before there are those of the next chunk
        return out

    def _step(self, chunk: Chunk, spread: Spread, walk: Walk, loss: Loss | None, ctx: Mapping[str, Tensor]) -> None:
        optimiser = Leaves(walk.rule, spread.leaves)
        for b in chunk.batches(self.feed, walk):
            if spread.end(b._active):
                optimiser.shrink(b._active)
            now = {name: value[spread.rows[: b._active]] for name, value in ctx.items()}
            grads = spread.gradient(b, loss, now)
            spread.terms.add(grads, spread.leaves)
            optimiser.step(spread.leaves, grads)

    def _descend(self, chain: Chain, chunk: Chunk, spread: Spread, stream: str, rule: Rule) -> None:
        """`_step` where a step goes straight into the weights."""
        make, limit = (CompiledDescent, sys.maxsize) if self._is_compiled else (Descent, STRETCH)
        moments = Moments.of(rule, spread.leaves)
        descent: Descent | None = None
        for stretch in chunk.stretches(self.feed, limit):
            if spread.end(stretch.active) or descent is None:
                moments.shrink(stretch.active)
                descent = make(chain, spread.names, spread.leaves, spread.resting(), rule, spread.terms, moments)
            losses = descent.run(self.feed, stretch.samples, stretch.share)
            seen = losses if stretch.real is None else losses * stretch.real
            self.meter.add(stream, seen.sum(dtype=torch.float64), stretch.total)

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
        """Sum `function` over each client's own samples: sums [C, ...], counts [C]; see `Round.sweep`."""
        sums: Tensor | None = None
        counts = torch.zeros(len(clients), dtype=self.feed.dtype, device=self.feed.device)
        with nullcontext() if function is cross_entropy else repeatable(function):
            for i, k in enumerate(clients):
                positions = self.positions(k, share, keys)
                own = self.feed.index[k]
                own = own if positions is None else own[torch.from_numpy(positions).to(own.device)]
                counts[i] = len(own)
                row = w[None] if w.dim() == 1 else w[i : i + 1]
                now = {name: value[i : i + 1] for name, value in (ctx or {}).items()}
                for samples in own.split(batch):
                    x, y = self.feed.batch(samples)
                    with self.passes.autocast(), self.passes.answering():
                        values = self.passes.mapped(function, row, x[None], y[None], now)[0]
                    if values.dim() == 0 or len(values) != len(samples):
                        told = f"{name_of(function)}() must give one value a sample, got {kind(values)}"
                        raise MisuseError(told, function)
                    if sums is None:
                        sums = values.new_zeros(len(clients), *values.shape[1:], dtype=self.feed.dtype)
                    sums[i] += values.sum(dim=0)
        if sums is None:
            raise PflOpsError("none of these clients has a sample to sweep over")
        return sums, counts


def _changes(step: Step, returned: object, m: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the answer of a step, if its carry `m` can take it over."""
    says = f"{name_of(step)}() returned"
    if not isinstance(returned, Mapping):
        raise MisuseError(f"{says} {kind(returned)}; expected a dict of the rows that change", step)
    for key, value in returned.items():
        if key not in m:
            raise MisuseError(f"{says} {echo(repr(key))}, which is not in its carry ({', '.join(m)})", step)
        like = m[key]
        if not isinstance(value, Tensor) or (value.shape, value.dtype, value.device) != (
            like.shape, like.dtype, like.device
        ):  # fmt: skip
            raise MisuseError(f"{says} {kind(value)} as '{key}'; expected {kind(like)}, as in its carry", step)
    return returned
