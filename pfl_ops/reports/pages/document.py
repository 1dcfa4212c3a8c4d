"""A report as plain data: sections of tables, pictures and text. What it looks like is the renderers' affair."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from pfl_ops.errors import PflOpsError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Mark: TypeAlias = Literal["", "best", "good", "bad", "open", "muted", "missing", "elsewhere"]
"""best: of its column. good, bad, open: a verdict, for and against, and none yet. muted: of less weight. missing: was
not run. elsewhere: was run under other settings than its neighbours."""


LONG = 34
"""Characters from which a column of words breaks lines."""


@dataclass(frozen=True)
class TableCell:
    """One cell of a table.

    Attributes:
        text: what stands there; what follows " ± " is set smaller.
        value: the number behind it, unrounded; a column with numbers is right-aligned.
        link: address of what it comes from.
        mark: what its colour means.
        note: a remark on this entry, a footnote.
        below: short lines of less weight under the text; elsewhere beside it, behind "|".
        more: lines that are shown on demand; not in LaTeX and CSV.
    """

    text: str = ""
    value: float | None = None
    link: str | None = None
    mark: Mark = ""
    note: str = ""
    below: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """One cell of a table's head, over `span` columns."""

    text: str
    span: int = 1
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        entries: as many as there are columns; of a block none.
        title: of a block.
        kind: "block": a heading across the table; "rule": a row with a line above.
    """

    entries: tuple[TableCell, ...] = ()
    title: str = ""
    kind: Literal["", "block", "rule"] = ""

    @classmethod
    def of(cls, *entries: TableCell | str | int) -> "Row":
        """Return a row of cells, texts and counts."""
        return cls(tuple(
            one if isinstance(one, TableCell) else TableCell(one) if isinstance(one, str) else TableCell(str(one), one)
            for one in entries
        ))  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with a caption.

    Attributes:
        name: of its files, and its anchor.
        head: rows of the head, from the top. rows: of the body.
        notes: below the table.
        data: what its CSV file has; none: the entries, their numbers in full precision.
        titles: how many columns, from the left, say what a row is.

    Raises:
        PflOpsError: a row has another number of columns than the head.
    """

    name: str
    caption: str
    head: tuple[tuple[Head, ...], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: "pd.DataFrame | None" = None
    titles: int = 1

    @classmethod
    def of(
        cls,
        name: str,
        caption: str,
        heads: Iterable[Head | str],
        rows: Iterable[Row],
        notes: Iterable[str] = (),
        data: "pd.DataFrame | None" = None,
        titles: int = 1,
    ) -> "Table":
        """Return a table whose head is one row, a text for each column."""
        head = tuple(one if isinstance(one, Head) else Head(one) for one in heads)
        return cls(name, caption, (head,), tuple(rows), tuple(notes), data, titles)

    def __post_init__(self) -> None:
        widths = {sum(head.span for head in row) for row in self.head}
        widths |= {len(row.entries) for row in self.rows if row.kind != "block"}
        if len(widths) > 1 or not self.head:
            raise PflOpsError(f"table '{self.name}': one head, and rows as wide as it; widths are {sorted(widths)}")

    @cached_property
    def width(self) -> int:
        """Number of columns."""
        return sum(head.span for head in self.head[0])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The heads above each column, joined: "L1 Acc"."""
        over = [[head.text for head in row for _ in range(head.span)] for row in self.head]
        return tuple(" ".join(dict.fromkeys(filter(None, texts))) for texts in zip(*over, strict=True))

    @cached_property
    def footnotes(self) -> dict[str, int]:
        """Each remark of the head and the entries, and its number; equal ones share it."""
        heads = [head.note for row in self.head for head in row]
        entries = [entry.note for row in self.rows for entry in row.entries]
        return {note: i for i, note in enumerate(dict.fromkeys(filter(None, heads + entries)), 1)}

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """The columns that hold numbers, and are aligned to the right."""
        body = [row.entries for row in self.rows if row.entries]
        return tuple(
            place >= self.titles and any(entries[place].value is not None for entries in body)
            for place in range(self.width)
        )

    @cached_property
    def long(self) -> tuple[bool, ...]:
        """The columns of words that need room to break lines."""
        body = [row.entries for row in self.rows if row.entries]
        return tuple(
            not numeric and any(len(entries[place].text) > LONG for entries in body)
            for place, numeric in enumerate(self.numeric)
        )


@dataclass(frozen=True)
class Panel:
    """A part of a picture on a page.

    Attributes:
        title: written above it, or beside it in rows.
        draw: makes it, without title and legend, in the theme that is in force; None: there is only the text.
        text: instead of the drawing.
    """

    title: str
    draw: "Callable[[], Figure] | None" = None
    text: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with a caption.

    Attributes:
        name: of its files, and its anchor.
        draw: makes the whole picture with its legend, in the theme that is in force; a page may call it for each
            theme.
        alt: a description for readers who do not see it; "": the caption.
        panels: the same in parts, which a page arranges by its width; none: the page shows the whole picture.
        layout: of the panels: side by side ("grid", small ones "small"), or one a row ("rows").
        legend: name -> slot of the palette, written beside the panels.
    """

    name: str
    caption: str
    draw: "Callable[[], Figure]"
    alt: str = ""
    panels: tuple[Panel, ...] = ()
    layout: Literal["grid", "small", "rows"] = "grid"
    legend: "Mapping[str, str]" = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A paragraph; "warning": a mark that can't be overlooked; "note": of less weight; "code": as typed.

    Attributes:
        more: lines that are shown on demand.
    """

    text: str
    kind: Literal["", "warning", "note", "code"] = ""
    more: tuple[str, ...] = ()

    @classmethod
    def warning(cls, text: str) -> "Text":
        """Return a warning."""
        return cls(text, "warning")


@dataclass(frozen=True)
class ItemList:
    """Terms and what is said of each; a list of bullets where the terms are empty."""

    items: tuple[tuple[str, str], ...]


PageBlock: TypeAlias = Table | Picture | Text | ItemList


@dataclass(frozen=True)
class PageSection:
    """A part of a document with a heading; "": none. A page shows a folded one on demand."""

    title: str
    blocks: tuple[PageBlock, ...]
    folded: bool = False


Kind = TypeVar("Kind", Table, Picture)


def anchor(text: str) -> str:
    """Return the name of a place in a page: "digits, lsqs" is "digits-lsqs"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes:
        name: short, as in its folder: "fliu/table1". title, subtitle: at its top.
        generated: when and by what, at its end.
        files: further files of its folder, {path: text}.

    Raises:
        PflOpsError: two tables, or two pictures, of one name.
    """

    name: str
    title: str
    subtitle: str
    sections: tuple[PageSection, ...]
    generated: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"tables": [one.name for one in self.each(Table)], "pictures": [one.name for one in self.each(Picture)]}
        for what, names in named.items():
            twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
            if twice:
                raise PflOpsError(f"report '{self.name}': {twice} names two of its {what}")

    def each(self, kind: type[Kind]) -> Iterator[Kind]:
        """Its tables, or its pictures, in order."""
        for section in self.sections:
            yield from (block for block in section.blocks if isinstance(block, kind))
