"""Classes and functions that a notebook's cells or a script define: their syntax, functions, and the names they use."""

import ast
import linecache
import symtable
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pfl_ops.code.loaded import unwrapped
from pfl_ops.code.modules import is_beside

MAIN = "__main__"
SCRIPT = (MAIN, "__mp_main__")
"""Names of the main module: in a process that a script starts by `multiprocessing`, its definitions have the second."""


def node_of(thing: Any, tree: ast.Module | None = None) -> ast.stmt | None:
    """The last definition of a class or function in the cell that holds its code, or in a script's tree."""
    code = next((each.__code__ for each in functions_of(thing) if is_within(each, thing)), None)
    if code is None or "<locals>" in thing.__qualname__:
        return None
    try:
        tree = tree or ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = [node for node in tree.body if getattr(node, "name", None) == thing.__name__]
    return nodes[-1] if nodes else None


def functions_of(thing: Any) -> Iterator[FunctionType]:
    """A function itself, or the functions among a class's own attributes, without their decorators."""
    for part in vars(thing).values() if isinstance(thing, type) else (thing,):
        function = unwrapped(getattr(part, "__func__", getattr(part, "fget", part)))
        if isinstance(function, FunctionType):
            yield function


def is_within(function: FunctionType, thing: Any) -> bool:
    """True if a function is a definition itself, or was defined in its body."""
    return f"{function.__qualname__}.".startswith(f"{thing.__qualname__}.")


def globals_of(node: ast.stmt) -> set[str]:
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


def is_readable(thing: type | FunctionType) -> bool:
    """True if a function or class is the user's, and its source is found."""
    if thing.__module__ == MAIN:
        return node_of(thing) is not None
    return is_beside(str(thing.__module__), MAIN)
