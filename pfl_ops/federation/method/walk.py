"""A walk of clients through their batches: its length, the keys of its draws, and the mean loss seen on the way."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from pfl_ops.federation.method.contract import Share

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
    others: Tensor | float = 0.0  # sum over the other streams: is it finite?
    samples: int = 0
    by_stream: dict[str, int] = field(default_factory=dict)

    def add(self, stream: str, losses: Tensor, samples: int) -> None:
        self.by_stream[stream] = self.by_stream.get(stream, 0) + samples
        if stream == "":
            self.total = self.total + losses.double()  # float64: who adds what first must not show
            self.samples += samples
        else:
            self.others = self.others + losses.double()

    def clear(self) -> None:
        """Start a new round."""
        self.total, self.others, self.samples, self.by_stream = 0.0, 0.0, 0, {}

    @property
    def mean(self) -> float | None:
        return float(self.total) / self.samples if self.samples else None

    @property
    def finite(self) -> bool:
        """True if every loss of the round is, of all streams."""
        return math.isfinite(float(self.total)) and math.isfinite(float(self.others))
