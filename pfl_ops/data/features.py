"""Features of a data set's samples, computed once by a frozen network and kept in the cache.

`<cache>/features/<key>/x_train.npy` has a row for every sample of the published set, most of them holes in the file
until somebody needs them; `done_train.npy` says which are there. So a cut of another size computes only what is new, a
killed process loses one batch, and nothing of a test set is touched before it is opened.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfl_ops.data import store
from pfl_ops.data.npz import DataError

BATCH = 128
EVERY = 10.0
"""Seconds between two lines that say how far it is."""

Extract = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Features:
    """What stands in the place of a data set's samples.

    Attributes:
        key: names the folder: of the samples, the network and its weights. width: D.
        about: what is computed of what, for the line that says how far it is.
        open: gives images uint8 [n, H, W, C] -> features float32 [n, D]; called only where some are missing.
    """

    key: str
    width: int
    about: str
    open: Callable[[], Extract]

    def of(self, part: str, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Features [n, D] of some samples, mapped into memory where they are all.

        Args:
            part: "train" or "test".
            x: all samples of that part as published.
            rows: the samples wanted, ascending.
        Raises:
            DataError: the cache can't be written; and what `open` raises.
        """
        folder = store.cache_folder() / "features" / self.key
        try:
            found = _kept(folder, part, len(x), self.width)
            if found is None or not found[1][rows].all():
                self._compute(folder, part, x, rows)
        except OSError as error:
            raise DataError(
                f"cannot write the cache folder {folder} ({error.strerror or error}); set PFL_OPS_CACHE"
            ) from error
        features = np.load(folder / f"x_{part}.npy", mmap_mode="c", allow_pickle=False)
        return features if len(rows) == len(x) else features[rows]

    def _compute(self, folder: Path, part: str, x: np.ndarray, rows: np.ndarray) -> None:
        from filelock import FileLock

        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{part}.lock"):  # whoever waited here finds the rows computed
            features, done = _kept(folder, part, len(x), self.width) or _new(folder, part, len(x), self.width)
            missing = rows[~done[rows]]
            extract = self.open() if len(missing) else None
            said = began = time.monotonic()
            for start in range(0, len(missing), BATCH):
                batch = missing[start : start + BATCH]
                assert extract is not None
                features[batch] = extract(x[batch])
                features.flush()  # the rows first: what is said to be there is there
                done[batch] = True
                done.flush()
                now, count = time.monotonic(), start + len(batch)
                if now - said >= EVERY or (count == len(missing) and said > began):
                    said = now
                    self._say(part, count, len(missing), now - began)

    def _say(self, part: str, count: int, total: int, seconds: float) -> None:
        left = seconds / count * (total - count)
        print(
            f"{self.about}, {part}: {count:,} of {total:,} samples, {count / seconds:.0f} a second, "
            f"{left // 60:.0f} min {left % 60:.0f} s left; kept for later runs",
            file=sys.stderr,
            flush=True,
        )


def key(*parts: str | None) -> str:
    """A folder's name for all that features depend on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


def _kept(folder: Path, part: str, n: int, width: int) -> tuple[np.memmap, np.memmap] | None:
    """Features and what of them is there, open for writing; None: not there, or not whole."""
    files = folder / f"x_{part}.npy", folder / f"done_{part}.npy"
    try:
        for file in files:
            np.load(file, mmap_mode="r", allow_pickle=False)  # fails where it is too short; "r+" would lengthen it
        features, done = (np.load(file, mmap_mode="r+", allow_pickle=False) for file in files)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    whole = features.shape == (n, width) and features.dtype == np.float32 and done.shape == (n,) and done.dtype == bool
    return (features, done) if whole else None


def _new(folder: Path, part: str, n: int, width: int) -> tuple[np.memmap, np.memmap]:
    """Empty files of the right size; `done` comes last, so that it never speaks for other features."""
    (folder / f"done_{part}.npy").unlink(missing_ok=True)
    for name, shape, dtype in ((f"x_{part}", (n, width), np.float32), (f"done_{part}", (n,), np.bool_)):
        half = folder / f".{name}.{os.getpid()}"
        np.lib.format.open_memmap(half, mode="w+", dtype=dtype, shape=shape).flush()
        os.replace(half, folder / f"{name}.npy")
    kept = _kept(folder, part, n, width)
    assert kept is not None
    return kept
