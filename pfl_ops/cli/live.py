"""Tables on the terminal: scores of runs, trials of a study."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table
from rich.text import Text

from pfl_ops.cli.output import say
from pfl_ops.display import tables

if TYPE_CHECKING:
    from rich.console import Console

    from pfl_ops.results import Result


def print_scores(console: "Console", results: "Sequence[Result]", split: str) -> None:
    """Print the full last evaluation of the repetitions of a run, and the notes on it."""
    console.print(drawn(tables.scores(results, split)))
    for note in tables.score_notes(results, split):
        say(console, note)


def plain_table(*words: str, numbers: Sequence[str] = (), no_wrap: Collection[str] = (), **settings: Any) -> Table:
    """Return a table without lines and rows.

    Args:
        words: heads of columns on the left. numbers: of those on the right, flush right.
        no_wrap: heads of the columns that take one line. settings: others of `Table`.
    """
    left = [Column(head, no_wrap=head in no_wrap) for head in words]
    right = [Column(head, justify="right", no_wrap=head in no_wrap) for head in numbers]
    return Table(*left, *right, box=None, pad_edge=False, **settings)


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
