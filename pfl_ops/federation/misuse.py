"""Faults of a method's author, as one line: what was given, by which function, what was expected."""

import ctypes
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.random import MT19937, mtrand
from torch import Tensor

from pfl_ops.errors import PflOpsError

PYTORCHS = "PyTorch's global generator (torch.rand, a new layer, ...)"


class MisuseError(PflOpsError):
    """A verb that is called wrongly, or a step, loss or other function of a method that returns the wrong thing.

    `CheckedMethod` puts the method's name in front, and the line of the call behind where no function is at fault.

    Args:
        message: what was given and what was expected.
        function: which returned it; its file and line end the message.

    Attributes:
        located: the message has a file and line.
    """

    def __init__(self, message: str, function: Callable[..., Any] | None = None) -> None:
        where = "" if function is None else defined(function)
        super().__init__(message + where)
        self.located = bool(where)


class StackingError(MisuseError):
    """A function of a method, written for one client, that PyTorch can't compute for several at once."""


def defined(function: Callable[..., Any]) -> str:
    """Return where a function is defined, as " (mine.py:12)"; "" if it has no code of its own."""
    code = getattr(_plain(function), "__code__", None)
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, or the text of a callable object."""
    return str(getattr(_plain(function), "__name__", function))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under `functools.partial` and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def kind(value: object) -> str:
    """Return how a message names a value: None, a tensor's dtype and shape, or its type."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{_with_article(dtype(value))} tensor {list(value.shape)}{device}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return _with_article(type(value).__name__)


def beyond(numbers: Tensor, n: int) -> str:
    """Return the range of some numbers, "2 to 7", if one of them is not among 0 to n − 1; else "".

    >>> beyond(torch.tensor([2, 7]), 5), beyond(torch.tensor([2, 4]), 5)
    ('2 to 7', '')
    """
    if not numbers.numel() or 0 <= int(numbers.min()) <= int(numbers.max()) < n:
        return ""
    return f"{int(numbers.min())} to {int(numbers.max())}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def dtype(value: Tensor) -> str:
    """Return a tensor's dtype without the package's name."""
    return str(value.dtype).removeprefix("torch.")


@contextmanager
def repeatable(function: Callable[..., Any]) -> Iterator[None]:
    """Refuse a step, a loss or another function of a method that draws from a generator of the process.

    Raises:
        MisuseError: it drew; no seed of the run repeats such draws.
    """
    before = shared_generators()
    yield
    whose = drawn_from(before)
    if whose:
        raise drew(function, whose)


def drew(function: Callable[..., Any], whose: str) -> MisuseError:
    """Return the error of a step, a loss or another function of a method that drew from `whose`."""
    return MisuseError(
        f"{name_of(function)}() drew from {whose}, which the run's seed does not set; draw by r.rng(purpose) "
        "before, and pass the draws, or seeds for them, as rows of carry or ctx",
        function,
    )


def shared_generators() -> dict[str, object]:
    """Return the states of the generators of tensors and arrays that all code of this process shares, by name.

    Python's own (`random`) is not among them: threads of libraries draw from it for the time until they try again.

    >>> state = np.random.get_state()
    >>> before, _ = shared_generators(), np.random.rand()
    >>> drawn_from(before)
    "NumPy's global generator (np.random.rand, ...)"
    >>> np.random.set_state(state)
    """
    torch_states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():
        torch_states += torch.cuda.get_rng_state_all()
    return {
        PYTORCHS: [bytes(state.numpy()) for state in torch_states],
        "NumPy's global generator (np.random.rand, ...)": _numpys_state(),
    }


def _numpys_state() -> object:
    """Return the state of NumPy's global generator.

    NumPy takes 33 µs to copy its words one by one. The state that was read last is still right if the words in memory
    are the same, 0.4 µs, and if it has no second normal number, which is drawn without a word.
    """
    global _numpys_last
    bits = mtrand.get_bit_generator()
    words = ctypes.string_at(bits.ctypes.state_address, MERSENNE_TWISTER_BYTES) if type(bits) is MT19937 else b""
    if words and words == _numpys_last[0]:
        return _numpys_last[1]
    found: Any = np.random.get_state(legacy=True)
    _, key, position, *normal = found
    state = bytes(key), position, *normal
    is_read = words == bytes(key) + position.to_bytes(4, sys.byteorder)
    _numpys_last = (words if is_read and not normal[0] else b"", state)
    return state


MERSENNE_TWISTER_BYTES = 625 * 4
"""624 words and the position of the next one, as NumPy has them in memory."""
_numpys_last: tuple[bytes, object] = (b"", None)
"""The words and the state of NumPy's global generator when they were read last; no words: it has to be read anew."""


def drawn_from(before: dict[str, object]) -> str:
    """Return the name of a shared generator that was drawn from since `before`; "": of none."""
    return next((name for name, state in shared_generators().items() if before[name] != state), "")


def captured(function: Callable[..., Any]) -> Iterator[object]:
    """Yield what a function has bound: its closure, its defaults, arguments of `functools.partial`, its object.

    >>> seen = torch.zeros(2)
    >>> def outer(x):
    ...     return functools.partial(lambda y, z: x, 1.0)
    >>> [thing is seen for thing in captured(outer(seen)) if isinstance(thing, Tensor)]
    [True]
    """
    waiting: list[object] = [function]
    known: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        yield thing
        if isinstance(thing, functools.partial):
            waiting += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            waiting += [thing.__self__, thing.__func__]
        elif isinstance(thing, FunctionType):
            waiting += [value for cell in thing.__closure__ or () for value in _content(cell)]
            waiting += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]


def _content(cell: CellType) -> list[object]:
    """The value of a closure's cell; none: the name has no value yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []
