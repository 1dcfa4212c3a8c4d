"""Frozen feature extractors, which are never trained.

A client is a row of trained parameters, without the frozen part. That is applied to the samples once, before clients
are built; the federation trains on its features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfl_ops.models import MODELS, ModelSection

Extract = Callable[[np.ndarray], np.ndarray]
"""Images uint8 [n, H, W, C] -> features float32 [n, D], each sample by itself."""


@dataclass(frozen=True)
class Backbone:
    """A frozen feature extractor.

    Attributes:
        name: all that its features depend on but samples, weights, and the code of a user's network, in words.
        width: D.
        weights: the file that its parameters come from; None: `name` decides them.
        open: loads it on a device ("cpu", "cuda"); called only where features are not known yet.
    """

    name: str
    width: int
    weights: Path | None
    open: Callable[[str], Extract]


def backbone(section: ModelSection, shape: tuple[int, ...] | None = None) -> Backbone | None:
    """Return the frozen part of a network; None: it has none.

    A network's class declares one by a class method `backbone(section, shape) -> Backbone`; the class is then built for
    samples of shape (D,).

    Args:
        section: name and options.
        shape: of one raw sample; None: not known, and not checked.
    Raises:
        PflOpsError: its weights can't be found or downloaded, or it can't take this shape.

    >>> backbone(MODELS.get("mlp")()) is None, backbone(MODELS.get("resnet18_head")(pretrained=False)).width
    (True, 512)
    """
    if not has_backbone(section):
        return None
    found: Backbone = MODELS.get(section.name).network.backbone(section, shape)  # type: ignore[attr-defined]
    return found


def has_backbone(section: ModelSection) -> bool:
    """True if `model.weights` are those of a frozen part, which the network itself does not have.

    >>> has_backbone(MODELS.get("resnet18_head")()), has_backbone(MODELS.get("cnn")())
    (True, False)
    """
    return hasattr(MODELS.get(section.name).network, "backbone")


def weights_file(section: ModelSection) -> Path | None:
    """Return the file that decides parameters, trained or frozen; None: there is none.

    Raises:
        PflOpsError: a frozen part's weights can't be found or downloaded.

    >>> weights_file(MODELS.get("mlp")(weights="start.safetensors")).name, weights_file(MODELS.get("mlp")())
    ('start.safetensors', None)
    """
    frozen = backbone(section)
    if frozen is not None:
        return frozen.weights
    return None if section.weights is None else Path(section.weights).expanduser()
