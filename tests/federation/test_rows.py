"""State of all clients: lazily written rows and their mean, in memory and in a file."""

import itertools
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.misuse import MisuseError
from pfl_ops.federation.state.matrix import InFile, InMemory
from pfl_ops.federation.state.rows import SHARE, ClientRows, RowStore
from pfl_ops.system import memory

BASE = torch.tensor([1.0, 2.0], dtype=torch.float64)


@pytest.fixture(params=["memory", "file"])
def rows(request, tmp_path):
    return RowStore(request.param, tmp_path)(BASE, 4)


def test_rows_start_at_the_base(rows):
    assert len(rows) == 4
    assert rows[torch.arange(4)].tolist() == [[1, 2]] * 4
    assert not rows.written.any()


def test_written_rows_and_others(rows):
    rows.write(torch.tensor([2, 0]), torch.tensor([[5.0, 6], [7, 8]], dtype=torch.float64))
    assert rows[torch.tensor([0, 1, 2, 2])].tolist() == [[7, 8], [1, 2], [5, 6], [5, 6]]
    assert rows[torch.tensor([2, 0])].tolist() == [[5, 6], [7, 8]]


def test_rows_are_copies(rows):
    rows.write(torch.tensor([1]), torch.zeros(1, 2, dtype=torch.float64))
    for clients in (torch.tensor([1]), torch.tensor([3]), torch.tensor([1, 3])):
        rows[clients].fill_(9)
    assert rows[torch.tensor([1, 3])].tolist() == [[0, 0], [1, 2]]
    assert rows.base.tolist() == [1, 2]


NO_NUMBERS = {
    "got a bool tensor [4]": torch.tensor([True, False, True, False]),
    "got an int64 tensor [2, 1]": torch.tensor([[0], [1]]),
    "got a list": [0, 1],
    "got an int": 0,
    "got a slice": slice(0, 2),
    "rows of clients -1 to 2 were read": torch.tensor([2, -1]),
    "there are 0 to 3": torch.tensor([4]),
}


@pytest.mark.parametrize("message", NO_NUMBERS)
def test_rows_are_read_by_client_numbers_alone(rows, message):
    """A mask gave N rows, those of clients 0 and 1 among them, unless all were written; −1 gave the last client's."""
    rows.write(torch.tensor([0, 2]), torch.tensor([[5.0, 6], [7, 8]], dtype=torch.float64))
    with pytest.raises(MisuseError, match=re.escape(message)):
        rows[NO_NUMBERS[message]]


def test_no_clients_and_int32_numbers_are_read(rows):
    rows.write(torch.tensor([2]), torch.tensor([[7.0, 8]], dtype=torch.float64))
    assert rows[torch.tensor([], dtype=torch.int64)].shape == (0, 2)
    assert rows[torch.tensor([2, 1], dtype=torch.int32)].tolist() == [[7, 8], [1, 2]]


def test_assignment_names_what_to_return(rows):
    with pytest.raises(MisuseError, match=re.escape("return Rows(r.cohort, values)")):
        rows[torch.tensor([0])] = torch.zeros(1, 2, dtype=torch.float64)


def test_one_number_a_client():
    rows = ClientRows(torch.tensor(0.5), 3)
    assert rows[torch.tensor([0, 2])].tolist() == [0.5, 0.5]
    rows.write(torch.tensor([2]), torch.tensor([0.25]))
    assert rows[torch.tensor([0, 2])].tolist() == [0.5, 0.25]
    assert rows.mean().item() == pytest.approx(1.25 / 3)


def test_the_mean_is_over_all_clients(rows):
    """(1, 2) four times; then rows 0 and 2 become (5, 6), (7, 8), then row 0 (1, 0)."""
    assert rows.mean().tolist() == [1, 2]
    rows.write(torch.tensor([0, 2]), torch.tensor([[5.0, 6], [7, 8]], dtype=torch.float64))
    assert rows.mean().tolist() == [3.5, 4.5]
    rows.write(torch.tensor([0]), torch.tensor([[1.0, 0]], dtype=torch.float64))
    assert rows.mean().tolist() == [2.5, 3]


def test_a_first_mean_after_writes_is_the_same():
    early, late = ClientRows(BASE, 5), ClientRows(BASE, 5)
    early.mean()
    for t in range(3):
        for r in (early, late):
            r.write(torch.tensor([t, 4]), torch.full((2, 2), t + 0.1, dtype=torch.float64))
    torch.testing.assert_close(early.mean(), late.mean())


def test_the_mean_with_rows_about_to_be_written(rows):
    """It makes no difference whether they have been written by the time that it is asked for."""
    clients, values = torch.tensor([3, 1]), torch.tensor([[5.0, 6], [7, 8]], dtype=torch.float64)
    rows.write(torch.tensor([1]), torch.tensor([[0.0, 1]], dtype=torch.float64))
    before = rows.mean(clients, values)
    assert before.tolist() == [3.5, 4.5]
    assert rows.mean().tolist() == [0.75, 1.75]  # and nothing was written
    rows.write(clients, values)
    assert rows.mean(clients, values).tolist() == rows.mean().tolist() == before.tolist()


def test_a_running_mean_in_float32_keeps_its_digits():
    """A thousand writes of numbers with the same leading digits: summed in float64."""
    rows = ClientRows(torch.tensor(1000.0), 10)
    rows.mean()
    for i in range(1000):
        rows.write(torch.tensor([i % 10]), torch.tensor([1000 + i / 7]))
    assert rows.mean().item() == pytest.approx(rows[torch.arange(10)].double().mean().item(), abs=1e-4)


# -- what a checkpoint keeps -------------------------------------------------------------------------------------------


def pieces(rows, *, all_rows, limit=1 << 20):
    return [{name: value.clone() for name, value in p.items()} for p in rows.pieces(limit, all_rows=all_rows)]


def taken(given, n=4):
    rows = ClientRows(torch.zeros(2, dtype=torch.float64), n)
    for piece in given:
        rows.take(piece)
    return rows


def test_pieces_are_taken_back(rows):
    rows.write(torch.tensor([2, 0]), torch.tensor([[0.1, 0.2], [0.3, 1e-17]], dtype=torch.float64))
    rows.mean()
    kept = pieces(rows, all_rows=True)
    rows.write(torch.tensor([1, 2]), torch.zeros(2, 2, dtype=torch.float64))
    rows.reset()
    for piece in kept:
        rows.take(piece)
    other = taken(kept)
    for again in (rows, other):
        assert again.written.tolist() == [True, False, True, False]
        assert again[torch.arange(4)].tolist() == [[0.3, 1e-17], [1, 2], [0.1, 0.2], [1, 2]]
        again.write(torch.tensor([3]), torch.tensor([[0.7, 0.7]], dtype=torch.float64))
    assert rows.mean().tolist() == other.mean().tolist()


def test_pieces_hold_only_what_was_written(rows):
    rows.write(torch.tensor([3]), torch.ones(1, 2, dtype=torch.float64))
    first, second = pieces(rows, all_rows=True)
    assert first.keys() == {"base"}
    assert second["clients"].tolist() == [3] and second["values"].tolist() == [[1, 1]]


def test_pieces_of_what_changed(rows):
    """After what was kept before they give all rows; a failed checkpoint has kept nothing."""
    assert pieces(rows, all_rows=False) == []
    rows.write(torch.tensor([3, 1]), torch.ones(2, 2, dtype=torch.float64))
    whole = pieces(rows, all_rows=True)
    assert rows.changed == {1, 3}
    rows.kept()
    rows.write(torch.tensor([3]), torch.full((1, 2), 5, dtype=torch.float64))
    rows.mean()
    rows.write(torch.tensor([0]), torch.full((1, 2), 6, dtype=torch.float64))
    added, changed = pieces(rows, all_rows=False)
    assert added.keys() == {"sum"} and changed["clients"].tolist() == [0, 3]
    again = taken([*whole, added, changed])
    assert again[torch.arange(4)].tolist() == rows[torch.arange(4)].tolist() == [[6, 6], [1, 1], [1, 2], [5, 5]]
    assert again.mean().tolist() == rows.mean().tolist()


def test_pieces_are_of_moderate_size(rows):
    """16 bytes a row and 8 for its number: two in 50 bytes, one where not even one would fit."""
    rows.write(torch.tensor([3, 1, 0]), torch.ones(3, 2, dtype=torch.float64))
    for limit, expected in ((50, [[0, 1], [3]]), (1, [[0], [1], [3]])):
        found = pieces(rows, all_rows=True, limit=limit)[1:]
        assert [piece["clients"].tolist() for piece in found] == expected
        assert all(piece["values"].tolist() == [[1, 1]] * len(piece["clients"]) for piece in found)


@pytest.mark.parametrize("wrong", [
    {"base": torch.zeros(3, dtype=torch.float64)},
    {"base": torch.zeros(2)},
    {"clients": torch.tensor([1]), "values": torch.zeros(1, 3, dtype=torch.float64)},
    {"clients": torch.tensor([1]), "values": torch.zeros(1, 2)},
    {"clients": torch.tensor([4]), "values": torch.zeros(1, 2, dtype=torch.float64)},
])  # fmt: skip
def test_pieces_of_other_rows_are_refused(wrong, rows):
    with pytest.raises(ValueError, match="another shape or type"):
        rows.take(wrong)


# -- where they are ----------------------------------------------------------------------------------------------------

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.parametrize(("dtype", "shape"), list(itertools.product(TYPES, [(), (3,), (2, 3), (0,)])), ids=str)
def test_a_file_holds_what_memory_holds(dtype, shape, tmp_path):
    """The same writes in any order, the same mixture of rows written and not, bit for bit."""
    draws = torch.Generator().manual_seed(0)
    one, other = ((RowStore(where, tmp_path)(torch.ones(shape).to(dtype), 7)) for where in ("memory", "file"))
    assert not one.in_file and (other.in_file or not one.row_bytes)
    for _ in range(4):
        who = torch.randperm(7, generator=draws)[:3]
        values = torch.randn(3, *shape, generator=draws).mul(100).to(dtype)
        for rows in (one, other):
            rows.write(who, values)
        asked = torch.randint(7, (9,), generator=draws)
        assert torch.equal(one[asked], other[asked]) and one[asked].dtype == dtype
    assert torch.equal(one.written, other.written)
    if dtype.is_floating_point:
        assert torch.equal(one.mean(), other.mean())


def test_a_file_bears_no_name_and_has_room_for_what_is_written(tmp_path):
    """Whatever ends the process, nothing is left; rows in between take no room on the disk."""
    rows = RowStore("file", tmp_path / "later")(torch.zeros(1024), 1_000_000)
    assert not (tmp_path / "later").exists(), "nothing is made before there is something to write"
    rows.write(torch.tensor([999_999]), torch.ones(1, 1024))
    assert list((tmp_path / "later").iterdir()) == []
    about = os.fstat(rows._matrix._file.fileno())
    assert about.st_nlink == 0 and about.st_size == 4096 * 1_000_000
    assert about.st_blocks * 512 < 10 * 4096


def test_rows_go_to_a_file_where_they_may_outgrow_memory(monkeypatch, tmp_path):
    """1,000 bytes free: a quarter of it. Small ones stay in memory beside a large one that does not."""
    monkeypatch.setattr(memory, "available", lambda: 1000)
    assert SHARE == 0.25
    store = RowStore("auto", tmp_path)
    n = 10
    made = [store(torch.zeros(q, dtype=torch.uint8), n) for q in (15, 20, 10, 1)]
    assert [rows.in_file for rows in made] == [False, True, False, True]
    assert [rows.row_bytes for rows in made] == [15, 20, 10, 1]
    assert not RowStore("memory", tmp_path)(torch.zeros(1000), n).in_file
    assert RowStore("file", tmp_path)(torch.zeros(1), n).in_file


def test_device_is_the_networks(tmp_path):
    """Rows lie where the first ones do; on a machine without a GPU that is memory."""
    rows = RowStore("device", tmp_path)(BASE, 3)
    assert not rows.in_file and not rows.on_device
    meta = RowStore("device", tmp_path)(BASE.to("meta"), 3)
    assert meta.on_device and meta[torch.tensor([0, 2])].device == torch.device("meta")


def test_more_than_a_gpus_memory_is_one_clear_error(monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(PflOpsError, match=r"^the state of 1024 clients, 4\.0 GiB, is more than the GPU's free"):
        InMemory(1024, (1 << 20,), torch.float32, torch.device("cuda"))


def test_without_a_folder_files_are_temporary(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = RowStore("file")(BASE, 3)
    assert rows._matrix.folder == Path(tmp_path)


def test_a_store_travels_without_its_rows(tmp_path):
    """Worker processes get the task, and with it where rows would be made."""
    store = RowStore("memory", tmp_path)
    store(torch.zeros(100_000), 10)
    assert len(pickle.dumps(store)) < 1000


def test_more_than_any_memory_is_one_clear_error():
    with pytest.raises(Exception, match=r"the state of 100000000000 clients, .* GiB, .*; use --state file") as caught:
        InMemory(10**11, (10**6,), torch.float32)
    assert "\n" not in str(caught.value)
    assert InFile(Path("anywhere"), (10**6,), torch.float32)._file is None


def test_a_weighted_sum_is_over_all_clients(rows, monkeypatch):
    """0.5 (5, 6) + 0.25 (1, 2) + 2 (7, 8) and nothing of row 3; then row 2 as it is about to be, (1, 0), and row 1 too.

    A row at a time, as if no two fitted into memory; rows without a weight, and those about to change, are not read.
    """
    monkeypatch.setattr("pfl_ops.federation.state.rows.BYTES_AT_ONCE", 1)
    rows.write(torch.tensor([0, 2, 3]), torch.tensor([[5.0, 6], [7, 8], [9, 9]], dtype=torch.float64))
    weights = torch.tensor([0.5, 0.25, 2, 0], dtype=torch.float64)
    assert rows.weighted(weights).tolist() == [16.75, 19.5]
    new = torch.tensor([[4.0, 4], [1, 0]], dtype=torch.float64)
    asked, read = [], rows._read
    monkeypatch.setattr(rows, "_read", lambda clients: (asked.extend(clients.tolist()), read(clients))[1])
    assert rows.weighted(weights, torch.tensor([1, 2]), new).tolist() == [5.5, 4]
    assert asked == [0]
