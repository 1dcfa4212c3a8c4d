"""Files that nobody vouches for: what is read, and one clear line for everything else."""

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import arrays

from pfl_ops.data import npz as module
from pfl_ops.data.npz import DataError, checked, read_npz

Write = Callable[..., Path]


def member(array: np.ndarray, **header: Any) -> bytes:
    """An array as .npy bytes; `header` replaces what it says about itself."""
    out = io.BytesIO()
    if header:
        plain = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | header
        np.lib.format.write_array_header_1_0(out, plain)
        out.write(array.tobytes())
    else:
        np.lib.format.write_array(out, array)
    return out.getvalue()


def pack(path: Path, compression: int = zipfile.ZIP_DEFLATED, **replaced: bytes) -> Path:
    """A data set with some members' bytes replaced."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays().items():
            archive.writestr(f"{name}.npy", replaced.get(name, member(array)))
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_compression_is_read(tmp_path: Path, compression: int) -> None:
    found = read_npz(pack(tmp_path / "a.npz", compression))
    assert all(np.array_equal(found[name], array) for name, array in arrays().items())


def test_images_and_features_take_one_form(npz: Write) -> None:
    done = checked(read_npz(npz()), "mine")
    assert done["x_train"].shape == (120, 6, 5, 1) and done["x_train"].dtype == np.uint8
    assert done["y_test"].dtype == np.int64
    colour = np.zeros((120, 6, 5, 3), np.uint8), np.zeros((40, 6, 5, 3), np.uint8)
    assert checked(arrays(x_train=colour[0], x_test=colour[1]), "mine")["x_train"].shape == (120, 6, 5, 3)
    big = np.zeros((120, 3), ">f4"), np.zeros((40, 3), ">f4")
    features = checked(arrays(x_train=big[0], x_test=big[1], y_train=arrays()["y_train"][:, None]), "mine")
    assert features["x_train"].dtype == np.dtype("<f4") and features["y_train"].shape == (120,)


def test_the_users_clients_are_read(npz: Write) -> None:
    done = checked(
        read_npz(npz(client_train=np.arange(120) % 3, client_test=np.arange(40, dtype=np.uint8) % 3)), "mine"
    )
    assert done["client_train"].tolist()[:4] == [0, 1, 2, 0] and done["client_test"].dtype == np.int64


def text(names: list[str], n: int) -> np.ndarray:
    """These names in turns, [n]."""
    return np.resize(np.array(names), n)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["oslo", "bergen", "ålesund"], [1, 0, 2]),  # places in sorted order
        (["10", "9", "-1"], [10, 9, -1]),  # all spell whole numbers
        (["10", "9", "x"], [0, 1, 2]),
        (["07", "8", "9"], [0, 1, 2]),
    ],
)
def test_names_of_clients_are_numbered(npz: Write, names: list[str], numbers: list[int]) -> None:
    """Both parts share one numbering; a client without test samples keeps its number."""
    both = {"client_train": text(names, 120), "client_test": text(names[:2], 40)[:, None]}
    done = checked(read_npz(npz(**both)), "mine")
    assert done["client_train"][:3].tolist() == numbers and done["client_test"][:2].tolist() == numbers[:2]
    assert done["client_train"].dtype == done["client_test"].dtype == np.int64
    if "".join(names).isascii():
        as_bytes = {name: values.astype("S") for name, values in both.items()}
        assert checked(read_npz(npz(**as_bytes)), "mine")["client_train"][:3].tolist() == numbers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "has no y_test; it needs x_train, y_train, x_test, y_test"),
        ({"client_train": np.zeros(120, int)}, "has only one of client_train and client_test; give both or neither"),
        ({"y_train": np.zeros(119, int)}, "y_train has 119 entries for 120 samples"),
        (
            {"y_train": np.zeros(120)},
            r"y_train is float64 \[120\]; it holds one whole number a sample, \[n\]: y_train.astype\(np.int64\)",
        ),
        (
            {"y_train": np.full(120, 0.5)},
            r"y_train is float64 \[120\]; .* \[n\]: 0.5 is no class, and a range",
        ),
        ({"y_train": np.full(120, np.nan)}, r"\[n\]: nan is no class"),
        ({"y_test": np.zeros(40) > 0}, r"y_test is bool \[40\]; .* \[n\]: y_test.astype\(np.int64\)"),
        (
            {"y_train": np.repeat("well", 120)},
            r"y_train is <U4 .*; of text: np.searchsorted\(np.unique\(\[\*y_train, \*y_test\]\), y_train\)",
        ),
        (
            {"y_test": np.eye(40)},
            r"y_test is float64 \[40, 40\]; .* \[n\]; of one column a class: y_test.argmax\(axis=1\)",
        ),
        ({"y_train": np.full(120, -1)}, "y_train has class -1; classes are 0..65,535"),
        ({"y_test": np.full(40, 10**9)}, "y_test has class 1000000000; classes are 0..65,535"),
        (
            {"x_train": np.zeros((120, 30))},
            r"x_train is float64 \[120, 30\]; images are .* features float32 \[n, d\]: x.astype\(np.float32\)$",
        ),
        (
            {"x_train": np.zeros((120, 3, 32, 32), np.uint8)},
            r"x_train \[120, 3, 32, 32\] has channels first, as PyTorch's tensors; images are \[n, H, W, C\]: np.movea",
        ),
        (
            {"x_train": np.zeros((120, 3, 8, 8), np.float32)},
            r"x_train is float32 .* images from 0 to 1 are stored as \(255 \* x\).round\(\).astype\(np.uint8\), ch",
        ),
        ({"x_train": np.zeros((120, 6, 5), np.int16)}, r"x_train is int16 \[120, 6, 5\]; images are uint8"),
        (
            {"x_test": np.zeros((40, 6, 4), np.uint8)},
            r"x_train has samples uint8 \[6, 5, 1\], x_test uint8 \[6, 4, 1\]",
        ),
        ({"x_test": np.zeros((40, 30), np.float32)}, r"x_train has samples uint8 \[6, 5, 1\], x_test float32 \[30\]"),
        ({"x_test": np.zeros((0, 6, 5), np.uint8), "y_test": np.zeros(0, int)}, r"x_test is empty \[0, 6, 5, 1\]"),
        (
            {"client_train": np.zeros(120, int), "client_test": np.zeros(39, int)},
            "client_test has 39 entries for 40 samples",
        ),
        (
            {"client_train": text(["a", "b"], 120), "client_test": text(["a"], 39)},
            "client_test has 39 entries for 40 samples",
        ),
        (
            {"client_train": text(["a", "b"], 120), "client_test": np.zeros(40, int)},
            "client_train is <U1 and client_test is int64; both must be whole numbers, or both text",
        ),
        (
            {"client_train": text(["a", " "], 120), "client_test": text(["a"], 40)},
            "the clients: an empty name",
        ),
        (
            {"client_train": text(["1", "9" * 19], 120), "client_test": text(["1"], 40)},
            "the clients: a number beyond 64 bits",
        ),
        (
            {"client_train": np.full(120, b"\xff"), "client_test": np.full(40, b"a")},
            "the names of clients are bytes that are no ASCII text; store text",
        ),
        (
            {"client_train": np.zeros(120), "client_test": np.zeros(40)},
            r"client_train is float64 \[120\]; it holds one whole number or one text a sample",
        ),
        (
            {"client_train": np.array(["a"] * 120, object), "client_test": np.zeros(40, int)},
            r"client_train holds Python objects, .*; store numbers or text: array.astype\(str\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(npz: Write, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        checked(read_npz(npz(**changes)), "mine.npz")
    assert "\n" not in str(error.value) and ".npz" in str(error.value)


def test_values_that_are_not_finite_are_found() -> None:
    x = np.zeros((120, 5), np.float32)
    x[7, 3] = np.nan
    x[9, 0] = np.inf
    with pytest.raises(
        DataError, match=r"x_train has 2 samples with .* not finite \(first: sample 7, feature 3 is nan\)"
    ):
        checked(arrays(x_train=x, x_test=np.zeros((40, 5), np.float32)), "mine.npz")


def test_a_named_set_must_look_like_itself() -> None:
    with pytest.raises(
        DataError, match=r"mnist.npz: samples are uint8 \[6, 5, 1\] where uint8 \[28, 28, 1\] is expected"
    ):
        checked(arrays(), "mnist.npz", (28, 28, 1), 10)
    with pytest.raises(DataError, match=r"mnist.npz: y_train has class 3; classes are 0..2"):
        checked(arrays(), "mnist.npz", (6, 5, 1), 3)


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    path = tmp_path / "a.npz"
    np.savez(path, **arrays(y_train=np.array([Trap()] * 120, dtype=object)))
    with pytest.raises(DataError, match=r"y_train holds Python objects, which are never unpickled"):
        read_npz(path)
    assert not (tmp_path / "sprung").exists()


def test_no_zip_file_and_a_truncated_one(tmp_path: Path, npz: Write) -> None:
    page = tmp_path / "page.npz"
    page.write_text("<html>404</html>")
    with pytest.raises(DataError, match=r"page.npz is damaged, or no .npz file"):
        read_npz(page)
    whole = npz().read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        page.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"page.npz is damaged"):
            read_npz(page)
    with pytest.raises(DataError, match=r"none.npz does not exist"):
        read_npz(tmp_path / "none.npz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_flipped_bytes_are_found(tmp_path: Path, compression: int) -> None:
    whole = bytearray(pack(tmp_path / "a.npz", compression).read_bytes())
    for place in (300, 700, 1500):
        broken = tmp_path / "b.npz"
        broken.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"b.npz"):
            read_npz(broken)


def test_declared_sizes_are_compared_with_the_content(tmp_path: Path) -> None:
    x = arrays()["x_train"]
    liar = pack(tmp_path / "a.npz", x_train=member(x, shape=(10**9, 6, 5)))
    with pytest.raises(DataError, match=r"x_train declares 27.9 GiB \[1000000000, 6, 5\], but the file holds 3.52 KiB"):
        read_npz(liar)
    negative = pack(tmp_path / "b.npz", x_train=member(x, shape=(-1, 6, 5)))
    with pytest.raises(DataError, match=r"x_train declares the shape \[-1, 6, 5\]"):
        read_npz(negative)


def test_a_zip_bomb_stays_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RATIO_FROM", 2**16)
    monkeypatch.setattr(module, "MAX_RATIO", 100)
    zeros = np.zeros((120, 100, 100), np.uint8)
    bomb = pack(tmp_path / "a.npz", x_train=member(zeros))
    with pytest.raises(DataError, match=r"x_train would unpack from .* to 1.14 MiB, which no real data does"):
        read_npz(bomb)


def test_more_than_this_machine_holds_is_refused(npz: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 4096)
    with pytest.raises(DataError, match=r"unpacks to 5.94 KiB; at most 4 KiB can be read on this machine"):
        read_npz(npz())


def test_a_zip_directory_that_lies_about_sizes(tmp_path: Path) -> None:
    """The directory says fewer bytes than the member has, so that its header no longer fits what it may hold."""
    path = pack(tmp_path / "a.npz", zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    entry = raw.rfind(b"PK\x01\x02", 0, raw.rfind(b"PK\x01\x02"))
    at = entry + 24
    (size,) = struct.unpack("<I", raw[at : at + 4])
    raw[at : at + 4] = struct.pack("<I", size - 8)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a.npz"):
        read_npz(path)


def test_odd_formats_are_refused_in_one_line(tmp_path: Path) -> None:
    for bad in (b"", b"not an array", b"\x93NUMPY\x09\x00" + b"x" * 40, b"\x93NUMPY\x01\x00\x10\x00{'descr': 'u1'"):
        with pytest.raises(DataError, match=r"a.npz is damaged, or cannot be read") as error:
            read_npz(pack(tmp_path / "a.npz", y_train=bad))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("x_train", {"shape": (10**400, 6, 5)}, r"declares over 1,024 PiB \[10000000000000000000, 6, 5\]"),
        ("x_train", {"shape": (0, 10**30)}, r"declares 0 bytes \[0, 10000000000000000000\], but the file holds"),
        ("x_train", {"shape": (True, 3600)}, r"declares the shape \[True, 3600\]"),
        ("x_train", {"shape": (3600.0,)}, r"is damaged, or cannot be read \(ValueError: shape is not valid"),
        ("x_train", {"shape": (1,) * 70}, r"a.npz is damaged, or cannot be read|declares|x_train is uint8"),
        ("x_train", {"descr": "V30"}, r"x_train declares 105 KiB \[120, 6, 5\], but the file holds 3.52 KiB"),
        ("x_train", {"descr": "|V0"}, r"x_train declares 0 bytes \[120, 6, 5\], but the file holds"),
        ("x_train", {"descr": [("a", "|u1")]}, r"x_train is \[\('a', 'u1'\)\] \[120, 6, 5\]; images are uint8"),
        ("x_train", {"descr": "|u1" * 9000}, r"a.npz is damaged, or cannot be read"),
        ("x_train", {"fortran_order": "no"}, r"fortran_order is not a valid bool"),
        ("y_train", {"descr": "<f8"}, r"y_train is float64 \[120\]"),
        ("y_train", {"descr": "<M8[s]"}, r"y_train is datetime64\[s\] \[120\]"),
        ("y_train", {"descr": "<u8", "shape": (120,)}, r"y_train has the number 18446744073709551615; numbers are"),
    ],
)
def test_headers_that_lie_are_one_line(tmp_path: Path, name: str, header: dict[str, Any], message: str) -> None:
    content = np.full(120, -1) if name == "y_train" else arrays()[name]
    with pytest.raises(DataError, match=message) as error:
        checked(read_npz(pack(tmp_path / "a.npz", **{name: member(content, **header)})), "a.npz")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_long_header_is_not_read_whole(tmp_path: Path) -> None:
    """Format 2 declares up to 4 GiB; here 64 MiB of spaces, packed to 64 KiB."""
    size = 2**26
    bomb = b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + b" " * size
    path = pack(tmp_path / "a.npz", x_train=bomb)
    del bomb
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"a.npz is damaged, or cannot be read"):
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("nested", ["(" * 9_000, "-" * 9_000 + "1", "{'a':" * 3_000, "[" * 200 + "]" * 200])
def test_headers_of_deep_expressions_are_one_line(tmp_path: Path, nested: str) -> None:
    text = nested.encode() + b"\n"
    bad = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    with pytest.raises(DataError, match=r"a.npz is damaged, or cannot be read") as error:
        read_npz(pack(tmp_path / "a.npz", y_train=bad))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("second", ["x_train.npy", "x_train"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path: Path, second: str) -> None:
    path = pack(tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(second, member(arrays()["x_train"]))
        archive.writestr("/absolute/../other.npy", b"left alone")
        archive.writestr("/absolute/../other.npy", b"left alone")
    with pytest.raises(DataError, match=r"a.npz has two arrays named x_train"):
        read_npz(path)


def test_an_encrypted_array_is_one_line(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.npz", zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    raw[6] |= 1  # the first member's flags, in its own header and in the directory
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a.npz is damaged, or cannot be read \(RuntimeError: .*is encrypted"):
        read_npz(path)


def test_images_of_absurdly_many_channels_are_refused() -> None:
    """Their statistics would take 2 KiB a channel."""
    x = np.zeros((2, 1, 1, 5_000), np.uint8)
    with pytest.raises(DataError, match=r"x_train has images of 5,000 channels; at most 4,096 are read"):
        checked(arrays(2, 2, 2, x_train=x, x_test=x), "mine.npz")
