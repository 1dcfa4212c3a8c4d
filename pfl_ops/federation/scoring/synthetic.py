"""S-acc(c) of FedPG: a client's model on its own test set joined with those of a random c percent of the others."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops import rng

KEPT_RANKS = 1 << 26
"""Numbers of 4 bytes that `Companions` keeps at most, beside one client's."""


def companions_of_each(n_clients: int, percent: float) -> int:
    """Return the number of clients that are c percent of the N - 1 others, to the nearest, halves up (ours).

    >>> companions_of_each(100, 1), companions_of_each(20, 1)
    (1, 0)
    """
    return int(np.floor(percent / 100 * (n_clients - 1) + 0.5))


class Companions:
    """The clients whose test sets are joined to a client's own: a random c percent of the others.

    Their number is `companions_of_each`. A client's choice depends on (seed, client) and nothing else; a smaller
    percentage takes a part of a larger one's, so that curves over c do not jump. A client's order of all others is
    drawn once.

    Args:
        n_clients: N. seed: the run's.
        tested: the clients with test samples, ascending, int64 [M]; the choice is made among all, and of those without
            samples nothing is joined.

    >>> some = Companions(5, 0, tested=np.array([1, 3]))
    >>> some.with_own(0, 25).tolist(), some.with_own(3, 100).tolist()  # positions in `tested`, its own last
    ([1], [0, 1])
    """

    def __init__(self, n_clients: int, seed: int, tested: NDArray[np.int64]) -> None:
        self.n_clients, self.seed, self.tested = n_clients, seed, tested
        self._ranks: dict[int, NDArray[np.int32]] = {}

    def with_own(self, client: int, percent: float) -> NDArray[np.int64]:
        """Positions in `tested` of the client's companions, ascending, and of itself."""
        companions = np.flatnonzero(self._rank(client) < companions_of_each(self.n_clients, percent))
        return np.append(companions, np.flatnonzero(self.tested == client))

    def _rank(self, client: int) -> NDArray[np.int32]:
        """Place of each tested client in the client's random order, int32 [M]; N of itself."""
        if client not in self._ranks:
            others = np.delete(np.arange(self.n_clients), client)
            ranks = np.full(self.n_clients, self.n_clients, dtype=np.int32)
            ranks[rng.generator(self.seed, "synthetic", client).permutation(others)] = np.arange(self.n_clients - 1)
            if (len(self._ranks) + 1) * len(self.tested) > KEPT_RANKS:
                self._ranks.clear()
            self._ranks[client] = ranks[self.tested]
        return self._ranks[client]


def s_accuracy(
    accuracy: NDArray[np.float64], sizes: ArrayLike, percent: float, clients: ArrayLike, companions: Companions
) -> NDArray[np.float64]:
    """S-acc_k = Σ_{j ∈ {k} ∪ R_k} n_j acc_kj / Σ_{j ∈ {k} ∪ R_k} n_j, R_k being the companions of client k.

    c = 0 is the local view, c = 100 the global one.

    Args:
        accuracy: of each client's model on the samples of each of `companions.tested`, [C, M].
        sizes: n_j, their numbers of samples, > 0, [M]; `alike(sizes)` where every test set is to count the same.
        percent: c, 0 to 100.
        clients: the clients of the rows, int [C].
    Returns:
        [C]; NaN where the joined set is empty.

    >>> both = Companions(2, 0, tested=np.array([0, 1]))
    >>> accuracy = np.array([[1.0, 0.5], [0.0, 0.5]])
    >>> [s_accuracy(accuracy, [10, 30], c, [0, 1], both).tolist() for c in (0, 100)]  # (10 · 1 + 30 · 0.5) / 40
    [[1.0, 0.5], [0.625, 0.375]]

    Source: FedPG's experiments.
    """
    weights = np.asarray(sizes, dtype=np.float64)
    scores = np.full(len(accuracy), np.nan)
    for i, k in enumerate(np.asarray(clients).tolist()):
        positions = companions.with_own(k, percent)
        if len(positions):
            scores[i] = np.average(accuracy[i, positions], weights=weights[positions])
    return scores


def accuracy_by_client(
    correct: ArrayLike, owner: ArrayLike, n_clients: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Accuracy of each model on each client's samples, from one pass over all clients' samples.

    Args:
        correct: 1 if model i is right on sample j, [C, n] or [n] for one model; or any score a sample.
        owner: client of each sample, int [n].
        n_clients: N.
    Returns:
        accuracies [C, N] (or [N]), NaN for clients without a sample, and the clients' numbers of samples, [N].

    >>> accuracy, sizes = accuracy_by_client(correct=[1, 0, 1, 1], owner=[0, 0, 1, 1], n_clients=3)
    >>> accuracy.tolist(), sizes.tolist()
    ([0.5, 1.0, nan], [2, 2, 0])
    """
    owner = np.asarray(owner)
    values = np.asarray(correct, dtype=np.float64)
    sizes = np.bincount(owner, minlength=n_clients)
    sums = np.stack([np.bincount(owner, weights=row, minlength=n_clients) for row in np.atleast_2d(values)])
    means = np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)
    return means.reshape(*values.shape[:-1], n_clients), sizes


def alike(sizes: ArrayLike) -> NDArray[np.int64]:
    """1 for each client that has samples, [N]: S-acc then weighs test sets as FedPG's, which are cut to one size.

    It is the mean over random cuts to the smallest size, and uses all samples (ours).

    Args:
        sizes: number of samples, [N].

    >>> alike([10, 0, 30]).tolist()
    [1, 0, 1]
    """
    return (np.asarray(sizes) > 0).astype(np.int64)
