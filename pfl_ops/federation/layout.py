"""Names of parameters <-> columns of P, and the network as a function of a flat vector.

The columns stand in the order body, head, extra blocks, so that every part is a slice. Convolution weights are stored
as O, H, W, I: their order does not depend on how a run is executed, and the view O, I, H, W is what channels_last
kernels want.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops import rng
from pfl_ops.errors import PflOpsError


@dataclass(frozen=True)
class Block:
    """One named parameter: its shape in the network and its columns."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in the row: O, H, W, I for a convolution's weight."""
        return (self.shape[0], *self.shape[2:], self.shape[1]) if len(self.shape) == 4 else self.shape

    def view(self, stored: Tensor) -> Tensor:
        """[..., *stored] as the network sees it, [..., *shape]; never a copy."""
        return stored.movedim(-1, -3) if len(self.shape) == 4 else stored


class Layout:
    """Columns of one model's row.

    Attributes:
        blocks: every parameter, in the order of their columns. size: P.
        body, head: slices of the feature extractor and of the last linear layer; net: both.
        extra: name -> slice, blocks that a method added.
    """

    def __init__(
        self,
        body: Mapping[str, tuple[int, ...]],
        head: Mapping[str, tuple[int, ...]],
        extra: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        extra = extra or {}
        blocks, ends, at = [], [], 0
        for part in (body, head, extra):
            for name, shape in part.items():
                block = Block(name, tuple(shape), at, at + int(torch.Size(shape).numel()))
                blocks.append(block)
                at = block.stop
            ends.append(at)
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.size = at
        self.body = slice(0, ends[0])
        self.head = slice(ends[0], ends[1])
        self.net = slice(0, ends[1])
        self.extra = {block.name: slice(block.start, block.stop) for block in blocks if block.name in extra}

    def within(self, part: slice | None) -> tuple[Block, ...]:
        """The blocks of a slice; a slice that cuts through a block is an error."""
        if part is None:
            return self.blocks
        start, stop, _ = part.indices(self.size)
        blocks = tuple(b for b in self.blocks if b.start < stop and b.stop > start)
        if blocks and (blocks[0].start < start or blocks[-1].stop > stop):
            raise PflOpsError(f"columns {start}:{stop} cut through a parameter ({blocks[0].name} … {blocks[-1].name})")
        return blocks

    def layers(self) -> list[str]:
        """Names of the network's layers that have parameters, from input to output."""
        return list(OrderedDict.fromkeys(b.name.rpartition(".")[0] for b in self.within(self.net)))

    def top(self, layers: int) -> slice:
        """The last `layers` layers of the network, the head being the last."""
        names = self.layers()
        if not 1 <= layers <= len(names):
            raise PflOpsError(f"the network has {len(names)} layers with parameters, got top({layers})")
        first = names[-layers]
        return slice(next(b.start for b in self.blocks if b.name.rpartition(".")[0] == first), self.net.stop)

    def views(self, w: Tensor, part: slice | None = None) -> dict[str, Tensor]:
        """Flat `w` [..., Q], the columns of `part` (default all), as name -> [..., *shape] without copying."""
        blocks = self.within(part)
        pieces = w.split([b.stop - b.start for b in blocks], dim=-1)
        return {b.name: b.view(p.unflatten(-1, b.stored)) for b, p in zip(blocks, pieces, strict=True)}

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Name -> tensor into one row [P]; every block must be there in its shape."""
        pieces = []
        for block in self.blocks:
            if block.name not in named or tuple(named[block.name].shape) != block.shape:
                got = tuple(named[block.name].shape) if block.name in named else "nothing"
                raise PflOpsError(f"parameter {block.name} should have shape {block.shape}, got {got}")
            value = named[block.name].detach()
            pieces.append((value.movedim(1, -1) if len(block.shape) == 4 else value).reshape(-1))
        return torch.cat(pieces)

    def export(self, w: Tensor) -> dict[str, Tensor]:
        """One row [P] as contiguous tensors by name, for a file."""
        return {name: value.contiguous() for name, value in self.views(w).items()}


class Net:
    """A network as a pure function of a flat vector: `net(w [Q], x [B, ...]) -> scores [B, L]`.

    `w` may hold further columns after the network's own (extra blocks). Layers that every network here is made of are
    called directly; any other layer through `torch.func.functional_call`.

    Args:
        network: `.body` and `.head` (an `nn.Linear`), their parameters all that is trained (see `models.base.check`).
        extra: blocks that a method adds, name -> shape.
    """

    def __init__(self, network: nn.Module, extra: Mapping[str, tuple[int, ...]] | None = None) -> None:
        body, head = network.body, network.head
        assert isinstance(body, nn.Module) and isinstance(head, nn.Linear)
        self.network = network
        self.steps = list(_steps(body, "body"))
        self.n_features = head.in_features
        self.n_classes = head.out_features
        shapes = [
            {f"{prefix}{name}": tuple(p.shape) for name, p in module.named_parameters()}
            for prefix, module in (("body.", body), ("head.", head))
        ]
        self.layout = Layout(shapes[0], shapes[1], extra)

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores [B, L]."""
        views = self.layout.views(w[..., self.layout.net], self.layout.net)
        return self.forward(views, x)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """What the head sees, [B, D]; `w` needs the body's columns only."""
        return self._body(self.layout.views(w[..., self.layout.body], self.layout.body), x)

    def head(self, h: Tensor, f: Tensor) -> Tensor:
        """Scores [B, L] of the head's columns `h` on features `f` [B, D]."""
        views = self.layout.views(h, self.layout.head)
        return F.linear(f, views["head.weight"], views.get("head.bias"))

    def forward(self, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Scores [B, L] of named parameters."""
        return F.linear(self._body(views, x), views["head.weight"], views.get("head.bias"))

    def _body(self, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for name, layer in self.steps:
            x = _apply(name, layer, views, x)
        return x

    def stacked(self, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Scores [C, B, L] of C models at once: `views` name -> [C, *shape], `x` [C, B, ...] or [1, B, ...] for all."""
        for name, layer in self.steps:
            x = _apply_stacked(name, layer, views, x)
        return _linear(x, views["head.weight"], views.get("head.bias"))

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores [C, B, L] of rows `w` [C, Q]; a chunk of one runs on ordinary kernels."""
        if len(w) == 1:
            return self(w[0], x[0])[None]
        return self.stacked(self.layout.views(w[:, self.layout.net], self.layout.net), x)


def _steps(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `Sequential`s in order, by their full names."""
    if isinstance(module, nn.Sequential):
        for child, layer in module.named_children():
            yield from _steps(layer, f"{name}.{child}")
    else:
        yield name, module


def _own(name: str, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in views.items() if key.startswith(name + ".")}


def _apply(name: str, layer: nn.Module, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(x, views[name + ".weight"], views.get(name + ".bias"))
    if _plain(layer):
        return F.conv2d(x, views[name + ".weight"], views.get(name + ".bias"), *_geometry(layer))
    own = _own(name, views)
    return torch.func.functional_call(layer, own, (x,)) if own else layer(x)


def _plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """An ordinary convolution: one group, zeros around."""
    return isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"


def _geometry(layer: nn.Conv2d) -> tuple[Any, Any, Any]:
    return layer.stride, layer.padding, layer.dilation


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [C or 1, B, I] times weight [C, O, I]: one batched product."""
    if len(x) == 1 and len(weight) > 1:  # all models see the same input: one large product
        scores = x[0] @ weight.reshape(-1, weight.shape[-1]).mT
        scores = scores.unflatten(-1, weight.shape[:2]).transpose(0, 1)
        return scores if bias is None else scores + bias[:, None]
    # weight first: its gradient then comes out in the weight's own layout, which saves a copy a step
    if bias is None:
        return torch.bmm(weight, x.mT).mT
    return torch.baddbmm(bias[:, :, None], weight, x.mT).mT


def _apply_stacked(name: str, layer: nn.Module, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One layer of C models. Between convolutions x is [C, B, ...] logically and [B, C, ...] in memory: no copies."""
    if isinstance(layer, nn.Linear) and x.dim() == 3:
        return _linear(x, views[name + ".weight"], views.get(name + ".bias"))
    if _plain(layer):
        weight, bias = views[name + ".weight"], views.get(name + ".bias")
        groups = len(x)
        y = F.conv2d(
            x.transpose(0, 1).flatten(1, 2),
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            *_geometry(layer),
            groups,
        )
        return y.unflatten(1, weight.shape[:2]).transpose(0, 1)
    if isinstance(layer, nn.MaxPool2d):
        y = layer(x.transpose(0, 1).flatten(1, 2))
        return y.unflatten(1, (len(x), -1)).transpose(0, 1)
    if isinstance(layer, nn.Flatten):
        return x.flatten(2)
    if isinstance(layer, nn.ReLU | nn.Tanh | nn.Sigmoid | nn.GELU | nn.Identity):
        return layer(x)
    own = _own(name, views)
    if not own:
        return torch.vmap(layer)(x)
    x = x.expand(len(next(iter(own.values()))), *x.shape[1:])
    return torch.vmap(lambda p, v: torch.func.functional_call(layer, p, (v,)))(own, x)


def initial_extra(extra: Mapping[str, tuple[int, ...]], seed: int) -> Tensor:
    """First values of a method's extra blocks: matrices as PyTorch draws an `nn.Linear`, vectors zero."""
    pieces = []
    for name, shape in extra.items():
        fan_in = int(torch.Size(shape[1:]).numel())
        uniform = rng.generator(seed, "extra", name).uniform(-1, 1, shape) / fan_in**0.5
        pieces.append(torch.from_numpy(uniform if len(shape) > 1 else 0 * uniform).reshape(-1))
    return torch.cat(pieces)


__all__ = ["Block", "Layout", "Net", "initial_extra"]
