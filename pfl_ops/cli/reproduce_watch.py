"""The progress of `pfl-ops reproduce` on the terminal."""

import time
from typing import TYPE_CHECKING, Self

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pfl_ops.cli.output import err, out, say
from pfl_ops.display import live
from pfl_ops.federation.loop.estimate import duration

if TYPE_CHECKING:
    from pfl_ops.tuning.suites.cells import CellEvent

BAR_COLUMNS = 24


class ReproduceProgress(live.Drawing):
    """Progress while cells run: bars on a terminal, plain lines elsewhere.

    Args:
        dry_run: the estimate is the result, on standard output.
    """

    def __init__(self, dry_run: bool = False) -> None:
        self.console = err()
        self.told = out() if dry_run else self.console
        self.again = "" if dry_run else "; the reports are written again"
        self.began = time.monotonic()
        self.done = self.wanted = 0
        self.running: dict[str, tuple[str, int, int]] = {}  # job's hash -> name, rounds done, rounds

    def __enter__(self) -> Self:
        return self  # drawn once runs begin

    def __call__(self, event: "CellEvent") -> None:
        """Show an event: a line, or the picture drawn again."""
        self.done, self.wanted = event.done, event.wanted
        if event.kind == "read":
            say(err(), event.text)
            return
        if event.kind == "begin":
            say(self.told, event.text or f"everything is finished already{self.again}")
            self._begin()
            return
        self._follow(event)
        ends = event.kind in ("end", "failed")
        line = event.text if event.kind == "claim" else self.line(event) if ends else ""
        self.tell(line if not self.picture or event.kind in ("claim", "failed") else "")

    def line(self, event: "CellEvent") -> str:
        """The end of a job in a line: 12 of 48  fliu/table1 path/fliu seed 0  about 10 min left."""
        assert event.job is not None
        parts = [f"{event.done} of {event.wanted}", f"{event.job.suite.name} {event.job.name}"]
        if event.kind == "failed":
            parts.append(f"failed: {event.text}")
        return "  ".join([*parts, *([left] if (left := self._left()) else [])])

    def _left(self) -> str:
        """The time that is left, by the jobs that are done; "": none, or not known."""
        left = self.wanted - self.done
        return (
            f"about {duration((time.monotonic() - self.began) / self.done * left)} left" if left and self.done else ""
        )

    def _begin(self) -> None:
        self.began = time.monotonic()
        if self.wanted and self.told is self.console:
            self.picture = live.picture(self._draw, self.console, transient=True)

    def _follow(self, event: "CellEvent") -> None:
        """Keep the rounds of the jobs that run; a job whose process died goes on in another."""
        if (job := event.job) is None:
            return
        if event.kind in ("end", "failed"):
            self.running.pop(job.digest, None)
        else:
            name, rounds, of = self.running.get(
                job.digest, (f"{job.suite.name} {job.name}", 0, job.experiment.training.rounds)
            )
            self.running[job.digest] = name, max(rounds, event.round), of

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(width=BAR_COLUMNS)
        table.add_column(no_wrap=True)
        rows = [("all runs", self.done, self.wanted), *self.running.values()]
        for name, done, of in rows:
            left = f"  {self._left()}" if name == "all runs" else ""
            table.add_row(Text(name), ProgressBar(of, done, width=BAR_COLUMNS), Text(f"{done}/{of}{left}"))
        return table
