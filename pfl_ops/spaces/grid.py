"""Grids: all combinations of some values of some fields, as a space and its points."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo
from pfl_ops.spaces.reading import from_dict
from pfl_ops.spaces.space import Point, Space, Value, point_of, point_problem

MOST_POINTS = 10_000
SOURCE = "--grid"

Axes: TypeAlias = Mapping[str, Sequence[Value]]
"""Path of the experiment -> its values."""


def grid_space(axes: Axes, own: Space) -> Space:
    """Return the smallest space with all points of a grid.

    A field whose values are numbers has the range from the smallest to the largest, logarithmic where it is in `own`;
    another one is a choice, and so are fractions that a condition names. Conditions of `own` hold where they are about
    fields of the grid.

    Args:
        axes: the grid. own: the method's search space.
    Raises:
        PflOpsError: a list or a mapping as a value, a value twice, too many points, a field that studies do not vary,
            or one that exists in no point.

    >>> own = from_dict({"training.lr": {"float": [0.001, 1.0], "log": True}})
    >>> str(grid_space({"training.lr": [0.1, 0.01]}, own).parameters[0])
    '0.01 to 0.1 (log)'
    """
    if (points := prod(map(len, axes.values()))) > MOST_POINTS:
        raise PflOpsError(f"--grid has {points:,} points; at most {MOST_POINTS:,}")
    for key, values in axes.items():
        if not all(isinstance(value, bool | int | float | str | None) for value in values):
            raise PflOpsError(f"--grid {echo(key, LONGEST_PATH)}: values are numbers, texts, true, false or null")
        if len({(isinstance(value, bool), value) for value in values}) < len(values):
            raise PflOpsError(f"--grid {echo(key, LONGEST_PATH)} has a value twice")
    return from_dict({key: _entry(key, values, axes, own) for key, values in axes.items()}, SOURCE)


def grid_points(axes: Axes, space: Space) -> list[Point]:
    """Return the points of a grid, the last field first to change; a field is left out where it does not exist.

    >>> own = from_dict({"kind": {"choice": ["a", "b"]}, "x": {"float": [0, 1], "when": {"kind": "b"}}})
    >>> axes = {"kind": ["a", "b"], "x": [0.5, 1.0]}
    >>> grid_points(axes, grid_space(axes, own))
    [{'kind': 'a'}, {'kind': 'b', 'x': 0.5}, {'kind': 'b', 'x': 1.0}]
    """
    found: dict[str, Point] = {}
    for values in product(*axes.values()):
        point = point_of(space.parameters, dict(zip(axes, values, strict=True)))
        assert point_problem(space.parameters, point) is None
        found.setdefault(repr(point), point)
    return list(found.values())


def _entry(key: str, values: Sequence[Value], axes: Axes, space: Space) -> dict[str, Any]:
    """The entry of a field, as a file of a search space has it."""
    own = space.of(key)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    whole = all(isinstance(number, int) for number in numbers)
    is_condition = any(key in dict(parameter.when) for parameter in space.parameters)
    entry: dict[str, Any]
    if len(numbers) < len(values) or (is_condition and not whole):
        entry = {"choice": list(values)}
    else:
        entry = {"int" if whole else "float": [min(numbers), max(numbers)]}
        if min(numbers) > 0 and any(parameter.log for parameter in own):
            entry["log"] = True
    when: dict[str, list[Value]] = {}
    for name, allowed in own[0].when if len(own) == 1 else ():
        if name in axes:
            when[name] = [value for value in allowed if value in axes[name]]
            if not when[name]:
                raise PflOpsError(
                    f"--grid {key} exists where {name} is {' or '.join(map(str, allowed))}; give --grid {name} such a "
                    "value, too"
                )
    return {**entry, "when": when} if when else entry
