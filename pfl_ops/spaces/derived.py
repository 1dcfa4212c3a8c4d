"""A search space from the fields of a method that has no file: what they allow is what is varied."""

import math
from typing import Any

from pydantic.fields import FieldInfo

from pfl_ops.algorithms.base import Algorithm
from pfl_ops.config.fields import AllowedValues, node
from pfl_ops.federation.settings import Training
from pfl_ops.spaces.reading import from_dict
from pfl_ops.spaces.space import Point, Space, point_problem

TRAINING: dict[str, dict[str, Any]] = {
    "training.lr": {"float": [1e-3, 5e-1], "log": True},
    "training.local_epochs": {"int": [1, 3]},
}
"""Settings that are varied beside the method's own fields, as in the spaces of the package's methods."""
LOG_FROM = 100  # high / low from which a range is drawn evenly in the logarithm
AROUND_DEFAULT = 10  # factor below and above the default where a bound is missing
INWARDS = 1000  # the part of a range by which an open end moves into it, as 1/INWARDS


def from_fields(method: type[Algorithm]) -> Space:
    """Return the search space that follows from a method's fields, with their defaults as its first point.

        bool, Literal              all their values
        int, float, two bounds     from bound to bound
        int, float, one bound      from default / 10 to 10 default, cut at the bound; for a default above 0

    An open bound (gt, lt) of an int moves by 1, of a float by a thousandth of the range, but not past the default. A
    range with high / low >= 100 is drawn evenly in the logarithm. A field without bounds, with the default none, or
    that holds a text, a list or a section keeps its default. `TRAINING` is varied too, except for a setting that the
    method requires.

    Example, of a method with `mu: float = Field(0.1, ge=0)`:

        algorithm.mu: {float: [0.01, 1.0], log: true}
        training.lr: {float: [0.001, 0.5], log: true}
        training.local_epochs: {int: [1, 3]}
        first: [{algorithm.mu: 0.1, training.lr: 0.05, training.local_epochs: 1}]
    """
    body: dict[str, Any] = {}
    first: Point = {}
    for name, info in method.model_fields.items():
        default = _default(info)
        entry = None if node(info) is not None else _entry(AllowedValues.of(info), default)
        if entry is not None:
            body[f"algorithm.{name}"], first[f"algorithm.{name}"] = entry, default
    for path, entry in TRAINING.items():
        if path not in method.requires:
            body[path] = entry
            first[path] = method.recommended.get(path, _default(Training.model_fields[path.partition(".")[2]]))
    source = f"the fields of {method.name}"
    space = from_dict(body, source)
    return space if point_problem(space.parameters, first) else from_dict({**body, "first": [first]}, source)


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True)


def _entry(allowed: AllowedValues, default: Any) -> dict[str, Any] | None:
    """Return the entry of a field, as in a file; None: it is not varied."""
    if allowed.type in ("bool", "choice"):
        choices = [False, True] if allowed.type == "bool" else [*(allowed.choices or ())]
        return {"choice": choices + [None] * allowed.nullable}
    if allowed.type not in ("int", "float") or not isinstance(default, int | float):
        return None
    low, high = _ends(allowed, default)
    if allowed.type == "int":
        low, high = math.ceil(low), math.floor(high)
    if not low < high:
        return None
    entry: dict[str, Any] = {allowed.type: [low, high]}
    return {**entry, "log": True} if low > 0 and high / low >= LOG_FROM else entry


def _ends(allowed: AllowedValues, default: float) -> tuple[float, float]:
    """The lowest and highest value, both allowed; (0, 0) if the bounds do not say."""
    low, high = allowed.low, allowed.high
    if low is None or high is None:
        if default <= 0 or (low is None and high is None):
            return 0, 0
        least, most = default / AROUND_DEFAULT, default * AROUND_DEFAULT
        low, high = least if low is None else max(low, least), most if high is None else min(high, most)
    inwards = 1 if allowed.type == "int" else (high - low) / INWARDS
    if allowed.low_open and low == allowed.low:
        low = min(low + inwards, default)
    if allowed.high_open and high == allowed.high:
        high = max(high - inwards, default)
    return low, high
