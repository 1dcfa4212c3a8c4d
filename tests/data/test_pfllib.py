"""PFLlib's data folders: the arrays that went in, and no pickle that runs anything."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfl_ops.data import array_pickle
from pfl_ops.data.datasets import load
from pfl_ops.data.npz import DataError, checked, write_npz
from pfl_ops.data.pfllib import read_folder

SIZES = {"train": (6, 4, 9), "test": (2, 1, 3)}


def levels(part: str, client: int, shape: tuple[int, ...] = (1, 5, 4)) -> np.ndarray:
    """A client's images as they were before PFLlib scaled them, uint8 [n, C, H, W]."""
    rng = np.random.default_rng([client, part == "test"])
    return rng.integers(0, 256, (SIZES[part][client], *shape)).astype(np.uint8)


def as_pfllib(images: np.ndarray) -> np.ndarray:
    """ToTensor, then Normalize([0.5], [0.5]), in float32 as torchvision does."""
    return (images.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


def save_as_pfllib(file: Path, data: Any) -> None:
    """Write a file as `save_file` of PFLlib's dataset_utils.py does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        np.savez_compressed(stream, data=data)


def write_folder(folder: Path, scaled: Callable[[np.ndarray], np.ndarray] = as_pfllib) -> Path:
    for part, sizes in SIZES.items():
        for client, size in enumerate(sizes):
            x = scaled(levels(part, client))
            save_as_pfllib(folder / part / f"{client}.npz", {"x": x, "y": np.arange(size) % 3})
    (folder / "config.json").write_text(json.dumps({"num_clients": 3, "num_classes": 3, "alpha": 0.1}))
    return folder


def test_images_become_what_they_were(tmp_path: Path) -> None:
    """[n, C, H, W] in [-1, 1] become grey levels [n, H, W, C], exactly; each client keeps its samples."""
    arrays = read_folder(write_folder(tmp_path / "MNIST"))
    for part, sizes in SIZES.items():
        want = np.concatenate([levels(part, client) for client in range(3)]).transpose(0, 2, 3, 1)
        assert arrays[f"x_{part}"].dtype == np.uint8 and np.array_equal(arrays[f"x_{part}"], want)
        assert arrays[f"client_{part}"].tolist() == [k for k, n in enumerate(sizes) for _ in range(n)]
        assert arrays[f"y_{part}"].tolist() == [label for n in sizes for label in np.arange(n) % 3]
    write_npz(tmp_path / "mnist_of_pfllib.npz", arrays)
    assert load(str(tmp_path / "mnist_of_pfllib.npz")).train.client.tolist() == arrays["client_train"].tolist()


def test_images_in_0_to_1_become_what_they_were(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, lambda images: images.astype(np.float32) / np.float32(255))
    assert np.array_equal(read_folder(folder)["x_test"][:2], levels("test", 0).transpose(0, 2, 3, 1))


def test_other_samples_become_features(tmp_path: Path) -> None:
    """Sensor data [n, 9, 1, 4], and images under another normalisation, are flattened to [n, d]."""
    folder = write_folder(tmp_path, lambda images: as_pfllib(images) * np.float64(1.7))
    arrays = read_folder(folder)
    assert arrays["x_train"].dtype == np.float32 and arrays["x_train"].shape == (19, 20)
    assert np.allclose(arrays["x_train"][:6], as_pfllib(levels("train", 0)).reshape(6, 20) * 1.7)


def test_plain_arrays_are_read_too(tmp_path: Path) -> None:
    """The files that the advice on a refused file makes: x and y, no pickle."""
    folder = write_folder(tmp_path)
    before = read_folder(folder)
    np.savez(folder / "train" / "1.npz", x=as_pfllib(levels("train", 1)), y=np.arange(4) % 3)
    assert all(np.array_equal(before[name], array) for name, array in read_folder(folder).items())


class Trap:
    """Unpickling this creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("place", ["object", "x", "inside x", "key", "beside"])
def test_a_malicious_file_runs_nothing(tmp_path: Path, place: str) -> None:
    """`numpy.load(..., allow_pickle=True)` springs each trap; reading the folder refuses it, in one line."""
    folder, x, y = write_folder(tmp_path / "data"), as_pfllib(levels("train", 0)), np.arange(6) % 3
    trap: Any = Trap(tmp_path / "sprung")
    file = folder / "train" / "0.npz"
    save_as_pfllib(
        file,
        {
            "object": np.array(trap, dtype=object),
            "x": {"x": trap, "y": y},
            "inside x": {"x": np.array([trap] * 6, dtype=object), "y": y},
            "key": {"x": x, "y": y, "z": trap},
            "beside": [trap, {"x": x, "y": y}],
        }[place],
    )
    with pytest.raises(DataError, match=r"holds a pickle of something else|not the dict that PFLlib writes") as error:
        read_folder(folder)
    assert ("\n" not in str(error.value) and "allow_pickle" in str(error.value)) or place == "beside"
    assert not (tmp_path / "sprung").exists()
    with file.open("rb") as stream, np.load(stream, allow_pickle=True) as content:
        _ = content["data"]
    assert (tmp_path / "sprung").exists()  # the trap works


def pickled(value: Any, protocol: int = 4) -> bytes:
    """The pickle that NumPy writes for an array of this one object."""
    array = np.empty((), dtype=object)
    array[()] = value
    return pickle.dumps(array, protocol=protocol)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("kind", ["f4", ">f8", "u1", "<i2", "b1"])
def test_arrays_come_back_as_they_were(protocol: int, kind: str) -> None:
    """Byte order, order of axes and empty arrays included; equal parts may be shared in the pickle."""
    x = np.asfortranarray(np.arange(12).reshape(3, 4).astype(kind))
    found = array_pickle.read_dict(pickled({"x": x, "again": x, "empty": x[:0]}, protocol))
    assert list(found) == ["x", "again", "empty"]
    assert all(found[name].dtype == x.dtype for name in found) and found["empty"].shape == (0, 4)
    assert np.array_equal(found["x"], x) and np.array_equal(found["again"], x)


def test_names_of_older_numpy_are_known() -> None:
    old = pickled({"x": np.ones(2)}).replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    assert array_pickle.read_dict(old)["x"].tolist() == [1, 1]


def op(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(np.float64), "it names numpy.float64|it names"),
        (op(b"cos\nsystem\n", b"\x8c\x04true", b"\x85R"), "it names os.system"),
        (op(b"\x8c\x02os\x8c\x06system\x93", b"\x8c\x04true", b"\x85R"), "it names os.system"),
        (op(b"(ios\nsystem\n"), "it has the operation INST"),
        (op(b"(cnumpy\nndarray\n", b"o"), "it has the operation OBJ"),
        (op(b"cnumpy\nndarray\n", b")\x81"), "it has the operation NEWOBJ"),
        (op(b"\x82\x01"), "it has the operation EXT1"),
        (op(b"Pname\n"), "it has the operation PERSID"),
        (op(b"cnumpy\nndarray\n", b"\x85", b"R"), "takes more values|calls something else"),
        (op(b"cnumpy\nndarray\n", b"K\x01\x85R"), "it calls something else than NumPy's constructors"),
        (op(b"cnumpy\nndarray\n", b"}b"), "it sets the state of something else than an array"),
        (op(b"K\x01R"), "it takes more values than there are"),
        (op(b"(K\x01(R"), "it takes more values than there are"),
        (op(b"t"), "it has no mark"),
        (op(b"h\x07"), "it repeats a value that it does not have"),
        (op(b"K\x01a"), "no list|takes more values"),
        (op(b"}(K\x01K\x02u"), "the keys of a dict are no texts"),
        (op(b"K\x01" * 20_000), "more than 10,000 operations"),
        (op(b"K\x01"), "it is no single object"),
        (pickled([1]), "the object is no dict"),
        (pickled({"x": 1}), "something else than arrays by name"),
        (pickled({1: np.ones(2)}), "the keys of a dict are no texts"),
        (pickled({"x": np.array(["a"])}), "an array holds U1, not numbers"),
        (pickled({"x": np.array([1, "a"], dtype=object)}), "an array holds O8, not numbers"),
        (pickled({"x": np.zeros(2, "f4,i4")}), "structures, not numbers|not numbers"),
        (pickled({"x": np.zeros(3, "M8[s]")}), "structures, not numbers|not numbers"),
        (pickle.dumps(np.ones(3), protocol=4), "it is no single object"),
    ],
)
def test_any_other_pickle_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(array_pickle.UnsupportedPickle, match=message):
        array_pickle.read_dict(content)


def test_a_forged_type_makes_no_pointers() -> None:
    """An array of objects whose content is given as bytes would be read as addresses by NumPy's own `__setstate__`."""
    whole = pickled({"x": np.arange(4, dtype="<i8")})
    assert whole.count(b"\x8c\x02i8") == 1
    for code in (b"O8", b"V8", b"i9", b"f3"):
        with pytest.raises(array_pickle.UnsupportedPickle, match=f"an array holds {code.decode()}, not numbers"):
            array_pickle.read_dict(whole.replace(b"\x8c\x02i8", b"\x8c\x02" + code))
    with pytest.raises(array_pickle.UnsupportedPickle, match="an array's size is not that of its content"):
        array_pickle.read_dict(whole.replace(b"K\x04\x85", b"K\x05\x85"))


def damaged(folder: Path, change: str) -> None:
    file = folder / "train" / "1.npz"
    if change == "missing":
        file.unlink()
    elif change == "no test":
        (folder / "test" / "2.npz").unlink()
    elif change == "more test":
        (folder / "test" / "3.npz").touch()
    elif change == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    elif change == "config":
        (folder / "config.json").write_text('{"num_clients": 20}')
    elif change == "bad config":
        (folder / "config.json").write_bytes(b"\xff{")
    elif change == "labels":
        save_as_pfllib(file, {"x": np.ones((4, 1, 5, 4), np.float32), "y": np.arange(5)})
    elif change == "float labels":
        save_as_pfllib(file, {"x": np.ones((4, 1, 5, 4), np.float32), "y": np.ones(4)})
    elif change == "shapes":
        save_as_pfllib(file, {"x": np.ones((4, 1, 5, 5), np.float32), "y": np.arange(4)})
    elif change == "texts":
        save_as_pfllib(file, {"x": [[1, 2], [3]], "y": [0, 1]})
    elif change == "not finite":
        save_as_pfllib(file, {"x": np.full((4, 1, 5, 4), np.nan, np.float32), "y": np.arange(4)})
    elif change == "array":
        save_as_pfllib(file, np.ones(4))
    elif change == "other":
        np.savez(file, z=np.ones(4))
    elif change == "bomb":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data.npy", bytes(2**29))
    else:
        raise ValueError(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "has no train/1.npz; PFLlib numbers clients from 0"),
        ("no test", "has no test/2.npz"),
        ("more test", "has 3 clients in train/, 4 in test/"),
        ("cut", "1.npz is damaged, or no .npz file"),
        ("config", "config.json states 20 clients, train/ has 3"),
        ("bad config", "config.json is damaged, or cannot be read"),
        ("labels", r"y must hold one whole number for each sample of x"),
        ("float labels", r"y float64 \[4\]; y must hold one whole number"),
        ("shapes", "the samples of all clients must have one shape"),
        ("texts", "holds a pickle of something else than arrays of numbers"),
        ("not finite", "x_train has 4 samples with values that are not finite"),
        ("array", r"data is float64 \[4\], not the dict that PFLlib writes"),
        ("other", "holds neither PFLlib's `data` nor the arrays x and y"),
        ("bomb", "data would unpack from .* to 512 MiB, which no real data does"),
    ],
)
def test_damaged_folders_are_one_line(tmp_path: Path, change: str, message: str) -> None:
    folder = write_folder(tmp_path / "data")
    damaged(folder, change)
    with pytest.raises(DataError, match=message) as error:
        checked(read_folder(folder), "data")
    assert "\n" not in str(error.value)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no data folder of PFLlib: it has no train/0.npz"):
        read_folder(tmp_path)


VALID = pickled({"x": np.ones((2, 3), np.float32), "y": np.arange(2)})
edits = st.lists(st.tuples(st.integers(0, len(VALID)), st.binary(max_size=4), st.integers(0, 4)), max_size=3)


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(edits=edits)
def test_pickles_of_any_bytes(edits: list[tuple[int, bytes, int]]) -> None:
    """A changed pickle gives arrays of numbers, or an exception that the reader of folders turns into one line."""
    content = VALID
    for at, new, dropped in edits:
        content = content[:at] + new + content[at + dropped :]
    try:
        found = array_pickle.read_dict(content)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError, TypeError, struct.error):
        return
    assert all(array.dtype.kind in "fiub" for array in found.values())


def test_the_header_of_an_npy_file_is_skipped_whole(tmp_path: Path) -> None:
    """Format 2, which NumPy writes for long headers, has a length of four bytes."""
    out = io.BytesIO()
    np.lib.format.write_array_header_2_0(out, {"descr": "|O", "fortran_order": False, "shape": ()})
    x = np.ones((4, 1, 5, 4), np.float32)
    out.write(pickled({"x": x, "y": np.arange(4) % 3}))
    folder = write_folder(tmp_path)
    with zipfile.ZipFile(folder / "train" / "1.npz", "w") as archive:
        archive.writestr("data.npy", out.getvalue())
    assert (read_folder(folder)["x_train"][6:10] == 255).all()
