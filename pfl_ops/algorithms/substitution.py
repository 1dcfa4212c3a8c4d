"""Accuracy of models whose most important parameters are put back: a probe that is noted and changes nothing."""

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Batch, Net, Round


def note_substituted(r: Round, w: Tensor, share: float) -> None:
    """Note how right models w [C, P] are on their clients' own training samples, whole and with parameters put back.

    Notes `whole`; `top`, where the share of a model's parameters with the largest Fisher information has its values of
    before all training, Θ⁰; `any`, where as many have that were drawn by lot, the same for all clients. A parameter's
    Fisher information is the sum over batches of its squared mean gradient.

    Args:
        share: of a model's P parameters, in [0, 1].

    >>> from pfl_ops.testing import quadratic_round
    >>> r = quadratic_round([0.0, 6.0])  # one class, so each model is always right
    >>> note_substituted(r, torch.ones(2, 1).double(), share=1.0)
    >>> {name: value.tolist() for name, value in r.notes.values().items()}
    {'whole': [1.0, 1.0], 'top': [1.0, 1.0], 'any': [1.0, 1.0]}
    """
    fisher = r.walk({"w": w, "fisher": torch.zeros_like(w)}, _add_squares, epochs=1, stream="probe")["fisher"]
    number = round(share * w.shape[1])
    drawn = torch.as_tensor(r.rng("probe").permutation(w.shape[1])[:number], device=w.device)
    chosen = {"whole": fisher.new_zeros(len(w), 0, dtype=torch.int64), "top": fisher.topk(number).indices}
    for name, columns in (chosen | {"any": drawn.expand(len(w), -1)}).items():
        back = torch.zeros_like(w, dtype=torch.bool).scatter_(1, columns, True)
        sums, counts = r.sweep(torch.where(back, r.task.initial, w), right)
        r.note(name, sums / counts)


def right(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """1 where the largest score is the label's, else 0, [B], of one model w [P] on inputs x [B, ...], labels y [B].

    >>> from pfl_ops.federation.network.net import Net
    >>> from pfl_ops.models.base import Network
    >>> net = Net(Network({}, n_features=1, n_classes=2))  # scores (x, −x) with the weights below
    >>> right(net, torch.tensor([1.0, -1.0, 0.0, 0.0]), torch.tensor([[5.0], [-5.0]]), torch.tensor([0, 0])).tolist()
    [1.0, 0.0]
    """
    return (net(w, x).argmax(dim=-1) == y).to(w.dtype)


def _add_squares(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
    return {"fisher": m["fisher"] + b.grad(m["w"]).square()}


__all__ = ["note_substituted", "right"]
