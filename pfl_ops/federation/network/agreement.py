"""A check before a run: the engine gives the scores of the network that it was given."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.network.passes import Passes
from pfl_ops.system.memory import out_of_memory

TOLERANCE = 1e-3
"""Allowed difference of scores, as a share of the largest: float32 rounds a thousand times finer."""


def check_scores(net: Net, x: Tensor, stackable: bool) -> None:
    """Refuse a network whose scores in the engine are not head(body(x)), for one model at a time or for two stacked.

    The models are the network's own and one with all parameters changed. No random number is drawn from the process's
    generator, and the network ends with its own parameters.

    Args:
        net: the network, its modules on any device. x: inputs of two samples, [2, ...].
        stackable: False where models can't be stacked.
    Raises:
        PflOpsError: the scores differ, those of the network itself do from call to call, or one of the passes fails.

    >>> from pfl_ops.testing import scalar_net
    >>> check_scores(scalar_net(), torch.tensor([[5.0], [0.0]]), stackable=True)
    """
    body, head = net.network.body, net.network.head
    assert isinstance(body, nn.Module) and isinstance(head, nn.Module)
    whole = nn.Sequential(OrderedDict(body=body, head=head))
    name = type(net.network).__name__
    own = net.layout.flatten(dict(whole.named_parameters()))
    x = x.to(own)
    changed = own + (own.abs() + 0.01) * torch.arange(len(own)).cos().to(own) / 2
    models = [(own, x), (changed, x.flip(0))]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), Passes(net, cross_entropy, x.device).answering():
        try:
            expected, again = (
                torch.stack([_given(whole, net.layout.views(w), x.clone()) for w, x in models]) for _ in range(2)
            )
            found = {"one at a time": torch.stack([net(w, x.clone()) for w, x in models])}
            if stackable:
                found["stacked"] = net.scores(*(torch.stack(each) for each in zip(*models, strict=True)))
        except PflOpsError:
            raise
        except Exception as error:  # a user's layer may raise anything
            if out_of_memory(error):
                raise
            raise PflOpsError(f"model '{name}' fails on samples of the data: {in_a_line(error)}") from error
    allowed = TOLERANCE * float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max()) + 1e-6
    if not torch.allclose(again, expected, 0.0, allowed, equal_nan=True):
        raise PflOpsError(
            f"model '{name}' gives other scores in each call, in eval() too; dropout and the like must be "
            "inactive there: F.dropout(x, training=self.training)"
        )
    for how, scores in found.items():
        if scores.shape != expected.shape or not torch.allclose(scores, expected, 0.0, allowed, equal_nan=True):
            gap = f" by {float((scores - expected).abs().max()):.2g}" if scores.shape == expected.shape else ""
            raise PflOpsError(
                f"model '{name}': models that are trained {how} have other scores than the network itself{gap}; each "
                "layer must compute its output from its input and its registered parameters alone"
            )


def _given(whole: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Scores [B, L] of the network as it is, with these parameters written into it for the time of the call."""
    own = {key: p.clone() for key, p in whole.named_parameters()}
    try:
        for key, p in whole.named_parameters():
            p.copy_(parameters[key])
        scores: Tensor = whole(x)
        return scores
    finally:
        for key, p in whole.named_parameters():
            p.copy_(own[key])
