"""The number of models that are asked in one call, from counted operations.

Together, models save calls; each model by itself gets the faster kernels (stacked convolutions are grouped ones). So
they are asked together only as far as a call is small:

    m = WORTH / (operations of an answer · samples),    a power of two from 1 to MOST

Measured on one thread of a processor with AVX-512, m is within a tenth of the fastest of 1, 5, 20 and 100 for linear
models, MLPs and CNNs with 10 to 1,000 samples a model, but for small CNNs with 100 samples (a quarter). Nothing is
timed, so that a run's numbers do not depend on how busy the machine was.
"""

from torch import Tensor, nn

WORTH = 6e8  # operations in a call from which on further models in it gain nothing
MOST = 16  # models in a call
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def models_at_once(operations: float, samples: float) -> int:
    """Return m for models that need so many operations for an answer, each asked for so many samples.

    >>> linear, cnn = 15_680, 8_534_016
    >>> [models_at_once(linear, n) for n in (100, 10_000)], [models_at_once(cnn, n) for n in (10, 100)]
    ([16, 2], [4, 1])
    """
    fits = WORTH / max(operations * samples, 1.0)
    return 1 << max(int(min(fits, MOST)).bit_length() - 1, 0)


def operations(network: nn.Module, x: Tensor) -> float:
    """Return the operations of one answer: twice the weights of each layer, as often as the layer applies them.

    A layer applies its weights at each position of its output (convolutions) or its input (all others). Embeddings
    look numbers up and count nothing.

    Args:
        network: in its usual form. x: one sample, [1, ...].

    >>> import torch
    >>> operations(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5)), torch.zeros(1, 1, 4, 4))
    224.0
    """
    found = [0.0]

    def count(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        weights = sum(w.numel() for w in layer.parameters(recurse=False) if w.dim() > 1)
        if not weights or isinstance(layer, nn.Embedding):
            return
        often = out.numel() / out.shape[1] if isinstance(layer, CONVOLUTIONS) else given[0].numel() / given[0].shape[-1]
        found[0] += 2.0 * weights * often

    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    try:
        network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0]
