"""Compiled kernels beside PyTorch's operators, on random images: equal results, and their speed."""

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.chain import Chain, Layer
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.training.chunk import STRETCH
from pfl_ops.federation.training.compiled import CompiledDescent
from pfl_ops.federation.training.descent import Descent
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.kernels import LINEAR, MLP
from pfl_ops.federation.training.leaves import GradientTerms

SIZES = {LINEAR: (784, 10), MLP: (784, 200, 200, 10)}  # of layers
BATCHES = (10, 50)
CLIENTS, SAMPLES, STEPS = 5, 2000, 10
TOLERANCE = 1e-10
READINGS, SECONDS = 5, 0.02  # of each side, in turns; the length of one


def compare() -> dict[str, float]:
    """Check the compiled kernels, and time them beside PyTorch's operators on one thread.

    Returns:
        "linear B 10" -> speed in multiples of PyTorch's: the ratio of the least CPU times, for each network and batch.
    Raises:
        PflOpsError: the library is not built, or its results differ by more than 1e-10 in float64.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, sizes in SIZES.items():
            difference = (_trained(CompiledDescent, sizes) - _trained(Descent, sizes)).abs().max().item()
            if not difference <= TOLERANCE:
                raise PflOpsError(f"compiled kernels differ from PyTorch's by {difference:.1g} on {name}; not used")
        return {f"{name} B {batch}": _ratio(sizes, batch) for name, sizes in SIZES.items() for batch in BATCHES}
    finally:
        torch.set_num_threads(before)


def _trained(kind: type[Descent], sizes: tuple[int, ...]) -> Tensor:
    """Parameters after some steps, one row."""
    leaves, walk = _walk(kind, sizes, 7, torch.float64)
    walk()
    return torch.cat([leaf.flatten() for leaf in leaves])


def _ratio(sizes: tuple[int, ...], batch: int) -> float:
    walks = [_walk(kind, sizes, batch, torch.float32)[1] for kind in (Descent, CompiledDescent)]
    best = [float("inf")] * len(walks)
    for _ in range(READINGS):
        for i, walk in enumerate(walks):
            best[i] = min(best[i], _seconds(walk))
    return best[0] / best[1]


def _seconds(walk: Callable[[], object]) -> float:
    """CPU time of one walk, from several after one that warms the caches."""
    walk()
    start, count = time.thread_time(), 0
    while time.thread_time() - start < SECONDS:
        walk()
        count += 1
    return (time.thread_time() - start) / count


def _walk(
    kind: type[Descent], sizes: tuple[int, ...], batch: int, dtype: torch.dtype
) -> tuple[list[Tensor], Callable[[], object]]:
    """The leaves of some clients, and a function that takes `STEPS` steps of each, as many at once as a `Trainer`."""
    g = torch.Generator().manual_seed(0)
    side = round(sizes[0] ** 0.5)
    x = torch.randint(0, 256, (SAMPLES, side, side, 1), generator=g, dtype=torch.uint8)
    y = torch.randint(0, sizes[-1], (SAMPLES,), generator=g)
    feed = Feed(Pool(x, y, [torch.arange(SAMPLES)]), np.array([128.0]), np.array([64.0]), torch.device("cpu"), dtype)
    shapes = [shape for i, o in pairwise(sizes) for shape in ((o, i), (o,))]
    leaves = [torch.randn(CLIENTS, *shape, generator=g, dtype=dtype) / sizes[0] ** 0.5 for shape in shapes]
    count = len(sizes) - 1
    chain = Chain([Layer(f"{i}.weight", f"{i}.bias", i < count - 1) for i in range(count)])
    names = [f"{i}.{part}" for i in range(count) for part in ("weight", "bias")]
    samples = torch.randint(0, SAMPLES, (STEPS, CLIENTS, batch), generator=g)
    descent = kind(chain, names, leaves, {}, Rule("sgd", 1e-3), GradientTerms())
    at_once = STEPS if kind is CompiledDescent else max(1, STRETCH // (samples[0].numel() * sizes[0] * dtype.itemsize))
    return leaves, lambda: [descent.run(feed, part, None) for part in samples.split(at_once)]
