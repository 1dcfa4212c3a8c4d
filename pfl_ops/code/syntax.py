"""The code of a module as text, without its words, and the names in it.

Left out are comments, layout, docstrings, annotations, the titles and descriptions of fields, and the messages of
exceptions: rewriting them changes no result.
"""

import ast
import contextlib
import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

from pfl_ops.code.former import MOVED
from pfl_ops.code.values import PLAIN

WORDS = {"title", "description"}
"""Keyword arguments of `Field` that only say something."""


def syntax(source: str) -> str:
    """Return the code of a module as text, one line a node, without what the module's docstring lists.

    The text is the same under all versions of Python that read the source.

    Raises:
        SyntaxError: it is not Python.
    """
    return text_of(ast.parse(source))


def text_of(tree: ast.Module) -> str:
    """Return the same of a module's syntax tree.

    >>> text_of(ast.parse("x = 1  # one")) == text_of(ast.parse("x=1"))
    True
    """
    lines: list[str] = []
    _write(tree, 0, lines)
    return "\n".join(lines)


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the numbers and texts that a module names once and for all, values as Python writes them.

    >>> list(constants(ast.parse("A = -1\\nB = 'b'\\nC = 0\\ndef f():\\n    global C\\n    C += A")))
    [('A', '-1'), ('B', "'b'")]
    """
    bound = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and is_set(one)]
    for part in tree.body:
        targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
        if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None and len(targets) == 1:
            name = getattr(targets[0], "id", "")
            with contextlib.suppress(ValueError, TypeError):
                value = ast.literal_eval(part.value)
                if bound.count(name) == 1 and isinstance(value, PLAIN):
                    yield name, repr(value)


def stored_by(tree: ast.AST) -> frozenset[str]:
    """Return the names of the attributes that code sets, of whatever object.

    >>> sorted(stored_by(ast.parse("a.x = b.y; a.z += 1")))
    ['x', 'z']
    """
    return frozenset(one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute) and is_set(one))


def is_set(node: ast.Name | ast.Attribute) -> bool:
    """Return True where code sets or removes a name or an attribute, False where it reads it."""
    return not isinstance(node.ctx, ast.Load)


def imported_by(tree: ast.AST, package: str = "") -> Iterator[str]:
    """Names of the modules that code of a package imports, inside functions too, their packages included.

    So does `import_module` with the name as a text.

    >>> list(imported_by(ast.parse("def f(): from os import path")))
    ['os', 'os', 'os.path']
    """
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            names = [start, *(f"{start}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            given = [text.value for text in node.args[:1] if isinstance(text, ast.Constant)]
            with contextlib.suppress(ImportError):  # relative to another package than its own
                names = [importlib.util.resolve_name(str(name), package) for name in given]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _write(node: ast.AST, depth: int, lines: list[str]) -> None:
    if isinstance(node, ast.Raise):  # what it says is for the reader
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        lines.append(f"{depth} Raise {ast.unparse(error) if error else ''}")
        return
    if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
        lines.append(f"{depth} Declared {node.target.id}")
        return
    lines.append(f"{depth} {type(node).__name__}")
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_comment", "ctx", "simple", "type_params", "kind"):
            continue
        if isinstance(node, ast.AnnAssign) and field == "target":
            lines.append(f"{depth} = {ast.unparse(node.target)}")
        elif isinstance(value, list):
            kept = [each for each in value if not _is_words(each, node, field)]
            kept = _in_former_order(kept)
            if kept:
                lines.append(f"{depth} .{field} {len(kept)}")
            for each in kept:
                _write_value(each, depth + 1, lines)
        elif value is not None or isinstance(node, ast.Constant):
            lines.append(f"{depth} .{field}")
            former = _former(node) if isinstance(node, ast.ImportFrom) and field == "module" else value
            _write_value(former, depth + 1, lines)


def _write_value(value: object, depth: int, lines: list[str]) -> None:
    if isinstance(value, ast.AST):
        _write(value, depth, lines)
    else:
        lines.append(f"{depth} {type(value).__name__} {value!r}")


def _former(node: ast.ImportFrom) -> str | None:
    """Return the name of the module that names are imported from, as it was before it moved."""
    return node.module if node.level else MOVED.get(node.module or "", node.module)


def _in_former_order(nodes: list[Any]) -> list[Any]:
    """Return statements in which neighbouring imports of ours stand as before a module among them moved: by name."""
    ordered: list[Any] = []
    for ours, group in itertools.groupby(nodes, key=_is_import_of_ours):
        several = list(group)
        if ours and any(node.module in MOVED for node in several):
            several.sort(key=lambda node: str(_former(node)))
        ordered += several
    return ordered


def _is_import_of_ours(node: object) -> bool:
    return isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("pfl_ops.")


def _is_words(child: object, parent: ast.AST, field: str) -> bool:
    """Return True for a part of a node without effect: a docstring (any text that stands alone), a field's title, an
    empty text in an f-string."""
    if field in ("body", "orelse", "finalbody"):
        return (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str)
        )
    if isinstance(child, ast.keyword) and isinstance(parent, ast.Call):
        return _name_of(parent.func) == "Field" and child.arg in WORDS
    return isinstance(parent, ast.JoinedStr) and isinstance(child, ast.Constant) and child.value == ""  # Python 3.12's


def _name_of(function: ast.expr) -> str:
    """The last name of a function that is called."""
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))
