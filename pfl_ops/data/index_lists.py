"""Lists of sample numbers by client, from JSON or .npz, as a recorded partition.

    {"train": [[0, 5, 7], [2, 3]], "test": [[1], [0, 4]]}                JSON: a list a client
    {"train": {"oslo": [0, 5, 7], "bergen": [2, 3]}}                     JSON: by name; test may be left out
    np.savez(file, train_0=[0, 5, 7], train_1=[2, 3], test_0=[1], ...)   .npz: an array a client

Numbers count the training samples, or the test samples, of the data set as published, from 0.
"""

import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfl_ops.data.cut import counts_table
from pfl_ops.data.datasets import Dataset
from pfl_ops.data.npz import WHOLE_NUMBER, DataError, number_names, read_arrays, reading
from pfl_ops.data.owners import numbering
from pfl_ops.data.partition_files import Recorded
from pfl_ops.errors import echo

MAX_JSON = 2**28  # bytes
PARTS = ("train", "test")


class IndexLists(NamedTuple):
    """Sample numbers by client, sorted int64 arrays; test: None if there are none. names: of the clients."""

    train: list[np.ndarray]
    test: list[np.ndarray] | None
    names: Sequence[str] = ()

    @property
    def remark(self) -> str:
        """A line on clients whose numbers are not their names; "": there are none."""
        moved = [k for k, name in enumerate(self.names) if name != str(k)]
        order = "number" if all(map(WHOLE_NUMBER.fullmatch, self.names)) else "name, as text"
        return f"clients are numbered from 0 by {order}: {numbering(moved, self.names)}" if moved else ""


def read_index_lists(path: Path) -> IndexLists:
    """Read the lists of a file.

    Clients are in the order of the file's lists, or by name: names that are all whole numbers by value, else sorted.

    Args:
        path: a file that ends in .json or .npz.
    Raises:
        DataError: the file is missing or damaged, or an entry is no list of whole numbers from 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "lists.json")
    ...     _ = file.write_text('{"train": {"oslo": [7, 0, 5], "bergen": [2, 3]}}')
    ...     [rows.tolist() for rows in read_index_lists(file).train]  # by name: bergen, oslo
    [[2, 3], [0, 5, 7]]
    """
    given = _read_json(path) if path.suffix == ".json" else _read_npz(path)
    lists: dict[str, dict[str, np.ndarray]] = {}
    for part, clients in given.items():
        names = list(clients)
        order = np.argsort(number_names(names, f"{path}: the clients in {part}"), kind="stable")
        lists[part] = {
            names[i]: _check_rows(clients[names[i]], f"{path}: client '{echo(names[i])}' in {part}") for i in order
        }
    train, test = lists["train"], lists.get("test")
    if not train:
        raise DataError(f"{path} has no client in train")
    if test is not None and list(test) != list(train):
        other = sorted(set(train) ^ set(test))
        raise DataError(f"{path}: client '{echo(other[0])}' is in only one of train and test")
    for name, rows in train.items():
        if not len(rows):
            raise DataError(f"{path}: client '{echo(name)}' has no training sample")
    return IndexLists(list(train.values()), None if test is None else list(test.values()), list(train))


def make_recorded(lists: IndexLists, dataset: Dataset, source: str) -> Recorded:
    """Return the recorded partition of these lists, checked against a data set.

    Args:
        lists: sample numbers by client.
        dataset: whose samples they number, not cut in size. Its test data are not opened.
        source: where the lists come from, for messages and for the record.
    Raises:
        DataError: a number is beyond the last sample, or a sample has two owners.
    """
    labels = dataset.train.y
    _check_owners(lists.train, len(labels), f"{source}: train", dataset.name)
    if lists.test is not None:
        _check_owners(lists.test, int(dataset.files.meta["n_test"]), f"{source}: test", dataset.name)
    about = {
        "scheme": {"kind": "import", "source": source},
        "seed": None,
        "data": dataset.name,
        "data_digest": dataset.digest,
        "pooled": False,
    }
    return Recorded(lists.train, lists.test, counts_table(labels, lists.train, dataset.n_classes), about)


def _check_owners(clients: Sequence[np.ndarray], n: int, what: str, data: str) -> None:
    every = np.concatenate(clients)
    if len(every) and every.max() >= n:
        raise DataError(f"{what} has sample {every.max():,}; {data} has {n:,} there, numbered from 0")
    uses = np.bincount(every, minlength=1)
    if (uses > 1).any():
        raise DataError(f"{what} gives sample {int(np.argmax(uses > 1)):,} to two clients")


def _check_rows(values: Any, what: str) -> np.ndarray:
    """One client's numbers, sorted."""
    rows = np.asarray(values) if isinstance(values, np.ndarray) else _check_list(values, what)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
        raise DataError(f"{what} is {rows.dtype} {list(rows.shape)}; it must be a list of sample numbers, [n]")
    if rows.dtype.kind == "u" and len(rows) and rows.max() >= 2**63:
        raise DataError(f"{what} has the number {rows.max()}")
    rows = np.sort(rows.astype(np.int64))
    if len(rows) and rows[0] < 0:
        raise DataError(f"{what} has sample {rows[0]}; the first sample is 0")
    again = np.flatnonzero(np.diff(rows) == 0)
    if len(again):
        raise DataError(f"{what} lists sample {rows[again[0]]:,} twice")
    return rows


def _check_list(values: Any, what: str) -> np.ndarray:
    if not isinstance(values, list):
        raise DataError(f"{what} is no list of sample numbers")
    for value in values:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise DataError(f"{what} has {echo(json.dumps(value), 40)}; sample numbers are whole numbers from 0")
    return np.array(values, dtype=np.int64)


def _read_json(path: Path) -> dict[str, Mapping[str, Any]]:
    with reading(path):
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > MAX_JSON:
            raise ValueError(f"it has {about.st_size:,} bytes; at most {MAX_JSON:,} are read")
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refuse_duplicates)
    if not isinstance(found, dict) or "train" not in found or set(found) - set(PARTS):
        raise DataError(f'{path} must hold {{"train": [[...], ...]}}, and may hold "test"')
    parts: dict[str, Mapping[str, Any]] = {}
    for part, clients in found.items():
        if isinstance(clients, list):
            clients = {str(k): rows for k, rows in enumerate(clients)}
        if not isinstance(clients, dict):
            raise DataError(f"{path}: {part} is neither a list of lists nor lists by client")
        parts[part] = clients
    return {part: parts[part] for part in PARTS if part in parts}


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{echo(next(name for name in names if names.count(name) > 1))}' is given twice")
    return values


def _read_npz(path: Path) -> dict[str, Mapping[str, Any]]:
    def choose(members: Sequence[str]) -> list[str]:
        chosen = [name for name in dict.fromkeys(members) if name.partition("_")[0] in PARTS and "_" in name]
        if not any(name.startswith("train_") for name in chosen):
            raise DataError(f"{path} has no array train_0; it needs train_0, train_1, ..., and may have test_0, ...")
        return chosen

    parts: dict[str, dict[str, Any]] = {}
    for name, values in read_arrays(path, choose).items():
        part, _, client = name.partition("_")
        parts.setdefault(part, {})[client] = values
    return {part: parts[part] for part in PARTS if part in parts}
