"""FedALA: every client learns how much of the global model to take, weight by weight."""

import torch
from torch import Tensor

from pfl_ops.algorithms.base import (
    Algorithm,
    Batch,
    Field,
    Models,
    Round,
    Rows,
    Share,
    Stages,
    State,
    Task,
    Update,
    register,
)  # fmt: skip
from pfl_ops.algorithms.parts import whole
from pfl_ops.errors import PflOpsError

LAST = 10  # passes whose losses must have come to rest


@register("fedala")
class FedALA(Algorithm):
    """FedAvg from starts of one's own: in the top layers a mixture of the old local and the new global model.

    Only the top p layers of θ_k^old, client k's model after its last training, are kept. In each round every client k
    of the cohort, on a fresh s % of its data:

        θ̂ = θ_k^old + (Θ − θ_k^old) ⊙ W_k                      on the top p layers, elsewhere Θ
        W_k ← clip(W_k − η_w ∇F_k(θ̂; ξ) ⊙ (Θ − θ_k^old), 0, 1)  each minibatch ξ; Θ and θ_k^old fixed
        θ_k ← train(θ̂)                                          on all of its data; sent, Θ ← Σ_k p_k θ_k

    The first time that Θ ≠ θ_k^old, W_k takes passes over the same minibatches until the final losses of the last ten
    have a standard deviation below 0.1, more than ten in any case; later one pass a round; while Θ = θ_k^old none.

    State: central [P], the global model Θ; theta [N, P_top], the θ_k^old, all starting at Θ⁰'s; weights [N, P_top], the
    W_k, all starting at 1; learnt [N], whose first learning is over.
    Stages: L1 is θ̂ with the new Θ and W_k as held (Θ itself for a client that never trained), L2 is θ_k, G is Θ.
    Sent: one model down and one up, for each client of the cohort.

    Source: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated
    Learning", AAAI 2023, Algorithm 1 (arXiv 2212.01197).
    Deviations: ours are the cap on passes, and that Θ = θ_k^old is asked of the top p layers, all that is used of it. A
    final loss is that of a pass's last minibatch, before its step, and the deviation is the population's, as in the
    authors' code. That code counts parameter tensors where p counts layers (its 2 are our 1), drops an unfinished
    minibatch and draws neighbouring samples.
    """

    layers: int = Field(
        1, ge=1, le=10_000, title="p", description="top layers that are mixed; the rest is taken from Θ"
    )
    share: float = Field(80.0, gt=0, le=100, title="s", description="percent of a client's data that W learns on")
    weight_lr: float = Field(1.0, ge=0, title="η_w", description="learning rate of W")
    spread: float = Field(0.1, ge=0, description="standard deviation of losses below which the first learning ends")
    most_passes: int = Field(100, ge=1, le=10_000, description="passes after which the first learning ends in any case")

    def init(self, task: Task) -> State:
        names = task.layout.layers()
        if self.layers > len(names):
            raise PflOpsError(f"fedala needs algorithm.layers <= {len(names)}, the network's layers; got {self.layers}")
        top = task.initial[task.layout.top(self.layers)]
        return {
            "central": task.initial,
            "theta": task.rows(top),
            "weights": task.rows(torch.ones_like(top)),
            "learnt": task.rows(top.new_zeros((), dtype=torch.bool)),
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, old, weights, learnt = s["central"], *(s[name][r.cohort] for name in ("theta", "weights", "learnt"))
        top = r.layout.top(self.layers)
        differs = (old != received[top]).any(dim=1)
        weights = self._learn(r, received, old, weights, differs, first=~learnt)
        theta = r.train(_mixed(received, old, weights))
        central = r.weights @ theta
        return (
            {
                "central": central,
                "theta": Rows(r.cohort, theta[:, top]),
                "weights": Rows(r.cohort, weights),
                "learnt": Rows(r.cohort, learnt | differs),
            },
            {"L2": Models(theta, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(_mixed(s["central"], s["theta"][r.cohort], s["weights"][r.cohort]), r.cohort)

    def _learn(self, r: Round, central: Tensor, old: Tensor, weights: Tensor, differs: Tensor, first: Tensor) -> Tensor:
        """W_k after this round's passes, [C, P_top]: none unless a client `differs`, many if it is the `first` time."""
        top, rate = r.layout.top(self.layers), self.weight_lr

        def step(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
            model, away = _mixed(central, m["old"], m["w"]), central[top] - m["old"]
            final = torch.where(b.ends, b.loss(model), m["final"]) if b.ends.any() else m["final"]
            g = b.grad(model, only=top)[:, top]
            return {"w": (m["w"] - rate * g * away).clamp(0, 1), "final": final}

        data = Share(0, self.share / 100, redraw=True)
        weights, finals = weights.clone(), old.new_zeros(len(old), LAST)
        at_it, calls = differs.nonzero()[:, 0], r.calls()
        for done in range(1, self.most_passes + 1):
            if not len(at_it):
                break
            r.rewind(calls)  # to the same minibatches: the final losses of different ones might never come to rest
            start = {"w": weights[at_it], "old": old[at_it], "final": finals[at_it, -1]}
            m = r.over(r.cohort[at_it.cpu()]).walk(start, step, epochs=1, share=data, stream="weights")
            weights[at_it] = m["w"]
            finals[at_it] = torch.cat([finals[at_it, 1:], m["final"][:, None]], dim=1)
            rests = (finals[at_it].std(dim=1, correction=0) < self.spread) & (done > LAST)
            at_it = at_it[first[at_it] & ~rests]
        return weights


def _mixed(central: Tensor, old: Tensor, weights: Tensor) -> Tensor:
    """Θ, and in its top layers θ_k^old + (Θ − θ_k^old) ⊙ W_k: [C, P] of old and weights [C, P_top]."""
    below = len(central) - old.shape[1]
    return whole(central[:below], torch.lerp(old, central[below:], weights))
