"""Modules of the user and of ours: where their source lies, and which belong to a method's code."""

import contextlib
import importlib.util
import sys
import sysconfig
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

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
LIBRARY_FOLDERS = {"site-packages", "dist-packages"}  # of this environment, and of others that it borrows from
LIBRARIES = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}


def is_beside(module: str, root: str) -> bool:
    """Return True if an imported module is beside the one that a digest is taken of; see `module_digest`."""
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


def source_file(module: str) -> Path | None:
    """The source file of a module; None for what is no module, or has no source."""
    return _source(module, getattr(sys.modules.get(module), "__file__", None))  # `__main__` may be one after the other


@cache
def _source(module: str, loaded: str | None) -> Path | None:
    """See `source_file`; loaded: the file of the module that is imported, None: it is not, or has none."""
    spec = None if module in sys.modules else _spec(module)
    found = spec.origin if spec else loaded
    path = Path(found) if found else None
    return path if path and path.suffix == ".py" and (path.is_file() or packed_source(module) is not None) else None


def _spec(module: str) -> ModuleSpec | None:
    """Find the origin of a module; None for what is no module."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # of a name in a module, too
        return importlib.util.find_spec(module)
    return None


def packed_source(module: str) -> bytes | None:
    """The source of a module that another process has packed (`registry.load_packed`); None: it is in its file."""
    source = getattr(getattr(_spec(module), "loader", None), "source", None)
    return source if isinstance(source, bytes) else None
