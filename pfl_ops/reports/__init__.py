"""Reports: what was measured as pages, tables and pictures.

    document    a report as plain data
    html, markdown, latex    what it looks like
    write       its files in a folder
    suite       a paper's table or figure, ours beside theirs

None of these reads a store: they are given what they show.
"""

from pfl_ops.reports.document import Document, Head, ItemList, PageSection, Panel, Picture, Row, Table, TableCell, Text
from pfl_ops.reports.html import to_html
from pfl_ops.reports.latex import to_latex
from pfl_ops.reports.markdown import to_csv, to_markdown
from pfl_ops.reports.write import write

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
