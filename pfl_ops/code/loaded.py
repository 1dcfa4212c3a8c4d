"""Code that Python has loaded, where it differs from its file: edited, reloaded, or set by others."""

import hashlib
import inspect
import sys
import warnings
from collections.abc import Collection, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from pfl_ops.code.modules import PLUGIN, is_beside
from pfl_ops.code.values import PLAIN, written

OF_CODE = (
    "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount", "co_flags",
)  # fmt: skip
"""Attributes of code that decide what it computes, beside its constants."""


def content_of(code: CodeType) -> str:
    """Return what decides the results of code as text: without its file and its lines."""
    parts = [repr(getattr(code, part)) for part in OF_CODE]
    for const in code.co_consts:
        text = content_of(const) if isinstance(const, CodeType) else repr(const)
        parts.append(repr(sorted(map(repr, const))) if isinstance(const, frozenset) else text)
    return f"({' '.join(parts)})"


def other_constants(
    module: str, constants: tuple[tuple[str, str], ...], stored: Collection[str]
) -> list[tuple[str, str, str]]:
    """Return (name, value, value in the file) of the constants of a module that have another value than its file says.

    Another module, or a notebook, has set them, or the file was edited after it had been loaded. Left out are names of
    attributes that some file sets (`stored`): their values may change while a run goes on.
    """
    there = sys.modules.get(module)
    if there is None or module == "__main__":  # of a script: `script.values_digest`
        return []
    now = {name: vars(there).get(name) for name, _ in constants if name not in stored and hasattr(there, name)}
    plain = {name: written(value) for name, value in now.items() if isinstance(value, PLAIN)}
    return [(name, plain[name], text) for name, text in constants if plain.get(name, text) != text]


def other_functions(module: str, source: bytes, path: Path) -> str:
    """Return SHA-256 of the functions of a module that its file does not have; "": it has all.

    The file was edited after it had been loaded. Functions of other files are decorators' or made by a call. Nothing is
    said of modules whose code their loader changes.
    """
    there = sys.modules.get(module)
    loader = type(getattr(there, "__loader__", None))
    if getattr(loader, "source_to_code", None) is not SourceFileLoader.source_to_code:
        return ""
    loaded = [
        content_of(code)
        for thing in values_in(module)
        if getattr(thing, "__module__", None) == module
        for code in codes_of(thing)
        if (file := Path(code.co_filename)) == path or (not file.is_absolute() and file.name == path.name)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it was imported
        written, waiting = set[str](), [compile(source, str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        written.add(content_of(code))
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    other = [each for each in loaded if each not in written]
    return hashlib.sha256("\n".join(other).encode()).hexdigest() if other else ""


def earlier(thing: object, root: str) -> str:
    """Return the SHA-256 of the code of a function or class that its module does not have any more.

    It was imported by name before its module was loaded again.

    Args:
        root: the module that a digest is taken of.
    Returns:
        64 hexadecimal digits; "": its module has it, or is not beside the root.

    >>> earlier(earlier, "__main__"), earlier(3, "__main__")
    ('', '')
    """
    if not isinstance(thing, type | FunctionType) or not is_beside(str(thing.__module__), root):
        return ""
    now: Any = sys.modules.get(thing.__module__)
    if now is None or any(value is thing for value in list(vars(now).values())):
        return ""
    for name in thing.__qualname__.split("."):
        if (now := getattr(now, name, None)) is None:
            return ""
        now = unwrapped(now)
    codes = list(codes_of(thing))
    if now is thing or list(codes_of(now)) == codes:
        return ""
    return hashlib.sha256("\n".join(map(content_of, codes)).encode()).hexdigest()


def unwrapped(thing: Any) -> Any:
    """Return the function behind its decorators, and any other value itself, whatever attributes it makes up."""
    try:
        return inspect.unwrap(thing) if callable(thing) else thing
    except Exception:  # of its own, or a loop
        return thing


def codes_in(module: str) -> Iterator[CodeType]:
    """The code of the functions of a module of the user, and of those of its classes."""
    if module.startswith(PLUGIN):  # nothing replaces these
        return
    for thing in values_in(module):
        if getattr(thing, "__module__", None) == module:
            yield from codes_of(thing)


def codes_of(thing: object) -> Iterator[CodeType]:
    """The code of a function, or of the functions of a class, without their decorators."""
    for part in list(vars(thing).values()) if isinstance(thing, type) else [thing]:
        function = part.__func__ if isinstance(part, staticmethod | classmethod) else part
        function = function.fget if isinstance(function, property) else function
        function = unwrapped(function)
        if isinstance(function, FunctionType):
            yield function.__code__


def values_in(module: str) -> list[object]:
    """The values of a module of the user; nothing replaces functions of ours."""
    there = None if module.startswith("pfl_ops.") else sys.modules.get(module)
    return list(vars(there).values()) if there else []
