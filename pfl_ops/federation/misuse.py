"""Faults of a method's author, as one line: what was given, by which function, what was expected."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from pfl_ops.errors import PflOpsError


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
        return f"a {dtype(value)} tensor {list(value.shape)}{device}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {type(value).__name__}"


def dtype(value: Tensor) -> str:
    """Return a tensor's dtype without the package's name."""
    return str(value.dtype).removeprefix("torch.")


__all__ = ["MisuseError", "defined", "dtype", "kind", "name_of"]
