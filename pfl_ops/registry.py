"""Tables of names: what the package has, what entry points offer, what a plug-in registers."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pfl_ops.errors import PflOpsError, unknown

T = TypeVar("T")

_plugins: dict[str, Path] = {}  # digest -> file


class Registry(Generic[T]):
    """Names of one kind of thing. Listing them imports nothing; asking for one imports its module only.

    Args:
        kind: singular, as in messages ("algorithm"); entry points are read from the group `pfl_ops.<kind>s`.
        builtin: name -> module that registers it.
    """

    def __init__(self, kind: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self.builtin = builtin
        self._found: dict[str, T] = {}

    def names(self) -> list[str]:
        """Every name, the package's own first, in their order."""
        outside = {entry.name for entry in self._installed} | set(self._found)
        return [*self.builtin, *sorted(outside - set(self.builtin))]

    def add(self, name: str, thing: T) -> T:
        """Register `thing`. The package's own must stand in the table; nobody else may take a name that is taken."""
        module = str(getattr(thing, "__module__", ""))
        if self.builtin.get(name, module) != module:
            raise PflOpsError(
                f"the {self.kind} '{name}' is already defined in {self.builtin[name]}; choose another name"
            )
        if module.startswith("pfl_ops.") and name not in self.builtin:
            raise AssertionError(f"{module} registers the {self.kind} '{name}', which is not in the table")
        self._found[name] = thing
        return thing

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
            raise unknown(self.kind, name, self.names(), see=f"pfl-ops list {self.kind}s")
        return self._found[name]

    @cached_property
    def _installed(self) -> tuple[EntryPoint, ...]:
        """What other packages offer; read once, since the metadata of every package takes longer than all else here."""
        return tuple(entry_points(group=f"pfl_ops.{self.kind}s"))

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except Exception as error:  # somebody else's package may raise anything
            raise PflOpsError(
                f"the {self.kind} '{entry.name}' of the installed package {entry.value.partition(':')[0]} can't be "
                f"imported: {type(error).__name__}: {error}"
            ) from error

    def digest(self, name: str) -> str | None:
        """SHA-256 of the file that defines `name`, or of the definition itself where it has none (a notebook's cell).

        None for the package's own, whose version speaks for it.
        """
        thing: Any = self.get(name)
        if name in self.builtin:
            return None
        try:
            file = inspect.getsourcefile(thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing))
        except (TypeError, OSError):
            file = None
        if file and Path(file).is_file():
            return file_digest(Path(file))
        import cloudpickle

        return hashlib.sha256(cloudpickle.dumps(thing)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_plugin(path: Path) -> str:
    """Import a user's file, which registers what it defines; the same content is imported once.

    Returns:
        SHA-256 of the file, which enters the hash of experiments that use it.
    Raises:
        PflOpsError: there is no such file, or it fails to import; the message names file and error.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise PflOpsError(f"plug-in {path} does not exist")
    digest = file_digest(path)
    if digest not in _plugins:
        name = f"pfl_ops_plugin_{digest[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PflOpsError(f"plug-in {path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except PflOpsError:
            del sys.modules[name]
            raise
        except Exception as error:
            del sys.modules[name]
            raise PflOpsError(f"plug-in {path} failed: {type(error).__name__}: {error}") from error
        _plugins[digest] = path
    return digest


def plugins() -> dict[str, Path]:
    """The plug-in files loaded so far: digest -> path. Other processes load them again from here."""
    return dict(_plugins)
