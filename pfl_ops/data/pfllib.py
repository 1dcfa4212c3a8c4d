"""PFLlib's data folders: what its `dataset/generate_*.py` write, as the arrays of a data set with clients.

A folder has `train/0.npz`, `train/1.npz`, ... and `test/` with the same files, one a client, and perhaps `config.json`.
Each file holds one object `data`, a dict with x and y, as a pickle; `array_pickle` reads its arrays without unpickling.

Source: PFLlib (Zhang et al. 2025), `dataset/utils/dataset_utils.py`.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.data import array_pickle
from pfl_ops.data.npz import (
    MAX_HEADER,
    DataError,
    check_ratio,
    check_size,
    checked,
    open_npz,
    read_arrays,
    read_header,
    reading,
)
from pfl_ops.errors import LONGEST_PATH, echo, in_a_line

PARTS = ("train", "test")
MAX_CONFIG = 2**24  # bytes of config.json
GREY_LEVEL_ERROR = 0.01  # levels; float32 rounding of PFLlib's normalisation is below 1e-4


def read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a data set from a folder of PFLlib.

    Images that PFLlib scaled to [-1, 1] or [0, 1], float32 [n, C, H, W], become the uint8 [n, H, W, C] that they were;
    other samples become float32 features [n, d].

    Args:
        folder: holds train/ and test/.
    Returns:
        x_train, y_train, x_test, y_test, client_train, client_test, in the order of clients.
    Raises:
        DataError: a file is missing or damaged, or holds anything but arrays of numbers.
    """
    with reading(folder):
        clients = _count_clients(folder)
        files = [folder / part / f"{k}.npz" for part in PARTS for k in range(clients)]
        check_size(folder, sum(_unpacked_size(file) for file in files))
        arrays: dict[str, np.ndarray] = {}
        for part in PARTS:
            found = [_read_client(folder / part / f"{k}.npz") for k in range(clients)]
            shapes = {x.shape[1:] for x, _ in found if len(x)}
            if len(shapes) != 1:
                told = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2]) or "none"
                raise DataError(f"{folder / part}: the samples of all clients must have one shape; they have {told}")
            shape = shapes.pop()
            arrays[f"x_{part}"] = np.concatenate([x.reshape(-1, *shape) for x, _ in found])
            arrays[f"y_{part}"] = np.concatenate([y for _, y in found])
            arrays[f"client_{part}"] = np.repeat(np.arange(clients), [len(y) for _, y in found])
        arrays["x_train"], arrays["x_test"] = _to_samples(arrays["x_train"], arrays["x_test"])
        return checked(arrays, str(folder))


def _count_clients(folder: Path) -> int:
    """Return the number of clients, once both parts have the same files, numbered from 0."""
    numbers: dict[str, set[str]] = {}
    for part in PARTS:
        numbers[part] = {file.stem for file in (folder / part).glob("*.npz")}
        if not numbers[part]:
            raise DataError(f"{folder} is no data folder of PFLlib: it has no {part}/0.npz")
    n = len(numbers["train"])
    missing = [f"{part}/{k}.npz" for part in PARTS for k in range(n) if str(k) not in numbers[part]]
    if missing:
        raise DataError(f"{folder} has no {missing[0]}; PFLlib numbers clients from 0, and each has both parts")
    if len(numbers["test"]) != n:
        raise DataError(f"{folder} has {n:,} clients in train/, {len(numbers['test']):,} in test/")
    stated = _read_config(folder).get("num_clients")
    if stated is not None and stated != n:
        raise DataError(f"{folder}/config.json states {echo(stated)} clients, train/ has {n:,}")
    return n


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        if not file.is_file():
            return {}
        if file.stat().st_size > MAX_CONFIG:
            raise ValueError(f"it is larger than {MAX_CONFIG >> 20} MiB")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged, or cannot be read ({in_a_line(error, 200)})") from error
    return found if isinstance(found, dict) else {}


def _unpacked_size(file: Path) -> int:
    with open_npz(file) as archive:
        for info in archive.infolist():
            check_ratio(file, info)
        return sum(info.file_size for info in archive.infolist())


def _read_client(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a client: the dict `data`, or two arrays of these names."""
    with open_npz(file) as archive:
        is_pickle = "data.npy" in archive.namelist()
        found = _read_pickle(archive, file) if is_pickle else {}
    if not is_pickle:
        found = read_arrays(file, lambda members: [name for name in ("x", "y") if name in members])
    if not {"x", "y"} <= found.keys():
        raise DataError(f"{file} holds neither PFLlib's `data` nor the arrays x and y")
    x, y = found["x"], found["y"]
    if y.dtype.kind not in "iu" or y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise DataError(
            f"{file}: x is {x.dtype} {list(x.shape)} and y {y.dtype} {list(y.shape)}; y must hold one whole number for "
            "each sample of x, [n, ...]"
        )
    return x, y


def _read_pickle(archive: zipfile.ZipFile, file: Path) -> dict[str, np.ndarray]:
    content = archive.read("data.npy")
    header = io.BytesIO(content[:MAX_HEADER])
    shape, dtype = read_header(header)
    if not dtype.hasobject or shape != ():
        raise DataError(f"{file}: data is {dtype} {list(shape)}, not the dict that PFLlib writes")
    try:
        return array_pickle.read_dict(content[header.tell() :])
    except array_pickle.UnsupportedPickle as error:
        where = echo(file, LONGEST_PATH)
        raise DataError(
            f"{where} holds a pickle of something else than arrays of numbers ({echo(error, 150)}), which pfl-ops does "
            "not load; if you trust the file: d = numpy.load(FILE, allow_pickle=True)['data'].item(); "
            "numpy.savez(FILE, x=numpy.asarray(d['x']), y=numpy.asarray(d['y']))"
        ) from error


def _to_samples(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples of both parts as images uint8, or as features float32."""
    parts = (train, test)
    if train.dtype == np.uint8 and train.ndim in (3, 4):
        return train, test
    if all(x.dtype.kind == "f" and x.ndim == 4 and x.shape[1] in (1, 3) for x in parts):
        is_centred = min(float(x.min(initial=0)) for x in parts) < 0
        levels = [_to_grey_levels(x, is_centred) for x in parts]
        if levels[0] is not None and levels[1] is not None:
            return levels[0], levels[1]
    with np.errstate(over="ignore"):
        features = [np.ascontiguousarray(x.reshape(len(x), -1), dtype=np.float32) for x in parts]
    return features[0], features[1]


def _to_grey_levels(x: np.ndarray, is_centred: bool) -> np.ndarray | None:
    """Grey levels uint8 [n, H, W, C] of scaled images [n, C, H, W]; None: they are none of 256 levels."""
    done = np.empty((len(x), *x.shape[2:], x.shape[1]), np.uint8)
    for i in range(0, len(x), 1000):
        part = x[i : i + 1000].astype(np.float32)
        exact = (part + 1) * np.float32(127.5) if is_centred else part * np.float32(255)
        whole = np.rint(exact)
        if not ((np.abs(exact - whole) <= GREY_LEVEL_ERROR) & (whole >= 0) & (whole <= 255)).all():
            return None
        done[i : i + 1000] = whole.astype(np.uint8).transpose(0, 2, 3, 1)
    return done
