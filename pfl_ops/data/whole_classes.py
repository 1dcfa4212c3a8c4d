"""Schemes that give each client a few whole classes: path, pat, shards."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from pfl_ops.data.balance import apportion
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import by_class
from pfl_ops.data.partition import PartitionError, partition
from pfl_ops.section import MOST_COUNT

Classes = Annotated[int, Field(ge=1, le=MOST_COUNT, title="N_C", description="classes that a client has, exactly")]
Divide: TypeAlias = Callable[[int, int], np.ndarray]  # samples of a class, clients that share it -> their parts


@partition("path")
def path(
    labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, classes_per_client: Classes = 2
) -> Sequence[np.ndarray]:
    """Pathological: each client has `classes_per_client` random classes.

    Every class is held by ⌊K·N_C/L⌋ or one more clients (fewer where it has fewer samples), which share it equally
    within one sample.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · N_C >= L.
        rng: the only source of randomness.
        classes_per_client: N_C, at most L.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: N_C > L, K · N_C < L (some class would have no client), or too few samples for K · N_C pieces.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1, 2], 8)
    >>> clients = path(labels, 3, rng=np.random.default_rng(0), classes_per_client=2)
    >>> counts_table(labels, clients, 3).tolist()  # each class has two clients, which share its 8 samples
    [[4, 4, 0], [0, 4, 4], [4, 0, 4]]

    Source: FLIU (first seed), Sec. IV.A 2. Ours: classes used evenly, no remainder for one client.
    """
    counts = np.unique(labels, return_counts=True)[1]
    # equal claims; the last pieces go to the largest classes
    share = 1 + 1e-9 * counts / len(labels)
    return _whole("path", labels, n_clients, classes_per_client, share, lambda n, h: apportion(np.ones(h), n, rng), rng)


@partition("pat")
def pat(
    labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, classes_per_client: Classes = 2
) -> Sequence[np.ndarray]:
    """Pathological as `path`, with different amounts.

    Each of a class's h clients but the last gets u · n_c / h samples, u ~ U[0.1, 1]; the last gets the rest.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · N_C >= L.
        rng: the only source of randomness.
        classes_per_client: N_C, at most L.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: as for `path`.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1, 2], 8)
    >>> clients = pat(labels, 3, rng=np.random.default_rng(0), classes_per_client=2)
    >>> counts_table(labels, clients, 3).tolist()  # the classes of `path`, shared unevenly
    [[1, 2, 0], [0, 6, 7], [7, 0, 1]]

    Source: FedPG (third seed), Pat-2; amounts after its authors' code. Deviation: which clients share a class is
        random, where the code fills clients in order.
    """

    def uneven(n: int, holders: int) -> np.ndarray:
        parts = np.maximum(1, rng.uniform(0.1, 1.0, holders) * (n / holders)).astype(np.int64)
        last = rng.integers(holders)
        parts[last] = 0
        parts[last] = n - parts.sum()
        return parts

    share = 1 + 1e-9 * np.unique(labels, return_counts=True)[1] / len(labels)
    return _whole("pat", labels, n_clients, classes_per_client, share, uneven, rng)


@partition("shards")
def shards(
    labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, classes_per_client: Classes = 2
) -> Sequence[np.ndarray]:
    """Each client has `classes_per_client` classes, sizes and amounts per class as equal as whole classes allow.

    Class c is cut into about K·N_C · n_c/n pieces, equal within one sample; every client gets N_C pieces of different
    classes. With equal classes and K·N_C a multiple of L (the source's case) all sizes are equal.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · N_C >= L.
        rng: the only source of randomness.
        classes_per_client: N_C, at most L.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: as for `path`.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1, 2], [12, 6, 6])
    >>> clients = shards(labels, 4, rng=np.random.default_rng(0), classes_per_client=2)
    >>> counts_table(labels, clients, 3).tolist()  # pieces of 3 samples: four of class 0, two of each other
    [[3, 0, 3], [3, 0, 3], [3, 3, 0], [3, 3, 0]]

    Source: FedAvg2Rep (fourth seed), Sec. 4.5 ("approximately the same number").
    """
    share = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return _whole(
        "shards", labels, n_clients, classes_per_client, share, lambda n, h: apportion(np.ones(h), n, rng), rng
    )


def _whole(
    name: str,
    labels: np.ndarray,
    n_clients: int,
    per_client: int,
    share: np.ndarray,
    divide: Divide,
    rng: np.random.Generator,
) -> Sequence[np.ndarray]:
    groups = by_class(labels, rng)
    n_classes, pieces = len(groups), n_clients * per_client
    if per_client > n_classes:
        raise PartitionError(
            f"partition '{name}' needs classes_per_client <= {n_classes} ({{data}} has {n_classes} classes), "
            f"got {per_client}"
        )
    if pieces < n_classes:
        raise PartitionError(
            f"partition '{name}' needs clients * classes_per_client >= {n_classes} ({{data}} has {n_classes} classes), "
            f"got {n_clients} * {per_client}: some classes would have no client"
        )
    most = np.array([min(len(group), n_clients) for _, group in groups])
    if most.sum() < pieces:
        raise PartitionError(
            f"partition '{name}' needs clients * classes_per_client <= {most.sum():,} (the classes of {{data}} "
            f"have no more samples to share), got {n_clients:,} * {per_client}"
        )
    holds = _assign(_pieces(share, most, pieces), n_clients, rng)
    owner = np.empty(len(labels), np.int64)
    for c, (_, group) in enumerate(groups):
        clients = rng.permutation(np.flatnonzero(holds[:, c]))
        owner[group] = np.repeat(clients, divide(len(group), len(clients)))
    return ByClient.of_owners(owner, n_clients)


def _pieces(share: np.ndarray, most: np.ndarray, total: int) -> np.ndarray:
    """Pieces a class, at least 1 and at most `most`: one more for the class whose pieces are largest, until there are
    `total`."""
    pieces = _sure_pieces(share, most, total)
    for _ in range(total - int(pieces.sum())):
        pieces[np.argmax(np.where(pieces < most, share / pieces, -1.0))] += 1
    return pieces


def _sure_pieces(share: np.ndarray, most: np.ndarray, total: int) -> np.ndarray:
    """Pieces that `_pieces` gives each class before the last few: a class is cut while its pieces exceed a size.

    The size is the smallest, by bisection, that leaves at most `total` pieces. The slack of 1e-12 outweighs rounding.
    """

    def cut(size: float) -> np.ndarray:
        return np.clip(np.ceil(share / size), 1, most).astype(np.int64)

    low, high = 0.0, float(share.max())
    for _ in range(60):
        size = (low + high) / 2
        low, high = (size, high) if cut(size * (1 - 1e-12)).sum() > total else (low, size)
    return cut(high * (1 + 1e-12))


def _assign(pieces: np.ndarray, n_clients: int, rng: np.random.Generator) -> np.ndarray:
    """True if a client has a class, bool [K, L]: equal row sums, columns sum to `pieces`, otherwise random.

    A class with as many pieces left as there are clients left goes to the next client for certain; the others are
    drawn by their pieces left. So no piece is ever left over, and no client gets one class twice.
    """
    per_client = int(pieces.sum()) // n_clients
    left = pieces.copy()
    holds = np.zeros((n_clients, len(pieces)), dtype=bool)
    for done, k in enumerate(rng.permutation(n_clients)):
        certain = np.flatnonzero(left == n_clients - done)
        weight = left.astype(np.float64)
        weight[certain] = 0
        more = per_client - len(certain)
        drawn = rng.choice(len(left), size=more, replace=False, p=weight / weight.sum()) if more else certain[:0]
        chosen = np.concatenate([certain, drawn])
        holds[k, chosen] = True
        left[chosen] -= 1
    return holds
