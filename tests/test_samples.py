"""Experiments whose network has a frozen part: features come before clients, weights count by content."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.samples import samples
from pfl_ops.data.datasets import load
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.models.backbone import backbone
from pfl_ops.registry import load_plugin

CPU = Execution(device="cpu", way="vmap", chunk=2, threads=1, workers=1)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and no weights that somebody downloaded before."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)


def experiment(**changes: Any) -> Experiment:
    frozen = {"model": "resnet18_head", "model.pretrained": False, "model.size": 32}
    flags = {"dataset": "digits", "train_size": 60, "clients": 2, "rounds": 2}
    return Experiment.of("fedavg", **flags, **(frozen if "model" not in changes else {}) | changes)


def test_a_federation_trains_on_features() -> None:
    chosen = experiment()
    extract = backbone(chosen.model).open("cpu")  # type: ignore[union-attr]
    expected = extract(load(chosen.data).train.x)
    assert np.allclose(samples(chosen).train.x, expected, rtol=1e-4, atol=1e-4)
    simulation = chosen.build(execution=CPU)
    assert {tuple(x) for x in simulation.clients.train.x.tolist()} <= {
        tuple(x) for x in samples(chosen).train.x.tolist()
    }
    records = list(simulation.run())
    assert records[-1].metrics["train/loss"] < records[1].metrics["train/loss"]
    assert simulation.task.layout.size == 5_130


def test_who_owns_what_is_as_without_the_frozen_part() -> None:
    one, other = experiment().build(execution=CPU), experiment(model="mlp").build(execution=CPU)
    assert one.clients.partition_digest == other.clients.partition_digest
    assert one.clients.data_digest == other.clients.data_digest
    assert torch.equal(one.clients.held.y, other.clients.held.y)


def test_a_trial_computes_nothing_of_the_test_data(tmp_path: Path) -> None:
    experiment(**{"evaluation.split": "validation"}).build(execution=CPU)
    names = {file.name for file in (tmp_path / "cache" / "features").glob("*/*.npy")}
    assert names == {"x_train.npy", "sha256_train.npy"}
    experiment(**{"evaluation.split": "test"}).build(execution=CPU)
    assert {file.name for file in (tmp_path / "cache" / "features").glob("*/x_test.npy")} == {"x_test.npy"}


def test_options_and_weights_have_features_of_their_own(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    torch.save(resnet18(weights=None).state_dict(), tmp_path / "a.pth")
    named = {"model.pretrained": True, "model.weights": str(tmp_path / "a.pth")}
    keys = {samples(experiment(**changes)).features.key for changes in ({}, {"model.size": 40}, named)}  # type: ignore[union-attr]
    assert len(keys) == 3
    assert samples(experiment(model="mlp")).features is None


FROZEN = """
import numpy as np
import torch
from pfl_ops.models.backbone import Backbone
from pfl_ops.models.base import Network, register

def opened(device):
    return lambda images: images.reshape(len(images), -1).astype(np.float32) * FACTOR

@register("samples_frozen")
class Frozen(Network):
    def __init__(self, shape, n_classes):
        super().__init__({"flatten": torch.nn.Flatten()}, 64, n_classes)

    @classmethod
    def backbone(cls, section, shape=None):
        return Backbone("a factor", 64, None, opened)
"""


def test_an_edited_network_of_a_user_has_new_features(tmp_path: Path) -> None:
    file, highest = tmp_path / "frozen.py", []
    for factor in (1, 3):
        file.write_text(FROZEN.replace("FACTOR", str(factor)))
        load_plugin(file)
        highest.append(float(samples(experiment(model="samples_frozen")).train.x.max()))
    assert highest == [16, 48]


def test_weights_are_part_of_what_a_run_is_by_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    torch.save(resnet18(weights=None).state_dict(), tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes((tmp_path / "a.pth").read_bytes())
    torch.save(resnet18(weights=None).state_dict(), tmp_path / "c.pth")
    hashes = [
        experiment(**{"model.pretrained": True, "model.weights": str(tmp_path / name)}).hash
        for name in ("a.pth", "b.pth", "c.pth")
    ]
    assert hashes[0] == hashes[1] != hashes[2]
    downloaded = tmp_path / "torch" / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    downloaded.parent.mkdir(parents=True)
    downloaded.write_bytes((tmp_path / "a.pth").read_bytes())
    assert experiment(**{"model.pretrained": True}).hash == hashes[0]  # the same, wherever it came from
    assert experiment().hash not in hashes


def test_weights_that_are_not_there() -> None:
    with pytest.raises(PflOpsError, match=r"^model.weights: can't read none.pth: No such file"):
        _ = experiment(**{"model.pretrained": True, "model.weights": "none.pth"}).hash
