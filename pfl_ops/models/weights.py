"""Files of parameters: read without unpickling anything but tensors, and fitted to a network."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pfl_ops.errors import PflOpsError, in_a_line

TORCH = (".pth", ".pt")


def read(file: str | Path) -> dict[str, Tensor]:
    """Read parameters by name from a .safetensors file, or from a state_dict that torch.save wrote (.pth, .pt).

    Raises:
        PflOpsError: there is no such file, or it is damaged or something else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"head.bias": torch.tensor([1.0, 2.0])}, f"{folder}/start.pth")
    ...     read(f"{folder}/start.pth")["head.bias"].tolist()
    [1.0, 2.0]
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise PflOpsError(f"weights file {path} does not exist")
    kind = "state_dict" if path.suffix in TORCH else ".safetensors file"
    try:
        found = _torch(path) if path.suffix in TORCH else load_file(path)
    except Exception as error:  # both libraries, and unpickling, raise errors of a dozen kinds for damaged input
        raise PflOpsError(f"weights file {path} is not a readable {kind}: {in_a_line(error, 200)}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise PflOpsError(f"weights file {path} holds no state_dict, which maps names to tensors")
    for name, value in found.items():
        _check(value, f"weights file {path}: {str(name)[:60]!r}")
    return found


def _torch(path: Path) -> Any:
    """Read what torch.save wrote, with tensors alone unpickled."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            packed = [info for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
        if packed:  # PyTorch would unpack a member whatever size it declares
            raise ValueError("it is compressed, which torch.save never does")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on pickles of another protocol; what can't be read is an error
        return torch.load(path, map_location="cpu", weights_only=True)


def _check(value: Tensor, what: str) -> None:
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_complex():
        raise PflOpsError(f"{what} is no plain tensor of real numbers ({value.dtype}, {value.layout}, {value.device})")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise PflOpsError(f"{what} has the shape {tuple(value.shape)}, but the file holds fewer numbers")
    if value.is_floating_point() and not bool(torch.isfinite(value.float()).all()):
        raise PflOpsError(f"{what} has values that are not finite")


def start_from(network: nn.Module, file: str, name: str) -> None:
    """Fill in every parameter of a network with body and head from a file, and the constant buffers that it has.

    Parameters that were trained beside other buffers, random features say, mean nothing beside the network's own. A
    file whose classifier is for another number of classes gives the body alone: the head stays as it was drawn.

    Args:
        network: changed in place. file: .safetensors, .pth or .pt. name: the network's, for messages.
    Raises:
        PflOpsError: the file can't be read, lacks a parameter, has one too many, or one or a buffer of another shape.

    >>> import tempfile
    >>> network = nn.Module()
    >>> network.head = nn.Linear(1, 1, bias=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"head.weight": torch.tensor([[3.0]])}, f"{folder}/start.pth")
    ...     start_from(network, f"{folder}/start.pth", "mine")
    >>> network.head.weight.tolist()
    [[3.0]]
    """
    given, path = read(file), Path(file).expanduser()
    wanted = dict(network.named_parameters())
    if _other_classes(given, wanted):
        wanted = {key: value for key, value in wanted.items() if not key.startswith("head.")}
        given = {key: value for key, value in given.items() if not key.startswith("head.")}
    constant = {key: buffer for key, buffer in network.named_buffers() if key in given}  # a state_dict holds them too
    for key in sorted(wanted.keys() | given.keys()):
        has, needs = given.get(key), constant.get(key, wanted.get(key))
        if has is None or needs is None:
            where = "lacks" if has is None else "has, beside those of the model,"
            raise PflOpsError(f"weights file {path} {where} the parameter '{key}' (model '{name}')")
        if has.is_floating_point() != needs.is_floating_point():
            other = "floating-point numbers" if needs.is_floating_point() else needs.dtype
            raise PflOpsError(f"weights file {path}: '{key}' holds {has.dtype}, not {other}")
        if has.shape != needs.shape:
            raise PflOpsError(
                f"weights file {path}: '{key}' has shape {tuple(has.shape)}, model '{name}' needs {tuple(needs.shape)}"
            )
    with torch.no_grad():
        for key, value in {**wanted, **constant}.items():
            value.copy_(given[key])


def _other_classes(given: dict[str, Tensor], wanted: dict[str, nn.Parameter]) -> bool:
    """True if the file has a whole classifier of the right width for another number of classes."""
    weight, bias, needs = given.get("head.weight"), given.get("head.bias"), wanted.get("head.weight")
    if weight is None or needs is None or weight.dim() != 2 or ("head.bias" in wanted) != (bias is not None):
        return False
    whole = bias is None or bias.shape == weight.shape[:1]
    return whole and weight.shape[1] == needs.shape[1] and len(weight) != len(needs)
