"""Arrays out of the pickle that NumPy writes for a dict of arrays, without unpickling.

`np.savez(file, data={"x": x, "y": y})` stores the dict as an array of objects, which NumPy writes as a pickle (protocol
3 or 4). `pickle.load` calls what a pickle names. Here nothing is imported or called: `pickletools` splits the bytes
into operations, a small stack machine carries out those that make plain values, and the three names by which NumPy
describes an array stand for records of this module. Any other name or operation is refused.
"""

import math
import pickletools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_OPERATIONS = 10_000  # a dict of two arrays has fewer than 100
MAX_DIMENSIONS = 8

_ARRAY, _TYPE, _MAKE = "ndarray", "dtype", "_reconstruct"
_NAMES = {
    "numpy ndarray": _ARRAY,
    "numpy dtype": _TYPE,
    "numpy.core.multiarray _reconstruct": _MAKE,
    "numpy._core.multiarray _reconstruct": _MAKE,
}
"""Names that a pickle may hold, as opcode GLOBAL spells them; NumPy 2 writes `numpy._core`."""

NUMBERS = frozenset(f"{kind}{size}" for kind, sizes in (("f", "248"), ("i", "1248"), ("u", "1248")) for size in sizes)
NUMBERS |= {"b1"}

_SKIPPED = frozenset({"PROTO", "FRAME"})
_VALUES = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"})
_VALUES |= {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class UnsupportedPickle(ValueError):
    """The pickle holds something else than a dict of plain arrays."""


@dataclass(frozen=True)
class _Name:
    """One of the three names that are known."""

    name: str


@dataclass
class _Type:
    """An element type as a pickle describes it: code ("f4", "O8") and byte order ("<", ">", "|")."""

    code: str
    order: str = "|"


@dataclass
class _Array:
    """An array as a pickle describes it; `content`: bytes, or the list of an array of objects."""

    shape: tuple[int, ...] = ()
    type: _Type | None = None
    is_fortran: bool = False
    content: Any = None


@dataclass
class _Machine:
    """The stack and the memo of a pickle; marks are places of the stack."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def take(self, n: int) -> list[Any]:
        """Take the last n values off the stack."""
        low = len(self.stack) - n
        if low < (self.marks[-1] if self.marks else 0):
            raise UnsupportedPickle("it takes more values than there are")
        taken = self.stack[low:]
        del self.stack[low:]
        return taken

    def take_marked(self) -> list[Any]:
        """Take the values since the last mark off the stack."""
        if not self.marks:
            raise UnsupportedPickle("it has no mark")
        return self.take(len(self.stack) - self.marks.pop())

    def top(self, kind: type) -> Any:
        """The last value, which must be of this kind."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or type(self.stack[-1]) is not kind:
            raise UnsupportedPickle(f"it has no {kind.__name__.strip('_').lower()} where one is needed")
        return self.stack[-1]


def read_dict(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a pickled array of objects whose only object is a dict of arrays of numbers.

    Args:
        content: the pickle, as it follows the header of the .npy file.
    Returns:
        the arrays by name; they share the memory of `content` and can't be written.
    Raises:
        UnsupportedPickle: it holds anything else; the message says what.
        ValueError: it is no pickle.
    """
    whole = _evaluate(content)
    if not isinstance(whole, _Array) or whole.shape != () or whole.type is None or whole.type.code[:1] != "O":
        raise UnsupportedPickle("it is no single object")
    if not isinstance(whole.content, list) or len(whole.content) != 1 or not isinstance(whole.content[0], dict):
        raise UnsupportedPickle("the object is no dict")
    found: dict[str, np.ndarray] = {}
    for name, value in whole.content[0].items():
        if not isinstance(name, str) or not isinstance(value, _Array):
            raise UnsupportedPickle("the dict holds something else than arrays by name")
        found[name] = _to_numpy(value)
    return found


def _to_numpy(array: _Array) -> np.ndarray:
    shape, kind, content = array.shape, array.type, array.content
    if kind is None or kind.code not in NUMBERS or kind.order not in ("<", ">", "|"):
        raise UnsupportedPickle(f"an array holds {kind.code[:20] if kind else 'nothing'}, not numbers")
    dtype = np.dtype(f"{kind.order}{kind.code}")
    if not isinstance(content, bytes) or math.prod(shape) * dtype.itemsize != len(content):
        raise UnsupportedPickle("an array's size is not that of its content")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if array.is_fortran else "C")


def _evaluate(content: bytes) -> Any:
    """The value that a pickle describes."""
    m = _Machine()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count >= MAX_OPERATIONS:
            raise UnsupportedPickle(f"it has more than {MAX_OPERATIONS:,} operations")
        if opcode.name == "STOP":
            return m.take(1)[0]
        _execute(m, opcode.name, argument)
    raise UnsupportedPickle("it does not end")


def _execute(m: _Machine, name: str, argument: Any) -> None:
    """Carry out one operation."""
    if name in _SKIPPED:
        pass
    elif name in _VALUES:
        m.stack.append(argument)
    elif name in _CONSTANTS:
        m.stack.append(_CONSTANTS[name])
    elif name in ("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT"):
        m.stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[name])
    elif name == "MARK":
        m.marks.append(len(m.stack))
    elif name in _TUPLES:
        m.stack.append(tuple(m.take(_TUPLES[name])))
    elif name == "TUPLE":
        m.stack.append(tuple(m.take_marked()))
    elif name in ("APPEND", "APPENDS"):
        values = m.take(1) if name == "APPEND" else m.take_marked()
        m.top(list).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        values = m.take(2) if name == "SETITEM" else m.take_marked()
        _set_items(m.top(dict), values)
    elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
        (value,) = m.take(1)
        m.memo[len(m.memo) if name == "MEMOIZE" else argument] = value
        m.stack.append(value)
    elif name in ("BINGET", "LONG_BINGET"):
        if argument not in m.memo:
            raise UnsupportedPickle("it repeats a value that it does not have")
        m.stack.append(m.memo[argument])
    elif name == "GLOBAL":
        m.stack.append(_resolve_name(argument))
    elif name == "STACK_GLOBAL":
        m.stack.append(_resolve_name(" ".join(str(part)[:100] for part in m.take(2))))
    elif name == "REDUCE":
        m.stack.append(_construct(*m.take(2)))
    elif name == "BUILD":
        (described,) = m.take(1)
        _set_state(m.stack[-1] if m.stack else None, described)
    else:
        raise UnsupportedPickle(f"it has the operation {name}")


def _set_items(values: dict[str, Any], pairs: list[Any]) -> None:
    if len(pairs) % 2 or not all(isinstance(key, str) for key in pairs[::2]):
        raise UnsupportedPickle("the keys of a dict are no texts")
    values.update(zip(pairs[::2], pairs[1::2], strict=True))


def _resolve_name(spelled: str) -> _Name:
    if spelled not in _NAMES:
        raise UnsupportedPickle(f"it names {spelled.replace(' ', '.')[:100]}")
    return _Name(_NAMES[spelled])


def _construct(what: Any, arguments: Any) -> _Array | _Type:
    """The record behind `_reconstruct(ndarray, (0,), b"b")` or `dtype("f4", False, True)`."""
    if what == _Name(_MAKE) and arguments == (_Name(_ARRAY), (0,), b"b"):
        return _Array()
    if what == _Name(_TYPE) and isinstance(arguments, tuple) and len(arguments) == 3 and isinstance(arguments[0], str):
        return _Type(arguments[0])
    raise UnsupportedPickle("it calls something else than NumPy's constructors of arrays")


def _set_state(made: Any, described: Any) -> None:
    """Fill in a record: (version, shape, type, is_fortran, content) of an array, (version, order, ...) of a type."""
    if isinstance(made, _Type) and isinstance(described, tuple) and len(described) >= 2:
        if described[1] not in ("<", ">", "|") or any(part is not None for part in described[2:5]):
            raise UnsupportedPickle("an array holds structures, not numbers")
        made.order = described[1]
    elif isinstance(made, _Array) and isinstance(described, tuple) and len(described) == 5:
        _, shape, kind, is_fortran, content = described
        sizes = isinstance(shape, tuple) and len(shape) <= MAX_DIMENSIONS and all(type(n) is int for n in shape)
        if not sizes or any(n < 0 for n in shape) or not isinstance(kind, _Type) or type(is_fortran) is not bool:
            raise UnsupportedPickle("the description of an array is none that NumPy writes")
        made.shape, made.type, made.is_fortran, made.content = shape, kind, is_fortran, content
    else:
        raise UnsupportedPickle("it sets the state of something else than an array")
