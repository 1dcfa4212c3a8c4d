"""Writes a network as the folder that MLflow loads: see `served`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import mlflow.pyfunc
import numpy as np
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema, TensorSpec
from safetensors.torch import save_file
from torch import Tensor

from pfl_ops.system.scratch import scratch
from pfl_ops.tracking.provenance import NOT_INSTALLED, version
from pfl_ops.tracking.target.mlflow_private import without_package_scan


def requirements() -> list[str]:
    """The packages that loading the model needs, at the versions in use (without a build's local part)."""
    found = {library: version(library) for library in ("pfl-ops", "torch")}
    return [name if v == NOT_INSTALLED else f"{name}=={v.partition('+')[0]}" for name, v in found.items()]


class NetworkDescription(TypedDict):
    """A network for `save_model`.

    Attributes:
        network: the experiment's `model` section: name and options (`weights`, where training started, is left out).
        shape: of a raw sample: (H, W, C), stored as uint8, or (d,), stored as float32.
        n_classes: L.
        mean, std: of a raw channel or feature; what the network was trained on is (x - mean) / std.
        classes: names of the L classes; none: they are the whole numbers 0, 1, ...
        plugins: files that define the network, where it is not one of the package's.
    """

    network: Mapping[str, Any]
    shape: Sequence[int]
    n_classes: int
    mean: Sequence[float]
    std: Sequence[float]
    classes: NotRequired[Sequence[str] | None]
    plugins: NotRequired[Sequence[Path]]


def save_model(folder: Path, state: Mapping[str, Tensor], **about: Unpack[NetworkDescription]) -> None:
    """Write a model folder.

    Args:
        folder: made here.
        state: every parameter by name, as in the network's state dict. about: see `NetworkDescription`.
    """
    classes = about.get("classes")
    description: dict[str, Any] = {
        "network": {key: value for key, value in about["network"].items() if key != "weights"},
        "shape": [int(n) for n in about["shape"]],
        "classes": list(classes or range(about["n_classes"])),
        "mean": np.asarray(about["mean"], dtype=float).ravel().tolist(),
        "std": np.asarray(about["std"], dtype=float).ravel().tolist(),
    }
    dtype = np.dtype(np.uint8 if len(about["shape"]) == 3 else np.float32)
    probabilities = [ColSpec("float", f"p({name})") for name in description["classes"]]
    signature = ModelSignature(
        inputs=Schema([TensorSpec(dtype, (-1, *description["shape"]))]),
        outputs=Schema([ColSpec("string" if classes else "long", "class"), *probabilities]),
    )
    with scratch() as made:
        weights, text = made / "model.safetensors", made / "description.json"
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, weights)
        text.write_text(json.dumps(description, indent=2), encoding="utf-8")
        extra = {f"plugin_{number:03d}": str(path) for number, path in enumerate(about.get("plugins", ()))}
        with without_package_scan():
            mlflow.pyfunc.save_model(
                path=str(folder),
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"weights": str(weights), "description": str(text), **extra},
                signature=signature,
                input_example=np.zeros((1, *description["shape"]), dtype),
                pip_requirements=requirements(),
            )
    _leave_paths_out(folder)
    for cache in folder.rglob("__pycache__"):
        shutil.rmtree(cache, ignore_errors=True)


def _leave_paths_out(folder: Path) -> None:
    """MLflow notes where files came from on this machine, which means nothing on another machine."""
    model = Model.load(str(folder))
    flavour = model.flavors["python_function"]
    flavour["model_code_path"] = Path(flavour["model_code_path"]).name
    for artifact in flavour["artifacts"].values():
        artifact["uri"] = artifact["path"]
    model.save(str(folder / "MLmodel"))
