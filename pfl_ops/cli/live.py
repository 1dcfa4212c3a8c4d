"""Tables at the end of a command: scores of runs, trials of a study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pfl_ops.display import tables
from pfl_ops.display.tables import percent as percent
from pfl_ops.display.tables import score_notes as results_notes

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.results import Result


def results_table(results: "Sequence[Result]", split: str) -> Table:
    """Return `tables.scores` for a terminal."""
    return drawn(tables.scores(results, split))


def trials_table(trials: "pd.DataFrame", metrics: Sequence[str], chosen: int, title: str, most: int = 12) -> Table:
    """Return `tables.trials` for a terminal."""
    return drawn(tables.trials(trials, metrics, chosen, title, most))


def drawn(rows: tables.TableRows) -> Table:
    """Return a table of text for a terminal; a last column of words takes several lines."""
    table = Table(title=rows.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    last = len(rows.heads) - 1
    for place, head in enumerate(rows.heads):
        if place in rows.left:
            table.add_column(head, overflow="fold" if place == last else "ellipsis")
        else:
            table.add_column(head, justify="right")
    for row in rows.rows:
        table.add_row(*map(Text, row))  # Text: square brackets are no markup here
    return table


__all__ = ["drawn", "percent", "results_notes", "results_table", "trials_table"]
