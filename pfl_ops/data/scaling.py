"""Input scaling: networks are given (x − mean) / deviation, per channel or feature."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from pfl_ops.data.npz import DataError

FULL_SCALE = 255.0  # largest value of a stored image
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

Levels: TypeAlias = float | tuple[float, ...]
"""One number for all channels or features, or one for each."""


class Constants(NamedTuple):
    """Mean and deviation, float32 per channel or feature, in units of the stored values."""

    mean: np.ndarray
    std: np.ndarray

    def equal(self, other: "Constants") -> bool:
        """True if both are the same numbers."""
        return np.array_equal(self.mean, other.mean) and np.array_equal(self.std, other.std)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def _positive(value: Any) -> Any:
    if not isinstance(value, str):
        deviations = value[1] if isinstance(value[1], tuple) else (value[1],)
        if not deviations or min(deviations) <= 0:
            raise ValueError("the deviation in [mean, deviation] must be above 0")
    return value


Scaling: TypeAlias = Annotated[
    Literal["standard", "half", "unit"] | tuple[Levels, Levels], BeforeValidator(_as_tuples), AfterValidator(_positive)
]


def constants(
    scaling: str | tuple[Levels, Levels],
    standard: Constants,
    *,
    name: str,
    shape: tuple[int, ...],
    full_scale: float,
    features: Callable[[], np.ndarray],
) -> Constants:
    """Return the mean and the deviation of a scaling.

    standard: those of the training data. unit: images u = x / full_scale, features u = (x − min) / (max − min). half:
    (u − 0.5) / 0.5. [mean, deviation]: these, in units of the stored values.

    Args:
        scaling: the setting.
        standard: mean and deviation of the training data.
        name: of the data set, for messages.
        shape: of a sample: images (H, W, C), features (d,).
        full_scale: largest value of an image's pixels.
        features: gives the published training samples [n, d]; called for unit and half of features only.
    Raises:
        DataError: another number of means or deviations than there are channels or features.
    """
    if scaling == "standard":
        return standard
    if isinstance(scaling, tuple):
        mean, deviation = scaling
        return Constants(_each(mean, "means", name, shape[-1]), _each(deviation, "deviations", name, shape[-1]))
    if len(shape) == 1:
        x = features()
        low, high = x.min(0).astype(np.float64), x.max(0).astype(np.float64)
        reach = np.where(high > low, high - low, 1.0)  # a constant feature becomes 0
    else:
        low, reach = np.zeros(shape[-1]), np.full(shape[-1], full_scale)
    if scaling == "half":
        low, reach = low + reach / 2, reach / 2
    return Constants(low.astype(np.float32), reach.astype(np.float32))


def _each(levels: Levels, what: str, name: str, count: int) -> np.ndarray:
    given = levels if isinstance(levels, tuple) else (levels,) * count
    if len(given) != count:
        raise DataError(f"data.scaling has {len(given)} {what}, {name} has {count} channels or features")
    if any(not SMALLEST <= abs(level) <= LARGEST for level in given if level):
        raise DataError(f"data.scaling has {what} beyond the range of float32")
    return np.asarray(given, dtype=np.float32)
