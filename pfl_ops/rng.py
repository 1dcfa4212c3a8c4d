"""Random generators keyed by what they are for, so that no draw can disturb another and none need be saved."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np


def key(seed: int, purpose: str, *parts: int | str) -> int:
    """A 128-bit key of (seed, purpose, parts): BLAKE2b over their text, the same on every machine and in every
    process."""
    return int.from_bytes(hashlib.blake2b(_text(seed, purpose, *parts).encode(), digest_size=16).digest(), "little")


def _text(seed: int, purpose: str, *parts: int | str) -> str:
    return "\x1f".join([str(int(seed)), purpose, *map(str, parts)])


def generator(seed: int, purpose: str, *parts: int | str) -> np.random.Generator:
    """A generator of its own for (seed, purpose, parts).

    Args:
        seed: the run's seed.
        purpose: what is drawn, e.g. "partition", "cohort", "train".
        parts: further keys, e.g. round, client, stream, call.
    """
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *parts)))


def generators(seed: int, purpose: str, *parts: int | str, numbers: Iterable[int]) -> Iterator[np.random.Generator]:
    """Yield `generator(seed, purpose, *parts, number)` for each number.

    It is one object that is set to each key in turn, which takes a third of the time of making one each: draw from it
    before the next one is taken.

    >>> [float(each.random()) for each in generators(3, "demo", numbers=[0, 1])] == [
    ...     float(generator(3, "demo", k).random()) for k in (0, 1)
    ... ]
    True
    """
    bits = np.random.Philox(key=0)
    drawing, state = np.random.Generator(bits), bits.state
    prefix = hashlib.blake2b(_text(seed, purpose, *parts, "").encode(), digest_size=16)
    for number in numbers:
        hashed = prefix.copy()
        hashed.update(str(number).encode())
        state["state"]["key"] = np.frombuffer(hashed.digest(), "<u8")
        bits.state = state
        yield drawing


def torch_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """A seed for `torch.manual_seed`: the key's lowest 63 bits."""
    return key(seed, purpose, *parts) & (2**63 - 1)
