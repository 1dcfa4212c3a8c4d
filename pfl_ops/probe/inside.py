"""What a measuring process does: builds the experiment, and runs its rounds when told to."""

import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.memory import out_of_memory, peak
from pfl_ops.probe import memory
from pfl_ops.probe.settle import settle
from pfl_ops.registry import load_plugin

if TYPE_CHECKING:
    from pfl_ops.experiment import Experiment
    from pfl_ops.federation.settings import Execution
    from pfl_ops.federation.simulate import Simulation

A_ROUND = 0.7  # seconds; where rounds are longer, they are cut to so many local steps as last this long
ENDLESS = 1_000_000  # rounds
SCORED = 16  # clients whose evaluation shows what memory evaluation takes

Rounds = Generator[float, None, None]
"""Samples trained on, round by round."""


@dataclass(frozen=True)
class Job:
    """What every process runs, as plain values.

    Attributes:
        experiment: every setting, nested. data_dir: where the data lie. stages: those that are scored; None: all.
        plugins: files of the user's own to load first.
    """

    experiment: dict[str, Any]
    data_dir: str | None
    stages: tuple[str, ...] | None
    plugins: tuple[Path, ...]


def serve(handle: int) -> None:
    """Answer orders, ("done", value) or ("memory" | "error", text) each, until the parent is gone.

    Args:
        handle: file descriptor of this process's end of the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    pipe = Connection(handle)
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    job, trial = orders.get(), None
    while True:
        order, *given = orders.get()
        try:
            trial = trial or Trial(job)
            pipe.send(("done", getattr(trial, order)(*given)))
            while order == "go" and orders.empty():
                trial.another()  # the others are still being timed
        except Exception as error:
            pipe.send(_told(error))


def _listen(pipe: Connection, orders: "queue.SimpleQueue[Any]") -> None:
    """Hand on orders; when the parent is gone, end at once, in the middle of a round too."""
    try:
        while True:
            orders.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)


def _told(error: Exception) -> tuple[str, str]:
    if out_of_memory(error):
        return "memory", " ".join(str(error).split())[:300]  # it says what it is
    return "error", in_a_line(error, 300)


class Trial:
    """The experiment in this process. Its verbs are the orders."""

    def __init__(self, job: Job) -> None:
        for file in job.plugins:
            load_plugin(file)
        from pfl_ops.experiment import Experiment

        self.job, self.experiment = job, Experiment.model_validate(job.experiment)
        self.device_before = memory.device_used()
        self.rounds: Rounds | None = None
        self.weighed = False

    # -- orders -------------------------------------------------------------------------------------------------------

    def resolve(self, execution: "Execution", gpus: float) -> "Execution":
        """The execution as this process alone has it chosen for the whole experiment."""
        self._start_again(execution, gpus)
        return settle(self.experiment, execution, self.job.data_dir, self.job.stages)

    def prepare(self, execution: "Execution", gpus: float) -> memory.Held:
        """Warm up, and see what memory that takes."""
        self._start_again(execution, gpus)
        weigh = bool(gpus) or not self.weighed  # on a GPU within every share anew
        self.rounds = self._train(self._short(execution, weigh), execution)
        self.another()
        self.weighed = True
        return memory.device_held(self.device_before) if gpus else memory.Held(peak())

    def go(self, seconds: float) -> float:
        """Samples a second, over rounds that last so long together."""
        start, seen = time.perf_counter(), 0.0
        while not seen or time.perf_counter() - start < seconds:
            seen += self.another()
        return seen / (time.perf_counter() - start)

    def stop(self) -> None:
        """Nothing: that an order has come ended the rounds."""

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
        return experiment.build(data_dir=self.job.data_dir, execution=execution, stages=self.job.stages, final=False)

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
