"""The cache of unpacked data: what is used has the content that its digest says, and damage is mended in one line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import arrays
from full_disk import full_disk

from pfl_ops.data import store
from pfl_ops.data.datasets import DataSection, Dataset, load
from pfl_ops.data.npz import DataError

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_file_was_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(store, "_verified", {})


def opened(path: Path, **how: Any) -> Dataset:
    return load(DataSection(name=str(path), train_size=None), **how)


def overwrite(file: Path, at: int = -5, count: int = 3) -> None:
    """Change bytes in place; size and time of modification stay."""
    stat, content = file.stat(), bytearray(file.read_bytes())
    for i in range(at, at + count):
        content[i] ^= 0xFF
    with file.open("r+b") as stream:
        stream.write(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_an_array_overwritten_in_place_is_unpacked_again(
    npz: Write, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz()
    first = opened(path)
    overwrite(first.files.folder / f"{name}.npy")
    again = opened(path)
    assert np.array_equal(again.train.x[..., 0], arrays()["x_train"]) and np.array_equal(again.train.y, first.train.y)
    assert np.array_equal(again.test.x[..., 0], arrays()["x_test"])
    assert again.digest == first.digest
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and f"{first.files.folder} was damaged ({name}: its content is not what was" in line


def test_damage_without_a_source_is_one_line(npz: Write) -> None:
    path = npz()
    data = opened(path)
    overwrite(data.files.folder / "x_train.npy")
    path.unlink()
    with pytest.raises(DataError) as error:
        _ = data.train
    message = str(error.value)
    assert message.startswith(f"{data.files.folder} is damaged (x_train: its content is not what was written)")
    assert "does not exist" in message and "delete it" in message and "\n" not in message


def test_a_source_with_other_content_does_not_replace_it(npz: Write) -> None:
    path = npz()
    data = opened(path)
    overwrite(data.files.folder / "x_train.npy")
    npz(y_train=np.zeros(120, int))
    with pytest.raises(DataError, match=r"is damaged \(x_train: .*its source has other content now; run again"):
        _ = data.train


def test_a_source_overwritten_in_place_is_another_data_set(npz: Write) -> None:
    """Stored members: the same size, the same time of modification, other pixels.

    The time of change, which tells them apart, moves in ticks of the kernel's clock, of up to 10 ms.
    """
    path = npz()
    first, stat = opened(path), path.stat()
    npz(x_train=255 - arrays()["x_train"])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    while path.stat().st_ctime_ns == stat.st_ctime_ns:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    second = opened(path)
    assert second.digest != first.digest and not np.array_equal(second.train.x, first.train.x)


def test_a_file_is_read_once_a_process_and_again_when_it_changes(npz: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(npz())
    monkeypatch.setattr(store, "UNSETTLED_NS", -(10**18))  # the files are a moment old
    read: list[str] = []
    file_digest = store.file_digest
    monkeypatch.setattr(store, "file_digest", lambda file: read.append(file.name) or file_digest(file))
    for _ in range(3):
        _ = data.train
    assert read == ["x_train.npy", "y_train.npy"]
    os.chmod(data.files.folder / "x_train.npy", 0o600)  # another time of change
    _ = data.train
    assert read == ["x_train.npy", "y_train.npy", "x_train.npy"]


def test_a_file_that_changed_a_moment_ago_is_read_each_time(npz: Write) -> None:
    """Its next change could have the same time."""
    data = opened(npz())
    _ = data.train
    assert store._verified == {}


def change_meta(folder: Path, **changes: Any) -> None:
    file = folder / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("changes", [{"mean": [7.0]}, {"digest": "0" * 64}, {"n_train": 3}, {"files": {}}, {"std": 10}])
def test_changed_meta_data_are_not_used(npz: Write, changes: dict[str, Any]) -> None:
    path = npz()
    first = opened(path)
    change_meta(first.files.folder, **changes)
    again = opened(path)
    assert again.digest == first.digest and again.mean.tolist() == first.mean.tolist() and len(again.train.y) == 120


@pytest.mark.parametrize("content", ['{"digest": "../../else"}', "[" * 100_000, "null", "[]", '{"digest": 3}'])
def test_a_damaged_note_of_the_source_is_written_anew(npz: Write, cache: Path, content: str) -> None:
    path = npz()
    digest = opened(path).digest
    (entry,) = (cache / "sources").glob("*.json")
    entry.write_text(content)
    assert opened(path).digest == digest
    assert json.loads(entry.read_text())["digest"] == digest


def test_a_note_that_leads_elsewhere_is_not_followed(npz: Write, cache: Path) -> None:
    path = npz()
    data = opened(path)
    shutil.copytree(data.files.folder, cache.parent / "else")
    (entry,) = (cache / "sources").glob("*.json")
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"digest": "../else"}))
    assert opened(path).files.folder == data.files.folder


def test_a_folder_of_another_format_is_unpacked_again(npz: Write) -> None:
    """Formats 1 and 2 took features that differ by less than 1e-12 for constant ones."""
    path = npz()
    files = opened(path).files
    old = {name: value for name, value in files.meta.items() if name != "sha256"} | {"format": 2, "std": [1.0]}
    change_meta(files.folder, **old, sha256=store._digest_of(old))
    assert opened(path).files.meta == files.meta


def test_a_deleted_folder_is_unpacked_again(npz: Write, cache: Path) -> None:
    path = npz()
    data = opened(path)
    source = json.loads(next((cache / "sources").glob("*.json")).read_text())["source"]
    shutil.rmtree(data.files.folder)
    assert not store.has(source)
    assert np.array_equal(opened(path).train.x, arrays()["x_train"][..., None])


def test_a_full_cache_is_one_line_and_leaves_nothing(npz: Write, cache: Path) -> None:
    path = npz()
    with full_disk(after=1000), pytest.raises(DataError) as error:
        opened(path)
    assert str(error.value) == f"cannot write the cache folder {cache} (File too large); set PFL_OPS_CACHE"
    assert [entry.name for entry in cache.iterdir()] == ["sources"]
    assert not list((cache / "sources").glob("*.json"))
    assert len(opened(path).train.y) == 120


def test_a_source_that_cannot_be_read_is_not_called_the_cache() -> None:
    def read() -> dict[str, np.ndarray]:
        raise FileNotFoundError("no usable temporary directory")

    with pytest.raises(DataError, match=r"^the data cannot be read \(no usable temporary directory\)$"):
        store.unpacked("a", read)


def test_unpacked_data_need_no_cache_that_can_be_written(npz: Write) -> None:
    path = npz()
    digest = opened(path).digest
    with full_disk():
        data = opened(path)
        assert data.digest == digest and len(data.train.y) == 120


def test_a_measurement_is_remembered_unless_damaged(cache: Path) -> None:
    value = {"rates": [{"stack": None, "rate": 1.5}], "scaling": 0.9}
    store.remember("execution", "this machine", value)
    assert store.remembered("execution", "this machine") == value
    assert store.remembered("execution", "another one") is None
    (file,) = (cache / "execution").iterdir()
    whole = file.read_text()
    for damaged in (whole.replace("1.5", "2.5"), whole[:-20], "[" * 100_000, "null", whole.replace("this", "that")):
        file.write_text(damaged)
        assert store.remembered("execution", "this machine") is None
    with full_disk():
        store.remember("execution", "this machine", value)  # only costs measuring again
    assert [entry.name for entry in (cache / "execution").iterdir()] == [file.name]
