"""A comparison in a notebook: each group's table, and a picture of the first ones."""

from functools import partial

from pfl_ops.display import cards
from pfl_ops.display.tables import TableRows
from pfl_ops.errors import count
from pfl_ops.reports.comparison.compared import BEST, ahead, results, size_of, warning
from pfl_ops.reports.comparison.compared_pictures import pictures
from pfl_ops.reports.comparison.comparison_data import ComparisonData, Group
from pfl_ops.reports.numbers import order_text
from pfl_ops.reports.pages.document import Table, TableCell

MOST_OPEN = 3  # groups that are open and have a picture
MOST_GROUPS = 12


def card(c: ComparisonData) -> str:
    """Return the comparison as HTML, see `cards`. A row is bold if its line is the best, not if it is the highest."""
    return cards.card(
        lambda: cards.heading(size_of(c), f"ordered {order_text(c.metric)}"),
        lambda: cards.joined(
            partial(_group, c, group, i < MOST_OPEN) for i, group in enumerate(c.groups[:MOST_GROUPS])
        ),
        lambda: cards.note(_rest(len(c.groups) - MOST_GROUPS), *c.remarks),
    )


def _rest(left: int) -> str:
    return f"{count(left, 'more group')} in `table` and in the page of `to_html`" if left > 0 else ""


def _group(c: ComparisonData, group: Group, is_open: bool) -> str:
    table = results(c, group)
    parts = [lambda: cards.table(_rows(c, group, table)), lambda: cards.note(*warning(group), *table.notes)]
    if is_open:
        parts.append(lambda: _picture(c, group))
    return cards.folded(f"{group.title}: {group.size}", parts, is_open)


def _rows(c: ComparisonData, group: Group, table: Table) -> TableRows:
    rows = tuple(tuple(map(_text, row.entries)) for row in table.rows)
    left = frozenset(place for place, numeric in enumerate(table.numeric) if not numeric)
    marked = 0 if ahead(c, group, group.lines[0]) == BEST else None
    return TableRows("", table.columns, rows, left, marked)


def _text(entry: TableCell) -> str:
    return f"{entry.text} ({', '.join(entry.below)})" if entry.below else entry.text


def _picture(c: ComparisonData, group: Group) -> str:
    """The first picture of the page, which is that of the curves if there are any."""
    first = next(pictures(c, group, str), None)
    return cards.picture(first.draw, first.alt or first.caption) if first else ""
