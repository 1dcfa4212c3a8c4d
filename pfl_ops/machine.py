"""What this machine is made of, as it states it itself."""

import os
import platform
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


def cpu_flags() -> list[str]:
    """Those of `TELLING` that the processor has."""
    stated = _stated()
    flags = (stated.get("flags") or stated.get("Features") or "").split()
    return [flag for flag in TELLING if flag in flags]


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
