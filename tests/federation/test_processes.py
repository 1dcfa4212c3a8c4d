"""Messages between processes: what travels in them, what is shared, and what becomes of an error. Processes themselves
are started in test_workers."""

import io
import pickle
from typing import Any

import pytest
import torch

from pfl_ops.federation import processes
from pfl_ops.federation.processes import SHARED_FROM, Shared, _receive, _send, _sendable


def arrived(thing: Any, *outs: Shared) -> tuple[Any, int]:
    """What another process would read, and how many tensors were put into shared memory for it."""
    message, placed = processes._pickle(thing, outs)
    try:
        return pickle.loads(message), len(placed)
    finally:
        for shared in placed:
            shared.close()


@pytest.mark.parametrize(("bytes_", "placed"), [(SHARED_FROM - 4, 0), (SHARED_FROM, 1)])
def test_large_tensors_are_shared_once(bytes_: int, placed: int) -> None:
    rows = torch.arange(bytes_ // 4, dtype=torch.float32).flip(0)
    found, count = arrived({"a": rows, "b": [rows]})
    assert count == placed
    assert torch.equal(found["a"], rows) and torch.equal(found["b"][0], rows)


def test_what_is_written_to_an_out_is_seen() -> None:
    out = Shared((3, 2), torch.float64)
    found, count = arrived({"out": out.tensor, "other": torch.zeros(3)}, out)
    out.close()
    found["out"][1] = 7.0
    assert count == 0 and out.tensor.tolist() == [[0, 0], [7, 7], [0, 0]]


@pytest.mark.parametrize("shape", [(0,), (0, 5)])
def test_nothing_can_be_shared_too(shape: tuple[int, ...]) -> None:
    out = Shared(shape, torch.float32)
    assert out.tensor.shape == shape
    out.close()


def test_functions_inside_functions_travel() -> None:
    offset = 2

    def inner(x: int) -> int:
        return x + offset

    assert arrived(inner)[0](1) == 3


class Odd(Exception):
    """Can be pickled, not read back."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def test_errors_travel_themselves_where_they_can() -> None:
    error = _sendable(ValueError("this step can't"))
    assert type(error) is ValueError and str(error) == "this step can't"
    error = _sendable(Odd(1, 2))
    assert type(error) is RuntimeError and str(error) == "Odd: 1 and 2"


def test_a_message_cut_short_is_none() -> None:
    pipe = io.BytesIO()
    _send(pipe, b"message")
    assert _receive(io.BytesIO(pipe.getvalue())) == b"message"
    for length in (0, 5, 8, 12):
        assert _receive(io.BytesIO(pipe.getvalue()[:length])) is None
