"""Each candidate in a process of its own: what one sets for its whole process (threads, PyTorch's switches, how freed
memory is kept) touches no other, and its peak memory is its own. They take their windows in turns."""

import os
from typing import Any

import torch

from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.settings import Figure
from pfl_ops.bench.stopwatch import Stopwatch, Window
from pfl_ops.federation.execution import choose
from pfl_ops.federation.settings import Execution
from pfl_ops.system import memory
from pfl_ops.system.hosting import HostedProcess


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
        return (
            None if self.candidate.label.way.startswith("jax") else torch.cuda.max_memory_allocated(self.device) / 2**20
        )
