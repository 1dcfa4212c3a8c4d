"""Per-FedAvg: a global model from which one gradient step makes a good personal one."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import (
    Algorithm,
    Batch,
    Field,
    Models,
    Round,
    StageName,
    Stages,
    State,
    Task,
    Update,
    register,
)  # fmt: skip
from pfl_ops.errors import PflOpsError

TRIED = 64  # samples on which two passes of a network with dropout differ


@register("per_fedavg")
class PerFedAvg(Algorithm):
    """FedAvg on the losses after one step of adaptation, F_k(w) = f_k(w − α ∇f_k(w)); f_k is client k's loss.

    In each round every client k of the cohort starts with w = Θ. Each step takes three independent batches D, D', D'':

        g ← ∇f_k(w − α ∇f_k(w; D); D')
        w ← w − β (I − α H_k(w; D'')) g                  H_k = ∇²f_k; `exact`: H g by `b.hvp`
        Θ ← mean_S w_k

    `hf` (Hessian-free) takes (∇f_k(w + δ g; D'') − ∇f_k(w − δ g; D'')) / 2δ for H g, `fo` (first-order) takes 0. With
    dropout `hf` is refused: its two gradients would be of different units, and δ divides their difference. Any client
    adapts a copy that it does not keep, for evaluation:

        v_k ← Θ − α ∇f_k(Θ)                              on all of its training data, from the new Θ

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is v_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach", NeurIPS 2020, Algorithm 1 (arXiv 2002.07948).
    Deviations: the three batches of a step come from three independent passes through the client's data, so all have
    the size of the experiment's batch. β is the round's η unless it is given; then it is the same in all rounds, and
    the experiment's η has no effect. The step is the experiment's optimiser, with plain SGD the paper's. v_k takes the
    whole gradient, as F_k does. The defaults of α and δ are ours.
    """

    own_stage: ClassVar[StageName] = "L2"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    alpha: float = Field(0.01, ge=0, title="α", description="rate of the adaptation step")
    beta: float | None = Field(None, gt=0, title="β", description="rate of a local step; none: the experiment's η")
    variant: Literal["exact", "hf", "fo"] = Field("exact", description="how H g is computed")
    delta: float = Field(0.001, gt=0, title="δ", description="half the width of the difference of gradients (hf)")

    def ignored(self) -> tuple[str, ...]:
        return (*self.ignores, *(() if self.beta is None else ("training.lr", "training.lr_decay")))

    def init(self, task: Task) -> State:
        if self.variant == "hf" and _draws(task):
            raise PflOpsError(
                "per_fedavg with algorithm.variant=hf needs a network without dropout, which draws other units for "
                "each of the two gradients whose difference it divides by delta; use algorithm.variant exact or fo"
            )
        return {"central": task.initial}

    def step(self, m: dict[str, Tensor], d: Batch, d1: Batch, d2: Batch) -> dict[str, Tensor]:
        w, alpha, delta = m["w"], self.alpha, self.delta
        g = d1.grad(w - alpha * d.grad(w))
        if self.variant == "exact":
            g = g - alpha * d2.hvp(w, g)
        elif self.variant == "hf":
            g = g - alpha * (d2.grad(w + delta * g) - d2.grad(w - delta * g)) / (2 * delta)
        return {"w": d.descend("w", w, g)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        if self.beta is not None:
            r.lr = self.beta
        start = s["central"].expand(len(r.cohort), -1)
        central = r.mean(r.walk({"w": start}, self.step, batches=3)["w"])

        def adapted(clients: Tensor) -> Models:
            own = r.over(clients)
            return Models(central - self.alpha * own.grad(central), own.cohort)

        return {"central": central}, {"L2": adapted, "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])


def _draws(task: Task) -> bool:
    """True if the network draws numbers as it learns (dropout), so that two losses of one model differ.

    >>> from pfl_ops.testing import quadratic_round
    >>> _draws(quadratic_round([0.0]).task)
    False
    """
    x = task.example.expand(TRIED, *task.example.shape[1:])
    y = torch.zeros(TRIED, dtype=torch.int64, device=x.device)
    cuda = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        one, other = (task.loss(task.net, task.initial, x, y) for _ in range(2))
    return not torch.allclose(one, other)
