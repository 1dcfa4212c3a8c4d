"""Processor cores: how many this process may really use, and how much they get done side by side."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from pfl_ops.system import control_groups, machine
from pfl_ops.system.control_groups import ControlGroup

SIDE = 512  # of the square matrices behind `scaling`: large enough that the interpreter is idle meanwhile


def usable(root: Path = Path("/")) -> int:
    """Cores that this process may run on, or fewer where a control group above it grants less time than that.

    Args:
        root: where /proc and /sys are looked for.
    """
    there = machine.cores()
    granted = [cores for group in control_groups.above("cpu", root) if (cores := _granted(group)) is not None]
    return max(1, min(there, int(min(granted) + 0.5))) if granted else there


def _granted(group: ControlGroup) -> float | None:
    """Cores' worth of time that a control group grants; None: no limit."""
    names = ["cpu.max"] if group.version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    try:
        quota, period = " ".join((group.folder / name).read_text(encoding="ascii") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such group here, or "max"
        return None


def busy() -> bool:
    """True if the load of the last minute was above the number of cores, so that some processes waited for a core."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def waited(root: Path = Path("/")) -> float | None:
    """Seconds for which threads of this process were ready to run and had no core, added up; None: not known here.

    Args:
        root: where /proc is looked for.
    """
    found = []
    for file in (root / "proc/self/task").glob("*/schedstat"):  # of a thread: ns on a core, ns in a queue, time slices
        with contextlib.suppress(OSError):  # the thread has just ended
            found.append(int(file.read_text(encoding="ascii").split()[1]))
    return sum(found) / 1e9 if found else None


def scaling(count: int, seconds: float = 0.02, times: int = 5) -> float:
    """Return the products of `count` cores side by side, in multiples of one core's: fewer than `count` if they share.

    The best of several readings of each, in turns. One-threaded products of matrices that fit into a core's cache, in
    threads of this process: they need no interpreter, so it does not matter that there is only one. By the clock of
    each thread: other processes on the cores are left out of it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        readings = [[_products(n, seconds) for n in (1, count)] for _ in range(times)]
    finally:
        torch.set_num_threads(before)
    alone, together = (max(column) for column in zip(*readings, strict=True))
    return together / alone


def _products(count: int, seconds: float) -> float:
    """Matrix products a second of `count` threads together."""
    gate = threading.Barrier(count)

    def work() -> float:
        torch.set_num_threads(1)
        a = torch.full((SIDE, SIDE), 1e-3)
        out = a @ a
        gate.wait()
        done, spent, start = 0, 0.0, time.thread_time()
        while spent < seconds or not done:
            torch.mm(a, a, out=out)
            done, spent = done + 1, time.thread_time() - start
        return done / spent

    with ThreadPoolExecutor(count) as pool:
        return sum(future.result() for future in [pool.submit(work) for _ in range(count)])
