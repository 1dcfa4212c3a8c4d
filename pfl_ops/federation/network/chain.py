"""Fully connected networks by hand: their forward and backward pass for c clients at once, without autograd.

A small batch through small layers costs less arithmetic than the bookkeeping around it, and a plain SGD step need not
even write its gradient down: W ← W − η dᵀh is one batched product into W itself.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pfl_ops.federation.network.net import Net, Step, is_flatten


@dataclass(frozen=True)
class Layer:
    """One linear layer, by the names of its parameters; `relu`: what follows it."""

    weight: str
    bias: str | None
    relu: bool


class Chain:
    """Flatten, then linear layers with or without ReLU between them, then cross-entropy.

    Args:
        layers: from input to head.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)

    @property
    def names(self) -> set[str]:
        """The parameters' names."""
        return {name for layer in self.layers for name in (layer.weight, layer.bias) if name is not None}

    @classmethod
    def of(cls, net: Net) -> "Chain | None":
        """The network as a chain; None where it holds any other layer."""
        layers: list[Layer] = []
        steps = [*net.steps, Step.of(net.network.head, "head")]  # type: ignore[arg-type]  # a module, by Net
        for i, step in enumerate(steps):
            if step.kind is nn.Linear:
                layers.append(Layer(f"{step.name}.weight", f"{step.name}.bias" if "bias" in step.own else None, False))
            elif step.kind is nn.ReLU and layers and steps[i - 1].kind is nn.Linear:
                layers[-1] = Layer(layers[-1].weight, layers[-1].bias, True)
            elif not (is_flatten(step) and not layers):
                return None
        return cls(layers)

    def backward(
        self, w: Mapping[str, Tensor], moving: Collection[str], x: Tensor, y: Tensor, share: Tensor | None
    ) -> tuple[Tensor, Iterator[tuple[Layer, Tensor, Tensor]]]:
        """Losses, and the way back from the head to the first layer that moves.

        Args:
            w: name -> [c, *shape]. moving: the names whose gradient is wanted.
            x: inputs [c, B, ...]. y: labels [c, B].
            share: each sample's share of its client's mean, [c, B], 0 on padding; None: 1/B.
        Returns:
            The mean loss of each client, [c]; and an iterator over (layer, d [c, B, O], h [c, B, I]): the weight's
            gradient is dᵀh, the bias's Σ_B d. A layer that was handed out may be overwritten.
        """
        inputs = []
        h = x.flatten(2)
        for layer in self.layers:
            inputs.append(h)
            weight = w[layer.weight]
            h = h @ weight.mT if layer.bias is None else torch.baddbmm(w[layer.bias][:, None], h, weight.mT)
            if layer.relu:
                h.relu_()
        logs = torch.log_softmax(h.mT, dim=1)  # classes before samples: ten times as fast as along short rows
        right = y[:, None]
        losses = -logs.gather(1, right)[:, 0]
        d = logs.exp_().scatter_add_(1, right, logs.new_full((), -1.0).expand(right.shape)).mT
        if share is None:
            return losses.mean(dim=1), self._back(w, moving, inputs, d.div_(y.shape[1]))
        return (losses * share).sum(dim=1), self._back(w, moving, inputs, d.mul_(share[..., None]))

    def _back(
        self, w: Mapping[str, Tensor], moving: Collection[str], inputs: Sequence[Tensor], d: Tensor
    ) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        first = min((i for i, layer in enumerate(self.layers) if {layer.weight, layer.bias} & set(moving)), default=0)
        for i in range(len(self.layers) - 1, first - 1, -1):
            before = None
            if i > first:
                before = torch.bmm(d, w[self.layers[i].weight])
                if self.layers[i - 1].relu:
                    before.mul_(inputs[i] > 0)
            yield self.layers[i], d, inputs[i]
            if before is not None:
                d = before
