"""Data of a check: MNIST where it lies, else random data of its shape; and a small file for the methods."""

import os
from pathlib import Path

import numpy as np

from pfl_ops import rng

SMALL = "small.npz"


def mnist(folder: Path, given: str | None, quick: bool) -> tuple[str, str]:
    """Return a folder that has mnist.npz, and a line if the data are random.

    Args:
        folder: for random data. given: where mnist.npz may lie; none: the variable PFL_OPS_DATA.
        quick: random data in any case, and few.
    """
    places = (os.environ.get("PFL_OPS_DATA", "") if given is None else given).split(os.pathsep)
    found = next((place for place in places if place and (Path(place).expanduser() / "mnist.npz").is_file()), None)
    if found is not None and not quick:
        return found, ""
    _write(folder / "mnist.npz", (28, 28, 1), train=600 if quick else 60_000, test=100 if quick else 10_000)
    return str(folder), "mnist.npz: random data of MNIST's shape" + ("" if quick else ", for it was not found")


def small(folder: Path) -> str:
    """Write a file of few small images, and return its path."""
    _write(folder / SMALL, (8, 8, 1), train=64, test=24)
    return str(folder / SMALL)


def _write(file: Path, shape: tuple[int, ...], train: int, test: int) -> None:
    draws = rng.generator(0, "gpu check", file.name)

    def images(n: int) -> np.ndarray:
        return draws.integers(0, 256, (n, *shape), dtype=np.uint8)

    def labels(n: int) -> np.ndarray:
        return draws.permutation(np.arange(n) % 10)

    np.savez(file, x_train=images(train), y_train=labels(train), x_test=images(test), y_test=labels(test))
