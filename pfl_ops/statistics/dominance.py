"""Comparison by several values at once, of which no sum is taken."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(points: ArrayLike) -> NDArray[np.bool_]:
    """True for each point of the Pareto front: no other one is at least as good everywhere and better somewhere.

    Args:
        points: [n, objectives], larger is better; a row with NaN is never in the front.
    Returns:
        bool [n]; equal points are all in it, or none.

    >>> non_dominated([[0.9, 0.1], [0.5, 0.5], [0.4, 0.5]]).tolist()  # the second beats the third
    [True, True, False]
    """
    table = np.asarray(points, dtype=np.float64)
    front: NDArray[np.bool_] = np.logical_not(np.isnan(table).any(axis=1))
    for i in np.flatnonzero(front):
        beaten_by = (table >= table[i]).all(axis=1) & (table > table[i]).any(axis=1)
        front[i] = not beaten_by.any()
    return front
