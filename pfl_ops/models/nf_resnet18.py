"""A ResNet-18 without normalisation layers, the FedPG paper's network for CIFAR-100."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.models.base import Network, Shape, image, register

RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""γ: γ relu(z) has variance 1 for z of a standard normal distribution."""
STAGES = 4
RESULTS = 2
"""Part of the digest of this code, and so of a run's hash: raised where the engine trains another network than before.

2: the stem's filters are standardised; in runs before, the stem was a plain convolution.
"""


class ScaledConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and norm 1, times a trained gain: its output has its input's variance.

    Ŵ_o = g_o (W_o - mean W_o) / (std W_o · √n), n = numbers a filter, g one gain a filter.

    >>> conv = ScaledConv(1, 1, kernel=1)  # one number a filter: it is its own mean
    >>> conv(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2)
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, input: Tensor) -> Tensor:
        w = self.weight.flatten(1)
        w = w - w.mean(1, keepdim=True)
        scale = self.gain * w.square().sum(1).clamp(min=1e-4).rsqrt()
        return F.conv2d(input, (w * scale[:, None]).view_as(self.weight), self.bias, self.stride, self.padding)


def act(x: Tensor) -> Tensor:
    """γ relu(x), of any shape.

    >>> [round(value, 3) for value in act(torch.tensor([-1.0, 1.0])).tolist()]  # γ = √(2 / (1 − 1/π))
    [0.0, 1.713]
    """
    return RELU_GAIN * F.relu(x)


class Block(nn.Module):
    """x ← shortcut + α s f(x / β): two 3x3 convolutions, each behind an activation; s starts at 0.

    Where size or width changes, the shortcut is a 1x1 convolution of the activated x / β, of the same stride.

    Args:
        inputs, outputs: channels. stride: 1 or 2. alpha: α. beta: β, the standard deviation that x has at the start.

    >>> block, x = Block(4, 4, stride=1, alpha=0.2, beta=1.0), torch.ones(1, 4, 8, 8)
    >>> block(x).equal(x), tuple(Block(4, 8, stride=2, alpha=0.2, beta=1.0)(x).shape)  # s = 0: the shortcut alone
    (True, (1, 8, 4, 4))
    """

    def __init__(self, inputs: int, outputs: int, stride: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.conv1 = ScaledConv(inputs, outputs, 3, stride)
        self.conv2 = ScaledConv(outputs, outputs, 3)
        self.shortcut = ScaledConv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else None
        self.skip = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        z = act(x / self.beta)
        if self.shortcut is not None:
            x = self.shortcut(z)
        return x + self.alpha * self.skip * self.conv2(act(self.conv1(z)))


class MeanPool(nn.Module):
    """The mean over each activated channel: [B, channels, H, W] -> [B, channels].

    >>> MeanPool()(torch.tensor([[[[-1.0, 1.0]]]]) / RELU_GAIN).tolist()
    [[0.5]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return act(x).mean((-2, -1))


@register("nf_resnet18")
class NFResNet18(Network):
    """Norm-free ResNet-18: four stages of two blocks (64, 128, 256, 512 channels), for images of CIFAR's size.

    x_{i+1} = x_i + α s_i f_i(x_i / β_i),  β_i² = the variance that x_i has at the start with s = 1: 1, and α² more for
    each block since the last change of width. Weights are standardised in each pass (`ScaledConv`), so signals keep
    that variance without statistics over a batch: clients are rows of parameters and nothing else. A stem of one 3x3
    convolution, without pooling, as is usual for 32x32. Parameters: 11,173,970 on 32x32x3 with 10 classes.

    >>> network = NFResNet18((32, 32, 3), n_classes=10, width=2)
    >>> tuple(network.features(torch.zeros(2, 3, 32, 32)).shape), len(network.body)  # 2, 4, 8, 16 channels
    ((2, 16), 10)

    Source: Brock, De, Smith, "Characterizing Signal Propagation to Close the Performance Gap in Unnormalized ResNets",
    ICLR 2021 (α 0.2, scaled weight standardisation); Brock, De, Smith, Simonyan, "High-Performance Large-Scale Image
    Recognition Without Normalization", ICML 2021 (s, after De and Smith's SkipInit).
    Deviations: the FedPG paper names the network only; stem, α, s = 0, and no stochastic depth or dropout are ours.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        alpha: Annotated[float, Field(gt=0, title="α", description="share of a block's own signal")] = 0.2,
        width: Annotated[
            int, Field(ge=1, le=100_000, description="channels of the first stage; each next has twice as many")
        ] = 64,
    ) -> None:
        channels, _, _ = image(shape, "nf_resnet18", poolings=3)
        body: dict[str, nn.Module] = {"stem": ScaledConv(channels, width, 3)}
        inputs, variance = width, 1.0
        for stage in range(STAGES):
            outputs = width * 2**stage
            for number in (1, 2):
                stride = 2 if number == 1 and stage > 0 else 1
                block = Block(inputs, outputs, stride, alpha, math.sqrt(variance))
                # a shortcut's convolution starts from variance 1 again
                variance = (1.0 if block.shortcut is not None else variance) + alpha**2
                body[f"stage{stage + 1}_block{number}"] = block
                inputs = outputs
        super().__init__(body | {"pool": MeanPool()}, inputs, n_classes)
