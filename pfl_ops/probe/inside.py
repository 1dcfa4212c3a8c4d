"""The work of a measuring process: it builds the experiment, and runs rounds on request; `hosting` calls it."""

import gc
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfl_ops.errors import PflOpsError
from pfl_ops.probe import memory
from pfl_ops.probe.settle import settle
from pfl_ops.system.hosting import AnswerWithWork
from pfl_ops.system.memory import peak

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.loop.simulate import Simulation
    from pfl_ops.federation.settings import Execution

A_ROUND = 0.7  # seconds; where rounds are longer, they are cut to so many local steps as last this long
ENDLESS = 1_000_000  # rounds
SCORED = 16  # clients whose evaluation shows what memory evaluation takes

Rounds = Generator[float, None, None]
"""Samples trained on, round by round."""


@dataclass(frozen=True)
class ProbedExperiment:
    """The experiment that every process runs, as plain values.

    Attributes:
        experiment: every setting, nested. data_dir: where the data lie. stages: those that are scored; None: all.
    """

    experiment: dict[str, Any]
    data_dir: str | None
    stages: tuple[str, ...] | None


class Trial:
    """The experiment in this process."""

    def __init__(self, measured: ProbedExperiment) -> None:
        from pfl_ops.config.experiment import Experiment

        self.measured, self.experiment = measured, Experiment.model_validate(measured.experiment)
        self.device_before = memory.device_used()
        self.rounds: Rounds | None = None
        self.weighed = False

    # -- what is called from outside ----------------------------------------------------------------------------------

    def resolve(self, execution: "Execution", gpus: float) -> "Execution":
        """The execution as this process alone has it chosen for the whole experiment."""
        self._start_again(execution, gpus)
        return settle(self.experiment, execution, self.measured.data_dir, self.measured.stages)

    def prepare(self, execution: "Execution", gpus: float) -> memory.HeldMemory:
        """Warm up, and see what memory that takes."""
        self._start_again(execution, gpus)
        weigh = bool(gpus) or not self.weighed  # on a GPU within every share anew
        self.rounds = self._train(self._short(execution, weigh), execution)
        self.another()
        self.weighed = True
        return memory.device_held(self.device_before) if gpus else memory.HeldMemory(peak())

    def go(self, seconds: float) -> AnswerWithWork:
        """Samples a second, over rounds that last so long together; it trains on, for the others are still timed."""
        start, seen = time.perf_counter(), 0.0
        while not seen or time.perf_counter() - start < seconds:
            seen += self.another()
        return AnswerWithWork(seen / (time.perf_counter() - start), self.another)

    def stop(self) -> None:
        """Nothing: that a call has come ended the rounds."""

    # -- rounds -------------------------------------------------------------------------------------------------------

    def another(self) -> float:
        """One more round; how many samples it trained on."""
        assert self.rounds is not None
        return next(self.rounds)

    def _start_again(self, execution: "Execution", gpus: float) -> None:
        if self.rounds is not None:
            self.rounds.close()
            self.rounds = None
        gc.collect()
        assert execution.threads is not None
        memory.keep_within(execution.threads, gpus)

    def _build(self, experiment: "Experiment", execution: "Execution") -> "Simulation":
        execution = execution.model_copy(update={"diverged": "continue"})  # only speed and memory are measured
        return experiment.build(
            data_dir=self.measured.data_dir, execution=execution, stages=self.measured.stages, final=False
        )

    def _train(self, experiment: "Experiment", execution: "Execution") -> Rounds:
        with closing(self._build(experiment, execution)) as simulation:
            for record in simulation.run():
                if record.round:
                    yield record.metrics["cost/samples_per_second"] * record.metrics["cost/train_seconds"]

    def _short(self, execution: "Execution", weigh: bool) -> "Experiment":
        """The experiment without an end; one of long rounds with fewer local steps, and without evaluation.

        Args:
            weigh: take all the memory of a trial on the way, in little time: the whole cohort, scored as after the last
                round, with one local step a client.
        """
        scored = min(self.experiment.evaluation.clients or SCORED, SCORED)
        trained = {"training.rounds": 2 if weigh else ENDLESS, "evaluation.every": ENDLESS}
        quick = self._by_steps(1, {**trained, "evaluation.clients": scored})
        with closing(self._build(quick, execution)) as simulation:
            rounds = simulation.run()
            cost = [next(rounds).metrics for _ in range(3)][-1]  # after the start, and a round that warms up
            samples = float(simulation.task.sizes.sum()) * simulation.task.cohort_size / simulation.task.n_clients
        a_step, training = cost["cost/train_seconds"], self.experiment.training
        epochs = training.local_epochs or 1
        steps = training.local_steps or epochs * samples / max(cost["cost/samples_per_second"] * a_step, 1.0)
        endless = {"training.rounds": ENDLESS}
        if steps * a_step <= A_ROUND:
            return self.experiment.override(endless)
        return self._by_steps(max(1, int(A_ROUND / a_step)), {**endless, "evaluation.every": ENDLESS})

    def _by_steps(self, steps: int, more: dict[str, Any]) -> "Experiment":
        """The experiment by local steps, where the method allows it."""
        try:
            return self.experiment.override({"training.local_steps": steps, **more})
        except PflOpsError:
            return self.experiment.override(more)
