"""Jobs: an experiment with a purpose, and the plain values that its process gets."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import check_planned, check_shared, fingerprint
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.registry import Packed, packed_plugins

Purpose: TypeAlias = Literal["trial", "confirmation", "baseline", "test", "repetition", "cell"]
SEALED: tuple[Purpose, ...] = ("trial", "confirmation", "baseline")  # purposes whose jobs never reach test data


@dataclass(frozen=True)
class Payload:
    """A job as its process gets it: plain values, for the process may be on another machine.

    Attributes:
        experiment: every setting, nested. digest: of the experiment, as the driver has it; data_digest: of its data.
        sealed: test data stay closed; scores alone are kept. Else the run ends with the full evaluation.
        metrics: what each report has to hold; (): reports come as time passes.
        stages: those to score; None: all. full_every: rounds between evaluations of every view.
        execution: how to compute. share: what it gets of its machine.
    """

    experiment: dict[str, Any]
    digest: str
    data_digest: str
    execution: Execution
    share: ResourceShare
    sealed: bool = False
    metrics: tuple[str, ...] = ()
    stages: tuple[str, ...] | None = None
    full_every: int = 1

    @property
    def rounds(self) -> int:
        """T, of the whole run."""
        return int(self.experiment["training"]["rounds"])


@dataclass(frozen=True)
class Job:
    """An experiment with a purpose.

    Attributes:
        purpose: what it is run for. name: for messages.
        number: its maker's own. experiment: what is run. payload: what its process gets.
    """

    purpose: Purpose
    name: str
    number: int
    experiment: Experiment = field(repr=False)
    payload: Payload = field(repr=False)

    @classmethod
    def of(
        cls,
        purpose: Purpose,
        name: str,
        number: int,
        experiment: Experiment,
        data_dir: str | None,
        execution: Execution,
        share: ResourceShare,
        metrics: tuple[str, ...] = (),
        stages: tuple[str, ...] | None = None,
        full_every: int = 1,
        planned: str | None = None,
    ) -> Self:
        """A job; those of `SEALED` purposes are sealed.

        Args:
            data_dir: where the driver's data lie.
            execution, share, metrics, stages, full_every: see `Payload`.
            planned: the experiment's digest when the command began; None: any.
        Raises:
            PflOpsError: the data can't be read, or are not those planned; or the job's process would not know the
                experiment's code.
        """
        check_shared(experiment)
        identity = experiment.identity(data_dir)
        digest, of_data, sealed = fingerprint(identity), str(identity["data"]["digest"]), purpose in SEALED
        if planned is not None:
            check_planned(name, digest, planned)
        payload = Payload(experiment.resolved, digest, of_data, execution, share, sealed, metrics, stages, full_every)
        return cls(purpose, name, number, experiment, payload)

    @property
    def digest(self) -> str:
        """SHA-256 of the experiment's identity."""
        return self.payload.digest


@dataclass(frozen=True)
class SharedPaths:
    """Folders and files that all jobs' processes share.

    Attributes:
        home: the work folder, absolute: checkpoints lie there. data_dir: as the driver has it.
        joined: on a cluster, where each machine's own data folder (`PFL_OPS_DATA`) comes first.
        plugins: the user's files, those that this process has loaded.
    """

    home: str
    data_dir: str | None
    joined: bool
    plugins: tuple[Packed, ...] = field(default_factory=packed_plugins)

    @property
    def data_folder(self) -> str | None:
        """The data folder of this machine."""
        return (os.environ.get("PFL_OPS_DATA") if self.joined else None) or self.data_dir
