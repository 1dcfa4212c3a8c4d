"""A document as one file of HTML: style and pictures inside, no script, nothing fetched."""

import re
from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pfl_ops import figures
from pfl_ops.reports.document import Document, Entry, Items, PageBlock, Picture, Table, Text, anchor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = 34  # characters from which a column of text gets room to break lines


def to_html(document: Document) -> str:
    """The whole page; light or dark as the reader's system is."""
    style = files("pfl_ops").joinpath("reports", "style.css").read_text(encoding="utf-8")
    parts = "\n".join(_sections(document))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(document.title)}</title>
<style>
{_figure_colours()}{style}</style>
</head>
<body>
<header>
<p class="name">{escape(document.name)}</p>
<h1>{_inline(document.title)}</h1>
<p class="subtitle">{_inline(document.subtitle)}</p>
{_contents(document)}</header>
<main>
{parts}
</main>
<footer>{_inline(document.generated)}</footer>
</body>
</html>
"""


def _figure_colours() -> str:
    """Return the rules that give the pictures the colours of the light or the dark theme."""
    light, dark = (figures.adaptive_variables()[theme] for theme in ("light", "dark"))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _contents(document: Document) -> str:
    titles = [section.title for section in document.sections if section.title]
    if len(titles) < 3:
        return ""
    links = "\n".join(f'<a href="#{anchor(title)}">{escape(title)}</a>' for title in titles)
    return f'<nav aria-label="Contents">\n{links}\n</nav>\n'


def _sections(document: Document) -> Iterator[str]:
    for section in document.sections:
        place = f' id="{anchor(section.title)}"' if section.title else ""
        heading = f"<h2>{_inline(section.title)}</h2>" if section.title else ""
        blocks = "\n".join(map(_block, section.blocks))
        inside = f"<details><summary>{heading}</summary>\n{blocks}\n</details>" if section.folded else heading + blocks
        yield f"<section{place}>\n{inside}\n</section>"


def _block(block: PageBlock) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        return _picture(block)
    if isinstance(block, Items):
        return _items(block)
    return _text(block)


def _text(text: Text) -> str:
    if text.kind == "code":
        return f"<pre><code>{escape(text.text)}</code></pre>"
    kind = f' class="{text.kind}"' if text.kind else ""
    role = ' role="note"' if text.kind == "warning" else ""
    if text.more:
        lines = "".join(f"<li>{_inline(line)}</li>" for line in text.more)
        return f"<details{kind}{role}><summary>{_inline(text.text)}</summary><ul>{lines}</ul></details>"
    return f"<p{kind}{role}>{_inline(text.text)}</p>"


def _items(items: Items) -> str:
    if not any(term for term, _ in items.items):
        return "<ul>\n" + "\n".join(f"<li>{_inline(said)}</li>" for _, said in items.items) + "\n</ul>"
    rows = "\n".join(f"<dt>{_inline(term)}</dt><dd>{_inline(said)}</dd>" for term, said in items.items)
    return f"<dl>\n{rows}\n</dl>"


def _picture(picture: Picture) -> str:
    name, alt = anchor(picture.name), picture.alt or picture.caption
    parts = [*_panels(picture, name, alt)] if picture.panels else [*_drawings(picture.draw, name, alt)]
    caption = f"<figcaption>{_inline(picture.caption)}</figcaption>"
    return "\n".join([f'<figure id="figure-{name}">', *parts, caption, "</figure>"])


def _drawings(draw: Callable[[], "Figure"], name: str, alt: str) -> Iterator[str]:
    """Return one drawing whose colours follow the page; if that is not possible, one for each theme."""
    if (svg := figures.to_adaptive_svg(draw, name, alt)) is not None:
        yield svg
        return
    for theme in ("light", "dark"):
        with figures.theme(theme):
            yield f'<div class="in-{theme}">{figures.to_svg(draw(), name=f"{name}-{theme}", alt=alt)}</div>'


def _panels(picture: Picture, name: str, alt: str) -> Iterator[str]:
    """The panels, and the legend beside them."""
    yield '<div class="beside">'
    if picture.legend:
        entries = "".join(
            f"<li>{figures.swatch(slot)}<span>{_inline(label)}</span></li>" for label, slot in picture.legend.items()
        )
        yield f'<ul class="legend">{entries}</ul>'
    yield f'<div class="panels {picture.layout}">'
    for i, panel in enumerate(picture.panels, 1):
        told = f"{panel.title}: {alt}" if panel.title else alt
        inside = _drawings(panel.draw, f"{name}-{i}", told) if panel.draw else [f"<p>{_inline(panel.text)}</p>"]
        title = f'<p class="title">{_inline(panel.title)}</p>' if panel.title else ""
        yield f'<div class="panel">{title}<div>{"".join(inside)}</div></div>'
    yield "</div></div>"


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(table: Table) -> str:
    name = anchor(table.name)
    kinds = [_column(table, place) for place in range(table.width)]
    fixed = ' class="fixed"' if kinds[0] != "long" and table.width > 3 else ""
    lines = [
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="caption-{name}">',
        f'<table id="table-{name}"{fixed}>',
        f'<caption id="caption-{name}"><span>{_inline(table.caption)}</span></caption>',
        "<thead>",
        *_head(table, kinds),
        "</thead>",
        "<tbody>",
        *_body(table, kinds),
        "</tbody>",
        "</table>",
        "</div>",
        *_notes(table),
    ]
    return "\n".join(lines)


def _column(table: Table, place: int) -> str:
    if table.numeric[place]:
        return "num"
    longest = max((len(row.entries[place].text) for row in table.rows if row.entries), default=0)
    return "long" if longest > LONG else "short"


def _head(table: Table, kinds: list[str]) -> Iterator[str]:
    for row in table.head:
        cells, place = [], 0
        for head in row:
            note = _mark(table, head.note)
            if not head.text:
                cells.append(f'<td colspan="{head.span}"></td>' if head.span > 1 else "<td></td>")
            elif head.span > 1:
                text = f"<span>{_inline(head.text)}{note}</span>"
                cells.append(f'<th class="over" scope="colgroup" colspan="{head.span}">{text}</th>')
            else:
                cells.append(f'<th class="{kinds[place]}" scope="col">{_inline(head.text)}{note}</th>')
            place += head.span
        yield f"<tr>{''.join(cells)}</tr>"


def _body(table: Table, kinds: list[str]) -> Iterator[str]:
    for row in table.rows:
        if row.kind == "block":
            title = f'<th scope="rowgroup" colspan="{table.width}"><span>{_inline(row.title)}</span></th>'
            yield f'<tr class="block">{title}</tr>'
            continue
        cells = [
            _cell(table, entry, kinds[place], "th" if place < table.titles else "td")
            for place, entry in enumerate(row.entries)
        ]
        rule = ' class="rule"' if row.kind == "rule" else ""
        yield f"<tr{rule}>{''.join(cells)}</tr>"


def _cell(table: Table, entry: Entry, kind: str, tag: str) -> str:
    shown, sign, spread = entry.text.partition(" ± ")
    text = _inline(shown)
    if sign:
        text += f'<span class="spread"> ± {_inline(spread)}</span>'
    if entry.link and urlsplit(entry.link).scheme in ("", "http", "https"):
        text = f'<a href="{escape(entry.link)}">{text}</a>'
    inside = f'<span class="text">{text}{_mark(table, entry.note)}</span>'
    if entry.below:
        lines = "<i>|</i>".join(f"<b>{_inline(line)}</b>" for line in entry.below)
        inside += f'<span class="below">{lines}</span>'
    if entry.more:
        lines = "".join(f"<li>{_inline(line)}</li>" for line in entry.more)
        inside = f"<details><summary>{inside}</summary><ul>{lines}</ul></details>"
    scope = ' scope="row"' if tag == "th" else ""
    return f'<{tag} class="{(kind + " " + entry.mark).strip()}"{scope}>{inside}</{tag}>'


def _mark(table: Table, note: str) -> str:
    return f'<sup title="{escape(note)}">{table.footnotes[note]}</sup>' if note else ""


def _notes(table: Table) -> Iterator[str]:
    if table.notes or table.footnotes:
        yield '<div class="notes">'
        yield from (f"<p>{_inline(note)}</p>" for note in table.notes)
        yield from (f"<p><sup>{number}</sup> {_inline(note)}</p>" for note, number in table.footnotes.items())
        yield "</div>"


def _inline(text: str) -> str:
    """Escaped; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
