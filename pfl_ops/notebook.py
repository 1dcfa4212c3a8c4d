"""Digests of classes and functions that a notebook's cells define: the same in each kernel, as long as the code is.

Of a script the digest of its file counts, and `values`.
"""

import ast
import contextlib
import hashlib
import io
import linecache
import symtable
import sys
from argparse import Namespace
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from pfl_ops import code_digest
from pfl_ops.code_digest import written

MAIN = "__main__"
SCRIPT = (MAIN, "__mp_main__")
"""Names of the main module: in a process that a script starts by `multiprocessing`, its definitions have the second."""

OF_PROCESS = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__signature__", "_abc_impl",
    "__firstlineno__", "__static_attributes__",  # Python 3.13
)  # fmt: skip
"""Attributes of a class that its text does not say, or that are made from others."""

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


def is_of_main(thing: Any) -> bool:
    """True unless a definition is of a script that a profiler runs, which is the main module itself."""
    own = [each for each in _functions(thing) if _is_within(each, thing)]
    return not own or any(each.__globals__ is vars(sys.modules[MAIN]) for each in own)


def values(thing: Any) -> str:
    """Return the SHA-256 of the numbers and texts that a definition in a script uses, and its text leaves open.

    These are globals that are computed, as of arguments of the command, or set more than once, as by a loop; and what
    definitions keep, see `_kept`. Lists and the like are left out, unless `argparse` has read them, and what the
    definition itself sets (`global`): they may change while a run goes on.

    Args:
        thing: a class or function of the script.
    Returns:
        64 hexadecimal digits; "": there are none.
    """
    tree = code_digest.script()
    if tree is None:
        return ""
    found, said = dict[str, str](), _said(tree)
    waiting, seen = [thing], set[int]()
    while waiting:
        definition = waiting.pop()
        node = None if id(definition) in seen else _node(definition, tree)
        seen.add(id(definition))
        if node is None:
            continue
        parts = list(ast.walk(node))
        attributes = [one for one in parts if isinstance(one, ast.Attribute)]
        used, own = (
            {one.attr for one in attributes},
            {ast.unparse(one) for one in attributes if code_digest.is_set(one)},
        )
        own |= {name for one in parts if isinstance(one, ast.Global) for name in one.names}
        for name in _globals_of(node) - own:
            value = code_digest.unwrapped(vars(sys.modules[MAIN]).get(name, ...))
            if isinstance(value, type | FunctionType) and value.__module__ in SCRIPT:
                waiting.append(value)
            elif isinstance(value, Namespace | SimpleNamespace):
                whole = isinstance(value, Namespace)  # as argparse has read it, lists too
                for part, one in vars(value).items():
                    has_text = _is_plain(one) or (whole and " at 0x" not in written(one))  # an address: of this process
                    if part in used and f"{name}.{part}" not in own and has_text:
                        found[f"{name}.{part}"] = written(_in_order(one))
            elif _is_plain(value) and not (name in said and _is_value_of(said[name], value)):
                found[name] = written(value)
        kept = _kept(definition, node)
        found |= {f"{definition.__qualname__}.{name}": written(value) for name, value in kept if _is_plain(value)}
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest() if found else ""


def _said(tree: ast.Module) -> dict[str, ast.expr]:
    """Names of a file that are set once, by an expression without names or calls -> that expression."""
    bound = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and code_digest.is_set(one)]
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


def _is_plain(value: Any) -> bool:
    """True for a number or text, or a tuple of these."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, code_digest.PLAIN)


def _read(definition: Any) -> tuple[set[Part], list[Any]] | None:
    """Return what a definition is made of, and the notebook's definitions that it names; None: it can't be told."""
    node = _node(definition)
    if node is None:
        return None
    try:
        found = {("definition", str(definition.__qualname__), code_digest.syntax(ast.unparse(node)))}
    except ValueError:  # an integer in base 16, of more digits than Python writes
        return None
    named: list[Any] = [  # set by another cell
        each for each in _functions(definition) if each.__module__ == MAIN and not _is_within(each, definition)
    ]
    modules = set(code_digest.imported_by(node))
    values = {("attribute", name): value for name, value in _kept(definition, node)}
    held: list[tuple[str, Any]] = []
    if isinstance(definition, type) and isinstance(node, ast.ClassDef):
        # bases are those of the time when it was defined: their cell may have been run again since
        bases = [base for base in definition.__bases__ if base.__module__ == MAIN]
        named += [base for base in bases if _is_readable(base)]
        values |= {("base", base.__qualname__): base for base in bases if not _is_readable(base)}
        names = {base.__name__ for base in bases}
        node.bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in names)]
    for name in _globals_of(node):
        value: Any = code_digest.unwrapped(getattr(sys.modules[MAIN], name, None))
        if isinstance(value, ModuleType):
            modules.add(value.__name__)
        elif isinstance(value, type | FunctionType) and (value.__module__ != MAIN or _is_readable(value)):
            held.append((name, value))
        elif value is not None:
            values["value", name] = value
    for (kind, name), value in values.items():
        pickled = _pickled(value)
        if pickled is None:
            return None
        found.add((kind, name, pickled[0]))
        held += [(each.__qualname__, each) for each in pickled[1]]
    for name, value in held:
        if value.__module__ == MAIN:
            named.append(value)
            continue
        modules.add(str(value.__module__))
        if former := code_digest.earlier(value, MAIN):
            found.add(("earlier", name, former))
    beside = (module for module in modules if code_digest.is_beside(module, MAIN))
    stored = code_digest.stored_by(node)
    return found | {("module", module, code_digest.digest(module, stored) or "") for module in beside}, named


def _is_readable(thing: type | FunctionType) -> bool:
    """True if a function or class is the user's, and its source is found."""
    if thing.__module__ == MAIN:
        return _node(thing) is not None
    return code_digest.is_beside(str(thing.__module__), MAIN)


def _kept(definition: Any, node: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a definition keeps, but its text and the notebook's values do not tell any more.

    These are a class's attributes and the arguments' defaults: other cells have set the attribute, or have given other
    values to the names by which it was computed. Left out is what the class itself sets, and a list, dict or set that
    is written out: it may be filled while a run goes on.
    """
    made = {one.lineno: one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
    made |= {one.decorator_list[0].lineno: one for one in made.values() if one.decorator_list}
    for function in _functions(definition):
        here = made.get(function.__code__.co_firstlineno) if _is_within(function, definition) else None
        if here is None:
            continue
        texts = [each for each in (*here.args.defaults, *here.args.kw_defaults) if each is not None]
        given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for number, (text, value) in enumerate(zip(texts, given, strict=False)):
            if not _says(text, value):
                yield f"{function.__qualname__} {number}", value
    if not isinstance(definition, type) or not isinstance(node, ast.ClassDef):
        return
    own = code_digest.stored_by(node)
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
    return now is value or _pickled(now) == _pickled(value) is not None


def _is_of_library(thing: Any) -> bool:
    """True if a value is a module, function or class that no edit of the user changes."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    is_code = isinstance(thing, ModuleType | type | FunctionType | BuiltinFunctionType)
    return is_code and not code_digest.is_beside(str(name), MAIN)


def _node(thing: Any, tree: ast.Module | None = None) -> ast.stmt | None:
    """The last definition of a class or function in the cell that holds its code, or in a script's tree."""
    code = next((each.__code__ for each in _functions(thing) if _is_within(each, thing)), None)
    if code is None or "<locals>" in thing.__qualname__:
        return None
    try:
        tree = tree or ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = [node for node in tree.body if getattr(node, "name", None) == thing.__name__]
    return nodes[-1] if nodes else None


def _functions(thing: Any) -> Iterator[FunctionType]:
    """A function itself, or the functions among a class's own attributes, without their decorators."""
    for part in vars(thing).values() if isinstance(thing, type) else (thing,):
        function = code_digest.unwrapped(getattr(part, "__func__", getattr(part, "fget", part)))
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


def _pickled(value: Any) -> tuple[str, list[Any]] | None:
    """Return the SHA-256 of a value, and the user's functions and classes in it, whose code its pickle names or holds
    with the number of its kernel; None if it can't be pickled."""
    import cloudpickle
    import torch

    held: list[Any] = []
    begun = set[type]()

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return _in_order(thing) if type(thing) in (set, frozenset) and len(thing) > 1 else None

        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is torch.Tensor and thing.layout is torch.strided:  # its pickle holds an address
                flat = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                return tuple, ((str(thing.dtype), tuple(thing.shape), flat.numpy().tobytes()),)
            behind = code_digest.unwrapped(thing)
            if isinstance(behind, type | FunctionType) and _is_readable(behind):
                held.append(behind)
                return str, (f"{behind.__module__} {behind.__qualname__}",)
            if isinstance(thing, type) and thing.__module__ == MAIN:  # a data class, say, without functions
                if thing in begun:  # a member of an enumeration names its class
                    return str, (thing.__qualname__,)
                begun.add(thing)
                parts = {name: part for name, part in vars(thing).items() if not _is_of_process(name, part)}
                return tuple, ((thing.__qualname__, thing.__bases__, parts),)
            if isinstance(thing, TypeVar):
                return str, (repr(thing),)
            if isinstance(thing, CodeType):
                return str, (code_digest.content_of(thing),)
            return super().reducer_override(thing)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception:  # each type has its own
        return None
    return hashlib.sha256(file.getvalue()).hexdigest(), held


def _is_of_process(name: str, part: Any) -> bool:
    """True for an attribute of a class that is another one in each process, or that is made from the others."""
    made = name.startswith("__pydantic_") and name != "__pydantic_fields__"
    return made or name in OF_PROCESS or isinstance(part, MemberDescriptorType)


def _in_order(value: Any) -> Any:
    """Return a list for a set, whose order is another one in each process, and a value without sets itself."""
    if type(value) in (set, frozenset):
        return type(value).__name__, sorted(map(_in_order, value), key=repr)
    return tuple(map(_in_order, value)) if type(value) is tuple else value
