"""Random generators keyed by what they are for, so that no draw can disturb another and none need be saved."""

import hashlib

import numpy as np


def key(seed: int, purpose: str, *parts: int | str) -> int:
    """A 128-bit key of (seed, purpose, parts): BLAKE2b over their text, the same on every machine and in every
    process."""
    text = "\x1f".join([str(int(seed)), purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *parts: int | str) -> np.random.Generator:
    """A generator of its own for (seed, purpose, parts).

    Args:
        seed: the run's seed.
        purpose: what is drawn, e.g. "partition", "cohort", "train".
        parts: further keys, e.g. round, client, stream, call.
    """
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *parts)))


def torch_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """A seed for `torch.manual_seed`: the key's lowest 63 bits."""
    return key(seed, purpose, *parts) & (2**63 - 1)
