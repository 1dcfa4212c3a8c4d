"""Sample numbers by client in two arrays, so that a million clients cost two objects and no loop."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np

A = TypeVar("A")


class ByClient(Sequence[A]):
    """Each client's sample numbers: a sequence of N arrays that is stored as two (compressed rows, CSR).

    Args:
        samples: the clients' sample numbers, one client after the other, an int64 array or tensor [n].
        offsets: client k has samples[offsets[k]:offsets[k + 1]], int64 [N + 1].

    >>> clients = ByClient(np.array([4, 7, 5]), np.array([0, 2, 2, 3]))
    >>> len(clients), [rows.tolist() for rows in clients], clients.sizes.tolist(), clients.owner().tolist()
    (3, [[4, 7], [], [5]], [2, 0, 1], [0, 0, 2])
    """

    def __init__(self, samples: A, offsets: np.ndarray) -> None:
        self.samples: Any = samples
        self.offsets = offsets

    @classmethod
    def of(cls, lists: Sequence[A], join: Callable[[list[A]], A] | None = None) -> "ByClient[A]":
        """Return one array a client in this form.

        Args:
            lists: the arrays; a `ByClient` is returned as it is.
            join: concatenates them; None: they are NumPy arrays, or lists of numbers.

        >>> ByClient.of([[4, 7], [5]]).samples.tolist()
        [4, 7, 5]
        """
        if isinstance(lists, ByClient):
            return lists
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])  # type: ignore[arg-type]
        return cls((join or _joined)(list(lists)), offsets)

    @classmethod
    def of_spans(cls, values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> "ByClient[np.ndarray]":
        """Client k gets values[starts[k]:ends[k]].

        >>> [rows.tolist() for rows in ByClient.of_spans(np.array([9, 8, 7]), np.array([2, 0]), np.array([3, 2]))]
        [[7], [9, 8]]
        """
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
        return ByClient(values[places], offsets)

    @classmethod
    def of_owners(cls, owner: np.ndarray, n_clients: int) -> "ByClient[np.ndarray]":
        """Client k gets the samples i with owner[i] = k, ascending; a sample with owner -1 is left out.

        >>> [rows.tolist() for rows in ByClient.of_owners(np.array([1, 0, -1, 1]), 3)]
        [[1], [0, 3], []]
        """
        offsets = np.zeros(n_clients + 1, np.int64)
        np.cumsum(np.bincount(owner[owner >= 0], minlength=n_clients), out=offsets[1:])
        return ByClient(np.argsort(owner, kind="stable")[len(owner) - offsets[-1] :], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> A: ...
    @overload
    def __getitem__(self, client: slice) -> list[A]: ...
    def __getitem__(self, client: int | slice) -> A | list[A]:
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        k = range(len(self))[client]  # a negative number counts from the end; IndexError beyond
        return self.samples[int(self.offsets[k]) : int(self.offsets[k + 1])]

    def __iter__(self) -> Iterator[A]:
        bounds = self.offsets.tolist()
        return (self.samples[start:end] for start, end in pairwise(bounds))

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client, int64 [N]."""
        return np.diff(self.offsets)

    def owner(self) -> np.ndarray:
        """The client of each entry of `samples`, int64 [n]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def numbered(self, numbers: Any) -> "ByClient[Any]":
        """Return the same clients with `numbers[i]`, int64 array or tensor, in the place of sample i."""
        return ByClient(numbers[self.samples], self.offsets)

    def where(self, chosen: np.ndarray) -> "ByClient[A]":
        """Return the same clients with only the chosen entries of `samples`, bool [n] (NumPy arrays only).

        >>> clients = ByClient.of([[4, 7], [5]]).where(np.array([False, True, False]))
        >>> [rows.tolist() for rows in clients]
        [[7], []]
        """
        ends = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(chosen, out=ends[1:])
        return ByClient(self.samples[chosen], ends[self.offsets])

    def places(self) -> np.ndarray:
        """The place of each entry of `samples` among its client's, from 0, int64 [n].

        >>> ByClient.of([[4, 7], [5]]).places().tolist()
        [0, 1, 0]
        """
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.sizes)

    def ascending(self) -> "ByClient[A]":
        """Return the same clients, each one's samples in ascending order; itself where they are (NumPy arrays only).

        >>> ByClient.of([np.array([7, 4]), np.array([5])]).ascending().samples.tolist()
        [4, 7, 5]
        """
        samples = self.samples
        falls = np.flatnonzero(samples[1:] < samples[:-1]) + 1
        starts = np.zeros(len(samples) + 1, dtype=bool)
        starts[self.offsets] = True
        if starts[falls].all():  # only from one client to the next
            return self
        return ByClient(samples[np.lexsort((samples, self.owner()))], self.offsets)

    def class_counts(self, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """Count the samples of each client and class, int64 [N, L].

        Args:
            labels: class of each sample, int [m].
            n_classes: L.

        >>> ByClient.of([np.array([0, 2]), np.array([1, 3])]).class_counts(np.array([0, 0, 1, 2]), 3).tolist()
        [[1, 1, 0], [1, 0, 1]]
        """
        cells = self.owner() * n_classes + labels[self.samples]
        return np.bincount(cells, minlength=len(self) * n_classes).reshape(len(self), n_classes)

    def blocks(self, samples: int) -> Iterator[tuple[int, int]]:
        """Yield spans of clients with about so many samples together, one client at least.

        >>> list(ByClient(np.arange(9), np.array([0, 2, 4, 9])).blocks(4))
        [(0, 2), (2, 3)]
        """
        first = 0
        while first < len(self):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + samples, "right")) - 1
            last = min(max(last, first + 1), first + samples)
            yield first, last
            first = last


def _joined(lists: Sequence[Any]) -> Any:
    return np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64, copy=False)
