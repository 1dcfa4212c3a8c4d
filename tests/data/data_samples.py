"""A tiny data set to write, change and break."""

from typing import Any

import numpy as np


def arrays(n_train: int = 120, n_test: int = 40, n_classes: int = 4, **changes: Any) -> dict[str, np.ndarray]:
    """A tiny data set of images 6 x 5, each class with its own brightness; `changes` replace arrays, None drops one."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for part, n in (("train", n_train), ("test", n_test)):
        y = np.arange(n) % n_classes
        made[f"x_{part}"] = (rng.integers(0, 40, (n, 6, 5)) + 50 * y[:, None, None]).astype(np.uint8)
        made[f"y_{part}"] = y
    made |= changes
    return {name: value for name, value in made.items() if value is not None}
