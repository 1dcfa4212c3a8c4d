"""A job, in its process: the simulation, from the last checkpoint of that very experiment if there is one."""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload, SharedPaths

Work: TypeAlias = Callable[[Payload, SharedPaths], Iterator[Record]]
"""The work of a job's process: a module-level function, since it travels. `simulate` is the real one."""


def simulate(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """Records of the whole run, checkpointed in the work folder; nothing is tracked.

    Raises:
        PflOpsError: this machine's data or code are not the driver's.
        Diverged: training diverged.
    """
    from pfl_ops import runs

    experiment = Experiment.model_validate(payload.experiment)
    check(experiment, payload, place)
    with _in_turn(payload, place):
        yield from runs.simulate(
            experiment,
            home=place.home,
            data_dir=place.data_folder,
            execution=payload.execution,
            sealed=payload.sealed,
            stages=payload.stages,
            final=not payload.sealed,
        )


def _in_turn(payload: Payload, place: SharedPaths) -> AbstractContextManager[object]:
    """Two trials may draw the same point: the second waits, and then reads the first one's checkpoint."""
    if not payload.sealed:
        return nullcontext()
    checkpoints = Path(place.home, "checkpoints")
    checkpoints.mkdir(parents=True, exist_ok=True)
    return FileLock(checkpoints / f".{payload.digest}.lock")


def check(experiment: Experiment, payload: Payload, place: SharedPaths) -> None:
    """Refuse to compute another experiment than the driver has: other data or other code under the same name."""
    from pfl_ops.data.datasets import load

    found = load(experiment.data, data_dir=place.data_folder, sealed=payload.sealed).digest
    if found != payload.data_digest:
        raise PflOpsError(
            f"{experiment.data.name} on {platform.node()} ({place.data_folder or 'the default data folder'}) "
            f"is not the driver's: digest {found[:12]}, expected {payload.data_digest[:12]}"
        )
    if experiment.digest(place.data_folder) != payload.digest:
        raise PflOpsError(
            f"pfl-ops on {platform.node()} is not the driver's: the same settings and data have another digest there; "
            "install the same version, the same partition and weights files, and edit no module that a plug-in imports "
            "while the command runs"
        )
