"""Tables and pictures as HTML for a notebook: one element, no script, nothing that is fetched.

Text has the notebook's own colour, and so have the inks of a picture: it is readable on light and dark pages. On a page
that is known to be dark, the other colours are those of the dark theme.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from pfl_ops.display.tables import TableRows
from pfl_ops.errors import in_a_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part: TypeAlias = Callable[[], str]
"""Makes a piece of HTML."""

DARK_PAGES = (
    *('body[data-jp-theme-light="false"]', "body.vscode-dark", "body.vscode-high-contrast"),
    *('html[theme="dark"]', 'html[data-theme="dark"]'),
)
"""Selectors of dark pages: JupyterLab, VS Code, Colab, Sphinx."""
GRID = "rgba(128,128,128,.3)"
STYLE = f"""
.pfl-ops {{ color: inherit; font-size: 13px; line-height: 1.45; max-width: 60rem; overflow-x: auto; }}
.pfl-ops p {{ margin: .3em 0; }}
.pfl-ops .pfl-note {{ opacity: .75; font-size: .92em; }}
.pfl-ops table {{ border-collapse: collapse; margin: .5em 0; font-size: inherit; color: inherit; }}
.pfl-ops caption {{ caption-side: top; text-align: left; color: inherit; font-weight: 600; padding: 0 0 .2em; }}
.pfl-ops th, .pfl-ops td {{ padding: .2em .9em .2em .4em; border: 0; vertical-align: top; max-width: 32rem; }}
.pfl-ops thead th {{ border-bottom: 1px solid {GRID}; font-weight: 600; }}
.pfl-ops tr.pfl-chosen td {{ font-weight: 600; }}
.pfl-ops summary {{ cursor: pointer; font-weight: 600; }}
.pfl-ops svg {{ display: block; margin: .4em 0; }}
"""


def card(*parts: Part) -> str:
    """Return parts below one another as one element. A part that can't be made is one line with its error.

    >>> html = card(lambda: heading("a < b"), lambda: 1 / 0)
    >>> [line for line in html.splitlines() if line.startswith("<p")]
    ['<p><b>a &lt; b</b></p>', '<p class="pfl-note">not shown: ZeroDivisionError: division by zero</p>']
    """
    inside = joined(parts)
    dark = "; ".join(
        f"--pfl-{light[1:]}: {dark}" for light, dark in _themes().items() if f"--pfl-{light[1:]}," in inside
    )
    pages = ", ".join(f"{page} .pfl-ops" for page in DARK_PAGES)
    style = STYLE + (f"{pages} {{ {dark} }}\n" if dark else "")
    return f'<div class="pfl-ops">\n<style>{style}</style>\n{inside}\n</div>'


def heading(text: str, more: str = "") -> str:
    """Return a title, and what is said beside it."""
    return f"<p><b>{escape(text)}</b>{f'&ensp;{escape(more)}' if more else ''}</p>"


def note(*lines: str) -> str:
    """Return lines of less weight, each a paragraph; empty ones are left out."""
    return "\n".join(f'<p class="pfl-note">{escape(line)}</p>' for line in lines if line)


def table(rows: TableRows) -> str:
    """Return a table; without rows nothing."""
    if not rows.rows:
        return ""
    caption = f"<caption>{escape(rows.title)}</caption>" if rows.title else ""
    head = "".join(_cells("th", rows.heads, rows.left))
    chosen = ' class="pfl-chosen"'
    body = [
        f"<tr{chosen if i == rows.chosen else ''}>{''.join(_cells('td', row, rows.left))}</tr>"
        for i, row in enumerate(rows.rows)
    ]
    lines = "\n".join(body)
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"


def picture(draw: "Callable[[], Figure]", alt: str) -> str:
    """Return a picture as SVG whose colours follow the page.

    Args:
        draw: makes it. alt: a description for readers who do not see it.
    """
    from pfl_ops import figures

    with figures.theme("light") as shades:
        svg = figures.to_svg(draw(), alt=alt)
    colours = {light: f"var(--pfl-{light[1:]},{light})" for light in _themes()}
    colours |= {shades.ink.lower(): "currentColor", shades.line.lower(): GRID}
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found.group(), found.group()), svg)


def joined(parts: Iterable[Part]) -> str:
    """Return parts below one another."""
    return "\n".join(_made(part) for part in parts)


def folded(title: str, parts: Iterable[Part], is_open: bool) -> str:
    """Return parts under a title that the reader opens and closes."""
    inside = joined(parts)
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>\n{inside}\n</details>"


def _made(part: Part) -> str:
    try:
        return part()
    except Exception as error:  # a notebook would show a traceback in place of the whole value
        return note(f"not shown: {in_a_line(error)}")


def _cells(tag: str, texts: Iterable[str], left: frozenset[int]) -> Iterator[str]:
    numbers = "right; white-space:nowrap" if tag == "td" else "right"
    for place, text in enumerate(texts):
        yield f'<{tag} style="text-align:{"left" if place in left else numbers}">{escape(text)}</{tag}>'


def _themes() -> dict[str, str]:
    """Each colour of the light theme but its inks -> the dark theme's."""
    from pfl_ops.figures.style import DARK, LIGHT

    light, dark = (
        [theme.paper, theme.faint, *theme.palette, *theme.ramp, *theme.classes, theme.rest] for theme in (LIGHT, DARK)
    )
    return {a.lower(): b.lower() for a, b in zip(light, dark, strict=True)}
