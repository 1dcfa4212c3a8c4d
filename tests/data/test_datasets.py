"""Finding, unpacking, cutting, sealing."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import arrays

from pfl_ops.data import sources, store
from pfl_ops.data.datasets import DATASETS, DataSection, TestDataSealed, here, load, model_for
from pfl_ops.data.npz import DataError
from pfl_ops.data.remarks import dataset_remarks
from pfl_ops.errors import PflOpsError

Write = Callable[..., Path]


def everything(path: Path | str, **section: Any) -> DataSection:
    return DataSection(name=str(path), train_size=None, **section)


def test_digits_need_nothing() -> None:
    data = load("digits")
    assert data.shape == (8, 8, 1) and data.n_classes == 10
    assert data.train.x.shape == (1438, 8, 8, 1) and data.test.x.shape == (359, 8, 8, 1)
    assert data.train.x.dtype == np.uint8 and data.train.x.max() == 16
    shares = np.bincount(data.test.y) / (np.bincount(data.test.y) + np.bincount(data.train.y))
    assert np.abs(shares - 0.2).max() < 0.01
    # the split and the values are the same everywhere and for ever
    assert data.digest == "8e117bc1ef5724e3748133afa1e572c7214ed0ea797a0b121a4442e11e3d79b2"


def test_constants_are_the_training_datas() -> None:
    data = load("digits")
    x = data.train.x.astype(np.float64)
    assert data.mean == pytest.approx([x.mean()], rel=1e-4) and data.std == pytest.approx([x.std()], rel=1e-4)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("cifar10", "cifar100")]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", *SLOW])
def test_constants_of_real_data(name: str, real_data: Callable[[str], Path]) -> None:
    real_data(name)
    data = load(everything(name))
    assert data.mean == pytest.approx(data.files.meta["mean"], rel=1e-4)
    assert data.std == pytest.approx(data.files.meta["std"], rel=1e-4)
    assert data.train.x.shape[1:] == data.test.x.shape[1:] == DATASETS[name].shape


def test_mnist_is_unpacked_once(real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real_data("mnist")
    load("mnist")
    monkeypatch.setitem(sources.READERS, ".npz", lambda *_: pytest.fail("it was unpacked again"))
    data = load("mnist")
    assert len(data.train.y) == 12_000 and len(data.test.y) == 2_000
    full = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    assert np.abs(np.bincount(data.train.y) - full / 5).max() < 1


def test_a_data_set_is_here_where_it_is_loaded_from(
    npz: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named one is not looked for in the working directory: there it was here, and not loaded; ~ is one's home."""
    npz("kmnist")
    npz()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not here("kmnist") and here("kmnist", data_dir=str(tmp_path))
    assert here("mine.npz") and here("~/mine.npz") and not here("other.npz") and here("digits")


def test_ones_own_file(npz: Write) -> None:
    data = load(everything(npz()))
    made = arrays()
    assert (data.name, data.shape, data.n_classes) == ("mine", (6, 5, 1), 4)
    assert np.array_equal(data.train.x[..., 0], made["x_train"]) and np.array_equal(data.test.y, made["y_test"])
    assert data.train.client is None
    assert data.mean == pytest.approx([made["x_train"].mean()]) and data.std == pytest.approx([made["x_train"].std()])
    assert data.train.x.flags.writeable  # copy on write: torch takes it without a copy, and nobody else sees a change


def test_features_and_a_constant_one(npz: Write) -> None:
    x = np.random.default_rng(0).normal(3, 2, (120, 5)).astype(np.float32)
    x[:, 2] = 7
    data = load(everything(npz(x_train=x, x_test=x[:40])))
    assert data.shape == (5,) and data.mean == pytest.approx(x.mean(0), rel=1e-5)
    assert data.std[2] == 1 and data.std[0] == pytest.approx(x[:, 0].std(), rel=1e-5)


def test_features_in_small_units_are_scaled(npz: Write) -> None:
    """Farads of picofarads differ by 1e-13, which is no constant; a deviation below 1.2e-38 can't be divided by."""
    x = np.random.default_rng(0).normal(5, 1, (160, 3)).astype(np.float32) * np.float32([1e-13, 1e-30, 1e-41])
    data = load(str(npz(x_train=x[:120], x_test=x[120:])))
    assert data.std == pytest.approx([x[:120, 0].std(), x[:120, 1].std(), 1.0], rel=1e-5)


def test_models_that_suit(npz: Write) -> None:
    networks = ["cnn_tiny", "cnn", "cnn", "cnn", "cnn_cifar", "cnn_cifar", "char_lstm"]
    assert [model_for(name) for name in DATASETS] == networks
    assert model_for(str(npz())) == "cnn"
    x = np.zeros((120, 5), np.float32)
    assert model_for(str(npz("table", x_train=x, x_test=x[:40]))) == "mlp"


def test_the_digest_is_the_contents(npz: Write, tmp_path: Path) -> None:
    first = load(str(npz()))
    packed = tmp_path / "again.npz"
    np.savez_compressed(packed, **arrays(y_train=arrays()["y_train"].astype(np.uint8)))
    assert load(str(packed)).digest == first.digest
    assert load(str(npz("other", y_test=np.zeros(40, int)))).digest != first.digest


def test_a_changed_file_is_read_again(npz: Write) -> None:
    before = load(str(npz())).digest
    assert load(str(npz(y_test=np.zeros(40, int)))).digest != before


# --- the cut


def test_cut_by_class_and_by_one_factor(npz: Write) -> None:
    data = load(DataSection(name=str(npz()), train_size=30))
    assert len(data.train.y) == 30 and len(data.test.y) == 10
    assert np.ptp(np.bincount(data.train.y)) <= 1
    rows = data.rows()
    assert np.array_equal(arrays()["x_train"][rows], data.train.x[..., 0])
    assert np.array_equal(arrays()["x_test"][data.rows("test")], data.test.x[..., 0])
    again = load(DataSection(name=str(npz()), train_size=30))
    assert np.array_equal(again.rows(), rows)
    assert again.digest == load(everything(npz())).digest
    tiny = load(DataSection(name=str(npz()), train_size=4))
    assert sorted(tiny.train.y.tolist()) == [0, 1, 2, 3] and len(tiny.test.y) == 1


def test_cut_by_client_where_there_are_some(npz: Write) -> None:
    users = np.repeat([1, 2, 3], [100, 15, 5])
    path = npz(client_train=users, client_test=np.repeat([1, 2, 3], [30, 8, 2]))
    data = load(DataSection(name=str(path), train_size=24))
    assert np.bincount(data.train.client).tolist() == [0, 20, 3, 1]
    assert len(data.test.y) == 8 and set(data.test.client.tolist()) == {1, 2, 3}


# --- sealing


def test_images_that_may_have_channels_first_are_a_remark(npz: Write) -> None:
    """[n, 3, 13, 11] may be 3 x 13 with 11 channels, or 13 x 11 with 3; [n, 13, 11, 3] and [n, 3, 13, 3] can't."""

    def remarks(*shape: int) -> tuple[str, ...]:
        parts = {f"x_{part}": np.zeros((n, *shape), np.uint8) for part, n in (("train", 120), ("test", 40))}
        return dataset_remarks(load(everything(npz("-".join(map(str, shape)), **parts))))

    told = "images are 3 x 13 with 11 channels; if 3 is the number of channels: np.moveaxis(x, 1, -1)"
    assert remarks(3, 13, 11) == (told,)
    assert remarks(13, 11, 3) == remarks(3, 13, 3) == remarks(6, 5) == ()


def test_remarks_on_a_cut_that_changes_shares(npz: Write) -> None:
    """A client of 100 samples and 20 of one: 24 samples are one for each of the 20, 83 % instead of 17 %, and 4.

    12 samples are fewer than clients. Each of the 20 has the share 0.1, client 0 has 10: two of the 20 get one more.
    """
    users = np.append(np.zeros(100, np.int64), np.arange(1, 21))
    path = str(npz(client_train=users, client_test=np.zeros(40, np.int64)))
    data = load(DataSection(name=path, train_size=24))
    assert data.train.client is not None and np.bincount(data.train.client).tolist() == [4, *[1] * 20]
    assert dataset_remarks(data) == (
        "24 of 120 training and 8 of 40 test samples are used (data.train_size=24; none: all)",
        "data.train_size=24 changes the shares of clients: 20 of 21 have 83 % of the samples instead of 17 %; "
        "data.train_size=none takes all samples",
    )
    _, line = dataset_remarks(load(DataSection(name=path, train_size=12)))
    assert "2 of 21 have 17 % of the samples instead of 2 %, 18 have none;" in line
    for whole in (everything(path), DataSection(name="digits", train_size=500)):
        assert dataset_remarks(load(whole)) == ()


def test_a_file_that_is_used_in_part_is_a_remark(npz: Write) -> None:
    """40 of 120 training samples are a third, and so are 13 of 40 test samples; the test data may be sealed."""
    told = ("40 of 120 training and 13 of 40 test samples are used (data.train_size=40; none: all)",)
    assert dataset_remarks(load(DataSection(name=str(npz()), train_size=40))) == told
    assert dataset_remarks(load(DataSection(name=str(npz()), train_size=40), sealed=True)) == told
    assert dataset_remarks(load(DataSection(name=str(npz()), train_size=120))) == ()


def test_classes_without_training_samples_are_a_remark(npz: Write) -> None:
    """Labels 0, 10, 20, 30 are 31 classes, of which 27 have no sample; classes of the test data train if merged."""
    tens = npz("tens", y_train=arrays()["y_train"] * 10, y_test=arrays()["y_test"] * 10)
    (line,) = dataset_remarks(load(everything(tens)))
    assert line == (
        "27 of 31 classes have no training sample (1, 2, 3, 4, 5, ...), and networks an output for each; classes are "
        "numbered from 0, without gaps"
    )
    data = load(everything(npz("nine", y_test=np.repeat([0, 1, 4, 5], 10)))).sealed()
    assert dataset_remarks(data)[0].startswith("2 of 6 classes have no training sample (4, 5), ")
    (line,) = dataset_remarks(load(everything(npz("nine", y_test=np.repeat([0, 1, 2, 5], 10)))).merged())
    assert line.startswith("1 of 6 classes has no training sample (4), ")


def test_a_sealed_data_set_opens_no_test_file(npz: Write) -> None:
    data = load(DataSection(name=str(npz()), train_size=30))
    for file in data.files.folder.glob("*_test.npy"):
        file.write_bytes(b"poison")
    sealed = load(DataSection(name=str(npz()), train_size=30), sealed=True)
    assert len(sealed.train.y) == 30 and sealed.digest == data.digest and len(sealed.mean) == 1
    assert sealed.sizes == (30, 10), "of 120 and 40, by the numbers alone"
    for reach in (lambda: sealed.test, lambda: sealed.rows("test"), lambda: data.sealed().test, sealed.merged):
        with pytest.raises(TestDataSealed, match="the test data of mine is sealed"):
            reach()
    assert sorted(set(data.test.y.tolist())) == [0, 1, 2, 3]  # opened, found damaged, and unpacked again


def test_pooled(npz: Write) -> None:
    pooled = load(everything(npz(), pooled=True), sealed=True)
    assert len(pooled.train.y) == 160
    made = arrays()
    assert np.array_equal(pooled.train.x[120:, ..., 0], made["x_test"])
    assert pooled.rows().tolist() == list(range(160))
    with pytest.raises(TestDataSealed, match="mine is pooled"):
        _ = pooled.test
    merged = load(everything(npz())).merged()
    assert np.array_equal(merged.train.y, pooled.train.y)
    cut = load(DataSection(name=str(npz()), train_size=30, pooled=True))
    assert len(cut.train.y) == 40 and (cut.rows()[30:] >= 120).all()
    assert (cut.sizes, load(everything(npz())).sizes) == ((40, 0), (120, 40))


# --- the cache


def test_unpacked_once(npz: Write, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(str(npz()))
    monkeypatch.setattr(store, "_unpack", lambda *_: pytest.fail("unpacked again"))
    assert load(str(cache.parent / "mine.npz")).digest == first.digest
    assert sorted(p.name for p in (cache / first.digest).iterdir()) == [
        "meta.json", "x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy",
    ]  # fmt: skip
    assert not list(cache.glob(".unpacking-*"))


def test_a_damaged_cache_is_made_again(npz: Write, cache: Path) -> None:
    data = load(str(npz()))
    file = cache / data.digest / "x_train.npy"
    file.write_bytes(file.read_bytes()[:-7])
    assert len(load(everything(cache.parent / "mine.npz")).train.y) == 120
    (cache / data.digest / "meta.json").write_text("{")
    assert load(str(cache.parent / "mine.npz")).digest == data.digest
    for entry in (cache / "sources").glob("*.json"):
        entry.write_text("nonsense")
    assert load(str(cache.parent / "mine.npz")).digest == data.digest


def test_what_a_killed_process_left_is_swept(npz: Write, cache: Path) -> None:
    old, new = cache / ".unpacking-old", cache / ".unpacking-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 100_000,) * 2)
    load(str(npz()))
    assert not old.exists() and new.exists()


def _digest_of(path: str, results: Any) -> None:
    results.put(load(path).digest)


def test_two_first_starts_at_once(npz: Write) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    path = str(npz())
    processes = [context.Process(target=_digest_of, args=(path, results)) for _ in range(3)]
    for process in processes:
        process.start()
    digests = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(30)
    assert digests == {load(path).digest}


def test_a_cache_that_cannot_be_written(npz: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write the cache folder .*file \(.*\); set PFL_OPS_CACHE"):
        load(str(npz()))


# --- names and folders


def test_names() -> None:
    with pytest.raises(
        PflOpsError, match=r"no dataset named 'mnsit'. Did you mean 'mnist'\? \(pfl-ops list datasets\)"
    ):
        load("mnsit")
    assert DataSection(name="a/b/mine.npz").label == "mine"
    defaults = {"name": "digits", "train_size": 12_000, "pooled": False, "test_share": 0.25}
    assert DataSection().model_dump() == {**defaults, "roles": None, "records": None, "scaling": "standard"}
    with pytest.raises(ValueError, match="train_size"):
        DataSection(train_size=0)


def test_folders_in_their_order(npz: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def put(folder: str, label: int) -> str:
        images = np.zeros((20, 28, 28), np.uint8), np.full(20, label)
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        np.savez(
            tmp_path / folder / "mnist.npz", x_train=images[0], y_train=images[1], x_test=images[0], y_test=images[1]
        )
        return str(tmp_path / folder)

    put("cache", 3)
    assert load("mnist").train.y[0] == 3
    one, two = put("one", 1), put("two", 2)
    monkeypatch.setenv("PFL_OPS_DATA", os.pathsep.join(["/nowhere", two]))
    assert load("mnist").train.y[0] == 2
    assert load("mnist", data_dir=os.pathsep.join(["/nowhere", one])).train.y[0] == 1
    assert load("mnist").n_classes == 10  # by name, though the file has one class


def test_a_relative_file_is_also_looked_for_in_the_data_folders(npz: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz()
    assert load("mine.npz", data_dir=str(path.parent)).name == "mine"
    with pytest.raises(DataError, match=r"data file none.npz does not exist \(looked in .*"):
        load("none.npz", data_dir=str(path.parent))
    with pytest.raises(DataError, match="is not a file"):
        (path.parent / "folder.npz").mkdir()
        load(str(path.parent / "folder.npz"))
