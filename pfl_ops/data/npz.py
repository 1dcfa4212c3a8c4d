"""Reading a data set from an .npz file of unknown origin: nothing is unpickled, and every declared size is checked."""

import io
import math
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.errors import PflOpsError, in_a_line

NEEDED = ("x_train", "y_train", "x_test", "y_test")
CLIENTS = ("client_train", "client_test")
MAX_BYTES = 16 * 2**30  # unpacked; the simulation keeps its data in memory
MAX_RATIO = 1000  # unpacked to packed bytes, in members over MAX_RATIO_FROM; deflate itself ends at 1,032
MAX_RATIO_FROM = 2**28
MAX_HEADER = 16_384  # bytes of an array's header; NumPy itself accepts 10,000 characters
MAX_CLASSES = 65_536
MAX_CHANNELS = 4_096


class DataError(PflOpsError):
    """A data set that is missing, damaged, or not of the form that is read here."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a data set as they lie in the file, sizes checked before anything is unpacked.

    Args:
        path: an .npz file with x_train, y_train, x_test, y_test, and perhaps client_train, client_test; other members
            are left alone. Members may be stored, deflated, bzip2- or LZMA-compressed.
    Raises:
        DataError: it is no zip file, damaged, lacks an array, holds Python objects, or declares sizes that are absurd
            or not those of its content.
    """
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's remark on headers that Python 2 wrote
            return _arrays(archive, path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged, or no .npz file ({in_a_line(error, 200)})") from error
    except MemoryError:
        raise DataError(f"{path} does not fit into this machine's memory") from None
    except Exception as error:  # zipfile, its decompressors and NumPy raise errors of a dozen kinds for damaged input
        raise DataError(f"{path} is damaged, or cannot be read ({in_a_line(error, 200)})") from error


def _arrays(archive: zipfile.ZipFile, path: Path) -> dict[str, np.ndarray]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members and name in (*NEEDED, *CLIENTS):
            raise DataError(f"{path} has two arrays named {name}")
        members[name] = info
    missing = [name for name in NEEDED if name not in members]
    if missing:
        raise DataError(f"{path} has no {', '.join(missing)}; it needs {', '.join(NEEDED)}")
    if (CLIENTS[0] in members) != (CLIENTS[1] in members):
        raise DataError(f"{path} has only one of client_train and client_test; give both or neither")
    names = [name for name in (*NEEDED, *CLIENTS) if name in members]
    total = sum(_declared(archive, members[name], name, path) for name in names)
    limit = min(MAX_BYTES, _memory() // 2)
    if total > limit:
        raise DataError(f"{path} unpacks to {_bytes(total)}; at most {_bytes(limit)} can be read on this machine")
    arrays = {}
    for name in names:
        with archive.open(members[name]) as stream:
            arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):  # and so reaches the end, where zipfile compares the checksum
                raise ValueError(f"{name} is longer than its header says")
    return arrays


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path) -> int:
    """Bytes of an array by its header, once that agrees with the member's size."""
    with archive.open(info) as packed:
        # a header may declare a length of 4 GiB, which NumPy would read before it compares it with its own limit
        stream = io.BytesIO(packed.read(MAX_HEADER))
    shape, dtype = _header(stream)
    payload = info.file_size - stream.tell()
    if dtype.hasobject:
        raise DataError(f"{path}: {name} holds Python objects, which are never unpickled; store numbers")
    told = _shape(shape)
    if any(type(length) is not int or length < 0 for length in shape):
        raise DataError(f"{path}: {name} declares the shape {told}")
    declared = math.prod(shape) * dtype.itemsize
    if declared != payload or max(shape, default=0) > MAX_BYTES:
        raise DataError(f"{path}: {name} declares {_bytes(declared)} {told}, but the file holds {_bytes(payload)}")
    if info.file_size > MAX_RATIO_FROM and info.file_size > MAX_RATIO * info.compress_size:
        raise DataError(
            f"{path}: {name} would unpack from {_bytes(info.compress_size)} to {_bytes(info.file_size)}, "
            "which no real data does"
        )
    return declared


def _header(stream: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"array format {version} is not a plain one")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(stream)
    except MemoryError:  # Python's parser says so of an expression that is nested too deeply
        raise ValueError("an array's header is nested too deeply") from None
    return shape, dtype


def checked(
    arrays: Mapping[str, np.ndarray],
    where: str,
    shape: tuple[int, ...] | None = None,
    n_classes: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays in the one form that everything else works on.

    Args:
        arrays: as `read_npz` gives them.
        where: file or data set, for messages.
        shape: what a sample must look like, (H, W, C); None: any.
        n_classes: labels must be under it; None: any up to 65,536.
    Returns:
        x_train, x_test: uint8 [n, H, W, C] or float32 [n, d]; y_train, y_test, client_train, client_test: int64 [n].
    Raises:
        DataError: wrong type or shape, labels or clients that do not fit the samples, values that are not finite.
    """
    done: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        x = _samples(arrays[f"x_{part}"], f"x_{part}", where)
        done[f"x_{part}"] = x
        done[f"y_{part}"] = y = _numbers(arrays[f"y_{part}"], f"y_{part}", len(x), where)
        most = MAX_CLASSES if n_classes is None else n_classes
        if y.min() < 0 or y.max() >= most:
            raise DataError(
                f"{where}: y_{part} has class {y.min() if y.min() < 0 else y.max()}; classes are 0..{most - 1:,}"
            )
        if f"client_{part}" in arrays:
            done[f"client_{part}"] = _numbers(arrays[f"client_{part}"], f"client_{part}", len(x), where)
    train, test = done["x_train"], done["x_test"]
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise DataError(
            f"{where}: x_train has samples {train.dtype} {list(train.shape[1:])}, "
            f"x_test {test.dtype} {list(test.shape[1:])}"
        )
    if shape is not None and train.shape[1:] != shape:
        raise DataError(
            f"{where}: samples are {train.dtype} {list(train.shape[1:])} where uint8 {list(shape)} is expected"
        )
    return done


def _samples(x: np.ndarray, name: str, where: str) -> np.ndarray:
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[..., None] if x.ndim == 3 else x
    elif x.dtype.kind == "f" and x.dtype.itemsize == 4 and x.ndim == 2:
        x = x.astype(np.float32)
        bad = ~np.isfinite(x).all(1)
        if bad.any():
            i = int(np.argmax(bad))
            j = int(np.argmin(np.isfinite(x[i])))
            raise DataError(
                f"{where}: {name} has {int(bad.sum()):,} samples with values that are not finite "
                f"(first: sample {i}, feature {j} is {x[i, j]})"
            )
    else:
        raise DataError(
            f"{where}: {name} is {x.dtype} {list(x.shape)}; images are uint8 [n, H, W] or [n, H, W, C], "
            "features float32 [n, d]"
        )
    if 0 in x.shape:
        raise DataError(f"{where}: {name} is empty {list(x.shape)}")
    if x.ndim == 4 and x.shape[3] > MAX_CHANNELS:
        raise DataError(f"{where}: {name} has images of {x.shape[3]:,} channels; at most {MAX_CHANNELS:,} are read")
    return np.ascontiguousarray(x)


def _numbers(y: np.ndarray, name: str, n: int, where: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(f"{where}: {name} is {y.dtype} {list(y.shape)}; it holds one whole number a sample, [n]")
    if len(y) != n:
        raise DataError(f"{where}: {name} has {len(y):,} entries for {n:,} samples")
    if y.dtype.kind == "u" and len(y) and y.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where}: {name} has the number {y.max()}; numbers are at most 2^63 - 1")
    return y.astype(np.int64)


def _memory() -> int:
    """Bytes of this machine's memory, or more than any where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**60


def _bytes(n: int) -> str:
    if n >= 2**60:
        return "over 1,024 PiB"
    power = (max(n, 1).bit_length() - 1) // 10
    return f"{n / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def _shape(shape: tuple[Any, ...]) -> str:
    """[60000, 28, 28]; of an absurd one its beginning."""
    text = "[" + ", ".join(str(length)[:20] for length in shape[:8]) + "]"
    return text if len(shape) <= 8 else text[:-1] + ", ...]"
