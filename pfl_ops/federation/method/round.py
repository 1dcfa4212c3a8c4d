"""One round as a method sees it: the cohort, and verbs that act on all of it at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.federation.method.arguments import (
    changed,
    check_context,
    check_free_of,
    check_pull,
    check_rate,
    check_rows,
    check_share,
    length_of,
    scalars,
)
from pfl_ops.federation.method.batch import Batch
from pfl_ops.federation.method.contract import Layout, Loss, Net, Share, Task
from pfl_ops.federation.method.notes import Notes
from pfl_ops.federation.method.walk import Keys, Length, Step
from pfl_ops.federation.misuse import MisuseError, beyond, kind
from pfl_ops.federation.network import fisher
from pfl_ops.federation.network.optim import Rule

FULL_GRADIENT_BATCH = 500  # samples behind one piece of a full gradient: memory, not meaning


@dataclass(frozen=True)
class Traffic:
    """Numbers (scalars, not bytes) that one client sends (`up`) and receives (`down`) in a round."""

    up: float
    down: float


class LocalTraining(Protocol):
    """Training of a cohort as a round asks for it; see `training.train.Trainer`.

    Clients are numbers, one row each in the tensors beside them.
    """

    task: Task
    rule: Rule
    length: Length

    @property
    def as_one(self) -> "LocalTraining":
        """The same training for one client, number 0, that has the data of all."""
        ...

    def walk(
        self, clients: Sequence[int], carry: Mapping[str, Tensor], step: Step, length: Length, keys: Keys, rule: Rule
    ) -> dict[str, Tensor]: ...

    def train(
        self, clients: Sequence[int], start: Tensor, length: Length, keys: Keys, rule: Rule, *,
        loss: Loss | None = None, ctx: Mapping[str, Tensor] | None = None, shift: Tensor | None = None,
        pull: tuple[float | Tensor, Tensor] | None = None, only: slice | None = None,
    ) -> Tensor: ...  # fmt: skip

    def sweep(
        self, clients: Sequence[int], w: Tensor, function: Loss, keys: Keys, *, share: Share | None = None,
        ctx: Mapping[str, Tensor] | None = None, batch: int = 500,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip

    def steps(self, clients: Sequence[int], length: Length, keys: Keys) -> list[int]: ...


class Round:
    """Round t of the clients in `cohort`.

    Attributes:
        t: rounds finished before this one. task, layout: what does not change.
        lr: η of this round; a method with a schedule of its own sets it before it trains, and it is tracked as set.
        cohort: client numbers, int64 [C], sorted and unique. counts: how often each was drawn, [C].
        n: n_k of the cohort, [C]. class_counts: [C, L].
        pooling: True once `pooled` was called; such a round costs the same whichever clients take part.
        kept: True if the state takes over what the round changes; False: the last round is repeated for absent clients,
            whose L2 is scored, or a round is timed.
        weights: aggregation weights, [C], sum 1: n_k x draws (`samples`) or draws (`uniform`).
        notes: what `note` took.

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0, 9.0], sizes=[1, 3, 2], clients=[1, 0])
    >>> r.cohort.tolist(), r.n.tolist(), r.weights.tolist()
    ([0, 1], [1.0, 3.0], [0.25, 0.75])
    >>> quadratic_round([0.0, 6.0], sizes=[1, 3], clients=[0, 0, 0, 1]).weights.tolist()  # 1 · 3 : 3 · 1
    [0.5, 0.5]
    """

    def __init__(
        self,
        trainer: LocalTraining,
        t: int,
        clients: Tensor,
        *,
        weighting: Literal["samples", "uniform"],
        lr_decay: float = 1.0,
        purpose: str = "train",
        kept: bool = True,
    ) -> None:
        self._trainer, self._weighting, self._decay, self._purpose = trainer, weighting, lr_decay, purpose
        self.t, self.kept = t, kept
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
        """Take a step of the method's own at each batch of each client.

        A worked example, a method with two losses, is in docs/rounds.md, "A step of your own".

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

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)  # ∇F_k(w) = w − b_k, b = (0, 6)
        >>> def step(m, b):
        ...     g = b.grad(m["w"])
        ...     return {"w": m["w"] - 0.5 * g, "length": m["length"] + 0.5 * g.norm(dim=1)}
        >>> m = r.walk({"w": r.task.initial.expand(2, 1), "length": torch.zeros(2).double()}, step, steps=2)
        >>> m["w"].tolist(), m["length"].tolist()  # 2, 1, 0.5 and 2, 4, 5
        ([[0.5], [5.0]], [1.5, 3.0])
        """
        if batches < 1:
            raise MisuseError(f"batches must be at least 1, got {batches}")
        check_free_of(Round, step)
        length = length_of(epochs, steps, batch, share, stream, batches)
        for value in carry.values():
            check_rows("a carry", value, len(self.cohort))
        return self._trainer.walk(self._clients, carry, step, length, self._keys(stream), self._rule())

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
        """Train each client from `start` by minibatches, with the experiment's optimiser.

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
        Raises:
            MisuseError: rows that are not one for each client of the cohort, a length or optimiser that does not exist,
                a negative η.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0, lr=0.5, steps=2)
        >>> r.train(r.task.initial).tolist()  # 2, 1, 0.5 and 2, 4, 5
        [[0.5], [5.0]]
        >>> r.train(r.task.initial, pull=(1.0, r.task.initial)).tolist()  # the second gradient, (w − b) + (w − 2), is 0
        [[1.0], [4.0]]
        """
        if loss is not None:
            check_free_of(Round, loss)
        length = length_of(epochs, steps, batch, share, stream)
        check_rows("start", start, len(self.cohort), or_one=True)
        check_context(ctx, len(self.cohort))
        if shift is not None:
            check_rows("shift", shift, len(self.cohort), or_one=True, width=start.shape[-1])
        if pull is not None:
            check_pull(pull, len(self.cohort), start.shape[-1])
        if only is not None and not isinstance(only, slice):
            raise MisuseError(f"only needs a slice of r.layout (body, head, top(layers)), got {kind(only)}")
        rule = changed(self._rule(), optimiser, lr=lr, momentum=momentum, weight_decay=weight_decay)
        return self._trainer.train(
            self._clients, start, length, self._keys(stream), rule,
            loss=loss, ctx=ctx, shift=shift, pull=pull, only=only,
        )  # fmt: skip

    def steps(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        batch: int | None = None,
        share: Share | None = None,
    ) -> Tensor:
        """Return the steps that a walk of this length takes, [C]; draws nothing.

        >>> from pfl_ops.testing import quadratic_round
        >>> quadratic_round([0.0, 6.0], sizes=[1, 3]).steps(epochs=2, batch=2).tolist()  # 2 ⌈1/2⌉ and 2 ⌈3/2⌉
        [2.0, 4.0]
        """
        length = length_of(epochs, steps, batch, share)
        return torch.tensor(self._trainer.steps(self._clients, length, self._keys("", count=False))).to(self.n)

    def sweep(
        self,
        w: Tensor,
        function: Loss,
        *,
        share: Share | None = None,
        ctx: Mapping[str, Tensor] | None = None,
        batch: int = 500,
    ) -> tuple[Tensor, Tensor]:
        """Sum `function(net, w, x, y, **ctx) -> [B, ...]` over each client's own training samples.

        Args:
            w: rows [C, Q], or one row [Q] for all.
            share: a part of each client's data; batch: samples at once (memory, not meaning).
        Returns:
            sums [C, ...] and counts [C].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], sizes=[1, 3], start=2.0)
        >>> sums, counts = r.sweep(r.task.initial, lambda net, w, x, y: (w - x).abs().sum(dim=1))
        >>> sums.tolist(), counts.tolist()  # |2 − 0| once, |2 − 6| three times
        ([2.0, 12.0], [1.0, 3.0])
        """
        check_free_of(Round, function)
        check_share(share)
        check_rows("w", w, len(self.cohort), or_one=True)
        check_context(ctx, len(self.cohort))
        return self._trainer.sweep(
            self._clients, w, function, self._keys("", count=False), share=share, ctx=ctx, batch=batch
        )

    def losses(self, w: Tensor, *, share: Share | None = None) -> Tensor:
        """Return F_k(w_k) over all of each client's training samples (or a share), [C].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)
        >>> r.losses(r.task.initial).tolist()  # ½ (2 − 0)² and ½ (2 − 6)²
        [2.0, 8.0]
        """
        sums, counts = self.sweep(w, self.task.loss, share=share)
        return sums / counts

    def grad(self, w: Tensor) -> Tensor:
        """Return the full-batch gradients ∇F_k(w_k) over each client's training samples, [C, P].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)
        >>> r.grad(r.task.initial).tolist()
        [[2.0], [-4.0]]
        """
        check_rows("w", w, len(self.cohort), or_one=True)
        start = w.expand(len(self._clients), -1) if w.dim() == 1 else w
        carry = {"w": start, "g": torch.zeros_like(start), "n": self.n}
        return self.walk(carry, _add_gradient, epochs=1, batch=FULL_GRADIENT_BATCH, stream="grad")["g"]

    def square_norms(self, w: Tensor) -> Tensor:
        """Mean over each client's samples of ‖∇ loss(w_k; x, y)‖², [C]: the trace of its empirical Fisher information.

        On one CPU thread 1.2 to 1.7 times an epoch of training (cnn6, cnn).

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], start=2.0)
        >>> r.square_norms(r.task.initial).tolist()  # 2² and (−4)²
        [4.0, 16.0]
        """
        sums, counts = self.sweep(w, partial(fisher.square_lengths, loss=self.task.loss), batch=fisher.SQUARE_BATCH)
        return sums / counts

    def class_means(self, w: Tensor) -> Tensor:
        """Mean feature of each class over each client's samples, [C, L, D]; zero where a client lacks the class.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([[0.0, 1.0], [6.0, 7.0]])  # one class, no body: a sample is its own feature
        >>> r.class_means(r.task.initial).tolist()
        [[[0.0, 1.0]], [[6.0, 7.0]]]
        """
        sums, _ = self.sweep(w, _features_by_class, batch=max(1, 10 * FULL_GRADIENT_BATCH // self.net.n_classes))
        return sums / self.class_counts.clamp(min=1)[..., None]

    def cross(self, models: Tensor, who: Tensor, *, share: Share | None = None) -> Tensor:
        """Loss of other clients' models on a client's own data.

        Args:
            models: rows [M, P]. who: for each client, which of these rows, int64 [C, m].
            share: the part of its data that a client judges on.
        Returns:
            losses [C, m].

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0])
        >>> models = torch.tensor([[0.0], [6.0], [2.0]]).double()
        >>> r.cross(models, who=torch.tensor([[1, 2], [0, 2]])).tolist()  # ½ 6², ½ 2²; ½ 6², ½ 4²
        [[18.0, 2.0], [18.0, 8.0]]
        """
        check_rows("who", who, len(self.cohort))
        if wrong := beyond(who, len(models)):
            raise MisuseError(f"who names rows {wrong} of models; there are 0 to {len(models) - 1}")
        columns = [self.losses(models[who[:, j].to(models.device)], share=share) for j in range(who.shape[1])]
        return torch.stack(columns, dim=1)

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the cohort's rows [C, Q] over draws, [Q], whatever the experiment's weighting.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], sizes=[5, 1], clients=[0, 1, 1])
        >>> r.mean(torch.tensor([[0.0], [6.0]]).double()).tolist()  # (0 + 6 + 6) / 3
        [4.0]
        """
        check_rows("mean", rows, len(self.cohort))
        return (self.counts / self.counts.sum()) @ rows

    @property
    def local_steps(self) -> int | None:
        """J where the experiment counts steps; None where it counts epochs.

        >>> from pfl_ops.testing import quadratic_round
        >>> quadratic_round([0.0], steps=3).local_steps
        3
        """
        return self._trainer.length.steps

    def over(self, clients: Tensor) -> "Round":
        """Return the same round for other clients, int64 [M].

        Raises:
            MisuseError: they are no client numbers.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0, 9.0], start=2.0, clients=[0])
        >>> r.over(torch.tensor([1, 2])).train(r.task.initial).tolist()
        [[4.0], [5.5]]
        """
        n = self.task.n_clients
        if not isinstance(clients, Tensor) or clients.dtype != torch.int64 or clients.dim() != 1:
            raise MisuseError(f"over() needs client numbers, int64 [M]; got {kind(clients)}")
        if wrong := beyond(clients, n):
            raise MisuseError(f"over() got clients {wrong}; there are 0 to {n - 1}")
        return self._beside(self._trainer, clients)

    def pooled(self) -> "Round":
        """Return the same round for one client, number 0, that has the training data of all clients.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], sizes=[1, 3], start=2.0)
        >>> r.pooled().n.tolist(), r.pooled().grad(r.task.initial).tolist()  # 2 − (0 + 6 + 6 + 6) / 4
        ([4.0], [[-2.5]])
        """
        self.pooling = True
        return self._beside(self._trainer.as_one, torch.zeros(1, dtype=torch.int64))

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator for the server's own draws in this round; one purpose, the same draws.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0])
        >>> draws = [int(r.rng(purpose).integers(1000)) for purpose in ("pairs", "pairs", "noise")]
        >>> draws[0] == draws[1], draws[0] == draws[2]
        (True, False)
        """
        return rng.generator(self.task.seed, f"method/{self._purpose}/{purpose}", self.t)

    def sent(self, *, up: float | None = None, down: float | None = None) -> None:
        """State the numbers that one client sends and receives in this round; without it P each way.

        Raises:
            MisuseError: `up` or `down` is not one number, 0 or more: the mean over the cohort where clients differ.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([[0.0, 1.0], [6.0, 7.0]])
        >>> r.sent(up=2 * r.layout.size)  # the model and a second vector
        >>> r.traffic
        Traffic(up=4, down=2)
        """
        self.traffic = Traffic(
            self.traffic.up if up is None else scalars("up", up),
            self.traffic.down if down is None else scalars("down", down),
        )

    def note(self, name: str, values: Tensor) -> None:
        """Record one value a client, [C], for the curves `method/<name>/…`; a copy that the method never gets back.

        Notes in a round for evaluation alone (L1, the last L2 of absent clients, `over`) are dropped.

        Raises:
            MisuseError: as for `Notes.add`.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0])
        >>> r.note("drift", torch.tensor([1.0, 2.0]))
        >>> r.notes.keys()["method/drift/mean"]
        1.5
        """
        self.notes.add(name, values)

    @property
    def net(self) -> Net:
        """The network as a function of a flat vector: `net(w [P], x [B, ...]) -> scores [B, L]`.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([[0.0, 1.0]])  # a linear layer of two weights
        >>> r.net(torch.tensor([2.0, 3.0]), torch.tensor([[1.0, 10.0]])).tolist()
        [[32.0]]
        """
        return self.task.net

    def calls(self) -> Counter[str]:
        """Number of walks of each stream so far.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0])
        >>> theta = r.train(r.task.initial, stream="head")
        >>> r.calls()["head"], r.calls()["body"]
        (1, 0)
        """
        return self._calls.copy()

    def rewind(self, calls: Counter[str]) -> None:
        """Count on from `calls`: the next walk gets the batches that it would have got then.

        >>> from pfl_ops.testing import quadratic_round
        >>> r = quadratic_round([0.0, 6.0], sizes=[8, 8])
        >>> before, first = r.calls(), r.train(r.task.initial, batch=1)
        >>> r.rewind(before)
        >>> r.train(r.task.initial, batch=1).equal(first)
        True
        """
        self._calls.clear()
        self._calls.update(calls)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _beside(self, trainer: LocalTraining, clients: Tensor) -> "Round":
        """The same round of other clients, whose walks count on from those of this one."""
        other = Round(
            trainer, self.t, clients,
            weighting=self._weighting, lr_decay=self._decay, purpose=self._purpose, kept=self.kept,
        )  # fmt: skip
        other.lr, other._calls = self.lr, self._calls
        return other

    def _rule(self) -> Rule:
        check_rate("r.lr", self.lr)
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
