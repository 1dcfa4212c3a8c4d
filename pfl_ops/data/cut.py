"""Cuts of labelled samples: a smaller data set, a held-out share, a test set divided as the training set was."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from pfl_ops.data.balance import apportion, raise_small, round_on_average, systematic
from pfl_ops.data.by_client import ByClient

RARE = 0.01
"""Share of a client's samples from which on its rare classes, those due less than a sample, are not rounded away."""


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

    Where shares are raised to one sample, all others shrink by one common factor.

    Args:
        labels: class (or any stratum) of each sample, int [n].
        size: samples to keep; n or more: all.
        rng: chooses them.
    Returns:
        sorted positions, int64 [min(size, n)].

    >>> labels = np.repeat([0, 1, 2], [80, 19, 1])
    >>> kept = stratified(labels, 10, np.random.default_rng(0))
    >>> np.bincount(labels[kept]).tolist()  # shares 8, 1.9, 0.1; the last is raised to 1, 9 are left for 80 : 19
    [7, 2, 1]
    """
    if size >= len(labels):
        return np.arange(len(labels))
    groups = by_class(labels, rng)
    counts = np.array([len(group) for _, group in groups])
    take = apportion(counts, size, rng)
    if size >= len(groups) and not take.all():
        take = apportion(raise_small(counts * size / len(labels), 1), size, rng)
    return np.sort(np.concatenate([group[:t] for (_, group), t in zip(groups, take, strict=True)]))


def representative(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return `size` positions whose mean of any quantity estimates the mean over all positions without bias.

    Each class has its exact share size · n_c / n within one sample. Where every share is one sample or more, or all
    classes are equally large, the shares are rounded by largest remainder. Else largest remainders would never draw
    from the small classes. Then each position is drawn with probability size / n: class c gets
    floor(a_c + u) − floor(a_{c−1} + u) samples, where a_c is the sum of the exact shares up to class c and u is one
    random number for all classes (systematic sampling).

    Args:
        labels: class of each sample, int [n].
        size: samples to draw; n or more: all.
        rng: chooses them.
    Returns:
        sorted positions, int64 [min(size, n)].

    >>> labels = np.repeat([0, 1, 2], [80, 19, 1])  # shares 8, 1.9 and 0.1: class 2 is drawn once in ten times
    >>> drawn = [representative(labels, 10, np.random.default_rng(seed)) for seed in range(200)]
    >>> np.mean([np.bincount(labels[rows], minlength=3) for rows in drawn], axis=0).round(1).tolist()
    [8.0, 1.9, 0.1]
    """
    n = len(labels)
    if size >= n:
        return np.arange(n)
    groups = by_class(labels, rng)
    counts = np.array([len(group) for _, group in groups])
    if counts.min() * size >= n or counts.min() == counts.max():
        take = apportion(counts, size, rng)
    else:
        take = systematic(counts, size, rng)
    return np.sort(np.concatenate([group[:t] for (_, group), t in zip(groups, take, strict=True)]))


def hold_out(
    labels: np.ndarray, clients: Sequence[np.ndarray], share: float, generators: Iterable[np.random.Generator]
) -> tuple[ByClient[np.ndarray], ByClient[np.ndarray]]:
    """Divide each client's samples, stratified by class.

    Both parts get at least one sample where there are two; a single sample is kept. A class holds out its first samples
    in random order, as many as `apportion` gives it of the client's. But where the classes of which a client is due
    less than a sample are more than `RARE` of its samples, largest remainders would never hold these out, and each
    class has its share on average, as by `systematic` with the classes in random order.

    Args:
        labels: class of each sample of the data set, int [n].
        clients: each client's samples, K arrays.
        share: of each client's samples that is held out, in (0, 1).
        generators: one a client, from which its order, then its ties and u are drawn (`rng.generators`).
    Returns:
        kept, held: sorted sample numbers by client.

    >>> labels, clients = np.repeat([0, 1], 8), [np.array([0, 1, 2, 3, 8, 9, 10, 11]), np.array([4])]
    >>> kept, held = hold_out(labels, clients, 0.25, [np.random.default_rng(k) for k in range(2)])
    >>> [labels[rows].tolist() for rows in kept], [labels[rows].tolist() for rows in held]
    ([[0, 0, 0, 1, 1, 1], [0]], [[0, 1], []])
    """
    whole = ByClient.of(clients)
    n_classes = int(labels.max(initial=0)) + 1
    cell = whole.owner() * n_classes + labels[whole.samples]  # a client's samples of one class
    names, counts = np.unique(cell, return_counts=True)
    owner = names // n_classes
    order, draws = np.empty(len(cell), np.int64), np.empty(len(names) + len(whole))
    bounds = zip(whole.offsets.tolist(), np.searchsorted(owner, np.arange(len(whole) + 1)).tolist(), strict=True)
    for k, (rng, ((first, first_cell), (last, last_cell))) in enumerate(zip(generators, pairwise(bounds), strict=True)):
        order[first:last] = first + rng.permutation(last - first)
        draws[first_cell + k : last_cell + k + 1] = rng.random(last_cell - first_cell + 1)
    by_cell = ByClient(order[np.argsort(cell[order], kind="stable")], np.append(0, np.cumsum(counts)))
    totals = _held_sizes(whole.sizes, share)
    last_draws = np.cumsum(np.bincount(owner, minlength=len(whole)) + 1) - 1  # of each client
    ties, start = np.delete(draws, last_draws), draws[last_draws]
    rare = np.bincount(owner, counts * (counts * totals[owner] < whole.sizes[owner]), len(whole))
    is_rare = (rare > RARE * whole.sizes)[owner]
    take = np.empty(len(names), np.int64)
    take[is_rare] = _systematic_cells(counts[is_rare], owner[is_rare], totals, ties[is_rare], start)
    take[~is_rare] = _apportion_cells(counts[~is_rare], owner[~is_rare], totals, ties[~is_rare])
    held = np.zeros(len(cell), dtype=bool)
    held[by_cell.samples[by_cell.places() < np.repeat(take, counts)]] = True
    return whole.where(~held).ascending(), whole.where(held).ascending()


def _apportion_cells(counts: np.ndarray, owner: np.ndarray, totals: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Divide totals[k] in proportion to the counts of client k's cells, as `apportion` does for one client.

    Args:
        counts: > 0, int [m]. owner: client of each cell, ascending, int [m]. totals: int [K].
        ties: order of cells with equal remainders, [m].
    """
    exact = counts / np.bincount(owner, counts, len(totals))[owner] * totals[owner]
    units = np.floor(exact).astype(np.int64)
    missing = totals - np.bincount(owner, units, len(totals)).astype(np.int64)
    order = np.lexsort((ties, -np.round(exact - units, 9), owner))
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    units[order[place < missing[owner]]] += 1
    return units


def _systematic_cells(
    counts: np.ndarray, owner: np.ndarray, totals: np.ndarray, ties: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Divide totals[k] in proportion to the counts of client k's cells, as `systematic` does for one client.

    Args:
        counts: > 0, int [m]. owner: client of each cell, ascending, int [m]. totals: int [K].
        ties: order of a client's cells, [m]. start: u of each client, in [0, 1), [K].
    """
    order = np.lexsort((ties, owner))
    sizes = np.bincount(owner, counts, len(totals)).astype(np.int64)
    upto = np.cumsum(counts[order]) - (np.cumsum(sizes) - sizes)[owner]
    u = (start * sizes).astype(np.int64)
    ends, begins = (((to * totals[owner] + u[owner]) // sizes[owner]) for to in (upto, upto - counts[order]))
    units = np.empty(len(counts), np.int64)
    units[order] = ends - begins
    return units


def _held_sizes(sizes: np.ndarray, share: float) -> np.ndarray:
    """Number of samples that each client holds out, int64 [K]: its share, at least one, and one at least is kept."""
    return np.maximum(np.minimum(np.maximum(np.rint(share * sizes).astype(np.int64), 1), sizes - 1), 0)


def hold_out_last(
    place: np.ndarray, clients: Sequence[np.ndarray], share: float, gap: int
) -> tuple[ByClient[np.ndarray], ByClient[np.ndarray]]:
    """Divide clients' samples where neighbours share their content: each client's last ones are held out.

    Those within `gap` places before the first held-out one go to neither part; but a client keeps one at least.

    Args:
        place: position of each sample of the data set, ascending, int [n].
        clients: each client's samples, K arrays.
        share: of each client's samples that is held out, in (0, 1).
        gap: the greatest distance of two samples that share something.
    Returns:
        kept, held: sorted sample numbers by client.

    >>> kept, held = hold_out_last(np.arange(10), [np.arange(10)], share=0.2, gap=3)
    >>> kept[0].tolist(), held[0].tolist()  # 5, 6, 7 share content with 8
    ([0, 1, 2, 3, 4], [8, 9])
    """
    whole = ByClient.of(clients).ascending()
    sizes = _held_sizes(whole.sizes, share)
    repeated = np.repeat(sizes, whole.sizes)
    nth = whole.places()
    held = nth >= np.repeat(whole.sizes, whole.sizes) - repeated
    first = np.minimum(np.repeat(whole.offsets[1:] - sizes, whole.sizes), len(held) - 1)  # of the held-out samples
    is_apart = (place[whole.samples] < place[whole.samples[first]] - gap) | (repeated == 0)
    return whole.where(~held & (is_apart | (nth == 0))), whole.where(held)


def hold_out_ends(
    place: np.ndarray, source: np.ndarray, clients: Sequence[np.ndarray], share: float, gap: int
) -> tuple[ByClient[np.ndarray], ByClient[np.ndarray]]:
    """Divide clients' samples where neighbours of one source share their content, whatever client they belong to.

    The last samples of each source are held out as by `hold_out_last`, and each client keeps and holds out its own ones
    of both parts. A client that is left without a sample to keep keeps its first one.

    Args:
        place: position of each sample of the data set, ascending, int [n].
        source: the text of each sample, int [n].
        clients: each client's samples, K arrays.
        share: of each source's samples that is held out, in (0, 1); of those that belong to clients.
        gap: the greatest distance of two samples that share something.
    Returns:
        kept, held: sorted sample numbers by client.

    >>> even, odd = np.arange(0, 10, 2), np.arange(1, 10, 2)
    >>> kept, held = hold_out_ends(np.arange(10), np.zeros(10, np.int64), [even, odd], share=0.2, gap=3)
    >>> [rows.tolist() for rows in kept], [rows.tolist() for rows in held]  # 5, 6, 7 share content with 8
    ([[0, 2, 4], [1, 3]], [[8], [9]])
    """
    whole = ByClient.of(clients).ascending()
    owned = np.sort(whole.samples)
    _, number = np.unique(source[owned], return_inverse=True)
    ends = ByClient.of_owners(number, int(number.max(initial=-1)) + 1).numbered(owned)
    parts = np.zeros(len(place), np.int8)
    for part, rows in enumerate(hold_out_last(place, ends, share, gap), start=1):
        parts[rows.samples] = part
    of_sample = parts[whole.samples]
    is_left_out = (whole.where(of_sample == 1).sizes == 0) & (whole.sizes > 0)
    of_sample[whole.offsets[:-1][is_left_out]] = 1
    return whole.where(of_sample == 1), whole.where(of_sample == 2)


def like(
    labels: np.ndarray, clients: Sequence[np.ndarray], other: np.ndarray, rng: np.random.Generator
) -> ByClient[np.ndarray]:
    """Divide another set of samples as this one is divided: client k gets the share n_kc / n_c of its class c.

    Whole numbers within each class by largest remainder, equal remainders in random order, so that no client is served
    last in every class. But largest remainders would never test clients on classes of which they are due less than a
    sample. Where these are more than `RARE` of a client's test samples, each client gets its share of such a class on
    average (`round_on_average`). A class that no client has here is left out.

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
    groups = by_class(other, rng)
    units = _shared(table, np.bincount(other, minlength=n_classes) * table.any(0), rng)
    owner = np.full(len(other), -1)
    for c, group in groups:
        if table[:, c].any():
            owner[group] = np.repeat(np.arange(len(table)), units[:, c])
    return ByClient.of_owners(owner, len(table))


def _shared(table: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide totals [L] in proportion to the columns of a table of clients and classes, int [K, L]; int64 [K, L]."""
    due = table * totals / np.maximum(table.sum(0), 1)
    small = np.where(due < 1, due, 0)
    has_rare = small.sum(1) > RARE * due.sum(1)
    is_on_average = small[has_rare].any(0)
    units = np.zeros_like(table)
    for c in np.flatnonzero(~is_on_average & (totals > 0)):
        units[:, c] = apportion(table[:, c], int(totals[c]), rng)
    if is_on_average.any():
        units[:, is_on_average] = round_on_average(due[:, is_on_average], rng)
    return units


def counts_table(labels: np.ndarray, clients: Sequence[np.ndarray], n_classes: int) -> np.ndarray:
    """Count the samples of each client and class, int64 [K, L].

    Args:
        labels: class of each sample, int [n].
        clients: each client's sample numbers, K arrays.
        n_classes: L.

    >>> counts_table(np.array([0, 0, 1, 2]), [np.array([0, 2]), np.array([1, 3])], 3).tolist()
    [[1, 1, 0], [1, 0, 1]]
    """
    return ByClient.of(clients).class_counts(labels, n_classes)
