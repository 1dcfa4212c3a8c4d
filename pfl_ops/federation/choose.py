"""Where and how to compute: the device, and one client at a time or stacked, chosen by timing real steps."""

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from pfl_ops.data.store import cache_folder
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution, Precision

CHUNKS = (2, 5, 10, 20, 50, 100)
HOPELESS = 0.5  # a way below this part of the best so far is given up
PATIENCE = 1.5  # seconds after which no larger stack is tried

Choice: TypeAlias = tuple[Literal["loop", "vmap"], int]
"""The way, and how many clients are stacked (1 in the loop way)."""

Rate: TypeAlias = Callable[[int | None, float], float]
"""rate(stack, enough): samples/s of the loop way (None), or of so many stacked clients. Below `enough` a rough number
will do."""


@dataclass(frozen=True)
class Resolved:
    """An execution with nothing left to choose; results are bit for bit the same only within one of these."""

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
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.device(chosen)


def threads(execution: Execution) -> int:
    """CPU threads of this process: as asked, else what it may use."""
    if execution.threads is not None:
        return execution.threads
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        return int(allowed)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_memory() -> bool:
    """Whether this system has files without a name, and /proc for other processes to reach them."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def resolve(
    execution: Execution, on: torch.device, precision: Precision, *, stackable: bool, cohort: int,
    shapes: Mapping[str, object], rate: Rate,
) -> Resolved:  # fmt: skip
    """Nothing left to choose: as asked for, or by timing a few steps of each way.

    Args:
        on: the device. stackable: whether clients' models can be stacked. cohort: clients a round.
        shapes: what the speed depends on: layers, batch, optimiser. rate: measures a way.
    Raises:
        PflOpsError: a network that can't be stacked, and vmap asked for; workers where they can't help.
    """
    way, chunk, workers = execution.way, execution.chunk, execution.workers or 1
    if workers > 1:
        if on.type != "cpu" or way == "vmap" or chunk is not None:
            raise PflOpsError(
                "workers share a cohort one client at a time, on a CPU: leave out --way vmap, --chunk, cuda"
            )
        if not shared_memory():
            raise PflOpsError("workers need anonymous shared memory (Linux); use --workers 1")
        return Resolved(on.type, "loop", 1, threads(execution), precision, torch.__version__, min(workers, cohort))
    if not stackable and way == "vmap":
        raise PflOpsError("this network can't be stacked (dropout or recurrent layers); use --way loop")
    if way == "auto" and (not stackable or cohort == 1):
        way = "loop"
    elif way == "auto" and chunk is not None:
        way = "vmap"
    if way == "vmap" and cohort == 1:
        chunk = 1
    count = threads(execution)
    if way == "auto" or (way == "vmap" and chunk is None):
        key = {
            **shapes, "precision": precision, "threads": count, "device": on.type, "torch": torch.__version__,
            "cohort": min(cohort, CHUNKS[-1]), "asked": way,
        }  # fmt: skip
        way, chunk = cached(key, lambda: fastest(rate, cohort, loop=way == "auto"))
    chunk = 1 if way == "loop" or chunk is None else min(chunk, cohort)
    return Resolved(on.type, way, chunk, count, precision, torch.__version__)


def kept(meta: Mapping[str, Any], execution: Execution, on: torch.device) -> tuple[Resolved, list[str]]:
    """The execution that a run was begun with, and a line for each wish that it does not meet.

    Raises:
        PflOpsError: it was begun on a device that is not the one at hand.
    """
    try:
        found = Resolved(**meta["resolved"])
    except (KeyError, TypeError):
        raise PflOpsError(
            "the checkpoint was written by another version of pfl-ops; --no-resume starts again"
        ) from None
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


def cached(key: Mapping[str, object], measure: Callable[[], Choice]) -> Choice:
    """The way and chunk for `key` (model, shapes) on this machine, from the user's cache folder or measured now.

    What is measured while others keep the machine busy is not kept: it would be wrong for a long time.
    """
    machine = {"machine": platform.processor() or platform.machine(), "host": platform.node()}
    text = json.dumps({**key, **machine}, sort_keys=True)
    file = cache_folder() / "execution" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        if there["way"] in ("loop", "vmap") and int(there["chunk"]) >= 1:
            return there["way"], int(there["chunk"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    way, chunk = measure()
    if busy():
        return way, chunk
    with contextlib.suppress(OSError):  # a cache that can't be written only costs the measurement
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"way": way, "chunk": chunk, "key": dict(key)}), encoding="utf-8")
        draft.replace(file)
    return way, chunk


def busy() -> bool:
    """Whether more processes want to run than this machine has cores, by half."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def fastest(rate: Rate, cohort: int, *, loop: bool = True) -> Choice:
    """The way with the most samples a second.

    Args:
        rate: measures a way.
        cohort: clients a round; more are never stacked.
        loop: whether the loop way is a candidate.
    Growing stacks are tried until two of them have lost speed, one is far behind, or patience ends.
    """
    start = time.perf_counter()
    alone = rate(None, 0.0) if loop else 0.0
    best: tuple[float, int] = (0.0, 1)
    losses = 0
    for chunk in [*(c for c in CHUNKS if c < cohort), *([cohort] if 1 < cohort <= CHUNKS[-1] else [])]:
        enough = HOPELESS * max(alone, best[0])
        now = rate(chunk, enough)
        losses += now < 0.85 * best[0]
        if now > best[0]:
            best = (now, chunk)
        if now < enough or losses == 2 or time.perf_counter() - start > PATIENCE:
            break
    return ("vmap", best[1]) if best[0] > alone or not loop else ("loop", 1)


def stopwatch(run: Callable[[int], int], on: torch.device, enough: float = 0.0, seconds: float = 0.08) -> float:
    """Samples per second of `run(steps)`, which returns how many samples it saw.

    One step warms up; where that and a second one stay far below `enough`, theirs is the answer. Else three steps (one
    where they are slow), again and again for about `seconds`, the fastest of which counts. Not enough memory: 0.
    """

    def once(steps: int) -> tuple[float, float]:
        start = time.perf_counter()
        seen = run(steps)
        if on.type == "cuda":
            torch.cuda.synchronize()
        took = max(time.perf_counter() - start, 1e-9)
        return seen / took, took

    try:
        rough, first = once(1)
        if rough < enough:  # the first step also pays for what is made once
            rough = max(rough, once(1)[0])
        if rough < 0.7 * enough:
            return rough
        best, spent = 0.0, 0.0
        while spent < seconds:
            rate, took = once(3 if first < seconds else 1)
            best, spent = max(best, rate), spent + took
        return best
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return 0.0
