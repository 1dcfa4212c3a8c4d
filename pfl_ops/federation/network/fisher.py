"""Length of the gradient of each single sample, without storing these gradients.

A sample's gradient of a linear layer is δ aᵀ (δ: what comes back to the layer's outputs, a: its inputs), so its length
is known from the two; for a convolution the same holds patch by patch. One forward and one backward pass of a batch are
enough, where a gradient a sample would take P numbers each.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.federation.network.cross_entropy import Loss, cross_entropy
from pfl_ops.federation.network.net import Net, Step, is_plain_convolution

SQUARE_BATCH = 50  # samples: the patches of a convolution take memory


def square_lengths(net: Net, w: Tensor, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """‖∇_w loss(net, w, x, y)‖² of each sample, [B].

    Exact in both ways: by layers for the cross-entropy of linear layers and plain convolutions, else sample by sample.

    Args:
        w: one model [Q]. x: inputs [B, ...]. y: labels [B].

    >>> from pfl_ops.testing import scalar_net
    >>> w, x, y = torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0]]), torch.tensor([0])
    >>> square_lengths(scalar_net(), w, x, y, loss=lambda net, w, x, y: net(w, x)[:, 0]).tolist()  # 15² + 10² + 1²
    [326.0]
    """
    with torch.enable_grad():
        if loss is cross_entropy and all(map(_known, net.steps)):
            return _by_layer(net, w, x, y)
        return torch.stack([_alone(net, w, x[i : i + 1], y[i : i + 1], loss) for i in range(len(x))])


def _alone(net: Net, w: Tensor, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    leaf = w.detach().requires_grad_()
    (g,) = torch.autograd.grad(loss(net, leaf, x, y).sum(), leaf)
    return g.square().sum()


def _by_layer(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    views = net.layout.views(w[net.layout.net].detach(), net.layout.net)
    head = net.network.head
    assert isinstance(head, nn.Linear)
    inputs, outputs, layers = [], [], []
    for step in (*net.steps, Step.of(head, "head")):
        given = x if step.own else x.clone()  # it may write into its input, which is the output of the layer before
        out = step.call(step.parameters(views), step.taken(given))
        if step.own:
            out = out if out.requires_grad else out.requires_grad_()
            inputs.append(x)
            outputs.append(out)
            layers.append(step.layer)
        x = out
    deltas = torch.autograd.grad(F.cross_entropy(x, y, reduction="sum"), outputs)
    with torch.no_grad():
        return torch.stack([_square(*each) for each in zip(layers, inputs, deltas, strict=True)]).sum(dim=0)


def _known(step: Step) -> bool:
    """True if `_square` knows the layer's gradient, or it has none."""
    plain = is_plain_convolution(step) and not isinstance(step.layer.padding, str)
    return plain or step.kind is nn.Linear or not step.own


def _square(layer: nn.Module, a: Tensor, delta: Tensor) -> Tensor:
    """‖Σ_t δ_t a_tᵀ‖² + ‖Σ_t δ_t‖² of each sample, [B]; t: places that share the weight."""
    if isinstance(layer, nn.Conv2d):
        a = F.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        delta = delta.flatten(2)
    else:
        a, delta = (value.flatten(1, -2).mT if value.dim() > 2 else value[..., None] for value in (a, delta))
    bias = delta.sum(dim=2).square().sum(dim=1) if layer.bias is not None else 0.0
    places = delta.shape[2]
    if places == 1:
        return a.square().sum(dim=(1, 2)) * delta.square().sum(dim=(1, 2)) + bias
    if places * (delta.shape[1] + a.shape[1]) < delta.shape[1] * a.shape[1]:  # the shorter way by products of places
        return ((a.mT @ a) * (delta.mT @ delta)).sum(dim=(1, 2)) + bias
    return (delta @ a.mT).square().sum(dim=(1, 2)) + bias
