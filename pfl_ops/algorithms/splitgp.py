"""SplitGP: a network cut in two, whose first part can answer alone where it is sure."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_ops.algorithms.base import Algorithm, Field, Models, Net, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import needs_body, needs_cross_entropy


@register("splitgp")
class SplitGP(Algorithm):
    """A client's side of the network is its own in part, the server's side is common; either has an exit that answers.

    A model is (c, s): c the body's first layers with an exit (a linear layer on what leaves them), s the rest with the
    head. In each round every client k of the cohort, from (c_k, s):

        (c_k, s_k) ← train(c_k, s) on γ CE(exit of c) + (1 − γ) CE(exit of s)
        s ← Σ_k p_k s_k,  c ← Σ_k p_k c_k
        c_k ← λ c_k + (1 − λ) c

    A sample is answered by the exit of c where the entropy of its softmax, in nats, is at most E_th, else by s.

    State: central [P], (c, s); client [N, P_c], the mixed c_k, all starting at Θ⁰'s.
    Stages: L1 is (mixed c_k, s) with the new s, L2 is (c_k, s_k) as trained, G is (c, s); all answer as said above.
    Sent: one model down and one up, for each client of the cohort.

    Source: Han, Kim, Choi, Brinton, Moon, "SplitGP: Achieving Both Generalization and Personalization in Federated
    Learning", INFOCOM 2023 (arXiv 2212.08343).
    Deviations: λ = 0.2 is a later code's of that group, and E_th = 0.2 one of its values; neither could be confirmed.
    Ours: the cut behind the first layer.
    """

    gamma: float = Field(0.5, ge=0, le=1, title="γ", description="share of the client's exit in the loss")
    lam: float = Field(0.2, ge=0, le=1, title="λ", description="share of its own that a client's side keeps")
    threshold: float = Field(
        0.2, ge=0, title="E_th", description="entropy in nats up to which the client's exit answers"
    )
    depth: int = Field(1, ge=1, le=10_000, description="layers with parameters on the client's side, its exit left out")

    def extra(self, task: Task) -> dict[str, tuple[int, ...]]:
        needs_body(task, self.name)
        needs_cross_entropy(task, self.name)
        leaves = task.net.front(task.initial, task.example, self.depth)[0].numel()
        return {"exit.weight": (task.net.n_classes, leaves), "exit.bias": (task.net.n_classes,)}

    def init(self, task: Task) -> State:
        return {"central": task.initial, "client": task.rows(self._client(task.net, task.initial))}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        w = r.train(self._joined(s, r), partial(two_exits, gamma=self.gamma, depth=self.depth))
        central = r.weights @ w
        mixed = torch.lerp(central, w, self.lam)  # λ w + (1 − λ) Θ
        return (
            {"central": central, "client": Rows(r.cohort, self._client(r.net, mixed))},
            {"L2": self._answering(w, r.cohort), "G": self._answering(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return self._answering(self._joined(s, r), r.cohort)

    def _client(self, net: Net, w: Tensor) -> Tensor:
        """The client's side of w [..., P]: its layers and their exit, [..., P_c]."""
        return torch.cat([w[..., net.cut(self.depth)], w[..., net.layout.net.stop :]], dim=-1)

    def _joined(self, s: State, r: Round) -> Tensor:
        """Each client's own side with the common one, [C, P]."""
        cut, client = r.net.cut(self.depth).stop, s["client"][r.cohort]
        server = s["central"][cut : r.layout.net.stop].expand(len(client), -1)
        return torch.cat([client[:, :cut], server, client[:, cut:]], dim=1)

    def _answering(self, w: Tensor, clients: Tensor | None = None) -> Models:
        threshold = torch.full_like(w[..., 0], self.threshold)
        return Models(w, clients, {"threshold": threshold}, partial(surer_exit, depth=self.depth))


def client_exit(net: Net, w: Tensor, a: Tensor) -> Tensor:
    """Scores [B, L] of the exit on the activations a [B, ...] that leave the client's side.

    >>> from pfl_ops.models.base import Network
    >>> network = Network({"fc": torch.nn.Linear(1, 1, bias=False)}, n_features=1, n_classes=2)
    >>> net = Net(network, extra={"exit.weight": (2, 1), "exit.bias": (2,)})
    >>> client_exit(net, torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0, 3.0]), torch.tensor([[10.0]])).tolist()
    [[10.0, -7.0]]
    """
    views = net.layout.views(w)
    return F.linear(a.flatten(1), views["exit.weight"], views["exit.bias"])


def two_exits(net: Net, w: Tensor, x: Tensor, y: Tensor, *, gamma: float, depth: int) -> Tensor:
    """γ CE(client's exit) + (1 − γ) CE(server's exit), [B].

    >>> from pfl_ops.models.base import Network
    >>> network = Network({"fc": torch.nn.Linear(1, 1, bias=False)}, n_features=1, n_classes=2)
    >>> net, w = Net(network, extra={"exit.weight": (2, 1), "exit.bias": (2,)}), torch.zeros(9)
    >>> w[8] = 1.0986123  # ln 3: the client's probabilities are 1/4 and 3/4, the server's 1/2 and 1/2
    >>> x, y = torch.tensor([[5.0]]), torch.tensor([0])
    >>> round(float(two_exits(net, w, x, y, gamma=0.5, depth=1)), 4)  # (ln 4 + ln 2) / 2
    1.0397
    """
    a = net.front(w, x, depth)
    own = F.cross_entropy(client_exit(net, w, a), y, reduction="none")
    return gamma * own + (1 - gamma) * F.cross_entropy(net.back(w, a, depth), y, reduction="none")


def surer_exit(net: Net, w: Tensor, x: Tensor, *, threshold: Tensor, depth: int) -> Tensor:
    """Scores [B, L]: the client's where their entropy in nats is at most `threshold`, else the server's.

    >>> from pfl_ops.models.base import Network
    >>> network = Network({"fc": torch.nn.Linear(1, 1, bias=False)}, n_features=1, n_classes=2)
    >>> net = Net(network, extra={"exit.weight": (2, 1), "exit.bias": (2,)})
    >>> w = torch.tensor([2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 7.0])  # client: two scores 7, entropy ln 2
    >>> [surer_exit(net, w, torch.ones(1, 1), threshold=torch.tensor(t), depth=1).tolist() for t in (0.5, 0.7)]
    [[[6.0, 0.0]], [[7.0, 7.0]]]
    """
    a = net.front(w, x, depth)
    own = client_exit(net, w, a)
    logs = torch.log_softmax(own, dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1, keepdim=True)
    return torch.where(entropy <= threshold, own, net.back(w, a, depth))
