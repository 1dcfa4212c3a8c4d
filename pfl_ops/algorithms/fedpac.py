"""FedPAC: features that agree over clients, and heads combined with those that help."""

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Net, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.losses import towards_centres
from pfl_ops.algorithms.parts import needs_body, needs_cross_entropy, whole, with_mean_head
from pfl_ops.algorithms.solvers import gram, min_norm
from pfl_ops.errors import PflOpsError

LEAST = 1e-3
"""Weights of heads below this are nothing."""


@register("fedpac")
class FedPAC(Algorithm):
    """Clients share a body that is drawn to common features, and get a combination of all heads that suits their data.

    A model is (body, head), f its features. In each round every client k of the cohort, from (Θ_body, h_k), where π_kc
    is the share of class c in its data and μ_kc that class's mean feature under Θ_body:

        g_kc = π_kc μ_kc,  V_k = (1/n_k) (Σ_c π_kc E_c ‖f‖² − Σ_c ‖g_kc‖²)                 sent
        h_k ← train_head(Θ_body, h_k)                    E_h epochs at η_h, the body frozen
        body_k ← train_body(Θ_body, h_k)                 E epochs on F_k + λ mean (f(x) − c̄_y)², the head frozen
        Θ_body ← Σ_k p_k body_k;  c̄_c ← Σ_k n_kc μ_kc(body_k) / Σ_k n_kc
        h_k ← Σ_j α_kj h_j,  α_k = argmin Σ_j α_j² V_j + Σ_c ‖g_kc − Σ_j α_j g_jc‖² on the simplex

    In the first round there is no c̄ and λ = 0; later a class that the last cohort lacked has μ_kc in the place of c̄_c.

    State: body [P_body], Θ_body; head [N, P_head], the combined h_k, all starting at Θ⁰'s; centres [L, D], the c̄_c;
        known [L], whether the last cohort had the class.
    Stages: L1 is (Θ_body, combined h_k) with the new Θ_body, L2 is (body_k, h_k) as trained, G is Θ_body with the mean
        of all N heads.
    Sent: up the model, g_k, V_k and the class means after training, down the model and the c̄_c, for each client of the
        cohort; without `combine` the body in the model's place, no g_k and no V_k. Class counts are the server's
        already.

    Source: Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
    ICLR 2023, Algorithm 1 (arXiv 2306.11867).
    Deviations: α below 0.001 count as 0, and a client whose problem can't be solved keeps its own head, as in the
    authors' code. Ours: the head's epochs are SGD, whatever the optimiser, with the experiment's momentum and weight
    decay; η_h does not decay.
    """

    lam: float = Field(1.0, ge=0, title="λ", description="pull of features towards their class's centre")
    head_lr: float = Field(0.1, gt=0, title="η_h", description="learning rate of the head, by SGD")
    head_epochs: int = Field(1, ge=1, le=10_000, title="E_h", description="epochs of the head, before the body's")
    combine: bool = Field(True, description="heads are combined over clients; off: each keeps its own")

    def init(self, task: Task) -> State:
        needs_body(task, self.name)
        needs_cross_entropy(task, self.name)
        nothing = task.initial.new_zeros(task.net.n_classes, task.net.n_features)
        return {
            "body": task.initial[task.layout.body],
            "head": task.rows(task.initial[task.layout.head]),
            "centres": nothing,
            "known": nothing[:, 0],
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        body, head = r.layout.body, r.layout.head
        means = r.class_means(s["body"])  # μ, [C, L, D]
        squares, n = r.sweep(s["body"], _square_length)
        g = (r.class_counts / n[:, None])[..., None] * means
        variance = (squares / n - g.square().sum(dim=(1, 2))).clamp(min=0) / n

        lam = torch.full_like(r.n, self.lam if r.t else 0.0)
        centres = torch.where(s["known"][:, None] > 0, s["centres"], means)
        given = {"centres": centres, "known": torch.ones_like(r.class_counts), "lam": lam}
        w = whole(s["body"], s["head"][r.cohort])
        w = r.train(w, only=head, lr=self.head_lr, epochs=self.head_epochs, optimiser="sgd")
        w = r.train(w, towards_centres, ctx=given, only=body, stream="body")

        shared = r.weights @ w[:, body]
        mass = r.class_counts * r.counts[:, None]
        seen = mass.sum(dim=0)
        new = torch.einsum("kl,kld->ld", mass, r.class_means(w)) / seen.clamp(min=1)[:, None]
        heads = combination(g.flatten(1), variance).to(w) @ w[:, head] if self.combine else w[:, head]
        model = r.layout.size if self.combine else shared.numel()
        r.sent(up=model + new.numel() + (g[0].numel() + 1) * self.combine, down=model + new.numel())
        return (
            {"body": shared, "head": Rows(r.cohort, heads), "centres": new, "known": (seen > 0).to(seen)},
            {"L2": Models(w, r.cohort), "G": lambda _: with_mean_head(shared, s["head"], r.cohort, heads)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(whole(s["body"], s["head"][r.cohort]), r.cohort)


def combination(g: Tensor, variance: Tensor) -> Tensor:
    """α [C, C]: weights of all heads in each client's head, from all clients' g [C, L·D] and V [C].

    Row k is the minimum on the simplex of αᵀ (diag V + D) α, D_jl = ⟨g_k − g_j, g_k − g_l⟩; small entries are dropped,
    and a problem that can't be solved leaves the own head.

    >>> alpha = combination(torch.tensor([[0.0], [1.0]]), variance=torch.tensor([1.0, 0.0]))
    >>> alpha.round(decimals=6).tolist()  # client 0: α_0² + α_1²; client 1, without noise, needs no other head
    [[0.5, 0.5], [0.0, 1.0]]
    """
    products = gram(g - g.mean(dim=0))
    own, noise = torch.eye(len(g), dtype=torch.float64), variance.double().cpu().diag()

    def row(k: int) -> Tensor:
        to_k = products[k]
        try:
            alpha = min_norm(noise + to_k[k] - to_k[:, None] - to_k[None, :] + products)
        except (PflOpsError, RuntimeError):
            return own[k]
        alpha = torch.where(alpha < LEAST, 0.0, alpha)
        return alpha / alpha.sum() if alpha.any() else own[k]

    return torch.stack([row(k) for k in range(len(g))])


def _square_length(net: Net, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """‖f(x)‖², [B]."""
    return net.features(w, x).square().sum(dim=-1)
