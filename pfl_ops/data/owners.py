"""Owners of samples, and their part in training or testing, under other names than pfl-ops reads.

Files of other programs have a column, or an array, `client_id` or `user`, or a column `Split` or `is_test`. It is not
read as such: a partition makes the clients, test samples are drawn, and a column is a feature. So a line says what
happens to it.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pfl_ops.data import npz, tables
from pfl_ops.data.npz import DataError
from pfl_ops.errors import echo

# in lower case and letters alone
OWNER = re.compile(r"(client|user|owner|silo)(s|ids?|nos?|nrs?|numbers?|names?)?(train|test)?")
SPLIT = re.compile(r"(is)?(split|train|test|traintest|holdout|fold|subset)s?")


def owner_in(names: Iterable[str]) -> str | None:
    """Return the first of these names that says the owner of a sample; None: none does.

    >>> owner_in(["age", "Client_ID", "user"]), owner_in(["age", "client_income"])
    ('Client_ID', None)
    """
    return _first(OWNER, names)


def split_in(names: Iterable[str]) -> str | None:
    """Return the first of these names that says what a sample is for, training or testing; None: none does.

    >>> split_in(["age", "Split"]), split_in(["is_test"]), split_in(["test_score"])
    ('Split', 'is_test', None)
    """
    return _first(SPLIT, names)


def _first(pattern: re.Pattern[str], names: Iterable[str]) -> str | None:
    return next((name for name in names if pattern.fullmatch(re.sub("[^a-z]", "", name.lower()))), None)


NUMBERS_SHOWN = 5
"""Clients that a line lists beside the last one."""


def numbering(clients: Sequence[int], names: Sequence[object]) -> str:
    """Return what some clients are called.

    Args:
        clients: their numbers, ascending. names: of all clients.

    >>> numbering([1, 2], ["0", "10", "9"]), numbering(range(7), "abcdefg")
    ('1 is 10, 2 is 9', '0 is a, 1 is b, 2 is c, 3 is d, 4 is e, ... 6 is g')
    """
    last = [f"... {clients[-1]} is {echo(names[clients[-1]], 30)}"] if len(clients) > NUMBERS_SHOWN else []
    return ", ".join([*(f"{k} is {echo(names[k], 30)}" for k in clients[:NUMBERS_SHOWN]), *last])


def remarks(source: Path, name: str, *, clients: bool) -> tuple[str, ...]:
    """Return the lines on a file with such columns, or arrays, in the place of its clients or its split; (): none.

    Args:
        source: a file of the user's own, .npz, .csv or .parquet. name: the data set's. clients: it has them.
    """
    is_table = source.suffix in (".csv", ".parquet")
    try:
        names = tables.read_names(source) if is_table else npz.read_names(source)
    except (OSError, ValueError, DataError):  # the file changed since: the cache has what is used
        return ()
    told = []
    if not clients and (found := owner_in(names)) is not None:
        shown = echo(found, 30)
        told.append(
            f"column '{shown}' is a feature, and {name} has no clients; their column is named client"
            if is_table
            else f"array '{shown}' is left alone, and {name} has no clients; owners are client_train, client_test"
        )
    if is_table and "split" not in names and (found := split_in(names)) is not None:
        own = f"{name} has no test samples of its own"
        told.append(f"column '{echo(found, 30)}' is a feature, and {own}; their column is named split")
    return tuple(told)
