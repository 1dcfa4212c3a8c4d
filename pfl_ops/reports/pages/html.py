"""A document as one file of HTML: style and pictures inside, no script, nothing fetched."""

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from markupsafe import Markup, escape

from pfl_ops import figures
from pfl_ops.reports.pages.document import Document, Table, anchor

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure


def to_html(document: Document) -> str:
    """The whole page; light or dark as the reader's system is."""
    style = files("pfl_ops").joinpath("reports", "pages", "style.css").read_text(encoding="utf-8")
    return _template().render(page=document, style=Markup(_figure_colours() + style))


@cache
def _template() -> "Template":
    """The page of a document, page.html.jinja: every text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pfl_ops", "reports/pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "anchor": anchor,
        "columns": _columns,
        "drawn": _drawn,
        "inline": _inline,
        "kind": lambda block: type(block).__name__,
        "swatch": lambda slot: Markup(figures.swatch(slot)),
        "web": lambda link: bool(link) and urlsplit(link).scheme in ("", "http", "https"),
    }
    return environment.get_template("page.html.jinja")


def _figure_colours() -> str:
    """Return the rules that give the pictures the colours of the light or the dark theme."""
    light, dark = (figures.adaptive_variables()[theme] for theme in ("light", "dark"))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _drawn(draw: "Callable[[], Figure]", name: str, alt: str) -> Markup:
    """Return one drawing whose colours follow the page; if that is not possible, one for each theme."""
    if (svg := figures.to_adaptive_svg(draw, name, alt)) is not None:
        return Markup(svg)
    parts = []
    for theme in ("light", "dark"):
        with figures.theme(theme):
            parts.append(f'<div class="in-{theme}">{figures.to_svg(draw(), name=f"{name}-{theme}", alt=alt)}</div>')
    return Markup("\n".join(parts))


def _columns(table: Table) -> list[str]:
    """Return the CSS class of each column."""
    kinds = zip(table.numeric, table.long, strict=True)
    return ["num" if numeric else "long" if long else "short" for numeric, long in kinds]


def _inline(text: str) -> Markup:
    """Escaped; what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
