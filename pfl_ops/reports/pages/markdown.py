"""A document as GitHub's Markdown, a table as CSV."""

import re
from collections.abc import Iterator

from pfl_ops import csv_text
from pfl_ops.reports.pages.document import Document, ItemList, PageBlock, Picture, Table, TableCell, Text

SPECIAL = re.compile(r"([\\|*_<>\[\]~#])")


def to_markdown(document: Document) -> str:
    """The whole report; pictures are links to figures/<name>.svg beside it."""
    parts = [f"# {_inline(document.title)}", _inline(document.subtitle)]
    for section in document.sections:
        parts += [f"## {_inline(section.title)}"] if section.title else []
        parts += map(_block, section.blocks)
    parts += ["---", _inline(document.generated)] if document.generated else []
    return "\n\n".join(filter(None, parts)) + "\n"


def to_csv(table: Table) -> str:
    """The table's data, or its entries; numbers unrounded. Titles of blocks stand in a first column of their own."""
    if table.data is not None:
        return csv_text.to_csv(table.data)
    blocks = any(row.kind == "block" for row in table.rows)
    lines: list[list[str]] = [["block"] * blocks + list(table.columns)]
    block = ""
    for row in table.rows:
        if row.kind == "block":
            block = row.title
        else:
            lines.append([block] * blocks + [_plain(entry) for entry in row.entries])
    return csv_text.rows_to_csv(lines)


def _plain(entry: TableCell) -> str:
    return entry.text if entry.value is None else repr(float(entry.value))


def _block(block: PageBlock) -> str:
    if isinstance(block, Table):
        return "\n\n".join(_table(block))
    if isinstance(block, Picture):
        return f"![{_inline(block.alt or block.caption)}](figures/{block.name}.svg)\n\n*{_inline(block.caption)}*"
    if isinstance(block, ItemList):
        return "\n".join(f"- {f'**{_inline(term)}**: ' if term else ''}{_inline(said)}" for term, said in block.items)
    return _text(block)


def _text(text: Text) -> str:
    if text.kind == "code":
        return f"```\n{text.text}\n```"
    folded = f"<details><summary>{_inline(text.text)}</summary>{'<br>'.join(map(_inline, text.more))}</details>"
    said = folded if text.more else _inline(text.text)
    return f"> [!WARNING]\n> {said}" if text.kind == "warning" else said


def _table(table: Table) -> Iterator[str]:
    yield f"**{_inline(table.caption)}**"
    heads = [f"{name}{_marks(table, place)}" for place, name in enumerate(map(_inline, table.columns))]
    lines = [_line(heads), _line(["--:" if numeric else ":--" for numeric in table.numeric])]
    for row in table.rows:
        if row.kind == "block":
            lines.append(_line([f"**{_inline(row.title)}**"] + [""] * (table.width - 1)))
        else:
            lines.append(_line([_entry(table, entry) for entry in row.entries]))
    yield "\n".join(lines)
    for note in table.notes:
        yield _inline(note)
    if table.footnotes:
        yield "  \n".join(f"<sup>{number}</sup> {_inline(note)}" for note, number in table.footnotes.items())


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marks(table: Table, place: int) -> str:
    """Numbers of the remarks on the heads above a column."""
    found = []
    for row in table.head:
        ends = 0
        for head in row:
            if ends <= place < ends + head.span and head.note:
                found.append(f"<sup>{table.footnotes[head.note]}</sup>")
            ends += head.span
    return "".join(found)


def _entry(table: Table, entry: TableCell) -> str:
    text = _inline(entry.text)
    if entry.mark == "best":
        shown, sign, spread = text.partition(" ± ")
        text = f"**{shown}**{sign}{spread}"
    elif entry.mark in ("missing", "elsewhere") and text:
        text = f"*{text}*"
    if entry.link:
        text = f"[{text}]({entry.link.replace(' ', '%20').replace('|', '%7C').replace(')', '%29')})"
    below = list(map(_inline, entry.below))
    if entry.note:
        mark = f"<sup>{table.footnotes[entry.note]}</sup>"
        if below and not entry.text:  # a mark alone would be read as a number
            below[0] += mark
        else:
            text += mark
    text = r" \| ".join([text, *below])
    if entry.more:
        lines = "<br>".join(map(_inline, entry.more))
        text = f"<details><summary>{text}</summary>{lines}</details>"
    return text


def _inline(text: str) -> str:
    """Escaped, on one line; what stands between backticks is code, in which only a table's bar is special."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a lone backtick
        parts = ["\\`".join(parts)]
    return "".join(
        f"`{part.replace('|', chr(92) + '|')}`" if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts)
    )
