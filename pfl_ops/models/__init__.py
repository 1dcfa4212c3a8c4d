"""Networks: one a file, each a body and a head. Listing their names does not import torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model

from pfl_ops.registry import Registry
from pfl_ops.section import Section, options

if TYPE_CHECKING:
    from pfl_ops.models.base import Network, build, check

N = TypeVar("N", bound=type)


class ModelSection(Section):
    """The `model` part of an experiment: the network, its options, and the source of its first parameters.

    The sections of single networks add their options as fields; ask `MODELS.get(name)` for them.
    """

    network: ClassVar[type]
    name: str = Field(description="the network (pfl-ops list models)")
    weights: str | None = Field(
        None,
        description="a file of every parameter by name to start from, or of a frozen part's (.safetensors, .pth); "
        "none: drawn from the seed",
    )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: the class is made at run time, so another process finds its own in the registry."""
        return _restore, (self.name, self.model_dump())


MODELS: Registry[type[ModelSection]] = Registry(
    "model",
    {
        "linear": "pfl_ops.models.linear",
        "mlp": "pfl_ops.models.mlp",
        "cnn": "pfl_ops.models.cnn",
        "cnn6": "pfl_ops.models.cnn6",
        "cnn_cifar": "pfl_ops.models.cnn_cifar",
        "cnn_tiny": "pfl_ops.models.cnn_tiny",
        "kmnist_cnn": "pfl_ops.models.kmnist_cnn",
        "fakelenet5": "pfl_ops.models.fakelenet5",
        "lenet5": "pfl_ops.models.lenet5",
        "nf_resnet18": "pfl_ops.models.nf_resnet18",
        "char_lstm": "pfl_ops.models.char_lstm",
        "resnet18_head": "pfl_ops.models.resnet18_head",
    },
)
"""Name -> section class; its `network` is the `nn.Module` class."""


def register(name: str) -> Callable[[N], N]:
    """Make a network known by name; its keyword-only parameters become the fields `model.*`.

    The class is called as `network(shape, n_classes, **options)` and must give a module with `.body` and `.head`
    (an `nn.Linear`) whose parameters are all that it has; subclass `models.base.Network`, or write your own. A frozen
    feature extractor stands before it (`models.backbone`).

    Raises:
        PflOpsError: the name is taken.

    >>> from pfl_ops.models.base import Network, build
    >>> @register("example_wide")
    ... class Wide(Network):
    ...     def __init__(self, shape, n_classes, *, width: int = 512):
    ...         super().__init__({"fc": torch.nn.Linear(shape[0], width)}, width, n_classes)
    >>> section = MODELS.get("example_wide")(width=3)  # `model.width` of an experiment
    >>> sum(p.numel() for p in build(section, (4,), n_classes=2, seed=0).parameters())  # 4 · 3 + 3, 3 · 2 + 2
    23
    """

    def add(network: N) -> N:
        tag: Any = Literal[name]
        tagged = create_model("ModelSection", __base__=ModelSection, name=(tag, name))
        section = options(network, f"{network.__name__}Section", tagged)
        section.__module__ = network.__module__  # where the registry looks for the file that defines it
        section.network = network  # type: ignore[attr-defined]
        MODELS.add(name, section)  # type: ignore[arg-type]
        return network

    return add


def _restore(name: str, values: dict[str, Any]) -> ModelSection:
    return MODELS.get(name).model_validate(values)


def __getattr__(name: str) -> Any:
    """`Network`, `build` and `check` live in `models.base`, which imports torch."""
    if name in ("Network", "build", "check"):
        from pfl_ops.models import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["MODELS", "ModelSection", "Network", "build", "check", "register"]
