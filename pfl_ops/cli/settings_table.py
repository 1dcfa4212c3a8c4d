"""The settings that every experiment has, for `pfl-ops list settings` and `show`; reading them imports no torch."""

from collections.abc import Iterator

from pfl_ops.cli.show import ShownRow, rows_of
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.partition import Scheme
from pfl_ops.models import ModelSection
from pfl_ops.section import Section

NAMED: dict[str, tuple[str, str, str, type[Section] | None]] = {
    "partition": ("kind", "lsqs", "pfl-ops list partitions", Scheme),
    "model": ("name", "the data set's", "pfl-ops list models", ModelSection),
    "algorithm": ("name", "needed", "pfl-ops list algorithms", None),
}
"""Sections with a registered name: the field with the name, its default, the command that lists all, and the section
with the fields that all of them have."""


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
