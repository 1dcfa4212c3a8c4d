"""Search spaces from YAML: what their words mean."""

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import combinations
from typing import Any, Literal, TypeAlias

from pfl_ops.config import yaml_files
from pfl_ops.errors import by_key, did_you_mean, echo
from pfl_ops.spaces.space import Conditions, Parameter, Space, SpaceError, named, point_problem, short

FIXED = ("seed", "repetitions", "data", "partition", "evaluation", "algorithm.name", "model.name", "training.rounds")
"""Settings that all trials of one study share; to compare values of these, run several studies."""
TUNABLE = ("data.scaling",)
"""Settings below `FIXED` that may differ: which samples a client has does not depend on them."""


def parse(text: str, source: str = "search space") -> Space:
    """A space from YAML text; `source` names it in messages."""
    return from_dict(yaml_files.mapping(text, source), source)


def from_dict(body: Any, source: str = "search space") -> Space:
    """A space from what its file holds."""
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise SpaceError.at(source, "", "must map fields of the experiment to ranges")
    entries = {key: value for key, value in body.items() if key != "first"}
    found = [parameter for key, entry in entries.items() for parameter in _parameters(source, key, entry)]
    parameters = named(ordered(found, source))
    points = body.get("first") or []
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise SpaceError.at(source, "first", "must be a list of points, each `{field: value, ...}`")
    first = tuple({str(key): value for key, value in point.items()} for point in points)
    for point in first:
        if problem := point_problem(parameters, point):
            raise SpaceError.at(source, f"first: {short(point)}", problem)
    return Space(source, parameters, first)


KEYS = ("float", "int", "choice", "log", "step", "when", "own")
Refuse: TypeAlias = Callable[[str], SpaceError]


def _parameters(source: str, key: str, entry: Any) -> list[Parameter]:
    """The range of a key, or its several ranges, of which `when` leaves one at most."""
    if not isinstance(entry, list):
        return [_parameter(source, key, entry)]
    found = [_parameter(source, key, each) for each in entry]
    if not found:
        raise SpaceError.at(source, key, "needs a range")
    for one, other in combinations(found, 2):
        theirs = dict(other.when)
        if not any(above in theirs and not set(values) & set(theirs[above]) for above, values in one.when):
            raise SpaceError.at(source, key, f"two of its ranges may hold at once: {one}; {other}")
    return found


def _parameter(source: str, key: str, entry: Any) -> Parameter:
    """One entry of the file, understood."""

    def wrong(problem: str) -> SpaceError:
        return SpaceError.at(source, key, problem)

    if not isinstance(entry, dict):
        raise wrong("must be {float: [low, high]}, {int: [low, high]} or {choice: [...]}")
    for word in set(map(str, entry)) - set(KEYS):
        known = did_you_mean(word, KEYS, otherwise=f" Known: {', '.join(KEYS)}.")
        raise wrong(f"unknown word '{echo(word)}'.{known}")
    kinds = [kind for kind in ("float", "int", "choice") if kind in entry]
    if len(kinds) != 1:
        raise wrong(f"give one of float, int, choice; found {' and '.join(kinds) or 'none'}")
    if key not in TUNABLE and any(key == name or key.startswith(name + ".") for name in FIXED):
        raise wrong("is the same in all trials of a study and can't be tuned")
    own = entry.get("own", False)
    if not isinstance(own, bool):
        raise wrong(f"own is true or false, got {echo(repr(own))}")
    when = _conditions(entry.get("when"), wrong)
    read = _choice(key, entry, when, wrong) if kinds == ["choice"] else _range(key, kinds[0], entry, when, wrong)
    return replace(read, own=own)


def _choice(key: str, entry: dict[str, Any], when: Conditions, wrong: Refuse) -> Parameter:
    if "log" in entry or "step" in entry:
        raise wrong("log and step belong to float and int, not to choice")
    if not isinstance(entry["choice"], list) or not entry["choice"]:
        raise wrong("choice needs a list of values")
    choices = tuple(entry["choice"])
    if any(not isinstance(value, bool | int | float | str | None) for value in choices):
        raise wrong("choices are numbers, texts, true, false or null")
    for i, value in enumerate(choices):
        if value in choices[:i]:  # equal values are one choice in Optuna: 1, 1.0 and true
            raise wrong(f"names a choice twice: {echo(choices[choices.index(value)])} and {echo(value)} are equal")
    return Parameter(key, "choice", choices=choices, when=when)


def _range(key: str, kind: str, entry: dict[str, Any], when: Conditions, wrong: Refuse) -> Parameter:
    ends = entry[kind] if isinstance(entry[kind], list) else []
    numbers = [float(v) for v in ends if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) != 2 or len(ends) != 2:
        raise wrong(f"{kind} needs two numbers, [low, high]")
    low, high = numbers
    step, log = entry.get("step"), entry.get("log", False)
    if not (math.isfinite(high - low) and low <= high):
        raise wrong(f"low must be at most high, got [{low:g}, {high:g}]")
    if not isinstance(log, bool):
        raise wrong(f"log is true or false, got {echo(repr(log))}")
    if log and low <= 0:
        raise wrong(f"log needs bounds above 0, got {low:g}")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf):
        raise wrong(f"step must be a number above 0, got {echo(repr(step))}")
    if log and step is not None:
        raise wrong("log and step can't be combined")
    if kind == "int" and any(v != int(v) for v in (low, high, step or 1)):
        raise wrong("int needs whole numbers")
    if step:  # Optuna would lower `high` to the last step, with a warning; in decimals as it does, else it loses a step
        first, width = Decimal(str(low)), Decimal(str(step))
        try:
            high = float(first + (Decimal(str(high)) - first) // width * width)
        except InvalidOperation:
            raise wrong(f"step {step:g} is too small for [{low:g}, {high:g}]") from None
    whole: Literal["float", "int"] = "int" if kind == "int" else "float"
    return Parameter(key, whole, low, high, log, None if step is None else float(step), when=when)


def _conditions(given: Any, wrong: Refuse) -> Conditions:
    if given is None:
        return ()
    if not isinstance(given, dict) or not given:
        raise wrong("when must be {field: value} or {field: [values]}")
    if empty := [str(key) for key, values in given.items() if values == []]:
        raise wrong(f"`when` can't hold: {empty[0]} has no value in it")
    return tuple((str(key), tuple(values if isinstance(values, list) else [values])) for key, values in given.items())


def ordered(parameters: list[Parameter], source: str) -> list[Parameter]:
    """The parameters, each after those that its `when` names; conditions that do not hold in any draw are errors."""
    ranges = by_key((p.key, p) for p in parameters)
    for p in parameters:
        for key, values in p.when:
            if key not in ranges:
                hint = did_you_mean(key, ranges)
                raise SpaceError.at(source, p.key, f"`when` names '{echo(key)}', which is not in this space.{hint}")
            if len(ranges[key]) > 1:
                raise SpaceError.at(source, p.key, f"`when` names '{echo(key)}', which has several ranges")
            for value in values:
                if problem := ranges[key][0].problem(value):
                    raise SpaceError.at(source, p.key, f"`when` can't hold: {key}: {problem}")
    done: list[Parameter] = []
    left = list(parameters)
    while left:
        keys = {p.key for p in done}
        ready = next((p for p in left if all(key in keys for key, _ in p.when)), None)
        if ready is None:
            ring = ", ".join(dict.fromkeys(p.key for p in left))
            raise SpaceError.at(source, "", f"`when` goes round in a circle: {ring}")
        for key, _ in ready.when:
            above = ranges[key]
            if all(p.kind == "float" and p.step is None and not p.is_fixed for p in above):
                told = "; ".join(map(str, above))
                problem = f"`when` names {key}, {told}, of which no draw is a given value; give it a step or a choice"
                raise SpaceError.at(source, ready.key, problem)
        done.append(ready)
        left.remove(ready)
    return done
