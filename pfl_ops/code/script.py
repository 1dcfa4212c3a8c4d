"""Digests of the values that a script gives to its definitions; of its code, that of its file counts (`digest`)."""

import ast
import contextlib
import hashlib
import sys
from argparse import Namespace
from types import FunctionType, SimpleNamespace
from typing import Any

from pfl_ops.code.definitions import MAIN, SCRIPT, functions_of, globals_of, is_within, node_of
from pfl_ops.code.digest import script_tree
from pfl_ops.code.kept import kept_values
from pfl_ops.code.loaded import unwrapped
from pfl_ops.code.syntax import is_set
from pfl_ops.code.values import in_order, is_plain, written


def values_digest(thing: Any) -> str:
    """Return the SHA-256 of the numbers and texts that a definition in a script uses, and its text leaves open.

    These are globals that are computed, as of arguments of the command, or set more than once, as by a loop; and what
    definitions keep, see `kept_values`. Lists and the like are left out, unless `argparse` has read them, and what the
    definition itself sets (`global`): they may change while a run goes on.

    Args:
        thing: a class or function of the script.
    Returns:
        64 hexadecimal digits; "": there are none.
    """
    tree = script_tree()
    if tree is None:
        return ""
    found, said = dict[str, str](), _said(tree)
    waiting, seen = [thing], set[int]()
    while waiting:
        definition = waiting.pop()
        node = None if id(definition) in seen else node_of(definition, tree)
        seen.add(id(definition))
        if node is None:
            continue
        parts = list(ast.walk(node))
        attributes = [one for one in parts if isinstance(one, ast.Attribute)]
        used, own = (
            {one.attr for one in attributes},
            {ast.unparse(one) for one in attributes if is_set(one)},
        )
        own |= {name for one in parts if isinstance(one, ast.Global) for name in one.names}
        for name in globals_of(node) - own:
            value = unwrapped(vars(sys.modules[MAIN]).get(name, ...))
            if isinstance(value, type | FunctionType) and value.__module__ in SCRIPT:
                waiting.append(value)
            elif isinstance(value, Namespace | SimpleNamespace):
                whole = isinstance(value, Namespace)  # as argparse has read it, lists too
                for part, one in vars(value).items():
                    has_text = is_plain(one) or (whole and " at 0x" not in written(one))  # an address: of this process
                    if part in used and f"{name}.{part}" not in own and has_text:
                        found[f"{name}.{part}"] = written(in_order(one))
            elif is_plain(value) and not (name in said and _is_value_of(said[name], value)):
                found[name] = written(value)
        kept = kept_values(definition, node)
        found |= {f"{definition.__qualname__}.{name}": written(value) for name, value in kept if is_plain(value)}
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest() if found else ""


def is_of_main(thing: Any) -> bool:
    """True unless a definition is of a script that a profiler runs, which is the main module itself."""
    own = [each for each in functions_of(thing) if is_within(each, thing)]
    return not own or any(each.__globals__ is vars(sys.modules[MAIN]) for each in own)


def _said(tree: ast.Module) -> dict[str, ast.expr]:
    """Names of a file that are set once, by an expression without names or calls -> that expression."""
    bound = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and is_set(one)]
    found: dict[str, ast.expr] = {}
    for part in tree.body:
        if not isinstance(part, ast.Assign | ast.AnnAssign) or part.value is None:
            continue
        name = getattr(part.targets[0] if isinstance(part, ast.Assign) else part.target, "id", "")
        if bound.count(name) == 1 and not any(isinstance(one, ast.Name | ast.Call) for one in ast.walk(part.value)):
            found[name] = part.value
    return found


def _is_value_of(expression: ast.expr, value: Any) -> bool:
    """True if an expression without names or calls gives a number or text."""
    with contextlib.suppress(Exception):
        return repr(eval(compile(ast.Expression(expression), "<said>", "eval"), {})) == repr(value)
    return False
