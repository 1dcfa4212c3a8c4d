"""The data of each client: the data set, cut by a partition, as tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from mmap import mmap
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_ops import rng
from pfl_ops.data import cut
from pfl_ops.data.by_client import ByClient
from pfl_ops.data.copies import copies_remark
from pfl_ops.data.datasets import Arrays, Dataset
from pfl_ops.data.owners import numbering
from pfl_ops.data.partition import PartitionError, Scheme
from pfl_ops.data.partition_files import Recorded, read_partition
from pfl_ops.data.recorded import locate
from pfl_ops.data.remarks import dataset_remarks
from pfl_ops.errors import echo, format_bytes
from pfl_ops.system.memory import memory_size

LEAF_REMARK = (
    "test samples overlap with training samples, as in LEAF's IID split (data.pooled with partition.stratified=false); "
    "every other partition keeps them apart"
)

CARDS = "pfl_ops.display.setting_cards"
"""Makes the HTML that a notebook shows: a layer above this one, which is imported when a notebook asks for it."""

SHOWN_DIGITS = 12
"""Digits of a digest in a text."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples and their owners.

    Attributes:
        x: as stored, uint8 [n, H, W, C], float32 [n, d] or characters uint8 [n, d].
        y: class of each, int64 [n].
        index: each client's sample numbers, sorted int64 [n_k]; every sample has exactly one owner, a client may have
            none. A list of tensors is taken over as `ByClient`.
        mapped: whether `x` is a file's, whose pages are read when they are touched.

    >>> pool = Pool(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]), [torch.tensor([0, 3]), torch.tensor([1, 2])])
    >>> len(pool), pool.n_clients, pool.sizes.tolist(), pool.owner().tolist()
    (4, 2, [2, 2], [0, 1, 1, 0])
    >>> pool.class_counts(2).tolist(), pool.pooled().class_counts(2).tolist()
    ([[1, 1], [0, 2]], [[1, 3]])
    """

    x: Tensor
    y: Tensor
    index: Sequence[Tensor]
    mapped: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", ByClient.of(self.index, torch.cat))

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = str(self.x.dtype).removeprefix("torch.")
        return f"Pool({len(self):,} samples of {self.n_clients:,} clients, x {kind} {list(self.x.shape)})"

    @property
    def by_client(self) -> ByClient[Tensor]:
        """`index`, in the form in which it is stored."""
        assert isinstance(self.index, ByClient)
        return self.index

    @property
    def n_clients(self) -> int:
        """N."""
        return len(self.index)

    @property
    def sizes(self) -> Tensor:
        """n_k, int64 [N]."""
        return torch.from_numpy(self.by_client.sizes)

    def owner(self) -> Tensor:
        """The client of each sample, int64 [n]."""
        owner = torch.empty(len(self), dtype=torch.int64)
        owner[self.by_client.samples] = torch.from_numpy(self.by_client.owner())
        return owner

    def class_counts(self, n_classes: int) -> Tensor:
        """n_kc, int64 [N, L]."""
        flat = torch.bincount(self.owner() * n_classes + self.y, minlength=self.n_clients * n_classes)
        return flat.reshape(self.n_clients, n_classes)

    def pooled(self) -> "Pool":
        """The same samples with one owner, for training on the data of all clients."""
        return Pool(self.x, self.y, [torch.arange(len(self))])

    def subset(self, n: int | None, generator: np.random.Generator) -> Tensor:
        """Return `n` sample numbers whose mean score estimates that of all, sorted int64 [n]; None, or too many: all.

        Every class has its share within one sample (`cut.representative`).
        """
        return torch.from_numpy(cut.representative(self.y.numpy(), len(self) if n is None else n, generator))


@dataclass(frozen=True, eq=False)
class Clients:
    """A federation's data.

    Attributes:
        train: what clients train on. held: what they are scored on.
        split: where `held` comes from, "validation" or "test".
        n_classes: L. shape: of a sample, (H, W, C) or (d,). mean, std: float32, in units of the stored values.
        data_digest: of the data set. partition_digest: who owns which training sample, a validation share included.
        table: classes of each client's training data, a validation share included, int64 [K, L].
        recorded: the partition in sample numbers of the published data, to be written down.
        remarks: lines about the data that the user may want to know.
        on_tests: those of them about test samples, which validation data do not have.
    """

    train: Pool
    held: Pool
    split: str
    n_classes: int
    shape: tuple[int, ...]
    mean: np.ndarray
    std: np.ndarray
    data_digest: str
    partition_digest: str
    table: np.ndarray
    recorded: Recorded
    remarks: tuple[str, ...] = ()
    on_tests: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Data set, kind of partition, and the seed that the partition is drawn from: "digits, path, seed 0"."""
        about = self.recorded.about
        return echo(f"{about['data']}, {about['scheme']['kind']}, seed {about['seed']}")

    def __repr__(self) -> str:
        classes, sizes, held = ((self.table > 0).sum(axis=1), self.train.sizes.numpy(), self.held.sizes.numpy())
        return (
            f"Clients({self.title}: {len(self.table):,} clients, {self.n_classes:,} classes, "
            f"partition {self.partition_digest[:SHOWN_DIGITS]}\n"
            f"  train: {len(self.train):,} samples, a client {_range(sizes)} of {_range(classes)} classes\n"
            f"  {self.split}: {len(self.held):,} samples, a client {_range(held)})"
        )

    def _repr_html_(self) -> str:
        card: str = import_module(CARDS).clients_card(self)
        return card


def build_clients(
    dataset: Dataset,
    scheme: Scheme,
    *,
    seed: int,
    split: str,
    validation_share: float = 0.2,
    pooled: bool = False,
    test_share: float = 0.25,
) -> Clients:
    """Divide a data set among clients and hold out what they are scored on.

    The partition, and every cut after it, is drawn from `scheme.seed`, or `seed` where that is None, under keys of
    their own.

    validation: a share of each client's training data is held out; test data is never touched.
    test: clients train on all their training data; the test set is divided class by class as the training set was. A
        recorded partition brings its own test sets; a data set's own clients (natural) theirs.
    pooled: training and test set are merged before the partition, and each client's test data is `test_share` of its
        own, stratified. With `validation` those samples are left out.

    Where samples overlap (windows of a text), the samples held out are the last ones of each of the data set's own
    clients, and those that overlap with them are left out, whatever the partition: no character is on both sides, but
    for the one sample of a client that would be left without any. LEAF's IID split (pooled, iid without strata) is an
    exception: its test share is drawn at random, as LEAF draws it.

    Args:
        dataset: what is divided; sealed for `validation`.
        scheme: how.
        seed: the run's seed.
        split: "validation" or "test".
        validation_share: share of each client's training data, in (0, 1).
        pooled: merge first.
        test_share: share of each client's data (pooled), in (0, 1).
    Raises:
        PartitionError: the partition asks for what this data cannot give, or no client has a sample to be scored on.
        TestDataSealed: `split` or `pooled` needs test data that is sealed.
    """
    if split not in ("validation", "test"):
        raise ValueError(f"split is validation or test, not {split!r}")
    key = seed if scheme.seed is None else scheme.seed
    dataset = dataset.merged() if pooled else dataset
    samples, published = dataset.train, dataset.rows()
    given = _given(scheme, dataset)
    owned = scheme.indices(
        samples.y, rng.generator(key, "partition"), samples.client, origin=published, data=dataset.name
    )
    _check_table(len(owned), dataset)
    divided = len(owned.samples)
    tests: _Tests | None = None  # not asked for where the test data is sealed
    if dataset.pooled or split == "test":
        owned, tests = _divide_tests(dataset, samples, scheme, given, owned, test_share, key)
    if split == "validation":
        kept, held = _hold_out(dataset, samples, owned, validation_share, key, "validation", ends=dataset.overlap > 0)
        pools = _pool(samples, kept), _pool(samples, held)
    else:
        assert tests is not None
        pools = _pool(samples, owned), _pool(tests.source, tests.of_clients)
    if not len(pools[1]):
        raise PartitionError(_why_none_is_scored(split, scheme, dataset.pooled), dataset.name)
    table = owned.class_counts(samples.y, dataset.n_classes)
    about = {"scheme": scheme.identity(), "seed": key, "data": dataset.name, "data_digest": dataset.digest}
    recorded = Recorded(
        train=owned.numbered(published),
        test=None if tests is None else ByClient.of(tests.of_clients).numbered(tests.published),
        counts=table,
        about={**about, "pooled": dataset.pooled},
    )
    validated, copies = split == "validation", copies_remark(dataset, split)
    on_tests = [
        "" if validated else copies,
        _remark_on_tests(scheme, given, samples, None if dataset.pooled else tests, len(pools[1])),
        _remark_on_unseen(dataset, table, pools[1], split),
    ]
    remarks = [
        *dataset_remarks(dataset),
        LEAF_REMARK if _is_as_leaf(scheme, dataset) else "",
        copies if validated else "",
        *_remarks_on_clients(scheme, samples.client, owned),
        _remark_on_unused(dataset, scheme, given, divided),
        _remark_on_unvalidated(pools[1]) if validated else "",
        *on_tests,
    ]
    return Clients(
        train=pools[0],
        held=pools[1],
        split=split,
        n_classes=dataset.n_classes,
        shape=dataset.shape,
        mean=dataset.mean,
        std=dataset.std,
        data_digest=dataset.digest,
        partition_digest=recorded.digest,
        table=table,
        recorded=recorded,
        remarks=tuple(filter(None, remarks)),
        on_tests=tuple(filter(None, on_tests)),
    )


def _range(values: np.ndarray) -> str:
    """Return the least, the most and the median of numbers of the clients: "286 to 290 (median 288)"; "2": all alike.

    >>> _range(np.array([1, 2, 2, 2000])), _range(np.array([2, 2]))
    ('1 to 2,000 (median 2)', '2')
    """
    least, most = values.min(), values.max()
    return f"{least:,}" if least == most else f"{least:,} to {most:,} (median {np.median(values):,.0f})"


class _Tests(NamedTuple):
    """The samples that each client is tested on.

    Attributes:
        of_clients: positions in `source`. source: training samples (pooled) or test samples.
        published: number of each sample of `source` in the published data.
    """

    of_clients: Sequence[np.ndarray]
    source: Arrays
    published: np.ndarray


def _divide_tests(
    dataset: Dataset,
    train: Arrays,
    scheme: Scheme,
    given: Recorded | None,
    owned: ByClient[np.ndarray],
    share: float,
    key: int,
) -> tuple[ByClient[np.ndarray], _Tests]:
    """Hold out each client's test samples of its own (pooled), or divide the data set's test samples among clients;
    return what clients train on, and them."""
    source, published = (train, dataset.rows()) if dataset.pooled else (dataset.test, dataset.rows("test"))
    tests: Sequence[np.ndarray]
    if given is not None and given.test is not None:
        tests = locate(given.test, published, "recorded partition's test data")
    elif dataset.pooled:
        ends = dataset.overlap > 0 and not _is_as_leaf(scheme, dataset)
        owned, tests = _hold_out(dataset, train, owned, share, key, "test share", ends=ends)
    elif scheme.kind == "natural":
        tests = _of_users(train, owned, source)
    else:
        tests = cut.like(train.y, owned, source.y, rng.generator(key, "test set"))
    return owned, _Tests(tests, source, published)


def _hold_out(
    dataset: Dataset,
    samples: Arrays,
    clients: ByClient[np.ndarray],
    share: float,
    key: int,
    purpose: str,
    *,
    ends: bool,
) -> tuple[ByClient[np.ndarray], ByClient[np.ndarray]]:
    """Divide each client's samples: those that it trains on, and those held out, which are drawn or (ends) its last."""
    if ends:
        assert samples.client is not None, "data with overlapping samples have clients of their own"
        return cut.hold_out_ends(dataset.rows(), samples.client, clients, share, dataset.overlap)
    return cut.hold_out(samples.y, clients, share, rng.generators(key, purpose, numbers=range(len(clients))))


def _is_as_leaf(scheme: Scheme, dataset: Dataset) -> bool:
    """True for LEAF's IID split of overlapping samples: pooled, and without strata."""
    return dataset.pooled and dataset.overlap > 0 and scheme.kind == "iid" and not getattr(scheme, "stratified", 1)


def _remark_on_tests(scheme: Scheme, given: Recorded | None, train: Arrays, tests: _Tests | None, scored: int) -> str:
    """A line if some test samples are left out; "": none are.

    Args:
        train: the training samples. tests: None: there is no test set, or it is sealed.
        scored: number of samples on which clients are scored.
    """
    if tests is None or scored == (n := len(tests.source.y)):
        return ""
    if scheme.kind == "natural":
        client = tests.source.client
        assert client is not None and train.client is not None
        others = ~np.isin(client, train.client)
        owners = len(np.unique(client[others]))
        whose = f"they belong to {owners:,} client{'s' * (owners != 1)} without training samples"
        return f"{others.sum():,} of {n:,} test samples are left out: {whose}" if owners else ""
    is_given = given is not None and given.test is not None
    why = "belong to no client of the partition" if is_given else "have classes without training samples"
    return f"{n - scored:,} of {n:,} test samples {why}; left out"


def _remark_on_unused(dataset: Dataset, scheme: Scheme, given: Recorded | None, divided: int) -> str:
    """A line if a recorded partition, or a user's scheme, gives some samples to no client; "": there are none.

    Args:
        divided: number of samples that the scheme gave to clients.
    """
    if scheme.kind == "natural":
        return ""
    if dataset.pooled and given is not None and given.test is not None:
        divided += len(ByClient.of(given.test).samples)
    n, what = dataset.sizes[0], "samples" if dataset.pooled else "training samples"
    return f"{n - divided:,} of {n:,} {what} belong to no client of the partition; left out" if divided < n else ""


def _of_users(train: Arrays, owned: ByClient[np.ndarray], test: Arrays) -> ByClient[np.ndarray]:
    """The test samples of the data set's own clients that `owned` names by their training samples."""
    assert train.client is not None and test.client is not None
    order = np.argsort(test.client, kind="stable")  # positions of each client's samples, ascending
    names = train.client[owned.samples[owned.offsets[:-1]]]
    starts, ends = (np.searchsorted(test.client, names, side, sorter=order) for side in ("left", "right"))
    return ByClient.of_spans(order, starts, ends)


def _check_table(n_clients: int, dataset: Dataset) -> None:
    """Refuse a table of clients by classes, int64 [N, L], of more than a tenth of the memory: rounding needs some."""
    size, limit = 8 * n_clients * dataset.n_classes, memory_size() // 10
    if size > limit:
        raise PartitionError(
            f"{n_clients:,} clients by {dataset.n_classes:,} classes of {{data}} are a table of {format_bytes(size)}; "
            f"at most {format_bytes(limit)} can be counted on this machine (classes are numbered from 0, without gaps)",
            dataset.name,
        )


def _why_none_is_scored(split: str, scheme: Scheme, pooled: bool) -> str:
    if split == "validation":
        return "no client of {data} has two training samples, one of them for validation"
    if pooled:
        return "no client of {data} has two samples, one of them for testing"
    if scheme.kind == "natural":
        return "no client of {data} has training and test samples; client_train and client_test must name the same ones"
    return f"partition '{scheme.kind}' gives no client a test sample of {{data}}"


def _remarks_on_clients(scheme: Scheme, users: np.ndarray | None, owned: ByClient[np.ndarray]) -> Iterator[str]:
    """Lines about a data set's own clients: their numbers where these are not 0, 1, ..., and those that are too small.

    Args:
        users: the data set's own client of each training sample, int [n]. owned: those of each client in use.
    """
    if scheme.kind != "natural":
        return
    assert users is not None
    names = users[owned.samples[owned.offsets[:-1]]]
    moved = np.flatnonzero(names != np.arange(len(names))).tolist()
    if moved:
        yield f"clients are numbered from 0 in the order of the data's numbers: {numbering(moved, names)}"
    least = getattr(scheme, "min_size", 1)
    if least > 1:
        sizes = np.unique(users, return_counts=True)[1]
        small = sizes[sizes < least]
        if len(small):
            yield (
                f"{len(small):,} of {len(sizes):,} clients have fewer samples than partition.min_size={least}; left "
                f"out, with {small.sum():,} of the {sizes.sum():,} samples that are divided"
            )


def _remark_on_unvalidated(held: Pool) -> str:
    """Return a line on clients without validation samples, as those with one training sample are; "": all have some."""
    n, without = held.n_clients, int((held.sizes == 0).sum())
    if not without:
        return ""
    has = "has no validation sample and counts" if without == 1 else "have no validation sample and count"
    return f"{without:,} of {n:,} clients {has} in Acc(G) alone; the others have {len(held):,} in all"


def _remark_on_unseen(dataset: Dataset, table: np.ndarray, held: Pool, split: str) -> str:
    """Return a line on test samples of classes that no client trains on; "": there are none.

    Clients' own test data may have some. Characters of a text that do not occur are no mistake.
    """
    if split != "test" or dataset.overlap:
        return ""
    unseen = int((table.sum(axis=0) == 0)[held.y.numpy()].sum())
    told = f"{unseen:,} of {len(held):,} test samples have classes without training samples"
    return f"{told}; as clients' own they are kept, and a model is right on them by chance alone" if unseen else ""


def _given(scheme: Scheme, dataset: Dataset) -> Recorded | None:
    """The recorded partition behind the scheme `file`, if it is for this data."""
    if scheme.kind != "file":
        return None
    given = read_partition(getattr(scheme, "path", ""))
    digest = given.about.get("data_digest")
    if digest is not None and digest != dataset.digest:
        raise PartitionError(
            f"the recorded partition is for other data: {given.about.get('data')} with digest {digest[:12]}, "
            f"where {dataset.name} has {dataset.digest[:12]}"
        )
    if bool(given.about.get("pooled")) != dataset.pooled:
        raise PartitionError(f"the recorded partition needs data.pooled: {str(not dataset.pooled).lower()}")
    if given.test is not None:  # training samples are checked with every scheme's
        every = np.concatenate([*given.test, *(given.train if dataset.pooled else [])])
        if len(np.unique(every)) != len(every):
            raise PartitionError("the recorded partition gives a test sample to two clients, or for training too")
    return given


def _pool(samples: Arrays, clients: Sequence[np.ndarray]) -> Pool:
    """Drop samples that no client owns; return the input itself if all are owned."""
    lists = ByClient.of(clients)
    used = np.zeros(len(samples.y), dtype=bool)
    used[lists.samples] = True
    if not used.all():
        lists, samples = lists.numbered(np.cumsum(used) - 1), Arrays(samples.x[used], samples.y[used], None)
    index = ByClient(_tensor(lists.samples), lists.offsets)
    return Pool(_tensor(samples.x), _tensor(samples.y), index, isinstance(samples.x.base, np.memmap | mmap))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
