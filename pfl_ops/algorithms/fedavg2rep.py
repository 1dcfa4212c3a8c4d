"""FedAvg2Rep: FedAvg until the body is worth keeping, then heads first."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import counted_steps, needs_body, whole
from pfl_ops.errors import PflOpsError


@register("fedavg2rep")
class FedAvg2Rep(Algorithm):
    """A warm-up by FedAvg, then rounds in which nearly all steps are the head's.

    A model is (body, head). In the first R_1 rounds, J_1 steps of the whole model:

        θ_k ← train(Θ);  Θ ← mean θ_k

    and in the R_2 = T − R_1 others, J − 1 steps of the head with the body frozen, then one step of the whole model:

        θ_k ← step(train_head(Θ));  Θ ← mean θ_k

    With `head: personal` the heads stay at home after the warm-up, h_k starting at the head that Θ has by then:

        (body_k, h_k) ← step(train_head(Θ_body, h_k));  Θ_body ← mean body_k

    State: central [P], Θ (its head rests after the warm-up if heads are personal, as H); personal only: offset
    [N, P_head], the h_k − H, starting at 0.
    Stages: L1 and G are Θ, L2 is θ_k. With personal heads after the warm-up L1 is (Θ_body, h_k), L2 (body_k, h_k), G
    Θ_body with the mean of all N heads.
    Sent: one model down and one up, for each client of the cohort; with personal heads only the body after the warm-up.

    Source: the FedAvg2Rep paper, Algorithms 2 and 3; `personal`: Collins et al., ICML 2021, Algorithm 1
    (arXiv 2102.07078).
    Deviations: the paper speaks of personal heads, its Algorithm 3 averages the whole model: `averaged`, the default,
    is the letter. A quarter of the rounds to warm up is its 500 of 2000 at J = 4. Where own heads start is ours. The
    last step draws its batch anew and has an optimiser of its own. The mean is plain, whatever the weighting.
    """

    requires: ClassVar[Mapping[str, Any]] = {"training.local_steps": ...}
    because: ClassVar[str] = "J counts steps: J − 1 of the head, one of the whole model"
    recommended: ClassVar[Mapping[str, Any]] = {"training.local_steps": 4}
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    warm_up: int | None = Field(None, ge=0, title="R_1", description="rounds of FedAvg first; none: a quarter of all")
    warm_up_steps: int | None = Field(
        None, ge=1, le=10_000, title="J_1", description="steps a round of the warm-up; none: J"
    )
    head: Literal["averaged", "personal"] = Field(
        "averaged", description="heads are averaged with the body, as written, or stay at home after the warm-up"
    )

    def init(self, task: Task) -> State:
        needs_body(task, self.name)
        if self.warm_up is not None and self.warm_up > task.rounds:
            raise PflOpsError(f"algorithm.warm_up={self.warm_up} is more than the {task.rounds} rounds of training")
        own = {"offset": task.rows(torch.zeros_like(task.initial[task.layout.head]))} if self.head == "personal" else {}
        return {"central": task.initial, **own}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        steps = counted_steps(r, self.name)
        if self._warming_up(r):
            theta = r.train(s["central"], steps=self.warm_up_steps)
        else:
            theta = r.train(self._held(s, r), only=r.layout.head, steps=steps - 1)
            theta = r.train(theta, steps=1, stream="whole")
        central = r.mean(theta)
        if self.head == "averaged" or self._warming_up(r):
            return {"central": central}, {"L2": Models(theta, r.cohort), "G": Models(central)}

        body, head = r.layout.body, r.layout.head
        rest = s["central"][head]
        offset = theta[:, head] - rest
        r.sent(up=body.stop, down=body.stop)
        return (
            {"central": torch.cat([central[body], rest]), "offset": Rows(r.cohort, offset)},
            {
                "L2": Models(theta, r.cohort),
                "G": lambda _: Models(torch.cat([central[body], rest + s["offset"].mean(r.cohort, offset)])),
            },
        )

    def personal(self, s: State, r: Round) -> Models:
        held = self._held(s, r)
        return Models(held) if held.dim() == 1 else Models(held, r.cohort)

    def _warming_up(self, r: Round) -> bool:
        return r.t < (r.task.rounds // 4 if self.warm_up is None else self.warm_up)

    def _held(self, s: State, r: Round) -> Tensor:
        """Models of the clients: Θ [P], or (Θ_body, h_k) [C, P]."""
        if self.head == "averaged" or self._warming_up(r):
            return s["central"]
        body, head = r.layout.body, r.layout.head
        return whole(s["central"][body], s["central"][head] + s["offset"][r.cohort])
