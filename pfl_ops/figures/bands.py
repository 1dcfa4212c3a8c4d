"""Repetitions in: what callers give, checked, as mean and spread."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import PflOpsError

Band: TypeAlias = tuple[ArrayLike, ArrayLike]
"""(x [X], values [n, X]): n repetitions at the same places; NaN: not measured there."""


@dataclass(frozen=True)
class Summary:
    """Repetitions in short.

    Args:
        x: places that have a value, in order [X]. values: all repetitions there [n, X].
        mean, std: over the repetitions that have a value [X]; std is that of a sample (n - 1), 0 where n is 1.
        n: repetitions with any value. least: of them, those at the place that has the fewest.
    """

    x: NDArray[np.float64]
    values: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    n: int
    least: int

    @property
    def counts(self) -> tuple[int, int]:
        """The fewest repetitions at a place, and all."""
        return self.least, self.n


def numbers(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Values as floats; None is NaN.

    Raises:
        PflOpsError: these are no numbers.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PflOpsError(f"{what}: these are no numbers in rows of one length") from error


def moments(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sample standard deviation over axis 0 [n, ...], NaN left out; std is 0 with one value."""
    count = np.isfinite(values).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a place without any value: NaN is the answer
        mean = np.nanmean(values, axis=0)
        std = np.nanstd(values, axis=0, ddof=1)
    return mean, np.where(count > 1, std, 0.0)


def summary(name: str, band: Band) -> Summary:
    """A band, checked.

    Raises:
        PflOpsError: the shapes do not fit; or there is no value.
    """
    try:
        places, given = band
    except (TypeError, ValueError) as error:
        raise PflOpsError(f"'{name}': a line is (x [X], values [n, X])") from error
    x, values = numbers(places, f"'{name}', x").reshape(-1), numbers(given, f"'{name}', values")
    values = values[None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != len(x):
        raise PflOpsError(f"'{name}': a line is (x [X], values [n, X]), got {len(x)} x and values {list(values.shape)}")
    values = np.where(np.isfinite(values), values, np.nan)
    values = values[~np.isnan(values).all(axis=1)]
    there = np.isfinite(x) & ~np.isnan(values).all(axis=0)
    if not there.any():
        raise PflOpsError(f"'{name}': there is no value to draw")
    order = np.flatnonzero(there)[np.argsort(x[there], kind="stable")]
    mean, std = moments(values[:, order])
    least = int((~np.isnan(values[:, order])).sum(axis=0).min())
    return Summary(x[order], values[:, order], mean, std, len(values), least)


def summaries(series: Mapping[str, Band]) -> dict[str, Summary]:
    """Every band of a picture.

    Raises:
        PflOpsError: there is none, or one does not fit.
    """
    if not series:
        raise PflOpsError("there is nothing to draw: no line was given")
    return {name: summary(name, band) for name, band in series.items()}


def repetitions(counts: Mapping[str, tuple[int, int]]) -> tuple[str, dict[str, str]]:
    """The remark on n for a picture, and each name as it is written: with its n where these differ.

    Args:
        counts: name -> the fewest repetitions at a place, and all.
    """
    found = {name: f"n = {low} to {high}" if low < high else f"n = {high}" for name, (low, high) in counts.items()}
    if len(set(found.values())) == 1:
        n = next(iter(found.values()))
        return ("n = 1" if n == "n = 1" else f"mean ± standard deviation, {n}"), {name: name for name in counts}
    return "mean ± standard deviation, n each", {name: f"{name} ({n})" for name, n in found.items()}
