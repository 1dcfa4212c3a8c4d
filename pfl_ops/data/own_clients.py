"""The scheme `natural` without a loop over clients.

`recorded.natural` is the scheme as written. Its code is part of the hash of runs with it (`code_digest`). This gives
the same clients, and a test compares both.
"""

import numpy as np

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.partition import PartitionError


def natural(
    labels: np.ndarray, n_clients: int | None, *, rng: np.random.Generator, users: np.ndarray | None, min_size: int = 1
) -> ByClient[np.ndarray]:
    """Return the data set's own clients; arguments, draws and errors as for `recorded.natural`.

    >>> users = np.array([30, 10, 30, 20, 30, 10])
    >>> clients = natural(np.zeros(6), None, rng=np.random.default_rng(0), users=users, min_size=2)
    >>> [rows.tolist() for rows in clients]  # clients 10 and 30; client 20 has one sample
    [[1, 5], [0, 2, 4]]
    """
    if users is None:
        raise PartitionError(
            "partition 'natural' needs a data set with clients of its own (client_train, client_test); {data} has none"
        )
    order = np.argsort(users, kind="stable")
    _, starts, sizes = np.unique(users[order], return_index=True, return_counts=True)
    enough = sizes >= min_size
    starts, sizes = starts[enough], sizes[enough]
    wanted = len(sizes) if n_clients is None else n_clients
    if wanted > len(sizes) or not len(sizes):
        raise PartitionError(
            f"partition 'natural' needs clients <= {len(sizes):,} ({{data}} has {len(sizes):,} clients with "
            f"{min_size:,} samples or more), got {max(wanted, 1):,}"
        )
    if wanted < len(sizes):
        drawn = np.sort(rng.choice(len(sizes), wanted, replace=False))
        starts, sizes = starts[drawn], sizes[drawn]
    return ByClient.of_spans(order, starts, starts + sizes)
