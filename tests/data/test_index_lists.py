"""Index lists of other programs: recorded as they are, checked against the data set, refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_ops.data.clients import build_clients
from pfl_ops.data.datasets import DataSection, load
from pfl_ops.data.index_lists import IndexLists, make_recorded, read_index_lists
from pfl_ops.data.npz import DataError
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.data.partition_files import read_partition, write_partition

DIGITS = DataSection(name="digits", train_size=None)  # 1,438 training samples, 359 for testing


def write(folder: Path, content: Any) -> Path:
    """A JSON file, or an .npz file if all values are arrays by name."""
    if isinstance(content, dict) and content and all(isinstance(value, np.ndarray) for value in content.values()):
        np.savez(folder / "lists.npz", **content)
        return folder / "lists.npz"
    file = folder / "lists.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def plain(lists: IndexLists) -> tuple[list[list[int]], list[list[int]] | None]:
    test = None if lists.test is None else [rows.tolist() for rows in lists.test]
    return [rows.tolist() for rows in lists.train], test


@pytest.mark.parametrize(
    ("content", "train", "test"),
    [
        ({"train": [[7, 0, 5], [3]], "test": [[1], []]}, [[0, 5, 7], [3]], [[1], []]),
        ({"train": [[0], [1]]}, [[0], [1]], None),
        ({"train": {"oslo": [0], "bergen": [1]}, "test": {"bergen": [5], "oslo": []}}, [[1], [0]], [[5], []]),
        ({"train": {"10": [0], "9": [1]}}, [[1], [0]], None),
        ({f"train_{k}": np.array([k]) for k in range(11)}, [[k] for k in range(11)], None),
        ({"train_a": np.array([3, 2], np.uint8), "test_a": np.array([])}, [[2, 3]], [[]]),
    ],
)
def test_lists_are_read_in_the_order_of_clients(tmp_path: Path, content: Any, train: Any, test: Any) -> None:
    """By place in a list; by name: whole numbers by value, else sorted; the parts are matched by name."""
    assert plain(read_index_lists(write(tmp_path, content))) == (train, test)


def test_a_partition_survives_its_export_as_lists(tmp_path: Path) -> None:
    """The same clients, training and test samples, as the partition that the lists came from."""
    made = build_clients(load(DIGITS), PARTITIONS.get("lsqs")(clients=5), seed=3, split="test")
    lists = {"train": [r.tolist() for r in made.recorded.train], "test": [r.tolist() for r in made.recorded.test or []]}
    recorded = make_recorded(read_index_lists(write(tmp_path, lists)), load(DIGITS, sealed=True), "lists.json")
    folder = write_partition(tmp_path / "partition", recorded)
    assert read_partition(folder).digest == made.partition_digest
    assert read_partition(folder).about["scheme"] == {"kind": "import", "source": "lists.json"}
    again = build_clients(load(DIGITS), PARTITIONS.get("file")(path=str(folder)), seed=9, split="test")
    for one, two in ((made.train, again.train), (made.held, again.held)):
        assert all(np.array_equal(a, b) for a, b in zip(one.index, two.index, strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"lists.json is damaged, or cannot be read \(JSONDecodeError"),
        ("[" * 100_000, "lists.json is damaged, or cannot be read"),
        ("[[0], [1]]", 'must hold {"train"'),
        ({"test": [[0]]}, 'must hold {"train"'),
        ({"train": [[0]], "valid": [[1]]}, 'must hold {"train"'),
        ('{"train": {"a": [0], "a": [1]}}', "'a' is given twice"),
        ({"train": []}, "has no client in train"),
        ({"train": 3}, "train is neither a list of lists nor lists by client"),
        ({"train": [[0], []]}, "client '1' has no training sample"),
        ({"train": [[0], [1]], "test": [[0]]}, "client '1' is in only one of train and test"),
        ({"train": [0, 1]}, "client '0' in train is no list of sample numbers"),
        ({"train": [[0.5]]}, "client '0' in train has 0.5; sample numbers are whole numbers from 0"),
        ({"train": [[True]]}, "client '0' in train has true"),
        ({"train": [[10**30]]}, "client '0' in train has 1000000000"),
        ({"train": [[-1]]}, "client '0' in train has sample -1; the first sample is 0"),
        ({"train": [[4, 4]]}, "client '0' in train lists sample 4 twice"),
        ({"train": {"": [0]}}, "the clients in train: an empty name"),
        ({"a_0": np.array([0])}, "has no array train_0"),
        ({"train_0": np.array([0.5])}, r"client '0' in train is float64 \[1\]; it must be a list of sample numbers"),
        ({"train_0": np.array([[1]])}, r"client '0' in train is int64 \[1, 1\]"),
        ({"train_0": np.array([[0], [1, 2]], dtype=object)}, "train_0 holds Python objects, which are never unpickled"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_index_lists(write(tmp_path, content))
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([[0, 1438]], None, "lists: train has sample 1,438; digits has 1,438 there, numbered from 0"),
        ([[0]], [[359]], "lists: test has sample 359; digits has 359 there"),
        ([[0, 1], [1]], None, "lists: train gives sample 1 to two clients"),
        ([[0], [1]], [[2], [2]], "lists: test gives sample 2 to two clients"),
    ],
)
def test_lists_that_do_not_fit_the_data_are_refused(train: Any, test: Any, message: str) -> None:
    lists = IndexLists([np.array(r) for r in train], None if test is None else [np.array(r) for r in test])
    with pytest.raises(DataError, match=message):
        make_recorded(lists, load(DIGITS, sealed=True), "lists")


def test_a_line_says_which_client_has_which_number(tmp_path: Path) -> None:
    """Names are sorted as text, site-10 before site-2; names that are all whole numbers by value."""
    sites = {"train": {f"site-{k}": [k] for k in range(1, 13)}}
    told = "0 is site-1, 1 is site-10, 2 is site-11, 3 is site-12, 4 is site-2, ... 11 is site-9"
    assert read_index_lists(write(tmp_path, sites)).remark == f"clients are numbered from 0 by name, as text: {told}"
    numbers = {"train": {"10": [0], "0": [1], "9": [2]}}
    assert read_index_lists(write(tmp_path, numbers)).remark == "clients are numbered from 0 by number: 1 is 9, 2 is 10"
    assert read_index_lists(write(tmp_path, {"train": [[0], [1]]})).remark == ""
