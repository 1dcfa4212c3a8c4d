"""Messages between processes: what travels in them, what is shared, and what becomes of an error. Processes themselves
are started in test_workers."""

import gc
import os
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from pfl_ops.federation.execution import processes
from pfl_ops.federation.execution.processes import SHARED_FROM, Memory, SharedMemoryPool, raised


def arrived(thing: Any, outs: dict[int, Memory] | None = None) -> tuple[Any, int]:
    """Return what another process would read, and how many tensors were put into shared memory for it."""
    message, placed = processes._pickle(thing, SharedMemoryPool().take, outs or {})
    return pickle.loads(message), len(placed)


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has mapped nothing yet."""
    monkeypatch.setattr(processes, "_mapped", {})


def test_parametrized_layer_travels_whole() -> None:
    """PyTorch refuses to pickle `weight_norm` and its kind."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    other, x = arrived({"layer": layer})[0]["layer"], torch.ones(1, 3)
    assert other(x).equal(layer(x)) and list(other.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize(("bytes_", "placed"), [(SHARED_FROM - 4, 0), (SHARED_FROM, 1)])
def test_large_tensors_are_shared_once(bytes_: int, placed: int) -> None:
    rows = torch.arange(bytes_ // 4, dtype=torch.float32).flip(0)
    found, count = arrived({"a": rows, "b": [rows]})
    assert count == placed
    assert torch.equal(found["a"], rows) and torch.equal(found["b"][0], rows)


def test_what_is_written_to_an_out_is_seen() -> None:
    memory = SharedMemoryPool().take((3, 2), torch.float64)
    out = memory.tensor((3, 2), torch.float64)
    found, count = arrived({"out": out, "other": torch.zeros(3)}, {id(out): memory})
    found["out"][1] = 7.0
    assert count == 0 and out.tolist() == [[0, 0], [7, 7], [0, 0]]


@pytest.mark.parametrize("shape", [(0,), (0, 5)])
def test_nothing_can_be_shared_too(shape: tuple[int, ...]) -> None:
    assert SharedMemoryPool().take(shape, torch.float32).tensor(shape, torch.float32).shape == shape


def test_memory_is_used_again_and_mapped_once() -> None:
    memories, rows = SharedMemoryPool(), torch.ones(SHARED_FROM)
    seen = []
    for number in (1, 2):
        message, [memory] = processes._pickle(number * rows, memories.take, {})
        found = pickle.loads(message)
        assert torch.equal(found, number * rows)
        seen.append((memory, found.untyped_storage().data_ptr()))
        memories.give(memory)
    assert seen[0] == seen[1]


def test_two_messages_at_a_time_have_memory_of_their_own() -> None:
    memories = SharedMemoryPool()
    one, two = (memories.take((8,), torch.int64) for _ in range(2))
    assert one is not two and one.number != two.number
    memories.give(one)
    assert memories.take((8,), torch.int32) is one, "half of it will do"
    memories.give(one)
    assert memories.take((1,), torch.int32) is not one, "a sixteenth would waste it"
    assert memories.take((9,), torch.int64) is not one


def test_the_largest_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "KEPT_UP_TO", 64)
    memories = SharedMemoryPool()
    memory = memories.take((9,), torch.int64)
    path, tensor = memory.path, memory.tensor((9,), torch.int64)
    memories.give(memory)
    assert memories.take((9,), torch.int64) is not memory
    assert not os.path.exists(path) and tensor.fill_(3).sum() == 27, "what was in it stays as long as it is held"


def test_memory_goes_with_who_gives_it() -> None:
    memory = SharedMemoryPool().take((9,), torch.int64)
    path = memory.path
    assert os.path.exists(path)
    del memory
    gc.collect()
    assert not os.path.exists(path)


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
    error = raised(ValueError("this step can't")).error
    assert type(error) is ValueError and str(error) == "this step can't"
    error = raised(Odd(1, 2)).error
    assert type(error) is RuntimeError and str(error) == "Odd: 1 and 2"
