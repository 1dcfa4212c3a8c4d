"""Layers of values, weak to strong: a method's recommendation, a preset, a file, flags; merged, then validated once."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config import yaml_files
from pfl_ops.config.fields import Tree, is_none, one_of, show
from pfl_ops.config.paths import assign, nest
from pfl_ops.data.datasets import PARTITION, DataSection, model_for, partition_for
from pfl_ops.errors import PflOpsError, echo
from pfl_ops.section import Section

EITHER = (("training", "local_epochs", "local_steps"),)
"""(section, field, field): setting one clears the other."""

SettingsLayer: TypeAlias = tuple[str, Mapping[str, Any]]
"""The place where values were read (put before an error; or ""), and the values: paths dotted or nested."""


def merge(root: type[Section], given: Sequence[SettingsLayer], data_dir: str | None = None) -> Tree:
    """One nested mapping out of layers, later ones stronger, over what the method and the data set recommend.

    Args:
        root: the experiment's class.
        given: the layers.
        data_dir: where a data file may lie, whose form decides the network and the partition.
    Returns:
        Nested values that name every kind; fields that no layer names are left to their defaults.
    Raises:
        PflOpsError: no source names the method, or a path does not exist.
    """
    layers = [_Layer(*layer) for layer in given]
    algorithm = _last(layers, "algorithm.name")
    if not isinstance(algorithm, str):
        for layer in layers:
            if (value := layer.tree.get("algorithm", {})) and not isinstance(value, dict):
                with _naming(layer.source):
                    raise PflOpsError(f"algorithm is a section, set its fields (as algorithm.name); got {show(value)}")
        raise PflOpsError(
            f"an experiment needs algorithm.name, {one_of(ALGORITHMS.names())}; as in: pfl-ops run fedavg, "
            "pfl-ops tune fedavg"
        )
    layers.insert(0, _Layer(f"{algorithm}'s recommended values", ALGORITHMS.get(algorithm).recommended))
    data = _last(layers, "data.name")
    if hasattr(data, "__getitem__") and not isinstance(data, str | list | dict):
        raise PflOpsError(
            f"data.name must be a text, a data set or a file, got an object of type {type(data).__name__}; "
            "write arrays into a file: np.savez('mine.npz', x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    data = data or DataSection.model_fields["name"].default
    # the form of a named partition is checked later; here only whether there is one
    partition = PARTITION if _last(layers, "partition.kind") else partition_for(str(data), data_dir)
    tree: Tree = {
        "data": {"name": data},
        "partition": {"kind": partition},
        "model": {"name": _last(layers, "model.name") or model_for(str(data), data_dir)},
        "algorithm": {"name": algorithm},
    }
    for layer in layers:
        new = layer.tree
        with _naming(layer.source):
            tree = _change(root, tree, new, data_dir)
    return tree


def change(root: type[Section], tree: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """`paths.assign` with an experiment's own rules: either of two, `file:PATH`, and the recommended network.

    Args:
        root: the experiment's class.
        tree: nested values with every kind named.
        changes: {path: value}, dotted or nested.
    """
    return _change(root, tree, nest(changes))


def _change(root: type[Section], tree: Mapping[str, Any], new: Tree, data_dir: str | None = None) -> Tree:
    for section, *pair in EITHER:
        _either(section, pair, new.get(section))
    partition, model, data = new.get("partition"), new.get("model"), new.get("data")
    if isinstance(partition, dict) and str(partition.get("kind")).startswith("file:"):
        partition["kind"], _, partition["path"] = partition["kind"].partition(":")
    if isinstance(model, dict) and "name" in model and is_none(model["name"]):
        name = data.get("name") if isinstance(data, dict) else None
        model["name"] = model_for(str(name or tree["data"]["name"]), data_dir)
    return assign(root, tree, new, see=f"pfl-ops show {tree['algorithm']['name']}")


def _either(section: str, pair: Sequence[str], changes: Any) -> None:
    named = [name for name in pair if isinstance(changes, dict) and not is_none(changes.get(name))]
    if len(named) == 2:
        raise PflOpsError(f"{section}.{pair[0]} and {section}.{pair[1]} exclude each other; set one of them")
    for name in named:
        changes[pair[1 - pair.index(name)]] = None


def excluded(paths: Collection[str]) -> set[str]:
    """Return the fields that setting one of the paths clears.

    >>> excluded(["training.local_epochs", "training.lr"])
    {'training.local_steps'}
    """
    pairs = [(f"{section}.{one}", f"{section}.{other}") for section, one, other in EITHER]
    return {cleared for pair in pairs for given, cleared in (pair, pair[::-1]) if given in paths}


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """{path: value} of `--set path=value`; values are YAML: numbers, true, none, [lists].

    Raises:
        PflOpsError: a text without "=", or a path that is given twice.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not path:
            raise PflOpsError(f"--set needs path=value, as in training.lr=0.1; got {show(text)}")
        if not value.strip():
            raise PflOpsError(f"--set {echo(path)}= needs a value; 'none' stands for no value")
        if path in changes:
            raise PflOpsError(f"--set {echo(path)} is given twice; give it once")
        changes[path] = yaml_files.scalar(value)
    return changes


def with_source(given: Sequence[SettingsLayer], line: str) -> str:
    """Return a message on a wrong value with its file or preset in front, if one gave it; it begins with the path.

    >>> layers = [("mine.yaml", {"training": {"lr": "fast"}}), ("", {"seed": -1})]
    >>> with_source(layers, "training.lr (η) must be a number"), with_source(layers, "seed must be a number")
    ('mine.yaml: training.lr (η) must be a number', 'seed must be a number')
    """
    path = line.partition(" ")[0].rstrip(":")
    sources = [source for source, values in given if last([(source, values)], path) is not None]
    return f"{sources[-1]}: {line}" if sources and sources[-1] else line


def last(given: Sequence[SettingsLayer], path: str) -> Any:
    """The strongest layer's value at `path`; None where no layer has one."""
    return _last([_Layer(*layer) for layer in given], path)


class _Layer:
    """The values of one source, nested when they are first looked at."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source, self.values = source, values

    @cached_property
    def tree(self) -> Tree:
        with _naming(self.source):
            return nest(self.values)


def _last(layers: Sequence[_Layer], path: str) -> Any:
    for layer in reversed(layers):
        value: Any = layer.tree
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not is_none(value):
            return value
    return None


@contextmanager
def _naming(source: str) -> Iterator[None]:
    try:
        yield
    except PflOpsError as error:
        if not source:
            raise
        raise type(error)(f"{source}: {error}") from error
