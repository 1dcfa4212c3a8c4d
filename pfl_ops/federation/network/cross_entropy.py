"""The loss that clients minimise by default, and the form of all losses."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.losses import CROSS_ENTROPY, register
from pfl_ops.federation.network.net import Net

Loss: TypeAlias = Callable[..., Tensor]
"""`loss(net, w [Q], x [B, ...], y [B], **ctx) -> [B]`: one value a sample, written for one client."""


@register(CROSS_ENTROPY)
def cross_entropy(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """−log softmax(net(w, x))_y, [B], of one model w [P] on inputs x [B, ...] and labels y, int64 [B].

    >>> from pfl_ops.models.base import Network
    >>> net = Net(Network({}, n_features=1, n_classes=4))  # four weights, four biases
    >>> loss = cross_entropy(net, torch.zeros(8), torch.tensor([[5.0]]), torch.tensor([2]))
    >>> round(float(loss), 4)  # four equal scores: ln 4
    1.3863
    """
    return F.cross_entropy(net(w, x), y, reduction="none")
