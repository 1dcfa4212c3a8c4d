"""A study in a terminal or a notebook: a small live table; plain lines where the output is neither."""

import time
from typing import TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pfl_ops.display import live
from pfl_ops.spaces.space import Point
from pfl_ops.tuning.session.events import Event
from pfl_ops.tuning.studies.limits import done_of, trials_done
from pfl_ops.units import in_words

LINES = 6  # trials shown: those that run, and the latest that ended


class StudyProgress(live.Drawing):
    """Draws the events of a study; give it to `tune` as `on_event`, within `with`.

    Args:
        stream: where to; standard error, so that results alone are on standard output.
    """

    transient = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = live.console(stream)
        self.begun = time.monotonic()
        self.last: Event | None = None
        self.best = ""
        self.running: dict[int, Event] = {}
        self.ended: dict[int, Event] = {}

    def __call__(self, event: Event) -> None:
        if self.last and event.study != self.last.study:
            self.best, self.running, self.ended = "", {}, {}
        self.last = event
        if event.best:
            self.best = f", best {in_words(event.best[1])} in trial {event.best[0]:03d}"
        if event.trial is not None and event.kind in ("start", "report"):
            self.running[event.trial] = event
        elif event.trial is not None and event.kind == "end":
            self.running.pop(event.trial, None)
            self.ended[event.trial] = event
        lasting = event.kind in ("packing", "study", "confirmed", "ended")  # stays above the live table, too
        self.tell(self.line(event) if lasting or not self.picture else "")

    def line(self, event: Event) -> str:
        """The event as one line; "" for those that say too little for one."""
        trial = f"{_of(event)}trial {event.trial:03d}" if event.trial is not None else ""
        match event.kind:
            case "packing" | "wait" | "confirmed" | "ended":
                return event.text
            case "confirm":
                return f"{_of(event)}confirmation of trial {event.trial:03d}, {event.text}"
            case "baseline":
                return f"{_of(event)}FedAvg in {event.text}"
            case "study":
                return f"{event.method} ({event.place}): {event.text}"
            case "begin" if event.method:
                return f"method {event.place}, {event.method}: {trials_done(event.done, event.wanted)} done"
            case "begin":
                return f"study {event.study}: {trials_done(event.done, event.wanted)} done"
            case "start":
                return f"{trial} starts: {_point(event.params)}"
            case "end":
                why = event.error.removeprefix(f"{event.state} ")
                result = why or f"{in_words(event.values)} after round {event.round}"
                return f"{trial} {event.state}: {result} ({self._count(event)})"
            case "test" | "final":
                happened = event.text or ("starts" if event.kind == "test" else "is over")
                return f"{_of(event)}test run {(event.trial or 0) + 1} {happened}"
        return ""

    def _count(self, event: Event) -> str:
        return f"{done_of(event.done, event.wanted)} done, {len(self.running)} running{self.best}"

    def _draw(self) -> RenderableType:
        if self.last is None:
            return Text("starting ...")
        minutes, seconds = divmod(int(time.monotonic() - self.begun), 60)
        now = self._count(self.last)
        if self.last.kind in ("wait", "test", "final", "confirm", "baseline"):
            now = self.line(self.last)
        elif self.last.kind == "rounds":
            now = f"test run {(self.last.trial or 0) + 1}: round {self.last.round} of {self.last.rounds}"
        title = f"method {self.last.place}  {self.last.method}" if self.last.method else self.last.study
        head = Text(f"{title}  {minutes}:{seconds:02d}  {now}", no_wrap=True, overflow="ellipsis")
        table = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("trial", "state", "round", "value"):
            table.add_column(title, no_wrap=True)
        table.add_column("settings", no_wrap=True, overflow="ellipsis")
        running = [self.running[n] for n in sorted(self.running)]
        ended = list(self.ended.values())[-max(1, LINES - len(running)) :]
        for e in [*ended, *running]:
            cells = (f"{e.trial:03d}", e.state or "running", f"{e.round}/{e.rounds}", in_words(e.values))
            table.add_row(*cells, Text(e.error or _point(e.params)))  # Text: square brackets are no markup here
        return Group(head, table)


def _of(event: Event) -> str:
    return f"{event.method} " if event.method else ""


def _point(point: Point) -> str:
    """The settings by their last names: lr=0.01 kind=adaptive."""
    texts = {path: f"{value:.3g}" if isinstance(value, float) else value for path, value in point.items()}
    return " ".join(f"{path.rpartition('.')[2]}={text}" for path, text in texts.items())
