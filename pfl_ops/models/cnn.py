"""The convolutional network of McMahan et al., which the FLIU paper uses on MNIST."""

from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("cnn")
class CNN(Network):
    """Two 5x5 convolutions (32, 64 channels; padding 2), each followed by 2x2 max-pooling, and a fully connected layer.

    Parameters: 1,663,370 on 28x28x1 with 10 classes, as in the paper.

    >>> network = CNN((28, 28, 1), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network.features(torch.zeros(2, 1, 28, 28)).shape)
    (1663370, (2, 512))
    >>> 25 * 32 + 32 + 25 * 32 * 64 + 64 + 7 * 7 * 64 * 512 + 512 + 512 * 10 + 10  # two poolings: 28, 14, 7
    1663370

    Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, Sec. 3.
    Deviations: ReLU stands after pooling, which is the same function with the same gradient and a quarter of the work;
    first parameters as PyTorch's layers draw them.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of the fully connected layer")] = 512,
    ) -> None:
        channels, height, width = image(shape, "cnn", poolings=2)
        body = {
            "conv1": nn.Conv2d(channels, 32, 5, padding=2),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(32, 64, 5, padding=2),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(64 * height * width, hidden),
            "relu3": nn.ReLU(),
        }
        super().__init__(body, hidden, n_classes)
