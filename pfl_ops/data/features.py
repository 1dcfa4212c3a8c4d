"""Features of a data set's samples, computed once by a frozen network and kept in the cache.

`<cache>/features/<key>/x_train.npy` has a row for every sample of the published set, a hole in the file until it is
computed; `sha256_train.npy` has each row's SHA-256. A row whose digest does not match is computed (again), so a cut of
another size computes only what is new, a killed process loses one batch, and a damaged row is never used (checking
12,000 rows of 512 takes some 50 ms each time they are opened). Nothing of a test set is touched before it is opened.
"""

import hashlib
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_ops.data import store
from pfl_ops.data.npz import DataError
from pfl_ops.files import replacing

BATCH = 128
CHECKED = 4096
"""Rows whose digests are compared at once."""
EVERY = 10.0
"""Seconds between two lines that say how far it is."""

Extract = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Features:
    """The features that replace a data set's samples.

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
            features, digests = _tables(folder, part, len(x), self.width)
            if not _present(features, digests, rows).all():
                self._compute(folder, part, x, rows)
            found = features.mapped()
        except OSError as error:
            raise DataError(
                f"cannot write the cache folder {folder} ({error.strerror or error}); set PFL_OPS_CACHE"
            ) from error
        return found if len(rows) == len(x) else found[rows]

    def _compute(self, folder: Path, part: str, x: np.ndarray, rows: np.ndarray) -> None:
        from filelock import FileLock

        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{part}.lock"):  # a process that waited here finds the rows computed
            features, digests = _tables(folder, part, len(x), self.width)
            for table in (features, digests):
                if not table.is_whole():
                    table.create()
            present = _present(features, digests, rows)
            missing = rows[~present]
            damaged = int(digests.mapped()[missing].any(1).sum())
            if damaged:
                those = f"{damaged:,} sample{'s were' if damaged > 1 else ' was'}"
                self._print(f"{part}: {those} damaged in {folder}, and {'are' if damaged > 1 else 'is'} computed again")
            extract = self.open() if len(missing) else None
            said = began = time.monotonic()
            for start in range(0, len(missing), BATCH):
                batch = missing[start : start + BATCH]
                assert extract is not None
                values = np.ascontiguousarray(extract(x[batch]), dtype=np.float32)
                features.write(batch, values)
                digests.write(batch, _digests(values))
                now, count = time.monotonic(), start + len(batch)
                if now - said >= EVERY or (count == len(missing) and said > began):
                    said = now
                    self._say(part, count, len(missing), now - began)

    def _say(self, part: str, count: int, total: int, seconds: float) -> None:
        left = seconds / count * (total - count)
        self._print(
            f"{part}: {count:,} of {total:,} samples, {count / seconds:.0f} a second, "
            f"{left // 60:.0f} min {left % 60:.0f} s left; kept for later runs"
        )

    def _print(self, line: str) -> None:
        print(f"{self.about}, {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Table:
    """A file of rows in NumPy's format, most of them holes.

    It is written with plain writes: on a full disk they raise OSError, where a page of a mapped file that has no room
    ends the process (SIGBUS).

    Attributes:
        file: its path. shape: [n, width]. dtype: of a number.
    """

    file: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @property
    def _header(self) -> bytes:
        out = io.BytesIO()
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(out, about)
        return out.getvalue()

    @property
    def _row(self) -> int:
        return self.shape[1] * self.dtype.itemsize

    def is_whole(self) -> bool:
        """True if the file is there with this shape and type."""
        header = self._header
        try:
            with self.file.open("rb") as stream:
                return (
                    stream.read(len(header)) == header and stream.seek(0, 2) == len(header) + self.shape[0] * self._row
                )
        except FileNotFoundError:
            return False

    def create(self) -> None:
        """Make the file, or replace it, without any row."""
        with replacing(self.file) as draft, draft.open("wb") as stream:
            stream.write(self._header)
            stream.truncate(len(self._header) + self.shape[0] * self._row)

    def mapped(self) -> np.ndarray:
        """All rows, mapped; this process may change them, the file stays."""
        return np.memmap(self.file, self.dtype, "c", len(self._header), self.shape)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write some rows, values [len(rows), width]."""
        start = len(self._header)
        with self.file.open("r+b") as stream:
            for row, value in zip(rows.tolist(), values, strict=True):
                stream.seek(start + row * self._row)
                stream.write(value.tobytes())


def _tables(folder: Path, part: str, n: int, width: int) -> tuple[_Table, _Table]:
    """Features and their digests."""
    return (
        _Table(folder / f"x_{part}.npy", (n, width), np.dtype("<f4")),
        _Table(folder / f"sha256_{part}.npy", (n, 32), np.dtype("u1")),
    )


def _present(features: _Table, digests: _Table, rows: np.ndarray) -> np.ndarray:
    """True for each of the rows that is there and has its digest, bool [len(rows)]."""
    if not (features.is_whole() and digests.is_whole()):
        return np.zeros(len(rows), dtype=bool)
    values, kept = features.mapped(), digests.mapped()
    found = np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), CHECKED):
        batch = rows[start : start + CHECKED]
        found[start : start + len(batch)] = (_digests(values[batch]) == kept[batch]).all(1)
    return found


def _digests(values: np.ndarray) -> np.ndarray:
    """SHA-256 of each row, uint8 [n, 32]."""
    joined = b"".join(hashlib.sha256(row).digest() for row in np.ascontiguousarray(values))
    return np.frombuffer(joined, np.uint8).reshape(-1, 32)


def key(*parts: str | None) -> str:
    """A folder's name for all that features depend on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]
