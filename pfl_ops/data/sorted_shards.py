"""A scheme that cuts the samples, sorted by class, into equal shards and deals these out: sorted_shards."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from pfl_ops.data.balance import equal_parts
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.cut import by_class
from pfl_ops.data.partition import PartitionError, partition
from pfl_ops.section import MOST_COUNT


@partition("sorted_shards")
def sorted_shards(
    labels: np.ndarray,
    n_clients: int,
    *,
    rng: np.random.Generator,
    shards_per_client: Annotated[
        int, Field(ge=1, le=MOST_COUNT, title="S", description="shards of samples sorted by class that a client gets")
    ] = 2,
) -> Sequence[np.ndarray]:
    """McMahan's pathological split: each client has `shards_per_client` shards of the samples sorted by class.

    The samples in the order of their classes are cut into K·S shards, equal within one sample, and S random shards go
    to each client. A shard that is no larger than any class has one or two classes, a client so 1 to 2·S.

    Args:
        labels: class of each sample, int [n].
        n_clients: K, with K · S <= n.
        rng: the only source of randomness.
        shards_per_client: S.
    Returns:
        K sorted index arrays that together hold each of 0..n-1 exactly once.
    Raises:
        PartitionError: fewer samples than shards.

    >>> from pfl_ops.data.cut import counts_table
    >>> labels = np.repeat([0, 1, 2], 8)
    >>> clients = sorted_shards(labels, 3, rng=np.random.default_rng(4), shards_per_client=2)
    >>> counts_table(labels, clients, 3).tolist()  # 6 shards of 4, two of each class; the last client drew one class
    [[0, 4, 4], [0, 4, 4], [8, 0, 0]]

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        Sec. 3 (arXiv 1602.05629): 200 shards of 300, two a client. Ours: the order within a class is random.
    """
    shards = n_clients * shards_per_client
    if shards > len(labels):
        raise PartitionError(
            f"partition 'sorted_shards' needs clients * shards_per_client <= {len(labels):,} ({{data}} has "
            f"{len(labels):,} samples), got {n_clients:,} * {shards_per_client:,}"
        )
    in_order = np.concatenate([group for _, group in by_class(labels, rng)])
    client = np.empty(shards, np.int64)
    client[rng.permutation(shards)] = np.repeat(np.arange(n_clients), shards_per_client)
    owner = np.empty(len(labels), np.int64)
    owner[in_order] = np.repeat(client, equal_parts(len(labels), shards))
    return ByClient.of_owners(owner, n_clients)
