"""The FLIU paper's network for CIFAR-10: McMahan's with one more convolution."""

from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("cnn_cifar")
class CNNCifar(Network):
    """Three 5x5 convolutions (32, 64, 64 channels), each followed by 2x2 max-pooling, and a fully connected layer.

    Parameters: 686,090 on 32x32x3 with 10 classes.

    >>> network = CNNCifar((32, 32, 3), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 3, 32, 32)).shape)
    (686090, (2, 10))

    Source: FLIU paper, Sec. IV: "an additional Convolutional Layer is added before the Fully-Connected Layer".
    Deviations: the paper states neither width nor kernel of that convolution, nor whether it pools. 64 channels,
    5x5 and 2x2 max-pooling are ours: they follow its neighbour. ReLU stands after pooling, which is the same function.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of the fully connected layer")] = 512,
    ) -> None:
        channels, height, width = image(shape, "cnn_cifar", poolings=3)
        body = {
            "conv1": nn.Conv2d(channels, 32, 5, padding=2),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(32, 64, 5, padding=2),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "conv3": nn.Conv2d(64, 64, 5, padding=2),
            "pool3": nn.MaxPool2d(2),
            "relu3": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(64 * height * width, hidden),
            "relu4": nn.ReLU(),
        }
        super().__init__(body, hidden, n_classes)
