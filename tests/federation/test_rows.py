"""State of all clients: lazily written rows and their mean."""

import pytest
import torch

from pfl_ops.federation.rows import ClientRows

BASE = torch.tensor([1.0, 2.0], dtype=torch.float64)


@pytest.fixture(params=["memory", "file"])
def rows(request, tmp_path):
    return ClientRows(BASE, 4, tmp_path / "rows" if request.param == "file" else None)


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


def test_snapshot_and_restore(rows, tmp_path):
    rows.write(torch.tensor([2, 0]), torch.tensor([[0.1, 0.2], [0.3, 1e-17]], dtype=torch.float64))
    rows.mean()
    kept = {name: value.clone() for name, value in rows.snapshot().items()}
    rows.write(torch.tensor([1, 2]), torch.zeros(2, 2, dtype=torch.float64))
    other = ClientRows(torch.zeros(2, dtype=torch.float64), 4)
    for again in (rows, other):
        again.restore(kept)
        assert again.written.tolist() == [True, False, True, False]
        assert again[torch.arange(4)].tolist() == [[0.3, 1e-17], [1, 2], [0.1, 0.2], [1, 2]]
        again.write(torch.tensor([3]), torch.tensor([[0.7, 0.7]], dtype=torch.float64))
    assert rows.mean().tolist() == other.mean().tolist()


def test_a_snapshot_holds_only_what_was_written(rows):
    rows.write(torch.tensor([3]), torch.ones(1, 2, dtype=torch.float64))
    assert {name: tuple(value.shape) for name, value in rows.snapshot().items()} == {
        "clients": (1,), "values": (1, 2), "base": (2,)
    }  # fmt: skip
