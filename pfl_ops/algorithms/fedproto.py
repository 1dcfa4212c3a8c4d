"""FedProto: clients share prototypes, the mean features of each class, and no weights."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Net, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.losses import towards_centres
from pfl_ops.algorithms.parts import needs_body, needs_cross_entropy


@register("fedproto")
class FedProto(Algorithm):
    """Local models whose features are drawn to the prototypes, the means of each class over the federation.

    f(x) are a model's features of x, D numbers, and c_l the prototype of class l. In each round every client k:

        θ_k ← train(θ_k) on cross-entropy + λ · mean over features of (f(x) − c_y)²     no 2nd term where c_y is not
        μ_kl ← mean of f(x) over its n_kl samples of class l, f of the trained θ_k      sent, with the n_kl
        c_l ← Σ_k n_kl μ_kl / Σ_k n_kl

    Sums are over the cohort; a class that it lacks has no prototype next round, and in the first there is none. A model
    answers with the class of the nearest prototype; where none is to be had (before the first round), by its head.

    State: theta [N, P], the θ_k, all starting at Θ⁰; prototypes [L, D], the c_l; known [L], which of them there are.
    Stages: L1 is θ_k with the new prototypes, L2 the trained θ_k with those that it received; there is no G.
    Sent: to each client of the cohort the prototypes that there are, none in the first round; from it a mean of each
    class that it has samples of, with its count unless `average: mean`; no weights.

    Source: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
    Clients", AAAI 2022, Algorithm 1 (arXiv 2105.00243).
    Deviations: the second term is the authors' code's; the paper compares class means. Class means are those of the
    trained body over all of a client's data, not those met in the last epoch, as in that code. The paper's further
    factor 1/|N_l| is left out. Answers by the head where there is no prototype are ours. The code answers with
    `answer: own`, and averages with `average: mean`.
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    lam: float = Field(1.0, ge=0, title="λ", description="pull of the features towards the prototypes")
    average: Literal["counts", "mean"] = Field(
        "counts", description="prototypes weigh clients by their samples of the class, or alike"
    )
    answer: Literal["nearest", "own", "head"] = Field(
        "nearest", description="by the nearest prototype, the nearest of the client's own classes, or the head"
    )

    def init(self, task: Task) -> State:
        needs_body(task, self.name, does="compares features of")
        needs_cross_entropy(task, self.name)
        classes = task.net.n_classes
        return {
            "theta": task.rows(task.initial),
            "prototypes": task.initial.new_zeros(classes, task.net.n_features),
            "known": task.initial.new_zeros(classes, dtype=torch.bool),
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        ctx = {
            "centres": s["prototypes"].expand(len(r.cohort), -1, -1),
            "known": s["known"].expand(len(r.cohort), -1),
            "lam": torch.full_like(r.n, self.lam),
        }
        theta = r.train(s["theta"][r.cohort], towards_centres, ctx=ctx)
        samples = r.class_counts if self.average == "counts" else (r.class_counts > 0)
        shares = r.counts[:, None] * samples
        total = shares.sum(dim=0)
        prototypes = torch.einsum("kl,kld->ld", shares, r.class_means(theta)) / total.clamp(min=1)[:, None]
        held = float((r.class_counts > 0).sum(dim=1).double().mean())  # classes of a client, over the cohort
        width = prototypes.shape[1]
        r.sent(up=held * (width + (self.average == "counts")), down=int(s["known"].sum()) * width)
        return (
            {"theta": Rows(r.cohort, theta), "prototypes": prototypes, "known": total > 0},
            {"L2": self._models(theta, s["prototypes"], s["known"], r)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return self._models(s["theta"][r.cohort], s["prototypes"], s["known"], r)

    def _models(self, theta: Tensor, prototypes: Tensor, known: Tensor, r: Round) -> Models:
        if self.answer == "head":
            return Models(theta, r.cohort)
        known = known & (r.class_counts > 0) if self.answer == "own" else known.expand(len(theta), -1)
        return Models(theta, r.cohort, {"prototypes": prototypes.expand(len(theta), -1, -1), "known": known}, nearest)


def nearest(net: Net, w: Tensor, x: Tensor, *, prototypes: Tensor, known: Tensor) -> Tensor:
    """Scores [B, L], largest where f(x) is nearest to the prototype [L, D] of a class `known` [L]; none: the head's.

    −‖f − c_l‖² / 2 without the term ‖f‖² that all classes share, f and c_l seen from the mean prototype.

    >>> from pfl_ops.models.base import Network
    >>> net, x = Net(Network({}, n_features=1, n_classes=2)), torch.tensor([[1.0]])  # no body: f(x) = x
    >>> prototypes = torch.tensor([[0.0], [4.0]])  # seen from 2: c = (−2, 2), f = −1
    >>> nearest(net, torch.zeros(4), x, prototypes=prototypes, known=torch.tensor([True, True])).tolist()
    [[0.0, -4.0]]
    """
    middle = prototypes.mean(dim=0)
    c = prototypes - middle
    scores = (net.features(w, x) - middle) @ c.mT - c.square().sum(dim=-1) / 2
    return torch.where(known.any(), scores.masked_fill(~known, -torch.inf), net(w, x))
