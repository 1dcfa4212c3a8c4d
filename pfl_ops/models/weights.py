"""Files of parameters: read without unpickling anything but tensors, and fitted to a network."""

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from pfl_ops.errors import PflOpsError

TORCH = (".pth", ".pt")


def read(file: str | Path) -> dict[str, Tensor]:
    """Parameters by name: of a .safetensors file, or of a state_dict that torch.save wrote (.pth, .pt).

    Raises:
        PflOpsError: there is no such file, or it is damaged or something else.
    """
    import safetensors
    from safetensors.torch import load_file

    path = Path(file).expanduser()
    if not path.is_file():
        raise PflOpsError(f"weights file {path} does not exist")
    if path.suffix not in TORCH:
        try:
            return load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise PflOpsError(f"weights file {path} is not a readable .safetensors file: {error}") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        about = str(error).strip().split("\n")[0]
        raise PflOpsError(f"weights file {path} is not a readable state_dict: {about}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise PflOpsError(f"weights file {path} holds no state_dict, which maps names to tensors")
    return found


def start_from(network: nn.Module, file: str, name: str) -> None:
    """Fill in every parameter of a network with body and head from a file.

    A file whose classifier is for another number of classes gives the body alone: the head stays as it was drawn.

    Args:
        network: changed in place. file: .safetensors, .pth or .pt. name: the network's, for messages.
    Raises:
        PflOpsError: the file can't be read, lacks a parameter, or has one too many or of another shape.
    """
    given, path = read(file), Path(file).expanduser()
    wanted = dict(network.named_parameters())
    if _other_classes(given, wanted):
        wanted = {key: value for key, value in wanted.items() if not key.startswith("head.")}
        given = {key: value for key, value in given.items() if not key.startswith("head.")}
    constant = {key for key, _ in network.named_buffers()}  # a state_dict holds them too; the network has its own
    for key in sorted((wanted.keys() | given.keys()) - constant):
        has, needs = given.get(key), wanted.get(key)
        if has is None or needs is None:
            where = "lacks" if has is None else "has, beside those of the model,"
            raise PflOpsError(f"weights file {path} {where} the parameter '{key}' (model '{name}')")
        if has.shape != needs.shape:
            raise PflOpsError(
                f"weights file {path}: '{key}' has shape {tuple(has.shape)}, model '{name}' needs {tuple(needs.shape)}"
            )
    with torch.no_grad():
        for key, parameter in wanted.items():
            parameter.copy_(given[key])


def _other_classes(given: dict[str, Tensor], wanted: dict[str, nn.Parameter]) -> bool:
    """Whether the file has a whole classifier of the right width for another number of classes."""
    weight, bias, needs = given.get("head.weight"), given.get("head.bias"), wanted.get("head.weight")
    if weight is None or needs is None or weight.dim() != 2 or ("head.bias" in wanted) != (bias is not None):
        return False
    whole = bias is None or bias.shape == weight.shape[:1]
    return whole and weight.shape[1] == needs.shape[1] and len(weight) != len(needs)
