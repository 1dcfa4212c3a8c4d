"""FedAS: the received body is aligned with the client's own features, and bodies are weighed by Fisher information."""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import field_validator, model_validator
from torch import Tensor

from pfl_ops.algorithms.base import (
    Algorithm,
    Batch,
    Field,
    Loss,
    Models,
    Net,
    Round,
    Rows,
    Stages,
    State,
    Task,
    Update,
    register,
)
from pfl_ops.algorithms.channels import Channels, needs_channels
from pfl_ops.algorithms.parts import needs_body
from pfl_ops.algorithms.substitution import note_substituted


@register("fedas")
class FedAS(Algorithm):
    """Clients share a body and keep their heads; they align what they receive, and weigh by what they have learnt.

    A model is (body, head), f its features. In each round every client k of the cohort, from (Θ_body, h_k):

        body_k ← body_k − η_align ∇ mean (f(body_k; x) − f(body_k^old; x))²      one pass from Θ_body, by samples and
                                                                                 features; h_k rests
        (body_k, h_k) ← train(body_k, h_k)
        α_k = mean ‖∇ log p(y | x; body_k, h_k)‖²,  α'_k = α_k / Σ_S α
        Θ_body ← Θ_body + Σ_k α'_k (body_k − Θ_body)

    body_k^old is its body after its last training; before its first there is nothing to align to. Θ_body in the last
    line is as it was received. With `split: channels` CD2-pFed's channels take the place of body and head, trained as
    there.

    State: central [P], Θ, whose private columns rest at the last value that was shared; own [N, Q], how far a client's
        private columns are from there (Q of them, the head); old [N, P_body], the body_k^old; trained [N], whether a
        client ever was; `align: global` only: seen [N, L (D + 1)], its sums of features by class, and their counts.
    Stages: L1 is (Θ_body aligned to body_k^old, h_k) with the new Θ_body, L2 is (body_k, h_k), G is Θ_body with the
        mean of all N heads.
    Sent: the body down and up, and α_k up, for each client of the cohort.
    Noted: weight, α'_k; trace, α_k; with `substitute` also whole, top and any: how right (body_k, h_k) is on the
        client's own training samples, and with that share of its parameters back at Θ⁰'s values (Fig. 3a).

    Source: Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024,
    Algorithm 1, Eq. 2 to 8.
    Deviations: η_align, and one pass of minibatches on a mean, are the authors' code's; Eq. 3 by the letter is one
    step of 1 on the sum over all samples (`align_rule: letter`). Eq. 8's further 1/m would only shrink the update and
    is dropped as there (`shrink`). α_k as a mean over samples is ours: Eq. 5 by the letter sums gradients before it
    squares (`fisher: dataset`), which grows with n_k² and vanishes where training has converged; the authors' code sums
    squares over batches (`batch`). The update is taken from Θ_body as received (Sec. 3.1), not as aligned (Algorithm
    1). Ours: no alignment before the first training, equal weights where all α_k are 0, `parallel` and `global`. The
    authors' code aligns to class means, in one body that all clients change in turn.
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    align: Literal["receipt", "parallel", "global", "off"] = Field(
        "receipt",
        description="align to the own old features on receipt or, parallel, by a term beside training; on receipt to "
        "the class means of all other clients' features; not at all",
    )
    align_lr: float = Field(0.01, gt=0, title="η_align", description="learning rate on receipt, plain SGD")
    align_rule: Literal["epoch", "letter"] = Field(
        "epoch", description="one pass of minibatches on the mean, or Eq. 3's one step of 1 on the sum"
    )
    align_weight: float = Field(1.0, ge=0, title="μ", description="weight of the term beside training (align parallel)")
    synchronize: bool = Field(True, description="weigh clients by α; off: alike, whatever the experiment's weighting")
    fisher: Literal["sample", "dataset", "batch"] = Field(
        "sample",
        description="α: mean of squared gradients of samples, square of their sum, or sum of squares of batches",
    )
    normalise: Literal["proportional", "softmax", "min_max"] = Field(
        "proportional", description="how α becomes weights that sum to 1"
    )
    shrink: bool = Field(False, title="1/m", description="Eq. 8's further division by the number of clients")
    substitute: float = Field(
        0.0, ge=0, le=1, description="share of parameters put back in a probe that is only noted; 0: no probe"
    )
    split: Literal["head", "channels"] = Field("head", description="private is the head, or what `channels` says")
    channels: Channels = Field(default_factory=Channels, description="CD2-pFed's split and training (split channels)")

    @field_validator("align", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {True: "receipt", False: "off"}[value] if isinstance(value, bool) else value  # YAML reads off as false

    @model_validator(mode="after")
    def _one_loss(self) -> "FedAS":
        if self.split == "channels" and self.align == "parallel":
            raise ValueError("align parallel needs split head: split channels has a loss of its own")
        return self

    def init(self, task: Task) -> State:
        (needs_channels if self.split == "channels" else needs_body)(task, self.name)
        nothing = torch.zeros_like(task.initial)
        seen = task.initial.new_zeros(task.net.n_classes * (task.net.n_features + 1))
        return {
            "central": task.initial,
            "own": task.rows(nothing[self._kept(task)]),
            "old": task.rows(task.initial[task.layout.body]),
            "trained": task.rows(nothing[0]),
            **({"seen": task.rows(seen)} if self.align == "global" else {}),
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, private, kept = s["central"], self._private(r.task, r.t), self._kept(r.task)
        w = self._train(s, r, self._receive(s, r))
        weights = self._weights(r, w)
        r.note("weight", weights)
        change = weights @ (w - received)
        if self.shrink and self.synchronize:
            change = change / r.counts.sum()
        central = torch.where(private, received, received + change)
        own = (w - received)[:, kept] * private[kept]
        update: Update = {
            "central": central,
            "own": Rows(r.cohort, own),
            "old": Rows(r.cohort, w[:, r.layout.body]),
            "trained": Rows(r.cohort, torch.ones_like(r.n)),
        }
        if self.align == "global":
            update["seen"] = Rows(r.cohort, self._seen(r, w))
        self._say_what_is_sent(r)
        if self.substitute:
            note_substituted(r, w, self.substitute)
        return update, {
            "L2": Models(w, r.cohort),
            "G": lambda _: Models(_joined(central, s["own"].mean(r.cohort, own)[None], kept)[0]),
        }

    def personal(self, s: State, r: Round) -> Models:
        return Models(self._receive(s, r), r.cohort)

    # -- what is shared and what is kept ------------------------------------------------------------------------------

    def _private(self, task: Task, t: int) -> Tensor:
        """Columns that clients keep in round t, bool [P]."""
        if self.split == "channels":
            return self.channels.private(task, t)
        return torch.arange(task.layout.size, device=task.initial.device) >= task.layout.head.start

    def _kept(self, task: Task) -> Tensor:
        """Columns that clients keep in any round, bool [P]."""
        return self._private(task, task.rounds - 1)

    def _say_what_is_sent(self, r: Round) -> None:
        up, down = (int((~self._private(r.task, t)).sum()) for t in (r.t, max(r.t - 1, 0)))
        classes = r.net.n_classes * (r.net.n_features + 1) if self.align == "global" else 0
        r.sent(up=up + self.synchronize + classes, down=down + classes)

    # -- alignment ----------------------------------------------------------------------------------------------------

    def _receive(self, s: State, r: Round) -> Tensor:
        """Models after receipt: the shared part, aligned, with each client's own private part, [C, P]."""
        w = _joined(s["central"], s["own"][r.cohort], self._kept(r.task))
        again = (s["trained"][r.cohort] > 0).nonzero()[:, 0]
        if self.align in ("receipt", "global") and len(again):
            w[again] = self._align(s, r.over(r.cohort[again.cpu()]), w[again])
        return w

    def _align(self, s: State, r: Round, w: Tensor) -> Tensor:
        goal, ctx = (to_others, self._others(s, r)) if self.align == "global" else (to_old, {"old": s["old"][r.cohort]})
        letter = self.align_rule == "letter"
        ctx["scale"] = r.n * r.net.n_features if letter else torch.ones_like(r.n)
        length: dict[str, Any] = {"steps": 1, "batch": int(r.n.max()), "lr": 1.0} if letter else {"epochs": 1}
        plain: dict[str, Any] = {"lr": self.align_lr, "optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0}
        moves = ~self._private(r.task, r.t)
        return r.train(
            w, partial(goal, moves=moves), ctx=ctx, only=r.layout.body, stream="align", **{**plain, **length}
        )

    def _seen(self, r: Round, w: Tensor) -> Tensor:
        """Sums of features by class and the classes' counts, [C, L (D + 1)]."""
        counts = r.class_counts[..., None]
        return torch.cat([r.class_means(w) * counts, counts], dim=2).flatten(1)

    def _others(self, s: State, r: Round) -> dict[str, Tensor]:
        """Class means of all other clients' features as they last were, and which classes others have."""
        total = s["seen"].mean() * r.task.n_clients - s["seen"][r.cohort]
        sums, counts = total.unflatten(1, (r.net.n_classes, -1)).split([r.net.n_features, 1], dim=2)
        return {"centres": sums / counts.clamp(min=1), "known": (counts[..., 0] > 0.5).to(sums)}

    # -- training and weights -----------------------------------------------------------------------------------------

    def _train(self, s: State, r: Round, w: Tensor) -> Tensor:
        if self.split == "channels":
            return self.channels.train(r, w)
        if self.align != "parallel":
            return r.train(w)
        ctx = {"old": s["old"][r.cohort], "weight": self.align_weight * s["trained"][r.cohort]}
        return r.train(w, partial(beside, loss=r.task.loss), ctx=ctx)

    def _weights(self, r: Round, w: Tensor) -> Tensor:
        """α' [C], sum 1; a client that was drawn twice counts twice."""
        alpha = torch.ones_like(r.n)
        if self.synchronize:
            trace = self._trace(r, w)
            r.note("trace", trace)
            alpha = normalised(trace, self.normalise)
        shares = alpha * r.counts
        return shares / shares.sum() if shares.any() else r.counts / r.counts.sum()

    def _trace(self, r: Round, w: Tensor) -> Tensor:
        """α [C]: the trace of each client's Fisher information, all parameters."""
        if self.fisher == "sample":
            return r.square_norms(w)
        if self.fisher == "dataset":
            return (r.n[:, None] * r.grad(w)).square().sum(dim=1)
        return r.walk({"w": w, "alpha": torch.zeros_like(r.n)}, _add_square, epochs=1, stream="fisher")["alpha"]


def normalised(alpha: Tensor, how: str) -> Tensor:
    """α [C] on the way to weights, still to be divided by its sum: as it is, e^α (scaled), or α − min.

    >>> alpha = torch.tensor([1.0, 3.0])
    >>> normalised(alpha, "min_max").tolist(), (normalised(alpha, "softmax").log()).tolist()
    ([0.0, 2.0], [-2.0, 0.0])
    """
    if how == "softmax":
        return (alpha - alpha.max()).exp()
    return alpha - alpha.min() if how == "min_max" else alpha


def to_old(net: Net, w: Tensor, x: Tensor, y: Tensor, *, old: Tensor, scale: Tensor, moves: Tensor) -> Tensor:
    """Scaled mean over features of (f(x) − f_old(x))², [B]; its gradient is zero outside columns `moves` (bool [P]).

    >>> from pfl_ops.testing import scalar_net
    >>> w, old, x = torch.tensor([2.0, 3.0, 1.0]), torch.tensor([1.0, 3.0, 1.0]), torch.tensor([[5.0]])
    >>> y, moves = torch.tensor([0]), torch.ones(3, dtype=torch.bool)
    >>> to_old(scalar_net(), w, x, y, old=old, scale=torch.tensor(0.5), moves=moves).tolist()  # ½ (10 − 5)²
    [12.5]
    """
    f = net.features(torch.where(moves, w, w.detach()), x)
    return scale * (f - net.features(old, x)).square().mean(dim=-1)


def to_others(
    net: Net, w: Tensor, x: Tensor, y: Tensor, *, centres: Tensor, known: Tensor, scale: Tensor, moves: Tensor
) -> Tensor:
    """Distance as `to_old`, to the centre of each sample's class, centres [L, D]; 0 if no other has it, known [L].

    >>> from pfl_ops.testing import scalar_net
    >>> w, x, y = torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0]]), torch.tensor([0])
    >>> how = {"centres": torch.tensor([[7.0]]), "known": torch.ones(1), "moves": torch.ones(3, dtype=torch.bool)}
    >>> to_others(scalar_net(), w, x, y, scale=torch.tensor(0.5), **how).tolist()  # ½ (10 − 7)²
    [4.5]
    """
    f = net.features(torch.where(moves, w, w.detach()), x)
    return scale * known[y] * (f - centres[y]).square().mean(dim=-1)


def beside(net: Net, w: Tensor, x: Tensor, y: Tensor, *, old: Tensor, weight: Tensor, loss: Loss) -> Tensor:
    """loss + μ · mean over features of (f(x) − f_old(x))², [B].

    >>> from pfl_ops.testing import scalar_net
    >>> w, old, x = torch.tensor([2.0, 3.0, 1.0]), torch.tensor([1.0, 3.0, 1.0]), torch.tensor([[5.0]])
    >>> score = lambda net, w, x, y: net(w, x)[:, 0]  # 31
    >>> beside(scalar_net(), w, x, torch.tensor([0]), old=old, weight=torch.tensor(2.0), loss=score).tolist()
    [81.0]
    """
    away = (net.features(w, x) - net.features(old, x)).square().mean(dim=-1)
    return loss(net, w, x, y) + weight * away


def _add_square(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
    return {"alpha": m["alpha"] + b.grad(m["w"]).square().sum(dim=1)}


def _joined(central: Tensor, own: Tensor, kept: Tensor) -> Tensor:
    """Θ for each row of `own` [C, Q], which is added to the columns `kept` (bool [P]): [C, P]."""
    w = central.repeat(len(own), 1)
    w[:, kept] += own
    return w
