"""The experiment's optimisers, as functions of rows.

`Leaves` is the fast one: parameters as contiguous leaves that PyTorch's fused kernels update in place. `Rowwise` is
the pure one, for steps of a method's own: new rows out, nothing written. Both compute the same numbers, row by row:

    sgd   d = g + weight_decay w;  m = momentum m + d (m = d at the first step);  w ← w − η m
    adam  d = g + weight_decay w;  m = β₁ m + (1 − β₁) d;  v = β₂ v + (1 − β₂) d²;
          w ← w − η (m / (1 − β₁ʲ)) / (√(v / (1 − β₂ʲ)) + ε),  β₁ = 0.9, β₂ = 0.999, ε = 1e−8
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Rule:
    """An optimiser's constants. `lr` is the round's learning rate η."""

    kind: Literal["sgd", "adam"]
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def name(self) -> str:
        """sgd, momentum or adam: what a step keeps from the ones before decides its cost."""
        return "momentum" if self.kind == "sgd" and self.momentum else self.kind

    @property
    def plain(self) -> bool:
        """True if a step adds a multiple of the gradient, and of the parameter for weight decay."""
        return self.kind == "sgd" and not self.momentum


@dataclass
class Moments:
    """Moments of leaves that kernels update in place, [c, ...] each, and the steps that they have taken.

    Attributes:
        first: momentum, or Adam's m. second: Adam's v. Empty where the optimiser has none.
    """

    first: list[Tensor]
    second: list[Tensor]
    taken: int = 0

    @classmethod
    def of(cls, rule: Rule, like: Sequence[Tensor]) -> "Moments":
        """Return the moments before the first step."""
        first = [] if rule.plain else [torch.zeros_like(w) for w in like]
        return cls(first, [torch.zeros_like(w) for w in like] if rule.kind == "adam" else [])

    def shrink(self, rows: int) -> None:
        """Only the first `rows` rows go on."""
        self.first = [m[:rows] for m in self.first]
        self.second = [v[:rows] for v in self.second]


class Leaves:
    """Moments of contiguous leaves, updated in place with their parameters.

    Args:
        rule: the optimiser.
        like: the leaves, [c, ...] each; a prefix of rows may go on alone (`shrink`).
    """

    def __init__(self, rule: Rule, like: list[Tensor]) -> None:
        self.rule, self.moments = rule, Moments.of(rule, like)
        self.count = [torch.zeros((), dtype=torch.float32, device=w.device) for w in like]

    @torch.no_grad()
    def step(self, leaves: list[Tensor], grads: list[Tensor]) -> None:
        """Update `leaves` in place; `grads` may be overwritten."""
        rule, moments = self.rule, self.moments
        if rule.kind == "adam":
            adam(
                leaves, grads, moments.first, moments.second, [], self.count, fused=True, foreach=False,
                amsgrad=False, beta1=BETA_1, beta2=BETA_2, lr=rule.lr, weight_decay=rule.weight_decay, eps=EPS,
                maximize=False,
            )  # fmt: skip
        else:
            momenta: list[Tensor | None] = [*moments.first] or [None] * len(leaves)
            sgd(
                leaves, grads, momenta, fused=True, foreach=False, weight_decay=rule.weight_decay,
                momentum=rule.momentum, lr=rule.lr, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip

    def shrink(self, rows: int) -> None:
        """Only the first `rows` rows go on."""
        self.moments.shrink(rows)


@dataclass
class Rowwise:
    """Moments of one carry of a walk; `step` is pure in the rows it is given."""

    rule: Rule
    count: int = 0
    moments: tuple[Tensor, Tensor] | None = None

    def step(self, w: Tensor, g: Tensor) -> Tensor:
        """New rows from rows `w` and gradients `g`, both [c, Q]; rows that ended (a suffix) drop out of the moments."""
        self.count += 1
        if self.moments is None:
            zero = torch.zeros_like(g)
            self.moments = zero, zero
        first, second = (m[: len(w)] for m in self.moments)
        w, first, second = after(self.rule, w, g, first, second, self.count)
        self.moments = first, second
        return w


def after(
    rule: Rule, w: Tensor, g: Tensor, first: Tensor, second: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step: new rows, and the moments after it.

    Args:
        w, g, first, second: [c, Q]; both moments 0 before the first step. SGD has no second moment, and without
            momentum no first one.
        count: of this step, from 1; one number, or one a row [c, 1].
    """
    d = g + rule.weight_decay * w if rule.weight_decay else g
    if rule.kind == "sgd":
        if rule.momentum:
            first = d = rule.momentum * first + d
        return w - rule.lr * d, first, second
    first = BETA_1 * first + (1 - BETA_1) * d
    second = BETA_2 * second + (1 - BETA_2) * d * d
    m, v = first / (1 - BETA_1**count), second / (1 - BETA_2**count)
    return w - rule.lr * m / (v.sqrt() + EPS), first, second
