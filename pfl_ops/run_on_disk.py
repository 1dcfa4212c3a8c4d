"""A run of this work folder: the source of its result, whose models are read again from the checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_ops import tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.fields import Tree
from pfl_ops.config.identity import code_line, differing_code, fingerprint
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.results import Result

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from pfl_ops.federation.loop.simulate import Simulation


@dataclass(frozen=True)
class RunOnDisk:
    """A run on disk. Its models are read again from its checkpoint: a result that is kept holds none in memory.

    Attributes:
        identity: of the experiment when it was run; {}: not known.
    """

    experiment: Experiment
    rounds: "pd.DataFrame"
    clients: "pd.DataFrame"
    folder: Path
    data_dir: str | None = None
    identity: Tree = field(default_factory=dict, repr=False)

    def result(self, final: Mapping[str, float], tags: Mapping[str, str], **about: Any) -> Result:
        """Return the run as a finished one; `final`: its last full evaluation, `about`: further attributes."""
        columns = ((str(key), column.dropna()) for key, column in self.rounds.items())
        last = {key: float(column.iloc[-1]) for key, column in columns if len(column)}
        params = {path: str(value) for path, value in self.experiment.flat.items()}
        tags = {tag_names.OWN_STAGE: self.experiment.algorithm.own_stage, **tags}
        return Result(params, {**last, **final}, tags, self.rounds, self, **about)

    def global_model(self) -> "dict[str, Tensor] | None":
        return self.simulation().global_model()

    def model(self, client: int) -> "dict[str, Tensor]":
        import torch

        simulation = self.simulation()
        n = simulation.task.n_clients
        if not 0 <= client < n:
            raise PflOpsError(f"there is no client {client}; clients are 0 to {n - 1}")
        models = simulation.personal_models(torch.tensor([client]))
        if models is None:
            raise PflOpsError(f"{self.experiment.algorithm.name} keeps no models of clients; take global_model()")
        return simulation.named(models)

    def simulation(self) -> "Simulation":
        """Return the finished simulation, read from the checkpoint.

        Raises:
            PflOpsError: the checkpoint was removed, is damaged, or is another computation's since; code or data have
                changed since.
        """
        self._check_unchanged()
        simulation = self.experiment.build(data_dir=self.data_dir, folder=self.folder)
        if not simulation.read:
            raise PflOpsError(f"the run is not in {self.folder} any more; the same run() computes it again")
        last = {key: value for key, value in simulation.records[-1].metrics.items() if not math.isnan(value)}
        if last != self.rounds.iloc[-1].dropna().to_dict():
            raise PflOpsError(f"the run in {self.folder} was computed anew since; the same run() reads it")
        for _ in simulation.run():
            pass
        return simulation

    def _check_unchanged(self) -> None:
        """Refuse code or data that differ from those of the run: models of the checkpoint need them."""
        if not self.identity:
            return
        try:
            now = self.experiment.identity(self.data_dir)
            if fingerprint(now) == fingerprint(self.identity):
                return
            parts = differing_code(code_line(now), code_line(self.identity))
            changed = f"the code of its {parts}" if parts else "a file that it reads, such as its data,"
        except PflOpsError as error:  # the code that is registered now lacks a setting, or a file is gone
            changed = f"its code or a file that it reads ({in_a_line(error)})"
        raise PflOpsError(
            f"{changed} has changed since the run, and its models can be read with the former alone: bring it back, or "
            "run() the experiment again; MLflow keeps the models of the former run"
        )
