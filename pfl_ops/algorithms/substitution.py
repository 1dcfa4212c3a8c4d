"""How much of what a model knows lies in few of its parameters: a probe that is noted and changes nothing."""

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Batch, Net, Round


def note_substituted(r: Round, w: Tensor, share: float) -> None:
    """Note how right models w [C, P] are on their clients' own training samples, whole and with parameters put back.

    Notes `whole`; `top`, where the share of a model's parameters with the largest Fisher information has its values of
    before all training, Θ⁰; `any`, where as many have that were drawn by lot, the same for all clients. A parameter's
    Fisher information is the sum over batches of its squared mean gradient.
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
    """1 where the largest score is the label's, else 0, [B]."""
    return (net(w, x).argmax(dim=-1) == y).to(w.dtype)


def _add_squares(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
    return {"fisher": m["fisher"] + b.grad(m["w"]).square()}


__all__ = ["note_substituted", "right"]
