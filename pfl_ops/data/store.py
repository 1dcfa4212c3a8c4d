"""The cache of unpacked data sets: `<cache>/<digest>/*.npy`, mapped into memory instead of read.

`<digest>` is SHA-256 of the content, so that the same data has the same name on every machine, however it was
compressed. `<cache>/sources/` remembers which file (by path, size and time) or download gave which digest.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.data.npz import DataError

FORMAT = 1


@dataclass(frozen=True)
class Unpacked:
    """A data set in the cache.

    Attributes:
        folder: holds x_train.npy, y_train.npy, x_test.npy, y_test.npy, and perhaps client_train.npy, client_test.npy.
        meta: `digest`, `shape` and `dtype` of a sample, `n_classes`, `n_train`, `n_test`, `mean` and `std` of the
            training data per channel or feature, `files` with their sizes in bytes. Nothing here needs the test data
            to be opened.
    """

    folder: Path
    meta: dict[str, Any]

    def array(self, name: str) -> np.ndarray:
        """An array, mapped: pages are read when they are touched, and shared between processes until they are
        written."""
        try:
            self._whole(name)
            return np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.folder} is damaged ({name}: {error}); delete it to have it unpacked again"
            ) from error

    def has(self, name: str) -> bool:
        """Whether the data set has such an array."""
        return f"{name}.npy" in self.meta["files"]

    def _whole(self, name: str) -> None:
        file = self.folder / f"{name}.npy"
        if file.stat().st_size != self.meta["files"][file.name]:
            raise ValueError("a file has another size than it was written with")

    def sound(self) -> bool:
        """Whether the training files have the size that they were written with; test files are not even looked at."""
        try:
            for file in self.meta["files"]:
                if "test" not in file:
                    self._whole(file.removesuffix(".npy"))
        except (OSError, ValueError):
            return False
        return True


def cache_folder() -> Path:
    """`PFL_OPS_CACHE`, else `~/.cache/pfl-ops`."""
    return Path(os.environ.get("PFL_OPS_CACHE") or "~/.cache/pfl-ops").expanduser()


def remembered(kind: str, key: str) -> Any:
    """What `remember` kept under this key; None: nothing that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(_noted(kind, key).read_text(encoding="utf-8"))
    return None


def remember(kind: str, key: str, value: Any) -> None:
    """Keep a measurement, as JSON, for the next process; a cache that can't be written only costs measuring again.

    Args:
        kind: the folder. key: all that the value depends on.
    """
    file = _noted(kind, key)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, value)


def _noted(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def unpacked(source: str, read: Callable[[], dict[str, np.ndarray]]) -> Unpacked:
    """The data set that `source` names, unpacked now if it is not in the cache.

    One process unpacks, others wait for it; a folder appears complete or not at all.

    Args:
        source: what identifies the content's origin, e.g. a file's path, size and time.
        read: gives the checked arrays; called only if needed.
    Raises:
        DataError: the cache cannot be written; and what `read` raises.
    """
    from filelock import FileLock

    cache, entry = cache_folder(), _entry(source)
    found = _known(cache, entry)
    if found is not None:
        return found
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_suffix(".lock")):
            found = _known(cache, entry)  # another process may have been here while this one waited
            if found is None:
                found = _unpack(cache, read())
                _write(entry, {"format": FORMAT, "source": source, "digest": found.meta["digest"]})
            return found
    except OSError as error:
        raise DataError(
            f"cannot write the cache folder {cache} ({error.strerror or error}); set PFL_OPS_CACHE"
        ) from error


def has(source: str) -> bool:
    """Whether what `source` names is unpacked already."""
    return _known(cache_folder(), _entry(source)) is not None


def _entry(source: str) -> Path:
    return cache_folder() / "sources" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"


def _known(cache: Path, entry: Path) -> Unpacked | None:
    try:
        digest = json.loads(entry.read_text(encoding="utf-8"))["digest"]
        return _open(cache / digest)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open(folder: Path) -> Unpacked | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        found = Unpacked(folder, meta)
        return found if meta["format"] == FORMAT and found.sound() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unpack(cache: Path, arrays: dict[str, np.ndarray]) -> Unpacked:
    _sweep(cache)
    folder = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=cache))
    try:
        files = {}
        for name, array in arrays.items():
            with (folder / f"{name}.npy").open("wb") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
                files[f"{name}.npy"] = file.tell()
        x = arrays["x_train"]
        mean, std = moments(x)
        meta = {
            "format": FORMAT,
            "digest": digest(arrays),
            "shape": list(x.shape[1:]),
            "dtype": str(x.dtype),
            "n_classes": int(max(arrays["y_train"].max(), arrays["y_test"].max())) + 1,
            "n_train": len(x),
            "n_test": len(arrays["x_test"]),
            "mean": mean.tolist(),
            "std": std.tolist(),
            "files": files,
        }
        _write(folder / "meta.json", meta)
        target = cache / meta["digest"]
        if _open(target) is None:  # else the same content came by another way
            if target.exists():
                shutil.rmtree(target)  # a damaged one
            try:
                os.rename(folder, target)
            except OSError:
                if _open(target) is None:
                    raise
        found = _open(target)
        if found is None:
            raise DataError(f"{target} changed while it was written; try again")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Remove what a killed process left half-unpacked more than a day ago."""
    for folder in cache.glob(".unpacking-*"):
        if time.time() - folder.stat().st_mtime > 86_400:
            shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path, content: dict[str, Any]) -> None:
    half = file.with_name(f".{file.name}.{os.getpid()}")
    with half.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(half, file)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and values, in the names' order."""
    state = hashlib.sha256(b"pfl-ops data 1\n")
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"))
        state.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        state.update(array.data.cast("B"))
    return state.hexdigest()


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel or feature, in units of the stored values; a constant one gets 1.

    Args:
        x: uint8 [n, H, W, C] or [n, d], or float32 [n, d].
    Returns:
        float32 [C] or [d] each.
    """
    if x.dtype == np.uint8:  # by histogram: exact, and no copy in floating point
        values = np.arange(256, dtype=np.float64)
        counts = np.stack([np.bincount(x[..., c].ravel(), minlength=256) for c in range(x.shape[-1])])
        n = counts.sum(1)
        mean = counts @ values / n
        variance = np.array([c @ (values - m) ** 2 for c, m in zip(counts, mean, strict=True)]) / n
    else:
        parts = np.array_split(x, max(1, len(x) // 10_000))
        mean = sum(part.sum(0, dtype=np.float64) for part in parts) / len(x)
        variance = sum(((part - mean) ** 2).sum(0) for part in parts) / len(x)
    std = np.sqrt(variance)
    return mean.astype(np.float32), np.where(std > 1e-12, std, 1.0).astype(np.float32)
