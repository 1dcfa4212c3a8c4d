"""A search space as plain data, and how a point is drawn from it."""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np

from pfl_ops.errors import LONGEST_PATH, PflOpsError, did_you_mean, echo

Value: TypeAlias = bool | int | float | str | None
Point: TypeAlias = dict[str, Value]
Conditions: TypeAlias = tuple[tuple[str, tuple[Value, ...]], ...]
VARIANT = "@"  # between a key and a variant; no path has it


class SpaceError(PflOpsError):
    """A search space that can't be used."""

    @classmethod
    def at(cls, source: str, key: str, problem: str) -> "SpaceError":
        """The error for a file and a key in it ("": the file as a whole)."""
        return cls(f"{echo(source, LONGEST_PATH)}: {echo(key, LONGEST_PATH) + ': ' if key else ''}{problem}")


@dataclass(frozen=True)
class Parameter:
    """One field of the experiment that a study varies.

    Attributes:
        key: its path.
        kind: float and int have bounds, choice has values.
        low, high: bounds, both included. log: drawn evenly in log(value). step: allowed are low, low + step, ...
        choices: the values.
        when: (key, values) pairs; the parameter exists only where every key has one of its values.
        own: the method's own condition; a comparison of methods keeps it in place of the common range.
        variant: tells it from the other ranges of its key, "sgd"; "": the key has one range. See `named`.
    """

    key: str
    kind: Literal["float", "int", "choice"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Value, ...] = ()
    when: Conditions = ()
    own: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        """Its name in Optuna: its key, or "training.lr@sgd" where the key has several ranges."""
        return f"{self.key}{VARIANT}{self.variant}" if self.variant else self.key

    @property
    def is_fixed(self) -> bool:
        """True if it has one value only."""
        return len(self.choices) == 1 if self.kind == "choice" else self.low == self.high

    def active(self, point: Mapping[str, Value]) -> bool:
        """True if the conditions hold in `point`."""
        return all(key in point and one_of(point[key], values) for key, values in self.when)

    def suggest(self, trial: Any) -> Any:
        """Its value in an Optuna trial (or anything with the same three verbs)."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.name, list(self.choices))
        if self.kind == "int":
            step = int(self.step or 1)
            return trial.suggest_int(self.name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)

    def problem(self, value: Value) -> str | None:
        """Why `value` is not one of the parameter's, or None."""
        if self.kind == "choice":
            known = echo(list(self.choices), LONGEST_PATH)
            return None if value in self.choices else f"{echo(repr(value))} is not one of {known}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or (self.kind == "int" and value != int(value)):  # type: ignore[arg-type]
            return f"{echo(repr(value))} is not {'a whole' if self.kind == 'int' else 'a'} number"
        assert isinstance(value, int | float)
        if not self.low <= value <= self.high:
            return f"{value} is outside [{self.low:g}, {self.high:g}]"
        steps = (value - self.low) / self.step if self.step else 0.0
        if abs(steps - round(steps)) > 1e-9:
            return f"{value} is not {self.low:g} plus a multiple of the step {self.step:g}"
        return None

    def as_yaml(self) -> dict[str, Any]:
        """The parameter as a file states it."""
        number = int if self.kind == "int" else float
        body: dict[str, Any] = {self.kind: list(self.choices) or [number(self.low), number(self.high)]}
        if self.log:
            body["log"] = True
        if self.step:
            body["step"] = number(self.step)
        if self.when:
            body["when"] = {key: list(values) for key, values in self.when}
        if self.own:
            body["own"] = True
        return body

    def __str__(self) -> str:
        """The range in a few words: "0.001 to 0.5 (log) where optimiser is sgd", "sgd or adam"."""
        if self.kind == "choice":
            text = " or ".join(map(str, self.choices))
        else:
            how = ["log"] * self.log + ([f"step {self.step:g}"] if self.step else [])
            text = f"{self.low:g} to {self.high:g}" + (f" ({', '.join(how)})" if how else "")
        there = [f"{key.rpartition('.')[2]} is {' or '.join(map(str, values))}" for key, values in self.when]
        return text + (f" where {' and '.join(there)}" if there else "")


@dataclass(frozen=True)
class Space:
    """The parameters, each after those that its `when` names, and the points to try before sampling.

    Call it with an Optuna trial to draw a point; being plain data, it can be pickled.

    Attributes:
        source: the file, as messages name it.
        parameters, first: see the package.
    """

    source: str
    parameters: tuple[Parameter, ...]
    first: tuple[Point, ...] = ()

    def __call__(self, trial: Any) -> Point:
        point: Point = {}
        for parameter in self.parameters:
            if parameter.active(point):
                point[parameter.key] = parameter.suggest(trial)
        return point

    def encoded(self, point: Mapping[str, Value]) -> Point:
        """Return a point by the names that Optuna has for the parameters; `decoded` is the inverse."""
        return {p.name: point[p.key] for p in self.parameters if p.key in point and p.active(point)}

    def of(self, key: str) -> tuple[Parameter, ...]:
        """Return the ranges of a key; none: it is not varied."""
        return tuple(p for p in self.parameters if p.key == key)

    @property
    def keys(self) -> tuple[str, ...]:
        """The fields that are varied, each once."""
        return tuple(dict.fromkeys(p.key for p in self.parameters))

    def draw(self, generator: np.random.Generator) -> Point:
        """A random point; the ends of a range are drawn more often than by chance."""
        return self(_Draw(generator))

    @property
    def varied(self) -> tuple[str, ...]:
        """Those of `keys` that have more than one value."""
        alone = (self.of(key) for key in self.keys)
        return tuple(some[0].key for some in alone if len(some) > 1 or not some[0].is_fixed)

    def as_yaml(self) -> dict[str, Any]:
        """The space as a file states it."""
        ranges = {key: [p.as_yaml() for p in self.of(key)] for key in self.keys}
        body: dict[str, Any] = {key: several if len(several) > 1 else several[0] for key, several in ranges.items()}
        return {**body, "first": [dict(point) for point in self.first]} if self.first else body

    @property
    def digest(self) -> str:
        """SHA-256 of what the space says, in hexadecimal; comments and the file's name don't enter."""
        return hashlib.sha256(json.dumps(self.as_yaml(), sort_keys=True).encode()).hexdigest()


def one_of(value: Value, values: Collection[Value]) -> bool:
    """True if a drawn value is one of `values`, which a file names in decimals.

    >>> one_of(0.1 + 2 * 0.1, [0.3]), one_of(0.31, [0.3])
    (True, False)
    """
    return value in values or (
        isinstance(value, float)
        and any(isinstance(each, int | float) and math.isclose(value, each, abs_tol=1e-15) for each in values)
    )


def on_step(value: float, low: float, step: float) -> float:
    """Return the value of a stepped range that is next to `value`, as it is written in decimals.

    >>> 0.1 + 2 * 0.1, on_step(0.1 + 2 * 0.1, low=0.1, step=0.1)
    (0.30000000000000004, 0.3)
    """
    first, width = Decimal(str(low)), Decimal(str(step))
    return float(first + round((Decimal(str(value)) - first) / width) * width)


class _Draw:
    """Optuna's three verbs on a NumPy generator; one draw in four is an end of the range."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def suggest_categorical(self, name: str, choices: list[Value]) -> Value:
        return choices[int(self.generator.integers(len(choices)))]

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int:
        return low + step * round(self._unit() * ((high - low) // step))

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None, log: bool) -> float:
        u = self._unit()
        if step:
            return on_step(low + u * (high - low), low, step)
        if u in (0.0, 1.0):
            return high if u else low
        return math.exp(math.log(low) + u * math.log(high / low)) if log else low + u * (high - low)

    def _unit(self) -> float:
        at_an_end = self.generator.random() < 0.25
        return float(self.generator.choice([0.0, 1.0])) if at_an_end else float(self.generator.random())


def point_of(parameters: Collection[Parameter], values: Mapping[str, Value]) -> Point:
    """Return the point that has these values, of the parameters that exist in it; None where there is no value."""
    point: Point = {}
    for p in parameters:
        if p.active(point):
            point[p.key] = values.get(p.key)
    return point


def point_problem(parameters: Collection[Parameter], point: Mapping[str, Value]) -> str | None:
    """Why `point` doesn't name exactly the parameters that exist in it, within their bounds; None: it does."""
    keys = {p.key for p in parameters}
    for key, value in point.items():
        if key not in keys:
            return f"'{echo(key)}' is not in this space.{did_you_mean(str(key), keys)}"
        there = [p for p in parameters if p.key == key and p.active(point)]
        if not there:
            return f"{key} does not exist here: its `when` does not hold"
        if problem := there[0].problem(value):
            return f"{key}: {problem}"
    for p in parameters:
        if p.active(point) and p.key not in point:
            return f"{p.key} is missing"
    return None


def named(parameters: Collection[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters with a variant where several share a key, made of the values in their conditions."""
    keys = [p.key for p in parameters]
    return tuple(
        replace(p, variant=",".join("+".join(map(str, values)) for _, values in p.when) * (keys.count(p.key) > 1))
        for p in parameters
    )


def decoded(params: Mapping[str, Value]) -> Point:
    """Return the point that an Optuna trial's parameters are; `Space.encoded` is the inverse.

    >>> decoded({"training.optimiser": "sgd", "training.lr@sgd": 0.1})
    {'training.optimiser': 'sgd', 'training.lr': 0.1}
    """
    return {name.partition(VARIANT)[0]: value for name, value in params.items()}


def assignment(path: str, value: object) -> str:
    """A value as a flag gives it, a number with four digits: "training.lr=0.01"."""
    return f"{path}={value:.4g}" if isinstance(value, float) else f"{path}={value}"


def short(point: Mapping[str, Value]) -> str:
    """A point on one line."""
    return ", ".join(assignment(key, value) for key, value in point.items())
