"""A search space against the experiment that it varies: what a trial would refuse is refused before the first one."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pfl_ops import rng
from pfl_ops.errors import PflOpsError, did_you_mean
from pfl_ops.spaces.space import Parameter, Point, Space, SpaceError, named, one_of, point_problem, short

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.spaces.space import Conditions, Value

MOST_CONTEXTS = 10_000  # combinations of values above one parameter
DRAWS = 64  # points drawn to see that the experiment accepts what the space allows


def check(space: Space, experiment: "Experiment") -> None:
    """Refuse what a trial would refuse: unknown keys, bounds outside the field's, points that the experiment rejects.

    Raises:
        SpaceError: one line with file and key.
    """
    if not space.parameters:
        raise SpaceError.at(space.source, "", "nothing to vary")
    for parameter in space.parameters:
        for context in _contexts(space, parameter):
            _check_field(space.source, parameter, experiment, context)
    for what, point in _examples(space):
        if error := refusal(experiment, point):
            raise SpaceError.at(space.source, f"{what} {short(point)}", f"refused: {error}")


def hold(space: Space, keys: Collection[str], experiment: "Experiment") -> Space:
    """The space with `keys` held at the experiment's own values (`tune fliu --lr 0.1` doesn't vary the rate).

    A section holds all that is below it. Conditions on a held key are decided now; first points that no longer name
    every parameter are left out. A parameter that exists by a held one exists where that one would.
    """
    now = experiment.flat
    kept: list[Parameter] = []
    varied: set[str] = set()
    held: dict[str, list[Conditions]] = {}  # under which conditions a held key exists

    def left_of(when: "Conditions") -> "Conditions | None":
        """The conditions that stay when those on held keys are decided; None: they can't be met."""
        left: Conditions = ()
        for key, values in when:
            if key in varied:
                left += ((key, values),)
            elif (key in space.keys and key not in held) or not one_of(now.get(key), values):
                return None
            elif len(held.get(key, ())) == 1:
                left += held[key][0]
        return _merged(left)

    for p in space.parameters:
        left = left_of(p.when)
        if left is None:
            continue
        if _and_sections(p.key).isdisjoint(keys):
            kept.append(replace(p, when=left))
            varied.add(p.key)
        else:
            held.setdefault(p.key, []).append(left)
    points: list[Point] = []
    for point in space.first:
        cut = {key: value for key, value in point.items() if key in varied}
        if cut and cut not in points and point_problem(kept, cut) is None:
            points.append(cut)
    return Space(space.source, named(kept), tuple(points))


def _merged(conditions: "Conditions") -> "Conditions | None":
    """Return the conditions that hold where all do, a key once; None: nowhere."""
    merged: dict[str, tuple[Value, ...]] = {}
    for key, values in conditions:
        merged[key] = tuple(value for value in merged.get(key, values) if one_of(value, values))
    return tuple(merged.items()) if all(merged.values()) else None


def _and_sections(key: str) -> set[str]:
    """A field and the sections around it: {"algorithm.gamma.kind", "algorithm.gamma", "algorithm"}."""
    names = key.split(".")
    return {".".join(names[: i + 1]) for i in range(len(names))}


def _contexts(space: Space, parameter: Parameter) -> list[Point]:
    """Values of the parameters above `parameter`, one for each way in which it can come to exist.

    A choice of kind in the same section counts even where `when` leaves it out: without the condition, the field
    would be asked of kinds that don't have it.
    """
    by_key = {p.key: p for p in space.parameters}
    contexts: list[Point] = [{}]
    conditions = dict(parameter.when)
    section = parameter.key.rpartition(".")[0]
    for kind in (f"{section}.kind", f"{section}.name"):
        if kind in by_key and kind != parameter.key:
            conditions.setdefault(kind, by_key[kind].choices)
    for key, values in conditions.items():
        above = _contexts(space, by_key[key])
        if len(contexts) * len(above) * len(values) > MOST_CONTEXTS:
            raise SpaceError.at(space.source, parameter.key, f"its `when` has over {MOST_CONTEXTS:,} combinations")
        contexts = [{**a, **c, key: value} for c in contexts for a in above for value in values]
    return contexts


def _check_field(source: str, p: Parameter, experiment: "Experiment", context: Point) -> None:
    """The field exists in this context, and both ends (all choices) lie within its bounds."""
    where = f" (where {short(context)})" if context else ""
    # Only kinds and names shape the experiment; other conditions have no say in which fields exist.
    kinds = {key: value for key, value in context.items() if key.rpartition(".")[2] in ("kind", "name")}
    try:
        there = {s.path: s for s in (experiment.override(kinds) if kinds else experiment).fields()}
    except PflOpsError:
        return  # a kind that doesn't exist, or needs more than its name: its own check or the draws tell
    if p.key not in there:
        hint = did_you_mean(p.key, there)
        raise SpaceError.at(source, p.key, f"the experiment has no such field{where}.{hint}")
    setting = there[p.key]
    takes = setting.allowed.type
    if p.kind != "choice" and takes not in ("value", "float", p.kind):
        raise SpaceError.at(source, p.key, f"the field must be {setting.allowed}, not drawn as {p.kind}{where}")
    for value in p.choices or (p.low, p.high):
        try:
            setting.check(int(value) if p.kind == "int" and value is not None else value)
        except PflOpsError as error:
            raise SpaceError.at(source, "", f"{error}{where}") from None


def refusal(experiment: "Experiment", point: Point) -> PflOpsError | None:
    """Return the reason for which no experiment can have a point; None: one can."""
    try:
        experiment.override(point)
    except PflOpsError as error:
        return error
    return None


def idle(space: Space, experiments: Iterable["Experiment"], paths: Collection[str]) -> dict[str, str]:
    """Return those of some settings that change no result of any trial: path -> why; see `Experiment.without_effect`.

    A key of the space counts at the points that have it. Points are `first`, and 64 drawn ones.

    Args:
        experiments: without a point, one an environment. paths: of settings, varied or not.

    >>> from pfl_ops.config.experiment import Experiment
    >>> from pfl_ops.spaces import parse
    >>> fedpg = Experiment.of("fedpg", **{"algorithm.drift": False})
    >>> idle(parse("algorithm.gamma: {float: [0.0, 1.0]}"), [fedpg], ["algorithm.gamma"])
    {'algorithm.gamma': 'read with drift only'}
    >>> both = parse("{algorithm.gamma: {float: [0.0, 1.0]}, algorithm.drift: {choice: [true, false]}}")
    >>> idle(both, [fedpg], ["algorithm.gamma"])
    {}
    """
    reasons: dict[str, str] = {}
    left = set(paths)  # not read at any point yet
    for experiment in experiments:
        for _, point in _examples(space):
            if not left:
                return {}
            unread = experiment.override(point).without_effect()
            here = {path for path in left if path in point or path not in space.keys}
            left -= here - unread.keys()
            reasons |= {path: unread[path] for path in here & unread.keys()}
    return {path: reasons[path] for path in paths if path in left and path in reasons}


def _examples(space: Space) -> Iterator[tuple[str, Point]]:
    """Points of a space, each after a word on where it is from."""
    generator = rng.generator(0, "space")
    yield from (("first:", point) for point in space.first)
    yield from (("allows", space.draw(generator)) for _ in range(DRAWS))
