"""N rows of one shape: in memory, on a GPU, or in a file that has no name."""

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError

HOST = torch.device("cpu")


class InMemory:
    """One matrix. The system hands out its pages when they are first written; a GPU gives all of it at once.

    Args:
        n: rows. shape, dtype: of a row. device: whose memory it is.
    Raises:
        PflOpsError: more than the system would ever give, or the GPU has free.
    """

    def __init__(self, n: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device = HOST) -> None:
        self.device = device
        try:
            self._values = torch.empty((n, *shape), dtype=dtype, device=device)
        except RuntimeError as error:
            size = n * torch.Size(shape).numel() * dtype.itemsize / 2**30
            whose, use = ("this machine's", "file") if device.type == "cpu" else ("the GPU's free", "memory")
            raise PflOpsError(
                f"the state of {n} clients, {size:.1f} GiB, is more than {whose} memory; use --state {use}"
            ) from error

    def read(self, clients: Tensor) -> Tensor:
        """Return a copy of the rows of clients (int64 [C]), [C, ...]."""
        return self._values.index_select(0, clients.to(self.device))

    def read_into(self, client: int, row: Tensor) -> None:
        """Copy a client's row into `row` [...], which is contiguous."""
        row.copy_(self._values[client])

    def write(self, client: int, row: Tensor) -> None:
        """Replace a client's row by `row` [...]."""
        self._values[client] = row


class InFile:
    """A file without a name, which goes with the process however that ends; it takes the room of the rows written.

    Rows are read and written by position and not mapped: a mapped page that was touched counts as this process's
    memory until the kernel takes it back, and where the disk is full a write to one is the signal SIGBUS, not an error.

    Args:
        folder: on which disk; it is made with the first row that is written.
        shape, dtype: of a row.
    """

    device = HOST

    def __init__(self, folder: Path, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.folder, self.shape, self.dtype = folder, tuple(shape), dtype
        self._bytes = torch.Size(shape).numel() * dtype.itemsize
        self._file: BinaryIO | None = None

    def read(self, clients: Tensor) -> Tensor:
        rows = torch.empty((len(clients), *self.shape), dtype=self.dtype)
        for client, row in zip(clients.tolist(), rows, strict=True):
            self.read_into(client, row)
        return rows

    def read_into(self, client: int, row: Tensor) -> None:
        left = _bytes(row)
        assert self._file is not None, "never written"
        self._file.seek(client * self._bytes)
        while left:
            count = self._file.readinto(left)  # type: ignore[attr-defined]
            assert count, "never written"
            left = left[count:]

    def write(self, client: int, row: Tensor) -> None:
        """Replace a client's row by `row` [...].

        Raises:
            PflOpsError: the disk is full.
        """
        left = _bytes(row.contiguous())
        try:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            assert self._file is not None
            self._file.seek(client * self._bytes)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise PflOpsError(
                f"can't keep the clients' state in {self.folder}: {error.strerror or error}; make room (or use --state "
                "memory), and the same command goes on from the last checkpoint"
            ) from error


Matrix: TypeAlias = InMemory | InFile
"""Storage of the rows of all clients. A row must be written before it is read; `device`: of the rows that are read and
written."""


def _bytes(row: Tensor) -> memoryview:
    return memoryview(row.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
