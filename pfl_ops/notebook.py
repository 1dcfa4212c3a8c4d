"""Digests of classes and functions that a notebook's cells define: the same in each kernel, as long as the code is."""

import ast
import hashlib
import inspect
import io
import linecache
import symtable
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from pfl_ops import code_digest

MAIN = "__main__"

Part: TypeAlias = tuple[str, str, str]
"""(kind, name, digest) of something that a definition is made of."""


def digest(thing: Any) -> str | None:
    """Return the SHA-256 of a definition and of what it names in the notebook: definitions, values, the user's modules.

    Args:
        thing: a class or function.
    Returns:
        64 hexadecimal digits; None where the source of a definition is not known (one inside a function among them), or
        a value can't be pickled.
    """
    found: set[Part] = set()
    waiting, seen = [thing], set[int]()
    while waiting:
        definition = waiting.pop()
        if id(definition) in seen:
            continue
        seen.add(id(definition))
        read = _read(definition)
        if read is None:
            return None
        found |= read[0]
        waiting += read[1]
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def _read(definition: Any) -> tuple[set[Part], list[Any]] | None:
    """Return what a definition is made of, and the notebook's definitions that it names; None: it can't be told."""
    node = _node(definition)
    if node is None:
        return None
    found = {("definition", str(definition.__qualname__), code_digest.syntax(ast.unparse(node)))}
    named: list[Any] = [  # set by another cell
        each for each in _functions(definition) if each.__module__ == MAIN and not _is_within(each, definition)
    ]
    modules = set(code_digest.imported_by(node))
    if isinstance(definition, type) and isinstance(node, ast.ClassDef):
        # bases are those of the time when it was defined: their cell may have been run again since
        bases = [base for base in definition.__bases__ if base.__module__ == MAIN]
        named += bases
        names = {base.__name__ for base in bases}
        node.bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in names)]
    for name in _globals_of(node):
        value: Any = getattr(sys.modules[MAIN], name, None)
        value = inspect.unwrap(value)
        if isinstance(value, ModuleType):
            modules.add(value.__name__)
        elif isinstance(value, type | FunctionType) and value.__module__ == MAIN:
            named.append(value)
        elif isinstance(value, type | FunctionType):
            modules.add(str(value.__module__))
            if former := code_digest.earlier(value, MAIN):
                found.add(("earlier", name, former))
        elif value is not None:
            pickled = _pickled(value)
            if pickled is None:
                return None
            found.add(("value", name, pickled))
    beside = (module for module in modules if code_digest.is_beside(module, MAIN))
    return found | {("module", module, code_digest.digest(module) or "") for module in beside}, named


def _node(thing: Any) -> ast.stmt | None:
    """The last definition of a class or function in the cell that holds its code."""
    code = next((each.__code__ for each in _functions(thing) if _is_within(each, thing)), None)
    if code is None or "<locals>" in thing.__qualname__:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = [node for node in tree.body if getattr(node, "name", None) == thing.__name__]
    return nodes[-1] if nodes else None


def _functions(thing: Any) -> Iterator[FunctionType]:
    """A function itself, or the functions among a class's own attributes, without their decorators."""
    for part in vars(thing).values() if isinstance(thing, type) else (thing,):
        function = inspect.unwrap(getattr(part, "__func__", getattr(part, "fget", part)))
        if isinstance(function, FunctionType):
            yield function


def _is_within(function: FunctionType, thing: Any) -> bool:
    """True if a function is a definition itself, or was defined in its body."""
    return f"{function.__qualname__}.".startswith(f"{thing.__qualname__}.")


def _globals_of(node: ast.stmt) -> set[str]:
    """Names that a definition looks up outside of itself; its own only if it uses it."""
    names: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if (symbol.is_referenced() if is_module else symbol.is_global())
        }
    return names


def _pickled(value: Any) -> str | None:
    """SHA-256 of a value; None if it can't be pickled."""
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is torch.Tensor and thing.layout is torch.strided:  # its pickle holds an address
                flat = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                return tuple, ((str(thing.dtype), tuple(thing.shape), flat.numpy().tobytes()),)
            return super().reducer_override(thing)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception:  # each type has its own
        return None
    return hashlib.sha256(file.getvalue()).hexdigest()
