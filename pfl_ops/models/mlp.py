"""The multi-layer perceptron of McMahan et al."""

import math
from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, register


@register("mlp")
class MLP(Network):
    """Fully connected layers with ReLU, 200-200 by default; the "2NN" of the FedAvg paper.

    Takes feature vectors as well as images. Parameters: 199,210 on 28x28x1 with 10 classes.

    >>> network = MLP((4,), n_classes=3, hidden=(5,))
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 4)).shape)  # 4 · 5 + 5, 5 · 3 + 3
    (43, (2, 3))

    Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, Sec. 3.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[
            tuple[Annotated[int, Field(ge=1, le=100_000)], ...],
            Field(min_length=1, description="units of each hidden layer"),
        ] = (200, 200),
    ) -> None:
        body: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        wide = math.prod(shape)
        for i, units in enumerate(hidden, start=1):
            body |= {f"fc{i}": nn.Linear(wide, units), f"relu{i}": nn.ReLU()}
            wide = units
        super().__init__(body, wide, n_classes)
