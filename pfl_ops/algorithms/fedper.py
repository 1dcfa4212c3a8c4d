"""FedPer: a body that all share, a head of one's own, trained together."""

from pfl_ops.algorithms.base import Algorithm, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import needs_body, whole, with_mean_head


@register("fedper")
class FedPer(Algorithm):
    """Clients train whole models, average the bodies and keep the heads.

    A model is (body, head). In each round every client k of the cohort:

        (body_k, h_k) ← train(Θ_body, h_k)               all of it at once
        Θ_body ← Σ_k p_k body_k                          h_k stays with the client

    State: body [P_body], Θ_body; head [N, P_head], the h_k, all starting at Θ⁰'s.
    Stages: L1 is (Θ_body, h_k) with the new Θ_body, L2 is (body_k, h_k), G is Θ_body with the mean of all N heads.
    Sent: the body down and up, for each client of the cohort.

    Source: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019,
    Algorithms 1 and 2 (arXiv 1912.00818).
    Deviations: the personal part is the last layer, where the paper tries several sizes of it. G is the third seed's.
    """

    def init(self, task: Task) -> State:
        needs_body(task, self.name)
        return {"body": task.initial[task.layout.body], "head": task.rows(task.initial[task.layout.head])}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        body, head = r.layout.body, r.layout.head
        w = r.train(whole(s["body"], s["head"][r.cohort]))
        shared, heads = r.weights @ w[:, body], w[:, head]
        r.sent(up=body.stop, down=body.stop)
        return (
            {"body": shared, "head": Rows(r.cohort, heads)},
            {"L2": Models(w, r.cohort), "G": lambda _: with_mean_head(shared, s["head"], r.cohort, heads)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(whole(s["body"], s["head"][r.cohort]), r.cohort)
