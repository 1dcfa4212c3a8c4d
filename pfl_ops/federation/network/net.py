"""The network as a function of a flat vector, for one model or for C of them at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.misuse import MisuseError, kind
from pfl_ops.federation.network.layout import Layout
from pfl_ops.federation.network.products import linear, linears
from pfl_ops.models.base import exact_class, parameter_places

Product: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [B, I] times weight [O, I], and bias [O] or none: [B, O]."""
POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)


class Step(NamedTuple):
    """One layer of the body.

    Attributes:
        name: its full name. layer: itself.
        own: the names of its parameters in it. places: see `parameter_places`.
        kind: its `exact_class`. foreign: it takes values in PyTorch's usual order in memory (see `is_foreign`).
    """

    name: str
    layer: nn.Module
    own: tuple[str, ...]
    places: dict[str, str]
    kind: type[nn.Module] | None
    foreign: bool

    @classmethod
    def of(cls, layer: nn.Module, name: str) -> "Step":
        """The step of a layer with this full name."""
        places = parameter_places(layer)
        kind = exact_class(layer)
        foreign = is_foreign(layer) or (kind is nn.GroupNorm and not takes_channels_last())
        return cls(name, layer, tuple(dict.fromkeys(places.values())), places, kind, foreign)

    def parameters(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its parameters by their names in it, from the network's by their full names."""
        return {key: self.taken(views[f"{self.name}.{key}"]) for key in self.own}

    def taken(self, values: Tensor) -> Tensor:
        """A parameter, or the input, in the order in memory that the layer takes, see `is_foreign`."""
        return values.contiguous() if self.foreign else values

    def call(self, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The layer as it is, with the parameters `own`, by their names in it."""
        given = {place: own[key] for place, key in self.places.items()}
        out: Tensor = torch.func.functional_call(self.layer, given, (x,), tie_weights=False)
        return out


@cache
def takes_channels_last() -> bool:
    """False if this PyTorch (2.6) refuses GroupNorm of stacked images whose channels lie last in memory."""
    images = torch.zeros(2, 1, 2, 2, 2).permute(0, 1, 4, 2, 3)
    try:
        torch.vmap(nn.GroupNorm(1, 2))(images)
    except RuntimeError:
        return False
    return True


def is_foreign(layer: nn.Module) -> bool:
    """True if a layer, or one within it, is neither PyTorch's nor this package's.

    Such a layer is given its parameters and its input in PyTorch's usual order in memory: its code may ask for that,
    as `x.view(len(x), -1)` does. The engine itself keeps filters and images with their channels last.

    >>> is_foreign(nn.Sequential(nn.Linear(2, 2)))
    False
    """
    return any(type(module).__module__.partition(".")[0] not in ("torch", "pfl_ops") for module in layer.modules())


class Net:
    """A network as a pure function of a flat vector: `net(w [Q], x [B, ...]) -> scores [B, L]`.

    `w` may hold further columns after the network's own (extra blocks). PyTorch's own `Sequential`, linear layers,
    convolutions and pooling are computed by operators of this module; any other layer, a subclass of these among them,
    is called as it is, through `torch.func.functional_call`.

    Args:
        network: `.body` and `.head` (an `nn.Linear`), their parameters all that is trained (see `models.base.check`).
        extra: blocks that a method adds, name -> shape.

    >>> from pfl_ops.testing import scalar_net
    >>> net = scalar_net()  # w = [v, u, c]: feature v x, score u (v x) + c
    >>> net(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0], [0.0]])).tolist()
    [[31.0], [1.0]]
    """

    def __init__(self, network: nn.Module, extra: Mapping[str, tuple[int, ...]] | None = None) -> None:
        body, head = network.body, network.head
        assert isinstance(body, nn.Module) and isinstance(head, nn.Linear) and exact_class(head) is nn.Linear
        self.network = network
        self.steps = list(_steps(body, "body"))
        self.n_features = head.in_features
        self.n_classes = head.out_features
        shapes = [
            {f"{prefix}{name}": tuple(p.shape) for name, p in module.named_parameters()}
            for prefix, module in (("body.", body), ("head.", head))
        ]
        self.layout = Layout(shapes[0], shapes[1], extra)

    def row(self) -> Tensor:
        """Return the network's own parameters as a row [Q], without a method's blocks.

        >>> from pfl_ops.testing import scalar_net
        >>> net = scalar_net()
        >>> bool((net(net.row(), torch.ones(1, 1)) == net.network(torch.ones(1, 1))).all())
        True
        """
        return self.layout.flatten(dict(self.network.named_parameters()))

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores [B, L]."""
        return self.forward(self.layout.views(w[..., self.layout.net], self.layout.net), x)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the input of the head, [B, D], for inputs x [B, ...]; `w` needs the body's columns only.

        >>> from pfl_ops.testing import scalar_net
        >>> scalar_net().features(torch.tensor([2.0]), torch.tensor([[5.0]])).tolist()
        [[10.0]]
        """
        return _through(self.steps, self.layout.views(w[..., self.layout.body], self.layout.body), x)

    def head(self, h: Tensor, f: Tensor) -> Tensor:
        """Scores [B, L] of the head's columns `h` on features `f` [B, D]; of a model w these are `w[net.layout.head]`.

        Raises:
            MisuseError: `h` has another number of columns.

        >>> from pfl_ops.testing import scalar_net
        >>> scalar_net().head(torch.tensor([3.0, 1.0]), torch.tensor([[10.0]])).tolist()  # 3 · 10 + 1
        [[31.0]]
        """
        due = self.layout.head.stop - self.layout.head.start
        if h.shape[-1] != due:
            raise MisuseError(f"net.head() needs the head's columns [{due}], w[net.layout.head]; got {kind(h)}")
        views = self.layout.views(h, self.layout.head)
        return F.linear(f, views["head.weight"], views.get("head.bias"))

    def cut(self, depth: int) -> slice:
        """Columns of the body's first `depth` layers with parameters (a block counts as one): the client's side.

        Raises:
            PflOpsError: the body has fewer such layers.

        >>> from pfl_ops.testing import scalar_net
        >>> scalar_net().cut(1)
        slice(0, 1, None)
        """
        layers = [step for step in self.steps if step.own]
        if not 1 <= depth <= len(layers):
            raise PflOpsError(
                f"a network is cut behind one of its body's {len(layers)} layers with parameters, got {depth}"
                if layers
                else "a network without a body can't be cut in two; take model cnn or mlp"
            )
        behind = [*(f"{step.name}." for step in layers), "head."][depth]
        return slice(0, next(b.start for b in self.layout.blocks if b.name.startswith(behind)))

    def front(self, w: Tensor, x: Tensor, depth: int) -> Tensor:
        """Activations [B, ...] that leave the client's side: of the body up to its layer `depth` with parameters.

        >>> from pfl_ops.testing import scalar_net
        >>> scalar_net().front(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[5.0]]), depth=1).tolist()
        [[10.0]]
        """
        part = self.cut(depth)
        return _through(self.steps[: self._at(depth)], self.layout.views(w[..., part], part), x)

    def back(self, w: Tensor, a: Tensor, depth: int) -> Tensor:
        """Scores [B, L] of the server's side on activations [B, ...]; back(w, front(w, x)) is net(w, x).

        >>> from pfl_ops.testing import scalar_net
        >>> scalar_net().back(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([[10.0]]), depth=1).tolist()
        [[31.0]]
        """
        part = slice(self.cut(depth).stop, self.layout.net.stop)
        views = self.layout.views(w[..., part], part)
        f = _through(self.steps[self._at(depth) :], views, a)
        return F.linear(f, views["head.weight"], views.get("head.bias"))

    def _at(self, depth: int) -> int:
        """The step that starts the server's side."""
        return [*(i for i, step in enumerate(self.steps) if step.own), len(self.steps)][depth]

    def forward(self, views: Mapping[str, Tensor], x: Tensor, product: Product = F.linear) -> Tensor:
        """Scores [B, L] of named parameters; `product` computes linear layers."""
        return product(_through(self.steps, views, x, product), views["head.weight"], views.get("head.bias"))

    def stacked(self, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Scores [C, B, L] of C models at once: `views` name -> [C, *shape], `x` [C, B, ...] or [1, B, ...] for all.

        >>> from pfl_ops.testing import scalar_net
        >>> net, w = scalar_net(), torch.tensor([[2.0, 3.0, 1.0], [1.0, 1.0, 0.0]])
        >>> net.stacked(net.layout.views(w), torch.tensor([[[5.0]]])).tolist()
        [[[31.0]], [[5.0]]]
        """
        for step in self.steps:
            x = _apply_stacked(step, views, x)
        return linears(x, views["head.weight"], views.get("head.bias"))

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores [C, B, L] of rows `w` [C, Q] on `x` [C, B, ...]; a chunk of one runs on ordinary kernels.

        Without a body, and without layers of a user's own, which may branch on values, it takes the stacks' product,
        weight first: of hundreds of samples and few classes, PyTorch's `linear` computes two thirds of the operations a
        second.

        >>> from pfl_ops.testing import scalar_net
        >>> w = torch.tensor([[2.0, 3.0, 1.0], [1.0, 1.0, 0.0]])
        >>> scalar_net().scores(w, torch.tensor([[[5.0]], [[7.0]]])).tolist()
        [[[31.0]], [[7.0]]]
        """
        if len(w) == 1 and any(step.own or step.foreign for step in self.steps):
            return self.forward(self.layout.views(w[0, self.layout.net], self.layout.net), x[0], linear)[None]
        return self.stacked(self.layout.views(w[:, self.layout.net], self.layout.net), x)


def _steps(module: nn.Module, name: str) -> Iterator[Step]:
    """The layers of nested `Sequential`s in order, by their full names; a layer that is used twice comes twice.

    A `Sequential` whose layers share parameters is one step, so that each step has parameters of its own.
    """
    layers = module._modules
    parameters = [id(p) for layer in layers.values() if layer is not None for p in layer.parameters()]
    if exact_class(module) is nn.Sequential and len(set(parameters)) == len(parameters):
        for child, layer in layers.items():
            assert layer is not None
            yield from _steps(layer, f"{name}.{child}")
    else:
        yield Step.of(module, name)


def _through(steps: Sequence[Step], views: Mapping[str, Tensor], x: Tensor, product: Product = F.linear) -> Tensor:
    for step in steps:
        x = _apply(step, views, x, product)
    return x


def _apply(step: Step, views: Mapping[str, Tensor], x: Tensor, product: Product) -> Tensor:
    name, layer = step.name, step.layer
    if step.kind is nn.Linear:
        return product(x, views[name + ".weight"], views.get(name + ".bias"))
    if is_plain_convolution(step):
        return F.conv2d(x, views[name + ".weight"], views.get(name + ".bias"), *_geometry(layer))
    if step.kind is nn.MaxPool2d:
        return _pool(layer, x)
    x = step.taken(x)
    return step.call(step.parameters(views), x) if step.own else layer(x)


def is_plain_convolution(step: Step) -> bool:
    """True for PyTorch's own `Conv2d` with one group and zeros around.

    >>> [is_plain_convolution(Step.of(nn.Conv2d(2, 2, 1, groups=groups), "conv")) for groups in (1, 2)]
    [True, False]
    """
    layer = step.layer
    return step.kind is nn.Conv2d and bool(layer.groups == 1 and layer.padding_mode == "zeros")


def is_flatten(step: Step) -> bool:
    """True for PyTorch's own `Flatten` of all dimensions but the batch's.

    >>> is_flatten(Step.of(nn.Flatten(), "a")), is_flatten(Step.of(nn.Flatten(2), "a"))
    (True, False)
    """
    return step.kind is nn.Flatten and (step.layer.start_dim, step.layer.end_dim) == (1, -1)


def _geometry(layer: nn.Module) -> tuple[Any, Any, Any]:
    return layer.stride, layer.padding, layer.dilation


def _pool(layer: nn.Module, x: Tensor) -> Tensor:
    """Max-pooling [B, channels, H, W]; without gradients, 2x2 on a CPU is quicker as the larger of two and two."""
    plain = (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == (2, 2, 0, 1) and not layer.ceil_mode
    if not plain or x.device.type != "cpu" or (torch.is_grad_enabled() and x.requires_grad):
        y: Tensor = layer(x)
        return y
    high, wide = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    rows = torch.maximum(x[..., 0:high:2, :wide], x[..., 1:high:2, :wide])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _apply_stacked(step: Step, views: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One layer of C models. Between convolutions x is [C, B, ...] logically and [B, C, ...] in memory: no copies."""
    name, layer = step.name, step.layer
    if step.kind is nn.Linear and x.dim() == 3:
        return linears(x, views[name + ".weight"], views.get(name + ".bias"))
    if is_plain_convolution(step) and x.dim() == 5:
        weight, bias = views[name + ".weight"], views.get(name + ".bias")
        side_by_side = x.transpose(0, 1).flatten(1, 2)
        if x.device.type == "cpu":  # else convolutions of few channels, and all pooling, take many times as long
            side_by_side = side_by_side.contiguous(memory_format=torch.channels_last)
        biases = None if bias is None else bias.flatten()
        y = F.conv2d(side_by_side, weight.flatten(0, 1), biases, *_geometry(layer), len(x))
        return y.unflatten(1, weight.shape[:2]).transpose(0, 1)
    if step.kind is nn.MaxPool2d and x.dim() == 5:
        y = _pool(layer, x.transpose(0, 1).flatten(1, 2))
        return y.unflatten(1, (len(x), -1)).transpose(0, 1)
    if is_flatten(step):
        return x.flatten(2)
    if step.kind in POINTWISE:
        out: Tensor = layer(x)
        return out
    x = step.taken(x)
    if not step.own:
        return torch.vmap(layer)(x)
    own = step.parameters(views)
    x = x.expand(len(next(iter(own.values()))), *x.shape[1:])
    return torch.vmap(step.call)(own, x)
