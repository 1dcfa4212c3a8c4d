"""Networks: their base class, how one is built from its section, and the checks that each must pass."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from pfl_ops import rng
from pfl_ops.errors import PflOpsError, ended_by_signal, in_a_line
from pfl_ops.files import as_pinned
from pfl_ops.models import MODELS, ModelSection, register, weights
from pfl_ops.models.backbone import has_backbone

Shape = tuple[int, ...]
"""Of one sample, as the data sets state it: (height, width, channels), or (features,)."""


class Network(nn.Module):
    """scores = head(body(x)).

    Args:
        body: the feature extractor, plain layers by name, in order; parameters keep these names everywhere.
        n_features: D, the length of body(x).
        n_classes: L.

    >>> network = Network({"fc": nn.Linear(4, 3), "relu": nn.ReLU()}, n_features=3, n_classes=2)
    >>> [name for name, _ in network.named_parameters()]
    ['body.fc.weight', 'body.fc.bias', 'head.weight', 'head.bias']
    """

    body: nn.Sequential
    head: nn.Linear

    def __init__(self, body: Mapping[str, nn.Module], n_features: int, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential()
        for name, layer in body.items():
            self.body.add_module(name, layer)
        self.head = nn.Linear(n_features, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """f(body; x): [B, channels, height, width] or [B, d] -> [B, D].

        >>> Network({"relu": nn.ReLU()}, n_features=2, n_classes=3).features(torch.tensor([[-1.0, 2.0]])).tolist()
        [[0.0, 2.0]]
        """
        out: Tensor = self.body(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] or [B, d] -> scores [B, L]."""
        out: Tensor = self.head(self.body(x))
        return out


def exact_class(layer: nn.Module) -> type[nn.Module] | None:
    """Return the class of a layer, if a call of the layer is a call of that class's `forward` on its parameters alone.

    Only then may an operator stand in for the layer, and only for exactly that class: a subclass may compute something
    else.

    Returns:
        None where it has hooks (old `weight_norm` and `spectral_norm` are some), buffers, or a `forward` of its own.

    >>> exact_class(nn.Linear(2, 2)) is nn.Linear, exact_class(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    (True, <class '...ParametrizedLinear'>)
    """
    own = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return None if own or layer._buffers or "forward" in vars(layer) else type(layer)


def parameter_places(layer: nn.Module) -> dict[str, str]:
    """Return each place of a parameter in a layer, with the name that the parameter has in `named_parameters`.

    A parameter that is shared has several places; a module that is registered under two names has one.
    `functional_call` fills in these places with `tie_weights=False`. Else, a module with two names would keep the
    parameters of the call.

    >>> tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> tied[1].weight = tied[0].weight
    >>> parameter_places(tied), parameter_places(nn.Sequential(tied[0], tied[0]))
    ({'0.weight': '0.weight', '1.weight': '0.weight'}, {'0.weight': '0.weight'})
    """
    first: dict[int, str] = {}
    places = {}
    for prefix, module in layer.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                place = f"{prefix}.{key}" if prefix else key
                places[place] = first.setdefault(id(parameter), place)
    return places


def image(shape: Shape, name: str, poolings: int, lost: int = 0) -> tuple[int, int, int]:
    """Check that `shape` is an image on which a network can pool.

    Args:
        shape: of a sample. name: the network's, for messages.
        poolings: how often it pools 2x2.
        lost: pixels by which the convolution before each pooling shrinks a side; 0: it is padded.
    Returns:
        Channels of the input, height and width after the last pooling.
    Raises:
        PflOpsError: feature vectors, or an image too small; the message names both sizes.

    >>> image((28, 28, 1), "cnn", poolings=2), image((28, 28, 1), "cnn6", poolings=2, lost=4)
    ((1, 7, 7), (1, 4, 4))
    >>> image((8, 8, 1), "cnn6", poolings=2, lost=4)
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: model 'cnn6' pools 2 times and needs images of at least 16 x 16, got 8 x 8; ...
    """
    if len(shape) != 3:
        raise PflOpsError(
            f"model '{name}' needs images, but a sample here is a vector of {math.prod(shape)} features; "
            "take model mlp or linear"
        )
    height, width, channels = shape
    least = 1
    for _ in range(poolings):
        least = 2 * least + lost
    if min(height, width) < least:
        raise PflOpsError(
            f"model '{name}' pools {poolings} times and needs images of at least {least} x {least}, "
            f"got {height} x {width}; take model mlp or linear"
        )
    for _ in range(poolings):
        height, width = (height - lost) // 2, (width - lost) // 2
    return channels, height, width


def build(section: ModelSection, shape: Shape, n_classes: int, seed: int) -> Network:
    """Build the network of a section, with its first parameters Θ⁰.

    They are drawn as PyTorch's layers draw them, by a generator of (seed, "model") alone, or read from
    `section.weights`. The process's own generator is left as it was.

    Args:
        section: name and options.
        shape: of one sample, (height, width, channels) or (features,).
        n_classes: L.
        seed: the run's.
    Returns:
        A float32 network on the CPU, checked by `check`.
    Raises:
        PflOpsError: the network can't take this shape, breaks the rules of `check`, or its weights don't fit.

    >>> section = MODELS.get("mlp")(hidden=(16,))
    >>> one, same, other = (build(section, (8, 8, 1), n_classes=10, seed=seed) for seed in (0, 0, 1))
    >>> one.head.weight.equal(same.head.weight), one.head.weight.equal(other.head.weight)
    (True, False)
    """
    name = section.name
    network = _drawn(section, shape, n_classes, seed)
    _check_parts(network, name)
    if not type(network).__module__.startswith("pfl_ops."):  # a user's
        _check_draws(network, _drawn(section, shape, n_classes, seed), name)
    if section.weights is not None and not has_backbone(section):
        weights.start_from(network, str(as_pinned(Path(section.weights).expanduser())), name)
    _check(network, example_of(shape), name)
    if network.head.out_features != n_classes:
        raise PflOpsError(
            f"model '{name}': its head has {network.head.out_features} outputs, the data {n_classes} classes"
        )
    return network  # a user's own, too, has body and head: `check` saw to it


def _drawn(section: ModelSection, shape: Shape, n_classes: int, seed: int) -> Network:
    """Return the network with parameters that its layers have drawn."""
    chosen = {key: value for key, value in section if key not in ("name", "weights")}
    with torch.random.fork_rng(devices=[]):
        # the CPU's generator only: torch.manual_seed would also reseed the GPUs, which fork_rng leaves out here
        torch.random.default_generator.manual_seed(rng.torch_seed(seed, "model"))
        try:
            network: Network = MODELS.get(section.name).network(shape, n_classes, **chosen)
        except PflOpsError:
            raise
        except BaseException as error:  # a user's constructor may raise anything
            if ended_by_signal(error):
                raise
            raise PflOpsError(
                f"model '{section.name}' can't be built for samples of shape {shape}: {in_a_line(error)} "
                "(it is called with the shape and the number of classes)"
            ) from error
    if not isinstance(network, nn.Module):
        raise PflOpsError(f"model '{section.name}' gave a {type(network).__name__}; it builds and returns an nn.Module")
    return network


def _check_draws(network: nn.Module, again: nn.Module, name: str) -> None:
    """Refuse a network that is another one when it is built again: its draws belong to no seed, and no hash."""
    other = again.state_dict()
    for key, value in network.state_dict().items():
        if key not in other or not torch.equal(value, other[key]):
            raise PflOpsError(
                f"model '{name}': '{key}' has other values when the network is built again; draw them by PyTorch "
                "(torch.randn, nn.init), whose generator the run's seed sets, not by np.random or random"
            )


def example_of(shape: Shape) -> Tensor:
    """Two samples of made-up numbers in the form that a network sees: [2, channels, height, width], or [2, d].

    >>> tuple(example_of((28, 20, 1)).shape), example_of((2,)).tolist()
    ((2, 1, 28, 20), [[-1.0, -0.333...], [0.333..., 1.0]])
    """
    seen = (shape[2], *shape[:2]) if len(shape) == 3 else shape
    return torch.linspace(-1.0, 1.0, 2 * math.prod(shape)).view(2, *seen)


def check(network: nn.Module, example: Tensor | None = None, name: str = "") -> bool:
    """Refuse a network that is not a row of parameters; return True if copies of it can be stacked.

    A client is a row of parameters and nothing else. So everything trained must be a parameter of `body` or `head`,
    scores must be head(body(x)), and nothing may be remembered between batches; constant buffers are fine.

    Args:
        network: any module; nothing in it changes.
        example: inputs [B, ...]; with them a forward pass is tried, and a stacked one where a layer is not known to
            allow it. Without them the kinds of layers decide.
        name: for messages.
    Returns:
        True where `torch.func.vmap` can run several parameter sets at once; False for dropout, recurrent layers and
        control flow that depends on data: these train one client at a time.
    Raises:
        PflOpsError: no body or head, or a head that is no plain `nn.Linear`; parameters outside them, shared by them,
            frozen, or without a dimension; BatchNorm or other running statistics; a forward pass that fails, does not
            give [B, L], or is not head(body(x)), in training or in evaluation.

    >>> check(Network({"fc": nn.Linear(4, 3), "drop": nn.Dropout(0.5)}, 3, 2))  # trains one client at a time
    False
    >>> check(Network({"fc": nn.Linear(4, 3), "norm": nn.BatchNorm1d(3)}, 3, 2), name="mine")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: model 'mine': layer 'body.norm' (BatchNorm1d) has statistics over batches, which ...
    """
    _check(network, example, name or type(network).__name__)
    return stackable(network, example)


def _check(network: nn.Module, example: Tensor | None, name: str) -> None:
    _check_parts(network, name)
    _check_statistics(network, name)
    if example is not None:
        _check_forward(network, example, name)


def stackable(network: nn.Module, example: Tensor | None = None) -> bool:
    """Return True if copies of a network that `check` accepts can be stacked; see there.

    >>> stackable(Network({"fc": nn.Linear(4, 3), "drop": nn.Dropout(0.5)}, 3, 2))
    False
    """
    layers = list(network.body.modules())  # type: ignore[union-attr]  # a module, by _check_parts
    if any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) or _drops(layer) for layer in layers):
        return False
    if example is None or all(exact_class(layer) in _STACK for layer in layers):
        return True
    return _stacks(network.body, example)  # type: ignore[arg-type]


_STACK = {
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Linear, nn.Conv1d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.GroupNorm, nn.LayerNorm),
}
"""Layers that vmap is known to take. The trial of others imports half of PyTorch: 1.6 s, once a process."""


def _check_parts(network: nn.Module, name: str) -> None:
    body, head = getattr(network, "body", None), getattr(network, "head", None)
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Linear):
        raise PflOpsError(f"model '{name}' needs a .body (a module) and a .head (an nn.Linear), the last layer")
    if exact_class(head) is not nn.Linear:
        got = type(head).__name__ if type(head) is not nn.Linear else "one with hooks, buffers or a forward of its own"
        raise PflOpsError(
            f"model '{name}': .head must be a plain nn.Linear, since methods compute its scores as W f + b, got {got}; "
            "move what else it computes into .body"
        )
    inside = {id(p) for p in body.parameters()}
    if any(id(p) in inside for p in head.parameters()):
        raise PflOpsError(f"model '{name}': body and head share a parameter, so they can't be trained or sent apart")
    inside |= {id(p) for p in head.parameters()}
    for key, parameter in network.named_parameters():
        if id(parameter) not in inside:
            raise PflOpsError(f"model '{name}': parameter '{key}' is neither in .body nor in .head; move it into one")
        if nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise PflOpsError(
                f"model '{name}': parameter '{key}' has no values yet (a lazy layer, or the device 'meta'); give its "
                "layer the sizes, which follow from shape and n_classes"
            )
        if parameter.isnan().any():
            raise PflOpsError(f"model '{name}': parameter '{key}' begins with NaN")
        if not parameter.requires_grad:
            raise PflOpsError(
                f"model '{name}': parameter '{key}' is frozen, but every parameter is trained; make it a buffer "
                "(register_buffer), which stays as it is"
            )
        if parameter.dim() == 0:
            raise PflOpsError(f"model '{name}': parameter '{key}' has no dimension; make it a vector of one number")


def _check_statistics(network: nn.Module, name: str) -> None:
    for key, layer in network.named_modules():
        remembers = getattr(layer, "running_mean", None) is not None
        if remembers or isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise PflOpsError(
                f"model '{name}': layer '{key}' ({type(layer).__name__}) has statistics over batches, which belong to "
                "no client's parameters; take GroupNorm instead"
            )


def _drops(layer: nn.Module) -> bool:
    rate = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
    return isinstance(rate, int | float) and rate > 0


def _embedding_hint(network: nn.Module) -> str:
    """Say which numbers a network with an embedding was tried on, which may be the reason of its error."""
    if not any(isinstance(layer, nn.Embedding) for layer in network.modules()):
        return ""
    return " (it is tried on random numbers around 0; before an embedding: x.clamp(min=0).long())"


def _check_forward(network: nn.Module, example: Tensor, name: str) -> None:
    buffers = {key: value.clone() for key, value in network.named_buffers()}
    modes = {layer: layer.training for layer in network.modules()}
    head: nn.Linear = network.head  # type: ignore[assignment]
    drawn: list[Tensor] = []  # in training: scores, twice, and features
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            learning = [network(given) for given in (example, example, example[:1])]  # buffers might move, too
            if type(network).forward is not Network.forward or exact_class(network) is None:
                drawn = [_seeded(part, example) for part in (network, network, network.body)]  # type: ignore[arg-type]
            network.eval()  # without dropout, so that two passes agree
            scores, features = network(example), network.body(example)  # type: ignore[operator]
            again = network(example)
            alone = network(example[:1])
    except BaseException as error:  # a user's forward pass may raise anything
        if ended_by_signal(error):
            raise
        raise PflOpsError(
            f"model '{name}' fails on inputs of shape {tuple(example.shape)}: {in_a_line(error)}"
            f"{_embedding_hint(network)}"
        ) from error
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    for what, value, shape in (
        ("scores", scores, (len(example), head.out_features)),
        ("scores of one sample", alone, (1, head.out_features)),
        (".body's features", features, (len(example), head.in_features)),
    ):
        if not isinstance(value, Tensor) or value.shape != shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise PflOpsError(f"model '{name}': {what} must have shape {shape}, got {got}")
    with torch.no_grad():
        if not _alike(again, scores):
            raise PflOpsError(
                f"model '{name}': two passes of one batch in evaluation mode give other scores; draw random numbers in "
                "training alone (if self.training), as dropout does"
            )
        draws = not _alike(learning[0], learning[1])  # two passes of such a network differ anyway
        if not _alike(alone, scores[:1]) or not (draws or _alike(learning[2], learning[0][:1])):
            raise PflOpsError(
                f"model '{name}': the scores of a sample depend on the other samples of its batch, and so on padding; "
                "normalise within a sample (GroupNorm, LayerNorm)"
            )
        if not _close(head(features), scores):
            raise PflOpsError(f"model '{name}': scores must be head(body(x)); move what else it computes into .body")
        if drawn and _close(drawn[0], drawn[1]) and not _close(drawn[0], head(drawn[2])):
            raise PflOpsError(
                f"model '{name}': scores must be head(body(x)) in training too, where they are other ones; move what "
                "else it computes (dropout) into .body"
            )
        for key, value in network.named_buffers():
            if not torch.equal(value, buffers[key]):
                value.copy_(buffers[key])
                raise PflOpsError(f"model '{name}': buffer '{key}' changes in a forward pass; buffers must be constant")


def _seeded(part: nn.Module, x: Tensor) -> Tensor:
    """Return part(x), always with the same draws from PyTorch's generator."""
    torch.random.default_generator.manual_seed(0)
    out: Tensor = part(x)
    return out


def _close(one: Tensor, other: Tensor) -> bool:
    """True if the same operations, perhaps in another order, can have given both."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def _alike(one: Tensor, other: Tensor) -> bool:
    """True if two passes give the same scores up to rounding."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _stacks(body: nn.Module, example: Tensor) -> bool:
    """Try it: the gradient of two copies at once."""

    places = parameter_places(body)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        own = {place: parameters[name] for place, name in places.items()}
        features: Tensor = functional_call(body, (own, buffers), (example,), tie_weights=False)
        return features.square().sum()

    try:
        vmap(grad(loss), in_dims=(0, None))(stack_module_state([body, body])[0], dict(body.named_buffers()))
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return False
    return True


__all__ = ["Network", "Shape", "build", "check", "exact_class", "example_of", "image", "parameter_places", "register"]
