"""One run while it goes: a line that is drawn again in place, or a line a round where the output is no terminal."""

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self, TextIO

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pfl_ops.display import live
from pfl_ops.federation.loop.estimate import duration
from pfl_ops.metrics import STAGES
from pfl_ops.units import with_unit

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.federation.state.checkpoint import Record

BAR = 12  # columns of the bar
WAITS = "starts"  # of a run without a round
MOST_LINES = 16  # of several runs, the last ones that have begun


class RunProgress(live.Drawing):
    """The progress of one run, fed with its records, within `with`.

    Args:
        title: what runs.
        rounds: T.
        split: "val" or "test", of the accuracies.
        stream: where to; None: standard error, so that results alone are on standard output.
        own_stage: at which the method is judged; as long as it has no score, the first stage that has one is shown.
    """

    def __init__(
        self, title: str, rounds: int, split: str, stream: TextIO | None = None, own_stage: str = "L1"
    ) -> None:
        self.title, self.rounds, self.split = title, rounds, split
        self.stages = sorted(STAGES, key=lambda stage: stage != own_stage)
        self.console = live.console(stream)
        self.seen: dict[str, tuple[float, int]] = {}  # last value of each key, and its round: not all come in each
        self.began = time.time()
        self.first: tuple[int, float] | None = None  # round and time of the first new record: the rate's start
        self.finished, self.now = 0, WAITS

    @classmethod
    def of(cls, experiment: "Experiment", stream: TextIO | None = None) -> Self:
        """Return the progress of an experiment's first repetition."""
        split = "val" if experiment.evaluation.split == "validation" else "test"
        title, own_stage = f"{experiment.label} seed {experiment.seed}", experiment.algorithm.own_stage
        return cls(title, experiment.training.rounds, split, stream, own_stage)

    def __call__(self, record: "Record") -> None:
        """Show a finished round. Records read back from a checkpoint are shown once, as the point where it goes on."""
        self.seen |= {key: (value, record.round) for key, value in record.metrics.items()}
        replayed = record.time / 1000 < self.began
        if not replayed and self.first is None:
            self.first = (record.round, time.monotonic())
        self.finished, self.now = record.round, self.text(record.round)
        self.tell(f"{self.title}  {self.now}" if record.round and not replayed and not self.picture else "")

    def text(self, finished: int) -> str:
        """`round 3/20  Acc(L) 91.2 %  Acc(G) 54.3 % (round 1)  12,345 samples/s  32 s left`; no scores of round 0."""
        parts = [f"round {finished}/{self.rounds}"]
        stage = next((s for s in self.stages if f"{self.split}/{s}/local/mean" in self.seen), None)
        for name, view in (("Acc(L)", "local"), ("Acc(G)", "global")):
            value, measured = self.seen.get(f"{self.split}/{stage}/{view}/mean", (math.nan, finished))
            old = f" (round {measured})" if 0 < measured < finished else ""
            parts.append(f"{name} {with_unit('local/mean', math.nan if measured == 0 < finished else value)}{old}")
        speed, _ = self.seen.get("cost/samples_per_second", (math.nan, 0))
        if math.isfinite(speed):
            parts.append(f"{speed:,.0f} samples/s")
        if finished >= self.rounds:
            return "  ".join(parts)
        if self.first and finished > self.first[0]:
            per_round = (time.monotonic() - self.first[1]) / (finished - self.first[0])
            parts.append(f"{duration(per_round * (self.rounds - finished))} left")
        return "  ".join(parts)

    def _draw(self) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(width=BAR)
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(Text(self.title), ProgressBar(self.rounds, self.finished, width=BAR), Text(self.now))
        return row


class SeveralProgress(live.Drawing):
    """The progress of several repetitions at once: a line of each, within `with`."""

    def __init__(self, runs: "Mapping[int, RunProgress]") -> None:
        self.runs = runs
        self.console = next(iter(runs.values())).console

    @classmethod
    def of(cls, experiment: "Experiment", stream: TextIO | None = None) -> Self:
        """Return the progress of all repetitions of an experiment."""
        each = [experiment.repetition(i) for i in range(experiment.repetitions)]
        return cls({one.seed: RunProgress.of(one, stream) for one in each})

    def __enter__(self) -> Self:
        super().__enter__()
        for run in self.runs.values():
            run.picture = self.picture
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for run in self.runs.values():
            run.picture = None

    def record(self, seed: int, record: "Record") -> None:
        """Show a finished round of one of them."""
        self.runs[seed](record)

    def _draw(self) -> RenderableType:
        begun = [run for run in self.runs.values() if run.now != WAITS]
        return Group(*(run._draw() for run in begun[-MOST_LINES:]))
