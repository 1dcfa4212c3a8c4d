"""The small convolutional network of NIID-Bench: LeNet-5's layers with ReLU and max-pooling."""

from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("lenet5")
class LeNet5(Network):
    """Two 5x5 convolutions of 6 and 16 channels, each followed by 2x2 max-pooling, and two layers of 120 and 84 units.

    Parameters: 44,426 on 28x28x1 and 62,006 on 32x32x3, with 10 classes. Images of at least 16 x 16.

    >>> network = LeNet5((28, 28, 1), n_classes=10)  # 28 − 4 = 24, 12; 12 − 4 = 8, 4: 16 · 4 · 4
    >>> sum(p.numel() for p in network.parameters()), network.body.fc1.in_features
    (44426, 256)

    Source: Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, whose
    network is LeNet-5 (LeCun et al., 1998) in width.
    Deviations: no padding is ours, as in LeNet-5; ReLU stands after pooling, which is the same function with the same
    gradient and a quarter of the work. First parameters as PyTorch's layers draw them.
    """

    def __init__(self, shape: Shape, n_classes: int) -> None:
        channels, height, width = image(shape, "lenet5", poolings=2, lost=4)
        body = {
            "conv1": nn.Conv2d(channels, 6, 5),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(6, 16, 5),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(16 * height * width, 120),
            "relu3": nn.ReLU(),
            "fc2": nn.Linear(120, 84),
            "relu4": nn.ReLU(),
        }
        super().__init__(body, 84, n_classes)
