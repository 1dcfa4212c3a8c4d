"""The progress of `pfl-ops reproduce` on the terminal."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from pfl_ops.tuning.cells import CellEvent


class Watch:
    """Progress while cells run: bars on a terminal, plain lines elsewhere.

    Args:
        dry_run: the estimate is the result, on standard output.
    """

    def __init__(self, dry_run: bool = False) -> None:
        from pfl_ops.cli.output import err, out

        self.console, self.told = err(), out() if dry_run else err()
        self.again = "" if dry_run else "; the reports are written again"
        self.progress: Progress | None = None
        self.began = time.monotonic()
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress:
            self.progress.stop()

    def __call__(self, event: "CellEvent") -> None:
        """Tell it."""
        from pfl_ops.cli.output import say

        job = event.job
        if event.kind == "begin":
            say(self.told, event.text or f"everything is finished already{self.again}")
            self._begin(event)
        elif event.kind == "claim":
            if self.progress:
                self.progress.update(self.all, total=event.wanted)
            say(self.progress.console if self.progress else self.console, event.text)
        elif job is not None and self.progress:
            self._draw(event)
        elif job is not None and event.kind in ("end", "failed"):
            say(self.console, self.line(event))

    def line(self, event: "CellEvent") -> str:
        """The end of a job in a line: 12 of 48  fliu/table1 path/fliu seed 0  about 10 min left."""
        from pfl_ops.federation.loop.estimate import duration

        assert event.job is not None
        parts = [f"{event.done} of {event.wanted}", f"{event.job.suite.name} {event.job.name}"]
        if event.kind == "failed":
            parts.append(f"failed: {event.text}")
        left = event.wanted - event.done
        if left:
            parts.append(f"about {duration((time.monotonic() - self.began) / event.done * left)} left")
        return "  ".join(parts)

    def _begin(self, event: "CellEvent") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.began = time.monotonic()
        if self.console.is_terminal and event.wanted and self.told is self.console:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self.progress = Progress(*columns, console=self.console)
            self.all = self.progress.add_task("all runs", total=event.wanted)
            self.progress.start()

    def _draw(self, event: "CellEvent") -> None:
        assert self.progress and event.job
        job, progress = event.job, self.progress
        match event.kind:
            case "start":
                if job.digest not in self.bars:  # else its process died, and another goes on
                    rounds = job.experiment.training.rounds
                    self.bars[job.digest] = progress.add_task(f"{job.suite.name} {job.name}", total=rounds)
            case "round":
                progress.update(self.bars[job.digest], completed=event.round)
            case "end" | "failed":
                progress.remove_task(self.bars.pop(job.digest))
                progress.update(self.all, completed=event.done, total=event.wanted)
                if event.kind == "failed":
                    progress.console.print(self.line(event), markup=False, highlight=False)
