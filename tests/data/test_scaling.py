"""Input scaling: the numbers, where they go, and the identity of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import fingerprint
from pfl_ops.data import datasets, store
from pfl_ops.data.datasets import DATASETS, DataSection, load
from pfl_ops.data.npz import DataError
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution

LOOP = Execution(device="cpu", way="loop", workers=1, threads=1)
Y = np.arange(20) % 10


def images(path: Path, *shape: int) -> None:
    draws = np.random.Generator(np.random.PCG64(0))
    x = [draws.integers(0, 256, (20, *shape), dtype=np.uint8) for _ in range(2)]
    np.savez(path, x_train=x[0], y_train=Y, x_test=x[1], y_test=Y)


def points(path: Path) -> None:
    draws = np.random.Generator(np.random.PCG64(1))
    x, y = [draws.normal(size=(12, 4)).astype(np.float32) for _ in range(2)], np.arange(12) % 3
    np.savez(path, x_train=x[0], y_train=y, x_test=x[1], y_test=y)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images(tmp_path / "mnist.npz", 28, 28)
    images(tmp_path / "cifar10.npz", 32, 32, 3)
    points(tmp_path / "points.npz")
    return tmp_path


def experiment(folder: Path, name: str, scaling: Any = "standard", **changes: Any) -> Experiment:
    dataset = str(folder / name) if name.endswith(".npz") else name
    settings = {"data.scaling": scaling, **changes}
    return Experiment.of("fedavg", dataset=dataset, model="linear", partition="iid", **settings)


def test_half_and_unit_of_images_are_of_the_full_scale(folder: Path) -> None:
    """x / 255 in [0, 1]; (x / 255 - 1/2) / (1/2) = (x - 127.5) / 127.5. Digits have 17 levels, 0 to 16."""
    half, unit = (load(DataSection(name="cifar10", scaling=kind), data_dir=str(folder)) for kind in ("half", "unit"))
    assert (half.mean.tolist(), half.std.tolist()) == ([127.5] * 3, [127.5] * 3)
    assert (unit.mean.tolist(), unit.std.tolist()) == ([0.0] * 3, [255.0] * 3)
    digits = load(DataSection(name="digits", scaling="half"))
    assert (digits.mean.tolist(), digits.std.tolist()) == ([8.0], [8.0])


def test_half_and_unit_of_features_are_of_the_training_data(tmp_path: Path) -> None:
    """Feature 0 goes from -2 to 6: unit (x + 2) / 8, half (x - 2) / 4. Feature 1 is always 5: it becomes 0, or -1."""
    x = np.array([[-2, 5], [6, 5], [0, 5]], np.float32)
    y = np.array([0, 1, 0])
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=9 * x, y_test=y)
    name = str(tmp_path / "two.npz")
    unit, half = (load(DataSection(name=name, scaling=kind)) for kind in ("unit", "half"))
    assert (unit.mean.tolist(), unit.std.tolist()) == ([-2.0, 5.0], [8.0, 1.0])
    assert (half.mean.tolist(), half.std.tolist()) == ([2.0, 5.5], [4.0, 0.5])


@pytest.mark.parametrize("at_once", [1, 100, 1 << 30])
def test_moments_of_images_are_the_same_in_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 images of 6 by 5 pixels and 3 channels, counted image by image, in parts of three or four, and at once."""
    x = np.random.Generator(np.random.PCG64(2)).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    monkeypatch.setattr(store, "COUNTED_AT_ONCE", at_once)
    mean, std = store.moments(x)
    values = x.reshape(-1, 3).astype(np.float64)
    np.testing.assert_array_equal(mean, values.mean(0).astype(np.float32))
    np.testing.assert_allclose(std, values.std(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [([1, 2], [1.0] * 3, [2.0] * 3), ([[1, 2, 3], 4], [1.0, 2.0, 3.0], [4.0] * 3)],
)
def test_explicit_numbers_are_for_all_channels_or_each(folder: Path, given: Any, mean: Any, std: Any) -> None:
    data = load(DataSection(name="cifar10", scaling=given), data_dir=str(folder))
    assert (data.mean.tolist(), data.std.tolist()) == (mean, std)


def test_networks_are_given_scaled_inputs() -> None:
    """A batch of the engine, of digits at half: (x - 8) / 8."""
    simulation = Experiment.of(
        "fedavg", dataset="digits", clients=2, partition="iid", rounds=1, **{"data.scaling": "half"}
    ).build(execution=LOOP)
    rows = torch.tensor([0, 5, 9])
    fed, _ = simulation.feed.batch(rows)
    stored = simulation.feed.x[rows].float()
    torch.testing.assert_close(fed.flatten(), ((stored - 8) / 8).flatten())


GOLDEN = {
    "digits": "0d416f5e3de57e5c9f9498890122048ec07d3aafb2efad16ac73e6236aaf7933",
    "mnist": "2d1788ca8f231d1fedccc884e07e5782bd66bfc5464acaaf32504abf58d8297b",
    "cifar10": "497ee79d3d5fe511cfa40b48210c7a6a3ad165f51307ed162db9b9a33547ea44",
}


def settings_hash(one: Experiment, folder: Path) -> str:
    """The identity without the digests of code, which other changes move."""
    return fingerprint(one.identity(str(folder)), without=("code", "version"))


@pytest.mark.parametrize("name", GOLDEN)
def test_an_old_experiment_keeps_its_hash(folder: Path, name: str) -> None:
    """Hashes as version 1341dd3, without the field, computed them; a file without the field is `standard`."""
    now = experiment(folder, name)
    assert settings_hash(now, folder) == GOLDEN[name]
    old = now.to_yaml().replace("  scaling: standard\n", "")
    assert "scaling" not in old and Experiment.from_yaml(old) == now


def test_an_old_file_of_features_keeps_its_hash(folder: Path) -> None:
    """As above; the identity of a file is its content, wherever it lies."""
    expected = "9db1c77156cab016e38ba49374fa58d7b1ef4c2affb2ab1fc29d9e246f8777ec"
    assert settings_hash(experiment(folder, "points.npz"), folder) == expected


def test_the_same_numbers_are_the_same_run(folder: Path) -> None:
    half = experiment(folder, "mnist", "half").digest(str(folder))
    assert half == experiment(folder, "mnist", [127.5, 127.5]).digest(str(folder))
    assert half == experiment(folder, "mnist", [[127.5], 127.5]).digest(str(folder))
    published = DATASETS["mnist"]
    standard = experiment(folder, "mnist").digest(str(folder))
    assert standard == experiment(folder, "mnist", [published.mean[0], published.std[0]]).digest(str(folder))
    others = {experiment(folder, "mnist", kind).digest(str(folder)) for kind in ("unit", [0, 1], [1, 1])}
    assert len({half, standard, *others}) == 5


def test_constants_of_a_plugin_change_the_hash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = experiment(folder, "mnist").digest(str(folder))
    others = datasets.DATASETS | {"mnist": datasets.DATASETS["mnist"]._replace(std=(80.0,))}
    monkeypatch.setattr(datasets, "DATASETS", others)
    changed = experiment(folder, "mnist").digest(str(folder))
    assert changed != before
    mean = datasets.BUILTIN["mnist"].mean[0]
    assert changed == experiment(folder, "mnist", [mean, 80.0]).digest(str(folder))


def test_every_way_to_say_it_is_one_experiment(folder: Path) -> None:
    half = experiment(folder, "mnist", "half")
    assert Experiment.from_yaml(half.to_yaml()) == half
    assert experiment(folder, "mnist").override({"data.scaling": "half"}) == half
    channels = experiment(folder, "cifar10", [[1, 2, 3], [4, 5, 6]])
    assert Experiment.from_yaml(channels.to_yaml()) == channels
    assert json.loads(json.dumps(channels.resolved))["data"]["scaling"] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("halff", "data.scaling must be one of standard, half, unit or a list"),
        ([1], "data.scaling must be one of standard, half, unit or a list"),
        ([1, 0], r"data.scaling: the deviation in \[mean, deviation\] must be above 0"),
        ([1, [1, -1, 1]], r"data.scaling: the deviation in \[mean, deviation\] must be above 0"),
        (True, "data.scaling must be one of standard, half, unit or a list"),
    ],
)
def test_a_scaling_that_is_none_is_refused(folder: Path, scaling: Any, message: str) -> None:
    with pytest.raises(PflOpsError, match=message) as refused:
        experiment(folder, "cifar10", scaling)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ([[1, 2], 1], "data.scaling has 2 means, cifar10 has 3 channels or features"),
        ([0, [1, 2]], "data.scaling has 2 deviations, cifar10 has 3 channels or features"),
        ([1e99, 1], "data.scaling has means beyond the range of float32"),
        ([0, 1e-60], "data.scaling has deviations beyond the range of float32"),
    ],
)
def test_numbers_that_do_not_fit_the_data_are_refused(folder: Path, scaling: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(DataSection(name="cifar10", scaling=scaling), data_dir=str(folder))


def test_text_is_not_scaled() -> None:
    with pytest.raises(PflOpsError, match="scaling must be standard for text") as refused:
        Experiment.of("fedavg", dataset="shakespeare", **{"data.scaling": "half"})
    assert "\n" not in str(refused.value)


def test_a_frozen_network_scales_images_itself() -> None:
    with pytest.raises(PflOpsError, match=r"data\.scaling must be standard with resnet18_head"):
        Experiment.of("fedavg", dataset="fashion_mnist", model="resnet18_head", **{"data.scaling": "half"})


def test_a_search_space_can_choose_it() -> None:
    from pfl_ops import spaces

    base = Experiment.of("fedavg", dataset="digits")
    space = spaces.parse("data.scaling: {choice: [standard, half, unit]}")
    spaces.check(space, base)
    draws = np.random.default_rng(0)
    found = {base.override(space.draw(draws)).data.scaling for _ in range(30)}
    assert found == {"standard", "half", "unit"}


def test_a_saved_model_has_the_numbers(tmp_path: Path) -> None:
    """The model that a run saves scales raw digits by (x - 8) / 8 and says what the network says."""
    import mlflow.pyfunc

    from pfl_ops.models import MODELS, build
    from pfl_ops.tracking.target.saving import save_model

    one = Experiment.of("fedavg", dataset="digits", model="mlp", clients=2, **{"data.scaling": "half"})
    clients = one.clients()
    section = MODELS.get("mlp")()
    network = build(section, clients.shape, clients.n_classes, seed=0)
    save_model(
        tmp_path / "model",
        network.state_dict(),
        network=section.model_dump(),
        shape=clients.shape,
        n_classes=clients.n_classes,
        mean=clients.mean.tolist(),
        std=clients.std.tolist(),
    )
    x = clients.held.x[:5].numpy()
    answer = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(x)
    with torch.inference_mode():
        z = torch.from_numpy((x.astype(np.float32) - 8) / 8).permute(0, 3, 1, 2)
        expected = network(z).softmax(1).numpy()
    np.testing.assert_allclose(answer.iloc[:, 1:].to_numpy(), expected, atol=1e-6)
