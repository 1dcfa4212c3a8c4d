"""Processor, memory and load of this machine, as the system reports them."""

import os
import platform
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TELLING = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
"""Instruction sets that decide how fast matrices are multiplied, and in which precision."""


@cache
def _stated() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; nothing where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cpu_model() -> str:
    """The processor's name; family and model number behind a name that says too little ("AMD EPYC")."""
    stated = _stated()
    name = stated.get("model name") or platform.processor() or platform.machine()
    if any(letter.isdigit() for letter in name) or "cpu family" not in stated:
        return name
    return f"{name} (family {stated['cpu family']}, model {stated.get('model', '?')})"


def is_amd_of_full_width() -> bool:
    """True for AMD's processors of family 26 (Zen 5) or later, which compute 64 bytes at once."""
    stated = _stated()
    family = stated.get("cpu family", "")
    return stated.get("vendor_id") == "AuthenticAMD" and family.isdecimal() and int(family) >= 26


def cpu_flags() -> list[str]:
    """Those of `TELLING` that the processor has."""
    flags = instruction_sets().split()
    return [flag for flag in TELLING if flag in flags]


def instruction_sets() -> str:
    """Return all instruction sets of the processor, as the system lists them; empty where it does not."""
    stated = _stated()
    return stated.get("flags") or stated.get("Features") or ""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_age() -> float:
    """Seconds since this process began, the start of the interpreter and all imports included."""
    import psutil

    return max(0.0, time.time() - float(psutil.Process().create_time()))


@dataclass(frozen=True)
class CpuSeconds:
    """CPU seconds so far.

    Attributes:
        total: of all processors together. busy: those in which a processor was at work.
        own: those of this process and of the processes that it started.
    """

    total: float
    busy: float
    own: float


def cpu_seconds() -> CpuSeconds:
    """Read the CPU seconds so far."""
    import psutil

    times = psutil.cpu_times()._asdict()
    total = sum(seconds for name, seconds in times.items() if not name.startswith("guest"))  # they are in user and nice
    idle = times["idle"] + times.get("iowait", 0.0)
    here, own = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        own += used.user + used.system
    return CpuSeconds(total, total - idle, own)


class OtherLoad:
    """Share of this machine's processors that other processes use, from the construction of this object on."""

    SHORTEST = 0.1  # seconds: the system counts in steps of 0.01

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = cpu_seconds()

    def share(self) -> float:
        """Return the share of all processors that other processes have taken since, between 0 and 1."""
        time.sleep(max(0.0, self.SHORTEST - (time.monotonic() - self._began)))
        now, before = cpu_seconds(), self._before
        others = (now.busy - before.busy) - max(0.0, now.own - before.own)
        return min(1.0, max(0.0, others) / max(now.total - before.total, 1e-9))
