"""The measurements of a candidate's windows, and their summary."""

import statistics
from dataclasses import dataclass, field

from pfl_ops.bench.process import Entrant, Window
from pfl_ops.bench.settings import Figure

ONCE = Window(1, 0.0)


@dataclass(frozen=True)
class Series:
    """Repeated measurements.

    Attributes:
        values: units a second, one a repeat.
        given_up: it is the one rough value of a candidate that was far behind.
    """

    values: tuple[float, ...]
    given_up: bool = False

    @property
    def n(self) -> int:
        """Number of measurements."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def over(self, other: "Series") -> float:
        """Ratio of speeds: the median of the ratios within one repeat, whose noise hits both alike.

        A series that was given up has no repeats; its one value is held against the other's median.
        """
        if self.given_up or other.given_up:
            return self.median / other.median
        return statistics.median(a / b for a, b in zip(self.values, other.values, strict=True))


@dataclass
class Timed:
    """A candidate's part in one figure.

    Attributes:
        amount: units of the figure's work. window: how often a window repeats it, and how long it should take.
        values: units a second, one a window.
    """

    candidate: Entrant
    figure: Figure
    amount: float
    window: Window = ONCE
    values: list[float] = field(default_factory=list)

    def warm(self, least: float) -> None:
        """Pay for what is done once, and find a window of `least` seconds."""
        self.window = self.candidate.warm(self.figure, least)

    def measure(self) -> None:
        """Take one window."""
        calls = self.window.calls
        self.values.append(calls * self.amount / self.candidate.seconds(self.figure, calls))
