"""CD2-pFed's split: in every layer the last channels are private, and both groups learn to give equal scores."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_ops.algorithms.base import Batch, Field, Loss, Net, Round, Task
from pfl_ops.algorithms.parts import needs_body, needs_cross_entropy
from pfl_ops.errors import PflOpsError
from pfl_ops.section import Section


class Channels(Section):
    """Share of private channels, and the training of a model that is split so.

    In round t the last ⌊p_t c⌋ of a layer's c output channels are private, p_t = p t / (T − 1): their rows, their
    biases and, where they are features, the head's columns that read them. The head's biases are shared.

    >>> Channels(share=0.5, temporal=False).model_dump()
    {'share': 0.5, 'temporal': False, 'beta': 0.9}
    """

    share: float = Field(0.5, ge=0, le=1, title="p", description="private share of each layer's channels, last round")
    temporal: bool = Field(True, description="average a model with what it was before, after each local epoch")
    beta: float = Field(
        0.9, ge=0, le=1, title="β", description="weight of the trained model in that average after the last epoch"
    )

    def private(self, task: Task, t: int) -> Tensor:
        """True for each column that is private in round t, bool [P].

        >>> from pfl_ops.algorithms.fedavg import FedAvg
        >>> from pfl_ops.federation.settings import Training
        >>> from pfl_ops.testing import MethodSimulation, ragged_task
        >>> task = MethodSimulation(ragged_task(features=1, hidden=2, classes=1), FedAvg(), Training(rounds=3)).task
        >>> task.layout.layers(), task.layout.size  # fc 2 x 1 and 2 biases, head 1 x 2 and its bias
        (['body.0', 'head'], 7)
        >>> Channels(share=0.5).private(task, t=2).int().tolist()  # the second channel; the head's bias is shared
        [0, 1, 0, 1, 0, 1, 0]
        """
        net, head = task.net, task.layout.head.start
        mask = torch.zeros(task.layout.size, dtype=torch.bool, device=task.initial.device)
        for block in task.layout.within(task.layout.body):
            channels = block.shape[0]
            shared = channels - self._count(task, t, channels)
            mask[block.start : block.stop].view(channels, -1)[shared:] = True
        places = net.n_features // channels  # of each of the last layer's channels among the features
        columns = mask[head : head + net.n_classes * net.n_features].view(net.n_classes, net.n_features)
        columns[:, shared * places :] = True
        return mask

    def train(self, r: Round, w: Tensor) -> Tensor:
        """Train rows w [C, P] as the experiment states, by `alike` as the loss.

        >>> from pfl_ops.algorithms.fedavg import FedAvg
        >>> from pfl_ops.federation.settings import Training
        >>> from pfl_ops.testing import MethodSimulation, ragged_task
        >>> play = MethodSimulation(ragged_task(), FedAvg(), Training(rounds=3, local_epochs=None, local_steps=2))
        >>> start = play.task.initial.expand(2, -1)  # round 0 has no private channels: the experiment's training
        >>> Channels(temporal=False).train(play.at([0, 3]), start).equal(play.at([0, 3]).train(start))
        True
        """
        loss = self._loss(r)
        if not self.temporal:
            return r.train(w, loss)

        def step(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
            new, ends = b.descend("w", m["w"], b.grad(m["w"], loss)), b.ends[:, None]
            beta = (b.epoch + 1) / m["epochs"] * self.beta
            mixed = torch.lerp(m["before"], new, beta[:, None])
            return {"w": torch.where(ends, mixed, new), "before": torch.where(ends, mixed, m["before"])}

        return r.walk({"w": w, "before": w, "epochs": r.steps() / r.steps(epochs=1)}, step)["w"]

    def _loss(self, r: Round) -> Loss | None:
        """`alike`; plain cross-entropy while any layer has no channel in one of the groups."""
        widths = {block.shape[0] for block in r.layout.within(r.layout.body)}
        if not all(0 < self._count(r.task, r.t, c) < c for c in widths):
            return None
        private = self.private(r.task, r.t)
        answering = private.clone()
        answering[r.layout.head.start + r.net.n_classes * r.net.n_features : r.layout.net.stop] = True  # head's biases
        return partial(alike, groups=(~private, answering))

    def _count(self, task: Task, t: int, channels: int) -> int:
        """⌊p_t c⌋; a product that rounding left just under a whole number counts as that."""
        return int(self.share * t * channels / max(task.rounds - 1, 1) + 1e-9)


def alike(net: Net, w: Tensor, x: Tensor, y: Tensor, *, groups: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy + ½ (KL(q^s ‖ q^l) + KL(q^l ‖ q^s)), [B]: q^s, q^l are the predictions of each group alone.

    A channel at zero is one whose row and bias are zero, since every activation keeps zero.

    Args:
        groups: the columns that are left to the shared and to the private channels, bool [P] each.

    >>> from pfl_ops.federation.network.net import Net
    >>> from pfl_ops.models.base import Network
    >>> net, x, y = Net(Network({}, n_features=2, n_classes=2)), torch.ones(1, 2), torch.tensor([0])
    >>> w = torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.0])  # the inputs cancel: ln 2; alone they give (0, 1), (0, −1)
    >>> first = torch.tensor([True, False, True, False, True, True])
    >>> second = torch.tensor([False, True, False, True, True, True])
    >>> round(float(alike(net, w, x, y, groups=(first, second))), 4)  # ln 2 + 2 σ(1) − 1 = 0.6931 + 0.4621
    1.1553
    """
    q_s, q_l = (torch.log_softmax(net(w * group, x), dim=-1) for group in groups)
    divergence = ((q_s.exp() - q_l.exp()) * (q_s - q_l)).sum(dim=-1)
    return F.cross_entropy(net(w, x), y, reduction="none") + divergence / 2


def needs_channels(task: Task, name: str) -> None:
    """Refuse a network whose layers can't be split by output channels, and a loss other than the cross-entropy.

    Args:
        name: of the method, for the message.
    Raises:
        PflOpsError: it has no body, a layer with parameters is neither linear nor a plain convolution, or a layer
            between them maps zeros to other values, so that a channel at zero is not silent; or
            `training.loss` is another one.

    >>> from pfl_ops.testing import quadratic_round
    >>> needs_channels(quadratic_round([0.0]).task, "cd2_pfed")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: cd2_pfed shares the body of a network, and this one has no body; take model mlp or cnn
    """
    needs_body(task, name)
    needs_cross_entropy(task, name)
    views = task.layout.views(task.initial)
    x, channels = task.example, 1
    for step in task.net.steps:
        kind = type(step.layer).__name__
        own, x = step.parameters(views), step.taken(x)
        plain = step.kind is nn.Linear or (step.kind is nn.Conv2d and step.layer.groups == 1)
        if own and not plain:
            raise PflOpsError(
                f"{name} splits the channels of linear layers and plain convolutions, and {step.name} is {kind}; "
                "take model mlp or cnn"
            )
        if not own and bool(step.layer(torch.zeros_like(x)).any()):
            raise PflOpsError(
                f"{name} silences channels by zeros, which {step.name} ({kind}) makes something of; "
                "take a network of ReLU or tanh"
            )
        channels = len(own["weight"]) if own else channels
        x = functional_call(step.layer, own, (x,))
    if task.net.n_features % channels:
        raise PflOpsError(f"{name} can't tell which of the {channels} last channels each of the features belongs to")


__all__ = ["Channels", "alike", "needs_channels"]
