"""Compiled kernels beside PyTorch's operators, on random images: equal results, and their speed."""

import time
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import Task
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.kernels import LINEAR, MLP, Case
from pfl_ops.federation.training.train import Trainer
from pfl_ops.models.linear import Linear
from pfl_ops.models.mlp import MLP as Mlp

NETWORKS: dict[str, Callable[..., nn.Module]] = {LINEAR: Linear, MLP: Mlp}
RULES = {"sgd": Rule("sgd", 1e-3), "momentum": Rule("sgd", 1e-3, momentum=0.9), "adam": Rule("adam", 1e-3)}
BATCHES = (10, 50)
CLIENTS, SAMPLES, STEPS, CLASSES, SHAPE = 5, 500, 10, 10, (1, 28, 28)
TOLERANCE = 1e-10
READINGS, SECONDS = 5, 0.02  # of each side, in turns; the length of one


def compare() -> dict[Case, float]:
    """Check the compiled kernels, and time them beside PyTorch's operators on one thread, in stacks of five clients.

    Returns:
        The speed in multiples of PyTorch's of each case: the ratio of the least CPU times.
    Raises:
        PflOpsError: the library is not built, or its results differ by more than 1e-10 in float64.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for network, optimiser in product(NETWORKS, RULES):
            torchs, ours = (_walk(network, optimiser, 7, torch.float64, compiled)() for compiled in (False, True))
            difference = (ours - torchs).abs().max().item()
            if not difference <= TOLERANCE:
                raise PflOpsError(
                    f"compiled kernels differ from PyTorch's by {difference:.1g} on {network} under {optimiser}; "
                    "not used"
                )
        return {Case(*case): _ratio(*case) for case in product(NETWORKS, RULES, BATCHES)}
    finally:
        torch.set_num_threads(before)


def _ratio(network: str, optimiser: str, batch: int) -> float:
    walks = [_walk(network, optimiser, batch, torch.float32, compiled) for compiled in (False, True)]
    torchs, ours = zip(*([_seconds(walk) for walk in walks] for _ in range(READINGS)), strict=True)
    return min(torchs) / min(ours)


def _seconds(walk: Callable[[], object]) -> float:
    """CPU time of one walk, from several after one that warms the caches."""
    walk()
    start, count = time.thread_time(), 0
    while time.thread_time() - start < SECONDS:
        walk()
        count += 1
    return (time.thread_time() - start) / count


def _walk(network: str, optimiser: str, batch: int, dtype: torch.dtype, compiled: bool) -> Callable[[], Tensor]:
    """A function that trains some clients for `STEPS` steps each, as a round does, and returns their rows [C, P]."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (CLIENTS * SAMPLES, *SHAPE[1:], 1), generator=g, dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (len(x),), generator=g)
    pool = Pool(x, y, list(torch.arange(len(x)).split(SAMPLES)))
    feed = Feed(pool, np.array([128.0]), np.array([64.0]), torch.device("cpu"), dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = NETWORKS[network](SHAPE, CLASSES).to(dtype)
    net = Net(module)
    start = net.row()
    task = Task(
        net, net.layout, start, pool.sizes, pool.class_counts(CLASSES), rounds=1, cohort_size=CLIENTS, seed=0,
        example=feed.inputs(torch.zeros(1, dtype=torch.int64)), loss=cross_entropy,
    )  # fmt: skip
    rule, length = RULES[optimiser], Length(None, STEPS, batch)
    trainer = Trainer(task, feed, rule, length, CLIENTS, compiled=compiled)
    return lambda: trainer.train(range(CLIENTS), start, length, Keys(0, "timing", 0, 0), rule)
