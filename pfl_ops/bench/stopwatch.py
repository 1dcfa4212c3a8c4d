"""Timing one candidate, in its process."""

import math
import time
from typing import NamedTuple

import torch

from pfl_ops.bench.candidate import BenchCandidate
from pfl_ops.bench.peak import wait
from pfl_ops.bench.settings import Figure

TRIAL = 0.05  # seconds of a trial, at least


class Window(NamedTuple):
    """Repetitions of the work in a window, and the time that they take, s."""

    calls: int
    seconds: float


class Stopwatch:
    """Times a candidate's figures.

    Args:
        candidate: what is timed. device: where it computes.
    """

    def __init__(self, candidate: BenchCandidate, device: torch.device) -> None:
        self.candidate, self.device = candidate, device

    def trial(self, figure: Figure) -> float:
        """Roughly how often a second the figure's work could be done: the better of two goes after a first one.

        Not enough memory: 0.
        """
        try:
            self._go(figure, 0.0)
            return max(self._go(figure, TRIAL), self._go(figure, TRIAL))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 0.0

    def warm(self, figure: Figure, least: float) -> Window:
        """Pay for what is done once, and find how many calls fill `least` seconds."""
        took = self.seconds(figure, 1)
        if took < 4 * least:  # the first call pays for more than itself
            took = self.seconds(figure, 1)
        calls = max(1, math.ceil(least / took))
        return Window(calls, calls * took)

    def seconds(self, figure: Figure, calls: int) -> float:
        """Return the time that so many calls take."""
        work = getattr(self.candidate, figure)
        wait(self.device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait(self.device)
        return time.perf_counter() - start

    def _go(self, figure: Figure, seconds: float) -> float:
        share, took = 0.0, 0.0
        while not took or took < seconds:
            wait(self.device)
            start = time.perf_counter()
            share += self.candidate.probe(figure)
            wait(self.device)
            took += time.perf_counter() - start
        return share / took
