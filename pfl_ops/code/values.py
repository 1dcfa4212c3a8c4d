"""Numbers and texts as one text each, for digests."""

from collections.abc import Mapping
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of constants."""


def written(value: Any) -> str:
    """Return a value as Python writes it, and integers in it of more digits than it writes (4,300) in base 16.

    >>> written((1, "a")), len(written(10**5000))  # 5,000 · log 10 / log 16, rounded up, and 0x
    ("(1, 'a')", 4155)
    """
    try:
        return repr(value)
    except ValueError:
        parts = value.items() if isinstance(value, Mapping) else value
        return hex(value) if isinstance(value, int) else repr([type(value).__name__, *map(written, parts)])


def is_plain(value: Any) -> bool:
    """True for a number or text, or a tuple of these."""
    return all(map(is_plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


def in_order(value: Any) -> Any:
    """Return a list for a set, whose order is another one in each process, and a value without sets itself."""
    if type(value) in (set, frozenset):
        return type(value).__name__, sorted(map(in_order, value), key=repr)
    return tuple(map(in_order, value)) if type(value) is tuple else value
