"""Numbers of a point that lie at an end of their range: a better value may lie beyond."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pfl_ops.spaces.space import Parameter, Space, Value, assignment

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.config.fields import AllowedValues

SHARE_OF_AN_END = 0.02  # of a range (of its logarithm, where it is drawn so) from an end


def at_ends(space: Space, experiment: "Experiment", point: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the numbers at an end of their range, with the range: "training.lr=0.49 in 0.001 to 0.5 (log)".

    An end beyond which the field allows nothing does not count.

    Args:
        experiment: that of the point.
    """
    allowed = {field.path: field.allowed for field in experiment.fields()}
    return tuple(
        f"{assignment(p.key, point[p.key])} in {_range(p)}"
        for p in space.parameters
        if p.kind != "choice" and p.key in point and p.active(point) and any(_ends(p, point[p.key], allowed[p.key]))
    )


def _range(parameter: Parameter) -> str:
    return f"{parameter.low:g} to {parameter.high:g}{' (log)' * parameter.log}"


def _ends(p: Parameter, value: Value, allowed: "AllowedValues") -> Iterator[bool]:
    """True for each end that the value is near, and that the field allows to pass."""
    assert isinstance(value, int | float)
    if p.is_fixed:
        return
    low, high, x = (math.log(v) if p.log else float(v) for v in (p.low, p.high, value))
    near = SHARE_OF_AN_END * (high - low) if p.kind == "float" else 0.0
    step = 1.0 if p.kind == "int" else 0.0  # to the first number inside an open bound
    yield x - low <= near and (allowed.low is None or p.low - allowed.low > step * allowed.low_open)
    yield high - x <= near and (allowed.high is None or allowed.high - p.high > step * allowed.high_open)
