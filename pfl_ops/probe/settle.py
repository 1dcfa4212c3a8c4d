"""An execution with nothing left to choose."""

from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.settings import Execution


def settle(
    experiment: "Experiment", execution: "Execution", data_dir: str | None, stages: Collection[str] | None = None
) -> "Execution":
    """Return what `execution` leaves open as this machine finds it fastest: way, chunk, workers, threads.

    Raises:
        PflOpsError: the experiment can't run like this.
    """
    with closing(experiment.build(data_dir=data_dir, execution=execution, stages=stages, final=False)) as simulation:
        found = simulation.resolved
    chunk = found.chunk if found.way == "vmap" else None
    chosen: dict[str, Any] = {"way": found.way, "chunk": chunk, "workers": found.workers, "threads": found.threads}
    return execution.model_copy(update=chosen)
