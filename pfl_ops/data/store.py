"""The cache of unpacked data sets: `<cache>/<digest>/*.npy`, mapped into memory instead of read.

`<digest>` is SHA-256 of the content, so that the same data has the same name on every machine, however it was
compressed. `<cache>/sources/` remembers which file (by path, size and times) or download gave which digest.

Each array's file is read once a process and compared with the SHA-256 that `meta.json` recorded when it was unpacked
(1.7 GB/s on a processor with SHA instructions: MNIST 30 ms, CIFAR-10 100 ms); it is read again when its size, inode,
time of modification or time of change differs. So content that was overwritten in place is found even if size and time
of modification were restored. Not found: content that is overwritten while an array of this process is mapped, and a
folder whose `meta.json` was forged with it (these digests are no signatures).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.data.npz import DataError
from pfl_ops.data.scaling import SMALLEST
from pfl_ops.files import file_digest, sync, write_whole

FORMAT = 3
DIGEST = re.compile("[0-9a-f]{64}")
UNSETTLED_NS = 1_000_000_000
"""A file that changed less than this ago is read again: clocks of file systems are coarse."""

Read = Callable[[], dict[str, np.ndarray]]
State = tuple[int, int, int, int]

_pinned: dict[Path, str] = {}  # file -> digest of what it is taken for in this process
_verified: dict[tuple[str, str], State] = {}  # (file, SHA-256) -> its state when this process read it


@dataclass(frozen=True)
class Unpacked:
    """A data set in the cache.

    Attributes:
        folder: holds x_train.npy, y_train.npy, x_test.npy, y_test.npy, and perhaps client_train.npy, client_test.npy.
        meta: `digest`, `shape` and `dtype` of a sample, `n_classes`, `n_train`, `n_test`, `mean` and `std` of the
            training data per channel or feature, `files` with `bytes` and `sha256` of each. Nothing here needs the
            test data to be opened.
        unpack_again: makes a damaged folder anew from its source, given the damaged array's name and the damage; None:
            there is no source.
    """

    folder: Path
    meta: dict[str, Any]
    unpack_again: Callable[[str, str], None] | None = field(default=None, compare=False, repr=False)

    def array(self, name: str) -> np.ndarray:
        """An array with the content that it was unpacked with, mapped: pages are read when they are touched, and
        shared between processes until they are written.

        Raises:
            DataError: the file is damaged, and its source is gone or has changed.
        """
        try:
            return self._mapped(name)
        except (OSError, ValueError) as error:
            if self.unpack_again is None:
                raise DataError(f"{self.folder} is damaged ({name}: {error}); delete it") from error
            self.unpack_again(name, str(error))
            return self._mapped(name)

    def has(self, name: str) -> bool:
        """True if the data set has such an array."""
        return f"{name}.npy" in self.meta["files"]

    def is_whole(self, *names: str) -> bool:
        """True if these arrays, or all if none is named, have the content that they were unpacked with."""
        try:
            for name in names or [file.removesuffix(".npy") for file in self.meta["files"]]:
                self._verify(name)
        except (OSError, ValueError):
            return False
        return True

    def has_sizes(self) -> bool:
        """True if the training files have the size that they were written with; test files are not even looked at."""
        try:
            return all(
                (self.folder / file).stat().st_size == about["bytes"]
                for file, about in self.meta["files"].items()
                if "test" not in file
            )
        except OSError:
            return False

    def _mapped(self, name: str) -> np.ndarray:
        self._verify(name)
        return np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)

    def _verify(self, name: str) -> None:
        file = self.folder / f"{name}.npy"
        about, stat = self.meta["files"][file.name], file.stat()
        if stat.st_size != about["bytes"]:
            raise ValueError("a file has another size than it was written with")
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        key = (str(file), about["sha256"])
        if _verified.get(key) == state:
            return
        if file_digest(file) != about["sha256"]:
            raise ValueError("its content is not what was written")
        if time.time_ns() - stat.st_ctime_ns > UNSETTLED_NS:
            _verified[key] = state


def cache_folder() -> Path:
    """`PFL_OPS_CACHE`, else `~/.cache/pfl-ops`."""
    return Path(os.environ.get("PFL_OPS_CACHE") or "~/.cache/pfl-ops").expanduser()


def remembered(kind: str, key: str) -> Any:
    """Return the value that `remember` kept under this key; None if there is none, or if it is damaged."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        found = json.loads(_noted(kind, key).read_text(encoding="utf-8"))
        if found["key"] == key and found["sha256"] == _digest_of(found["value"]):
            return found["value"]
    return None


def remember(kind: str, key: str, value: Any) -> None:
    """Keep a measurement, as JSON, for the next process; a cache that can't be written only costs measuring again.

    Args:
        kind: the folder.
        key: all that the value depends on.
        value: plain JSON values.
    """
    file = _noted(kind, key)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        value = json.loads(json.dumps(value))  # as it will be read: keys are texts, tuples are lists
        _write(file, {"key": key, "sha256": _digest_of(value), "value": value})


def _noted(kind: str, key: str) -> Path:
    return cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def unpacked(source: str, read: Read) -> Unpacked:
    """Return the data set that `source` names, unpacked now if it is not in the cache.

    One process unpacks, others wait for it; a folder appears complete or not at all.

    Args:
        source: what identifies the content's origin, e.g. a file's path, size and times.
        read: gives the checked arrays; called only if needed, or if the cached ones turn out to be damaged.
    Raises:
        DataError: the cache cannot be written; and what `read` raises.
    """
    found = _known(source) or _unpack_once(source, read, lambda: _known(source))
    return replace(found, unpack_again=partial(_unpack_again, found, source, read))


def pin(file: Path, digest: str) -> None:
    """Take a file of the user's own, in this process, for the content with this digest: it may be overwritten since."""
    _pinned[file.resolve()] = digest


def pinned(file: Path) -> Unpacked | None:
    """Return what a file is taken for; None: it is not pinned, or its content is not in the cache."""
    return _open(cache_folder() / _pinned[file]) if file in _pinned else None


def is_pinned(file: Path) -> bool:
    """True if the user's own file is pinned, under any of its names."""
    return bool(_pinned) and file.resolve() in _pinned


def has(source: str) -> bool:
    """True if the data set that `source` names is unpacked already."""
    return _known(source) is not None


def _unpack_once(source: str, read: Read, present: Callable[[], Unpacked | None]) -> Unpacked:
    """Unpack under a lock, unless `present` finds that another process has done so."""
    from filelock import FileLock

    cache, entry = cache_folder(), _entry(source)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_suffix(".lock")):
            found = present()
            if found is None:
                found = _unpack(cache, _read(read))
                _write(entry, {"format": FORMAT, "source": source, "digest": found.meta["digest"]})
            return found
    except OSError as error:
        raise DataError(
            f"cannot write the cache folder {cache} ({error.strerror or error}); set PFL_OPS_CACHE"
        ) from error


def _read(read: Read) -> dict[str, np.ndarray]:
    try:
        return read()
    except OSError as error:  # of the source, or of the temporary folder; not of the cache
        raise DataError(f"the data cannot be read ({error})") from error


def _unpack_again(found: Unpacked, source: str, read: Read, name: str, damage: str) -> None:
    def mended() -> Unpacked | None:
        there = _known(source)
        return there if there is not None and there.is_whole(name) else None

    what = f"damaged ({name}: {damage})"
    try:
        made = _unpack_once(source, read, mended)
    except DataError as error:
        raise DataError(
            f"{found.folder} is {what} and cannot be unpacked again ({error}); "
            "delete it and provide the data set once more"
        ) from error
    if made.meta["digest"] != found.meta["digest"]:
        raise DataError(f"{found.folder} is {what}, and its source has other content now; run again")
    line = f"pfl-ops: {found.folder} was {what}; it was unpacked again from its source"
    print(line, file=sys.stderr, flush=True)


def _entry(source: str) -> Path:
    return cache_folder() / "sources" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.json"


def _known(source: str) -> Unpacked | None:
    try:
        noted = json.loads(_entry(source).read_text(encoding="utf-8"))
        same = noted["source"] == source and DIGEST.fullmatch(noted["digest"])
        return _open(cache_folder() / noted["digest"]) if same else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _open(folder: Path) -> Unpacked | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        found = Unpacked(folder, meta)
        sealed = meta["sha256"] == _digest_of({name: value for name, value in meta.items() if name != "sha256"})
        fits = meta["format"] == FORMAT and meta["digest"] == folder.name and sealed and found.has_sizes()
        return found if fits else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _unpack(cache: Path, arrays: dict[str, np.ndarray]) -> Unpacked:
    _sweep(cache)
    folder = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=cache))
    try:
        for name, array in arrays.items():
            with (folder / f"{name}.npy").open("wb") as file:
                _write_array(file, array)
            sync(folder / f"{name}.npy")
        target = cache / _write_meta(folder, arrays)
        there = _open(target)
        if there is None or not there.is_whole():  # else the same content came by another way
            if target.exists():
                shutil.rmtree(target)  # a damaged one
            try:
                os.rename(folder, target)
                sync(cache)
            except OSError:
                if _open(target) is None:
                    raise
        found = _open(target)
        if found is None:
            raise DataError(f"{target} changed while it was written; try again")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_array(file: Any, array: np.ndarray) -> None:
    """As `np.save`, but a full disk is an error that says so; NumPy's says how many items were written."""
    array = np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.data.cast("B"))


def _write_meta(folder: Path, arrays: dict[str, np.ndarray]) -> str:
    """Write meta.json for the arrays that are in a folder; returns their digest."""
    x = arrays["x_train"]
    mean, std = moments(x)
    files = [folder / f"{name}.npy" for name in sorted(arrays)]
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
        "files": {file.name: {"bytes": file.stat().st_size, "sha256": file_digest(file)} for file in files},
    }
    _write(folder / "meta.json", {**meta, "sha256": _digest_of(meta)})
    return str(meta["digest"])


def _sweep(cache: Path) -> None:
    """Remove what a killed process left half-unpacked more than a day ago."""
    for folder in cache.glob(".unpacking-*"):
        if time.time() - folder.stat().st_mtime > 86_400:
            shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=1))


def _digest_of(value: Any) -> str:
    """SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and values, in the names' order."""
    state = hashlib.sha256(b"pfl-ops data 1\n")
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"))
        state.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        state.update(array.data.cast("B"))
    return state.hexdigest()


COUNTED_AT_ONCE = 1 << 16
"""Values of a channel: NumPy makes 8 bytes of each to count it, which stay in the processor's cache."""


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel or feature, in units of the stored values; a constant one gets 1.

    So does one whose deviation is below the smallest normal number of float32, by which no network could divide.

    Args:
        x: uint8 [n, H, W, C] or [n, d], or float32 [n, d].
    Returns:
        float32 [C] or [d] each.
    """
    if x.dtype == np.uint8:  # by histogram: exact, and no copy in floating point
        values = np.arange(256, dtype=np.float64)
        parts = np.array_split(x, max(1, x.size // x.shape[-1] // COUNTED_AT_ONCE))
        counts = np.zeros((x.shape[-1], 256), np.int64)
        for part in parts:
            counts += [np.bincount(part[..., c].ravel(), minlength=256) for c in range(x.shape[-1])]
        n = counts.sum(1)
        mean = counts @ values / n
        variance = np.array([c @ (values - m) ** 2 for c, m in zip(counts, mean, strict=True)]) / n
    else:
        parts = np.array_split(x, max(1, len(x) // 10_000))
        mean = sum(part.sum(0, dtype=np.float64) for part in parts) / len(x)
        variance = sum(((part - mean) ** 2).sum(0) for part in parts) / len(x)
    std = np.sqrt(variance)
    # sums of float32 in float64 are exact enough to give a constant feature the deviation 0
    return mean.astype(np.float32), np.where(std >= SMALLEST, std, 1.0).astype(np.float32)
