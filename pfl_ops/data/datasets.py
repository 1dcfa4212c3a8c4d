"""Data sets by name or by path, and the `data` part of an experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from pfl_ops import rng
from pfl_ops.data import cut, shakespeare, sources, store
from pfl_ops.data.features import Features
from pfl_ops.data.npz import DataError
from pfl_ops.data.scaling import FULL_SCALE, Constants, Scaling, constants
from pfl_ops.errors import unknown
from pfl_ops.section import MOST_COUNT, Section

PARTITION = "lsqs"
"""The partition of a data set without clients if none is named."""


class Info(NamedTuple):
    """Facts on a named data set before it is read: shape of a sample, constants in units of the stored values."""

    shape: tuple[int, ...]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: str
    about: str
    full_scale: float = FULL_SCALE


DATASETS: dict[str, Info] = {
    "digits": Info((8, 8, 1), 10, (4.8875,), (6.022,), "cnn_tiny", "1,797 handwritten digits; needs no download", 16.0),
    "mnist": Info((28, 28, 1), 10, (33.3184,), (78.5675,), "cnn", "70,000 handwritten digits"),
    "fashion_mnist": Info((28, 28, 1), 10, (72.9404,), (90.0212,), "cnn", "70,000 pictures of clothes"),
    "kmnist": Info((28, 28, 1), 10, (48.9,), (88.8,), "cnn", "70,000 cursive Japanese characters"),
    "cifar10": Info(
        (32, 32, 3), 10, (125.3069, 122.9504, 113.8654), (62.9932, 62.0887, 66.7049), "cnn_cifar", "60,000 photographs"
    ),
    "cifar100": Info(
        (32, 32, 3), 100, (129.3042, 124.07, 112.434), (68.1702, 65.3918, 70.4184), "cnn_cifar", "60,000 photographs"
    ),
    "shakespeare": Info(
        (80,),
        80,
        (0,),
        (1,),
        "char_lstm",
        "LEAF's speaking roles, 80 characters in and the next out; one client a role",
    ),
}

BUILTIN: Mapping[str, Info] = MappingProxyType(dict(DATASETS))
"""The package's own data sets as they are published; what a plug-in does to `DATASETS` leaves it alone."""


class Content(NamedTuple):
    """SHA-256 of the content of a data set as it is published, and its numbers of samples."""

    digest: str
    n_train: int
    n_test: int


CONTENTS = {
    "mnist": Content("05aa1b62ffc8e634482d139612025c357d08a59e0e8b29f8ca8e5974d770c647", 60_000, 10_000),
    "fashion_mnist": Content("431c432d6190a027c9af5487e1e64e829c8594db223949cc781dae31cabbfb58", 60_000, 10_000),
    "cifar10": Content("8d8b102ddf63892c25d85fdb45497b6116fae4f8cbfcc3eed51b2e5f88ae623a", 50_000, 10_000),
    "cifar100": Content("e7d030a5a799e987faa2340d558f28b238a0ba616ced7f08f0888ebf8036cf62", 50_000, 10_000),
}


Count = Annotated[int, Field(ge=1, le=MOST_COUNT)] | Literal["all"] | None


class TestDataSealed(DataError):
    """Test data were read where only validation data may be seen."""

    __test__ = False  # not a test, whatever its name says to pytest


def check_dataset(name: str) -> str:
    """Return the name, if it is a data set's or ends as a data file does; whether the file exists is not looked at.

    Raises:
        PflOpsError: it is neither.
    """
    if name not in DATASETS and not name.endswith(tuple(sources.READERS)):
        files = "; data files end in .npz, .csv or .parquet" if Path(name).suffix else ""
        if is_folder(name):
            files = "; a folder is no data set: write its samples into one .npz, docs/data.md"
        raise unknown("dataset", name, DATASETS, see=f"pfl-ops list datasets{files}")
    return name


def is_folder(name: str) -> bool:
    """True if there is a folder of this name; a name that no file can have is none.

    >>> is_folder("."), is_folder("digits")
    (True, False)
    """
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


class DataSection(Section):
    """The `data` part of an experiment."""

    name: str = Field("digits", description="a data set (pfl-ops list datasets), or a file: .npz, .csv, .parquet")
    train_size: int | None = Field(
        12_000,
        ge=1,
        le=10**9,
        description="training samples, at most; stratified, the test set cut by the same factor; none: all",
    )
    pooled: bool = Field(False, description="merge training and test set, then cut test_share from each client")
    test_share: float = Field(0.25, gt=0, lt=1, description="share of each client's data for testing (with pooled)")
    roles: Count = Field(None, description="shakespeare's: roles drawn among those with enough records; none: 100")
    records: Count = Field(
        None, description="shakespeare's: training records a role, and a quarter as many for testing; none: 2,000"
    )
    scaling: Scaling = Field(
        "standard",
        description="of inputs, (x − mean) / deviation: standard (of the training data), unit (u = x / 255; features "
        "from 0 to 1), half ((u − 0.5) / 0.5), or [mean, deviation] in stored units, a number or a list by channel",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_dataset(name)

    @model_validator(mode="after")
    def _has_roles(self) -> Self:
        if self.name != "shakespeare" and (self.roles is not None or self.records is not None):
            raise ValueError(f"roles and records belong to dataset shakespeare; {self.label} has neither")
        if self.name == "shakespeare" and self.scaling != "standard":
            raise ValueError("scaling must be standard for text, whose characters are not scaled (shakespeare)")
        return self

    @property
    def label(self) -> str:
        """A short name: a file's without folder and ending."""
        return self.name if self.name in DATASETS else Path(self.name).stem


class Arrays(NamedTuple):
    """Samples. x: images uint8 [n, H, W, C], features float32 [n, d] or characters uint8 [n, d]; y: class, int64 [n];
    client: the data set's own, int64 [n] or None."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, cut to size, mapped into memory when it is used.

    Attributes:
        name: short name, for people.
        shape: of one sample, (H, W, C) or (d,). n_classes: L.
        mean, std: float32 per channel or feature, in units of the stored values.
        digest: SHA-256 of the whole content, before any cut.
        files: where it lies.
        train_size: training samples at most; None: all.
        pooled: training and test set are one, which `train` gives.
        is_sealed: whether `test` is refused.
        features: what stands in the place of samples as published; None: nothing.
        scaled_by: the numbers of the input scaling; None: they are the published ones of the data set, decided by its
            name or its content.
        overlap: samples of one client at most so far apart share some of their content (windows of a text); 0: none do.
        source: the file that it was read from, if that is one of the user's own.
    """

    name: str
    shape: tuple[int, ...]
    n_classes: int
    mean: np.ndarray
    std: np.ndarray
    digest: str
    files: store.Unpacked
    train_size: int | None = None
    pooled: bool = False
    is_sealed: bool = False
    overlap: int = 0
    scaled_by: Constants | None = None
    features: Features | None = None
    source: Path | None = None

    @property
    def train(self) -> Arrays:
        """The training samples in published order, cut to `train_size`; with `pooled` the test samples follow them."""
        return self._pool if self.pooled else self._part("train")

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of training and test samples after the cut; with `pooled` of all samples, and 0.

        >>> load("digits").sizes
        (1438, 359)
        """
        train, test = (self._size(part) for part in ("train", "test"))
        return (train + test, 0) if self.pooled else (train, test)

    @property
    def test(self) -> Arrays:
        """The test samples, cut by the same factor.

        Raises:
            TestDataSealed: the data set is sealed, or pooled (each client's test share is cut from `train`).
        """
        self._refuse()
        return self._part("test")

    def rows(self, part: str = "train") -> np.ndarray:
        """Number of each sample of `train` or `test` in the data set as published, int64 [n], ascending.

        With `pooled`, published test samples are numbered on after the training samples.
        """
        if part == "test":
            self._refuse()
        if not self.pooled:
            return self._rows(part)
        return np.concatenate([self._rows("train"), self._rows("test") + self.files.meta["n_train"]])

    def sealed(self) -> "Dataset":
        """The same without its test data: reaching for `test` raises, and no file of it is opened.

        A pooled data set has no test set of its own; which of its samples are for testing is decided by client.
        """
        return replace(self, is_sealed=True)

    def merged(self) -> "Dataset":
        """The same with training and test set as one."""
        if self.is_sealed and not self.pooled:
            raise TestDataSealed(f"the test data of {self.name} is sealed; load it with data.pooled to merge it")
        return replace(self, pooled=True)

    def seen_through(self, features: Features) -> "Dataset":
        """The same with features [D] for samples; neither centred nor scaled. None is computed before it is asked for.

        Who owns a sample does not depend on it: `digest` and the numbers of samples stay.
        """
        shift, scale = np.zeros(features.width, np.float32), np.ones(features.width, np.float32)
        return replace(self, shape=(features.width,), mean=shift, std=scale, features=features)

    def _refuse(self) -> None:
        if self.pooled:
            raise TestDataSealed(f"{self.name} is pooled: each client's test share is cut from the merged data")
        if self.is_sealed:
            raise TestDataSealed(f"the test data of {self.name} is sealed: only validation data may be used here")

    @property
    def _pool(self) -> Arrays:
        train, test = self._part("train"), self._part("test")
        client = None if train.client is None or test.client is None else np.concatenate([train.client, test.client])
        return Arrays(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y]), client)

    def _part(self, part: str) -> Arrays:
        rows = self._rows(part)

        def cut_to(name: str) -> np.ndarray:
            array = self.files.array(f"{name}_{part}")
            return np.asarray(array) if len(rows) == len(array) else array[rows]  # mapped still, without np.memmap

        x = cut_to("x") if self.features is None else self.features.of(part, self.files.array(f"x_{part}"), rows)
        return Arrays(x, cut_to("y"), cut_to("client") if self.files.has(f"client_{part}") else None)

    def _size(self, part: str) -> int:
        """The number of samples after the cut; no file is opened for it."""
        n, n_train = int(self.files.meta[f"n_{part}"]), int(self.files.meta["n_train"])
        if self.train_size is None or self.train_size >= n_train:
            return n
        return self.train_size if part == "train" else min(n, max(1, round(n * self.train_size / n_train)))

    def _rows(self, part: str) -> np.ndarray:
        """The stratified cut. Its key is fixed: a run's seed changes who owns a sample, not which samples there are."""
        if self._size("train") == self.files.meta["n_train"]:
            return np.arange(self.files.meta[f"n_{part}"])
        return cut.stratified(self.strata(part), self._size(part), rng.generator(0, "data.train_size", part))

    @property
    def has_clients(self) -> bool:
        """True if the data set says who owns each sample."""
        return self.files.has("client_train")

    def strata(self, part: str) -> np.ndarray:
        """The client of each published sample of `train` or `test`, else its class, int64 [n]: each keeps its share in
        a cut."""
        return self.files.array(f"{'client' if self.has_clients else 'y'}_{part}")


def load(section: DataSection | str, *, data_dir: str | None = None, sealed: bool = False) -> Dataset:
    """A data set, found, checked, unpacked into the cache if it is not there yet, and mapped.

    Args:
        section: the `data` part of an experiment; a name or path stands for it with its defaults.
        data_dir: folders to look in for `<name>.npz` (shakespeare: LEAF's files), separated as in PATH; None: the
            variable PFL_OPS_DATA. The cache folder is always the last.
        sealed: refuse the test data.
    Returns:
        the data set; opening it reads little, samples are read when they are used.
    Raises:
        DataError: it is missing, damaged or not of the form that is read here; the message says where it was expected.
        PflOpsError: no data set has that name.
    """
    section = DataSection(name=section) if isinstance(section, str) else section
    info = DATASETS.get(section.name)
    folders = sources.folders_of(data_dir)
    if section.name == "shakespeare":
        roles, records = section.roles or shakespeare.ROLES, section.records or shakespeare.RECORDS
        return _dataset(section, info, sources.text(roles, records, folders), sealed)
    if info:
        return _dataset(section, info, sources.named(section.name, (info.shape, info.n_classes), folders), sealed)
    source, files = sources.own(section.name, folders)
    return replace(_dataset(section, info, files, sealed), source=source)


def unread(section: DataSection) -> Dataset | None:
    """Return a data set as it is published without reading it; None: its content is not known here.

    What an identity needs is there, and no array: results of others can be checked where the data are not.

    >>> unread(DataSection(name="cifar10", train_size=4000)).sizes
    (4000, 800)
    """
    content, info = CONTENTS.get(section.name), BUILTIN.get(section.name)
    if content is None or info is None:
        return None
    meta = {**content._asdict(), "shape": list(info.shape), "n_classes": info.n_classes, "files": {}}
    return _dataset(section, info, store.Unpacked(Path(section.name), meta), sealed=True)


def _dataset(section: DataSection, info: Info | None, files: store.Unpacked, sealed: bool) -> Dataset:
    """Return the data set of a section. info: of a named one. files: what is in the cache. sealed: see `load`."""
    meta = files.meta
    shape = tuple(meta["shape"])
    used = constants(
        section.scaling,
        _constants(info) if info else _constants(meta),
        name=section.label,
        shape=shape,
        full_scale=info.full_scale if info else FULL_SCALE,
        features=lambda: files.array("x_train"),
    )
    published = BUILTIN.get(section.name) if info else meta
    return Dataset(
        name=section.label,
        shape=shape,
        n_classes=info.n_classes if info else meta["n_classes"],
        mean=used.mean,
        std=used.std,
        digest=meta["digest"],
        files=files,
        train_size=section.train_size,
        pooled=section.pooled,
        is_sealed=sealed,
        overlap=shakespeare.SEEN if section.name == "shakespeare" else 0,
        scaled_by=None if published is not None and used.equal(_constants(published)) else used,
    )


def _constants(given: Info | Mapping[str, Any]) -> Constants:
    """Return the mean and the deviation of a named data set, or of an unpacked file."""
    mean, std = (given.mean, given.std) if isinstance(given, Info) else (given["mean"], given["std"])
    return Constants(np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32))


def here(name: str, *, data_dir: str | None = None) -> bool:
    """True if a data set can be loaded as it is, without a download; places as for `load`."""
    folders = sources.folders_of(data_dir)
    if name == "shakespeare":
        return bool(shakespeare.find(folders))
    if name in DATASETS:
        return sources.is_here(name, folders)
    own = sources.own_file(name, folders)
    return own is not None and own.is_file()


def model_for(name: str, data_dir: str | None = None) -> str:
    """The network that suits a data set: by name from the table, for a file by its form."""
    if name in DATASETS:
        return DATASETS[name].model
    return "cnn" if len(load(name, data_dir=data_dir).shape) == 3 else "mlp"


def partition_for(name: str, data_dir: str | None = None) -> str:
    """Return the partition that a data set has if none is named: `natural` for a file with clients, else `lsqs`."""
    if name in DATASETS:
        return PARTITION
    return "natural" if load(name, data_dir=data_dir).has_clients else PARTITION
