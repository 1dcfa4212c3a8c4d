"""Pictures as files and as bytes; the same picture always gives the same.

Letters are drawn as shapes in an SVG: text would need DejaVu Sans on the reader's machine, and where it is missing
(LaTeX, another system, a page read offline) labels would change their width and run into one another. matplotlib
keeps each text as a comment beside its shapes, so that it can still be searched for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_ops.errors import PflOpsError, echo
from pfl_ops.figures import style
from pfl_ops.files import write_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# what matplotlib adds of itself: when it was drawn, and by which version
STAMPS: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


def save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write a picture as .png or .svg; or, where the path has no ending, as both. Each file is written whole.

    Returns:
        The path written; of both, the SVG's.
    Raises:
        PflOpsError: another ending, or the file can't be written; an older one is as it was.
    """
    path = Path(path)
    kinds = [path.suffix.lower().removeprefix(".")] if path.suffix else ["png", "svg"]
    if not set(kinds) <= set(STAMPS):
        raise PflOpsError(f"a picture is written as .png or .svg, got '{echo(path.name)}'")
    drawn = {kind: _bytes(figure, kind, dpi) for kind in kinds}  # before anything is written
    for kind, content in drawn.items():
        written = write_named(path if path.suffix else path.with_name(f"{path.name}.{kind}"), content)
    return written


def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """A picture as the content of a PNG file."""
    return _bytes(figure, "png", dpi)


def to_svg(figure: Figure, name: str = "", alt: str = "") -> str:
    """A picture as one `<svg>` element to stand in an HTML page: as wide as there is room, at most its own width.

    It has no background, no style that reaches beyond it, and ids of its own, so that many can stand in one page.

    Args:
        name: what its ids begin with; without one, a digest of the picture. Two equal pictures in one page, or one
            that is shown twice, need a name each.
        alt: the description for readers who can't see it.
    """
    found = re.search(r"<svg\b([^>]*)>(.*)</svg>", _bytes(figure, "svg", 72, transparent=True).decode(), re.DOTALL)
    assert found is not None
    attributes, body = found.groups()
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # a <style> inside an inline SVG holds for the whole page; what it sets is inherited from the root just as well
    body = re.sub(r"\s*<defs>\s*<style\b.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    box, width = _attribute(attributes, "viewBox"), _attribute(attributes, "width").removesuffix("pt")
    start = re.sub(r"[^\w-]", "-", name) or f"f{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: found.group() if found.group(1) in used else "", body)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{start}-", body)
    # a hundredth of a point is finer than any screen, and most of the size is digits
    body = re.sub(r'\b(?:d|x|y)="[^"]+"', lambda found: re.sub(r"\d+\.\d{3,}", _shorter, found.group()), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    told = f'role="img" aria-label="{escape(alt)}"' if alt else 'role="img"'
    look = f"max-width:{float(width) * 4 / 3:.0f}px;height:auto;stroke-linejoin:round;stroke-linecap:butt"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" '
        f'width="100%" style="{look}" {told}>{body.rstrip()}\n</svg>'
    )


def draw_once(figure: Figure, kind: str, dpi: int, metadata: Mapping[str, str | None] | None = None) -> bytes:
    """Return a figure as the content of a PNG or SVG file; its layout engine arranges it while it is drawn.

    `Figure.savefig` gives the same bytes, but draws such a figure twice: without output to arrange it, and again.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    written, canvas, own_dpi = BytesIO(), figure.canvas, figure.dpi
    try:
        figure.dpi = dpi
        if kind == "png":
            FigureCanvasAgg(figure).print_png(written, metadata=metadata)
        else:
            FigureCanvasSVG(figure).print_svg(written, metadata=metadata)
    finally:
        figure.dpi = own_dpi
        figure.set_canvas(canvas)
    return written.getvalue()


def _bytes(figure: Figure, kind: str, dpi: int, transparent: bool = False) -> bytes:
    patches = [figure.patch, *(axes.patch for axes in figure.axes)] if transparent else []
    colours = [(patch.get_facecolor(), patch.get_edgecolor()) for patch in patches]
    try:
        for patch in patches:
            patch.set(facecolor="none", edgecolor="none")
        with style.style():
            return draw_once(figure, kind, dpi, STAMPS[kind])
    finally:
        for patch, (face, edge) in zip(patches, colours, strict=True):
            patch.set(facecolor=face, edgecolor=edge)


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}"


def _attribute(text: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', text)
    assert found is not None
    return found.group(1)
