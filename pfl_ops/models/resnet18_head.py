"""The last layer of a ResNet-18, as the DRDM paper trains it on Fashion-MNIST."""

import contextlib
import functools
import sys
import urllib.error
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops import rng
from pfl_ops.errors import PflOpsError
from pfl_ops.fetching import patience, reason
from pfl_ops.models import ModelSection
from pfl_ops.models import weights as files
from pfl_ops.models.backbone import Backbone, Extract
from pfl_ops.models.base import Network, Shape, register

FEATURES = 512
PUBLISHED = "resnet18-f37072fd.pth"
"""torchvision's file of 45 MB, trained on ImageNet; SHA-256 begins as its name says."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of values in [0, 1]


@register("resnet18_head")
class ResNet18Head(Network):
    """A linear classifier on the 512 features of torchvision's ResNet-18, trained on ImageNet and frozen.

    The features are computed once, before the federation, and kept in the cache folder; from then on this is as quick
    as `linear`. Only samples in use are computed, those of a test set only when it is opened. Grey images become three
    equal channels; all are resized to `size` x `size` (bilinear, antialiased) and normalised by ImageNet's constants,
    bytes 0 to 255 being black to white (`digits`, of 17 levels, stays dark). Features are all positive: learning rates
    above some 0.01 overshoot. The final model that a run stores takes features. Parameters: 5,130 with 10 classes.
    Cost, once a sample: 12 ms of one core at `size` 112 (an AVX-512 machine), 3.5 ms at 64, so 12,000 samples take one
    to two minutes on two cores; 2 KiB on disk.

    Weights: `model.weights` names a file of torchvision's parameters (.pth or .safetensors); without it torchvision's
    own are downloaded once. `pretrained: false` takes a backbone of random weights, the same for every seed.

    >>> network = ResNet18Head((512,), n_classes=10)
    >>> sum(p.numel() for p in network.parameters()), tuple(network(torch.zeros(2, 512)).shape)  # 512 · 10 + 10
    (5130, (2, 10))

    Source: DRDM paper, Sec. 4: "fine-tune the last layer of the pre-trained ResNet18 model", backbone fixed.
    Deviations: which weights and which input size is not stated: torchvision's IMAGENET1K_V1 and 112, a quarter of the
    work of ImageNet's 224, are ours. The classifier starts as PyTorch draws it and sees features as they are.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        *,
        pretrained: Annotated[bool, Field(description="false: a random backbone; needs no weights")] = True,
        size: Annotated[
            int, Field(ge=32, le=512, description="pixels a side of what the backbone sees; work grows with its square")
        ] = 112,
    ) -> None:
        if shape != (FEATURES,):
            raise PflOpsError(f"model 'resnet18_head' sees features of shape ({FEATURES},), got samples of {shape}")
        super().__init__({"flatten": nn.Flatten()}, FEATURES, n_classes)

    @classmethod
    def backbone(cls, section: ModelSection, shape: Shape | None = None) -> Backbone:
        """Return the frozen ResNet-18; see `models.backbone.backbone`.

        >>> from pfl_ops.models import MODELS
        >>> frozen = ResNet18Head.backbone(MODELS.get("resnet18_head")(pretrained=False, size=64), (28, 28, 1))
        >>> frozen.name, frozen.width, frozen.weights
        ('resnet18 random, 64 x 64, 1', 512, None)
        """
        pretrained, size = section.pretrained, section.size  # type: ignore[attr-defined]  # fields made from __init__
        if shape is not None and (len(shape) != 3 or shape[2] not in (1, 3)):
            raise PflOpsError(f"model 'resnet18_head' needs images of 1 or 3 channels, got samples of shape {shape}")
        if not pretrained and section.weights is not None:
            raise PflOpsError("model.pretrained=false takes a random backbone, so model.weights must be none")
        weights = None
        if pretrained:
            weights = _published() if section.weights is None else Path(section.weights).expanduser()
        name = f"resnet18 {'of weights' if pretrained else 'random'}, {size} x {size}, 1"
        return Backbone(name, FEATURES, weights, functools.partial(_open, weights, size))


def _published() -> Path:
    """torchvision's weights, where PyTorch keeps what it downloads; fetched now if they are not there.

    Raises:
        PflOpsError: they are not there and can't be downloaded.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / PUBLISHED
    if file.is_file():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with patience(), contextlib.redirect_stdout(sys.stderr):
            # written under another name, checked, then renamed
            torch.hub.download_url_to_file(_url(), str(file), hash_prefix=Path(PUBLISHED).stem.partition("-")[2])
    except (OSError, RuntimeError, urllib.error.URLError) as error:
        raise PflOpsError(
            f"model 'resnet18_head' needs torchvision's {PUBLISHED}, which is not in {file.parent} and could not be "
            f"downloaded ({reason(error)}); name a file with --set model.weights=FILE, or take a random backbone with "
            "--set model.pretrained=false"
        ) from error
    return file


def _url() -> str:
    from torchvision.models import ResNet18_Weights

    return str(ResNet18_Weights.IMAGENET1K_V1.url)


def _open(weights: Path | None, size: int, device: str) -> Extract:
    network = _network(weights).to(device).to(memory_format=torch.channels_last)  # a quarter quicker on a CPU
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))

    def extract(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(images)).to(device).movedim(-1, 1).float() / 255
            x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)
            x = ((x.expand(-1, 3, -1, -1) - mean) / std).contiguous(memory_format=torch.channels_last)
            features: Tensor = network(x)
            return features.float().cpu().numpy()

    return extract


def _network(weights: Path | None) -> nn.Module:
    """torchvision's ResNet-18 without its classifier, for inference."""
    from torchvision.models import resnet18

    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(rng.torch_seed(0, "backbone", "resnet18"))
        network = resnet18(weights=None)
    network.fc = nn.Identity()
    if weights is not None:
        given = {key: value for key, value in files.read(weights).items() if not key.startswith("fc.")}
        try:
            lost, surplus = network.load_state_dict(given, strict=False)
        except RuntimeError as error:  # shapes
            about = str(error).strip().split("\n")[-1].strip()
            raise PflOpsError(f"weights file {weights} does not fit torchvision's ResNet-18: {about}") from error
        wrong = [key for key in lost if not key.endswith("num_batches_tracked")] + list(surplus)
        if wrong:
            where = "lacks" if wrong[0] in lost else "has, beside those of the model,"
            raise PflOpsError(f"weights file {weights} {where} '{wrong[0]}': it is not torchvision's ResNet-18")
    return network.eval().requires_grad_(False)
