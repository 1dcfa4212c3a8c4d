"""Per-sample losses that more than one method trains on."""

from torch import Tensor
from torch.nn import functional as F

from pfl_ops.federation.method.contract import Net


def towards_centres(
    net: Net, w: Tensor, x: Tensor, y: Tensor, *, centres: Tensor, known: Tensor, lam: Tensor
) -> Tensor:
    """Cross-entropy + λ · mean over features of (f(x) − c_y)², and no second term for a class without a centre, [B].

    Args:
        centres: c, features of each class, [L, D]. known: 1 where a class has a centre, else 0, [L].
        lam: λ, a scalar.

    >>> from pfl_ops.testing import scalar_net
    >>> net, w = scalar_net(), torch.tensor([2.0, 3.0, 1.0])  # feature 2 x; one class, so no cross-entropy
    >>> x, y = torch.tensor([[5.0]]), torch.tensor([0])
    >>> centre = {"centres": torch.tensor([[7.0]]), "known": torch.ones(1), "lam": torch.tensor(0.5)}
    >>> towards_centres(net, w, x, y, **centre).tolist()  # ½ (10 − 7)²
    [4.5]
    """
    f = net.features(w, x)
    away = (f - centres[y]).square().mean(dim=-1)
    scores = net.head(w[..., net.layout.head], f)
    return F.cross_entropy(scores, y, reduction="none") + lam * known[y] * away


__all__ = ["towards_centres"]
