"""The choice of execution: the device, one client at a time or stacked, in one process or several."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from pfl_ops.errors import PflOpsError, count
from pfl_ops.federation.execution import processes
from pfl_ops.federation.execution.decide import Choice, Scope, TrainingWork, decide, hint, promises
from pfl_ops.federation.execution.timing import Prepare, Timing, measure, recalled
from pfl_ops.federation.settings import Execution, Kernels, Precision
from pfl_ops.federation.training import kernels as compiled
from pfl_ops.system import cores, memory
from pfl_ops.system.machine import cpu_model

WORKER = 300 << 20  # bytes that a worker process takes before its first job, PyTorch itself above all
OTHERS: Mapping[tuple[str, Precision], tuple[Precision, ...]] = {
    ("cpu", "float32"): ("bfloat16",),
    ("cpu", "bfloat16"): ("float32",),
    ("cuda", "float32"): ("tf32", "bfloat16"),
    ("cuda", "tf32"): ("bfloat16",),
    ("cuda", "bfloat16"): ("tf32",),
}
"""Precisions that are timed beside the run's own; who asks for float64 wants no other."""
UNSTACKABLE = "this network or loss can't be stacked (dropout, recurrent layers, a loss with branches)"


@dataclass(frozen=True)
class Resolved:
    """An execution with nothing left to choose; results are bit for bit the same only within one of these.

    Threads are this process's own: on more of them a kernel adds in another order. Workers have one thread each, so
    any number of them gives what one process of one thread gives.
    """

    device: str
    way: Literal["loop", "vmap"]
    chunk: int
    threads: int
    precision: Precision
    torch: str
    workers: int = 1
    kernels: Kernels = "torch"

    @property
    def stack(self) -> int | None:
        """Clients stacked at once; None: the loop way."""
        return self.chunk if self.way == "vmap" else None

    def __str__(self) -> str:
        backend = f"stacks of {self.chunk}" if self.way == "vmap" else "one client at a time"
        kernels = ", compiled kernels" if self.kernels == "compiled" else ""
        if self.workers > 1:
            return f"{backend}, {self.workers} workers{kernels}"
        return f"{backend}, {count(self.threads, 'thread')}{kernels}"


@dataclass(frozen=True)
class Chosen:
    """An execution that was chosen.

    Attributes:
        resolved: the execution. hints: lines on what was asked for without effect, and on a precision that is much
            faster by the timing.
        promised: samples a second of all executions that were timed; {}: there was nothing to choose.
    """

    resolved: Resolved
    hints: list[str] = field(default_factory=list)
    promised: Mapping[Resolved, float] = field(default_factory=dict)


def device(execution: Execution, precision: Precision) -> torch.device:
    """The device, and PyTorch's switches for this precision set on it.

    Raises:
        PflOpsError: CUDA is asked for and not there, or tf32 on a CPU.
    """
    there = torch.cuda.is_available()
    if execution.device == "cuda" and not there:
        raise PflOpsError("device 'cuda' is not available on this machine; use --device cpu (or auto)")
    chosen = "cuda" if there and execution.device != "cpu" else "cpu"
    if precision == "tf32" and chosen == "cpu":
        raise PflOpsError("precision 'tf32' needs a CUDA device; on a CPU use float32 or bfloat16")
    if chosen == "cuda":
        switch(precision)
    return torch.device(chosen)


def switch(precision: Precision) -> None:
    """Set PyTorch's switches for CUDA: cuDNN would use TF32 unasked."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def threads(execution: Execution) -> int:
    """CPU threads of this process: as asked, else what it may use."""
    if execution.threads is not None:
        return execution.threads
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        return int(allowed)
    return cores.usable()


def kernels(execution: Execution, on: torch.device, layers: int, optimiser: str) -> Kernels:
    """The kernels of a run: compiled ones where they cover its training, are built, and were found to be faster.

    Args:
        on: the device. layers: linear layers that compiled kernels would cover, 0 where they don't.
        optimiser: sgd, momentum or adam.
    Raises:
        PflOpsError: compiled kernels are asked for and can't be used.
    """
    if execution.kernels == "torch":
        return "torch"
    covered = layers > 0 and on.type == "cpu"
    if execution.kernels == "auto":
        return "compiled" if covered and compiled.faster(layers, optimiser) else "torch"
    if not covered:
        raise PflOpsError(
            "compiled kernels cover networks of linear layers and ReLU, trained on the cross-entropy in float32 or "
            "float64 on a CPU; use --kernels auto"
        )
    compiled.library()
    return "compiled"


def resolve(
    execution: Execution, on: torch.device, precision: Precision, *, stackable: bool, work: TrainingWork,
    shapes: Mapping[str, object], prepare: Prepare, kernels: Kernels = "torch",
) -> Chosen:  # fmt: skip
    """Nothing left to choose: as asked for, or by timing a few steps of each candidate.

    Args:
        on: the device. stackable: whether clients' models can be stacked. work: what there is to train.
        shapes: what the speed depends on: layers, optimiser. prepare: makes a candidate ready to be timed.
        kernels: of all candidates.
    Raises:
        PflOpsError: a network that can't be stacked, and vmap asked for; workers where there can be none.
    """

    def resolved(choice: Choice) -> Resolved:
        way: Literal["loop", "vmap"] = "loop" if choice.stack is None else "vmap"
        stack = choice.stack or 1
        return Resolved(on.type, way, stack, choice.threads, precision, torch.__version__, choice.workers, kernels)

    scope = scope_of(execution, on, stackable, work.cohort)
    passed_over = not stackable and (execution.chunk or 1) > 1
    lines = [f"--chunk {execution.chunk} has no effect: {UNSTACKABLE}"] if passed_over else []
    if scope.settled is not None:
        return Chosen(resolved(scope.settled), lines)
    others, samples = OTHERS.get((on.type, precision), ()), work.rounds * work.samples
    share = memory_share(on)
    key = {
        **shapes, "batch": work.batch, "precision": precision, "torch": torch.__version__,
        "device": torch.cuda.get_device_name(on) if on.type == "cuda" else "cpu",
        "lanes": [[lane.threads, lane.stacks] for lane in scope.lanes],
        **({"kernels": kernels} if kernels != "torch" else {}), **({"memory": share} if share < 1 else {}),
    }  # fmt: skip

    def timed() -> Timing:
        before = torch.get_num_threads()
        try:
            return measure(
                prepare, on, scope.lanes, precision, others, batch=work.batch, walk=work.walk, samples=samples
            )
        finally:
            torch.set_num_threads(before)
            switch(precision)

    timing = recalled(key, timed, lambda kept: kept.serves(samples, on.type))
    line = hint(timing, precision)
    return Chosen(
        resolved(decide(timing, work, precision, scope)),
        [*lines, *([line] if line else [])],
        {resolved(choice): rate for choice, rate in promises(timing, work, precision, scope).items()},
    )


def processor(on: torch.device) -> str:
    """Return the name of the GPU, or of the CPU: another one adds in another order."""
    return torch.cuda.get_device_name(on) if on.type == "cuda" else cpu_model()


def memory_share(on: torch.device) -> float:
    """Return the share of the GPU's memory that this process may take, 1 on a CPU: larger stacks fit into a larger one.

    A trial is kept within its own (`probe.memory.keep_within`).
    """
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # PyTorch 2.6 has none
    return round(fraction(), 4) if on.type == "cuda" and fraction is not None else 1.0


def scope_of(execution: Execution, on: torch.device, stackable: bool, cohort: int) -> Scope:
    """Return the choices that are left for cohorts of this size on this device.

    Raises:
        PflOpsError: what is asked for is not possible.
    """
    way, chunk, asked = execution.way, execution.chunk, execution.workers
    if way == "vmap" and not stackable:
        raise PflOpsError(f"{UNSTACKABLE}; use --way loop")
    if way == "loop" and (chunk or 1) > 1:
        raise PflOpsError(f"--way loop trains one client at a time, and --chunk {chunk} stacks them; leave out one")
    if (asked or 1) > 1 and on.type != "cpu":
        raise PflOpsError("workers share a cohort on a CPU; leave out --workers, or use --device cpu")
    if (asked or 1) > 1 and not processes.possible():
        raise PflOpsError("workers need anonymous shared memory (Linux); use --workers 1")
    if way == "auto" and (not stackable or cohort == 1):
        way = "loop"
    elif way == "auto" and chunk is not None:
        way = "vmap"
    count, fewer = threads(execution), on.type == "cpu" and execution.threads is None
    chunks = -(-cohort // chunk) if way == "vmap" and chunk is not None else cohort
    if asked is not None:
        return Scope(way, chunk, cohort, count, fewer, least=min(asked, chunks), most=min(asked, chunks))
    there = processes.possible() and on.type == "cpu"
    room = memory.available() // (2 * WORKER)
    most = max(1, min(count, chunks, room)) if there else 1
    return Scope(way, chunk, cohort, count, fewer, most=most)
