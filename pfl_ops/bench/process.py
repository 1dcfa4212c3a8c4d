"""Each candidate in a process of its own: what one sets for its whole process (threads, PyTorch's switches, how freed
memory is kept) touches no other, and its peak memory is its own. They take their windows in turns."""

import math
import os
import time
from typing import Any, NamedTuple

import torch

from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.peak import wait
from pfl_ops.bench.settings import Figure
from pfl_ops.federation.execution import choose
from pfl_ops.federation.settings import Execution
from pfl_ops.system import memory
from pfl_ops.system.hosting import HostedProcess

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


class Entrant:
    """A candidate that works in a process of its own.

    Args:
        case: what it works on. label: which. threads: of it; None: its own default.
    Attributes:
        figures: what it has a part in. count: threads with which it computes, its workers together.
    Raises:
        PflOpsError: the engine refuses this execution, or JAX this network; or the process died.
    """

    def __init__(self, case: Case, label: Label, threads: int | None) -> None:
        self.label = label
        settings = case.settings.model_copy(update={"steps": case.steps})
        of_case = (settings, case.model, case.batch, case.data_dir)
        self._process = HostedProcess("pfl_ops.bench.process.TimedCandidate", of_case, label, threads)
        try:
            self.figures: tuple[Figure, ...]
            self.figures, self.count = self._process.call("about")
        except BaseException:
            self.close()
            raise

    def trial(self, figure: Figure) -> float:
        """As `Stopwatch.trial`."""
        return float(self._process.call("trial", figure))

    def warm(self, figure: Figure, least: float) -> Window:
        """As `Stopwatch.warm`."""
        return Window(*self._process.call("warm", figure, least))

    def seconds(self, figure: Figure, calls: int) -> float:
        """As `Stopwatch.seconds`."""
        return float(self._process.call("seconds", figure, calls))

    def memory_mib(self) -> float | None:
        """MiB at the peak so far: of a GPU what PyTorch allocated there (None: it is not PyTorch that works), else of
        the process, libraries included, and its workers, as `memory.peak` has it."""
        found: float | None = self._process.call("memory")
        return found

    def close(self) -> None:
        """End the process; its workers end with it."""
        self._process.kill()


def make(case: Case, label: Label, threads: int | None) -> BenchCandidate:
    """The candidate of that name.

    Raises:
        PflOpsError: the engine refuses this execution, or JAX this network.
    """
    if label.way == "plain":
        from pfl_ops.bench.plain import PlainLoop

        return PlainLoop(case, threads)
    if label.way in ("jax", "jax-vmap"):
        count = choose.threads(Execution(threads=threads))
        os.environ["NPROC"] = str(count)  # XLA's threads, read when JAX starts
        from pfl_ops.bench.jax_loop import JaxScan  # the extra `peers`

        return JaxScan(case, vmapped=label.way == "jax-vmap", threads=count)
    from pfl_ops.bench.ours import EngineCandidate

    return EngineCandidate(case, label, label.threads or threads)


class TimedCandidate(Stopwatch):
    """A candidate and its stopwatch, in the candidate's process."""

    def __init__(self, of_case: tuple[Any, ...], label: Label, threads: int | None) -> None:
        case = Case(*of_case)
        super().__init__(make(case, label, threads), case.device)

    def about(self) -> tuple[tuple[Figure, ...], int]:
        """The parts of the candidate, and its threads."""
        return self.candidate.figures, self.candidate.threads

    def memory(self) -> float | None:
        """See `Entrant.memory_mib`."""
        if self.device.type != "cuda":
            return memory.peak() / 2**20
        is_jax = self.candidate.label.way.startswith("jax")
        return None if is_jax else torch.cuda.max_memory_allocated(self.device) / 2**20
