"""The yardstick: how many operations a second a large matrix product reaches on this machine."""

import time

import torch

from pfl_ops.federation.execution import choose
from pfl_ops.federation.settings import Execution, Precision

SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices
DTYPE = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def matmul_rate(device: torch.device, precision: Precision, threads: int, seconds: float = 0.1) -> float:
    """Operations per second of the fastest of several square matrix products.

    Args:
        device: where. precision: of the factors. threads: of this process.
        seconds: how long to repeat; one warms up, at least two count.
    """
    torch.set_num_threads(threads)
    choose.device(Execution(device=device.type), precision)
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device).to(DTYPE[precision]) for _ in range(2))
    out = a @ b
    best, spent, done = 0.0, 0.0, 0
    while spent < seconds or done < 2:
        wait(device)
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        wait(device)
        took = time.perf_counter() - start
        best, spent, done = max(best, 2 * side**3 / took), spent + took, done + 1
    return best


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
