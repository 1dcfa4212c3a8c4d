"""All checks of a GPU, one after the other: none stops another, and none begins when the time is out."""

import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

import torch

from pfl_ops.bench.gpu_check import agreement, cell, data, speed
from pfl_ops.bench.gpu_check.options import Options, Sizes
from pfl_ops.bench.gpu_check.outcome import NO_TIME, CheckRow, in_one_line
from pfl_ops.errors import unknown
from pfl_ops.federation.execution import choose
from pfl_ops.federation.settings import Execution
from pfl_ops.system.machine import cores, cpu_model

Check: TypeAlias = Callable[[Options], Iterator[CheckRow]]

CHECKS: Mapping[str, tuple[Check, ...]] = {
    "methods": (agreement.methods,),
    "repeats": (agreement.repeats,),
    "precisions": (agreement.precisions,),
    "scores": (agreement.scores,),
    "cell": (cell.cell,),
    "speed": (speed.matrix_product, speed.networks),
    "processes": (speed.cap, speed.processes),
}
"""Name -> the functions that yield its rows; the most important first, since time may run out."""


def check(
    device: Literal["cpu", "cuda"], sizes: Sizes, *, minutes: float, data_dir: str | None, only: tuple[str, ...],
    quick: bool, say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Run the checks, and return the report as JSON has it.

    Args:
        device: where. sizes: of the checks' parts. minutes: after which no further step begins.
        data_dir: where mnist.npz lies; none: the variable PFL_OPS_DATA. quick: use few random data.
        only: names of checks; empty: all.
        say: takes a line on progress.
    Raises:
        PflOpsError: no such check, or CUDA is not available.
    """
    for name in only:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    choose.device(Execution(device=device), "float32")
    began = time.monotonic()
    rows: list[CheckRow] = []
    with tempfile.TemporaryDirectory(prefix="pfl-ops-gpu-check-") as folder:
        place = Path(folder)
        # timings of this machine, and random data, are for this check alone
        with mock.patch.dict(os.environ, {"PFL_OPS_CACHE": str(place / "cache")}):
            found, remark = data.mnist(place, data_dir, quick)
            if remark:
                rows.append(CheckRow("data", "mnist", "skipped", remark))
            o = Options(device, sizes, found, data.small(place), began + 60 * minutes, say)
            for name, checks in CHECKS.items():
                for each in checks if not only or name in only else ():
                    rows += _rows(o, name, each)
    return {
        "machine": _machine(device),
        "options": {"device": device, "minutes": minutes, "only": list(only), "quick": quick},
        "seconds": time.monotonic() - began,
        "rows": [asdict(row) for row in rows],
    }


def _rows(o: Options, name: str, each: Check) -> list[CheckRow]:
    """The rows of a check; what it raises is one more."""
    rows: list[CheckRow] = []
    if o.left <= 0:
        return [CheckRow(name, each.__name__, "skipped", NO_TIME)]
    threads = torch.get_num_threads()
    try:
        for row in each(o):
            rows.append(row)  # one by one, so that those before an exception are kept
    except Exception as error:
        rows.append(CheckRow(name, each.__name__, "failed", in_one_line(error)))
    finally:
        gc.collect()
        if o.is_gpu:
            torch.cuda.empty_cache()  # other processes get what this one no longer uses
        torch.set_num_threads(threads)
        choose.switch("float32")
    return rows


def _machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": device,
        "processor": cpu_model(),
        "cores": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_mib": properties.total_memory / 2**20,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found
