"""The resources that were asked for a trial: numbers, "auto", or none; for "auto" a packing is measured."""

import math
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import torch

from pfl_ops.errors import PflOpsError, echo
from pfl_ops.federation.settings import Device, Execution
from pfl_ops.jobs.resources import LEAST_SHARE, ResourceShare, check_address, is_running, share
from pfl_ops.system import cores
from pfl_ops.tuning.resources.packing import Kind, PackingLayout, cpu_layouts, gpu_layouts

Auto: TypeAlias = Literal["auto"]
Amount: TypeAlias = float | Auto | None
"""So many CPUs or GPUs, what a measurement finds best, or nothing said."""

CPUS, GPUS = "--cpus-per", "--gpus-per"


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that each trial shall get.

    Attributes:
        cpus: CPUs, above 0. gpus: share of a GPU (0.25: four trials on each), at most 1. Auto: measured; that of a
            GPU where there is none, and that of CPUs, is a packing of the CPU's cores.
        concurrency: trials at once; None: as many as fit.
        unit: the word for a trial in the flags: "cell", of `reproduce`.
    """

    cpus: Amount = None
    gpus: Amount = None
    concurrency: int | None = None
    unit: str = "trial"

    @classmethod
    def of(cls, cpus: object = None, gpus: object = None, concurrency: int | None = None, unit: str = "trial") -> Self:
        """From numbers or text.

        Raises:
            PflOpsError: none of what is allowed, or a contradiction.
        """
        asked = cls(_amount(CPUS, unit, cpus), _amount(GPUS, unit, gpus), concurrency, unit)
        if concurrency is not None and concurrency < 1:
            raise PflOpsError(f"--concurrency must be >= 1, got {concurrency}")
        if asked.cpus == "auto" and isinstance(asked.gpus, float) and asked.gpus:
            raise PflOpsError(
                f"{CPUS}-{unit} auto shares out the cores among {unit}s on the CPU; with {GPUS}-{unit} "
                f"{asked.gpus:g} give a number"
            )
        return asked

    @property
    def number_given(self) -> bool:
        """True if a number decides."""
        return isinstance(self.cpus, float) or isinstance(self.gpus, float)

    @property
    def cpus_given(self) -> float | None:
        """CPUs of a trial, if a number was asked for."""
        return self.cpus if isinstance(self.cpus, float) else None

    def share(self, trials: int, device: Device) -> ResourceShare:
        """Return the share of each trial for which no packing is measured, see `resources.share`."""
        gpus = self.gpus if isinstance(self.gpus, float) else None
        return share(self.cpus_given, gpus, self.concurrency, trials, device, self.unit)

    def at_once(self, trials: int, device: Device) -> int:
        """Return how many trials run at once: as many as fit on the cores and GPUs, and no more than were asked for."""
        return self._estimated_share(trials, device).concurrency

    def estimated(self, execution: Execution) -> Execution:
        """Return the execution with which the time of a trial is estimated: with the threads of a trial's share.

        It is on the CPU if the share has no GPU.
        """
        try:
            part = self._estimated_share(1, execution.device)
        except PflOpsError:  # a cluster that is not joined yet may have more than this machine
            threads = execution.threads or max(1, int(self.cpus_given or 1.0))
            return execution.model_copy(update={"threads": threads})
        device = "cpu" if execution.device == "auto" and not part.gpus else execution.device
        return execution.model_copy(update={"device": device, "threads": execution.threads or part.threads})

    def _estimated_share(self, trials: int, device: Device) -> ResourceShare:
        """Return `share`, also for cuda where there is none: the estimate itself has the error."""
        return self.share(trials, "auto" if device == "cuda" else device)

    def kind(self, device: Device, address: str | None) -> Kind | None:
        """The kind of packing that has to be measured: one of a GPU, of the CPU's cores, or None.

        Where nothing is said, a GPU of this machine is measured, and nothing else: on a CPU, one core a trial is
        nearly always the best, and on a cluster a measurement says little about its other machines.

        Raises:
            PflOpsError: a GPU of a cluster, and this machine has none to measure on.
        """
        gpu = device != "cpu" and torch.cuda.is_available()
        if self.gpus == "auto" and not gpu and address and device != "cpu":
            raise PflOpsError(
                f"{GPUS}-{self.unit} auto measures on this machine, which has no GPU; give a share, such as 0.25"
            )
        if gpu and (self.gpus == "auto" or (self.gpus is None and not address)):
            return "gpu"
        return "cpu" if self.cpus == "auto" or (self.gpus == "auto" and self.cpus is None) else None

    def layouts(self, kind: Kind, trials: int) -> list[PackingLayout]:
        """Return the layouts to try, smallest first.

        Args:
            trials: more than these are never needed at once.
        """
        most = min(trials, self.concurrency or trials)
        if kind == "cpu":
            return cpu_layouts(cores.usable(), most)
        devices = torch.cuda.device_count()
        return gpu_layouts(cores.usable() / devices, math.ceil(most / devices), self.cpus_given)


def _amount(flag: str, unit: str, given: object) -> Amount:
    """A flag's value, as a number, "auto" or None."""
    if given is None or given == "auto":
        return given
    share = flag == GPUS
    allowed = "a share of a GPU, at most 1 (0.25, 0.5), or auto" if share else "a number above 0 or auto"
    wrong = PflOpsError(f"{flag}-{unit} must be {allowed}, got '{echo(given)}'")
    try:
        number = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise wrong from None
    if not math.isfinite(number) or number < 0 or (number == 0 and not share):
        raise wrong
    if share and number > 1:
        raise PflOpsError(f"{wrong}: a {unit} computes on one GPU")
    if 0 < number < LEAST_SHARE:
        raise PflOpsError(f"{flag}-{unit} must be {LEAST_SHARE:g} or more, got '{given}'")
    return number


def check_request(asked: ResourceRequest, device: Device, address: str | None) -> None:
    """Refuse a resource request that can't be met, before anything is written: a trial would wait for ever.

    Args:
        asked: what is "auto" there is measured later, and not checked. device: the execution's.
        address: of a cluster; one that is not joined yet is asked for an answer only.
    Raises:
        PflOpsError: as `share` and `check_address`.
    """
    if address is not None and not is_running():
        check_address(address)
        return
    cpus = asked.cpus_given or LEAST_SHARE
    if isinstance(asked.gpus, float):
        share(cpus, asked.gpus, asked.concurrency, 1, device, asked.unit)
    else:
        share(cpus, None, asked.concurrency, 1, unit=asked.unit)
