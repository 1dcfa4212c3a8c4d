"""FakeLeNet-5, the FedAvg2Rep paper's network for CIFAR-100."""

from torch import nn

from pfl_ops.models.base import Network, Shape, image, register


@register("fakelenet5")
class FakeLeNet5(Network):
    """Two 5x5 convolutions of 64 channels, each followed by 2x2 max-pooling, and two layers of 384 and 192 units.

    Parameters: 815,332 on 32x32x3 with 100 classes (797,962 with 10). Images of at least 16 x 16.

    >>> network = FakeLeNet5((32, 32, 3), n_classes=100)  # 32 − 4 = 28, 14; 14 − 4 = 10, 5: 64 · 5 · 5
    >>> sum(p.numel() for p in network.parameters()), network.body.fc1.in_features
    (815332, 1600)

    Source: FedAvg2Rep paper, Sec. 3.2.1, after Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data
    Distribution", ECCV 2020.
    Deviations: padding and activations are not stated. No padding, as in LeNet-5 and in the network of this form that
    the FedPG authors released, and ReLU are ours; ReLU stands after pooling, which is the same function with the same
    gradient and a quarter of the work. First parameters as PyTorch's layers draw them.
    """

    def __init__(self, shape: Shape, n_classes: int) -> None:
        channels, height, width = image(shape, "fakelenet5", poolings=2, lost=4)
        body = {
            "conv1": nn.Conv2d(channels, 64, 5),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(64, 64, 5),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(64 * height * width, 384),
            "relu3": nn.ReLU(),
            "fc2": nn.Linear(384, 192),
            "relu4": nn.ReLU(),
        }
        super().__init__(body, 192, n_classes)
