"""The samples that a client sees, in their order: drawn from a generator of its own and nothing else."""

from dataclasses import dataclass

import numpy as np

from pfl_ops.federation.method.contract import Share


@dataclass(frozen=True)
class Plan:
    """One client's walk through its own samples.

    Attributes:
        order: positions among the client's samples, int64, all steps one after the other.
        bounds: step j covers order[bounds[j]:bounds[j+1]]; int64 [J + 1].
        epoch: epoch of each step, int64 [J]; ends: last step of its epoch, bool [J].
    """

    order: np.ndarray
    bounds: np.ndarray
    epoch: np.ndarray
    ends: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.bounds) - 1


def draw(n: int, *, batch: int | None, epochs: int | None, steps: int | None, rng: np.random.Generator) -> Plan:
    """A plan of whole epochs, or of a number of steps that goes on through as many epochs as it needs.

    Each epoch is a fresh permutation cut into batches of `batch` samples, the last one as long as what is left.

    Args:
        n: samples of the client; 0 gives no steps.
        batch: samples a step; None: all of them.
        epochs, steps: the length, one of them.
        rng: the client's own generator.
    """
    size = max(min(batch or n, n), 1)
    a_pass = -(-n // size)
    count = steps_of(n, batch=batch, epochs=epochs, steps=steps)
    passes = -(-count // a_pass) if count else 0
    order = np.concatenate([rng.permutation(n) for _ in range(passes)]) if passes else np.zeros(0, np.int64)
    j = np.arange(count, dtype=np.int64)
    epoch, within = np.divmod(j, a_pass) if a_pass else (j, j)
    starts = epoch * n + within * size
    stop = int(epoch[-1] * n + min((within[-1] + 1) * size, n)) if count else 0
    return Plan(order[:stop], np.append(starts, stop), epoch, within == a_pass - 1)


def steps_of(n: int, *, batch: int | None, epochs: int | None, steps: int | None) -> int:
    """Return the number of steps of the plan that `draw` gives for these arguments."""
    if steps is not None:
        return steps if n else 0
    return -(-n // max(min(batch or n, n), 1)) * (epochs or 0)


def part(n: int, share: Share, rng: np.random.Generator) -> np.ndarray:
    """Positions of a share of n samples, int64 [m]; with n >= 2 both sides of a cut inside (0, 1) keep a sample.

    >>> sorted(len(part(3, Share(low, high), np.random.default_rng(0))) for low, high in ((0, 0.1), (0.1, 1)))
    [1, 2]
    """

    def cut(x: float) -> int:
        if x <= 0:
            return 0
        if x >= 1:
            return n
        return min(max(round(x * n), 1), n - 1) if n >= 2 else n

    return rng.permutation(n)[cut(share.low) : cut(share.high)]
