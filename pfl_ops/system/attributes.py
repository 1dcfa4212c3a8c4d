"""Attributes of modules and classes of other packages, replaced for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replace_attributes(owner: Any, **values: Any) -> Iterator[None]:
    """Give attributes of a module or a class other values, and the former ones at the end.

    >>> import math
    >>> with replace_attributes(math, pi=3):
    ...     print(math.pi)
    3
    >>> round(math.pi, 2)
    3.14
    """
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
