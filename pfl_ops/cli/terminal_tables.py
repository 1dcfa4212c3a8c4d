"""Tables on the terminal: scores of runs, trials of a study."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

from pfl_ops.cli.output import print_whole, say
from pfl_ops.display import tables

if TYPE_CHECKING:
    from rich.console import Console

    from pfl_ops.results import Result


def print_scores(console: "Console", results: "Sequence[Result]", split: str) -> None:
    """Print the full last evaluation of the repetitions of a run, and the notes on it."""
    print_rows(console, tables.scores(results, split))
    say(console, *tables.score_notes(results, split))


def plain_table(*words: str, numbers: Sequence[str] = (), no_wrap: Collection[str] = (), **settings: Any) -> Table:
    """Return a table without lines and rows.

    Args:
        words: heads of columns on the left. numbers: of those on the right, flush right.
        no_wrap: heads of the columns that take one line. settings: others of `Table`.
    """
    left = [Column(head, no_wrap=head in no_wrap, overflow="fold") for head in words]
    right = [Column(head, justify="right", no_wrap=head in no_wrap) for head in numbers]
    return Table(*left, *right, box=None, pad_edge=False, **settings)


GAP = 2  # columns between two columns of a table
LEAST_WORDS = 20  # columns of a last column of words, which takes several lines
LEAST_HEAD = 8  # columns at which a head is broken
BREAKS = re.compile(r" +(?=± |\()")  # "91.2 ± 0.4 % (3 of 5)" takes three lines at most


def print_rows(console: "Console", rows: tables.TableRows) -> None:
    """Print a table of text: if it is too wide for the terminal, with heads, then with numbers, in several lines.

    No name or number is cut: a table that is still too wide is printed in its own width.
    """
    broken = replace(rows, heads=_broken_heads(rows))
    for shown in (rows, broken, _broken_numbers(broken)):
        width = sum(_widths(shown)) + GAP * (len(rows.heads) - 1)
        if width <= console.width:
            break
    print_whole(console, drawn(shown), width)


def drawn(rows: tables.TableRows) -> Table:
    """Return a table of text for a terminal; a last column of words takes several lines."""
    table = Table(title=rows.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    last = len(rows.heads) - 1
    for place, head in enumerate(rows.heads):
        if place in rows.left:
            table.add_column(head, overflow="fold", no_wrap=place != last)
        else:
            table.add_column(head, justify="right", no_wrap=True)
    for row in rows.rows:
        table.add_row(*map(Text, row))  # Text: square brackets are no markup here
    return table


def _widths(rows: tables.TableRows) -> list[int]:
    """Return the columns that each column of a table takes: its longest line, and of last words no more than needed."""
    texts = zip(rows.heads, *rows.rows, strict=True)
    found = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    if len(rows.heads) - 1 in rows.left:
        found[-1] = min(found[-1], LEAST_WORDS)
    return found


def _broken_heads(rows: tables.TableRows) -> tuple[str, ...]:
    """Return the heads in lines that are no longer than the longest cell below, where they can be."""
    widths = [max((cell_len(row[place]) for row in rows.rows), default=0) for place in range(len(rows.heads))]
    return tuple(_lines(head, max(width, LEAST_HEAD)) for head, width in zip(rows.heads, widths, strict=True))


def _lines(head: str, width: int) -> str:
    """Return a head with line breaks at its spaces and behind its plus signs."""
    parts = head.replace("+", "+ ") if len(head) > width else head
    return "\n".join(wrap(parts, width, break_long_words=False, break_on_hyphens=False))


def _broken_numbers(rows: tables.TableRows) -> tables.TableRows:
    """Return a table whose spreads and remarks in brackets stand below their numbers, and heads as narrow."""
    cells = [
        tuple(cell if place in rows.left else BREAKS.sub("\n", cell) for place, cell in enumerate(row))
        for row in rows.rows
    ]
    return replace(rows, heads=tuple(_lines(head, LEAST_HEAD) for head in rows.heads), rows=tuple(cells))
