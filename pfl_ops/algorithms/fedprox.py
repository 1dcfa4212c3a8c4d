"""FedProx: FedAvg with a proximal term, which keeps local models near the global one."""

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Stages, State, Task, Update, register


@register("fedprox")
class FedProx(Algorithm):
    """FedAvg with a proximal term that keeps the local models near the global one.

        θ_k ← θ_k − η (∇F_k(θ_k; ξ) + μ (θ_k − Θ))       from Θ
        Θ ← Σ_k p_k θ_k

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020,
    Algorithm 2 (arXiv 1812.06127).
    Deviations: clients are weighted in the mean (`participation.weighting`), where Algorithm 2 draws them by n_k / n
    and averages plainly.
    """

    mu: float = Field(0.01, ge=0, title="μ", description="pull of the local model towards the global one")

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        theta = r.train(s["central"], pull=(self.mu, s["central"]))
        central = r.weights @ theta
        return {"central": central}, {"L2": Models(theta, r.cohort), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
