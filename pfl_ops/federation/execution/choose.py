"""The choice of execution: the device, one client at a time or stacked, in one process or several."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import processes
from pfl_ops.federation.execution.decide import Scope, TrainingWork, decide, hint
from pfl_ops.federation.execution.timing import Prepare, Timing, measure, recalled
from pfl_ops.federation.settings import Execution, Precision
from pfl_ops.system import cores, memory

WORKER = 300 << 20  # bytes that a worker process takes before its first job, PyTorch itself above all
OTHERS: Mapping[tuple[str, Precision], tuple[Precision, ...]] = {
    ("cpu", "float32"): ("bfloat16",),
    ("cpu", "bfloat16"): ("float32",),
    ("cuda", "float32"): ("tf32", "bfloat16"),
    ("cuda", "tf32"): ("bfloat16",),
    ("cuda", "bfloat16"): ("tf32",),
}
"""Precisions that are timed beside the run's own; who asks for float64 wants no other."""


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

    @property
    def stack(self) -> int | None:
        """Clients stacked at once; None: the loop way."""
        return self.chunk if self.way == "vmap" else None


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


def resolve(
    execution: Execution, on: torch.device, precision: Precision, *, stackable: bool, work: TrainingWork,
    shapes: Mapping[str, object], prepare: Prepare,
) -> tuple[Resolved, list[str]]:  # fmt: skip
    """Nothing left to choose: as asked for, or by timing a few steps of each candidate.

    Args:
        on: the device. stackable: whether clients' models can be stacked. work: what there is to train.
        shapes: what the speed depends on: layers, optimiser. prepare: makes a candidate ready to be timed.
    Returns:
        The execution; and a line where the timing says that another precision would be much faster.
    Raises:
        PflOpsError: a network that can't be stacked, and vmap asked for; workers where there can be none.
    """
    scope = scope_of(execution, on, stackable, work.cohort)
    choice, hints = scope.settled, []
    if choice is None:
        others = OTHERS.get((on.type, precision), ())
        key = {
            **shapes, "batch": work.batch, "precision": precision, "torch": torch.__version__,
            "device": torch.cuda.get_device_name(on) if on.type == "cuda" else "cpu",
            "lanes": [[lane.threads, lane.stacks] for lane in scope.lanes],
        }  # fmt: skip

        def timed() -> Timing:
            before = torch.get_num_threads()
            try:
                return measure(prepare, on, scope.lanes, precision, others, batch=work.batch, walk=work.walk)
            finally:
                torch.set_num_threads(before)
                switch(precision)

        timing = recalled(key, timed)
        choice, line = decide(timing, work, precision, scope), hint(timing, precision)
        hints = [line] if line else []
    way: Literal["loop", "vmap"] = "loop" if choice.stack is None else "vmap"
    found = Resolved(
        on.type, way, choice.stack or 1, choice.threads, precision, torch.__version__, workers=choice.workers
    )
    return found, hints


def scope_of(execution: Execution, on: torch.device, stackable: bool, cohort: int) -> Scope:
    """Return the choices that are left for cohorts of this size on this device.

    Raises:
        PflOpsError: what is asked for is not possible.
    """
    way, chunk, asked = execution.way, execution.chunk, execution.workers
    if way == "vmap" and not stackable:
        raise PflOpsError(
            "this network or loss can't be stacked (dropout, recurrent layers, a loss with branches); use --way loop"
        )
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


def kept(
    meta: Mapping[str, Any], execution: Execution, on: torch.device, *, over: bool = False
) -> tuple[Resolved, list[str]]:
    """The execution that a run was begun with, and a line for each wish that it does not meet.

    Args:
        over: whether the run has all its rounds: it may be read anywhere.
    Raises:
        PflOpsError: it was begun on a device that is not the one at hand.
    """
    try:
        found = Resolved(**meta["resolved"])
    except (KeyError, TypeError):
        raise PflOpsError(
            "the checkpoint was written by another version of pfl-ops; --no-resume starts again"
        ) from None
    if over:
        return found, []
    if found.device != on.type:
        raise PflOpsError(
            f"this run was begun on {found.device}, here it would go on on {on.type}; "
            f"use --device {found.device}, or --no-resume to start again"
        )
    asked = {
        "way": None if execution.way == "auto" else execution.way,
        "threads": execution.threads,
        "workers": execution.workers,
    }
    if found.way == "vmap":
        asked["chunk"] = execution.chunk
    lines = [
        f"keeps {name} {getattr(found, name)}, as it was begun, not {wish}; --no-resume starts again"
        for name, wish in asked.items()
        if wish not in (None, getattr(found, name))
    ]
    if found.torch != torch.__version__:
        lines.append(f"was begun with PyTorch {found.torch}, goes on with {torch.__version__}: last digits may differ")
    return found, lines
