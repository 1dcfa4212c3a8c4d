"""Cuts: sizes, class shares, nothing twice, nobody forgotten."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops import rng
from pfl_ops.data import cut
from pfl_ops.data.balance import apportion, raise_small, round_on_average

few = settings(max_examples=60, derandomize=True, deadline=None)
labels_of = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(np.array)


@few
@given(labels_of, st.integers(1, 250), st.integers(0, 99))
def test_stratified(labels: np.ndarray, size: int, seed: int) -> None:
    rows = cut.stratified(labels, size, np.random.default_rng(seed))
    assert len(rows) == min(size, len(labels)) == len(set(rows.tolist()))
    assert (np.diff(rows) > 0).all()
    before, after = np.bincount(labels, minlength=7), np.bincount(labels[rows], minlength=7)
    occurring = before > 0
    if size >= occurring.sum():
        assert (after[occurring] >= 1).all()
        shares = before * len(rows) / len(labels)
        raised = np.zeros(7)
        raised[occurring] = raise_small(shares[occurring], 1)
        assert min(np.abs(after - shares).max(), np.abs(after - raised).max()) < 1


def test_stratified_shrinks_large_strata_by_one_factor() -> None:
    """Strata of 600, 300 and 60 times 1; 120 of the 960 samples. The shares are 75, 37.5 and 60 times 0.125.

    60 strata take a sample each. The other 60 samples are shared 2 : 1, as the strata are: 40 and 20. Raised at the
    cost of the largest alone, both would have 30.
    """
    labels = np.append(np.repeat([0, 1], [600, 300]), np.arange(2, 62))
    rows = cut.stratified(labels, 120, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [40, 20, *[1] * 60]


@few
@given(labels_of, st.integers(1, 250), st.integers(0, 99))
def test_representative_gives_each_class_its_share(labels: np.ndarray, size: int, seed: int) -> None:
    """Within one sample; and by largest remainder, as before, where every share is one sample or more."""
    rows = cut.representative(labels, size, np.random.default_rng(seed))
    assert len(rows) == min(size, len(labels)) == len(set(rows.tolist())) and (np.diff(rows) > 0).all()
    before, after = np.bincount(labels, minlength=7), np.bincount(labels[rows], minlength=7)
    exact = before * len(rows) / len(labels)
    assert np.abs(after - exact).max() < 1
    if size < len(labels) and exact[before > 0].min() >= 1:
        draws = np.random.default_rng(seed)
        groups = cut.by_class(labels, draws)
        take = apportion(np.array([len(group) for _, group in groups]), size, draws)
        assert rows.tolist() == sorted(row for (_, group), t in zip(groups, take, strict=True) for row in group[:t])


def test_representative_with_rare_classes_is_unbiased() -> None:
    """900 samples of class 0 and 50 classes of two; a model that is right on the rare classes alone is right on 0.1.

    100 samples: class 0 has the share 90, the others 0.2 each, 10 together. One sample for each class at least would
    be 50 of them, a score of 0.5. Each of the 1000 samples is drawn in a tenth of 400 draws, 40 +- 6 times.
    """
    labels = np.append(np.zeros(900, np.int64), np.repeat(np.arange(1, 51), 2))
    drawn = [cut.representative(labels, 100, np.random.default_rng(seed)) for seed in range(400)]
    assert {float((labels[rows] > 0).mean()) for rows in drawn} == {0.1}
    times = np.bincount(np.concatenate(drawn), minlength=1000)
    assert times.sum() == 40_000 and times.min() > 40 - 5 * 6 and times.max() < 40 + 5 * 6


def test_representative_of_fewer_samples_than_classes_is_unbiased() -> None:
    """Classes of 6, 3 and 1 and one sample: drawn with 0.6, 0.3 and 0.1; the largest remainder is always class 0's."""
    labels = np.repeat([0, 1, 2], [6, 3, 1])
    drawn = [labels[cut.representative(labels, 1, np.random.default_rng(seed))][0] for seed in range(1000)]
    assert np.bincount(drawn) / 1000 == pytest.approx([0.6, 0.3, 0.1], abs=0.05)


def test_representative_of_even_classes_draws_what_it_drew() -> None:
    """The digest is of the code before rare classes were drawn by chance: MNIST's test set, and 100 even classes."""
    mnist = np.repeat(np.arange(10), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    found = hashlib.sha256()
    for labels, sizes in ((mnist, (100, 200, 1000)), (np.arange(2400) % 100, (30, 100, 200, 1000))):
        for size in sizes:
            found.update(cut.representative(labels, size, rng.generator(0, "evaluation/subset")).tobytes())
    assert found.hexdigest() == "a4f13f3deb6ca573daa1aba6c2a8c846281c8f86636b0133d82afa054492166f"


@few
@given(labels_of, st.floats(0.01, 0.99), st.integers(0, 99))
def test_hold_out(labels: np.ndarray, share: float, seed: int) -> None:
    rows = np.arange(0, len(labels), 2)  # a client owns every other sample
    (kept,), (held,) = cut.hold_out(labels, [rows], share, [np.random.default_rng(seed)])
    assert sorted([*kept.tolist(), *held.tolist()]) == rows.tolist()
    if len(rows) >= 2:
        assert len(held) >= 1 and len(kept) >= 1
        assert abs(len(held) - share * len(rows)) <= 1
        mine, out = np.bincount(labels[rows], minlength=7), np.bincount(labels[held], minlength=7)
        assert np.abs(out - mine * len(held) / len(rows)).max() < 1
    else:
        assert len(held) == 0


def clients_of(labels: np.ndarray, k: int, seed: int) -> list[np.ndarray]:
    """The samples of k clients, some of whom may have none or one; samples of client k + 1 belong to no client."""
    owner = np.random.default_rng(seed).integers(0, k + 1, len(labels))
    return [np.flatnonzero(owner == i) for i in range(k)]


def held_of_one(labels: np.ndarray, rows: np.ndarray, share: float, rng: np.random.Generator) -> list[int]:
    """The definition for one client: its order is drawn first, then the ties of its classes and u.

    Where classes that are due less than a sample are at most 1 % of its samples, as many as by largest remainder. Else
    the classes lie one behind the other in the order of their ties, each as long as it is due; a mark stands at each
    whole number, shifted by u, and a class has as many samples as marks.
    """
    size = min(max(round(share * len(rows)), 1), len(rows) - 1) if len(rows) else 0
    if not size:
        return []
    groups = cut.by_class(labels[rows], rng)
    counts = [len(group) for _, group in groups]
    *ties, u = rng.random(len(groups) + 1).tolist()
    take = [0] * len(groups)
    if sum(count for count in counts if count * size < len(rows)) <= 0.01 * len(rows):
        exact = [Fraction(count * size, len(rows)) for count in counts]
        take = [int(part) for part in exact]
        by_remainder = sorted(range(len(groups)), key=lambda i: (int(exact[i]) - exact[i], ties[i]))
        for i in by_remainder[: size - sum(take)]:
            take[i] += 1
    else:
        shift, at = Fraction(int(u * len(rows)), len(rows)), Fraction(0)
        marks = [j - shift for j in range(1, size + 1)]
        for i in sorted(range(len(groups)), key=lambda i: ties[i]):
            end = at + Fraction(counts[i] * size, len(rows))
            take[i] = sum(at < mark <= end for mark in marks)
            at = end
        assert sum(take) == size
    return sorted(int(row) for (_, group), t in zip(groups, take, strict=True) for row in rows[group[:t]])


@few
@given(labels_of, st.integers(1, 30), st.floats(0.01, 0.99), st.integers(0, 99))
def test_hold_out_of_all_is_that_of_each(labels: np.ndarray, k: int, share: float, seed: int) -> None:
    clients = clients_of(labels, k, seed)
    kept, held = cut.hold_out(labels, clients, share, rng.generators(seed, "validation", numbers=range(k)))
    for i, rows in enumerate(clients):
        expected = held_of_one(labels, rows, share, rng.generator(seed, "validation", i))
        assert held[i].tolist() == expected and kept[i].tolist() == np.setdiff1d(rows, expected).tolist()


@few
@given(labels_of, st.integers(1, 30), st.floats(0.01, 0.99), st.integers(0, 9), st.integers(0, 99))
def test_hold_out_last_of_all_is_that_of_each(labels: np.ndarray, k: int, share: float, gap: int, seed: int) -> None:
    """The definition for one client: its last samples, and those near them are dropped, but for its first one."""
    place, clients = np.arange(len(labels)) * 2, clients_of(labels, k, seed)
    kept, held = cut.hold_out_last(place, clients, share, gap)
    for i, rows in enumerate(clients):
        size = min(max(round(share * len(rows)), 1), len(rows) - 1) if len(rows) else 0
        first, last = rows[: len(rows) - size], rows[len(rows) - size :]
        apart = first[place[first] < place[last[0]] - gap] if size else first
        assert kept[i].tolist() == (apart if len(apart) else first[:1]).tolist()
        assert held[i].tolist() == last.tolist()


@few
@given(labels_of, st.integers(1, 30), st.floats(0.01, 0.99), st.integers(0, 9), st.integers(0, 99))
def test_hold_out_ends_of_sources_is_hold_out_last(
    labels: np.ndarray, k: int, share: float, gap: int, seed: int
) -> None:
    """It is `hold_out_last` where clients are the sources, or some of them."""
    place, clients = np.arange(len(labels)) * 2, clients_of(labels, k, seed)
    source = np.full(len(labels), k)
    for i, rows in enumerate(clients):
        source[rows] = i
    found, expected = (
        cut.hold_out_ends(place, source, clients, share, gap),
        cut.hold_out_last(place, clients, share, gap),
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert [rows.tolist() for rows in mine] == [rows.tolist() for rows in theirs]


def test_hold_out_ends_leaves_each_client_a_sample() -> None:
    """One text of ten samples: 8 and 9 are held out, 5 to 7 overlap with 8. Two clients have none of 0 to 4."""
    clients = [np.array([8]), np.array([9, 5]), np.array([0, 1, 2, 3, 4, 6, 7])]
    kept, held = cut.hold_out_ends(np.arange(10), np.zeros(10, np.int64), clients, 0.2, 3)
    assert [rows.tolist() for rows in kept] == [[8], [5], [0, 1, 2, 3, 4]]
    assert [rows.tolist() for rows in held] == [[], [9], []]


@few
@given(labels_of, labels_of, st.integers(1, 30), st.integers(0, 99))
def test_like_deals_each_class_out_in_order(train: np.ndarray, test: np.ndarray, k: int, seed: int) -> None:
    """The definition: of each class in random order, the next samples to each client in turn.

    Shares are by largest remainder, but of classes of which a client is due less than a sample, where these are more
    than 1 % of what it is due.
    """
    clients = clients_of(train, k, seed)
    table, draws = cut.counts_table(train, clients, 7), np.random.default_rng(seed)
    groups, due = dict(cut.by_class(test, draws)), np.zeros(table.shape)
    for c, group in groups.items():
        if table[:, c].any():
            due[:, c] = [float(Fraction(int(n) * len(group), int(table[:, c].sum()))) for n in table[:, c]]
    rare = [[c for c in range(7) if 0 < row[c] < 1] for row in due]
    on_average = sorted({c for row, own in zip(due, rare, strict=True) if sum(row[own]) > 0.01 * sum(row) for c in own})
    take = np.zeros(table.shape, np.int64)
    for c in groups:
        if c not in on_average and table[:, c].any():
            take[:, c] = apportion(table[:, c], len(groups[c]), draws)
    if on_average:
        take[:, on_average] = round_on_average(due[:, on_average], draws)
    expected: list[list[int]] = [[] for _ in clients]
    for c, group in groups.items():
        for own, part in zip(expected, np.split(group, np.cumsum(take[:, c])), strict=False):
            own.extend(part.tolist())
    found = cut.like(train, clients, test, np.random.default_rng(seed))
    assert [rows.tolist() for rows in found] == [sorted(own) for own in expected]


def test_rare_classes_of_clients_are_tested_on_average() -> None:
    """Client k has 9 samples of class k and 1 of each other. Of two test samples a class it is due 1.5 of its own and
    1/6 of each other, which largest remainders never give it. The mean of 600 draws is within 5 deviations of at most
    0.5 / sqrt(600)."""
    y = np.repeat(np.arange(4), 12)
    owner = np.concatenate([[k] * 9 + [j for j in range(4) if j != k] for k in range(4)])
    clients, test = [np.flatnonzero(owner == k) for k in range(4)], np.repeat(np.arange(4), 2)
    draws = [cut.like(y, clients, test, np.random.default_rng(seed)) for seed in range(600)]
    mean = np.mean([cut.counts_table(test, parts, 4) for parts in draws], axis=0)
    assert np.abs(mean - (np.eye(4) * (1.5 - 1 / 6) + 1 / 6)).max() < 0.1


def test_rare_classes_of_clients_are_held_out_on_average() -> None:
    """A client with 40, 3, 3, 2, 1 and 1 samples holds out a fifth: 8, 0.6, 0.6, 0.4, 0.2 and 0.2, ten in each draw."""
    labels = np.repeat(np.arange(6), [40, 3, 3, 2, 1, 1])
    draws = [cut.hold_out(labels, [np.arange(50)], 0.2, [np.random.default_rng(seed)])[1][0] for seed in range(600)]
    counts = np.array([np.bincount(labels[rows], minlength=6) for rows in draws])
    assert (counts.sum(1) == 10).all()
    assert np.abs(counts.mean(0) - np.array([8, 0.6, 0.6, 0.4, 0.2, 0.2])).max() < 0.1


def test_classes_that_all_clients_are_due_are_divided_as_before() -> None:
    """The digests are of the code that always rounded by largest remainder: ten clients alike."""
    y, test = np.arange(3000) % 10, np.repeat(np.arange(10), 101)
    clients = [np.flatnonzero(np.arange(3000) // 10 % 10 == k) for k in range(10)]
    found = hashlib.sha256()
    for rows in cut.like(y, clients, test, rng.generator(0, "test set")):
        found.update(rows.tobytes())
    for rows in cut.hold_out(y, clients, 0.21, rng.generators(0, "validation", numbers=range(10)))[1]:
        found.update(rows.tobytes())
    assert found.hexdigest() == "672d10058e097c8602da9bb9b2ee0902845aef36e634aaee561ae3e1ac129d1d"


@few
@given(labels_of, labels_of, st.integers(1, 9), st.integers(0, 99))
def test_like(train: np.ndarray, test: np.ndarray, k: int, seed: int) -> None:
    """Client k gets its training share of each test class within one sample; a class nobody trains on is left out."""
    draws = np.random.default_rng(seed)
    owner = draws.integers(0, k, len(train))
    clients = [np.flatnonzero(owner == i) for i in range(k)]
    parts = cut.like(train, clients, test, draws)
    every = np.concatenate(parts)
    known = np.isin(test, np.unique(train))
    assert sorted(every.tolist()) == np.flatnonzero(known).tolist()
    have = cut.counts_table(train, clients, 7)
    got = cut.counts_table(test, parts, 7)
    for c in np.unique(test[known]):
        exact = have[:, c] / have[:, c].sum() * (test == c).sum()
        assert np.abs(got[:, c] - exact).max() < 1


def test_like_by_hand() -> None:
    """Class 0: 3 and 1 of 4 training samples, 8 test samples -> 6 and 2. Class 1: client 1 alone -> all 5."""
    train = np.array([0, 0, 0, 0, 1, 1])
    test = np.array([0] * 8 + [1] * 5)
    first, second = cut.like(train, [np.array([0, 1, 2]), np.array([3, 4, 5])], test, np.random.default_rng(0))
    assert np.bincount(test[first], minlength=2).tolist() == [6, 0]
    assert np.bincount(test[second], minlength=2).tolist() == [2, 5]


def test_equal_clients_get_about_equal_test_sets() -> None:
    """Ten equal clients, five test samples in each of ten classes: everyone is due half a sample of a class."""
    train = np.repeat(np.arange(10), 10)
    clients = [np.arange(k, 100, 10) for k in range(10)]
    sizes = [len(part) for part in cut.like(train, clients, np.repeat(np.arange(10), 5), np.random.default_rng(0))]
    assert sum(sizes) == 50 and {4, 5, 6} >= set(sizes)


def test_counts_table() -> None:
    table = cut.counts_table(np.array([0, 2, 2, 1]), [np.array([0, 1, 2]), np.array([3])], 4)
    assert table.tolist() == [[1, 0, 2, 0], [0, 1, 0, 0]]
    assert cut.counts_table(np.array([0]), [], 3).shape == (0, 3)
