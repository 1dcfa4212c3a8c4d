"""Per-sample losses that more than one method trains on."""

from torch import Tensor

from pfl_ops.federation.contract import Net
from pfl_ops.federation.leaves import cross_entropy


def towards_centres(
    net: Net, w: Tensor, x: Tensor, y: Tensor, *, centres: Tensor, known: Tensor, lam: Tensor
) -> Tensor:
    """Cross-entropy + λ · mean over features of (f(x) − c_y)², and no second term for a class without a centre, [B].

    Args:
        centres: c, features of each class, [L, D]. known: 1 where a class has a centre, else 0, [L].
        lam: λ, a scalar.
    """
    away = (net.features(w, x) - centres[y]).square().mean(dim=-1)
    return cross_entropy(net, w, x, y) + lam * known[y] * away


__all__ = ["towards_centres"]
