"""Digests of classes and functions that a notebook's cells define: the same in each kernel, as long as the code is."""

import ast
import hashlib
import inspect
import io
import linecache
import symtable
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pfl_ops import code_digest

MAIN = "__main__"


def digest(thing: Any) -> str | None:
    """Return the SHA-256 of a definition and of what it names in the notebook: definitions, values, the user's modules.

    Args:
        thing: a class or function.
    Returns:
        64 hexadecimal digits; None where the source of a definition is not known (one inside a function among them), or
        a value can't be pickled.
    """
    found: dict[str, str] = {}
    waiting = [thing]
    while waiting:
        definition = waiting.pop()
        node = _node(definition)
        if node is None:
            return None
        found[f"definition {definition.__qualname__}"] = code_digest.syntax(ast.unparse(node))
        modules = set(code_digest.imported_by(node))
        for name in sorted(_globals_of(node)):
            value = getattr(sys.modules[MAIN], name, None)
            if isinstance(value, ModuleType):
                modules.add(value.__name__)
            elif isinstance(value, type | FunctionType) and value.__module__ == MAIN:
                if f"definition {value.__qualname__}" not in found:
                    waiting.append(value)
            elif isinstance(value, type | FunctionType):
                modules.add(value.__module__)
            elif value is not None:
                pickled = _pickled(value)
                if pickled is None:
                    return None
                found[f"value {name}"] = pickled
        for module in modules:
            if code_digest.is_beside(module, MAIN):
                found[f"module {module}"] = code_digest.digest(module) or ""
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def _node(thing: Any) -> ast.stmt | None:
    """The last definition of a class or function in the cell that holds its code."""
    code = next(_code(thing), None)
    if code is None or "<locals>" in thing.__qualname__:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = [node for node in tree.body if getattr(node, "name", None) == thing.__name__]
    return nodes[-1] if nodes else None


def _code(thing: Any) -> Iterator[CodeType]:
    """Code of a function, or of the functions that a class defines itself."""
    parts = vars(thing).values() if isinstance(thing, type) else (thing,)
    for part in parts:
        function = inspect.unwrap(getattr(part, "__func__", getattr(part, "fget", part)))
        if isinstance(function, FunctionType) and function.__qualname__.startswith(thing.__qualname__):
            yield function.__code__


def _globals_of(node: ast.stmt) -> set[str]:
    """Names that a definition looks up outside of itself."""
    names: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() or (is_module and symbol.is_referenced())
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
