"""A picture that is drawn again in place: in a terminal by rich, in a notebook by IPython."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Self, TextIO, TypeAlias, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

PAUSE = 0.2  # seconds between two drawings in a notebook, at least
WIDTH = 120  # columns of a picture in a notebook
PRE = (
    '<pre style="margin:0;padding:0;background:none;white-space:pre;overflow-x:auto;line-height:1.35;'
    "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\">{code}</pre>"
)

T = TypeVar("T")
Draw: TypeAlias = Callable[[], RenderableType]


def in_notebook() -> bool:
    """Return True in a notebook's kernel; an IPython shell in a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_shown(progress: bool | None, watched: bool = False) -> bool:
    """Return True if progress is to be shown.

    Args:
        progress: as asked for. None: in a notebook, and where standard error is a terminal, unless `watched`.
        watched: True if the caller follows the progress with a function of its own.
    """
    if progress is not None:
        return progress
    return not watched and (in_notebook() or (sys.stderr is not None and sys.stderr.isatty()))


def console(stream: TextIO | None) -> Console:
    """Return a console for progress; rich's own display in notebooks is off, since it needs ipywidgets."""
    return Console(file=stream or sys.stderr, force_jupyter=False)


class TerminalPicture:
    """A picture in a terminal, drawn twice a second.

    Args:
        draw: makes it. console: of the terminal. transient: True if it is removed at the end.
    """

    def __init__(self, draw: Draw, console: Console, transient: bool = False) -> None:
        self.live = Live(console=console, refresh_per_second=2, transient=transient, get_renderable=draw)
        self.live.start()

    def print(self, line: str) -> None:
        """Print a line that stays above the picture."""
        say(self.live.console, line)

    def update(self) -> None:
        """Leave it to the next drawing."""

    def stop(self) -> None:
        """Draw it for the last time."""
        self.live.stop()


class NotebookPicture:
    """A picture in a notebook, as HTML; it needs no widgets.

    Args:
        draw: makes it.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw, self.above = draw, list[str]()
        self.drawn = time.monotonic()
        self.handle = import_module("IPython.display").display(self, display_id=True)

    def print(self, line: str) -> None:
        """Show a line that stays above the picture."""
        self.above.append(line)
        self.refresh()

    def refresh(self) -> None:
        """Draw it now."""
        self.drawn = time.monotonic()
        self.handle.update(self)

    def update(self) -> None:
        """Draw it, unless it was drawn a moment ago."""
        if time.monotonic() - self.drawn >= PAUSE:
            self.refresh()

    def stop(self) -> None:
        """Draw it for the last time."""
        self.refresh()

    def _renderable(self) -> RenderableType:
        return Group(*(Text(line) for line in self.above), self.draw())

    def _repr_html_(self) -> str:
        return to_html(self._renderable())

    def __repr__(self) -> str:
        return _recorded(self._renderable()).export_text().rstrip()


def picture(draw: Draw, console: Console, transient: bool = False) -> TerminalPicture | NotebookPicture | None:
    """Return a picture that is drawn again in place; None where there is neither a terminal nor a notebook."""
    if in_notebook():
        return NotebookPicture(draw)
    return TerminalPicture(draw, console, transient) if console.is_terminal else None


class Drawing:
    """Progress that is drawn again in place, within `with`.

    Attributes:
        console: where.
        picture: None: it is not drawn now, or `picture` says that it can't be.
        transient: True if it is removed at the end.
    """

    console: Console
    picture: TerminalPicture | NotebookPicture | None = None
    transient = False

    def __enter__(self) -> Self:
        self.picture = picture(self._draw, self.console, self.transient)
        return self

    def __exit__(self, *_: object) -> None:
        if self.picture:
            self.picture.stop()
            self.picture = None

    def tell(self, line: str) -> None:
        """Print a line, which stays above the picture if there is one; "": only draw the picture again."""
        if self.picture and line:
            self.picture.print(line)
        elif self.picture:
            self.picture.update()
        elif line:
            say(self.console, line)

    def _draw(self) -> RenderableType:
        raise NotImplementedError


@contextmanager
def watching(
    drawing: Callable[[], AbstractContextManager[Callable[[T], None]]],
    told: Callable[[T], None] | None,
    progress: bool | None,
) -> Iterator[Callable[[T], None] | None]:
    """Yield a function for what happens: it draws it, if progress is to be shown, and tells `told`; None: neither.

    Args:
        drawing: makes what is called with each thing that happens, within `with`. told: the caller's own function.
        progress: see `is_shown`.
    """
    if not is_shown(progress, watched=told is not None):
        yield told
        return
    with drawing() as shown:

        def tell(what: T) -> None:
            shown(what)
            if told is not None:
                told(what)

        yield tell


def say(console: Console, line: str) -> None:
    """Print a line as it is: no colours, no markup, no wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def to_html(renderable: RenderableType) -> str:
    """Return what rich would print as one HTML element without a style sheet; text has the page's colour.

    >>> print(to_html("round 3").partition(">")[2])
    round 3
    </pre>
    """
    return _recorded(renderable).export_html(inline_styles=True, code_format=PRE)


def _recorded(renderable: RenderableType) -> Console:
    recorder = Console(file=io.StringIO(), record=True, width=WIDTH, highlight=False, force_jupyter=False)
    recorder.print(renderable)
    return recorder
