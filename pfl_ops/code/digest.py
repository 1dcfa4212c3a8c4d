"""Digests of modules that change with what their code does, and not with its words (`syntax`).

A digest is taken of the syntax trees of a module and of the modules beside it that it imports. Not covered are modules
that are imported under a computed name, and data files that code reads.
"""

import ast
import hashlib
import operator
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from pfl_ops.code.former import EQUAL
from pfl_ops.code.loaded import codes_in, earlier, other_constants, other_functions, values_in
from pfl_ops.code.modules import PLUGIN, is_beside, packed_source, source_file
from pfl_ops.code.syntax import constants, imported_by, stored_by, text_of


class _Code(NamedTuple):
    """A module's file, and how far the module that was loaded differs from it.

    source: of the file. digest: SHA-256 of its code. imported: names of modules. constants: name -> number or text, as
    literals that nothing else in the file replaces. stored: names of attributes that it sets, of whatever object. tree:
    of a script.
    """

    source: bytes
    digest: str
    imported: tuple[str, ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    stored: frozenset[str] = frozenset()
    tree: ast.Module | None = None


_found: dict[tuple[str, Path], tuple[object, list[CodeType], _Code]] = {}
"""Of each module that was read: its spec, of which each loading makes another one, and the code of its functions, which
IPython's autoreload may replace without loading the module, and `%run` each time that it runs a script."""


def module_digest(name: str, stored: Collection[str] = ()) -> str | None:
    """Return the SHA-256 of a module's code and of that of the modules beside it that it imports, directly or not.

    Beside a module are: files that belong to no installed package but its own; and, of pfl-ops, the helpers of methods,
    networks and partitions. The engine is not: `identity.RESULTS_VERSION` speaks for it.
    A module is read each time that Python loads it, once in most processes; notebooks reload modules.

    Args:
        name: the module's; it has been imported. stored: names of attributes that others set while a run goes on.
    Returns:
        64 hexadecimal digits, of two that are `EQUAL` the former's; None where the module has no file with source (a
        notebook).
    """
    found: dict[str, str] = {}
    read = _read_with(name)
    if not read:
        return None
    for module, code in read.items():
        key = "" if module == name else module  # the name of a plug-in's module is made from its bytes
        others = (thing for thing in values_in(module) if getattr(thing, "__module__", None) != module)
        found[key] = code.digest + "".join(sorted({text for thing in others if (text := earlier(thing, name))}))
    stored = {*stored, *(attribute for code in read.values() for attribute in code.stored)}
    for module, code in read.items():
        other = [(constant, now) for constant, now, _ in other_constants(module, code.constants, stored)]
        found["" if module == name else module] += hashlib.sha256(repr(other).encode()).hexdigest() if other else ""
    taken = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return EQUAL.get(taken, taken)


def beside(name: str) -> Iterator[tuple[str, Path, bytes]]:
    """Yield the user's modules that `module_digest` covers, but for plug-ins and scripts: name, file, source as read.

    >>> list(beside("pfl_ops.algorithms.fedavg"))
    []
    """
    for module, code in _read_with(name).items():
        if not module.startswith((PLUGIN, "pfl_ops.", "__main__")) and (path := source_file(module)):
            yield module, path, code.source


def set_elsewhere(name: str, beside_it: Collection[str]) -> Iterator[tuple[str, Path, str, str]]:
    """Yield (name, file, value now, value in the file) of constants that enter a module's digest as another value.

    Args:
        name: the module's. beside_it: modules whose code may set them: other processes import these too.
    """
    roots = {root: _read_with(root) for root in (name, *beside_it)}
    stored = {attribute for read in roots.values() for code in read.values() for attribute in code.stored}
    for module, code in roots[name].items():
        for constant, now, text in other_constants(module, code.constants, stored):
            if path := source_file(module):
                yield constant, path, now, text


def script_tree() -> ast.Module | None:
    """Return the syntax tree of the script that runs; None: a notebook, or nothing that Python reads."""
    path = source_file("__main__")
    return _read_as_loaded("__main__", path).tree if path else None


def _read_with(name: str) -> "dict[str, _Code]":
    """Read a module and the modules beside it that it imports, directly or not; {}: it has no file with source."""
    found: dict[str, _Code] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        path = source_file(module) if module == name or is_beside(module, name) else None
        if path is not None and module not in found:
            found[module] = _read_as_loaded(module, path)
            waiting += found[module].imported
    return found


def _read_as_loaded(module: str, path: Path) -> _Code:
    """Read a module, or return what was read when it was loaded."""
    spec, functions = getattr(sys.modules.get(module), "__spec__", None), list(codes_in(module))
    known = _found.get((module, path))
    if known is not None and module.startswith(PLUGIN):  # its file may be gone, where another one has the same bytes
        return known[2]
    same = known is not None and known[0] is spec and len(known[1]) == len(functions)
    if known is None or not same or not all(map(operator.is_, known[1], functions)):
        known = _found[module, path] = (spec, functions, _read(module, path))
    return known[2]


def _read(module: str, path: Path) -> _Code:
    """Read a module's source as its loader has it, else its file as it is now."""
    source = packed_source(module)
    source = path.read_bytes() if source is None else source
    try:
        tree = ast.parse(source)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        if module == "__main__":  # python -m
            package = sys.modules[module].__package__ or ""
        imported = tuple(dict.fromkeys(imported_by(tree, package)))
        text = text_of(tree).encode()
        other = "" if module.startswith("pfl_ops.") else other_functions(module, source, path)
    except (SyntaxError, ValueError, RecursionError):  # no code of Python's, or nested too deep for this: its bytes
        return _Code(source, hashlib.sha256(source).hexdigest())
    digest = hashlib.sha256(text).hexdigest() + other
    script = tree if module == "__main__" else None
    return _Code(source, digest, imported, tuple(constants(tree)), stored_by(tree), script)
