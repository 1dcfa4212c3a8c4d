"""Cuts of labelled samples: a smaller data set, a held-out share, a test set divided as the training set was."""

from collections.abc import Sequence

import numpy as np

from pfl_ops.data.balance import apportion


def by_class(labels: np.ndarray, rng: np.random.Generator) -> list[tuple[int, np.ndarray]]:
    """Return each class that occurs in labels, int [n], with its positions in random order; classes ascending.

    >>> [(c, sorted(rows.tolist())) for c, rows in by_class(np.array([7, 2, 7]), np.random.default_rng(0))]
    [(2, [1]), (7, [0, 2])]
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    classes, starts = np.unique(labels[order], return_index=True)
    return list(zip(classes.tolist(), np.split(order, starts[1:]), strict=True))


def stratified(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return `size` positions in which every class has its share, and at least one sample where there are enough.

    Args:
        labels: class (or any stratum) of each sample, int [n].
        size: samples to keep; n or more: all.
        rng: chooses them.
    Returns:
        sorted positions, int64 [min(size, n)].

    >>> labels = np.repeat([0, 1, 2], [80, 19, 1])
    >>> kept = stratified(labels, 10, np.random.default_rng(0))
    >>> np.bincount(labels[kept]).tolist()  # 8, 1.9 and 0.1, the last raised to 1 at the cost of the largest
    [7, 2, 1]
    """
    if size >= len(labels):
        return np.arange(len(labels))
    groups = by_class(labels, rng)
    counts = np.array([len(group) for _, group in groups])
    if size < len(groups):
        take = apportion(counts, size, rng)
    else:
        take = np.maximum(apportion(counts, size, rng), 1)
        while take.sum() > size:  # pay for classes raised to one sample out of the largest
            take[np.argmax(take)] -= 1
    return np.sort(np.concatenate([group[:t] for (_, group), t in zip(groups, take, strict=True)]))


def hold_out(
    labels: np.ndarray, rows: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divide one client's samples, stratified by class.

    Both parts get at least one sample where there are two; a single sample is kept.

    Args:
        labels: class of each sample of the data set, int [n].
        rows: the client's samples, int [n_k].
        share: of `rows` that is held out, in (0, 1).
        rng: chooses them.
    Returns:
        kept, held: sorted sample numbers.

    >>> labels = np.repeat([0, 1], 8)
    >>> kept, held = hold_out(labels, np.array([0, 1, 2, 3, 8, 9, 10, 11]), 0.25, np.random.default_rng(0))
    >>> labels[kept].tolist(), labels[held].tolist()
    ([0, 0, 0, 1, 1, 1], [0, 1])
    """
    size = min(max(round(share * len(rows)), 1), len(rows) - 1) if len(rows) else 0
    if size == 0:
        return np.sort(rows), rows[:0]
    groups = by_class(labels[rows], rng)
    take = apportion(np.array([len(group) for _, group in groups]), size, rng)
    held = np.zeros(len(rows), dtype=bool)
    for (_, group), t in zip(groups, take, strict=True):
        held[group[:t]] = True
    return np.sort(rows[~held]), np.sort(rows[held])


def hold_out_last(place: np.ndarray, rows: np.ndarray, share: float, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide one client's samples where neighbours share their content: the last ones in their order are held out.

    Those within `gap` places before the first held-out one go to neither part; but a client keeps one at least.

    Args:
        place: position of each sample of the data set, ascending, int [n].
        rows: the client's samples, int [n_k].
        share: of `rows` that is held out, in (0, 1).
        gap: the greatest distance of two samples that share something.
    Returns:
        kept, held: sorted sample numbers.

    >>> kept, held = hold_out_last(np.arange(10), np.arange(10), share=0.2, gap=3)
    >>> kept.tolist(), held.tolist()  # 5, 6, 7 share content with 8
    ([0, 1, 2, 3, 4], [8, 9])
    """
    rows = np.sort(rows)
    size = min(max(round(share * len(rows)), 1), len(rows) - 1) if len(rows) else 0
    if size == 0:
        return rows, rows[:0]
    kept, held = rows[:-size], rows[-size:]
    apart = kept[place[kept] < place[held[0]] - gap]
    return apart if len(apart) else kept[:1], held


def like(
    labels: np.ndarray, clients: Sequence[np.ndarray], other: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Divide another set of samples as this one is divided: client k gets the share n_kc / n_c of its class c.

    Whole numbers by largest remainder within each class, equal remainders in random order, so that no client is served
    last in every class. A class that no client has here is left out.

    Args:
        labels: class of each training sample, int [n].
        clients: each client's training samples.
        other: class of each sample to divide, int [m].
        rng: chooses samples, breaks ties.
    Returns:
        K sorted arrays of positions in `other`; each position once if its class occurs among the clients.

    >>> labels, clients = np.array([0, 0, 0, 1]), [np.array([0, 1]), np.array([2, 3])]
    >>> test = np.repeat([0, 1], [6, 5])
    >>> counts_table(test, like(labels, clients, test, np.random.default_rng(0)), 2).tolist()  # 2 : 1 and 0 : 1
    [[4, 0], [2, 5]]
    """
    n_classes = int(max(labels.max(initial=-1), other.max(initial=-1))) + 1
    table = counts_table(labels, clients, n_classes)
    parts: list[list[np.ndarray]] = [[] for _ in clients]
    for c, group in by_class(other, rng):
        if table[:, c].any():
            ends = np.cumsum(apportion(table[:, c], len(group), rng))
            for k, part in enumerate(np.split(group, ends[:-1])):
                parts[k].append(part)
    empty = np.empty(0, dtype=np.int64)
    return [np.sort(np.concatenate([empty, *part])) for part in parts]


def counts_table(labels: np.ndarray, clients: Sequence[np.ndarray], n_classes: int) -> np.ndarray:
    """Count the samples of each client and class, int64 [K, L].

    Args:
        labels: class of each sample, int [n].
        clients: each client's sample numbers, K arrays.
        n_classes: L.

    >>> counts_table(np.array([0, 0, 1, 2]), [np.array([0, 2]), np.array([1, 3])], 3).tolist()
    [[1, 1, 0], [1, 0, 1]]
    """
    if not len(clients):
        return np.zeros((0, n_classes), dtype=np.int64)
    return np.stack([np.bincount(labels[rows], minlength=n_classes) for rows in clients]).astype(np.int64)
