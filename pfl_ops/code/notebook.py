"""Digests of classes and functions that a notebook's cells define: the same in each kernel, as long as the code is."""

import ast
import hashlib
import sys
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from pfl_ops.code.definitions import MAIN, functions_of, globals_of, is_readable, is_within, node_of
from pfl_ops.code.digest import module_digest
from pfl_ops.code.kept import kept_values
from pfl_ops.code.loaded import earlier, unwrapped
from pfl_ops.code.modules import is_beside
from pfl_ops.code.pickles import pickled
from pfl_ops.code.syntax import imported_by, stored_by, syntax

Part: TypeAlias = tuple[str, str, str]
"""(kind, name, digest) of something that a definition is made of."""


def definition_digest(thing: Any) -> str | None:
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
    node = node_of(definition)
    if node is None:
        return None
    try:
        found = {("definition", str(definition.__qualname__), syntax(ast.unparse(node)))}
    except ValueError:  # an integer in base 16, of more digits than Python writes
        return None
    named: list[Any] = [  # set by another cell
        each for each in functions_of(definition) if each.__module__ == MAIN and not is_within(each, definition)
    ]
    modules = set(imported_by(node))
    values = {("attribute", name): value for name, value in kept_values(definition, node)}
    held: list[tuple[str, Any]] = []
    if isinstance(definition, type) and isinstance(node, ast.ClassDef):
        # bases are those of the time when it was defined: their cell may have been run again since
        bases = [base for base in definition.__bases__ if base.__module__ == MAIN]
        named += [base for base in bases if is_readable(base)]
        values |= {("base", base.__qualname__): base for base in bases if not is_readable(base)}
        names = {base.__name__ for base in bases}
        node.bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in names)]
    for name in globals_of(node):
        value: Any = unwrapped(getattr(sys.modules[MAIN], name, None))
        if isinstance(value, ModuleType):
            modules.add(value.__name__)
        elif isinstance(value, type | FunctionType) and (value.__module__ != MAIN or is_readable(value)):
            held.append((name, value))
        elif value is not None:
            values["value", name] = value
    for (kind, name), value in values.items():
        content = pickled(value)
        if content is None:
            return None
        found.add((kind, name, content[0]))
        held += [(each.__qualname__, each) for each in content[1]]
    for name, value in held:
        if value.__module__ == MAIN:
            named.append(value)
            continue
        modules.add(str(value.__module__))
        if former := earlier(value, MAIN):
            found.add(("earlier", name, former))
    beside = (module for module in modules if is_beside(module, MAIN))
    stored = stored_by(node)
    return found | {("module", module, module_digest(module, stored) or "") for module in beside}, named
