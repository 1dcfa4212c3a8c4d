"""Reports: what was measured as pages, tables and pictures.

Its rooms; each imports only those below it:

    comparison     runs side by side
    leaderboards   benchmarks and studies; beside `comparison`
    suites         a paper's tables and figures, ours beside theirs; beside `comparison`
    numbers        names, units and numbers of comparisons and leaderboards
    pages          a report as plain data, and what it looks like

None of these reads a store: they are given what they show.
"""

from pfl_ops.reports.pages.document import (
    Document,
    Head,
    ItemList,
    PageSection,
    Panel,
    Picture,
    Row,
    Table,
    TableCell,
    Text,
)
from pfl_ops.reports.pages.html import to_html
from pfl_ops.reports.pages.latex import to_latex
from pfl_ops.reports.pages.markdown import to_csv, to_markdown
from pfl_ops.reports.pages.write import write

__all__ = [
    "Document",
    "Head",
    "ItemList",
    "PageSection",
    "Panel",
    "Picture",
    "Row",
    "Table",
    "TableCell",
    "Text",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "write",
]  # fmt: skip
