"""Tables as CSV that a spreadsheet shows and never runs."""

import csv
import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

RUNS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that spreadsheets take for a formula, or strip before they look."""

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def inert(value: Any) -> Any:
    """A cell's value with ' before a text that a spreadsheet would run; numbers, and texts of one number, stay.

    Source: OWASP, "CSV Injection".

    >>> [inert(value) for value in ("=1+1", "-0.5", -0.5, "- a", "fliu")]
    ["'=1+1", '-0.5', -0.5, "'- a", 'fliu']
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    # a single CR ends a row for some spreadsheets, and Python's writer does not quote it
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if value.startswith(RUNS) else text


def to_csv(table: "pd.DataFrame") -> str:
    """A table as CSV without its index: numbers in full precision, texts and headings `inert`."""
    import pandas as pd

    texts = [not pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    cells = {
        at: table.iloc[:, at].map(inert, na_action="ignore") if text else table.iloc[:, at]
        for at, text in enumerate(texts)
    }
    made = pd.DataFrame(cells, index=table.index)
    return str(made.to_csv(index=False, header=[inert(str(name)) for name in table.columns], lineterminator="\n"))


def rows_to_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV, texts `inert`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[inert(cell) for cell in row] for row in rows])
    return out.getvalue()
