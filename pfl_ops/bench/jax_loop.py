"""A peer: local training as a jitted JAX scan over a client's batches. Needs the extra `peers`.

This is FedJAX's way (a compiled client step, `for_each_client` with its backend "jit"), made stronger: the whole walk
of a client is one compiled scan, without a call from Python at each batch; and with `vmap` the walk of all clients.
Networks of fully connected layers only: on a CPU, JAX's convolutions are two orders slower than PyTorch's.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU's memory is not ours alone

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch import nn

from pfl_ops import rng
from pfl_ops.bench.candidate import BenchCandidate, Label
from pfl_ops.bench.case import RATE, Case, normalised
from pfl_ops.bench.settings import Figure
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.optim import BETA_1, BETA_2, EPS
from pfl_ops.federation.training import plan
from pfl_ops.models.base import Network

Parameters: TypeAlias = list[tuple[Any, Any]]
"""(weight [out, in], bias [out]) of each layer, as PyTorch has them."""


class JaxScan(BenchCandidate):
    """Clients one after the other, or all of them at once, each walk a compiled scan in float32.

    Samples lie normalised on the device; batches are those that the engine would draw.

    Args:
        case: data and network. vmapped: all clients at once. threads: with which JAX was started.
    Raises:
        PflOpsError: a network that is not made of fully connected layers, or a device that this JAX does not have.
    """

    figures: tuple[Figure, ...] = ("train",)

    def __init__(self, case: Case, vmapped: bool, threads: int = 1) -> None:
        super().__init__(Label("jax-vmap" if vmapped else "jax"), threads)
        self.case, self.vmapped, self.t = case, vmapped, 0
        x, y = normalised(case.data.train, case.data)
        there = _device(case.device.type)
        self.start = jax.device_put(parameters_of(case.network), there)
        self.x, self.y = (jax.device_put(v.numpy(), there) for v in (x.flatten(1), y))
        optimiser = case.settings.optimiser
        walk = partial(WALKS[optimiser], RATE[optimiser])
        self.walk = jax.jit(jax.vmap(walk, in_axes=(None, None, None, 0)) if vmapped else walk)

    def train(self) -> list[Parameters]:
        """The clients' parameters after J steps each; other batches each time."""
        batches = self.batches(self.t)
        self.t += 1
        if self.vmapped:
            stacked = jax.block_until_ready(self.walk(self.start, self.x, self.y, batches))
            return [jax.tree.map(lambda leaf, k=k: leaf[k], stacked) for k in range(len(batches))]
        return jax.block_until_ready([self.walk(self.start, self.x, self.y, own) for own in batches])

    def batches(self, t: int) -> np.ndarray:
        """Sample numbers [C, J, B] of round t, as the engine draws them."""
        case = self.case
        drawn = []
        for k, own in enumerate(case.data.train.index):
            p = plan.draw(
                len(own), batch=case.batch, epochs=None, steps=case.steps, rng=rng.generator(0, "train", t, k, "", 0)
            )
            drawn.append(own.numpy()[p.order].reshape(case.steps, case.batch))
        return np.stack(drawn)


def _device(kind: str) -> Any:
    """JAX's device of that kind, "cpu" or "cuda"."""
    try:
        return jax.devices(kind)[0]
    except RuntimeError:
        raise PflOpsError(f"this JAX has no {kind} device") from None


def parameters_of(network: Network) -> Parameters:
    """The layers of a network of fully connected layers.

    Raises:
        PflOpsError: it has other layers.
    """
    layers = [*network.body.children(), network.head]
    if any(type(layer) not in (nn.Linear, nn.ReLU, nn.Flatten) for layer in layers):
        raise PflOpsError("on linear and mlp only, because JAX's convolutions are far slower on a CPU")
    dense = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return [(jnp.asarray(d.weight.detach().numpy()), jnp.asarray(d.bias.detach().numpy())) for d in dense]


def _loss(parameters: Parameters, x: Any, y: Any) -> Any:
    """Mean cross-entropy; ReLU between layers."""
    for weight, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weight.T + bias)
    weight, bias = parameters[-1]
    scores = jax.nn.log_softmax(x @ weight.T + bias)
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()


def _sgd(lr: float, start: Parameters, x: Any, y: Any, batches: Any) -> Parameters:
    """Parameters after one step of plain SGD a batch; batches: sample numbers [J, B]."""

    def step(w: Parameters, rows: Any) -> tuple[Parameters, None]:
        g = jax.grad(_loss)(w, x[rows], y[rows])
        return jax.tree.map(lambda w, g: w - lr * g, w, g), None

    return lax.scan(step, start, batches)[0]


def _adam(lr: float, start: Parameters, x: Any, y: Any, batches: Any) -> Parameters:
    """As `_sgd`, by Adam with the engine's constants."""

    def step(carry: Any, rows: Any) -> tuple[Any, None]:
        w, m, v, j = carry
        g = jax.grad(_loss)(w, x[rows], y[rows])
        m = jax.tree.map(lambda m, g: BETA_1 * m + (1 - BETA_1) * g, m, g)
        v = jax.tree.map(lambda v, g: BETA_2 * v + (1 - BETA_2) * g * g, v, g)
        first, second = 1 - BETA_1**j, 1 - BETA_2**j
        w = jax.tree.map(lambda w, m, v: w - lr * (m / first) / (jnp.sqrt(v / second) + EPS), w, m, v)
        return (w, m, v, j + 1), None

    zeros = jax.tree.map(jnp.zeros_like, start)
    return lax.scan(step, (start, zeros, zeros, jnp.float32(1)), batches)[0][0]


WALKS: dict[str, Callable[..., Parameters]] = {"sgd": _sgd, "adam": _adam}
