"""A device that is not the CPU, simulated: its tensors hold real numbers, and whatever leaves it is counted.

PyTorch's `FakeTensorMode` holds no numbers, so that it ends at the first value that a program looks at; and with device
"cuda" it can't run a backward pass where there is no driver (PyTorch 2.15: "hasPrimaryContext expects a valid device
index"). Here a tensor of the simulated device wraps a CPU tensor and is computed by it; PyTorch sees the device "meta",
for which it starts no driver. An operation on tensors of both devices fails as it would with CUDA.
"""

import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import pfl_ops
from pfl_ops.bench.gpu_check.waits import around_steps
from pfl_ops.federation.execution import choose

DEVICE = torch.device("meta")
ROOT = Path(pfl_ops.__file__).parent
aten = torch.ops.aten

WAITS = {
    aten._local_scalar_dense: "item",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.equal: "equal",
    aten._unique2: "unique",
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique",
    aten.bincount: "bincount",
    aten.repeat_interleave: "repeat_interleave",
}
"""Operations for which a GPU's host waits: their result, or its shape, depends on values."""

RESHAPING = {aten.squeeze_, aten.unsqueeze_, aten.t_, aten.transpose_}
"""Operations that change a tensor's shape in place: the wrapper's, too."""

INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""Operations whose indices may be on the CPU while the rest is on the device."""


class Wait(NamedTuple):
    """A moment at which the host waits for the device: the kind of operation, and the line of pfl_ops that asks."""

    kind: str
    place: str


class OnDevice(Tensor):
    """A tensor of the simulated device; `host` has its numbers."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.host = host
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise AssertionError(f"{func} outside of `simulated_device()`")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert a tensor of the simulated device to numpy; use .cpu() first")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert a tensor of the simulated device to numpy; use .cpu() first")

    def __repr__(self, **kwargs: Any) -> str:
        return f"OnDevice({self.host!r})"


class Simulated(TorchDispatchMode):
    """Computes what is asked of the device, and notes where the host waits for it.

    Attributes:
        waits: how often, by kind and place; all of them. in_steps: those between a chunk's first batch and its last.
        to_host: bytes of each copy to the host, by the place that asks for it.
        chunks: of clients whose steps were taken. stepping: True while a chunk's batches are taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[Wait] = Counter()
        self.in_steps: Counter[Wait] = Counter()
        self.to_host: dict[str, list[int]] = {}
        self.chunks = 0
        self.stepping = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `torch.compile`'s switch out, which costs as much as a small operation; nothing is compiled here."""
        return False

    def begin_steps(self) -> None:
        """A chunk's first batch is about to be taken."""
        self.stepping = True
        self.chunks += 1

    def end_steps(self) -> None:
        """A chunk's last step is over."""
        self.stepping = False

    def note(self, kind: str, size: int = 0) -> None:
        """Count a wait; `size`: bytes that are copied to the host."""
        wait = Wait(kind, _place())
        self.waits[wait] += 1
        if self.stepping:
            self.in_steps[wait] += 1
        if size:
            self.to_host.setdefault(wait.place, []).append(size)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        ours: list[OnDevice] = []
        others: list[Tensor] = []
        on_host, kwargs_on_host = _on_host(args, ours, others), _on_host(kwargs or {}, ours, others)
        packet = func.overloadpacket
        asked = kwargs_on_host.get("device")
        there = bool(ours) if asked is None else torch.device(asked).type == DEVICE.type
        if asked is not None:
            kwargs_on_host["device"] = torch.device("cpu")
        if packet is aten.copy_:
            if ours and others:
                self.note("copy_")
        elif packet in INDEXING and isinstance(args[0], OnDevice):
            self._note_indices(packet, args)
        elif ours and any(value.dim() for value in others):
            raise RuntimeError(f"{packet} got tensors of the simulated device and of the CPU")
        if ours and packet in WAITS:
            self.note(WAITS[packet])
        if packet is aten._to_copy and there != bool(ours):
            self.note("to device" if there else "to host", 0 if there else args[0].numel() * args[0].element_size())
        result = func(*on_host, **kwargs_on_host)
        if packet in RESHAPING:
            with no_dispatch():
                return func(*args, **(kwargs or {}))
        return _wrapped(result, {id(value.host): value for value in ours}) if there else result

    def _note_indices(self, packet: Any, args: Sequence[Any]) -> None:
        indices = [index for index in args[1] if index is not None]
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        if any(not isinstance(index, OnDevice) for index in indices):
            self.note("index of the host")
        fills = packet is not aten.index and len(indices) == 1 and args[2].numel() == 1
        if masks and not fills:  # one value behind a mask is written without looking at the mask
            self.note("mask as an index")


class _Calls(TorchFunctionMode):
    """Functions that PyTorch answers for the device "meta" without numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            made = func(*args, **{**kwargs, "device": "cpu"})
            return made if isinstance(made, OnDevice) else made.to(DEVICE)
        return func(*args, **kwargs)


def _on_host(value: Any, ours: list[OnDevice], others: list[Tensor]) -> Any:
    """An operation's arguments with the numbers of tensors of the device; `ours`, `others`: take the tensors met.

    PyTorch's `tree_flatten` took a quarter of these tests' time.
    """
    if isinstance(value, OnDevice):
        ours.append(value)
        return value.host
    if isinstance(value, Tensor):
        others.append(value)
        return value
    if isinstance(value, (tuple, list)):
        return type(value)([_on_host(one, ours, others) for one in value])
    if isinstance(value, dict):
        return {key: _on_host(one, ours, others) for key, one in value.items()}
    return value


def _wrapped(value: Any, known: Mapping[int, OnDevice]) -> Any:
    """A result's tensors as those of the device: one of `known`, by the identity of its numbers, or a new one."""
    if isinstance(value, (tuple, list)):
        return type(value)([_wrapped(one, known) for one in value])
    if not isinstance(value, Tensor):
        return value
    if id(value) in known:
        same = known[id(value)]
        assert same.shape == value.shape, "an operation that changes a shape in place is not in `RESHAPING`"
        return same
    return OnDevice(value)


def _place() -> str:
    """The innermost line of the package on the stack, as "file:function"."""
    frame = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if ROOT in file.parents:
            return f"{file.name}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "".join(traceback.format_stack(limit=12))


@contextmanager
def simulated_device() -> Iterator[Simulated]:
    """The device, for as long as the block lasts: `device="auto"` and `"cpu"` of an execution mean it."""
    mode = Simulated()
    there = mock.patch.object(choose, "device", lambda *_: DEVICE)
    with there, around_steps(mode.begin_steps, mode.end_steps), mode, _Calls():
        yield mode


__all__ = ["DEVICE", "OnDevice", "Simulated", "Wait", "simulated_device"]
