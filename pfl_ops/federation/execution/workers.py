"""A cohort trained, and its models scored, by several processes of one thread each.

On a CPU processes of one thread are at least as fast as one process of as many threads, which all but stops where other
work takes one of its cores away. What a client computes depends on its own keys alone, so who computes it makes no
difference.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_ops.data.clients import Pool
from pfl_ops.federation.execution.processes import Processes
from pfl_ops.federation.method.contract import Loss, Models, Share
from pfl_ops.federation.method.walk import Keys, Length, Step
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.scoring.evaluate import Scorer, at_once, some_of
from pfl_ops.federation.settings import Evaluation
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.train import Trainer

Held = Mapping[str, Any]
"""The objects of each process: `trainer`, `scorer`."""

Counted = tuple[str, float, int]
"""A process's additions to the meter: stream, sum of losses, samples."""

Span = tuple[int, int]
"""From where to where, the end left out."""


class PooledTrainer(Trainer):
    """A `Trainer` whose clients are trained by several processes, with the rows that one of them would give.

    Args:
        trainer: what each of them does, in either way. workers: how many.
    """

    def __init__(self, trainer: Trainer, workers: int) -> None:
        super().__init__(
            trainer.task, trainer.feed, trainer.rule, trainer.length, trainer.chunk, trainer.bfloat16, trainer.draws,
            trainer.compiled,
        )  # fmt: skip
        self.alone = trainer
        self.held: dict[str, Any] = {"trainer": trainer}
        self.processes = Processes(workers, self.held)

    def start(self) -> None:
        """Start the processes, unless they are there; else the first job does."""
        self.processes.start()

    def close(self) -> None:
        """End the processes; the next job starts new ones."""
        self.processes.close()

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
        """Train in several processes, rows [C, Q]; see `Trainer.train`."""
        fixed = {"loss": loss, "only": only}
        given = {"start": start, "ctx": ctx or {}, "shift": shift, "pull": pull, "fixed": fixed, "rule": rule}
        like = {"rows": ((len(clients), start.shape[-1]), start.dtype)}
        return self._share_out(_train, clients, length, keys, given, like)["rows"]

    def walk(
        self, clients: Sequence[int], carry: Mapping[str, Tensor], step: Step, length: Length, keys: Keys, rule: Rule
    ) -> dict[str, Tensor]:
        """Walk in several processes, rows [C, ...] by name; see `Trainer.walk`."""
        like = {name: (value.shape, value.dtype) for name, value in carry.items()}
        given = {"carry": dict(carry), "step": step, "rule": rule}
        return self._share_out(_walk, clients, length, keys, given, like)

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
        """Sweep in several processes, sums [C, ...] and counts [C]; see `Trainer.sweep`."""
        parts = shared_out([int(self.feed.sizes[k]) for k in clients], 1, self.processes.count)
        how = {"share": share, "batch": batch}
        given = {"clients": list(clients), "w": w, "function": function, "keys": keys, "ctx": ctx or {}, "how": how}
        found = [answer for answer in self.processes.ask(_sweep, parts, given, {})[0] if answer is not None]
        if len(found) < len(parts):
            return super().sweep(clients, w, function, keys, share=share, ctx=ctx, batch=batch)
        order = torch.tensor([i for part in parts for i in part]).argsort()
        sums, counts = (torch.cat(each)[order] for each in zip(*found, strict=True))
        return sums, counts

    def _share_out(
        self, do: Any, clients: Sequence[int], length: Length, keys: Keys, given: Mapping[str, Any],
        like: Mapping[str, tuple[Sequence[int], torch.dtype]],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Let each process do its part of a walk, and add up what they counted."""
        parts = shared_out(self.steps(clients, length, keys), self.chunk or 1, self.processes.count)
        given = {**given, "clients": list(clients), "length": length, "keys": keys}
        counted: list[Counted]
        counted, rows = self.processes.ask(do, parts, given, like)
        for stream, total, samples in counted:
            self.meter.add(stream, torch.tensor(total, dtype=torch.float64), samples)
        return rows


class PooledScorer(Scorer):
    """A `Scorer` whose models are asked by the processes of a `PooledTrainer`.

    Args:
        trainer: theirs. The rest is a `Scorer`'s.
    """

    def __init__(self, trainer: PooledTrainer, pool: Pool, feed: Feed, settings: Evaluation, seed: int) -> None:
        super().__init__(trainer, pool, feed, settings, seed)
        self.processes = trainer.processes
        trainer.held["scorer"] = Scorer(trainer.alone, pool, feed, settings, seed)

    @property
    def stack(self) -> int:
        """Models that are taken at a time, by all processes together."""
        return super().stack * self.processes.count

    def _local(self, models: Models, clients: np.ndarray) -> np.ndarray:
        given = {"models": models, "clients": clients}
        like = {"accuracy": ((len(clients),), torch.float64)}
        _, found = self.processes.ask(_local, self._shares(len(clients), self.groups.local), given, like)
        return np.asarray(found["accuracy"].numpy())

    def _answers(self, models: Models, samples: Tensor) -> Tensor:
        """By models where there is one for each process, else by samples: in batches as one process would form them."""
        rows, n, group = len(models.params), len(samples), self.groups.pooled
        if rows > group * (self.processes.count - 1):
            parts = [(some, (0, n)) for some in self._shares(rows, group)]
        else:
            parts = [((0, rows), some) for some in self._shares(n, at_once(min(rows, group)))]
        given = {"models": models, "samples": samples}
        return self.processes.ask(_answers, parts, given, {"right": ((rows, n), torch.bool)})[1]["right"]

    def _shares(self, count: int, size: int) -> list[Span]:
        """So many things in groups of `size`, whole groups for each process: from where to where."""
        groups = -(-count // size)
        bounds = [min(size * round(groups * i / self.processes.count), count) for i in range(self.processes.count + 1)]
        return list(pairwise(bounds))


def shared_out(steps: Sequence[int], size: int, workers: int) -> list[list[int]]:
    """Assign clients to processes: whole chunks as one process would form them, so that it forms the same.

    The longest chunk first, each to the process with the least to do so far; only the last one is not full, and stays
    the last wherever it goes.

    Args:
        steps: of each client. size: clients in a chunk.
    Returns:
        Positions of clients, one list a process.
    """
    parts: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    order = sorted(range(len(steps)), key=lambda i: -steps[i])
    for rows in (order[at : at + size] for at in range(0, len(order), size)):
        least = load.index(min(load))
        parts[least] += rows
        load[least] += sum(steps[i] + 1 for i in rows)
    return parts


# -- in a process ------------------------------------------------------------------------------------------------------


def _train(
    held: Held, part: list[int], clients: list[int], start: Tensor, ctx: dict[str, Tensor], shift: Tensor | None,
    pull: tuple[float | Tensor, Tensor] | None, fixed: dict[str, Any], length: Length, keys: Keys, rule: Rule,
    outs: dict[str, Tensor],
) -> Counted:  # fmt: skip
    trainer = _learner(held)
    if part:
        rows, own = torch.tensor(part), [clients[i] for i in part]
        if pull is not None:
            mu, anchor = pull
            pull = (mu[rows] if isinstance(mu, Tensor) else mu, _rows(anchor, rows))
        outs["rows"][rows] = trainer.train(
            own, _rows(start, rows), length, keys, rule, ctx={name: value[rows] for name, value in ctx.items()},
            shift=None if shift is None else _rows(shift, rows), pull=pull, **fixed,
        )  # fmt: skip
    return _counted(trainer, length)


def _walk(
    held: Held, part: list[int], clients: list[int], carry: dict[str, Tensor], step: Step, length: Length, keys: Keys,
    rule: Rule, outs: dict[str, Tensor],
) -> Counted:  # fmt: skip
    trainer = _learner(held)
    if part:
        rows, own = torch.tensor(part), [clients[i] for i in part]
        mine = {name: value[rows] for name, value in carry.items()}
        for name, value in trainer.walk(own, mine, step, length, keys, rule).items():
            outs[name][rows] = value
    return _counted(trainer, length)


def _learner(held: Held) -> Trainer:
    """The trainer for a new job; processes that were started by an evaluation were given an answering network."""
    trainer: Trainer = held["trainer"]
    trainer.passes.learn()
    trainer.meter.clear()
    return trainer


def _counted(trainer: Trainer, length: Length) -> Counted:
    total = float(trainer.meter.total) + float(trainer.meter.others)  # of the one stream that it walked
    return length.stream, total, trainer.meter.by_stream.get(length.stream, 0)


def _rows(value: Tensor, rows: Tensor) -> Tensor:
    """Rows of [C, Q]; a row [Q] is shared by all clients."""
    return value if value.dim() == 1 else value[rows]


def _sweep(
    held: Held, part: list[int], clients: list[int], w: Tensor, function: Loss, keys: Keys, ctx: dict[str, Tensor],
    how: dict[str, Any], outs: dict[str, Tensor],
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """None: no client here has a sample, so that not even the shape of a sum is known."""
    trainer: Trainer = held["trainer"]
    rows, own = torch.tensor(part, dtype=torch.int64), [clients[i] for i in part]
    positions = {k: trainer.positions(k, how["share"], keys) for k in own}
    if not any(int(trainer.feed.sizes[k]) if p is None else len(p) for k, p in positions.items()):
        return None
    return trainer.sweep(
        own, _rows(w, rows), function, keys, ctx={name: value[rows] for name, value in ctx.items()}, **how
    )


@torch.no_grad()
def _local(held: Held, part: Span, models: Models, clients: np.ndarray, outs: dict[str, Tensor]) -> None:
    scorer: Scorer = held["scorer"]
    if part[0] < part[1]:
        with scorer.trainer.passes.answering():
            outs["accuracy"][slice(*part)] = torch.from_numpy(
                scorer._local(some_of(models, *part), clients[slice(*part)])
            )


@torch.no_grad()
def _answers(held: Held, part: tuple[Span, Span], models: Models, samples: Tensor, outs: dict[str, Tensor]) -> None:
    scorer: Scorer = held["scorer"]
    rows, some = part
    if rows[0] < rows[1] and some[0] < some[1]:  # a network of a user may refuse a batch of no samples
        with scorer.trainer.passes.answering():
            outs["right"][slice(*rows), slice(*some)] = scorer._answers(some_of(models, *rows), samples[slice(*some)])
