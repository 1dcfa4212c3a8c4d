"""Multinomial logistic regression."""

import math

from torch import nn

from pfl_ops.models.base import Network, Shape, register


@register("linear")
class Linear(Network):
    """scores = W x + b on the flattened sample: a head without a body.

    Methods that treat body and head apart (fedrep, fedper) have nothing to share here and refuse it.
    Parameters: 7,850 on 28x28x1 with 10 classes.

    >>> network = Linear((28, 28, 1), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 1, 28, 28)).shape)  # 784 · 10 + 10
    (7850, (2, 10))
    """

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__({"flatten": nn.Flatten()}, math.prod(shape), n_classes)
