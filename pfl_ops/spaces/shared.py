"""The part of the search that methods share where they are compared.

A method keeps its own hyper-parameters. The settings of the common space take the place of its own ranges for them,
except where the method requires a value (`Algorithm.required`), where its space has a condition of its own
(`own: true`), and where the setting has no effect on it (`Algorithm.ignored`). Every method is first tried with the
common settings that any of the methods recommends.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pfl_ops.config.conflicts import meets
from pfl_ops.config.precedence import EITHER
from pfl_ops.errors import PflOpsError
from pfl_ops.spaces.checking import hold, refusal
from pfl_ops.spaces.reading import ordered
from pfl_ops.spaces.space import Parameter, Point, Space, SpaceError, Value, point_of, point_problem

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment


@dataclass(frozen=True)
class MethodSpace:
    """A method that is compared: what its trials run, and what they vary."""

    experiment: "Experiment"
    space: Space


def share(
    methods: Sequence[MethodSpace], common: Space, beside: Sequence[MethodSpace] = ()
) -> tuple[list[MethodSpace], Space]:
    """Return the methods with the common space in theirs, and the common space as it is used.

    Its first points are all recommendations: two comparisons with other recommendations have other common spaces.

    Local work is counted in one unit: in epochs, or in steps where one of the methods counts steps. A method that
    recommends no number of steps then has that of the first one that does.

    Args:
        methods: as they would be tuned alone.
        beside: further methods of the comparison, whose recommendations count and which are not changed.
    """
    experiments = [method.experiment for method in (*methods, *beside)]
    for section, first, second in EITHER:
        kept, left = f"{section}.{first}", f"{section}.{second}"
        counts = [count for one in experiments if (count := one.get(left)) is not None]
        if counts and left in common.keys:
            kept, left = left, kept
            methods = [_counting(method, kept, counts[0]) for method in methods]
        if kept in common.keys:
            common = replace(common, parameters=tuple(p for p in common.parameters if p.key != left))
            methods = [_without(method, left) for method in methods]
    recommended = [_recommended(method, common) for method in (*methods, *beside)]
    in_turn = [point for points in zip_longest(*recommended) for point in points if point is not None]
    union = sorted({json.dumps(point, sort_keys=True) for point in in_turn})  # whatever the order of the methods
    shared = replace(common, first=tuple(json.loads(point) for point in union))
    return [_joined(method, common, in_turn) for method in methods], shared


def in_unit_of(space: Space, experiment: "Experiment", hold: Collection[str] = ()) -> "Experiment":
    """Return an experiment that counts local work in epochs, if a user's space varies epochs and the method only
    recommends steps; else the experiment itself.

    Args:
        hold: paths that the user gave. Steps among them stay, and so do those of a preset or file.
    Raises:
        SpaceError: the method needs steps.
    """
    for section, first, second in EITHER:
        path, other = f"{section}.{first}", f"{section}.{second}"
        steps = experiment.get(other)
        only_recommended = steps is not None and steps == experiment.algorithm.recommended.get(other)
        if only_recommended and path in space.keys and other not in {*space.keys, *hold}:
            try:
                return experiment.override({path: int(space.of(path)[0].low)})
            except PflOpsError as error:
                raise SpaceError.at(space.source, path, str(error)) from error
    return experiment


def restrictions(method: MethodSpace, common: Space) -> dict[str, str]:
    """Return what a method has in place of the common ranges: {"training.optimiser": "sgd"}."""
    space, experiment = method.space, method.experiment
    expected = hold(common, set(common.keys) - set(space.keys), experiment)
    found = {}
    for key in common.keys:
        if key not in space.keys:
            found[key] = str(experiment.get(key))
        elif list(map(str, space.of(key))) != list(map(str, expected.of(key))):
            found[key] = "; ".join(map(str, space.of(key)))
    return {key: told for key, told in found.items() if key not in experiment.ignored()}


def _counting(method: MethodSpace, key: str, count: Any) -> MethodSpace:
    """The method with a number of its own, or with this one."""
    if method.experiment.get(key) is not None:
        return method
    return replace(method, experiment=method.experiment.override({key: count}))


def _without(method: MethodSpace, key: str) -> MethodSpace:
    """The method with a space that does not vary a key."""
    space = method.space
    parameters = tuple(p for p in space.parameters if p.key != key)
    first = tuple({k: value for k, value in point.items() if k != key} for point in space.first)
    return replace(method, space=replace(space, parameters=parameters, first=first))


def _recommended(method: MethodSpace, common: Space) -> list[Point]:
    """The common settings of the method's experiment, then those of its space's first points, as far as they fit."""
    now = method.experiment.flat
    found: list[Point] = []
    for changes in ({}, *method.space.first):
        point = point_of(common.parameters, {**now, **changes})
        if point not in found and point_problem(common.parameters, point) is None:
            found.append(point)
    return found


def _joined(method: MethodSpace, common: Space, recommended: Sequence[Point]) -> MethodSpace:
    """The method with the common space in its own, and the first points of all methods as far as it permits them."""
    experiment, space = method.experiment, method.space
    own = [p for p in space.parameters if p.key not in common.keys or p.own]
    shared = [p for p in common.parameters if p.key not in {p.key for p in own}]
    permitted = {p.name: p for each in shared for p in _permitted(each, method)}
    held = {p.key for p in shared if p.name not in permitted}
    whole = hold(Space(space.source, tuple(ordered([*own, *shared], space.source))), held, experiment)
    narrowed = {p.key: p for p in permitted.values() if p.kind == "choice"}
    parameters = tuple(narrowed.get(p.key, p) for p in whole.parameters)

    now = experiment.flat
    decided = {key: now.get(key) for key in held - set(experiment.ignored())}
    ours = [{**now, **point} for point in space.first] or [now]
    candidates = [_beside(point_of(common.parameters, now), own, ours[0])]
    candidates += [_beside(point_of(common.parameters, mine), own, mine) for mine in ours if space.first]
    candidates += [_beside(point, own, ours[0]) for point in recommended]
    tried: list[Point] = []
    for point in candidates:
        if all(point.get(key, value) == value for key, value in decided.items()):
            cut = {key: value for key, value in point.items() if key not in held}
            if cut not in tried and point_problem(parameters, cut) is None and refusal(experiment, cut) is None:
                tried.append(cut)
    return replace(method, space=Space(space.source, parameters, tuple(tried)))


def _beside(common: Point, own: Sequence[Parameter], values: Mapping[str, Value]) -> Point:
    """A point of the common space with the method's own parameters that exist in it: some exist by a common one."""
    point = dict(common)
    mine: Point = {}
    for p in own:
        if p.active(point):
            mine[p.key] = point.setdefault(p.key, values.get(p.key))
    return {**mine, **common}


def _permitted(parameter: Parameter, method: MethodSpace) -> Iterator[Parameter]:
    """The parameter as far as the method leaves a choice."""
    algorithm = method.experiment.algorithm
    required = algorithm.required().get(parameter.key, ...)
    if parameter.key in method.experiment.ignored():
        return
    if required is ...:
        yield parameter
    elif parameter.kind == "choice":
        choices = tuple(choice for choice in parameter.choices if meets(choice, required))
        if len(choices) > 1:
            yield replace(parameter, choices=choices)
