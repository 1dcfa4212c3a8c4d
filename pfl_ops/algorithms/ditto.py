"""Ditto: a personal model for every client, tied to the global one."""

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register


@register("ditto")
class Ditto(Algorithm):
    """FedAvg, and beside it one regularised personal model a client.

    In each round every client k of the cohort trains two models from the Θ that it received:

        θ_k ← train(Θ)                                   sent; Θ ← Σ_k p_k θ_k
        v_k ← v_k − η (∇F_k(v_k; ξ) + λ (v_k − Θ))       E_v epochs; stays with the client

    State: central [P], the global model Θ; personal [N, P], the v_k, all starting at Θ⁰.
    Stages: L1 and L2 are v_k, G is Θ.
    Sent: one model down and one up, for each client of the cohort.

    Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
    ICML 2021, Algorithm 1 (arXiv 2012.04221).
    Deviations: E_v defaults to E, where the paper counts steps.
    """

    lam: float = Field(1.0, ge=0, title="λ", description="pull of the personal model towards the global one")
    personal_epochs: int | None = Field(
        None,
        ge=1,
        le=10_000,
        title="E_v",
        description="epochs of the personal model; none: as the experiment's training",
    )

    def init(self, task: Task) -> State:
        return {"central": task.initial, "personal": task.rows(task.initial)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received = s["central"]
        central = r.weights @ r.train(received)
        v = r.train(s["personal"][r.cohort], pull=(self.lam, received), epochs=self.personal_epochs, stream="personal")
        return (
            {"central": central, "personal": Rows(r.cohort, v)},
            {"L2": Models(v, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["personal"][r.cohort], r.cohort)
