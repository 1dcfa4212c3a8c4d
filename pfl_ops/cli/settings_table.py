"""Settings as rows: those of a section, and those that every experiment has. Reading the latter imports no torch."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.fields import AllowedValues, Kinds, node
from pfl_ops.data.partition import Scheme
from pfl_ops.models import ModelSection
from pfl_ops.section import Section
from pfl_ops.units import exact

NAMED: dict[str, tuple[str, str, str, type[Section] | None]] = {
    "partition": ("kind", "lsqs", "pfl-ops list partitions", Scheme),
    "model": ("name", "the data set's", "pfl-ops list models", ModelSection),
    "algorithm": ("name", "needed", "pfl-ops list algorithms", None),
}
"""Sections with a registered name: the field with the name, its default, the command that lists all, and the section
with the fields that all of them have."""


class ShownRow(NamedTuple):
    """A setting as `show` prints it; `when`: the kind that has it, or nothing."""

    path: str
    symbol: str
    default: str
    allowed: AllowedValues | str
    when: str
    meaning: str


def rows_of(
    section: type[Section], prefix: str, when: str = "", skip: frozenset[str] = frozenset()
) -> Iterator[ShownRow]:
    """Every setting of a section, those of each of its kinds included.

    Args:
        section: the class.
        prefix: put before each path, with its dot.
        when: the kind that `section` is.
        skip: fields that are not shown.
    """
    for name, info in section.model_fields.items():
        path, inside = f"{prefix}{name}", node(info)
        default = info.get_default(call_default_factory=True)
        if name in skip or path in ("model.name", "partition.kind"):
            continue
        if inside is None:
            shown = value_text(list(default) if isinstance(default, tuple) else default)
            shown = "needed" if default is PydanticUndefined else shown
            yield ShownRow(path, info.title or "", shown, AllowedValues.of(info), when, info.description or "")
        elif isinstance(inside, Kinds):
            kinds = AllowedValues("choice", choices=tuple(inside.names()))
            tag, default = f"{path}.{inside.tag}", inside.default or "needed"
            yield ShownRow(tag, info.title or "", default, kinds, when, info.description or "")
            first = inside.get(inside.names()[0])
            yield from rows_of(first, f"{path}.", when, frozenset(first.model_fields) - inside.shared)
            for kind in inside.names():
                yield from rows_of(inside.get(kind), f"{path}.", kind, inside.shared | {inside.tag})
        else:
            yield from rows_of(inside, f"{path}.", when)


def settings_rows(name: str = "") -> list[ShownRow]:
    """Return the settings that every experiment has, in the order of its sections.

    Args:
        name: a path, its last part, or a section; "": all.

    >>> [row.path for row in settings_rows("momentum")], len(settings_rows("seed"))  # partition.seed, seed
    (['training.momentum'], 2)
    """
    return [row for row in _rows() if not name or name in _names(row.path)]


def names() -> list[str]:
    """Return the names that `settings_rows` takes."""
    return list(dict.fromkeys(name for row in _rows() for name in _names(row.path)))


def _names(path: str) -> tuple[str, ...]:
    """The names of a path: all of it, its section, and the last part unless many paths end in it."""
    section, _, last = path.rpartition(".")
    return (path, *([section] if section else []), *([last] if last not in ("kind", "name") else []))


def _rows() -> Iterator[ShownRow]:
    for name, info in Experiment.model_fields.items():
        if name in NAMED:
            tag, default, see, shared = NAMED[name]
            yield ShownRow(f"{name}.{tag}", "", default, see, "", info.description or "")
            if shared is not None:
                yield from rows_of(shared, f"{name}.", skip=frozenset({tag}))
        else:
            yield from rows_of(Experiment, "", skip=frozenset(Experiment.model_fields) - {name})


def value_text(value: Any) -> str:
    """Return a setting's value as tables show it; `...`: any value but none."""
    if value is ...:
        return "(set)"
    if isinstance(value, tuple):
        return "|".join(map(value_text, value)) or "[]"
    return exact(value)
