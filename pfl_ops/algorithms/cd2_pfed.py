"""CD2-pFed: in every layer some channels of one's own, ever more of them."""

import torch

from pfl_ops.algorithms.base import Algorithm, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.channels import Channels, needs_channels


@register("cd2_pfed")
class CD2PFed(Channels, Algorithm):
    """Clients share a part of each layer's channels and keep the others; each part alone learns to answer as the other.

    In round t the last ⌊p_t c⌋ of a layer's c output channels are private, p_t = p t / (T − 1). q^s and q^l are what
    the network answers with the private, or the shared, channels at zero. In each round every client k of the cohort,
    from w_k = Θ with its own private channels:

        w_k ← train(w_k) on F_k + ½ (KL(q^s ‖ q^l) + KL(q^l ‖ q^s))
        w_k ← β_e w_k + (1 − β_e) w_k^before             after each epoch e, β_e = β (e + 1) / E
        Θ ← Σ_k p_k w_k                                  shared channels; one that turned private rests

    w_k^before is w_k as it was before that epoch.

    State: central [P], Θ, whose private channels rest at the last value that was shared; own [N, P], how far a
        client's private channels are from there, 0 at the start and where shared.
    Stages: L1 is the new Θ with the client's private channels, L2 is w_k, G is Θ with the mean of all N clients'
        private channels.
    Sent: the shared channels up, and down those that were shared in the round before, for each client of the cohort.

    Source: Shen, Zhou, Yu, "CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in
    Federated Learning", CVPR 2022 (arXiv 2204.03880).
    Deviations: written from a summary of the paper. Ours: which channels are private, and that the head's columns
    follow the features they read while its rows and biases are shared; a channel that turns private keeps its shared
    value; no KL while a layer has no channel in one of the groups; both answers are taken at temperature 1 with the
    head's biases, neither detached; the ramp of β, on all parameters, and no average after an epoch that was not
    finished. Activations must keep zero, or a channel at zero would still be heard.
    """

    def init(self, task: Task) -> State:
        needs_channels(task, self.name)
        return {"central": task.initial, "own": task.rows(torch.zeros_like(task.initial))}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, private = s["central"], self.private(r.task, r.t)
        w = self.train(r, received + s["own"][r.cohort])
        central = torch.where(private, received, r.weights @ w)
        own = (w - received) * private
        was_shared = ~self.private(r.task, max(r.t - 1, 0))
        r.sent(up=int((~private).sum()), down=int(was_shared.sum()))
        return (
            {"central": central, "own": Rows(r.cohort, own)},
            {"L2": Models(w, r.cohort), "G": lambda _: Models(central + s["own"].mean(r.cohort, own))},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"] + s["own"][r.cohort], r.cohort)
