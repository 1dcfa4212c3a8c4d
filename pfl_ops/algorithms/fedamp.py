"""FedAMP: every client is drawn to the models that are like its own."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.solvers import square_distances
from pfl_ops.errors import PflOpsError


@register("fedamp")
class FedAMP(Algorithm):
    """A mixture u_k for every client, in which near models weigh more, and training that is pulled towards it.

    In each round every client k of the cohort trains and uploads; the server mixes the M models that it has by then:

        θ_k ← θ_k − η (∇F_k(θ_k; ξ) + (λ/α) (θ_k − u_k))         from its own θ_k (option: from u_k)
        ξ_kj ← α/(M − 1) · A'(x_kj), A'(x) = e^{−x/σ} / σ        x_kj = ‖θ_k − θ_j‖² / mean of these
        u_k ← (1 − Σ_{j≠k} ξ_kj) θ_k + Σ_{j≠k} ξ_kj θ_j          sent back

    or, as the paper has it (`unit: absolute`), ξ_kj ← α A'(‖θ_k − θ_j‖²).

    State: theta [N, P], the θ_k as last uploaded, and mixed [N, P], the u_k as last received, all starting at Θ⁰;
    known [N], whose model the server has.
    Stages: L1 is u_k, L2 is θ_k; there is no global model.
    Sent: one model up and one down, for each client of the cohort.

    Source: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI
    2021, Algorithm 1 (arXiv 2007.03797).
    Deviations: `unit: relative` is ours. In the paper's units σ must fit the square distances between models, which
    grow with P and with training: with α 5e-3, σ 0.1 and λ 5e-7, found in a public code, every ξ underflows on the
    networks here, and the method is `local`. Relative units need no such knowledge: Σ ξ <= α/σ for any models. The mean
    is over k in the cohort and j ≠ k. A client that comes back is pulled towards the u_k that it got when it was last
    there.
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    alpha: float = Field(1.0, gt=0, title="α", description="step towards other models; Σ_j ξ_kj must not exceed 1")
    sigma: float = Field(
        1.0,
        gt=0,
        title="σ",
        description="square distance over which a weight falls to 1/e; small: only near models count",
    )
    lam: float = Field(0.1, ge=0, title="λ", description="pull of training towards u_k, divided by α")
    unit: Literal["relative", "absolute"] = Field(
        "relative", description="of σ: the mean square distance, of α: 1/(M − 1); or both as they are"
    )
    start: Literal["own", "mixed"] = Field("own", description="where training starts: at θ_k, or at u_k")

    def init(self, task: Task) -> State:
        return {
            "theta": task.rows(task.initial),
            "mixed": task.rows(task.initial),
            "known": torch.zeros(task.n_clients, dtype=torch.bool),
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        cohort, u = r.cohort.cpu(), s["mixed"][r.cohort]
        start = s["theta"][r.cohort] if self.start == "own" else u
        theta = r.train(start, pull=(self.lam / self.alpha, u))

        known = s["known"].index_fill(0, cohort, True)
        who = known.nonzero()[:, 0]
        own = torch.searchsorted(who, cohort)
        models = s["theta"][who]
        models[own] = theta
        xi = self._weights(square_distances(theta, models), own)
        if r.kept:  # L2 of absent clients, whose u_k is dropped, does not depend on ξ
            self._check_sums(xi)
        xi = xi.to(theta)
        mixed = (1 - xi.sum(dim=1, keepdim=True)) * theta + xi @ models
        return (
            {"theta": Rows(r.cohort, theta), "mixed": Rows(r.cohort, mixed), "known": known},
            {"L2": Models(theta, r.cohort)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["mixed"][r.cohort], r.cohort)

    def _weights(self, x: Tensor, own: Tensor) -> Tensor:
        """ξ, [C, M]: zero for a client's own model.

        Args:
            x: square distances [C, M]. own: which of the M models is each client's own, [C].
        """
        others = torch.ones_like(x).scatter_(1, own[:, None], 0)
        alpha = self.alpha
        if self.unit == "relative":
            mean = (others * x).sum() / others.sum().clamp(min=1)
            x, alpha = torch.where(mean > 0, x / mean, x), alpha / max(x.shape[1] - 1, 1)
        return others * alpha * (-x / self.sigma).exp() / self.sigma

    def _check_sums(self, xi: Tensor) -> None:
        """Refuse weights of which a client's sum to more than 1.

        Raises:
            PflOpsError: there are some.
        """
        most = float(xi.sum(dim=1).max())
        if most > 1 + 1e-9:
            raise PflOpsError(
                f"fedamp: the weights of other models sum to {most:.3g} > 1 with alpha {self.alpha:g} and sigma "
                f"{self.sigma:g}; lower algorithm.alpha (at most {self.alpha / most:.3g} here) or choose another "
                "algorithm.sigma"
            )
