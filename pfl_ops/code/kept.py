"""Values that a class or function keeps from the time when it was defined."""

import ast
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from pfl_ops.code.definitions import MAIN, functions_of, is_within
from pfl_ops.code.modules import is_beside
from pfl_ops.code.pickles import pickled
from pfl_ops.code.syntax import stored_by


def kept_values(definition: Any, node: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a definition keeps, but its text and the notebook's values do not tell any more.

    These are a class's attributes and the arguments' defaults: other cells have set the attribute, or have given other
    values to the names by which it was computed. Left out is what the class itself sets, and a list, dict or set that
    is written out: it may be filled while a run goes on.
    """
    made = {one.lineno: one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
    made |= {one.decorator_list[0].lineno: one for one in made.values() if one.decorator_list}
    for function in functions_of(definition):
        here = made.get(function.__code__.co_firstlineno) if is_within(function, definition) else None
        if here is None:
            continue
        texts = [each for each in (*here.args.defaults, *here.args.kw_defaults) if each is not None]
        given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for number, (text, value) in enumerate(zip(texts, given, strict=False)):
            if not _says(text, value):
                yield f"{function.__qualname__} {number}", value
    if not isinstance(definition, type) or not isinstance(node, ast.ClassDef):
        return
    own = stored_by(node)
    written = {
        target.id: part.value
        for part in node.body
        if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
        if isinstance(target, ast.Name)
    }
    bound = {getattr(each, "name", getattr(each, "id", "")) for part in node.body for each in ast.walk(part)}
    used = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for name, value in vars(definition).items():
        if name in own or callable(value) or hasattr(value, "__func__") or hasattr(value, "fget"):
            continue
        if isinstance(value, MemberDescriptorType):  # a slot
            continue
        set_elsewhere = name in used and name not in bound and not name.startswith("__")
        if set_elsewhere or (name in written and not _says(written[name], value)):
            yield name, value


def _says(text: ast.expr, value: Any) -> bool:
    """True if the text of a definition, and the notebook's values as they are now, tell a value that was computed when
    it was defined."""
    try:
        said = ast.literal_eval(text)
        return isinstance(said, list | dict | set) or (type(said) is type(value) and repr(said) == repr(value))
    except (TypeError, ValueError):
        pass
    main = vars(sys.modules[MAIN])
    named = [main[one.id] for one in ast.walk(text) if isinstance(one, ast.Name) and one.id in main]
    if all(map(_is_of_library, named)):
        return True
    if not all(isinstance(one, ast.Name | ast.Attribute | ast.expr_context) for one in ast.walk(text)):
        return False
    first, *names = ast.unparse(text).split(".")
    now = main.get(first)
    for name in names:
        now = getattr(now, name, None)
    return now is value or pickled(now) == pickled(value) is not None


def _is_of_library(thing: Any) -> bool:
    """True if a value is a module, function or class that no edit of the user changes."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    is_code = isinstance(thing, ModuleType | type | FunctionType | BuiltinFunctionType)
    return is_code and not is_beside(str(name), MAIN)
