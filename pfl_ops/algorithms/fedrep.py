"""FedRep: a body that all share, a head of one's own."""

from typing import ClassVar, Literal

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import counted_steps, needs_body, whole, with_mean_head


@register("fedrep")
class FedRep(Algorithm):
    """Clients learn one representation together and keep their last layer.

    A model is (body, head). In each round every client k of the cohort, from (Θ_body, h_k):

        h_k ← train_head(Θ_body, h_k)                    E_h epochs, the body frozen
        body_k ← train_body(Θ_body, h_k)                 E_b epochs, the head frozen
        Θ_body ← Σ_k p_k body_k

    With `schedule: steps` instead J − 1 steps of the head, then one step of the whole model (FedAvg2Rep's FedRep).

    State: body [P_body], Θ_body; head [N, P_head], the h_k, all starting at Θ⁰'s.
    Stages: L1 is (Θ_body, h_k) with the new Θ_body, L2 is (body_k, h_k), G is Θ_body with the mean of all N heads.
    Sent: the body down and up, for each client of the cohort.

    Source: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, Algorithm 1 (arXiv 2102.07078); `steps`: FedAvg2Rep, Algorithm 3.
    Deviations: the defaults of E_h and E_b could not be confirmed. The experiment's local epochs are not used by
    `epochs`. In `steps`, the last step draws its batch anew and has an optimiser of its own.
    """

    ignores: ClassVar[tuple[str, ...]] = ("training.local_epochs", "training.local_steps")

    schedule: Literal["epochs", "steps"] = Field(
        "epochs", description="E_h epochs of the head, then E_b of the body; or J − 1 steps of the head, one of all"
    )
    head_epochs: int = Field(10, ge=1, le=10_000, title="E_h", description="epochs of the head (schedule epochs)")
    body_epochs: int = Field(1, ge=1, le=10_000, title="E_b", description="epochs of the body (schedule epochs)")

    def ignored(self) -> tuple[str, ...]:
        return self.ignores if self.schedule == "epochs" else ()

    def init(self, task: Task) -> State:
        needs_body(task, self.name)
        return {"body": task.initial[task.layout.body], "head": task.rows(task.initial[task.layout.head])}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        body, head = r.layout.body, r.layout.head
        w = whole(s["body"], s["head"][r.cohort])
        if self.schedule == "epochs":
            w = r.train(w, only=head, epochs=self.head_epochs)
            w = r.train(w, only=body, epochs=self.body_epochs, stream="body")
        else:
            steps = counted_steps(r, "fedrep with algorithm.schedule=steps")
            w = r.train(w, only=head, steps=steps - 1)
            w = r.train(w, steps=1, stream="whole")
        shared, heads = r.weights @ w[:, body], w[:, head]
        r.sent(up=body.stop, down=body.stop)
        return (
            {"body": shared, "head": Rows(r.cohort, heads)},
            {"L2": Models(w, r.cohort), "G": lambda _: with_mean_head(shared, s["head"], r.cohort, heads)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(whole(s["body"], s["head"][r.cohort]), r.cohort)
