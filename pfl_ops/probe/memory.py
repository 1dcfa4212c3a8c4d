"""Memory of a GPU: how a process keeps within its share, and what it held at its peak."""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

MEMORY_SHARE = 0.9  # of a process's share of a GPU; the rest is for CUDA itself, once a process
CUDA_ITSELF = 600 << 20  # bytes a process, where the driver does not tell


class HeldMemory(NamedTuple):
    """The memory that a process held.

    Attributes:
        peak: bytes at its peak. beside: what CUDA takes for the process beyond that; right only where it is alone.
        room: bytes of the GPU that no other process held; None: a CPU.
    """

    peak: int
    beside: int = 0
    room: int | None = None


def keep_within(threads: int, gpus: float) -> None:
    """Keep this process within its share: CPU threads, and memory of the GPU, which nothing else limits.

    Args:
        gpus: share of a GPU; 0: none.
    """
    torch.set_num_threads(threads)
    if gpus and torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        _cap(min(1.0, gpus) * MEMORY_SHARE)


@contextmanager
def within_share(gpus: float) -> Iterator[None]:
    """Keep this process's memory of the GPU within a share for a while; then it may have all again, and gives it back.

    Args:
        gpus: as for `keep_within`.
    """
    if not gpus or not torch.cuda.is_available():
        yield
        return
    _cap(min(1.0, gpus) * MEMORY_SHARE)
    try:
        yield
    finally:
        release()
        _cap(1.0)


def _cap(fraction: float) -> None:
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def release() -> None:
    """Give back to the GPU what this process no longer uses; a process that has not touched one has nothing."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def device_used() -> int | None:
    """Bytes of the first GPU that anybody holds, CUDA's own included; None: no GPU, or its driver does not tell."""
    if not torch.cuda.is_available():
        return None
    try:
        return int(torch.cuda.device_memory_used(0))
    except Exception:  # NVML is not everywhere where CUDA is
        return None


def device_free() -> float:
    """Bytes of the first GPU that no process holds; infinite: its driver does not tell."""
    used = device_used()
    return math.inf if used is None else torch.cuda.get_device_properties(0).total_memory - used


def device_held(before: int | None) -> HeldMemory:
    """Of the first GPU, since `keep_within`.

    Args:
        before: `device_used` before this process touched it.
    """
    own, now = torch.cuda.max_memory_reserved(), device_used()
    if now is None or before is None:
        return HeldMemory(own, CUDA_ITSELF, torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() + CUDA_ITSELF)
    total = torch.cuda.get_device_properties(0).total_memory
    return HeldMemory(own, max(0, now - before - torch.cuda.memory_reserved()), total - before)
