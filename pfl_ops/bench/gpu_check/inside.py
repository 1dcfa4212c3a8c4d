"""Checks that run in a process of their own, so that its peak of memory is theirs; `hosting` calls them."""

from collections.abc import Iterator
from typing import Any

import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.loop.estimate import LIBRARIES_MIB, estimate
from pfl_ops.federation.settings import Device, Execution, StatePlace
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.probe.memory import keep_within
from pfl_ops.system import memory


class Greedy:
    """A process that may take a share of the first GPU.

    Args:
        share: of its memory.
    """

    def __init__(self, share: float) -> None:
        keep_within(1, share)

    def take(self, share: float) -> int:
        """Take so much of the GPU's memory, and return the bytes.

        Raises:
            torch.OutOfMemoryError: that is more than this process may take.
        """
        size = int(share * torch.cuda.get_device_properties(0).total_memory)
        return len(torch.empty(size, dtype=torch.uint8, device="cuda"))


class Rounds:
    """An experiment whose rounds are run one by one.

    Args:
        experiment: every setting, nested. device: where. data_dir: folder of the data. state: where clients' rows are.
    """

    def __init__(self, experiment: dict[str, Any], device: Device, data_dir: str, state: StatePlace) -> None:
        e = Experiment.model_validate(experiment)
        execution = Execution(device=device, workers=1, diverged="continue", state=state)
        self.simulation = e.build(data_dir=data_dir, execution=execution)
        self._records: Iterator[Record] = self.simulation.run()
        self.device = device

    def about(self) -> dict[str, Any]:
        """Return the execution that was chosen, as text, and the number of rounds."""
        r, training = self.simulation.resolved, self.simulation.training
        execution = f"{r.way}, stacks of {r.chunk}, {r.workers} worker(s), {r.threads} thread(s)"
        return {"execution": execution, "rounds": training.rounds}

    def estimate(self) -> dict[str, float]:
        """Return the estimate of the whole run: seconds, and MiB without the libraries' own."""
        found = estimate(self.simulation)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return {"seconds": found.seconds, "mib": found.memory_mib - LIBRARIES_MIB}

    def next(self) -> dict[str, float]:
        """Run the next round, the start first; return its metrics."""
        return next(self._records).metrics

    def peaks(self) -> dict[str, float]:
        """Return the peaks of memory so far, MiB: of the process, and of the device."""
        found = {"process": memory.peak() / 2**20}
        if self.device == "cuda":
            found["device"] = torch.cuda.max_memory_allocated() / 2**20
        return found
