"""FedAvg: local training, then the mean of the models."""

from pfl_ops.algorithms.base import Algorithm, Models, Round, Stages, State, Task, Update, register


@register("fedavg")
class FedAvg(Algorithm):
    """One global model, the average of what the clients make of it.

        θ_k ← train(Θ)
        Θ ← Σ_k p_k θ_k

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, Algorithm 1 (arXiv 1602.05629).
    Deviations: none; p_k is `participation.weighting`, n_k / Σ n there.
    """

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        theta = r.train(s["central"])
        central = r.weights @ theta
        return {"central": central}, {"L2": Models(theta, r.cohort), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
