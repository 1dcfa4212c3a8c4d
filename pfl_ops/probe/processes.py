"""Processes that each run real rounds of an experiment, timed together.

Each is a fresh interpreter that builds the experiment as a tuning trial does: no test data, nothing written. They start
each measurement together and train on until the last one has its figure, so that they truly compete. They end with
the process that started them, however that ends.
"""

import os
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pfl_ops.errors import PflOpsError
from pfl_ops.probe.inside import ProbedExperiment
from pfl_ops.probe.memory import HeldMemory
from pfl_ops.system.hosting import HostedProcess, OutOfMemory, answers

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.settings import Execution

SECONDS = 2.0  # of each measurement, once all are warm
PATIENCE = 300.0  # seconds without an answer


class ProbeOutOfMemory(PflOpsError):
    """The processes did not fit into memory together."""


class Speed(NamedTuple):
    """The rates that so many processes reached together.

    Attributes:
        rate: samples trained a second by all of them, evaluation included where rounds are short.
        peak: bytes of memory of the largest at its peak: on the device, CUDA's own included, or of the process.
        room: bytes of the device that were free before; None: a CPU.
    """

    rate: float
    peak: int
    room: int | None


class Probe:
    """Processes that run an experiment for a moment; to be used within `with`.

    Args:
        experiment: scored on validation data, as a trial is.
        processes: how many to start; they import and wait, and only those that are asked compute.
        data_dir: where the data lie. stages: those that are scored; None: all.
    Raises:
        PflOpsError: the experiment would open test data.
    """

    def __init__(
        self, experiment: "Experiment", processes: int, *, data_dir: str | None, stages: Collection[str] | None = None
    ) -> None:
        if experiment.evaluation.split != "validation":
            raise PflOpsError("measured as a trial is, on evaluation.split=validation; test data stay closed")
        stages = None if stages is None else tuple(stages)
        measured = ProbedExperiment(experiment.resolved, data_dir, stages)
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # one GPU is enough to learn from
        self._beside = 0
        self._processes: list[HostedProcess] = []
        try:
            for _ in range(processes):
                trial = HostedProcess(
                    "pfl_ops.probe.inside.Trial", measured, environment={"CUDA_VISIBLE_DEVICES": first}
                )
                self._processes.append(trial)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, whatever they do at the moment."""
        for process in self._processes:
            process.kill()
        self._processes = []

    def resolve(self, execution: "Execution", gpus: float = 0.0) -> "Execution":
        """The execution with nothing left to choose; what has to be timed for it, one process times alone.

        Args:
            execution: its threads must be given. gpus: share of a GPU that the process keeps within; 0: none.
        Raises:
            ProbeOutOfMemory: it does not fit. PflOpsError: the experiment can't run like this.
        """
        [found] = self._ask(1, "resolve", execution, gpus)
        return found

    def speed(self, count: int, execution: "Execution", gpus: float = 0.0, seconds: float = SECONDS) -> Speed:
        """Train in `count` processes at once; in one before in several, or CUDA's own memory is not counted.

        Args:
            execution: of each, with its threads. gpus: share of a GPU that each keeps within; 0: none.
            seconds: how long, at least.
        Raises:
            ProbeOutOfMemory: they do not fit into memory; after that this probe can only be closed.
        """
        held: list[HeldMemory] = self._ask(count, "prepare", execution, gpus)
        if count == 1:
            self._beside = held[0].beside
        rates = self._ask(count, "go", seconds)
        self._ask(count, "stop")
        return Speed(sum(rates), max(h.peak for h in held) + self._beside, held[0].room)

    def _ask(self, count: int, *order: Any) -> list[Any]:
        """Send a request to the first `count` processes at once; return their answers."""
        asked = self._processes[:count]
        for process in asked:
            process.begin(*order)
        try:
            return answers(asked, PATIENCE)
        except OutOfMemory as error:
            raise ProbeOutOfMemory(str(error)) from None
