"""FedBABU: the federation learns a body under a head that never moves; clients fine-tune for themselves."""

from typing import ClassVar, Literal

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, StageName, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import fine_tuned, needs_body


@register("fedbabu")
class FedBABU(Algorithm):
    """FedAvg of the body alone; a client's own model is a fine-tuned copy of the result.

    A model is (body, head). In each round every client k of the cohort, the head being Θ⁰'s throughout:

        body_k ← train_body(Θ_body, Θ⁰_head)             the head frozen
        Θ_body ← mean body_k

    and, for evaluation only, any client:

        θ_k ← train(Θ_body, Θ⁰_head)                     E_ft epochs of the whole model (or of one part)

    State: central [P], Θ with Θ⁰'s head.
    Stages: L1 is Θ for everyone, L2 is θ_k, fine-tuned from the new Θ, G is Θ.
    Sent: the body down and up, for each client of the cohort.

    Source: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
    Algorithm 1 (arXiv 2106.06042).
    Deviations: the mean is plain, whatever the experiment's weighting; fine-tuning takes the experiment's optimiser
    with the round's η. `federated: whole` is the counterpart that the paper compares with, FedAvg.
    """

    own_stage: ClassVar[StageName] = "L2"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    fine_part: Literal["whole", "body", "head"] = Field("whole", description="what a client fine-tunes")
    fine_epochs: int = Field(5, ge=1, le=10_000, title="E_ft", description="epochs of fine-tuning")
    federated: Literal["body", "whole"] = Field("body", description="what is trained and averaged in the federation")

    def init(self, task: Task) -> State:
        needs_body(task, self.name)
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        parts = {"whole": r.layout.net, "body": r.layout.body, "head": r.layout.head}
        moving = parts[self.federated]
        central = s["central"].clone()
        central[moving] = r.mean(r.train(central, only=moving)[:, moving])
        r.sent(up=moving.stop, down=moving.stop)
        own = fine_tuned(r, central, only=parts[self.fine_part], epochs=self.fine_epochs)
        return {"central": central}, {"L2": own, "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
