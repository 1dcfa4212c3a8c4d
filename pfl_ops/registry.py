"""Tables of names: what the package has, what entry points offer, what a plug-in registers."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

from pfl_ops.code.definitions import MAIN, SCRIPT
from pfl_ops.code.digest import beside, module_digest, set_elsewhere
from pfl_ops.code.modules import PLUGIN
from pfl_ops.code.notebook import definition_digest
from pfl_ops.code.script import is_of_main, values_digest
from pfl_ops.errors import LONGEST_PATH, PflOpsError, check_name, echo, in_a_line, nearest, place, unknown
from pfl_ops.files import file_digest, write_whole

T = TypeVar("T")

Packed: TypeAlias = tuple[str, str, str]
"""A plug-in on its way to another process: digest, path, and its source, a character a byte (latin-1)."""

_plugins: dict[str, Path] = {}  # digest -> file
_sources: dict[str, bytes] = {}  # digest -> its bytes when it was loaded
_tables: "list[Registry[Any]]" = []  # every registry, so that a plug-in that fails is forgotten in all


class Registry(Generic[T]):
    """Names of one kind of thing. Listing them imports nothing; asking for one imports its module only.

    Args:
        kind: singular, as in messages ("algorithm"); entry points are read from the group `pfl_ops.<plural>`.
        builtin: name -> module that registers it.
        hints: a name that is none, in lower case -> the sentence that the error says in place of the nearest name.
    """

    def __init__(self, kind: str, builtin: dict[str, str], hints: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.hints = hints or {}
        self.plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
        self.builtin = builtin
        self._found: dict[str, T] = {}
        _tables.append(self)

    def names(self) -> list[str]:
        """Every name, the package's own first, in their order."""
        outside = {entry.name for entry in self._installed} | set(self._found)
        return [*self.builtin, *sorted(outside - set(self.builtin))]

    def add(self, name: str, thing: T) -> T:
        """Register `thing`.

        A notebook's cell that is run again replaces what it defined before, and so does a plug-in that has the cell's
        definition; nothing else may take a name that is taken.

        Raises:
            PflOpsError: the name is the package's own, another file's or package's, or can be no file's name.
        """
        module, qualname = _origin(thing)
        if self.builtin.get(name, module) != module:
            raise PflOpsError(
                f"the {self.kind} '{name}' is already defined in {self.builtin[name]}; choose another name"
            )
        if module.startswith("pfl_ops.") and name not in self.builtin:
            raise AssertionError(f"{module} registers the {self.kind} '{name}', which is not in the table")
        check_name(self.kind, name)
        there = _origin(self._found[name]) if name in self._found else self._offered(name)
        package = module.partition(".")[0]
        is_plugin = module.startswith(PLUGIN)
        again = there == ((MAIN if is_plugin else module), qualname)
        if there is not None and not again and (there[1] or there[0].partition(".")[0] != package):
            mine, theirs = _file(module), _file(there[0])
            raise PflOpsError(
                f"two {self.plural} are named '{name}': {qualname} of {mine} and {there[1] or 'one'} of {theirs}; "
                "rename one of them"
            )
        self._found[name] = thing
        return thing

    def _offered(self, name: str) -> tuple[str, str] | None:
        """The module of the installed package that offers `name`, without the thing's own name."""
        if name in self.builtin:
            return None
        return next(((entry.value.partition(":")[0], "") for entry in self._installed if entry.name == name), None)

    def get(self, name: str) -> T:
        """The thing of that name; an unknown name is an error with the nearest one."""
        if name not in self._found:
            if name in self.builtin:
                importlib.import_module(self.builtin[name])
            else:
                for entry in self._installed:
                    if entry.name == name:
                        self._found.setdefault(name, self._load(entry))
        if name not in self._found:
            hint = self._elsewhere(name) or self.hints.get(name.casefold(), "")
            see = f"pfl-ops list {self.plural}{'' if hint or self._is_typo(name) else _own_files()}"
            raise unknown(self.kind, name, self.names(), see=see, hint=hint)
        return self._found[name]

    def _is_typo(self, name: str) -> bool:
        """True if a known name is spelt nearly so, with one character more or less at most, or begins so."""
        close = nearest(name, self.names())
        return close is not None and (abs(len(close) - len(name)) <= 1 or close.startswith(name))

    def _elsewhere(self, name: str) -> str:
        """A sentence on the thing of another kind that a user's file has registered under this name, or ""."""
        others = [table.kind for table in _tables if name in table._found and name not in table.builtin]
        return f"Registered under this name: a {others[0]}." if others else ""

    def check_shared(self, name: str) -> None:
        """Check that other processes know `name`: it is the package's own, an installed package's, or a plug-in's.

        Raises:
            PflOpsError: a notebook, or the script that runs, defines it, or has set a value of a module that it uses.
        """
        module = _origin(self.get(name))[0]
        if name in self.builtin:
            return
        if self._offered(name) or (_plugins and module != MAIN):
            for constant, file, now, text in set_elsewhere(module, [PLUGIN + one[:12] for one in _plugins]):
                raise PflOpsError(
                    f"the {self.kind} '{name}' uses {constant} of {echo(file, LONGEST_PATH)}, which was set to "
                    f"{echo(now)} from outside, or edited since it was loaded; other processes read {echo(text)} in "
                    f"that file: write the value there, or make it an option of the {self.kind}"
                )
            return
        where = "this notebook or script" if module == MAIN else f"the module {module}"
        raise PflOpsError(
            f"the {self.kind} '{name}' is defined in {where}, which processes of trials do not read; write it into a "
            f"file of its own, and name that: plugins=['{name}.py']"
        )

    def _forget(self, modules: Collection[str]) -> dict[str, T]:
        """Remove what some modules have registered, and return it."""
        gone = {name: thing for name, thing in self._found.items() if _origin(thing)[0] in modules}
        for name in gone:
            del self._found[name]
        return gone

    @cached_property
    def _installed(self) -> tuple[EntryPoint, ...]:
        """The entries of other packages, read once: the metadata of every package takes longer than all else here."""
        return tuple(entry_points(group=f"pfl_ops.{self.plural}"))

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except (Exception, SystemExit) as error:  # another package's module may raise anything
            raise PflOpsError(
                f"the {self.kind} '{entry.name}' of the installed package {entry.value.partition(':')[0]} can't be "
                f"imported: {in_a_line(error)}"
            ) from error

    def digest(self, name: str) -> str:
        """SHA-256 of the code that `name` is: of its file (`code.digest`), of a script and the values it uses, or
        of a notebook's cells (`notebook`).

        Where neither can be read it is of the definition itself, and differs each time that this is made.
        """
        thing: Any = self.get(name)
        module = self.builtin.get(name) or _origin(thing)[0]
        is_known = module != MAIN or is_of_main(definition(thing))
        found = module_digest(module) if is_known else None
        if found is not None and module in SCRIPT and (values := values_digest(definition(thing))):
            return hashlib.sha256(f"{found} {values}".encode()).hexdigest()
        found = found or (definition_digest(definition(thing)) if is_known else None)
        if found is not None:
            return found
        import cloudpickle

        return hashlib.sha256(cloudpickle.dumps(thing)).hexdigest()


class _AsRead(importlib.machinery.SourceFileLoader):
    """Imports the text that was hashed. Python's own loader may take a compiled file in `__pycache__` of another text
    with the same length and time of change, in seconds, and leaves one there."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source, self.path)


def load_plugin(path: Path | str, kind: str = "plug-in", copy_of: Path | None = None) -> str:
    """Import a user's file, which registers what it defines; the same content is imported once.

    A file that was edited since takes the place of what it defined before.

    Args:
        kind: of the file, as messages name it. copy_of: the user's file, beside which its code finds others.
    Returns:
        SHA-256 of the file.
    Raises:
        PflOpsError: there is no such file, or it fails to import; the message names file and error.
    """
    path = _existing(path, kind)
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    if digest not in _plugins:
        name = f"{PLUGIN}{digest[:12]}"
        shown = f"{kind} {echo(path, LONGEST_PATH)}"
        if path.suffix not in importlib.machinery.SOURCE_SUFFIXES:
            raise PflOpsError(f"{shown} is not a Python file")
        file = copy_of or path
        loader = _AsRead(name, file, source)
        spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        assert spec is not None  # only without a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        old = {other: PLUGIN + other[:12] for other, there in _plugins.items() if there == path}  # edited since
        before = [(table, table._forget(old.values())) for table in _tables]
        try:
            loader.exec_module(module)
        except BaseException as error:  # SystemExit too: sys.exit() of a script that was not meant to be imported
            del sys.modules[name]
            for table, things in before:
                table._forget([name])
                table._found |= things
            if isinstance(error, KeyboardInterrupt):
                raise
            if isinstance(error, PflOpsError):
                raise PflOpsError(f"{shown}: {error}") from error
            what = "it ends the process when it is imported: " if isinstance(error, SystemExit) else ""
            raise PflOpsError(f"{shown} failed: {what}{in_a_line(error)}{place(error, str(file))}") from error
        for other in old:
            del _plugins[other]
        module_digest(name)  # of the code as it was imported, should a file be edited later
        _plugins[digest], _sources[digest] = path, source
    return digest


def plugin_module(digest: str) -> ModuleType:
    """Return the module of a file that `load_plugin` has imported."""
    return sys.modules[PLUGIN + digest[:12]]


def plugin_source(digest: str) -> bytes:
    """Return the content of a file that `load_plugin` has imported, as it was then: it may have been edited since."""
    return _sources[digest]


def packed_plugins() -> tuple[Packed, ...]:
    """Return the plug-in files that are loaded in this process, with their source as it was loaded."""
    return tuple((digest, str(path), plugin_source(digest).decode("latin-1")) for digest, path in plugins().items())


def load_packed(packed: Iterable[Packed], folder: Path) -> None:
    """Load what `packed_plugins` packed: from the same file if it is here and unchanged, else from the source.

    Args:
        folder: keeps the source, under its digest: a process that is killed leaves no further copy.
    """
    for digest, name, source in packed:
        if digest in _plugins:
            continue
        path = Path(name)
        if not _has(path, digest):
            path = folder / digest / path.name
            if not _has(path, digest):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, source.encode("latin-1"))
        load_plugin(path, copy_of=Path(name))


def packed_modules() -> tuple[Packed, ...]:
    """Return the modules of the user that those of registered things import: name, path, and the source as it was."""
    roots = {
        _origin(thing)[0] for table in _tables for name, thing in table._found.items() if name not in table.builtin
    }
    found = {name: (str(path), source) for root in roots for name, path, source in beside(root)}
    return tuple((name, path, source.decode("latin-1")) for name, (path, source) in found.items())


class PackedModules:
    """Imports what `packed_modules` packed, whatever has become of the files: an entry of `sys.meta_path`."""

    def __init__(self, packed: Iterable[Packed]) -> None:
        self.modules = {name: (Path(path), source.encode("latin-1")) for name, path, source in packed}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.modules:
            within = next((one for one in self.modules if one.startswith(f"{name}.")), None)
            if within is None:
                return None
            others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            return next(filter(None, others), None) or self._namespace(name, within)
        file, source = self.modules[name]
        inside = [str(file.parent)] if file.name == "__init__.py" else None  # its modules
        loader = _AsRead(name, file, source)
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)

    def _namespace(self, name: str, within: str) -> importlib.machinery.ModuleSpec:
        """Return a package without `__init__.py` whose folder is gone, by a module in it."""
        file = self.modules[within][0]
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        below = within.count(".") - name.count(".") - (file.name != "__init__.py")
        spec.submodule_search_locations = [str(file.parents[below])]
        return spec


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest


def _existing(path: Path | str, kind: str) -> Path:
    """The absolute path of a plug-in that is a regular file."""
    path = Path(path).expanduser()
    try:
        path = path.resolve()
        exists, regular = path.exists(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, links in a circle
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PflOpsError(f"can't read {kind} {echo(path, LONGEST_PATH)}: {why}") from error
    if not regular:
        why = "is not a regular file" if exists else "does not exist"
        raise PflOpsError(f"{kind} {echo(path, LONGEST_PATH)} {why}")
    if not os.access(path, os.R_OK):
        raise PflOpsError(f"can't read {kind} {echo(path, LONGEST_PATH)}: permission denied")
    return path


def _origin(thing: Any) -> tuple[str, str]:
    """(module, name) of the class or function that stands behind a registered thing."""
    behind = definition(thing)
    return str(getattr(thing, "__module__", "")), str(getattr(behind, "__qualname__", type(behind).__name__))


def definition(thing: Any) -> Any:
    """Return the network's class or partition's function that stands behind a section; of others the thing itself."""
    return getattr(thing, "network", None) or getattr(thing, "function", None) or thing


def _file(module: str) -> str:
    """A module as a user knows it: the path of a plug-in's file, else the module's name."""
    path = getattr(sys.modules.get(module), "__file__", None) if module.startswith(PLUGIN) else None
    return echo(path, LONGEST_PATH) if path else module


def _own_files() -> str:
    """Say for a name that does not exist how a user's file is given, or what those that were given register."""
    if not _plugins:
        return "; of a file of your own: --plugin FILE.py, in Python pfl_ops.registry.load_plugin('FILE.py')"
    told = []
    for digest, path in _plugins.items():
        mine = sorted(n for t in _tables for n, thing in t._found.items() if _origin(thing)[0] == PLUGIN + digest[:12])
        told.append(f"{echo(path.name)} registers {', '.join(map(echo, mine)) or 'nothing'}")
    return "; " + "; ".join(told)


def plugins() -> dict[str, Path]:
    """The plug-in files loaded so far: digest -> path. Other processes load them again from here."""
    return dict(_plugins)
