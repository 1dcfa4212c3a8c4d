"""The data of clients: every cut, every promise about test data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import arrays

from pfl_ops import rng
from pfl_ops.data import clients as clients_module
from pfl_ops.data import cut
from pfl_ops.data.clients import Clients, Pool, build_clients
from pfl_ops.data.datasets import DataSection, Dataset, TestDataSealed, load
from pfl_ops.data.partition import PARTITIONS, PartitionError
from pfl_ops.data.partition_files import Recorded, write_partition

Write = Callable[..., Path]


def build(dataset: Dataset, kind: str = "lsqs", *, split: str = "test", seed: int = 0, **options: Any) -> Clients:
    cut_options = {k: options.pop(k) for k in ("pooled", "test_share", "validation_share") if k in options}
    return build_clients(dataset, PARTITIONS.get(kind)(**options), seed=seed, split=split, **cut_options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_OPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load(DataSection(train_size=None))


def owners(pool: Pool, n: int) -> list[int]:
    return sorted(int(i) for rows in pool.index for i in rows)


def test_test_split(digits: Dataset) -> None:
    clients = build(digits, clients=15)
    train, held = clients.train, clients.held
    assert owners(train, 1438) == list(range(1438)) and owners(held, 359) == list(range(359))
    assert torch.equal(train.x, torch.from_numpy(np.array(digits.train.x)))
    assert train.x.dtype == torch.uint8 and train.y.dtype == train.index[0].dtype == torch.int64
    assert clients.table.tolist() == train.class_counts(10).tolist()
    # the test set has each client's training proportions, within one sample
    share = clients.table / clients.table.sum(0) * np.bincount(digits.test.y)
    assert np.abs(held.class_counts(10).numpy() - share).max() < 1
    # drawn under a key of its own: no hash would tell another test set
    owned = [rows.numpy() for rows in train.index]
    drawn = cut.like(digits.train.y, owned, digits.test.y, rng.generator(0, "test set"))
    assert [rows.tolist() for rows in held.index] == [rows.tolist() for rows in drawn]


def test_validation_split_never_opens_test_data(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = np.load
    monkeypatch.setattr(np, "load", lambda file, *a, **k: opened.append(Path(file).name) or real(file, *a, **k))
    clients = build(digits.sealed(), split="validation", clients=15)
    assert opened and not [name for name in opened if "test" in name]
    whole = build(digits, clients=15)
    assert clients.partition_digest == whole.partition_digest and clients.table.tolist() == whole.table.tolist()
    sizes = whole.train.sizes
    assert (clients.train.sizes + clients.held.sizes).tolist() == sizes.tolist()
    assert (clients.held.sizes - 0.2 * sizes).abs().max() <= 1 and clients.held.sizes.min() >= 1
    both = torch.cat([clients.train.x, clients.held.x]).flatten(1).sum(1).sort().values
    assert torch.equal(both, whole.train.x.flatten(1).sum(1).sort().values)
    keys = rng.generators(0, "validation", numbers=range(15))
    _, drawn = cut.hold_out(digits.train.y, [rows.numpy() for rows in whole.train.index], 0.2, keys)
    assert torch.equal(clients.held.x, whole.train.x[np.sort(drawn.samples)])
    with pytest.raises(TestDataSealed):
        build(digits.sealed(), split="test")
    with pytest.raises(TestDataSealed):
        build(digits.sealed(), split="validation", pooled=True)


def test_pooled(digits: Dataset) -> None:
    """Merged, divided once, a quarter of each client for testing; validation leaves exactly that quarter out."""
    final = build(digits, pooled=True, clients=15)
    assert len(final.train) + len(final.held) == 1797
    totals = final.train.sizes + final.held.sizes
    assert (final.held.sizes - 0.25 * totals).abs().max() <= 1
    merged, scheme = digits.merged(), PARTITIONS.get("lsqs")(clients=15)
    owned = scheme.indices(merged.train.y, rng.generator(0, "partition"), None, origin=merged.rows(), data="digits")
    _, drawn = cut.hold_out(merged.train.y, owned, 0.25, rng.generators(0, "test share", numbers=range(15)))
    assert np.array_equal(final.held.x.numpy(), merged.train.x[np.sort(drawn.samples)])
    trial = build(digits.merged().sealed(), split="validation", pooled=True, clients=15)
    assert trial.partition_digest == final.partition_digest
    assert len(trial.train) + len(trial.held) == len(final.train)
    assert (trial.train.sizes + trial.held.sizes).tolist() == final.train.sizes.tolist()
    half = build(digits, pooled=True, test_share=0.5, clients=15)
    assert abs(len(half.held) - 1797 / 2) < 15


def test_seeds(digits: Dataset) -> None:
    """The partition and its cuts follow the run's seed, or the partition's own where it has one."""

    def all_of(seed: int, split: str, **options: int) -> tuple[str, list[list[int]]]:
        clients = build(digits, split=split, seed=seed, clients=8, **options)
        return clients.partition_digest, [rows.tolist() for rows in clients.held.index]

    for split in ("validation", "test"):
        assert all_of(1, split) == all_of(1, split) != all_of(2, split)
    scheme = PARTITIONS.get("lsqs")(clients=8, seed=7)
    for split in ("validation", "test"):
        for seed in (1, 2):
            own = build_clients(digits, scheme, seed=seed, split=split)
            assert (own.partition_digest, [rows.tolist() for rows in own.held.index]) == all_of(7, split)
            assert own.title == "digits, lsqs, seed 7"


def test_small_clients(npz: Write) -> None:
    """A client with one sample keeps it; one with two gives one away; an empty index is no error."""
    owner = np.repeat([0, 1, 2], [1, 2, 117])
    path = npz(client_train=owner, client_test=np.full(40, 2))
    data = load(DataSection(name=str(path), train_size=None))
    trial = build(data.sealed(), "natural", split="validation")
    assert trial.train.sizes.tolist()[:2] == [1, 1] and trial.held.sizes.tolist()[:2] == [0, 1]
    final = build(data, "natural")
    assert final.train.sizes.tolist() == [1, 2, 117] and final.held.sizes.tolist() == [0, 0, 40]


def test_natural_clients_keep_their_own_test_data(npz: Write) -> None:
    users, tests = np.repeat([5, 9, 11], 40), np.repeat([9, 5, 11, 12], 10)
    data = load(DataSection(name=str(npz(client_train=users, client_test=tests)), train_size=None))
    clients = build(data, "natural")
    assert clients.train.sizes.tolist() == [40, 40, 40] and clients.held.sizes.tolist() == [10, 10, 10]
    first = torch.from_numpy(np.array(data.test.x[10:20]))
    assert torch.equal(clients.held.x[clients.held.index[0]], first)
    assert clients.recorded.test is not None and clients.recorded.test[0].tolist() == list(range(10, 20))
    pooled = build(data, "natural", pooled=True)  # client 12 has test samples only, which are data like any other here
    assert (pooled.train.sizes + pooled.held.sizes).tolist() == [50, 50, 50, 10]


def test_a_test_class_that_nobody_trains_on_is_left_out(npz: Write) -> None:
    data = load(DataSection(name=str(npz(y_test=np.repeat([0, 1, 2, 9], 10))), train_size=None))
    clients = build(data, "iid", clients=3)
    assert data.n_classes == 10 and len(clients.held) == 30 and clients.table.shape == (3, 10)
    assert clients.remarks[0].startswith("6 of 10 classes have no training sample (4, 5, 6, 7, 8, ...)")
    assert clients.remarks[1:] == ("10 of 40 test samples have classes without training samples; left out",)


def test_unseen_classes_in_own_test_data_are_a_remark(npz: Write) -> None:
    """Ten of 40 test samples have class 9, which no client trains on, and stay with their clients. Ten more have such a
    class if the client that has class 0 alone is not drawn."""
    users = {"client_train": np.repeat([0, 1, 2], 40), "client_test": np.arange(40) % 3}
    labels = {
        "y_train": np.repeat([0, 1, 2, 3], [40, 40, 39, 1]),
        "y_test": np.repeat([0, 1, 2, 3, 9], [10, 10, 9, 1, 10]),
    }
    data = load(DataSection(name=str(npz(**users, **labels)), train_size=None))
    clients = build(data, "natural")
    told = "have classes without training samples; as clients' own they are kept, and a model is right on them by"
    assert len(clients.held) == 40 and clients.remarks[-1] == f"10 of 40 test samples {told} chance alone"
    assert build(data.sealed(), "natural", split="validation").remarks[1:] == ()
    drawn = build(data, "natural", clients=2)
    left = int((drawn.table.sum(axis=0) == 0)[drawn.held.y.numpy()].sum())
    assert left > 10 * len(drawn.held) // 40 and drawn.remarks[-1].startswith(f"{left} of {len(drawn.held)} test")


def test_numbers_of_own_clients_that_change_are_a_remark(npz: Write) -> None:
    """Clients 5, 9, 11 become 0, 1, 2; client 12 has 10 test samples alone. Numbers 0, 1, 2 need no word."""
    users, tests = np.repeat([5, 9, 11], 40), np.repeat([9, 5, 11, 12], 10)
    data = load(DataSection(name=str(npz(client_train=users, client_test=tests)), train_size=None))
    numbers = "clients are numbered from 0 in the order of the data's numbers: 0 is 5, 1 is 9, 2 is 11"
    left_out = "10 of 40 test samples are left out: they belong to 1 client without training samples"
    assert build(data, "natural").remarks == (numbers, left_out) and build(data, "natural").on_tests == (left_out,)
    trial = build(data.sealed(), "natural", split="validation")
    assert trial.remarks == (numbers,) and trial.on_tests == ()
    small = load(DataSection(name=str(npz("small", client_train=np.repeat([5, 9], [1, 119]), client_test=tests % 11))))
    (line,) = build(small, "natural", min_size=2).on_tests  # those of client 5, which is too small, are no part of it
    assert line.startswith("20 of 40 test samples are left out: they belong to 2 clients without")
    kept = npz(client_train=np.arange(120) // 40, client_test=np.arange(40) % 3)
    assert build(load(DataSection(name=str(kept))), "natural").remarks == ()
    many = npz(client_train=1 + np.arange(120) // 10, client_test=1 + np.arange(40) % 12)
    (line,) = build(load(DataSection(name=str(many))), "natural").remarks
    assert line.endswith("numbers: 0 is 1, 1 is 2, 2 is 3, 3 is 4, 4 is 5, ... 11 is 12")


def test_own_clients_under_the_least_size_are_a_remark(npz: Write) -> None:
    """Clients have 1, 2 and 117 samples: with a least size of 2, one client and 1 of 120 samples are left out."""
    data = load(DataSection(name=str(npz(client_train=np.repeat([0, 1, 2], [1, 2, 117]), client_test=np.full(40, 2)))))
    told = (
        "clients have fewer samples than partition.min_size={}; left out, with {} of the 120 samples that are divided"
    )
    numbers = "clients are numbered from 0 in the order of the data's numbers: 0 is 1, 1 is 2"
    assert build(data, "natural", min_size=2).remarks == (numbers, "1 of 3 " + told.format(2, 1))
    assert build(data, "natural", min_size=3).remarks[1:] == ("2 of 3 " + told.format(3, 3),)
    assert build(data.sealed(), "natural", min_size=3, split="validation").remarks[1:] == (
        "2 of 3 " + told.format(3, 3),
    )
    assert build(data, "natural", min_size=1).remarks == ()


def test_samples_of_no_client_are_a_remark(digits: Dataset, tmp_path: Path) -> None:
    """Named are 100 of 1,438 training samples, and 3 of 359 test samples or 2 further ones of all 1,797."""
    train, tests = [np.arange(90), np.arange(90, 100)], [np.array([4, 5]), np.array([8])]

    def recorded(name: str, test: list[np.ndarray] | None, pooled: bool = False) -> str:
        counts = cut.counts_table(digits.train.y, train, 10)
        about = {"data": "digits", "data_digest": digits.digest, "pooled": pooled}
        return str(write_partition(tmp_path / name, Recorded(train, test, counts, about)))

    told = "belong to no client of the partition; left out"
    both = recorded("both", tests)
    assert build(digits, "file", path=both).remarks == (
        f"1,338 of 1,438 training samples {told}",
        f"356 of 359 test samples {told}",
    )
    assert build(digits.sealed(), "file", path=both, split="validation").remarks == (
        f"1,338 of 1,438 training samples {told}",
    )
    assert build(digits, "file", path=recorded("train", None)).remarks[-1] == f"1,338 of 1,438 training samples {told}"
    merged = recorded("merged", [np.array([104]), np.array([1500])], pooled=True)
    assert build(digits, "file", path=merged, pooled=True).remarks == (f"1,695 of 1,797 samples {told}",)
    whole = write_partition(tmp_path / "whole", build(digits, "iid", clients=4).recorded)
    assert build(digits, "file", path=str(whole)).remarks == build(digits, "iid", clients=4).remarks == ()


def test_test_samples_that_are_trained_on_are_a_remark(npz: Write) -> None:
    """Five test samples are training samples 0 to 4, with other labels; two training samples are a third one's copies.

    In the data as published 3 training samples are alike, and merged with the test samples 3 + 2 · 5 samples.
    """
    mine = arrays()
    x_train, x_test = mine["x_train"], mine["x_test"]
    x_train[[60, 70]], x_test[:5] = x_train[80], x_train[:5]
    data = load(DataSection(name=str(npz(x_train=x_train, x_test=x_test, y_test=3 - mine["y_test"])), train_size=80))
    for _ in range(2):  # the second one is read from the cache
        _, line = build(data, "iid", clients=3).remarks
        assert line == "5 of 40 test samples have the values of a training sample: they are no test of new data"
    more = "samples have the values of another one:"
    _, line = build(data.sealed(), "iid", clients=3, split="validation").remarks
    assert line == f"3 of 120 {more} validation samples may be among those trained on"
    _, line = build(data, "iid", clients=3, pooled=True).remarks
    assert line == f"13 of 160 {more} test samples may be among those trained on"
    assert build(load(str(npz("other"))), "iid", clients=3).remarks == ()


def test_clients_without_validation_samples_are_a_remark(npz: Write) -> None:
    """Clients 0 to 2 have one training sample, 3 has two, of which one is held out, and 4 has 115, of which a fifth is
    23; all have test samples."""
    users = np.repeat(np.arange(5), [1, 1, 1, 2, 115])
    data = load(str(npz(client_train=users, client_test=np.arange(40) % 5)))
    (line,) = build(data.sealed(), "natural", split="validation").remarks
    assert line == "3 of 5 clients have no validation sample and count in Acc(G) alone; the others have 24 in all"
    assert build(data, "natural").remarks == ()
    two = load(str(npz("two", client_train=np.append(0, np.ones(119, np.int64)), client_test=np.arange(40) % 2)))
    (line,) = build(two.sealed(), "natural", split="validation").remarks
    assert line == "1 of 2 clients has no validation sample and counts in Acc(G) alone; the others have 24 in all"


def test_data_that_leave_no_client_a_score_are_refused(npz: Write) -> None:
    """The clients of the test samples are others; each client has one sample."""
    path = npz(client_train=np.repeat([0, 1], 60), client_test=np.repeat([2, 3], 20))
    with pytest.raises(PartitionError, match=r"^no client of mine has training and test samples; client_train and "):
        build(load(str(path)), "natural")
    single = load(str(npz(client_train=np.arange(120), client_test=np.arange(40))))
    with pytest.raises(PartitionError, match=r"^no client of mine has two training samples, one of them for val"):
        build(single.sealed(), "natural", split="validation")
    with pytest.raises(PartitionError, match=r"^no client of mine has two samples, one of them for testing"):
        build(single, "iid", clients=160, pooled=True)


def test_a_table_of_clients_by_classes_beyond_memory_is_refused(npz: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 clients by 50,001 classes, 8 bytes each: 4.8 MB, where a tenth of the memory are 4 MiB."""
    data = load(str(npz(y_train=50_000 * (np.arange(120) % 2), y_test=np.zeros(40, np.int64))))
    build(data, "iid", clients=10)
    monkeypatch.setattr(clients_module, "memory_size", lambda: 40 << 20)
    with pytest.raises(
        PartitionError, match=r"^12 clients by 50,001 classes of mine are a table of 4.58 MiB; at most 4"
    ):
        build(data, "iid", clients=12)


def test_refusals_name_the_data_set(digits: Dataset) -> None:
    with pytest.raises(PartitionError, match=r"classes_per_client <= 10 \(digits has 10 classes\), got 12"):
        build(digits, "path", classes_per_client=12)
    with pytest.raises(ValueError, match="split is validation or test, not 'train'"):
        build(digits, split="train")


def test_pool_by_hand() -> None:
    x = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1)
    y = torch.tensor([0, 1, 1, 2, 0, 1])
    pool = Pool(x, y, [torch.tensor([0, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([1, 3, 4, 5])])
    assert len(pool) == 6 and pool.n_clients == 3 and pool.sizes.tolist() == [2, 0, 4]
    assert pool.owner().tolist() == [0, 2, 0, 2, 2, 2]
    assert pool.class_counts(4).tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 2, 1, 0]]
    one = pool.pooled()
    assert one.sizes.tolist() == [6] and one.index[0].tolist() == list(range(6)) and one.x is pool.x
    assert pool.subset(None, rng.generator(0, "x")).tolist() == list(range(6))
    part = pool.subset(3, rng.generator(0, "x"))
    counts = torch.bincount(y[part], minlength=3)  # shares 1, 1.5 and 0.5
    assert counts.tolist() in ([1, 2, 0], [1, 1, 1]) and part.dtype == torch.int64
    assert torch.equal(part, pool.subset(3, rng.generator(0, "x")))


def test_a_hundred_clients(real_data: Callable[[str], Path]) -> None:
    real_data("mnist")
    data = load(DataSection(name="mnist", train_size=None))
    clients = build(data, clients=100)
    assert len(clients.train) == 60_000 and len(clients.held) == 10_000
    assert clients.table.sum(0).tolist() == np.bincount(data.train.y).tolist()
    table = cut.counts_table(data.test.y, [rows.numpy() for rows in clients.held.index], 10)
    assert np.abs(table - clients.table / clients.table.sum(0) * np.bincount(data.test.y)).max() < 1
