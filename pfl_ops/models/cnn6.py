"""The convolutional network of PFLlib and of the FedAS authors' code."""

from typing import Annotated

from pydantic import Field
from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("cnn6")
class CNN6(Network):
    """Two 5x5 convolutions (32, 64 channels) without padding, each with 2x2 max-pooling, and a fully connected layer.

    McMahan's network but for the padding. Parameters: 582,026 on 28x28x1 and 878,538 on 32x32x3, with 10 classes.
    Images of at least 16 x 16.

    >>> network = CNN6((28, 28, 1), n_classes=10)  # 28 − 4 = 24, 12; 12 − 4 = 8, 4: 64 · 4 · 4
    >>> sum(p.numel() for p in network.parameters()), network.body.fc.in_features
    (582026, 1024)

    Source: FedAvgCNN in PFLlib (Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated
    Learning Library and Benchmark", JMLR 26, 2025), which the code released with FedAS (Yang, Huang, Ye, CVPR 2024)
    uses.
    Deviations: ReLU stands after pooling, which is the same function with the same gradient and a quarter of the work.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        hidden: Annotated[int, Field(ge=1, le=100_000, description="units of the fully connected layer")] = 512,
    ) -> None:
        channels, height, width = image(shape, "cnn6", poolings=2, lost=4)
        body = {
            "conv1": nn.Conv2d(channels, 32, 5),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(32, 64, 5),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(64 * height * width, hidden),
            "relu3": nn.ReLU(),
        }
        super().__init__(body, hidden, n_classes)
