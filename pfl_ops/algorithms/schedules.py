"""FLIU's γ: the share of its own that a client's model keeps, by its size, the round, or what its model gains."""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from pfl_ops.algorithms.base import Round, Share
from pfl_ops.errors import PflOpsError
from pfl_ops.section import Section


class Schedule(Section, ABC):
    """γ_k of a round's cohort."""

    kind: str

    @property
    def training_share(self) -> Share | None:
        """The part of each client's data that trains its model; None: all of them."""
        return None

    @abstractmethod
    def of_cohort(self, r: Round, theta: Tensor, central: Tensor) -> Tensor:
        """Return γ_k, [C], for the trained models θ_k [C, P] and the new global model Θ [P]."""


class RoundSchedule(Schedule, ABC):
    """γ_k of every client and round, known before the training.

    `schedule(sizes, t, rounds)`: sizes n_k, int64 [N]; t rounds finished, 0 … T − 1; rounds T. Gives float64 [N].

    Raises:
        PflOpsError: a value outside [0, 1], or none at all; the message names schedule, client and value.

    >>> schedule, sizes = Linear(start=0.2, end=0.6), torch.tensor([10, 30])
    >>> [schedule(sizes, t, rounds=5).tolist() for t in (0, 4)]
    [[0.2, 0.2], [0.6, 0.6]]
    """

    def of_cohort(self, r: Round, theta: Tensor, central: Tensor) -> Tensor:
        return self(r.task.sizes, r.t, r.task.rounds)[r.cohort].to(theta)

    def __call__(self, sizes: Tensor, t: int, rounds: int) -> Tensor:
        gamma = torch.as_tensor(self._values(sizes, t / (rounds - 1) if rounds > 1 else 0.0), dtype=torch.float64)
        gamma = gamma.expand(len(sizes))
        wrong = ~((gamma >= 0) & (gamma <= 1))
        if bool(wrong.any()):
            k = int(wrong.nonzero()[0])
            raise PflOpsError(f"gamma schedule '{self.kind}' gives {float(gamma[k]):g} for client {k}, outside [0, 1]")
        return gamma

    @abstractmethod
    def _values(self, sizes: Tensor, s: float) -> Tensor | float:
        """γ, one for all or [N]; s = t / (T − 1) goes from 0 to 1."""


class Fixed(RoundSchedule):
    """γ_k = γ.

    >>> Fixed(value=0.25)(torch.tensor([10, 30]), t=3, rounds=5).tolist()
    [0.25, 0.25]
    """

    kind: Literal["fixed"] = "fixed"
    value: float = Field(0.5, ge=0, le=1, title="γ", description="share of its own, for every client")

    def _values(self, sizes: Tensor, s: float) -> float:
        return self.value


class Adaptive(RoundSchedule):
    """γ_k = 0.9 if n_k > 10 n/K, 0.75 if > 5 n/K, 0.5 if > n/K, 0.25 if > n/(2K), else 0.1; K = N (Eq. 4).

    >>> Adaptive()(torch.tensor([10, 30, 60, 20]), t=0, rounds=5).tolist()  # n/K = 30; 10 is below a half of it
    [0.1, 0.25, 0.5, 0.25]
    """

    kind: Literal["adaptive"] = "adaptive"

    def _values(self, sizes: Tensor, s: float) -> Tensor:
        return adaptive(sizes)


class Range(RoundSchedule):
    """γ_k = low + (γ_adaptive − 0.1) (high − low) / 0.8: the adaptive steps, stretched onto [low, high].

    >>> Range(low=0.0, high=0.8)(torch.tensor([10, 60, 30, 20]), t=0, rounds=5).tolist()  # adaptive less 0.1
    [0.0, 0.4, 0.15, 0.15]
    """

    kind: Literal["range"] = "range"
    low: float = Field(0.1, ge=0, le=1, title="γ_low", description="γ of the smallest clients")
    high: float = Field(0.5, ge=0, le=1, title="γ_high", description="γ of the largest clients")

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        _check_order(self.kind, self.low, self.high)
        return self

    def _values(self, sizes: Tensor, s: float) -> Tensor:
        gamma = self.low + (adaptive(sizes) - 0.1) * ((self.high - self.low) / 0.8)
        return gamma.clamp(max=1.0)  # low + (1 - low) can be 1 + 2e-16


class Linear(RoundSchedule):
    """γ = γ_0 + s (γ_T − γ_0), s = t / (T − 1).

    >>> [float(Linear(start=0.0, end=1.0)(torch.tensor([10]), t, rounds=5)) for t in range(5)]
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    kind: Literal["linear"] = "linear"
    start: float = Field(0.1, ge=0, le=1, title="γ_0", description="γ of the first round")
    end: float = Field(0.9, ge=0, le=1, title="γ_T", description="γ of the last round")

    def _values(self, sizes: Tensor, s: float) -> float:
        return self.start + s * (self.end - self.start)


class Cosine(RoundSchedule):
    """γ = γ_T + (γ_0 − γ_T) (1 + cos πs) / 2, s = t / (T − 1).

    >>> [round(float(Cosine(start=0.0, end=1.0)(torch.tensor([10]), t, rounds=5)), 3) for t in range(5)]
    [0.0, 0.146, 0.5, 0.854, 1.0]
    """

    kind: Literal["cosine"] = "cosine"
    start: float = Field(0.1, ge=0, le=1, title="γ_0", description="γ of the first round")
    end: float = Field(0.9, ge=0, le=1, title="γ_T", description="γ of the last round")

    def _values(self, sizes: Tensor, s: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * s)) / 2


class Exponential(RoundSchedule):
    """γ = γ_0 (γ_T / γ_0)^s, s = t / (T − 1).

    >>> [round(float(Exponential(start=0.0625, end=1.0)(torch.tensor([10]), t, rounds=5)), 6) for t in range(5)]
    [0.0625, 0.125, 0.25, 0.5, 1.0]
    """

    kind: Literal["exponential"] = "exponential"
    start: float = Field(0.1, gt=0, le=1, title="γ_0", description="γ of the first round")
    end: float = Field(0.9, gt=0, le=1, title="γ_T", description="γ of the last round")

    def _values(self, sizes: Tensor, s: float) -> float:
        return self.start ** (1 - s) * self.end**s


class SizePower(RoundSchedule):
    """γ_k = clip(a (n_k K / n)^b, low, high).

    >>> SizePower(scale=0.5, power=2.0)(torch.tensor([10, 20, 30]), t=0, rounds=5).tolist()  # ½ (½)², ½ 1², ½ 1.5² > 1
    [0.125, 0.5, 1.0]
    """

    kind: Literal["size_power"] = "size_power"
    scale: float = Field(0.25, gt=0, title="a", description="γ of a client of average size, before the clip")
    power: float = Field(0.5, title="b", description="how γ grows with the client's size; 0: not at all")
    low: float = Field(0.0, ge=0, le=1, title="γ_low", description="no γ is lower")
    high: float = Field(1.0, ge=0, le=1, title="γ_high", description="no γ is higher")

    @model_validator(mode="after")
    def _ordered(self) -> "SizePower":
        _check_order(self.kind, self.low, self.high)
        return self

    def _values(self, sizes: Tensor, s: float) -> Tensor:
        relative = sizes.double() * len(sizes) / int(sizes.sum())
        return (self.scale * relative**self.power).clamp(self.low, self.high)


class Feedback(Schedule):
    """γ_k = clip(a + b g_k, 0, 1), with the gain g_k of its own over the global model on data that it holds out.

        g_k = (F_k(Θ) − F_k(θ_k)) / (F_k(Θ) + F_k(θ_k))

    F_k is the mean loss on the held-out share of the client's own training data, the same in every round; θ_k was
    trained on the rest. g_k goes from −1 (Θ has no loss) over 0 (both are as good) to 1 (θ_k has none). A client with
    a single sample holds none out, and neither model has a loss at 0 / 0: g_k = 0.

    Noted: gain, g_k.

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0], sizes=[2, 2], start=2.0)  # F = ½ (w − 0)² and ½ (w − 6)²
    >>> theta, central = torch.tensor([[1.0], [6.0]]), torch.tensor([3.0])
    >>> [round(float(g), 3) for g in Feedback(base=0.2, slope=0.5).of_cohort(r, theta, central)]  # g = 0.8, 1
    [0.6, 0.7]
    """

    kind: Literal["feedback"] = "feedback"
    base: float = Field(0.3, ge=0, le=1, title="a", description="γ where a client's own and the global model are equal")
    slope: float = Field(0.5, title="b", description="how γ grows with the gain of its own model over the global one")
    held_share: float = Field(
        0.1, gt=0, lt=1, title="h", description="share of a client's training data that it judges on; the rest trains"
    )

    @property
    def training_share(self) -> Share:
        return Share(0, 1 - self.held_share)

    def of_cohort(self, r: Round, theta: Tensor, central: Tensor) -> Tensor:
        held = Share(1 - self.held_share, 1)
        own, shared = r.losses(theta, share=held), r.losses(central, share=held)
        gain = ((shared - own) / (shared + own)).where(own != math.inf, -1.0).where(shared != math.inf, 1.0)
        gain = gain.where(~(own.isnan() | (own == shared)), 0.0)  # NaN: nothing is held out; equal: also 0 / 0
        r.note("gain", gain)
        return (self.base + self.slope * gain).clamp(0, 1)


Gamma = Annotated[
    Fixed | Adaptive | Range | Linear | Cosine | Exponential | SizePower | Feedback, Field(discriminator="kind")
]
"""Any of the schedules, told apart by `kind`."""


def adaptive(sizes: Tensor) -> Tensor:
    """Eq. 4 for sizes, int64 [N], in integers and strictly (n_k K > 10 n), so that equal sizes give 0.25; float64 [N].

    >>> adaptive(torch.tensor([7, 7])).tolist(), adaptive(torch.tensor([1] * 19 + [81])).tolist()[-1]  # n/K = 5
    ([0.25, 0.25], 0.9)
    """
    n, k = int(sizes.sum()), len(sizes)
    gamma = torch.full((k,), 0.1, dtype=torch.float64, device=sizes.device)
    for above, value in ((1, 0.25), (2, 0.5), (10, 0.75), (20, 0.9)):  # in halves of n/K
        gamma[2 * sizes * k > above * n] = value
    return gamma


def _check_order(kind: str, low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"gamma schedule '{kind}' needs low <= high, got {low:g} and {high:g}")
