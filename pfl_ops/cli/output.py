"""The streams of the commands: results on stdout, progress on stderr."""

import contextlib
import io
import os
import select
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 160  # columns of a table that goes to a file or a pipe


def out() -> "Console":
    """The console for results. Made anew each time, because tests and shells replace sys.stdout."""
    return _console(stderr=False)


def err() -> "Console":
    """The console for progress and remarks."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(PLAIN_WIDTH, shutil.get_terminal_size().columns)
    return Console(stderr=stderr, width=width)


def say(console: "Console", *lines: str) -> None:
    """Lines as they stand, empty ones left out: no colours, no markup, no wrapping."""
    for line in filter(None, lines):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_whole(console: "Console", table: "Table", width: int) -> None:
    """Print a table that takes so many columns, in them if the terminal has fewer: a number that is cut is another."""
    narrow, console.width = console.width, max(console.width, width)
    try:
        console.print(table)
    finally:
        console.width = narrow


INTERRUPTED = 130
"""Exit code after Ctrl-C, as the shell's own."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C in a study or a suite into the line that says how to go on, and exit code 130."""
    import typer

    from pfl_ops.tuning import StudyInterrupted

    try:
        yield
    except StudyInterrupted as stopped:
        say(err(), str(stopped))
        raise typer.Exit(INTERRUPTED) from None


CLOSED = 1
"""Exit code of a command whose reader went away (`pfl-ops list algorithms | head -1`), as Click's own."""


def open_missing_streams() -> None:
    """Open /dev/null for standard streams that are closed (`pfl-ops run fliu >&-`), for output that is not wanted.

    Without it the next file that is opened, a database perhaps, would become stdout of every child process.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  (for the process's whole life)


def print_what_it_can() -> None:
    """Print '?' for what the encoding of standard output lacks (`LC_ALL=en_US` is Latin-1, without γ and ≥)."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="replace")


def flush() -> None:
    """Write out what was printed, while a full disk or a closed pipe can still be told.

    Raises:
        OSError: it can't be written.
    """
    sys.stdout.flush()
    sys.stderr.flush()


def has_reader() -> bool:
    """False if stdout or stderr is a pipe whose reader went away."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return not any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def drop_output() -> None:
    """Send what is still to be written to /dev/null, so that the interpreter's last flush does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # not a file: a test's buffer
            os.dup2(null, stream.fileno())
    os.close(null)
