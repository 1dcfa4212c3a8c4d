"""Tables of the command line, and scores, as parts of a report."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfl_ops.reports.pages.document import Mark, Row, Table, TableCell
from pfl_ops.units import with_unit

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.display.tables import TableRows


def table_of(
    name: str, rows: "TableRows", caption: str = "", notes: Sequence[str] = (), data: "pd.DataFrame | None" = None
) -> Table:
    """Return a table that the command line prints.

    Args:
        name, notes, data: see `Table`. caption: in place of the title of `rows`.
    """
    title = caption or rows.title
    body = (
        Row(tuple(TableCell(text) if i in rows.left else _entry(text) for i, text in enumerate(row)))
        for row in rows.rows
    )
    return Table.of(name, title[:1].upper() + title[1:], rows.heads, body, notes, data)


def score(metric: str, value: float, mark: Mark = "", part: str = "") -> TableCell:
    """Return a score of a metric with its unit; "–": there is none. `part`: follows it, see `units.part_of`."""
    return TableCell(with_unit(metric, value) + part, finite(value), mark=mark)


def finite(value: float) -> float | None:
    """Return the number; None: it is none."""
    return value if math.isfinite(value) else None


def _entry(text: str) -> TableCell:
    """A cell; one that begins with a number has it as its value."""
    try:
        return TableCell(text, float(text.partition(" ")[0].replace(",", "")))
    except ValueError:
        return TableCell(text)
