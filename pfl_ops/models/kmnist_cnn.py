"""The convolutional network that the DRDM paper trains on Kuzushiji-MNIST."""

from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("kmnist_cnn")
class KMNISTCNN(Network):
    """Two 5x5 convolutions (16, 32 channels; padding 2), each with 2x2 max-pooling, and a fully connected layer.

    A quarter of the work of `cnn` a sample. Parameters: 215,370 on 28x28x1 with 10 classes.

    >>> network = KMNISTCNN((28, 28, 1), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 1, 28, 28)).shape)
    (215370, (2, 10))

    Source: DRDM paper, Sec. 4: convolution, max-pooling, convolution, max-pooling, flatten, FC, ReLU, FC.
    Deviations: kernels, channels and widths are lost in the only text there is, and padding is not named: all ours.
    The text has a ReLU after the FC layer only; one after each pooling, as in its neighbours here, is ours.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of the fully connected layer")] = 128,
    ) -> None:
        channels, height, width = image(shape, "kmnist_cnn", poolings=2)
        body = {
            "conv1": nn.Conv2d(channels, 16, 5, padding=2),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(16, 32, 5, padding=2),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(32 * height * width, hidden),
            "relu3": nn.ReLU(),
        }
        super().__init__(body, hidden, n_classes)
