"""Where the commands print: results on stdout, progress on stderr."""

import shutil
import sys

from rich.console import Console

PLAIN_WIDTH = 160  # columns of a table that goes to a file or a pipe


def out() -> Console:
    """The console for results. Made anew each time, because tests and shells replace sys.stdout."""
    return _console(stderr=False)


def err() -> Console:
    """The console for progress and remarks."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(PLAIN_WIDTH, shutil.get_terminal_size().columns)
    return Console(stderr=stderr, width=width)


def say(console: Console, text: str) -> None:
    """A line as it stands: no colours, no markup, no wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
