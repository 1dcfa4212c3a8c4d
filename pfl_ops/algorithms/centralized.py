"""centralized: all data in one place, the upper reference."""

import math
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
)


@register("centralized")
class Centralized(Algorithm):
    """One model, trained on the samples of all clients as if there were no clients.

        η ← η (1 + cos(π t / T)) / 2                     t from 0; the experiment's η, decay included
        Θ ← train(Θ)                                     E epochs (or J steps) over all n samples

    The optimiser goes on from round to round: its moments and its count of steps are kept.

    State: w [P], Θ; first, second [P] and count [], the optimiser's moments and steps so far, all starting at 0.
    Stages: G is Θ; L1 and L2 are absent.
    Sent: nothing.

    Source: the upper reference of the FedAvg2Rep paper, Sec. 1.1 and 3.2.
    Deviations: a round stands for its epoch, in training and in the cosine, which ends near 0, not at it. Participation
    has no say: every round is on all data.
    """

    own_stage: ClassVar[StageName] = "G"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="factor on the learning rate over the rounds: half a cosine wave from 1 to 0, or 1"
    )

    def init(self, task: Task) -> State:
        zero = torch.zeros_like(task.initial)
        return {"w": task.initial, "first": zero, "second": zero, "count": zero[0]}

    def step(self, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        return b.carry_on(m, b.grad(m["w"]))

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        if self.schedule == "cosine":
            r.lr *= (1 + math.cos(math.pi * r.t / r.task.rounds)) / 2
        m = r.pooled().walk({name: value[None] for name, value in s.items()}, self.step)
        r.sent(up=0, down=0)
        return {name: value[0] for name, value in m.items()}, {"G": Models(m["w"][0])}
