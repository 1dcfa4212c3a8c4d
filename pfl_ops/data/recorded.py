"""Clients that exist already: the data set's own (natural), and a recorded partition (file)."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import counts_table
from pfl_ops.data.partition import PartitionError, Scheme, content_hash, partition
from pfl_ops.data.partition_files import read_partition
from pfl_ops.section import MOST_COUNT


class _OwnClients(Scheme):
    """A scheme whose clients are given: how many there are need not be said."""

    clients: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=MOST_COUNT, title="K", description="number of clients; none: all that there are"
    )


class _File(_OwnClients):
    path: str
    digest: str | None

    @model_validator(mode="after")
    def _names_a_path(self) -> "_File":
        if not self.path:
            raise ValueError("partition 'file' needs a path: file:PATH, or partition.path")
        return self

    def identity(self) -> dict[str, Any]:
        """All fields but the path, for which the digests of what lies there stand."""
        recorded = read_partition(self.path)
        test = content_hash(recorded.test) if recorded.test is not None else None
        kept = {name: value for name, value in super().identity().items() if name != "path"}
        return kept | {"clients": len(recorded.train), "digest": recorded.digest, "test_digest": test}


@partition("natural", base=_OwnClients)
def natural(
    labels: np.ndarray,
    n_clients: int | None,
    *,
    rng: np.random.Generator,
    users: np.ndarray | None,
    min_size: Annotated[
        int, Field(ge=1, le=MOST_COUNT, description="the data set's clients with fewer samples are left out")
    ] = 1,
) -> Sequence[np.ndarray]:
    """The data set's own clients.

    Args:
        labels: class of each sample, int [n].
        n_clients: K clients drawn at random; None: all.
        rng: the only source of randomness; not used for all.
        users: the data set's own client number of each sample, int [n]; None: it has none.
        min_size: samples that a client must have.
    Returns:
        one sorted index array a client, by ascending client number; clients not drawn keep their samples to themselves.
    Raises:
        PartitionError: the data set has no clients of its own, or fewer than K with `min_size` samples.

    >>> users = np.array([30, 10, 30, 20, 30, 10])
    >>> clients = natural(np.zeros(6), None, rng=np.random.default_rng(0), users=users, min_size=2)
    >>> [rows.tolist() for rows in clients]  # clients 10 and 30; client 20 has one sample
    [[1, 5], [0, 2, 4]]

    Source: LEAF (Caldas et al. 2018), as used by FedAvg2Rep (fourth seed).
    """
    if users is None:
        raise PartitionError(
            "partition 'natural' needs a data set with clients of its own (.npz: client_train, client_test; .csv and "
            ".parquet: client); {data} has none"
        )
    order = np.argsort(users, kind="stable")
    _, starts, sizes = np.unique(users[order], return_index=True, return_counts=True)
    starts, sizes = starts[sizes >= min_size], sizes[sizes >= min_size]
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


@partition("file", base=_File)
def file(
    labels: np.ndarray,
    n_clients: int | None,
    *,
    rng: np.random.Generator,
    origin: np.ndarray | None,
    path: Annotated[str, Field(description="folder of a recorded partition (partition.parquet, partition.json)")] = "",
    digest: Annotated[str | None, Field(description="what its digest must be; none: not checked")] = None,
) -> Sequence[np.ndarray]:
    """A recorded partition: exactly the same clients as in another run.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, which must be the file's; None: not checked.
        rng: not used.
        origin: number of each sample in the data set as published, int [n]; None: 0..n-1.
        path: the folder.
        digest: the partition's digest, if it is known.
    Returns:
        the recorded clients' sorted index arrays; samples that the file does not name stay unused.
    Raises:
        PartitionError: it is for other data, has other clients, or names samples that `data.train_size` left out.

    >>> import tempfile
    >>> from pfl_ops.data.partition_files import Recorded, write_partition
    >>> labels, rng = np.array([0, 1, 0, 1, 1]), np.random.default_rng(0)
    >>> five = Recorded([np.array([0, 2, 4]), np.array([1, 3])], test=None, counts=np.array([[2, 1], [0, 2]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = str(write_partition(folder, five))
    ...     [rows.tolist() for rows in file(labels, None, rng=rng, origin=None, path=path)]
    [[0, 2, 4], [1, 3]]
    """
    recorded = read_partition(path)
    if digest is not None and digest != recorded.digest:
        raise PartitionError(
            f"recorded partition {path} has digest {recorded.digest[:12]}, not {digest[:12]} as wanted"
        )
    if n_clients is not None and n_clients != len(recorded.train):
        raise PartitionError(
            f"recorded partition {path} has {len(recorded.train):,} clients, got clients = {n_clients:,}"
        )
    clients = locate(recorded.train, np.arange(len(labels)) if origin is None else origin, f"recorded partition {path}")
    counts = counts_table(labels, clients, max(recorded.counts.shape[1], int(labels.max()) + 1))
    counts = counts[:, : recorded.counts.shape[1]]
    if not np.array_equal(counts, recorded.counts):
        k, c = np.argwhere(counts != recorded.counts)[0]
        raise PartitionError(
            f"recorded partition {path} is for other data: client {k} has {recorded.counts[k, c]:,} samples of "
            f"class {c} there, {counts[k, c]:,} in {{data}}"
        )
    return clients


def locate(clients: Sequence[np.ndarray], origin: np.ndarray, what: str) -> ByClient[np.ndarray]:
    """Return the positions of published sample numbers among those at hand, an int64 array a client.

    Args:
        clients: sample numbers of the data set as published.
        origin: the published number of each sample at hand, ascending, int [n].
        what: the partition, for messages.

    >>> origin = np.array([3, 5, 8])  # data.train_size kept three samples
    >>> [rows.tolist() for rows in locate([np.array([5, 8]), np.array([3])], origin, "recorded")]
    [[1, 2], [0]]
    """
    wanted = ByClient.of(clients)
    found = np.minimum(np.searchsorted(origin, wanted.samples), len(origin) - 1)
    lost = wanted.samples[origin[found] != wanted.samples]
    if len(lost):
        raise PartitionError(
            f"{what} has sample {lost[0]:,}, which is not among the {len(origin):,} of {{data}} in use; "
            "was it made with another data.train_size?"
        )
    return ByClient(found, wanted.offsets)
