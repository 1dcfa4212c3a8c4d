"""The products of a linear layer of several models, by the faster of two libraries that PyTorch has.

PyTorch's operators call MKL, which on AMD's processors uses vectors of 32 bytes. oneDNN uses those of 64: where they
are computed at once, it does about twice as many operations a second in float32. It has no gradients here, so that it
serves answers.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.system.machine import is_amd_of_full_width

LEAST = 2e6
"""Operations of a product from which on oneDNN is faster: it takes some 10 µs more to call."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., B, I] times weight [O, I], and bias [O]: scores [..., B, O] of one linear layer, as `F.linear`'s.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([1.0])).tolist()
    [[12.0]]
    """
    if not _takes(x, weight):
        return F.linear(x, weight, bias)
    bias = None if bias is None else bias.contiguous()  # it would take the numbers that follow the first one in memory
    scores: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return scores


def linears(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [C or 1, B, I] times weight [C, O, I], and bias [C, O]: scores [C, B, O] of one linear layer of C models.

    >>> x, weight = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]], [[5.0, 6.0]]])
    >>> linears(x, weight, torch.tensor([[0.0], [1.0]])).tolist()
    [[[11.0]], [[18.0]]]
    """
    if len(x) == 1 and len(weight) > 1:  # all models see the same input: one large product
        scores = linear(x[0], weight.flatten(0, 1), None if bias is None else bias.flatten())
        return scores.unflatten(-1, weight.shape[:2]).transpose(0, 1)
    if _takes(x[0], weight[0]):
        biases = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([linear(*each) for each in zip(x.unbind(), weight.unbind(), biases, strict=True)])
    # weight first: its gradient then comes out in the weight's own layout, which saves a copy a step
    if bias is None:
        return torch.bmm(weight, x.mT).mT
    return torch.baddbmm(bias[:, :, None], weight, x.mT).mT


def _takes(x: Tensor, weight: Tensor) -> bool:
    """True if x [..., I] times weight [O, I] is left to oneDNN."""
    if not (x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and _is_faster()):
        return False
    in_float32 = not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    return in_float32 and 2 * x.numel() * len(weight) >= LEAST


@cache
def _is_faster() -> bool:
    """True where it was measured to be so, and where PyTorch has oneDNN."""
    return is_amd_of_full_width() and torch.backends.mkldnn.is_available()
