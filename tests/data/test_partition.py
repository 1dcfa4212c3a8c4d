"""Every scheme's common promises, the schemes' own, and what is refused."""

import hashlib
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops.data import proportions
from pfl_ops.data.cut import counts_table
from pfl_ops.data.partition import PARTITIONS, PartitionError, Scheme, content_hash, parse, partition
from pfl_ops.data.whole_classes import _pieces, _sure_pieces
from pfl_ops.errors import PflOpsError

few = settings(max_examples=40, derandomize=True, deadline=None)
DRAWN = [name for name in PARTITIONS.names() if name not in ("natural", "file")]
ALPHAS = (0.01, 0.1, 1.0, 100.0)
OPTIONS: dict[str, Callable[[st.DrawFn], dict[str, Any]]] = {
    "iid": lambda draw: {"stratified": draw(st.booleans())},
    "path": lambda draw: {"classes_per_client": draw(st.integers(1, 3))},
    "pat": lambda draw: {"classes_per_client": draw(st.integers(1, 3))},
    "shards": lambda draw: {"classes_per_client": draw(st.integers(1, 3))},
    "sorted_shards": lambda draw: {"shards_per_client": draw(st.integers(1, 3))},
    "ls": lambda draw: {"alpha": draw(st.sampled_from(ALPHAS))},
    "qs": lambda draw: {"alpha": draw(st.sampled_from(ALPHAS)), "min_size": draw(st.integers(1, 3))},
    "lsqs": lambda draw: {"alpha": draw(st.sampled_from(ALPHAS)), "min_size": draw(st.integers(1, 3))},
    "dirichlet": lambda draw: {
        "alpha": draw(st.sampled_from(ALPHAS)),
        "min_size": draw(st.integers(1, 3)),
        **draw(st.sampled_from([{"per": "client"}, {"cap": True}, {}])),
    },
    "zipf": lambda draw: {"s": draw(st.sampled_from([0, 0.5, 2])), "alpha": draw(st.sampled_from([0.0, *ALPHAS]))},
}


def scheme(kind: str, **options: Any) -> Scheme:
    return PARTITIONS.get(kind)(**options)


def split(kind: str, labels: np.ndarray, seed: int = 0, **options: Any) -> list[np.ndarray]:
    return scheme(kind, **options).indices(labels, np.random.default_rng(seed))


def sizes(clients: list[np.ndarray]) -> np.ndarray:
    return np.array([len(rows) for rows in clients])


@st.composite
def requests(draw: st.DrawFn, kind: str) -> tuple[np.ndarray, dict[str, Any], int]:
    """Labels with uneven classes, some with one sample; K from 1 to n; the scheme's options."""
    counts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    seed = draw(st.integers(0, 1000))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)) * 2, counts))  # with gaps
    k = draw(st.one_of(st.integers(1, min(12, len(labels))), st.just(len(labels))))
    return labels, {"clients": k, **OPTIONS[kind](draw)}, seed


@pytest.mark.parametrize("kind", DRAWN)
@few
@given(data=st.data())
def test_every_sample_once_or_a_refusal_with_numbers(kind: str, data: st.DataObject) -> None:
    labels, options, seed = data.draw(requests(kind))
    try:
        clients = split(kind, labels, seed, **options)
    except PartitionError as error:
        assert any(character.isdigit() for character in str(error)) and "\n" not in str(error)
        assert kind in str(error) and "{" not in str(error)
        return
    assert len(clients) == options["clients"]
    assert sizes(clients).min() >= options.get("min_size", 1)
    assert sorted(np.concatenate(clients).tolist()) == list(range(len(labels)))
    assert all((np.diff(rows) > 0).all() for rows in clients)
    again = split(kind, labels, seed, **options)
    assert content_hash(clients) == content_hash(again)


@pytest.mark.parametrize("kind", DRAWN)
def test_edges(kind: str) -> None:
    """One client; as many clients as samples; one class; a class with one sample."""
    least = {"min_size": 1} if "min_size" in PARTITIONS.get(kind).model_fields else {}
    fields = PARTITIONS.get(kind).model_fields
    one = {name: 1 for name in ("classes_per_client", "shards_per_client") if name in fields}
    labels = np.repeat(np.arange(5), 10)
    all_classes = dict.fromkeys(one, 5)
    assert [rows.tolist() for rows in split(kind, labels, clients=1, **least, **all_classes)] == [list(range(50))]
    equal = {"s": 0} if kind == "zipf" else {}
    assert sizes(split(kind, labels, clients=50, **least, **one, **equal)).tolist() == [1] * 50
    single = split(kind, np.zeros(40, int), clients=4, **least, **one)
    assert sizes(single).sum() == 40
    rare = np.append(np.zeros(39, int), 1)
    assert sizes(split(kind, rare, clients=3, **least, **one)).sum() == 40


@pytest.mark.parametrize("kind", DRAWN)
def test_another_seed_another_partition(kind: str) -> None:
    labels = np.repeat(np.arange(10), 60)
    assert content_hash(split(kind, labels, 0)) == content_hash(split(kind, labels, 0))
    assert content_hash(split(kind, labels, 0)) != content_hash(split(kind, labels, 1))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("iid", {}, "f0991b7867476115"),
        ("iid", {"stratified": False}, "70c2dbdd424bfdee"),
        ("path", {"classes_per_client": 3}, "e8c273d02ce0395f"),
        ("pat", {}, "2011506406794cd8"),
        ("shards", {}, "669b87fd5e6d259b"),
        ("sorted_shards", {}, "2741d8611a45362b"),
        ("qs", {"min_size": 2}, "7c92436b09368515"),
        ("dirichlet", {"alpha": 0.3, "min_size": 2}, "d79afcd325f02eb9"),
        ("dirichlet", {"cap": True, "min_size": 1}, "e86652947f7aeb58"),
        ("dirichlet", {"per": "client", "min_size": 1}, "0be8e686e0842771"),
        ("zipf", {"alpha": 0.0, "s": 0.3}, "c421e355e5e0ecb8"),
    ],
)
def test_draws_are_those_of_the_loops_over_clients(kind: str, options: dict[str, Any], expected: str) -> None:
    """Hashes of the clients that the schemes drew while they looped over clients: `code.former.EQUAL` rests on it.

    Without schemes whose matrix product may round differently on another processor.
    """
    found = hashlib.sha256()
    for k in (7, 300):
        for seed in range(3):
            labels = np.random.default_rng(seed).choice(6, 3000, p=[0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
            found.update(content_hash(split(kind, labels, seed, clients=k, **options)).encode())
    assert found.hexdigest()[:16] == expected


@pytest.mark.parametrize("counts", [[5, 5, 5], [1, 40, 7], [30, 2, 2, 2], [9]])
@pytest.mark.parametrize("n_clients", [1, 6, 40])
def test_pieces_are_those_of_one_cut_after_another(counts: list[int], n_clients: int) -> None:
    """The definition: one more piece for the class whose pieces are largest, the first of equals; up to all samples."""
    share, most = np.array(counts, dtype=float), np.minimum(counts, n_clients)
    for total in range(len(counts), int(most.sum()) + 1):
        expected = np.ones(len(counts), dtype=np.int64)
        for _ in range(total - len(counts)):
            expected[np.argmax(np.where(expected < most, share / expected, -1.0))] += 1
        assert _pieces(share, most, total).tolist() == expected.tolist()


def test_sure_pieces_leave_few_cuts() -> None:
    """Of 2,000,000 pieces of ten classes, equal in pairs, at most two a class are left to be cut one after another."""
    share = np.repeat([5.0, 7.0, 9.0, 11.0, 13.0], 2)
    most = np.full(10, 1_000_000)
    assert 0 <= 2_000_000 - _sure_pieces(share, most, 2_000_000).sum() <= 20


@pytest.mark.parametrize("kind", ["qs", "dirichlet"])
def test_a_draw_takes_memory_for_clients_not_for_their_square(kind: str) -> None:
    """A square of 4,000 clients has 122 MiB; clients by classes 0.3 MiB, the partition 0.2."""
    labels = np.random.default_rng(0).integers(0, 10, 16_000)
    tracemalloc.start()
    try:
        split(kind, labels, clients=4_000, min_size=1)
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["ls", "qs", "lsqs", "dirichlet", "zipf"])
def test_the_largest_alpha_gives_equal_shares(kind: str) -> None:
    """Beyond it the sum of a draw overflows: α = 1e308 gave one client nearly all, as at a tiny α."""
    labels = np.repeat(np.arange(3), 40)
    options = {"s": 0} if kind == "zipf" else {}
    largest = split(kind, labels, clients=4, alpha=proportions.LARGEST_ALPHA, **options)
    assert counts_table(labels, largest, 3).tolist() == [[10, 10, 10]] * 4
    with pytest.raises(ValueError, match="less than or equal to 1000"):
        scheme(kind, alpha=2 * proportions.LARGEST_ALPHA)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(("k", "alpha"), [(1000, 1.0), (1000, 0.01), (10, 0.01)])
@pytest.mark.timeout(60)
def test_a_draw_ends_on_mnists_labels(kind: str, k: int, alpha: float) -> None:
    labels = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    options = {"alpha": alpha} if "alpha" in PARTITIONS.get(kind).model_fields else {}
    assert sizes(split(kind, labels, clients=k, **options)).sum() == 60_000


# --- each scheme's own promise


@few
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 10), st.integers(0, 99))
def test_iid(counts: list[int], k: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    k = min(k, len(labels))
    clients = split("iid", labels, seed, clients=k)
    assert np.ptp(sizes(clients)) <= 1
    exact = np.outer(sizes(clients), counts) / len(labels)
    assert np.abs(counts_table(labels, clients, len(counts)) - exact).max() < 1 + 1e-9
    assert np.ptp(sizes(split("iid", labels, seed, clients=k, stratified=False))) <= 1


@few
@given(st.integers(5, 30), st.integers(1, 5), st.integers(0, 99))
def test_path_uses_classes_evenly(k: int, per_client: int, seed: int) -> None:
    labels = np.repeat(np.arange(5), [100, 120, 140, 160, 180])
    table = counts_table(labels, split("path", labels, seed, clients=k, classes_per_client=per_client), 5)
    assert ((table > 0).sum(1) == per_client).all()
    assert np.ptp((table > 0).sum(0)) <= 1
    for column in table.T:  # no client gets the remainder
        assert np.ptp(column[column > 0]) <= 1


def test_path_is_random_and_covers_all_pairs() -> None:
    labels = np.repeat(np.arange(5), 400)
    pairs: set[tuple[int, ...]] = set()
    for seed in range(40):
        table = counts_table(labels, split("path", labels, seed, clients=5), 5)
        pairs |= {tuple(np.flatnonzero(row).tolist()) for row in table}
    assert len(pairs) == 10


def test_ls_by_marginals() -> None:
    labels = np.repeat(np.arange(4), [50, 100, 150, 300])
    clients = split("ls", labels, clients=6, alpha=0.3)
    table = counts_table(labels, clients, 4)
    assert table.sum(1).tolist() == [100] * 6
    assert (table.max(1) > 60).any()  # skewed
    smooth = counts_table(labels, split("ls", labels, clients=6, alpha=1e6), 4)
    assert np.abs(smooth - np.outer([100] * 6, [50, 100, 150, 300]) / 600).max() <= 2


def test_qs_has_one_mix_and_many_sizes() -> None:
    labels = np.repeat(np.arange(4), 250)
    clients = split("qs", labels, clients=20, alpha=0.5)
    assert sizes(clients).min() == 10 and sizes(clients).max() > 100
    table = counts_table(labels, clients, 4)
    assert np.abs(table - sizes(clients)[:, None] / 4).max() < 1 + 1e-9


def test_lsqs_has_the_sizes_of_qs_and_other_mixes() -> None:
    labels = np.repeat(np.arange(4), 250)
    # both draw their sizes first
    rng = np.random.default_rng(3), np.random.default_rng(3)
    quantity, both = (scheme(kind, clients=12).indices(labels, g) for kind, g in zip(("qs", "lsqs"), rng, strict=True))
    assert sizes(quantity).tolist() == sizes(both).tolist()
    table = counts_table(labels, both, 4)
    assert np.abs(table - sizes(both)[:, None] / 4).max() > 10


def test_dirichlet_cap_stops_a_full_client() -> None:
    """Before its last class a capped client had less than n/K, so none has more than n/K and one class."""
    labels = np.repeat(np.arange(10), 100)
    capped = split("dirichlet", labels, clients=20, alpha=0.05, cap=True, min_size=1)
    free = split("dirichlet", labels, clients=20, alpha=0.05, min_size=1)
    assert sizes(capped).max() < 50 + 100
    assert sizes(free).max() > 150
    with pytest.raises(PartitionError, match=r"cap only with per: class"):
        split("dirichlet", labels, clients=20, per="client", cap=True)


def test_dirichlet_per_client_has_equal_sizes() -> None:
    labels = np.repeat(np.arange(10), 100)
    clients = split("dirichlet", labels, clients=20, alpha=0.1, per="client")
    assert sizes(clients).tolist() == [50] * 20
    assert (counts_table(labels, clients, 10).max(1) > 25).mean() > 0.5


def test_dirichlet_feeds_the_small_from_the_large() -> None:
    labels = np.repeat(np.arange(3), 100)
    hungry = split("dirichlet", labels, 7, clients=30, alpha=0.01, min_size=1)
    fed = split("dirichlet", labels, 7, clients=30, alpha=0.01, min_size=8)
    assert sizes(fed).min() == 8 and sizes(hungry).min() == 1
    assert np.argmax(sizes(fed)) == np.argmax(sizes(hungry))


def test_pat_amounts() -> None:
    """All clients of a class but one have 0.1 to 1 of its even share; that one has the rest."""
    labels = np.repeat(np.arange(5), 1000)
    table = counts_table(labels, split("pat", labels, clients=10), 5)
    assert ((table > 0).sum(1) == 2).all()
    for column in table.T:
        held = np.sort(column[column > 0])
        assert len(held) == 4 and held[0] >= 25
        assert (held[:-1] <= 250).all() and held[-1] >= 250
    assert sizes(split("pat", labels, clients=10)).std() > 50


def test_shards_in_the_papers_case_are_all_equal() -> None:
    """CIFAR-100's counts by ten: 100 classes of 50, 100 clients of 5 labels: 10 samples of each."""
    labels = np.repeat(np.arange(100), 50)
    table = counts_table(labels, split("shards", labels, clients=100, classes_per_client=5), 100)
    assert set(table[table > 0].tolist()) == {10}
    assert table.sum(1).tolist() == [50] * 100


def test_shards_follow_unequal_classes() -> None:
    labels = np.repeat(np.arange(3), [100, 200, 700])
    table = counts_table(labels, split("shards", labels, clients=20, classes_per_client=1), 3)
    assert (table > 0).sum(0).tolist() == [2, 4, 14]
    assert table.sum(1).tolist() == [50] * 20


@few
@given(st.integers(1, 40), st.floats(0, 1.2), st.sampled_from([0.05, 1.0]), st.integers(0, 99))
def test_zipf_sizes(k: int, s: float, alpha: float, seed: int) -> None:
    labels = np.repeat(np.arange(6), 100)
    clients = split("zipf", labels, seed, clients=k, s=s, alpha=alpha)
    law = np.arange(1, k + 1) ** -s
    assert np.abs(np.sort(sizes(clients))[::-1] - law / law.sum() * 600).max() < 1 + 1e-9
    if s == 0:
        assert np.ptp(sizes(clients)) <= 1


@few
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 4), st.integers(0, 99))
def test_sorted_shards_are_neighbours_in_the_order_of_classes(counts: list[int], k: int, s: int, seed: int) -> None:
    """A client has S shards; a shard of at most m samples holds at most m samples' worth of neighbouring classes.

    Sizes of K·S shards of n samples are equal within one, so a client's are equal within S.
    """
    labels = np.repeat(np.arange(len(counts)), counts)
    if k * s > len(labels):
        with pytest.raises(PartitionError, match=r"needs clients \* shards_per_client <= "):
            split("sorted_shards", labels, seed, clients=k, shards_per_client=s)
        return
    clients = split("sorted_shards", labels, seed, clients=k, shards_per_client=s)
    small, large = len(labels) // (k * s), -(-len(labels) // (k * s))
    assert s * small <= sizes(clients).min() and sizes(clients).max() <= s * large
    if large <= min(counts):
        held = (counts_table(labels, clients, len(counts)) > 0).sum(1)
        assert held.min() >= 1 and held.max() <= 2 * s


def test_sorted_shards_on_mnists_labels_are_mcmahans() -> None:
    """60,000 samples, 100 clients: 200 shards of 300, two a client.

    The classes are no multiples of 300, so 9 of the 200 shards have two labels; two shards have 1 to 4.
    A client has both shards of one class with probability near 1/10: some have one label, which `shards` never gives.
    """
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), counts))
    held = []
    for seed in range(20):
        clients = split("sorted_shards", labels, seed, clients=100)
        assert sizes(clients).tolist() == [600] * 100
        table = counts_table(labels, clients, 10)
        assert table.sum(0).tolist() == counts
        held += (table > 0).sum(1).tolist()
        whole = (table == 300).sum() + 2 * (table == 600).sum()
        assert whole >= 200 - 2 * 9  # all shards but those with a border, and one that each of these may meet
    assert set(held) == {1, 2, 3, 4}
    assert 0.05 < np.mean(np.array(held) == 1) < 0.15


def test_zipf_without_alpha_gives_one_class_each() -> None:
    labels = np.repeat(np.arange(4), [10, 20, 30, 140])
    table = counts_table(labels, split("zipf", labels, clients=12, s=1.0, alpha=0), 4)
    assert ((table > 0).sum(1) == 1).all()
    assert table.sum(0).tolist() == [10, 20, 30, 140]
    few = counts_table(labels, split("zipf", labels, clients=4, s=1.0, alpha=0), 4)
    assert sorted(few.sum(1)) == [10, 20, 30, 140] and ((few > 0).sum(1) == 1).all()


def test_zipf_order_is_random() -> None:
    largest = {int(np.argmax(sizes(split("zipf", np.zeros(100, int), seed, clients=5, s=2)))) for seed in range(30)}
    assert largest == {0, 1, 2, 3, 4}


def test_natural() -> None:
    users = np.array([7, 3, 7, 3, 3, 9])
    labels = np.zeros(6, int)
    rng = np.random.default_rng(0)
    natural = PARTITIONS.get("natural")
    assert natural().clients is None
    assert [r.tolist() for r in natural().indices(labels, rng, users)] == [[1, 3, 4], [0, 2], [5]]
    assert [r.tolist() for r in natural(min_size=2).indices(labels, rng, users)] == [[1, 3, 4], [0, 2]]
    some = natural(clients=2).indices(labels, rng, users)
    assert len(some) == 2 and len({int(users[r[0]]) for r in some}) == 2
    with pytest.raises(PartitionError, match=r"clients <= 2 \(leaf has 2 clients with 2 samples or more\), got 5"):
        natural(clients=5, min_size=2).indices(labels, rng, users, data="leaf")
    with pytest.raises(PartitionError, match=r"clients of its own \(.npz: client_train, .* client\); mnist has none"):
        natural().indices(labels, rng, data="mnist")


# --- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "path",
            {"classes_per_client": 12},
            "partition 'path' needs classes_per_client <= 10 (mnist has 10 classes), got 12",
        ),
        (
            "shards",
            {"clients": 3},
            "partition 'shards' needs clients * classes_per_client >= 10 (mnist has 10 classes), got 3 * 2: "
            "some classes would have no client",
        ),
        (
            "pat",
            {"clients": 600},
            "partition 'pat' needs clients * classes_per_client <= 600 (the classes of mnist have no more samples to "
            "share), got 600 * 2",
        ),
        (
            "sorted_shards",
            {"clients": 400},
            "partition 'sorted_shards' needs clients * shards_per_client <= 600 (mnist has 600 samples), got 400 * 2",
        ),
        ("iid", {"clients": 1000}, "partition 'iid' cannot give each of 1,000 clients a sample: mnist has 600"),
        (
            "lsqs",
            {"clients": 100},
            "partition 'lsqs' needs clients * min_size <= 600 (mnist has 600 samples), got 100 * 10",
        ),
        (
            "zipf",
            {"clients": 300, "s": 2},
            "partition 'zipf' with s = 2 gives the smallest of 300 clients 0.0041 of mnist's 600 samples; "
            "lower s or the number of clients",
        ),
        (
            "zipf",
            {"clients": 4, "alpha": 0},
            "partition 'zipf' with alpha = 0 needs clients >= 10 (mnist has 10 classes), got 4",
        ),
    ],
)
def test_refusals_name_the_numbers(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PartitionError) as error:
        scheme(kind, **options).indices(np.repeat(np.arange(10), 60), np.random.default_rng(0), data="mnist")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ls", {"alpha": 0}),
        ("ls", {"alpha": -1}),
        ("zipf", {"s": -1}),
        ("path", {"classes_per_client": 0}),
        ("iid", {"x": 1}),
    ],
)
def test_fields_are_checked(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        scheme(kind, **options)


# --- sections, names, hashes


def test_defaults_are_the_papers() -> None:
    assert scheme("lsqs").model_dump() == {"kind": "lsqs", "clients": 20, "seed": None, "alpha": 1.0, "min_size": 10}
    assert scheme("path").model_dump()["classes_per_client"] == 2
    assert {name: getattr(scheme(name), "alpha", None) for name in ("ls", "qs")} == {"ls": 1.0, "qs": 1.0}


def test_schemes_travel_between_processes() -> None:
    one = scheme("lsqs", alpha=0.5, seed=3)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.identity() == one.model_dump()


def test_names() -> None:
    assert parse("lsqs") == {"kind": "lsqs"}
    assert parse("file:some/where") == {"kind": "file", "path": "some/where"}
    with pytest.raises(PflOpsError, match=r"no partition named 'lqs'. Did you mean 'lsqs'?"):
        parse("lqs")


def test_a_scheme_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PARTITIONS.builtin:
        PARTITIONS.get(name)  # imported once: what is registered meanwhile is forgotten
    monkeypatch.setattr(PARTITIONS, "_found", dict(PARTITIONS._found))

    @partition("halves")
    def halves(
        labels: np.ndarray, n_clients: int, *, rng: np.random.Generator, twice: bool = False
    ) -> list[np.ndarray]:
        """Even parts."""
        parts = np.array_split(np.arange(len(labels)), n_clients)
        return [parts[0], *parts[:-1]] if twice else parts

    assert halves(np.zeros(4, int), 2, rng=np.random.default_rng(0))[1].tolist() == [2, 3]
    assert [r.tolist() for r in split("halves", np.zeros(4, int), clients=2)] == [[0, 1], [2, 3]]
    assert PARTITIONS.digest("halves") is not None
    with pytest.raises(PartitionError, match=r"partition 'halves' gave sample 0 to two clients"):
        split("halves", np.zeros(4, int), clients=2, twice=True)


def test_a_scheme_of_ones_own_may_write_into_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its own: clients were trained on what it left of them."""
    for name in PARTITIONS.builtin:
        PARTITIONS.get(name)
    monkeypatch.setattr(PARTITIONS, "_found", dict(PARTITIONS._found))

    @partition("writes")
    def writes(labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
        first = np.flatnonzero(labels == 0)
        labels[first] = 9
        return [first, np.flatnonzero(labels != 9)]

    labels = np.array([0, 1, 0, 1])
    assert [r.tolist() for r in split("writes", labels, clients=2)] == [[0, 2], [1, 3]]
    assert labels.tolist() == [0, 1, 0, 1]


def test_a_scheme_of_ones_own_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A division that the seed does not repeat belongs to no hash; masks and fractions are no sample numbers."""
    for name in PARTITIONS.builtin:
        PARTITIONS.get(name)
    monkeypatch.setattr(PARTITIONS, "_found", dict(PARTITIONS._found))
    labels = np.arange(40) % 4

    def refused(name: str, function: Callable[..., Any]) -> str:
        partition(name)(function)
        with pytest.raises(PartitionError) as found:
            split(name, labels, clients=4)
        return str(found.value)

    def unseeded(labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
        return np.array_split(np.random.permutation(len(labels)), n_clients)

    def masks(labels: np.ndarray, n_clients: int, *, rng: np.random.Generator) -> list[np.ndarray]:
        return [labels == k for k in range(n_clients)]

    def owners(labels: np.ndarray, n_clients: int, *, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, n_clients, len(labels))

    def parts(labels: np.ndarray, n_clients: int, *, rng: np.random.Generator) -> dict[int, np.ndarray]:
        return {k: np.flatnonzero(labels == k) for k in range(n_clients)}  # as NIID-Bench's net_dataidx_map

    def fails(labels: np.ndarray, n_clients: int, *, rng: np.random.Generator) -> list[np.ndarray]:
        return [labels[len(labels)] for _ in range(n_clients)]

    def leaves(labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
        sys.exit(0)

    def nothing(labels: np.ndarray, n_clients: int) -> None: ...

    def stops(labels: np.ndarray, n_clients: int) -> list[np.ndarray]:
        return [next(iter(())) for _ in range(n_clients)]

    assert refused("nothing", nothing) == (
        "partition 'nothing' returned None; expected a list with the sample numbers of each client in turn"
    )
    assert refused("stops", stops).startswith("partition 'stops' failed: StopIteration (test_partition.py:")
    assert refused("leaves", leaves).startswith("partition 'leaves' failed: SystemExit: 0 (test_partition.py:")
    assert refused("unseeded", unseeded).startswith("partition 'unseeded' drew two divisions from one seed; ")
    assert refused("masks", masks) == (
        "partition 'masks' gave client 0 bool [40]; expected sample numbers, whole numbers [n_k]: np.flatnonzero(mask)"
    )
    due = "expected a list with the sample numbers of each client in turn: ["
    assert refused("parts", parts) == f"partition 'parts' returned a dict; {due}parts[k] for k in range(n_clients)]"
    assert f"'owners' returned an array int64 [40]; {due}np.flatnonzero(owner == k)" in refused("owners", owners)
    failure = refused("fails", fails)
    assert failure.startswith("partition 'fails' failed: IndexError: index 40 is out of bounds")
    assert failure.endswith(f"(test_partition.py:{fails.__code__.co_firstlineno + 1})")


def test_hash_knows_who_owns_what() -> None:
    a, b = np.array([0, 1]), np.array([2])
    assert content_hash([a, b]) == content_hash([a[::-1], b])
    assert len({content_hash(p) for p in ([a, b], [b, a], [np.array([0, 1, 2])], [a, np.array([3])])}) == 4
    assert content_hash([a, b]) == "3b68708e42b60bd9cc25bae77f4baeace814a14cd42db7c954d14130ae7c07fe"


def test_real_labels(real_data: Callable[[str], Path]) -> None:
    """The marginals that FLIU's environments promise, on MNIST."""
    labels = np.load(real_data("mnist"))["y_train"].astype(np.int64)
    totals = np.bincount(labels)
    for kind in DRAWN:
        table = counts_table(labels, split(kind, labels, clients=100), 10)
        assert table.sum(0).tolist() == totals.tolist()
    assert set(sizes(split("ls", labels, clients=100)).tolist()) == {600}


def test_clients_that_feed_small_ones_shrink_by_one_factor() -> None:
    """Sizes 2, 30 and 60, at least 10: 82 are left for 30 : 60, that is 27.3 and 54.7. In proportion to what they have
    above 10 the two would give 2.3 and 5.7."""
    table = np.array([[2, 0], [10, 20], [60, 0]])
    fed = proportions._feed_small(table, 10, np.random.default_rng(0))
    assert fed.sum(axis=1).tolist() == [10, 27, 55] and fed.sum(axis=0).tolist() == [72, 20]
