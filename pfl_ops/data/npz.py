"""Reading a data set from an .npz file of unknown origin: nothing is unpickled, and every declared size is checked."""

import contextlib
import io
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.errors import PflOpsError, echo, format_bytes, in_a_line
from pfl_ops.files import replacing
from pfl_ops.system.memory import memory_size

NEEDED = ("x_train", "y_train", "x_test", "y_test")
CLIENTS = ("client_train", "client_test")
MAX_BYTES = 16 * 2**30  # unpacked; the simulation keeps its data in memory
MAX_RATIO = 1000  # unpacked to packed bytes, in members over MAX_RATIO_FROM; deflate itself ends at 1,032
MAX_RATIO_FROM = 2**28
MAX_HEADER = 16_384  # bytes of an array's header; NumPy itself accepts 10,000 characters
MAX_CLASSES = 65_536
MAX_CHANNELS = 4_096
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


class DataError(PflOpsError):
    """A data set that is missing, damaged, or not of the form that is read here."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a data set as they are in the file; all sizes are checked before anything is unpacked.

    Args:
        path: an .npz file with x_train, y_train, x_test, y_test [n, ...], and perhaps client_train, client_test [n];
            other members are left alone. Members may be stored, deflated, bzip2- or LZMA-compressed.
    Raises:
        DataError: it is no zip file, damaged, lacks an array, holds Python objects, or declares sizes that are absurd
            or not those of its content.
    """
    return read_arrays(path, lambda members: _select_members(members, path))


def read_arrays(path: Path, choose: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, np.ndarray]:
    """Read some arrays of an .npz file.

    Args:
        path: the file.
        choose: gets the names of all members, without ".npy", and returns those to read; it raises DataError if one is
            missing.
    Raises:
        DataError: as for `read_npz`.
    """
    with open_npz(path) as archive:
        infos = archive.infolist()
        members = {info.filename.removesuffix(".npy"): info for info in infos}
        times = Counter(info.filename.removesuffix(".npy") for info in infos)
        names = choose(list(members))
        for name in names:
            if times[name] > 1:
                raise DataError(f"{path} has two arrays named {echo(name)}")
        check_size(path, sum(_declared(archive, members[name], name, path) for name in names))
        arrays = {}
        for name in names:
            with archive.open(members[name]) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                if stream.read(1):  # and so reaches the end, where zipfile compares the checksum
                    raise ValueError(f"{name} is longer than its header says")
        return arrays


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file; an older one stays as it is until the new one is whole.

    Raises:
        PflOpsError: it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            np.savez_compressed(draft, **dict(arrays))  # type: ignore[arg-type]  # no array is named allow_pickle
    except OSError as error:
        raise PflOpsError(f"can't write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an .npz file, see `reading`."""
    with reading(path), zipfile.ZipFile(path) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's remark on headers that Python 2 wrote
        yield archive


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read a file of unknown origin: whatever damaged content raises in the block becomes one line of DataError."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged, or no .npz file ({in_a_line(error, 200)})") from error
    except MemoryError:
        raise DataError(f"{path} does not fit into this machine's memory") from None
    except Exception as error:  # zipfile, its decompressors, NumPy and pyarrow raise errors of a dozen kinds then
        if "invalid UTF8" in str(error):
            raise DataError(f"{path} is no UTF-8 text; write it with encoding='utf-8'") from None
        raise DataError(f"{path} is damaged, or cannot be read ({in_a_line(error, 200)})") from error


def read_names(path: Path) -> list[str]:
    """Return the names of an .npz file's arrays, without reading them."""
    with open_npz(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _select_members(members: Sequence[str], path: Path) -> list[str]:
    missing = [name for name in NEEDED if name not in members]
    if missing:
        raise DataError(f"{path} has no {', '.join(missing)}; it needs {', '.join(NEEDED)}")
    if (CLIENTS[0] in members) != (CLIENTS[1] in members):
        raise DataError(f"{path} has only one of client_train and client_test; give both or neither")
    return [name for name in (*NEEDED, *CLIENTS) if name in members]


def check_size(path: Path, size: int) -> None:
    """Refuse a source that unpacks to more bytes than half of this machine's memory, or than `MAX_BYTES`."""
    limit = min(MAX_BYTES, memory_size() // 2)
    if size > limit:
        raise DataError(
            f"{path} unpacks to {format_bytes(size)}; at most {format_bytes(limit)} can be read on this machine"
        )


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path) -> int:
    """Bytes of an array by its header, once that agrees with the member's size."""
    with archive.open(info) as packed:
        # a header may declare a length of 4 GiB, which NumPy would read before it compares it with its own limit
        stream = io.BytesIO(packed.read(MAX_HEADER))
    shape, dtype = read_header(stream)
    payload = info.file_size - stream.tell()
    if dtype.hasobject:
        wanted = "numbers or text: array.astype(str)" if name in CLIENTS else "numbers"
        raise DataError(f"{path}: {echo(name)} holds Python objects, which are never unpickled; store {wanted}")
    told = _shape(shape)
    if any(type(length) is not int or length < 0 for length in shape):
        raise DataError(f"{path}: {echo(name)} declares the shape {told}")
    declared = math.prod(shape) * dtype.itemsize
    if declared != payload or max(shape, default=0) > MAX_BYTES:
        raise DataError(
            f"{path}: {echo(name)} declares {format_bytes(declared)} {told}, but the file holds {format_bytes(payload)}"
        )
    check_ratio(path, info)
    return declared


def check_ratio(path: Path, info: zipfile.ZipInfo) -> None:
    """Refuse a member of an .npz file that is compressed far better than real data can be."""
    if info.file_size > MAX_RATIO_FROM and info.file_size > MAX_RATIO * info.compress_size:
        raise DataError(
            f"{path}: {echo(info.filename.removesuffix('.npy'))} would unpack from {format_bytes(info.compress_size)} "
            f"to {format_bytes(info.file_size)}, which no real data does"
        )


def read_header(stream: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the header of an array: shape and type, not checked against the content."""
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
        arrays: as `read_npz` gives them. Clients are whole numbers or text; text is numbered by `number_names`.
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
        done[f"y_{part}"] = y = _labels(arrays[f"y_{part}"], f"y_{part}", len(x), where)
        most = MAX_CLASSES if n_classes is None else n_classes
        if y.min() < 0 or y.max() >= most:
            raise DataError(
                f"{where}: y_{part} has class {y.min() if y.min() < 0 else y.max()}; classes are 0..{most - 1:,}"
            )
    done |= _number_clients(arrays, {part: len(done[f"x_{part}"]) for part in ("train", "test")}, where)
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
        x = x.astype(np.float32, copy=False)
        bad = ~np.isfinite(x).all(1)
        if bad.any():
            i = int(np.argmax(bad))
            j = int(np.argmin(np.isfinite(x[i])))
            raise DataError(
                f"{where}: {name} has {(n := int(bad.sum())):,} sample{'s' * (n != 1)} with values that are not finite "
                f"(first: sample {i}, feature {j} is {x[i, j]})"
            )
    else:
        raise DataError(
            f"{where}: {name} is {x.dtype} {list(x.shape)}; images are uint8 [n, H, W] or [n, H, W, C], "
            f"features float32 [n, d]{_conversion(x)}"
        )
    if 0 in x.shape:
        raise DataError(f"{where}: {name} is empty {list(x.shape)}")
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 4:
        raise DataError(
            f"{where}: {name} {list(x.shape)} has channels first, as PyTorch's tensors; images are [n, H, W, C]: "
            "np.moveaxis(x, 1, -1)"
        )
    if x.ndim == 4 and x.shape[3] > MAX_CHANNELS:
        raise DataError(f"{where}: {name} has images of {x.shape[3]:,} channels; at most {MAX_CHANNELS:,} are read")
    return np.ascontiguousarray(x)


def _conversion(x: np.ndarray) -> str:
    """Say how samples of another type are written: images as floats, and numbers that are not float32."""
    if x.ndim in (3, 4) and x.dtype.kind == "f":
        return "; images from 0 to 1 are stored as (255 * x).round().astype(np.uint8), channels last"
    if x.ndim == 2 and x.dtype.kind in "fiub":
        return ": x.astype(np.float32)"
    return ""


def _column(y: np.ndarray) -> np.ndarray:
    """[n, 1] as [n]; any other shape as it is."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _labels(y: np.ndarray, name: str, n: int, where: str) -> np.ndarray:
    """The class of each sample; what is no whole number is refused with the way to one."""
    way = ""
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "fiub":
        way = f"; of one column a class: {name}.argmax(axis=1)"
    elif y.dtype.kind in "US":
        way = f"; of text: np.searchsorted(np.unique([*y_train, *y_test]), {name})"
    elif y.dtype.kind == "b" or (y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all()):
        way = f": {name}.astype(np.int64)"
    elif y.dtype.kind == "f":  # cast, the target of a regression would become a class
        other = y[~np.isfinite(y) | (y != np.floor(y))].flat[0]
        way = f": {other:g} is no class, and a range of numbers has to be divided into classes"
    return _numbers(y, name, n, where, f"one whole number a sample, [n]{way}")


def _numbers(y: np.ndarray, name: str, n: int, where: str, wanted: str) -> np.ndarray:
    y = _column(y)
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(f"{where}: {name} is {y.dtype} {list(y.shape)}; it holds {wanted}")
    if len(y) != n:
        raise DataError(f"{where}: {name} has {len(y):,} entries for {n:,} samples")
    if y.dtype.kind == "u" and len(y) and y.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where}: {name} has the number {y.max()}; numbers are at most 2^63 - 1")
    return y.astype(np.int64)


def _number_clients(arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], where: str) -> dict[str, np.ndarray]:
    """client_train and client_test as numbers, if the data set has clients."""
    given = {part: _column(arrays[f"client_{part}"]) for part in sizes if f"client_{part}" in arrays}
    is_text = {part: values.dtype.kind in "US" and values.ndim == 1 for part, values in given.items()}
    if not any(is_text.values()):
        wanted = "one whole number or one text a sample, [n]"
        return {
            f"client_{part}": _numbers(values, f"client_{part}", sizes[part], where, wanted)
            for part, values in given.items()
        }
    if not all(is_text.values()):
        kinds = " and ".join(f"client_{part} is {values.dtype}" for part, values in given.items())
        raise DataError(f"{where}: {kinds}; both must be whole numbers, or both text")
    for part, values in given.items():
        if len(values) != sizes[part]:
            raise DataError(f"{where}: client_{part} has {len(values):,} entries for {sizes[part]:,} samples")
    try:
        names, codes = np.unique(np.concatenate([values.astype(str) for values in given.values()]), return_inverse=True)
    except UnicodeDecodeError:
        raise DataError(f"{where}: the names of clients are bytes that are no ASCII text; store text") from None
    numbers = np.array(number_names(names.tolist(), f"{where}: the clients"), dtype=np.int64)[codes]
    parts = np.split(numbers, np.cumsum([len(values) for values in given.values()])[:-1])
    return {f"client_{part}": values for part, values in zip(given, parts, strict=True)}


def number_names(names: Sequence[str], what: str) -> list[int]:
    """Return a number for each name: the number that it spells if all names do so, else its place in sorted order.

    Args:
        names: different texts, in any order.
        what: whose names, for messages.
    Raises:
        DataError: a name is empty, or spells a number beyond 64 bits.

    >>> [number_names(names, "clients") for names in (["10", "9"], ["b", "a", "c"], ["07", "8"])]
    [[10, 9], [1, 0, 2], [0, 1]]
    """
    if any(not name.strip() for name in names):
        raise DataError(f"{what}: an empty name")
    if all(WHOLE_NUMBER.fullmatch(name) for name in names):
        if any(len(name) > 20 or not -(2**63) <= int(name) < 2**63 for name in names):
            raise DataError(f"{what}: a number beyond 64 bits")
        return [int(name) for name in names]
    places = {name: place for place, name in enumerate(sorted(names))}
    return [places[name] for name in names]


def _shape(shape: tuple[Any, ...]) -> str:
    """[60000, 28, 28]; of an absurd one its beginning."""
    text = "[" + ", ".join(str(length)[:20] for length in shape[:8]) + "]"
    return text if len(shape) <= 8 else text[:-1] + ", ...]"
