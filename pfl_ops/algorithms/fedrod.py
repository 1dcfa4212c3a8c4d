"""FedROD: one body with a generic and a personalised head."""

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.algorithms.base import Algorithm, Batch, Models, Net, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import needs_cross_entropy


@register("fedrod")
class FedROD(Algorithm):
    """A generic model, trained as if classes were balanced; personal heads learn what it leaves for each client.

    θ = (body, head) is generic, f are the features of its body, g its scores; P_k is a head of client k's own. In each
    round every client k of the cohort starts θ at Θ. Each step takes one minibatch ξ, and f, g from before the step:

        θ ← θ − η ∇ −log(n_ky e^{g_y} / Σ_c n_kc e^{g_c})     n_kc: samples of class c; sent, Θ ← Σ_k p_k θ_k
        P_k ← P_k − η ∇_P cross-entropy(g + P_k f)            f and g fixed; stays with the client

    State: central [P], the generic model Θ; personal [N, P_head], the P_k, all starting at Θ⁰'s head.
    Stages: L1 is Θ with P_k, L2 is θ_k with P_k, both answering with g + P_k f; G is Θ, answering with g.
    Sent: one generic model down and one up, for each client of the cohort.

    Source: Chen, Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022,
    Algorithm 1 (arXiv 2107.00778).
    Deviations: P_k is the paper's linear head, not its hypernetwork. That f and g are those from before the step is a
    public code's.
    """

    def init(self, task: Task) -> State:
        needs_cross_entropy(task, self.name)
        return {"central": task.initial, "personal": task.rows(task.initial[task.layout.head])}

    def step(self, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        generic = b.grad(m["w"], balanced_softmax, ctx={"counts": m["counts"]})
        own = b.grad(m["h"], residual, ctx={"w": m["w"]})
        return {"w": b.descend("w", m["w"], generic), "h": b.descend("h", m["h"], own)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        start = {
            "w": s["central"].expand(len(r.cohort), -1),
            "h": s["personal"][r.cohort],
            "counts": r.class_counts,
        }
        m = r.walk(start, self.step)
        central = r.weights @ m["w"]
        return (
            {"central": central, "personal": Rows(r.cohort, m["h"])},
            {"L2": Models(m["w"], r.cohort, {"personal": m["h"]}, both), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        own = s["personal"][r.cohort]
        return Models(s["central"].expand(len(own), -1), r.cohort, {"personal": own}, both)


def balanced_softmax(net: Net, w: Tensor, x: Tensor, y: Tensor, *, counts: Tensor) -> Tensor:
    """−log(n_y e^{g_y} / Σ_c n_c e^{g_c}), [B], of scores g and class counts n [L]; classes with none drop out.

    >>> from pfl_ops.models.base import Network
    >>> net, x, y = Net(Network({}, n_features=1, n_classes=2)), torch.ones(2, 1), torch.tensor([0, 1])
    >>> loss = balanced_softmax(net, torch.zeros(4), x, y, counts=torch.tensor([1.0, 3.0]))  # equal scores
    >>> [round(p, 4) for p in (-loss).exp().tolist()]  # probabilities 1/4 and 3/4
    [0.25, 0.75]
    """
    g = net(w, x)
    lowest = torch.finfo(g.dtype).min  # not −∞, which times the weight zero of padding would be NaN
    return F.cross_entropy((g + counts.log()).masked_fill(counts == 0, lowest), y, reduction="none")


def residual(net: Net, h: Tensor, x: Tensor, y: Tensor, *, w: Tensor) -> Tensor:
    """Cross-entropy of g + h f, [B], f and g being features and scores of the generic model w [P].

    >>> from pfl_ops.models.base import Network
    >>> net, w = Net(Network({}, n_features=1, n_classes=2)), torch.tensor([1.0, -1.0, 0.0, 0.0])  # g = (x, −x)
    >>> x, y = torch.tensor([[5.0]]), torch.tensor([0])
    >>> round(float(residual(net, -w, x, y, w=w)), 4)  # h f = −g: both scores are 0, ln 2
    0.6931
    """
    return F.cross_entropy(both(net, w, x, personal=h), y, reduction="none")


def both(net: Net, w: Tensor, x: Tensor, *, personal: Tensor) -> Tensor:
    """Generic plus personal scores, [B, L], of the head's columns `personal`.

    >>> from pfl_ops.models.base import Network
    >>> net, w = Net(Network({}, n_features=1, n_classes=2)), torch.tensor([1.0, -1.0, 0.0, 0.0])
    >>> both(net, w, torch.tensor([[5.0]]), personal=torch.tensor([2.0, 0.0, 0.0, 0.0])).tolist()  # 5 + 10, −5 + 0
    [[15.0, -5.0]]
    """
    f = net.features(w, x)
    return net.head(w[net.layout.head], f) + net.head(personal, f)
