"""Forward and backward passes of the network for c clients at once: losses and gradients of a batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.federation.misuse import PYTORCHS, MisuseError, StackingError, drew, dtype, kind, name_of
from pfl_ops.federation.network.chain import Chain
from pfl_ops.federation.network.cross_entropy import Loss, cross_entropy
from pfl_ops.federation.network.layout import LayoutBlock
from pfl_ops.federation.network.net import Net


class Passes:
    """Passes of one network under one loss, in the number format of a run.

    Args:
        net: the network. loss: the task's per-sample loss.
        device: of the rows. bfloat16: run forward passes under autocast.

    Attributes:
        chain: the network as a chain of linear layers, whose passes need no autograd; None: by autograd.
    """

    def __init__(self, net: Net, loss: Loss, device: torch.device, bfloat16: bool = False) -> None:
        self.net, self.task_loss, self.device, self.bfloat16 = net, loss, device, bfloat16
        self.chain = None if bfloat16 else Chain.of(net)
        self._modes = [(layer, layer.training) for layer in net.network.modules()]

    # -- contexts of a forward pass -----------------------------------------------------------------------------------

    def autocast(self) -> AbstractContextManager[Any]:
        """A context of its own for each forward pass: autocast's cache of weights goes stale under in-place updates."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The network as it answers rather than learns: dropout off."""
        modes = [(layer, layer.training) for layer in self.net.network.modules()]
        self.net.network.eval()
        try:
            yield
        finally:
            _set(modes)

    def learn(self) -> None:
        """Set the network to the mode in which it was given, in which it learns: for a copy that was made of it while
        it was `answering`."""
        _set(self._modes)

    def twice_differentiable(self) -> AbstractContextManager[Any]:
        """A context for forward passes that are differentiated twice, which cuDNN's recurrent layers can't be."""
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in self.net.network.modules())
        return torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()

    # -- functions of one client, for several -------------------------------------------------------------------------

    def per_sample(self, loss: Loss, w: Tensor, x: Tensor, y: Tensor, ctx: Mapping[str, Tensor]) -> Tensor:
        """Per-sample losses [c, B] of rows `w` [c, Q] on x [c, B, ...], y [c, B]."""
        with self.autocast():
            if loss is cross_entropy and not ctx and len(w) > 1:
                scores = self.net.scores(w, x)
                values = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
            else:
                _check_form(loss)
                values = self.mapped(loss, w, x, y, ctx)
        if values.shape != y.shape:
            got = f"got {list(values.shape[1:])} for B = {y.shape[1]}"
            raise MisuseError(f"loss '{name_of(loss)}' must give one value a sample, [B]; {got}", loss)
        if values.is_complex():
            raise MisuseError(f"loss '{name_of(loss)}' must give real numbers; got {dtype(values)}", loss)
        if w.requires_grad and not values.requires_grad:
            raise MisuseError(
                f"loss '{name_of(loss)}' must be differentiable in w: compute it from net(w, x) or w by PyTorch, "
                "without .detach(), .item() and torch.no_grad()",
                loss,
            )
        return values.to(w.dtype)

    def mapped(
        self, function: Callable[..., Tensor], w: Tensor, x: Tensor, y: Tensor | None, ctx: Mapping[str, Tensor]
    ) -> Tensor:
        """`function(net, w, x[, y], **ctx)`, written for one client, on c of them.

        Raises:
            StackingError: it branches on values or the like, which `torch.vmap` refuses.
            MisuseError: it returns no tensor, or draws from PyTorch's global generator.
        """
        net, names = self.net, list(ctx)
        labels = () if y is None else (y,)

        def one(w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
            own = dict(zip(names, rest[len(labels) :], strict=True))
            values: Any = function(net, w, x, *rest[: len(labels)], **own)
            if isinstance(values, Tensor):
                return values
            raise MisuseError(
                f"{name_of(function)}() returned {kind(values)}; expected a tensor, one row a sample", function
            )

        rows = (w, x, *labels, *ctx.values())
        if len(w) == 1:
            return one(*(r[0] for r in rows))[None]
        try:
            return torch.vmap(one)(*rows)
        except RuntimeError as error:
            of_vmap, _, reason = str(error).partition("vmap: ")
            if of_vmap or not reason:
                raise
            raise _refused_by_vmap(function, reason) from error

    # -- gradients, a leaf a parameter --------------------------------------------------------------------------------

    def gradients(
        self, blocks: tuple[LayoutBlock, ...], leaves: list[Tensor], rest: Mapping[str, Tensor], x: Tensor, y: Tensor,
        share: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """Mean cross-entropy of each client's batch, [c], and its gradients in the leaves' shapes, contiguous.

        Args:
            blocks, leaves: the parameters that move, [c, *stored] each.
            rest: the network's others, name -> [c, *shape].
            x: inputs [c, B, ...]. y: labels [c, B].
            share: each sample's share of its client's mean, [c, B], 0 on padding; None: 1/B.
        """
        if self.chain is not None:
            by_name: dict[str | None, Tensor] = {}
            moving = {k.name: leaf for k, leaf in zip(blocks, leaves, strict=True)}
            with torch.no_grad():
                means, back = self.chain.backward({**rest, **moving}, moving, x, y, share)
                for layer, d, h in back:
                    by_name |= {layer.weight: torch.bmm(d.mT, h), layer.bias: d.sum(dim=1)}
            return means, [by_name[name] if name in by_name else torch.zeros_like(w) for name, w in moving.items()]
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        with self.autocast():
            means = self._mean_losses(blocks, leaves, rest, x, y, share)
        grads = torch.autograd.grad(means.sum(), leaves, allow_unused=True)
        return means.detach(), [
            torch.zeros_like(w) if g is None else g.contiguous() for g, w in zip(grads, leaves, strict=True)
        ]

    def _mean_losses(
        self, blocks: tuple[LayoutBlock, ...], leaves: list[Tensor], rest: Mapping[str, Tensor], x: Tensor, y: Tensor,
        share: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Cross-entropy of each client's batch, [c]; a single client runs on ordinary kernels."""
        moving = zip(blocks, leaves, strict=True)
        if len(leaves[0]) == 1:
            # squeezed, not indexed: the gradient of an index is a matrix of zeros to be filled
            views = {k.name: k.view(leaf.squeeze(0)) for k, leaf in moving} | {name: w[0] for name, w in rest.items()}
            return F.cross_entropy(self.net.forward(views, x[0]), y[0])[None]
        scores = self.net.stacked({k.name: k.view(leaf) for k, leaf in moving} | dict(rest), x)
        losses = F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return mean_over_samples(losses, share)


def _set(modes: list[tuple[nn.Module, bool]]) -> None:
    for layer, mode in modes:
        layer.training = mode


def _check_form(loss: Loss) -> None:
    """Refuse a loss of PyTorch, whose arguments are others: `F.cross_entropy` fails somewhere within.

    >>> _check_form(F.cross_entropy)
    Traceback (most recent call last):
    pfl_ops.federation.misuse.MisuseError: a loss is a function loss(net, w, x, y) of your own, one value a sample; ...
    """
    plain = getattr(loss, "func", loss)  # under functools.partial
    if str(getattr(plain, "__module__", "")).startswith("torch."):
        name = getattr(plain, "__name__", type(plain).__name__)
        raise MisuseError(
            "a loss is a function loss(net, w, x, y) of your own, one value a sample; PyTorch's is called in it, as "
            f"F.cross_entropy(net(w, x), y, reduction='none'); got {name}"
        )


def _refused_by_vmap(function: Callable[..., Tensor], reason: str) -> MisuseError:
    """Return the error of a function that `torch.vmap` refuses.

    Args:
        reason: PyTorch's message; its first sentence is quoted.
    """
    if reason.startswith("called random operation"):
        return drew(function, PYTORCHS)
    reason = reason.split(". ")[0].strip()
    return StackingError(
        f"{name_of(function)}() can't be computed for several clients at once (PyTorch: {reason}); write it without "
        "branches on values, .item() and masks (torch.where), or use --way loop",
        function,
    )


def mean_over_samples(values: Tensor, share: Tensor | None) -> Tensor:
    """Mean over a row's real samples, [c, B] -> [c]; share: of each sample, 0 on padding; None: 1/B."""
    return values.mean(dim=1) if share is None else (values * share).sum(dim=1)
