"""The number of models that are asked in one call, from counted operations.

Together, models save calls; each model by itself gets the faster kernels (stacked convolutions are grouped ones). So
they are asked together only as far as a call is small:

    m = worth / (operations of an answer · samples a model),    a power of two from 1 to MOST_MODELS

On the same samples, models share one large product, so that larger calls are worth it. On samples of their own, the
inputs of a call have to stay in the processor's cache as well. Nothing is timed, so that a run's numbers do not depend
on how busy the machine was. Measured in docs/bench.md.
"""

from typing import Any

from torch import Tensor, nn

OWN = 1.2e8  # operations in a call from which on further models gain nothing, each on samples of its own
INPUTS = 4e5  # numbers that the samples of such a call may have
SHARED = 6e8  # operations, all on the same samples
MOST_MODELS = 16  # models in a call
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def own_at_once(operations: float, inputs: int, samples: float) -> int:
    """Return m for models that are asked for samples of their own.

    Args:
        operations: of an answer. inputs: numbers in a sample. samples: a model's.

    >>> [own_at_once(15_680, 784, n) for n in (20, 100, 2_000)], [own_at_once(8_534_016, 784, n) for n in (2, 100)]
    ([16, 4, 1], [4, 1])
    """
    return _power(min(OWN / max(operations * samples, 1.0), INPUTS / max(inputs * samples, 1.0)))


def shared_at_once(operations: float, samples: float) -> int:
    """Return m for models that are asked for the same samples.

    >>> [shared_at_once(operations, 1_000) for operations in (15_680, 8_534_016)]
    [16, 1]
    """
    return _power(SHARED / max(operations * samples, 1.0))


def operations(network: nn.Module, x: Tensor) -> float:
    """Return the operations of one answer: twice the weights of each layer, as often as the layer applies them.

    A layer applies its weights at each position of its output (convolutions) or its input (all others), once if it is
    called without a tensor in the first place. Embeddings look numbers up and count nothing.

    Args:
        network: in its usual form. x: one sample, [1, ...].

    >>> import torch
    >>> operations(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5)), torch.zeros(1, 1, 4, 4))
    224.0
    """
    found = [0.0]

    def count(layer: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        weights = sum(w.numel() for w in layer.parameters(recurse=False) if w.dim() > 1)
        if not weights or isinstance(layer, nn.Embedding):
            return
        often = 1.0
        if isinstance(layer, CONVOLUTIONS):
            often = out.numel() / out.shape[1]
        elif given and isinstance(given[0], Tensor) and given[0].dim():
            often = given[0].numel() / given[0].shape[-1]
        found[0] += 2.0 * weights * often

    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    try:
        network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0]


def _power(fits: float) -> int:
    """The largest power of two of 1 to `MOST_MODELS` that fits."""
    return 1 << max(int(min(fits, MOST_MODELS)).bit_length() - 1, 0)
