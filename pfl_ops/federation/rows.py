"""State of all clients: one row each, written by the engine only."""

from pathlib import Path

import torch
from torch import Tensor


class ClientRows:
    """N rows that start equal; a row that was never written costs nothing.

    `rows[clients]` copies rows out, [C, Q] (or [C] where a row is one number). The storage is one matrix whose pages
    the system hands out when they are first written; rows never written read as `base`.

    Args:
        base: the row that every client starts with, [Q], or a scalar.
        n: number of clients.
        file: map the storage into this (new) file instead of memory.
    """

    def __init__(self, base: Tensor, n: int, file: Path | None = None) -> None:
        self.base = base.detach().clone()
        self.n = n
        self.written = torch.zeros(n, dtype=torch.bool)
        shape = (n, *base.shape)
        if file is None:
            self._values = torch.empty(shape, dtype=base.dtype, device="cpu")
        else:
            self._values = torch.from_file(str(file), shared=True, size=max(n * base.numel(), 1), dtype=base.dtype)
            self._values = self._values[: n * base.numel()].view(shape)
        self._sum: Tensor | None = None  # Σ (row - base) over the rows written, float64, from the first mean() on

    def __len__(self) -> int:
        return self.n

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def __getitem__(self, clients: Tensor) -> Tensor:
        """Rows of `clients` (int64 [C]), a copy on the device of `base`."""
        clients = clients.cpu()
        known = self.written[clients]
        if bool(known.all()):
            return self._values[clients].to(self.base.device)
        rows = self.base.to("cpu").expand(len(clients), *self.base.shape).clone()
        rows[known] = self._values[clients[known]]
        return rows.to(self.base.device)

    def mean(self, clients: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Unweighted mean over all N rows, [Q]; kept up to date from the first call on, so that no round costs N.

        Args:
            clients, values: rows that a round is about to write: they count with their new values. Whether the engine
                has written them already makes no difference.
        """
        if self._sum is None:
            self._sum = torch.zeros(self.base.shape, dtype=torch.float64)
            for k in self.written.nonzero()[:, 0].tolist():
                self._sum += self._values[k].double() - self.base.cpu()
        total = self._sum
        if clients is not None and values is not None:
            total = total.clone()
            for k, value in zip(clients.tolist(), values.detach().cpu(), strict=True):
                total += value.double() - self._row(k)
        return self.base + (total / self.n).to(self.base)

    def _row(self, client: int) -> Tensor:
        return self._values[client] if self.written[client] else self.base.cpu()

    def write(self, clients: Tensor, values: Tensor) -> None:
        """Replace rows; only the engine calls this, between rounds. Clients must be unique."""
        for k, value in zip(clients.tolist(), values.detach().cpu(), strict=True):
            if self._sum is not None:
                self._sum += value.double() - self._row(k)
            self._values[k] = value
            self.written[k] = True

    def stored(self) -> tuple[Tensor, Tensor]:
        """(clients [W], rows [W, Q]) of every row written so far: what a checkpoint needs beside `base`."""
        clients = self.written.nonzero()[:, 0]
        return clients, self._values[clients]

    def snapshot(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs, as named tensors; `restore` takes it back bit for bit."""
        clients, values = self.stored()
        kept = {"clients": clients, "values": values, "base": self.base.cpu()}
        return kept if self._sum is None else {**kept, "sum": self._sum}

    def restore(self, kept: dict[str, Tensor]) -> None:
        """Take back a snapshot of rows of the same shape."""
        self.base = kept["base"].to(self.base)
        self.written.zero_()
        self.written[kept["clients"]] = True
        self._values[kept["clients"]] = kept["values"]
        self._sum = kept.get("sum")
