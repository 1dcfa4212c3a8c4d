"""The names that commands take, for lists and for completion: from the tables, without importing torch."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pfl_ops.registry import Registry

Names: TypeAlias = Callable[[], Iterable[str]]

REGISTRIES = {
    "algorithms": "pfl_ops.algorithms:ALGORITHMS",
    "models": "pfl_ops.models:MODELS",
    "losses": "pfl_ops.federation.losses:LOSSES",
    "partitions": "pfl_ops.data.partition:PARTITIONS",
}
"""Kinds with a registry -> its module and name."""
KINDS = ("algorithms", "datasets", "models", "partitions", "losses", "spaces", "presets", "settings")


def known(kind: str) -> list[str]:
    """The names of one of `KINDS`, from the tables: no torch."""
    if kind == "datasets":
        from pfl_ops.data.datasets import DATASETS

        return list(DATASETS)
    if kind == "spaces":
        from pfl_ops.spaces import names

        return names()
    if kind == "presets":
        from pfl_ops.config.presets import presets

        return list(presets())
    if kind == "settings":
        from pfl_ops.cli.settings_table import names as names_of_settings

        return names_of_settings()
    return registry_of(kind).names()


def every_name() -> list[str]:
    """The names of all kinds."""
    return sorted({name for kind in KINDS for name in known(kind)})


def registry_of(kind: str) -> "Registry[Any]":
    """The registry of one of the kinds in `REGISTRIES`."""
    module, _, name = REGISTRIES[kind].partition(":")
    registry: Registry[Any] = getattr(import_module(module), name)
    return registry


def names_of(kind: str) -> Names:
    """The same, later: nothing is imported before the tab key is pressed."""
    return lambda: known(kind)


def completion_of_several(names: Names) -> Callable[[str], list[str]]:
    """A completer of the last name in a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        there = set(before.split(","))
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last) and name not in there]

    return complete


def completion(names: Names) -> Callable[[str], list[str]]:
    """A completer over `names`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
