"""LG-FedAvg: a body of one's own, a head that all share."""

from pfl_ops.algorithms.base import Algorithm, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import needs_body, whole


@register("lg_fedavg")
class LGFedAvg(Algorithm):
    """Clients train whole models, average the heads and keep the bodies.

    A model is (body, head). In each round every client k of the cohort:

        (body_k, h_k) ← train(body_k, Θ_head)            all of it at once
        Θ_head ← Σ_k p_k h_k                             body_k stays with the client

    State: head [P_head], Θ_head; body [N, P_body], the body_k, all starting at Θ⁰'s.
    Stages: L1 is (body_k, Θ_head) with the new Θ_head, L2 is (body_k, h_k); there is no G.
    Sent: the head down and up, for each client of the cohort.

    Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally: Federated
    Learning with Local and Global Representations", 2020, Algorithm 1 (arXiv 2001.01523).
    Deviations: the shared part is the last layer. Clients start from Θ⁰; a run of FedAvg before it, as in the authors'
    experiments, is `model.weights`.
    """

    def init(self, task: Task) -> State:
        needs_body(task, self.name, does="keeps")
        return {"head": task.initial[task.layout.head], "body": task.rows(task.initial[task.layout.body])}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        body, head = r.layout.body, r.layout.head
        w = r.train(whole(s["body"][r.cohort], s["head"]))
        shared = r.weights @ w[:, head]
        r.sent(up=len(shared), down=len(shared))
        return {"head": shared, "body": Rows(r.cohort, w[:, body])}, {"L2": Models(w, r.cohort)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(whole(s["body"][r.cohort], s["head"]), r.cohort)
