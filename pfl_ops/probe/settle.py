"""An execution with nothing left to choose."""

from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pfl_ops.probe.memory import within_share

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.settings import Execution


def settle(
    experiment: "Experiment",
    execution: "Execution",
    data_dir: str | None,
    stages: Collection[str] | None = None,
    gpus: float = 0.0,
) -> "Execution":
    """Return what `execution` leaves open as this machine finds it fastest: way, chunk, workers, threads.

    Args:
        gpus: share of a GPU that those will have for whom it is settled; this process keeps within it meanwhile, and
            gives back what it took. 0: none, or this process has its share already.
    Raises:
        PflOpsError: the experiment can't run like this.
    """
    with within_share(gpus):
        return _settled(experiment, execution, data_dir, stages)


def _settled(
    experiment: "Experiment", execution: "Execution", data_dir: str | None, stages: Collection[str] | None
) -> "Execution":
    with closing(experiment.build(data_dir=data_dir, execution=execution, stages=stages, final=False)) as simulation:
        found = simulation.resolved
    chunk = found.chunk if found.way == "vmap" else None
    chosen: dict[str, Any] = {"way": found.way, "chunk": chunk, "workers": found.workers, "threads": found.threads}
    return execution.model_copy(update=chosen)
