"""The model that MLflow loads: the same answers as the network, and nothing unpickled."""

import pickle

import mlflow.pyfunc
import numpy as np
import pytest
import torch

from pfl_ops.models import MODELS, build
from pfl_ops.tracking.target.saving import requirements, save_model

PLUGIN = '''
from collections import OrderedDict
from torch import nn
from pfl_ops.models.base import Network, register

@register("served_wide")
class Wide(Network):
    """A plug-in's network."""

    def __init__(self, shape, n_classes, *, width: int = 3) -> None:
        body = OrderedDict(flat=nn.Flatten(), wide=nn.Linear(shape[0], width), act=nn.ReLU())
        super().__init__(body, width, n_classes)
'''


@pytest.fixture(autouse=True)
def _no_pickle(monkeypatch):
    """As an administrator forbids it, and as a test can be sure of it."""
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")

    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)


def test_images_as_stored_give_what_the_network_gives(tmp_path):
    section = MODELS.get("cnn_tiny")()
    network = build(section, (8, 8, 3), 4, seed=3)
    mean, std = np.array([1.0, 2.0, 3.0], np.float32), np.array([4.0, 5.0, 6.0], np.float32)
    save_model(
        tmp_path / "model",
        network.state_dict(),
        network=section.model_dump(),
        shape=(8, 8, 3),
        n_classes=4,
        mean=mean,
        std=std,
        classes=["ant", "bee", "cat", "dog"],
    )
    x = np.random.default_rng(0).integers(0, 17, (300, 8, 8, 3), dtype=np.uint8)
    with torch.inference_mode():
        z = torch.from_numpy(((x - mean) / std).transpose(0, 3, 1, 2).copy())
        expected = network(z).softmax(1).numpy()
    answer = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(x)
    assert answer.columns.tolist() == ["class", "p(ant)", "p(bee)", "p(cat)", "p(dog)"]
    np.testing.assert_allclose(answer.iloc[:, 1:].to_numpy(), expected, atol=1e-6)
    assert answer["class"].tolist() == [["ant", "bee", "cat", "dog"][i] for i in expected.argmax(1)]


def test_feature_vectors_and_a_network_of_a_plugin(tmp_path):
    from pfl_ops.registry import load_plugin

    plugin = tmp_path / "wide.py"
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    section = MODELS.get("served_wide")(width=5)
    network = build(section, (6,), 3, seed=3)
    mean, std = np.arange(6, dtype=np.float32), np.arange(1, 7, dtype=np.float32)
    save_model(
        tmp_path / "model",
        network.state_dict(),
        network=section.model_dump(),
        shape=(6,),
        n_classes=3,
        mean=mean,
        std=std,
        plugins=[plugin],
    )
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    with torch.inference_mode():
        expected = network(torch.from_numpy((x - mean) / std)).softmax(1).numpy()
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    answer = model.predict(x)
    np.testing.assert_allclose(answer.iloc[:, 1:].to_numpy(), expected, atol=1e-6)
    assert (answer["class"] == expected.argmax(1)).all(), "numbers, as labels are: no text equals a label"
    with pytest.raises(mlflow.exceptions.MlflowException, match="shape"):
        model.predict(np.zeros((2, 7), np.float32))
    assert model.predict(x[:0]).empty
    x[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"^1 of 5 samples have values that are not finite \(first: 3\)$"):
        model.predict(x)


def test_grey_images_may_come_without_a_channel(tmp_path):
    from types import SimpleNamespace

    from pfl_ops.tracking.target.served import ServedNetwork

    section = MODELS.get("linear")()
    network = build(section, (4, 4, 1), 2, seed=3)
    save_model(
        tmp_path / "model",
        network.state_dict(),
        network=section.model_dump() | {"weights": "/not/there"},
        shape=(4, 4, 1),
        n_classes=2,
        mean=[1.0],
        std=[2.0],
    )
    files = tmp_path / "model" / "artifacts"
    context = SimpleNamespace(
        artifacts={"weights": str(files / "model.safetensors"), "description": str(files / "description.json")}
    )
    model = ServedNetwork()
    model.load_context(context)
    x = np.random.default_rng(0).integers(0, 17, (3, 4, 4, 1), dtype=np.uint8)
    assert model.predict(context, x).equals(model.predict(context, x[..., 0]))
    assert len(model.predict(context, x[:0])) == 0
    with pytest.raises(ValueError, match=r"samples have shape \(5, 5, 1\), the model takes \(4, 4, 1\)"):
        model.predict(context, np.zeros((1, 5, 5, 1), np.uint8))


def test_weights_of_another_network_are_refused(tmp_path):
    from types import SimpleNamespace

    from pfl_ops.tracking.target.served import ServedNetwork

    section = MODELS.get("linear")()
    state = build(section, (4,), 2, seed=3).state_dict()
    kwargs = {"network": section.model_dump(), "shape": (4,), "n_classes": 2, "mean": [0.0] * 4, "std": [1.0] * 4}
    save_model(tmp_path / "model", state, **kwargs)
    from safetensors.torch import save_file

    files = tmp_path / "model" / "artifacts"
    save_file({"head.weight": state["head.weight"]}, files / "model.safetensors")
    context = SimpleNamespace(
        artifacts={"weights": str(files / "model.safetensors"), "description": str(files / "description.json")}
    )
    with pytest.raises(ValueError, match="do not fit"):
        ServedNetwork().load_context(context)


def test_the_folder_names_no_place_of_this_machine(tmp_path):
    section = MODELS.get("linear")()
    state = build(section, (4,), 2, seed=3).state_dict()
    save_model(
        tmp_path / "model", state, network=section.model_dump(), shape=(4,), n_classes=2, mean=[0.0] * 4, std=[1.0] * 4
    )
    for file in ("MLmodel", "requirements.txt", "conda.yaml", "artifacts/description.json"):
        text = (tmp_path / "model" / file).read_text()
        assert "/tmp" not in text
        assert str(tmp_path) not in text
    wanted = (tmp_path / "model" / "requirements.txt").read_text().split()
    assert [line for line in wanted if not line.startswith("mlflow==")] == requirements()
    assert not list((tmp_path / "model").rglob("__pycache__"))
    assert not list((tmp_path / "model").rglob("*.pkl"))


def test_installed_packages_are_not_scanned(tmp_path, monkeypatch):
    """That takes a second, to compare the environment with itself. If this fails, MLflow has moved the comparison."""
    from mlflow.utils import requirements_utils

    scanned = []
    monkeypatch.setattr(requirements_utils, "_check_requirement_satisfied", scanned.append)
    requirements_utils.warn_dependency_requirement_mismatches(["torch"])
    assert scanned == ["torch"]
    section = MODELS.get("linear")()
    network = build(section, (6,), 3, seed=0)
    about = {"network": section.model_dump(), "shape": (6,), "n_classes": 3, "mean": [0], "std": [1]}
    save_model(tmp_path / "model", network.state_dict(), **about)
    assert scanned == ["torch"]
