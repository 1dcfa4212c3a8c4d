"""Plain SGD on fully connected networks, for c clients at once: many equal steps in as few calls as they need.

A step writes no gradient down: W ← W − η dᵀh and b ← b − η Σ d are single products into W and b themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.optim import Moments, Rule
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.leaves import GradientTerms

threshold_backward = torch.ops.aten.threshold_backward


@dataclass(frozen=True)
class DescentLayer:
    """One layer of c clients: weight [c, O, I], bias [c, 1, O]; `moves`: which leaf each is, None: it stays."""

    weight: Tensor
    bias: Tensor | None
    relu: bool
    moves: tuple[int | None, int | None]

    def forward(self, h: Tensor) -> Tensor:
        """h [c, B, I] -> [c, B, O]; few outputs of many samples are quicker the other way round."""
        if self.bias is None:
            z = torch.bmm(h, self.weight.mT)
        elif self.weight.shape[1] <= h.shape[1]:
            z = torch.baddbmm(self.bias.mT, self.weight, h.mT).mT
        else:
            z = torch.baddbmm(self.bias, h, self.weight.mT)
        return z.relu_() if self.relu else z


class Descent:
    """Steps of plain SGD on the mean cross-entropy, and on the terms that join it.

    Args:
        chain: the network. names, leaves: what moves, in place, [c, *shape] each. rest: what stays, by name.
        rule: η and weight decay. terms: shift and pull. moments: of the leaves; None: before the first step.
    """

    def __init__(
        self,
        chain: Chain,
        names: Sequence[str],
        leaves: Sequence[Tensor],
        rest: Mapping[str, Tensor],
        rule: Rule,
        terms: GradientTerms,
        moments: Moments | None = None,
    ) -> None:
        place = {name: i for i, name in enumerate(names)}
        values = {**rest, **dict(zip(names, leaves, strict=True))}
        self.leaves, self.rule, self.terms = leaves, rule, terms
        self.moments = moments or Moments.of(rule, leaves)
        self.terms_apply = bool(rule.weight_decay) or terms.shift is not None or terms.anchor is not None
        self.layers = [
            DescentLayer(
                values[layer.weight],
                None if layer.bias is None else values[layer.bias][:, None],
                layer.relu,
                (place.get(layer.weight), None if layer.bias is None else place.get(layer.bias)),
            )
            for layer in chain.layers
        ]
        self.first = min((i for i, layer in enumerate(self.layers) if layer.moves != (None, None)), default=0)
        seen = {i for layer in self.layers for i in layer.moves}
        self.unseen = [i for i in range(len(leaves)) if i not in seen] if self.terms_apply else []

    def run(self, feed: Feed, samples: Tensor, share: Tensor | None) -> Tensor:
        """Some steps, one after the other.

        Args:
            samples: sample numbers, [J, c, B].
            share: each sample's share of its client's mean, [J, c, B], 0 on padding; None: 1/B.
        Returns:
            Each sample's loss before its step, [J, c, B].
        """
        x, y = feed.batch(samples)
        # classes before samples: a softmax along short rows takes ten times as long as one along short columns
        right = y[..., None, :]
        classes = self.layers[-1].weight.shape[1]
        hot = x.new_zeros(*y.shape[:2], classes, y.shape[2]).scatter_(2, right, 1.0)
        picked = x.new_empty(right.shape)
        ones = x.new_ones(y.shape[1], 1, y.shape[2])
        rate = self.rule.lr if share is not None else self.rule.lr / y.shape[2]
        shares = [None] * len(x) if share is None else share[..., None, :].unbind()
        for h, r, target, p, s in zip(
            x.flatten(3).unbind(), right.unbind(), hot.unbind(), picked.unbind(), shares, strict=True
        ):
            inputs = []
            for layer in self.layers:
                inputs.append(h)
                h = layer.forward(h)
            logs = torch.log_softmax(h.mT, dim=1)
            torch.gather(logs, 1, r, out=p)
            d = logs.exp_().sub_(target)
            self._back(inputs, (d if s is None else d.mul_(s)).mT, ones, rate)
            for i in self.unseen:  # blocks of a method's own: no loss, but decay, shift and pull
                self.terms.descend(i, self.leaves[i], self.rule)
        return picked[..., 0, :].neg_()

    def _back(self, inputs: Sequence[Tensor], d: Tensor, ones: Tensor, rate: float) -> None:
        """From the scores' gradient d [c, B, L] (times B, where `rate` is η/B) down to the first layer that moves."""
        for i in range(len(self.layers) - 1, self.first - 1, -1):
            layer, h = self.layers[i], inputs[i]
            before = torch.bmm(d, layer.weight) if i > self.first else d  # before the weight moves
            weight, bias = layer.moves
            if weight is not None:
                if self.terms_apply:
                    self.terms.descend(weight, layer.weight, self.rule)
                layer.weight.baddbmm_(d.mT, h, alpha=-rate)
            if bias is not None and layer.bias is not None:
                if self.terms_apply:
                    self.terms.descend(bias, self.leaves[bias], self.rule)
                layer.bias.baddbmm_(ones, d, alpha=-rate)
            if i > self.first:
                d = threshold_backward(before, h, 0) if self.layers[i - 1].relu else before
