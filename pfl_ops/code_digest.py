"""Digests of Python code that change with what the code does, and not with its words.

A digest is taken of the syntax trees of a module and of the modules beside it that it imports. Left out are comments,
layout, docstrings, annotations, the titles and descriptions of fields, and the messages of exceptions: rewriting them
changes no result. Not covered are modules that are imported under a computed name, and data files that code reads.
"""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import itertools
import operator
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

PLUGIN = "pfl_ops_plugin_"
"""Beginning of the names of plug-ins' modules; the rest is made from their bytes."""
PARTS = ("pfl_ops.algorithms", "pfl_ops.models", "pfl_ops.data")
"""Packages with methods, networks, partitions, and helpers of theirs."""

ENGINE = {"pfl_ops.algorithms.base", "pfl_ops.models.base", "pfl_ops.data.shakespeare", "pfl_ops.data.store"} | {
    f"pfl_ops.data.{name}"
    for name in (
        *("by_client", "clients", "datasets", "download", "features", "npz", "partition", "partition_files"),
        *("remarks", "sources"),
    )
}
"""Modules in these packages that all runs need."""

MOVED = {
    "pfl_ops.federation.method.contract": "pfl_ops.federation.contract",
    "pfl_ops.federation.method.round": "pfl_ops.federation.round",
    "pfl_ops.federation.network.cross_entropy": "pfl_ops.federation.leaves",
    "pfl_ops.system.scratch": "pfl_ops.scratch",
}
"""New name of a module of ours -> the name by which a digest knows it, and sorts the import of it.

A digest covers import statements, and is part of a run's hash: without this table, moving a module of the engine would
change the hashes of all methods that import it, and their finished runs would be computed again.
"""

EQUAL = {
    "49691e8a5e922afa57479a0105cdc97a2e6b931c1b9b81708d38f80f3b9d2ff9": (  # fedfomo: `own`
        "5bc6aa339ea785e220a1b879e7b9de6c5981d24bc33032bbb31a04aca6d755e2"
    ),
    "560097b4dc72eccf081f92d0ab23d1eccae7641ad6f07e61d820f8bad2433943": (  # proportions: no client loop, α up to 1e100
        "1a1c014522ad7d9319f4c7ebf30b7b4641bab83961831f38f6ffc82492054583"
    ),
    "0c2b6bf3b9ddaeaaa81e25e9b17b51bf3975460bc6ee0867744ecac87bef0c4a": (  # whole_classes likewise
        "bf4334e4020775e98980325eb93f7076d0fc7b4358ad01de2ffd11cee3cca52d"
    ),
    "7bd52eda5bd8c838e2dd564fd4a070ecc627269b9b91058d8e085a91717b24af": (  # sorted_shards likewise
        "d5084f9c42650af3f1f2c7e699b20b0ff7bbb4a579b933eaa819da44908fff24"
    ),
    "69fad9e4e0f32820c89a6e63c290f3c20ab41e7ad47abe684c3da84c43dba2ce": (  # cd2_pfed: no subclasses of layers
        "78dc78275855ad083f1c3d53f73fae0e3eb8529bc6909889b20b6a82cf0b7ea8"
    ),
    "1baf846b806aa99ea65afc9ebcf7a667e066f5164ed18a4d886ec6c3ee4b8579": (  # fedas, which has the same channels
        "bd2c2a5353340be00ccbe7661aa9e0dee57d60150bb657da696732183818e0e5"
    ),
    "84cc92e330e4b5b0ce1607d95c55e133df47d86bae446a740f5c61e4b0456e03": (  # recorded likewise
        "33cb5c92d20ffdcd9533a3d857d239e197bde13d60ad06b1b2d204a302e28df3"
    ),
    "9d4556bb116cbee2ca3c9cc2cd6c4e32d9e204f4736fa1f31c56be1882d2d3bb": (  # fliu: γ of `range` that rounding put over 1
        "3c14f077cc132f5f8d4aa5443a79c6c24cb308c88a2cabb2a9aa526a028bdcb6"
    ),
    "e832d5ec0307060b69577110899a8f8a0309555a95be08d97903192bf49e49c9": (  # fedrep: `ignored`
        "1f07b9c38d2149318429fb74a9c43868aeb97fe73234488216b8250815d56110"
    ),
    "139f86649b3686010099b1b6f0b5cba9723ea79c1f300331fe6e3a1c8243d21f": (  # fedpg, s_fedpg: `required`, `ignored`
        "49954a163fa43b14bee20bbefff2086761c1b79daef93a70dbf49a9c0095d595"
    ),
    "15dbb97505739d59dc2b2ff5ab6431effa077c5b2c542347a3b72ba23fda8e3d": (  # fedamp: takes weights that it drops
        "718e722933ecb878f0d5da91e302dfe5991d0ef2ad813e08b84fef4e888eea96"
    ),
    "46155ed4eaebd5bfa8c2bed3832cc83f68122bbb38f95c88001ba1c57b55dec5": (  # scaff_pd: `ignores_with_all`
        "16d7e6ec942a13f36236987e754cab8597904ccfd5ba600e1c2cbcc13346158f"
    ),
    "74ace3636ca540e4ddd218c2b9d9693ee407e397ec5301c5f36e5d6b9e7266ee": (  # per_fedavg: `ignored`, no hf with dropout
        "63a89bb64bdecba81d1b45a3c7b24c7485bbb426c7170126595585246c277c2f"
    ),
    "0d1ec0a9c342eeba37c5762e47744cc2e15e4373f6a2a12a8ee13fbd0ca69971": (  # resnet18_head: start_from fills in buffers
        "21d379a9db6e95cc5ec5cf6cb68972235c76f887b0f03ff2f6311c350fc15cf3"
    ),
}
"""Digest of code that changed -> that of its code before, which computes the same, bit for bit.

A method got an option, which is in its `added` so that its default keeps the hashes of finished runs. Or code became
faster, refuses networks or settings that it took before, takes some that it refused, or states other settings as being
without effect; or a helper of a network changed that it does not call. `pinned_results.csv` and tests of the method, or
of the partition (`test_partition`, `test_cut`), hold that no number moved.
"""

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of constants."""

OF_CODE = (
    "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount", "co_flags",
)  # fmt: skip
"""Attributes of code that decide what it computes, beside its constants."""

WORDS = {"title", "description"}
"""Keyword arguments of `Field` that only say something."""

LIBRARY_FOLDERS = {"site-packages", "dist-packages"}  # of this environment, and of others that it borrows from
LIBRARIES = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}


def digest(name: str, stored: Collection[str] = ()) -> str | None:
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
        others = (thing for thing in _names_of(module) if getattr(thing, "__module__", None) != module)
        found[key] = code.digest + "".join(sorted({text for thing in others if (text := earlier(thing, name))}))
    stored = {*stored, *(attribute for code in read.values() for attribute in code.stored)}
    for module, code in read.items():
        other = [(constant, now) for constant, now, _ in _other_constants(module, code, stored)]
        found["" if module == name else module] += hashlib.sha256(repr(other).encode()).hexdigest() if other else ""
    taken = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return EQUAL.get(taken, taken)


def _read_with(name: str) -> "dict[str, _Code]":
    """Read a module and the modules beside it that it imports, directly or not; {}: it has no file with source."""
    found: dict[str, _Code] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        path = _file(module) if module == name or is_beside(module, name) else None
        if path is not None and module not in found:
            found[module] = _read_as_loaded(module, path)
            waiting += found[module].imported
    return found


def beside(name: str) -> Iterator[tuple[str, Path, bytes]]:
    """Yield the user's modules that `digest` covers, but for plug-ins and scripts: name, file, and the source it read.

    >>> list(beside("pfl_ops.algorithms.fedavg"))
    []
    """
    for module, code in _read_with(name).items():
        if not module.startswith((PLUGIN, "pfl_ops.", "__main__")) and (path := _file(module)):
            yield module, path, code.source


def is_beside(module: str, root: str) -> bool:
    """Return True if an imported module is beside the one that a digest is taken of; see `digest`."""
    top, own = module.partition(".")[0], root.partition(".")[0]
    if top == "pfl_ops":
        return module.rpartition(".")[0] in PARTS and module not in ENGINE
    return own != "pfl_ops" and (top == own or _is_local(top, top in sys.modules))


@cache
def _is_local(top: str, imported: bool) -> bool:
    """Return True if a top-level module or package belongs neither to Python nor to an installed package.

    Args:
        imported: that it is by now; it may not have existed before.
    """
    spec = None
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    # without a location: built into Python, as `os` and `io` are, whose `origin` is the word "frozen"
    places = [*([spec.origin] if spec.origin and spec.has_location else []), *(spec.submodule_search_locations or ())]
    files = [Path(place).resolve() for place in places]
    return bool(files) and not any(
        LIBRARY_FOLDERS & set(file.parts) or not LIBRARIES.isdisjoint((file, *file.parents)) for file in files
    )


def syntax(source: str) -> str:
    """Return the code of a module as text, one line a node, without what the module's docstring lists.

    The text is the same under all versions of Python that read the source.

    Raises:
        SyntaxError: it is not Python.
    """
    return _text(ast.parse(source))


def _text(tree: ast.Module) -> str:
    lines: list[str] = []
    _write(tree, 0, lines)
    return "\n".join(lines)


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


def _read_as_loaded(module: str, path: Path) -> _Code:
    """Read a module, or return what was read when it was loaded."""
    spec, functions = getattr(sys.modules.get(module), "__spec__", None), list(_functions(module))
    known = _found.get((module, path))
    if known is not None and module.startswith(PLUGIN):  # its file may be gone, where another one has the same bytes
        return known[2]
    same = known is not None and known[0] is spec and len(known[1]) == len(functions)
    if known is None or not same or not all(map(operator.is_, known[1], functions)):
        known = _found[module, path] = (spec, functions, _read(module, path))
    return known[2]


def _other_constants(module: str, code: _Code, stored: Collection[str]) -> list[tuple[str, str, str]]:
    """Return (name, value, value in the file) of the constants of a module that have another value than its file says.

    Another module, or a notebook, has set them, or the file was edited after it had been loaded. Left out are names of
    attributes that some file sets (`stored`): their values may change while a run goes on.
    """
    there = sys.modules.get(module)
    if there is None or module == "__main__":  # of a script: `notebook.values`
        return []
    now = {name: vars(there).get(name) for name, _ in code.constants if name not in stored and hasattr(there, name)}
    plain = {name: written(value) for name, value in now.items() if isinstance(value, PLAIN)}
    return [(name, plain[name], text) for name, text in code.constants if plain.get(name, text) != text]


def set_elsewhere(name: str, beside_it: Collection[str]) -> Iterator[tuple[str, Path, str, str]]:
    """Yield (name, file, value now, value in the file) of constants that enter a module's digest as another value.

    Args:
        name: the module's. beside_it: modules whose code may set them: other processes import these too.
    """
    roots = {root: _read_with(root) for root in (name, *beside_it)}
    stored = {attribute for read in roots.values() for code in read.values() for attribute in code.stored}
    for module, code in roots[name].items():
        for constant, now, text in _other_constants(module, code, stored):
            if path := _file(module):
                yield constant, path, now, text


def written(value: Any) -> str:
    """Return a value as Python writes it, and integers in it of more digits than it writes (4,300) in base 16.

    >>> written((1, "a")), len(written(10**5000))  # 5,000 · log 10 / log 16, rounded up, and 0x
    ("(1, 'a')", 4155)
    """
    try:
        return repr(value)
    except ValueError:
        parts = value.items() if isinstance(value, Mapping) else value
        return hex(value) if isinstance(value, int) else repr([type(value).__name__, *map(written, parts)])


def _other_functions(module: str, source: bytes, path: Path) -> str:
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
        for thing in _names_of(module)
        if getattr(thing, "__module__", None) == module
        for code in _codes(thing)
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


def content_of(code: CodeType) -> str:
    """Return what decides the results of code as text: without its file and its lines."""
    parts = [repr(getattr(code, part)) for part in OF_CODE]
    for const in code.co_consts:
        text = content_of(const) if isinstance(const, CodeType) else repr(const)
        parts.append(repr(sorted(map(repr, const))) if isinstance(const, frozenset) else text)
    return f"({' '.join(parts)})"


def _functions(module: str) -> Iterator[CodeType]:
    """The code of the functions of a module of the user, and of those of its classes."""
    if module.startswith(PLUGIN):  # nothing replaces these
        return
    for thing in _names_of(module):
        if getattr(thing, "__module__", None) == module:
            yield from _codes(thing)


def _names_of(module: str) -> list[object]:
    """The values of a module of the user; nothing replaces functions of ours."""
    there = None if module.startswith("pfl_ops.") else sys.modules.get(module)
    return list(vars(there).values()) if there else []


def _codes(thing: object) -> Iterator[CodeType]:
    """The code of a function, or of the functions of a class, without their decorators."""
    for part in list(vars(thing).values()) if isinstance(thing, type) else [thing]:
        function = part.__func__ if isinstance(part, staticmethod | classmethod) else part
        function = function.fget if isinstance(function, property) else function
        function = unwrapped(function)
        if isinstance(function, FunctionType):
            yield function.__code__


def unwrapped(thing: Any) -> Any:
    """Return the function behind its decorators, and any other value itself, whatever attributes it makes up."""
    try:
        return inspect.unwrap(thing) if callable(thing) else thing
    except Exception:  # of its own, or a loop
        return thing


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
    codes = list(_codes(thing))
    if now is thing or list(_codes(now)) == codes:
        return ""
    return hashlib.sha256("\n".join(map(content_of, codes)).encode()).hexdigest()


def _read(module: str, path: Path) -> _Code:
    """Read a module's source as its loader has it, else its file as it is now."""
    source = _packed(module)
    source = path.read_bytes() if source is None else source
    try:
        tree = ast.parse(source)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        if module == "__main__":  # python -m
            package = sys.modules[module].__package__ or ""
        imported = tuple(dict.fromkeys(imported_by(tree, package)))
        text = _text(tree).encode()
        other = "" if module.startswith("pfl_ops.") else _other_functions(module, source, path)
    except (SyntaxError, ValueError, RecursionError):  # no code of Python's, or nested too deep for this: its bytes
        return _Code(source, hashlib.sha256(source).hexdigest())
    digest = hashlib.sha256(text).hexdigest() + other
    script = tree if module == "__main__" else None
    return _Code(source, digest, imported, tuple(_constants(tree)), stored_by(tree), script)


def script() -> ast.Module | None:
    """Return the syntax tree of the script that runs; None: a notebook, or nothing that Python reads."""
    path = _file("__main__")
    return _read_as_loaded("__main__", path).tree if path else None


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the numbers and texts that a module names once and for all, values as Python writes them.

    >>> list(_constants(ast.parse("A = -1\\nB = 'b'\\nC = 0\\ndef f():\\n    global C\\n    C += A")))
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


def _file(module: str) -> Path | None:
    """The source file of a module; None for what is no module, or has no source."""
    return _source(module, getattr(sys.modules.get(module), "__file__", None))  # `__main__` may be one after the other


@cache
def _source(module: str, loaded: str | None) -> Path | None:
    """See `_file`; loaded: the file of the module that is imported, None: it is not, or has none."""
    spec = None if module in sys.modules else _spec(module)
    found = spec.origin if spec else loaded
    path = Path(found) if found else None
    return path if path and path.suffix == ".py" and (path.is_file() or _packed(module) is not None) else None


def _spec(module: str) -> ModuleSpec | None:
    """Find the origin of a module; None for what is no module."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # of a name in a module, too
        return importlib.util.find_spec(module)
    return None


def _packed(module: str) -> bytes | None:
    """The source of a module that another process has packed (`registry.load_packed`); None: it is in its file."""
    source = getattr(getattr(_spec(module), "loader", None), "source", None)
    return source if isinstance(source, bytes) else None


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


def _write_value(value: object, depth: int, lines: list[str]) -> None:
    if isinstance(value, ast.AST):
        _write(value, depth, lines)
    else:
        lines.append(f"{depth} {type(value).__name__} {value!r}")


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
