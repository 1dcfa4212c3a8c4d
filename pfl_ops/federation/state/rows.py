"""State of all clients: one row each, written by the engine only."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pfl_ops.federation.misuse import MisuseError, beyond, kind
from pfl_ops.federation.settings import StatePlace
from pfl_ops.federation.state.matrix import InFile, InMemory, Matrix
from pfl_ops.system import memory

SHARE = 0.25
"""Of the memory that is free, what state may take. Where all take part, a round holds up to three further copies
of it: what its clients start from, what they trained, what it makes of that."""
BYTES_AT_ONCE = 16 << 20  # bytes of rows that are added up at a time, or one row where that is larger
NUMBERS = (torch.int64, torch.int32)
"""Types of client numbers; PyTorch takes bool and uint8 for masks."""

State: TypeAlias = dict[str, Any]
"""Name -> `Tensor`, or `ClientRows` for what each client keeps. Nothing else, and no key that appears later."""


class ClientRows:
    """N rows that start equal; a row that was never written costs nothing.

    `rows[clients]` copies rows out, [C, Q] (or [C] where a row is one number); rows never written read as `base`.

    Args:
        base: the row that every client starts with, [Q], or a scalar.
        n: number of clients.
        matrix: where rows are; None: in memory.

    Attributes:
        written: whose rows were ever written, bool [N].
        changed: whose rows were written since the last `kept`: what a checkpoint has to add.

    >>> rows = ClientRows(torch.tensor([1.0, 1.0]), n=1000)
    >>> rows.write(torch.tensor([7]), torch.tensor([[2.0, 3.0]]))
    >>> rows[torch.tensor([6, 7])].tolist(), int(rows.written.sum())
    ([[1.0, 1.0], [2.0, 3.0]], 1)
    """

    def __init__(self, base: Tensor, n: int, matrix: Matrix | None = None) -> None:
        self.base = base.detach().clone()
        self.n = n
        self.written = torch.zeros(n, dtype=torch.bool)
        self.changed: set[int] = set()
        self._matrix = matrix or InMemory(n, base.shape, base.dtype)
        self._sum: Tensor | None = None  # Σ (row - base) over the rows written, float64, from the first mean() on

    def __len__(self) -> int:
        return self.n

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.base.numel() * self.base.element_size()

    @property
    def in_file(self) -> bool:
        """True if rows are in a file, not in memory."""
        return isinstance(self._matrix, InFile)

    @property
    def on_device(self) -> bool:
        """True if rows are on a GPU."""
        return self._matrix.device.type != "cpu"

    def __getitem__(self, clients: Tensor) -> Tensor:
        """Rows of `clients` (int64 [C]), a copy on the device of `base`.

        Raises:
            MisuseError: they are no client numbers. A mask, a slice or a negative number would read other rows.
        """
        if not isinstance(clients, Tensor) or clients.dtype not in NUMBERS or clients.dim() != 1:
            raise MisuseError(f"rows of a state are read by client numbers, int64 [C] (r.cohort); got {kind(clients)}")
        numbers = clients.cpu()
        if wrong := beyond(numbers, self.n):
            raise MisuseError(f"rows of clients {wrong} were read from a state; there are 0 to {self.n - 1}")
        return self._read(numbers).to(self.base.device)

    def __setitem__(self, clients: object, values: object) -> None:
        raise MisuseError("rows of a state are written by the engine alone; return Rows(r.cohort, values) from round()")

    def _read(self, clients: Tensor) -> Tensor:
        known = self.written[clients]
        if bool(known.all()):
            return self._matrix.read(clients)
        base = self.base.to(self._matrix.device)
        rows = base.expand(len(clients), *self.base.shape).clone(memory_format=torch.contiguous_format)
        for i in known.nonzero()[:, 0].tolist():
            self._matrix.read_into(int(clients[i]), rows[i])
        return rows

    def _row(self, client: int) -> Tensor:
        return self._read(torch.tensor([client]))[0]

    def mean(self, clients: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Unweighted mean over all N rows, [Q]; kept up to date from the first call on, so that no round costs N.

        Args:
            clients, values: rows that a round is about to write: they count with their new values. Whether the engine
                has written them already makes no difference.

        >>> rows = ClientRows(torch.tensor([0.0]), n=4)
        >>> rows.mean().tolist(), rows.mean(torch.tensor([1, 2]), torch.tensor([[2.0], [6.0]])).tolist()  # (2 + 6) / 4
        ([0.0], [2.0])
        """
        where = self._matrix.device
        if self._sum is None:
            self._sum = torch.zeros(self.base.shape, dtype=torch.float64, device=where)
            for k in self.written.nonzero()[:, 0].tolist():
                self._sum += self._row(k).double() - self.base.to(where)
        total = self._sum
        if clients is not None and values is not None:
            total = total.clone()
            for k, value in zip(clients.tolist(), values.detach().to(where), strict=True):
                total += value.double() - self._row(k)
        return self.base + (total / self.n).to(self.base)

    def weighted(self, weights: Tensor, clients: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Σ_k weights_k row_k over all N rows, [Q]; of the rows kept only those with a weight are read, some at a time.

        Args:
            weights: [N].
            clients, values: rows that a round is about to write: they count with their new values.

        >>> rows = ClientRows(torch.tensor([1.0]), n=3)
        >>> rows.write(torch.tensor([2]), torch.tensor([[5.0]]))
        >>> rows.weighted(torch.tensor([0.25, 0.25, 0.5])).tolist()  # (1 + 1) / 4 + 5 / 2
        [3.0]
        """
        weights = weights.to(self.base)
        unwritten, kept = ~self.written, self.written & (weights != 0).cpu()
        total = torch.zeros_like(self.base)
        if clients is not None and values is not None:
            unwritten[clients] = kept[clients] = False
            total += weights[clients] @ values
        total += weights[unwritten].sum() * self.base
        for some in kept.nonzero()[:, 0].split(max(1, BYTES_AT_ONCE // max(self.row_bytes, 1))):
            total += weights[some] @ self[some]
        return total

    def write(self, clients: Tensor, values: Tensor) -> None:
        """Replace rows; only the engine calls this, between rounds. Clients must be unique.

        Raises:
            PflOpsError: they are in a file, and the disk is full.

        >>> rows = ClientRows(torch.tensor(0.5), n=3)  # one number a client
        >>> rows.write(torch.tensor([0, 2]), torch.tensor([0.1, 0.9]))
        >>> rows[torch.arange(3)].tolist()
        [0.1..., 0.5, 0.8...]
        """
        for k, value in zip(clients.tolist(), values.detach().to(self._matrix.device), strict=True):
            if self._sum is not None:
                self._sum += value.double() - self._row(k)
            self._matrix.write(k, value)
            self.written[k] = True
            self.changed.add(k)

    # -- what a checkpoint keeps --------------------------------------------------------------------------------------

    def pieces(self, limit: int, *, all_rows: bool) -> Iterator[dict[str, Tensor]]:
        """Yield everything that a checkpoint needs as named tensors, about `limit` bytes at a time; `take` reads them.

        They are `base` [Q], `sum` [Q], and rows `values` [M, Q] with their `clients`, int64 [M].

        Args:
            all_rows: every row ever written; False: those that changed since `kept`, to be taken after what was kept
                then.
        """
        first = {"base": self.base.cpu()} if all_rows else {}
        if self._sum is not None:
            first["sum"] = self._sum.cpu()
        if first:
            yield first
        whose = self.written.nonzero()[:, 0] if all_rows else torch.tensor(sorted(self.changed), dtype=torch.int64)
        at_once = max(1, limit // (self.row_bytes + whose.element_size()))
        for clients in whose.split(at_once) if len(whose) else ():
            yield {"clients": clients, "values": self._read(clients).cpu()}

    def kept(self) -> None:
        """Mark all rows written so far as being in a checkpoint."""
        self.changed.clear()

    def reset(self) -> None:
        """Forget all rows that were written.

        >>> rows = ClientRows(torch.tensor([1.0]), n=2)
        >>> rows.write(torch.tensor([0]), torch.tensor([[5.0]]))
        >>> rows.reset()
        >>> rows[torch.tensor([0])].tolist()
        [[1.0]]
        """
        self.written.zero_()
        self.changed.clear()
        self._sum = None

    def take(self, piece: Mapping[str, Tensor]) -> None:
        """Restore one of `pieces`, in their order.

        Raises:
            ValueError: it is of rows of another shape or type, or of more clients.

        >>> rows, again = (ClientRows(torch.tensor([1.0]), n=3) for _ in range(2))
        >>> rows.write(torch.tensor([2]), torch.tensor([[5.0]]))
        >>> for piece in rows.pieces(limit=1000, all_rows=True):
        ...     again.take(piece)
        >>> again[torch.arange(3)].tolist()
        [[1.0], [1.0], [5.0]]
        """
        if "base" in piece:
            if piece["base"].shape != self.base.shape or piece["base"].dtype != self.dtype:
                raise ValueError("another shape or type")
            self.base = piece["base"].to(self.base.device)
        if "sum" in piece:
            self._sum = piece["sum"].to(self._matrix.device)
        if "clients" in piece:
            clients, values = piece["clients"], piece["values"]
            if values.shape[1:] != self.base.shape or values.dtype != self.dtype or int(clients.max()) >= self.n:
                raise ValueError("another shape or type, or more clients")
            for k, value in zip(clients.tolist(), values.to(self._matrix.device), strict=True):
                self._matrix.write(k, value)
            self.written[clients] = True


class RowStore:
    """Makes the rows of all clients: in memory as long as they fit, whatever is written to them later, else in a file.

    Args:
        where: memory, file or device (where the network is) for all; auto: in memory what stays below `SHARE` of what
            is free.
        folder: for files; None: the system's folder for temporary ones.
    """

    def __init__(self, where: StatePlace = "auto", folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir())
        self.limit = {"auto": SHARE * memory.available(), "file": 0.0}.get(where, float("inf"))
        self.on_device = where == "device"
        self._taken = 0

    def __call__(self, base: Tensor, n: int) -> ClientRows:
        size = n * base.numel() * base.element_size()
        if self._taken + size > self.limit:
            return ClientRows(base, n, InFile(self.folder, base.shape, base.dtype))
        self._taken += size
        return ClientRows(base, n, InMemory(n, base.shape, base.dtype, base.device) if self.on_device else None)
