"""A machine whose speed is known: time passes only where a step takes it."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from pfl_ops.federation.execution import timing
from pfl_ops.federation.execution.timing import Candidate, Go

Key = tuple[int | None, int]
"""Stack and threads."""


class Machine:
    """Makes candidates ready whose rates stand in a table, and notes which it was asked for.

    Args:
        rates: samples a second by (stack, threads), or by stack alone for one thread; 0: not enough memory.
        batch: samples that a step shows to a client. first: seconds that a candidate's first step takes longer.
        bfloat16: how many times as fast that is as float32.
        waits: share of the time in which this process waits for a core.
    """

    def __init__(
        self, rates: Mapping[Key | int | None, float], *, batch: int = 50, first: float = 0.0, bfloat16: float = 0.5,
        waits: float = 0.0,
    ) -> None:  # fmt: skip
        self.rates = {key if isinstance(key, tuple) else (key, 1): rate for key, rate in rates.items()}
        self.batch, self.first, self.bfloat16, self.waits = batch, first, bfloat16, waits
        self.now = self.own = 0.0
        self.asked: list[Key] = []
        self.readings: dict[Candidate, list[int]] = {}

    def prepare(self, candidate: Candidate) -> Go:
        self.asked.append(candidate[:2])
        steps_of = self.readings.setdefault(candidate, [])

        def go(steps: int) -> int:
            rate = self.rates[candidate[:2]] * (self.bfloat16 if candidate.precision == "bfloat16" else 1)
            if not rate:
                raise timing.torch.OutOfMemoryError("out of memory")
            seen = steps * (candidate.stack or 1) * self.batch
            self.rest(seen / rate + (0 if steps_of else self.first))
            steps_of.append(steps)
            return seen

        return go

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.own += seconds * (1 - self.waits)

    def use(self, monkeypatch: pytest.MonkeyPatch, scaling: float = 2.0) -> "Machine":
        """Make it the machine that tests run on."""
        clock = SimpleNamespace(perf_counter=lambda: self.now, thread_time=lambda: self.own, time=lambda: self.now)
        monkeypatch.setattr(timing, "time", clock)
        monkeypatch.setattr(timing.cores, "scaling", lambda count, seconds: min(scaling, count))
        monkeypatch.setattr(timing.cores, "waited", lambda: self.now - self.own)
        return self
