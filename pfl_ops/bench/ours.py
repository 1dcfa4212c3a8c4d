"""Our own candidates: real simulations, asked through the same doors as a run's."""

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property

import torch

from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.case import Case
from pfl_ops.bench.settings import Figure
from pfl_ops.federation.execution import choose
from pfl_ops.federation.execution.timing import timed_anew
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.contract import Models
from pfl_ops.federation.scoring.evaluate import Scores
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record


class EngineCandidate(BenchCandidate):
    """The engine in one of its ways. Training is a cohort's `Round.train`: batch plans, data and optimiser included.

    Args:
        case: data and experiment. label: way, chunk, workers, precision, kernels. threads: None: the engine's choice.
    Raises:
        PflOpsError: the engine refuses this execution.
    """

    def __init__(self, case: Case, label: Label, threads: int | None = None) -> None:
        self.case = case
        asked = {"device": case.device.type, "way": label.way, "workers": label.workers, "threads": threads}
        asked |= {"chunk": label.chunk if label.way == "vmap" else None, "kernels": label.kernels}
        self.execution = Execution.model_validate({**asked, "diverged": "continue"})  # only speed is measured
        self.label = label
        self.simulation = self._simulation(case.settings.clients)
        super().__init__(label, self.simulation.resolved.threads if label.workers == 1 else label.workers)
        self.t = 0

    def _simulation(self, clients: int) -> Simulation:
        experiment = self.case.experiment(self.label.precision, clients)
        return experiment.build(data_dir=self.case.data_dir, execution=self.execution, final=False)

    def train(self) -> torch.Tensor:
        """Rows after J steps of each client, [C, P]; other batches each time."""
        return self._train(self.case.settings.clients, None)

    def _train(self, clients: int, steps: int | None) -> torch.Tensor:
        r = self.simulation.round_at(self.t, torch.arange(clients))
        self.t += 1
        return r.train(self.simulation.task.initial, steps=steps)

    def evaluate(self) -> Scores:
        """Scores of M local models, both views."""
        return self._evaluate(self.case.settings.evaluate_models)

    def _evaluate(self, models: int) -> Scores:
        scorer = self._judge.scorer
        scorer.forget()  # the same models again, but as if for the first time
        return scorer.score([Models(self._models[:models], torch.arange(models))], pooled=True)

    def round(self) -> Record:
        """The next round of a simulation that does not end, with its evaluation of the local view."""
        return next(self._rounds)

    def probe(self, figure: Figure) -> float:
        """Two steps of as many clients as are stacked; the evaluation of as many models. Of workers the whole: sharing
        out a little work costs more than the work."""
        if self.label.workers > 1 or figure == "round":
            return super().probe(figure)
        asked = self.case.settings
        if figure == "train":
            clients, steps = min(self.label.chunk, asked.clients), min(2, self.case.steps)
            self._train(clients, steps)
            return clients * steps / (asked.clients * self.case.steps)
        models = min(self.label.chunk, asked.evaluate_models)
        self._evaluate(models)
        return models / asked.evaluate_models

    def close(self) -> None:
        """End the worker processes."""
        self.simulation.close()
        if "_judge" in self.__dict__:
            self._judge.close()

    @cached_property
    def _judge(self) -> Simulation:
        """The simulation of the clients whose models are evaluated."""
        same = self.case.settings.evaluate_models == self.case.settings.clients
        return self.simulation if same else self._simulation(self.case.settings.evaluate_models)

    @cached_property
    def _models(self) -> torch.Tensor:
        return self.case.models.to(self._judge.task.initial.dtype)

    @cached_property
    def _rounds(self) -> Iterator[Record]:
        rounds = self.simulation.run()
        next(rounds)  # the start
        return rounds


def chosen(case: Case, threads: int | None = None) -> Label:
    """Return what `auto` takes for a run of this case in float32, timed now, whatever is kept of earlier ones."""
    execution = Execution.model_validate({"device": case.device.type, "threads": threads})
    experiment = case.experiment("float32", case.settings.clients).override({"training.rounds": case.settings.rounds})
    with timed_anew(), closing(experiment.build(data_dir=case.data_dir, execution=execution)) as simulation:
        found = simulation.resolved
    usual = found.workers > 1 or found.threads == choose.threads(execution)
    chunk = found.chunk if found.way == "vmap" else 1
    return Label(found.way, "float32", chunk, found.workers, None if usual else found.threads, found.kernels)
