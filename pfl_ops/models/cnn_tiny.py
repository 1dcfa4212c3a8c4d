"""A small convolutional network for 8x8 digits and for tests."""

from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("cnn_tiny")
class CNNTiny(Network):
    """Two 3x3 convolutions (16, 32 channels; padding 1), each followed by 2x2 max-pooling, and a fully connected layer.

    Ours: McMahan's form at a size that trains in seconds. Parameters: 9,258 on 8x8x1 with 10 classes.

    >>> network = CNNTiny((8, 8, 1), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 1, 8, 8)).shape)
    (9258, (2, 10))
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of the fully connected layer")] = 32,
    ) -> None:
        channels, height, width = image(shape, "cnn_tiny", poolings=2)
        body = {
            "conv1": nn.Conv2d(channels, 16, 3, padding=1),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(16, 32, 3, padding=1),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(32 * height * width, hidden),
            "relu3": nn.ReLU(),
        }
        super().__init__(body, hidden, n_classes)
