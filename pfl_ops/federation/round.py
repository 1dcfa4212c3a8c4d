"""One round as a method sees it: the cohort, and verbs that act on all of it at once."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.federation import fisher
from pfl_ops.federation.batch import Batch, Keys, Length, Step
from pfl_ops.federation.contract import Layout, Loss, Net, Share, Task
from pfl_ops.federation.misuse import MisuseError, kind
from pfl_ops.federation.notes import Notes
from pfl_ops.federation.optim import Rule
from pfl_ops.federation.train import Trainer

AT_ONCE = 500  # samples behind one piece of a full gradient: memory, not meaning


@dataclass(frozen=True)
class Traffic:
    """Scalars that one client sends (`up`) and receives (`down`) in a round."""

    up: float
    down: float


class Round:
    """A round t of the clients in `cohort`.

    Attributes:
        t: rounds finished before this one. task, layout: what does not change.
        lr: η of this round; a method with a schedule of its own sets it before it trains, and it is tracked as set.
        cohort: client numbers, int64 [C], sorted and unique. counts: how often each was drawn, [C].
        n: n_k of the cohort, [C]. class_counts: [C, L].
        pooling: whether everybody's data was asked for; such a round costs the same whoever takes part.
        weights: aggregation weights, [C], sum 1: n_k x draws (`samples`) or draws (`uniform`).
        notes: what `note` took.
    """

    def __init__(
        self,
        trainer: Trainer,
        t: int,
        clients: Tensor,
        *,
        weighting: Literal["samples", "uniform"],
        lr_decay: float = 1.0,
        purpose: str = "train",
    ) -> None:
        self._trainer, self._weighting, self._decay, self._purpose = trainer, weighting, lr_decay, purpose
        self.t = t
        self.task: Task = trainer.task
        self.layout: Layout = trainer.task.layout
        self.cohort, draws = torch.unique(clients, return_counts=True)
        like = trainer.task.initial
        self.counts = draws.to(like)
        self.n = self.task.sizes[self.cohort].to(like)
        self.class_counts = self.task.class_counts[self.cohort].to(like)
        shares = self.n * self.counts if weighting == "samples" else self.counts
        self.weights = shares / shares.sum()
        self.lr = trainer.rule.lr * lr_decay**t
        self.traffic = Traffic(up=self.layout.size, down=self.layout.size)
        self.pooling = False
        self.notes = Notes(len(self.cohort))
        self._calls: Counter[str] = Counter()
        self._clients: list[int] = self.cohort.tolist()

    def __reduce__(self) -> str:
        raise TypeError("a step must not capture the round (r): pass rows through `carry` or `ctx`, close over tensors")

    # -- verbs --------------------------------------------------------------------------------------------------------

    def walk(
        self,
        carry: Mapping[str, Tensor],
        step: Step,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch: int | None = None,
        share: Share | None = None,
        stream: str = "",
        batches: int = 1,
    ) -> dict[str, Tensor]:
        """Every client walks through its own batches, taking `step` at each.

        Args:
            carry: rows [C, ...] by name; what each client carries along.
            step: `step(m, b) -> changed rows`: m holds the rows [c, ...] of the clients still at work, b is the
                `Batch`. Pure; values shared by all clients ([P], prototypes) are closed over. `batches`: more of them.
            epochs, steps: length of the walk; neither: the experiment's.
            batch: samples a step; None: the experiment's. share: a part of each client's data.
            stream: name of the draw: walks of different streams never disturb each other; a walk whose number depends
                on data needs a stream of its own.
            batches: independent batches of one step, as in meta-learning: with 2, `step(m, b, b2)`. Each goes through
                the client's data in an order of its own, so the j-th ones have the same size and may share samples.
                The first is the one that a walk with `batches=1` gives. Moments of `descend` belong to the carry,
                whichever batch it is called on.
        Returns:
            The carry after the walk, rows [C, ...] by name.
        Raises:
            MisuseError: the carry lacks a row for each client; the step returns no dict, an unknown name, another
                shape, dtype or device; `batches` is below 1.
        """
        if batches < 1:
            raise MisuseError(f"batches must be at least 1, got {batches}")
        length = Length(epochs, steps, batch, share, stream, batches)
        rows = {name: self._rows(value) for name, value in carry.items()}
        return self._trainer.walk(self._clients, rows, step, length, self._keys(stream), self._rule())

    def train(
        self,
        start: Tensor,
        loss: Loss | None = None,
        *,
        ctx: Mapping[str, Tensor] | None = None,
        shift: Tensor | None = None,
        pull: tuple[float | Tensor, Tensor] | None = None,
        only: slice | None = None,
        lr: float | None = None,
        optimiser: Literal["sgd", "adam"] | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch: int | None = None,
        share: Share | None = None,
        stream: str = "",
    ) -> Tensor:
        """Plain minibatch training of every client from `start`, by the experiment's optimiser.

            w ← optimiser(w, ∇F_k(w; ξ) + shift + μ (w − anchor))

        Args:
            start: rows [C, Q], or one row [Q] for all.
            loss: per-sample loss; None: the task's. ctx: rows [C, ...] that it needs.
            shift: added to the gradient, [C, Q] or [Q].
            pull: (μ, anchor): a number or [C], and rows [C, Q] or [Q].
            only: the columns that move; the rest is frozen, without decay or moments.
            lr, optimiser, momentum, weight_decay: instead of the experiment's.
            epochs, steps, batch, share, stream: as in `walk`.
        Returns:
            Trained rows, [C, Q].
        """
        length = Length(epochs, steps, batch, share, stream)
        rule = self._rule()
        if optimiser is not None and optimiser != rule.kind:
            rule = replace(rule, kind=optimiser, momentum=0.0)
        given: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        rule = replace(rule, **{name: value for name, value in given.items() if value is not None})
        return self._trainer.train(
            self._clients,
            start,
            length,
            self._keys(stream),
            rule,
            loss=loss,
            ctx=ctx,
            shift=shift,
            pull=pull,
            only=only,
        )

    def steps(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch: int | None = None,
        share: Share | None = None,
    ) -> Tensor:
        """Steps that a walk of this length takes, [C]; draws nothing."""
        plans = self._trainer.plans(self._clients, Length(epochs, steps, batch, share), self._keys("", count=False))
        return torch.tensor([p.steps for p in plans]).to(self.n)

    def sweep(
        self,
        w: Tensor,
        function: Loss,
        *,
        share: Share | None = None,
        ctx: Mapping[str, Tensor] | None = None,
        batch: int = 500,
    ) -> tuple[Tensor, Tensor]:
        """`function(net, w, x, y, **ctx) -> [B, ...]` summed over each client's own training samples.

        Args:
            w: rows [C, Q], or one row [Q] for all.
            share: a part of each client's data; batch: samples at once (memory, not meaning).
        Returns:
            sums [C, ...] and counts [C].
        """
        return self._trainer.sweep(
            self._clients, w, function, self._keys("", count=False), share=share, ctx=ctx, batch=batch
        )

    def losses(self, w: Tensor, *, share: Share | None = None) -> Tensor:
        """F_k(w_k) over all of each client's training samples (or a share), [C]."""
        sums, counts = self.sweep(w, self.task.loss, share=share)
        return sums / counts

    def grad(self, w: Tensor) -> Tensor:
        """Full-batch gradients ∇F_k(w_k) over each client's training samples, [C, P]."""
        start = w.expand(len(self._clients), -1) if w.dim() == 1 else w
        carry = {"w": start, "g": torch.zeros_like(start), "n": self.n}
        return self.walk(carry, _add_gradient, epochs=1, batch=AT_ONCE, stream="grad")["g"]

    def square_norms(self, w: Tensor) -> Tensor:
        """Mean over each client's samples of ‖∇ loss(w_k; x, y)‖², [C]: the trace of its empirical Fisher information.

        On one CPU thread 1.2 to 1.7 times an epoch of training (cnn6, cnn).
        """
        sums, counts = self.sweep(w, partial(fisher.square_lengths, loss=self.task.loss), batch=fisher.AT_ONCE)
        return sums / counts

    def class_means(self, w: Tensor) -> Tensor:
        """Mean feature of each class over each client's samples, [C, L, D]; zero where a client lacks the class."""
        sums, _ = self.sweep(w, _features_by_class, batch=max(1, 10 * AT_ONCE // self.net.n_classes))
        return sums / self.class_counts.clamp(min=1)[..., None]

    def cross(self, models: Tensor, who: Tensor, *, share: Share | None = None) -> Tensor:
        """Loss of other clients' models on a client's own data.

        Args:
            models: rows [M, P]. who: for each client, which of these rows, int64 [C, m].
            share: the part of its data that a client judges on.
        Returns:
            losses [C, m].
        """
        columns = [self.losses(models[who[:, j].to(models.device)], share=share) for j in range(who.shape[1])]
        return torch.stack(columns, dim=1)

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the cohort's rows [C, Q] over draws, [Q], whatever the experiment's weighting."""
        return (self.counts / self.counts.sum()) @ rows

    @property
    def local_steps(self) -> int | None:
        """J where the experiment counts steps; None where it counts epochs."""
        return self._trainer.length.steps

    def over(self, clients: Tensor) -> "Round":
        """The same round for other clients."""
        other = Round(
            self._trainer, self.t, clients, weighting=self._weighting, lr_decay=self._decay, purpose=self._purpose
        )
        other.lr, other._calls = self.lr, self._calls
        return other

    def pooled(self) -> "Round":
        """The same round for one client, number 0, that holds everybody's training data."""
        self.pooling = True
        other = Round(
            self._trainer.as_one, self.t, torch.zeros(1, dtype=torch.int64),
            weighting=self._weighting, lr_decay=self._decay, purpose=self._purpose,
        )  # fmt: skip
        other.lr, other._calls = self.lr, self._calls
        return other

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator for the server's own draws in this round."""
        return rng.generator(self.task.seed, f"method/{self._purpose}/{purpose}", self.t)

    def sent(self, *, up: float | None = None, down: float | None = None) -> None:
        """Say what one client sends and receives in this round, in scalars; by default P each way."""
        self.traffic = Traffic(self.traffic.up if up is None else up, self.traffic.down if down is None else down)

    def note(self, name: str, values: Tensor) -> None:
        """Keep one value a client, [C], for the curves `method/<name>/…`; a copy that the method never gets back.

        What is noted in a round that is only looked at (L1, the last L2 of absent clients, `over`) goes nowhere.

        Raises:
            MisuseError: as for `Notes.add`.
        """
        self.notes.add(name, values)

    @property
    def net(self) -> Net:
        """The network as a function of a flat vector."""
        return self.task.net

    def calls(self) -> Counter[str]:
        """How many walks of each stream were made so far."""
        return self._calls.copy()

    def rewind(self, calls: Counter[str]) -> None:
        """Count on from `calls`: what is asked next sees the batches that it would have seen then."""
        self._calls.clear()
        self._calls.update(calls)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _rows(self, value: Tensor) -> Tensor:
        if len(value) != len(self._clients):
            raise MisuseError(f"a carry needs one row for each client: {len(self._clients)} clients, got {kind(value)}")
        return value

    def _rule(self) -> Rule:
        return replace(self._trainer.rule, lr=self.lr)

    def _keys(self, stream: str, count: bool = True) -> Keys:
        call = self._calls[stream]
        self._calls[stream] += count
        return Keys(self.task.seed, self._purpose, self.t, call)


def _add_gradient(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
    return {"g": m["g"] + (b.n / m["n"])[:, None] * b.grad(m["w"])}


def _features_by_class(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Features in the row of their class, zeros elsewhere: [B, L, D]."""
    return torch.nn.functional.one_hot(y, net.n_classes).to(w.dtype)[..., None] * net.features(w, x)[:, None]
