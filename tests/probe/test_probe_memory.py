"""The memory that a process held, and errors that say that it did not suffice."""

import pytest
import torch

from pfl_ops.probe import memory
from pfl_ops.system import memory as federation_memory


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: ..."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_say_so(error, told):
    assert federation_memory.out_of_memory(error) is told


def test_pytorch_s_own_error_on_a_cpu_is_one_of_them():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert federation_memory.out_of_memory(caught.value)


def test_threads_are_kept(monkeypatch):
    before = torch.get_num_threads()
    try:
        memory.keep_within(2, 0.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_share_of_a_gpu_is_a_cap_on_each_device(monkeypatch):
    caps = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: caps.update({device: share})
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    memory.keep_within(torch.get_num_threads(), 0.25)
    assert caps == {0: pytest.approx(0.25 * memory.MEMORY_SHARE), 1: pytest.approx(0.25 * memory.MEMORY_SHARE)}
    memory.keep_within(torch.get_num_threads(), 2)
    assert caps[0] == pytest.approx(memory.MEMORY_SHARE)


def test_a_share_for_a_while_is_lifted_again(monkeypatch):
    """Memory that was taken within it is given back before; on a CPU there is nothing to cap."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append("given back"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: seen.append(share))
    with pytest.raises(KeyError), memory.within_share(0.25):
        raise KeyError
    assert seen == [pytest.approx(0.25 * memory.MEMORY_SHARE), "given back", 1.0]
    with memory.within_share(0.0):
        assert len(seen) == 3


@pytest.mark.parametrize(("initialised", "calls"), [(True, ["collected", "given back"]), (False, [])])
def test_memory_is_released_by_a_process_that_has_touched_a_gpu(monkeypatch, initialised, calls):
    """Models in cycles of objects are collected first; without a GPU there is nothing to give back."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(memory.gc, "collect", lambda: seen.append("collected"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append("given back"))
    memory.release()
    assert seen == calls


@pytest.fixture
def device(monkeypatch):
    """A GPU of 16 GiB whose driver tells what is used."""

    def make(used, reserved, peak):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_memory_used", lambda _: used() if callable(used) else used)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: peak)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (9 << 30, 16 << 30))
        properties = type("Properties", (), {"total_memory": 16 << 30})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

    return make


def test_what_cuda_takes_for_itself_is_told_apart(device):
    device(used=4 << 30, reserved=2 << 30, peak=3 << 30)
    assert memory.device_held(before=1 << 30) == memory.HeldMemory(3 << 30, 1 << 30, 15 << 30)


def test_a_driver_that_does_not_tell(device):
    def silent():
        raise ModuleNotFoundError("pynvml")

    device(used=silent, reserved=2 << 30, peak=3 << 30)
    assert memory.device_used() is None
    itself = memory.CUDA_ITSELF
    assert memory.device_held(before=None) == memory.HeldMemory(3 << 30, itself, (11 << 30) + itself)
