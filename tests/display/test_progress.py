"""Progress of runs and studies: in a terminal, in a notebook, and where there is neither."""

import io
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pfl_ops.config.experiment import Experiment
from pfl_ops.display import live
from pfl_ops.display.progress import RunProgress
from pfl_ops.tuning import Event
from pfl_ops.tuning.findings import show as shows

EXPERIMENT = Experiment.of("fliu", rounds=2)
RECORDS = [
    SimpleNamespace(round=t, metrics={"test/L1/local/mean": 0.25 * t, "test/L1/global/mean": 0.125}, time=2**43)
    for t in range(3)
]
BEGIN = Event("begin", "mine", 3)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Kernel:
    """The parts of IPython that progress needs: a shell with a kernel, and a display that keeps what it is given."""

    def __init__(self) -> None:
        self.kernel = self
        self.shown: list[str] = []

    def get_ipython(self) -> "Kernel":
        return self

    def display(self, shown: Any, *, display_id: bool) -> "Kernel":
        assert display_id  # else each drawing would be another output
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.shown.append(shown._repr_html_())
        assert "<" not in repr(shown)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", made)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", made)  # type: ignore[arg-type]
    monkeypatch.setattr(live, "PAUSE", 0)
    return made


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(live, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))  # not pytest's own
    return stream


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(live, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))  # not pytest's own
    return stream


def go(progress: bool | None = None, on_record: Any = None) -> None:
    with live.watching(partial(RunProgress.of, EXPERIMENT), on_record, progress) as tell:
        for record in RECORDS:
            if tell:
                tell(record)


def go_study(progress: bool | None = None, on_event: Any = None) -> None:
    with live.watching(shows.StudyProgress, on_event, progress) as tell:
        for event in (BEGIN, Event("packing", "mine", 3, text="packing: 2 trials at once")):
            if tell:
                tell(event)


def test_progress_without_a_terminal_is_shown_only_if_asked_for(stderr: io.StringIO) -> None:
    go(), go_study(), go(False), go_study(False)
    assert stderr.getvalue() == ""
    go(True)
    assert [line.partition("  0.0 s left")[0] for line in stderr.getvalue().splitlines()] == [
        "fliu-digits-lsqs seed 0  round 1/2  Acc(L) 25.0 %  Acc(G) 12.5 %",
        "fliu-digits-lsqs seed 0  round 2/2  Acc(L) 50.0 %  Acc(G) 12.5 %",
    ]
    go_study(True)
    assert stderr.getvalue().splitlines()[2:] == ["study mine: 0 of 3 trials done", "packing: 2 trials at once"]


def test_progress_in_a_terminal_is_one_line_drawn_in_place(terminal: io.StringIO) -> None:
    go()
    text = terminal.getvalue()
    assert "fliu-digits-lsqs seed 0" in text and "round 2/2  Acc(L) 50.0 %" in text and "\x1b[" in text
    go_study()
    assert "packing: 2 trials at once" in terminal.getvalue()


def test_progress_in_a_terminal_is_left_to_a_caller_who_follows_it(terminal: io.StringIO) -> None:
    seen: list[Any] = []
    go(on_record=seen.append), go(False), go_study(on_event=seen.append)
    assert seen[:3] == RECORDS and seen[3] == BEGIN and terminal.getvalue() == ""
    go(True, seen.append), go_study(True, seen.append)
    assert len(seen) == 10 and "round 2/2" in terminal.getvalue() and "packing: 2" in terminal.getvalue()


def test_run_progress_in_a_notebook_updates_one_output(kernel: Kernel, stderr: io.StringIO) -> None:
    go()
    first, *_, last = kernel.shown
    assert "starts" in first and "round 2/2  Acc(L) 50.0 %" in last and "round 1/2" not in last
    assert len(kernel.shown) == 5  # the start, three records, the end
    assert last.startswith("<pre") and "<script" not in last and stderr.getvalue() == ""


def test_study_progress_in_a_notebook_keeps_its_lines(kernel: Kernel, stderr: io.StringIO) -> None:
    go_study()
    assert "starting ..." in kernel.shown[0]
    assert "packing: 2 trials at once" in kernel.shown[-1] and "mine" in kernel.shown[-1] and stderr.getvalue() == ""


def test_notebook_progress_is_not_drawn_more_often_than_readable(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE", 3600)
    go()
    assert len(kernel.shown) == 2 and "round 2/2" in kernel.shown[1]


def test_progress_ends_with_an_error(terminal: io.StringIO) -> None:
    """The cursor, which a live picture hides, is back."""
    with pytest.raises(KeyboardInterrupt), live.watching(partial(RunProgress.of, EXPERIMENT), None, None):
        raise KeyboardInterrupt
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


def test_an_ipython_shell_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))  # type: ignore[arg-type]
    assert not live.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())  # type: ignore[arg-type]
    assert not live.in_notebook()


def test_the_bar_is_as_long_as_the_rounds_that_are_finished() -> None:
    shown = RunProgress.of(EXPERIMENT, io.StringIO())
    lengths = []
    for record in RECORDS:
        shown(record)
        recorder = Console(file=io.StringIO(), record=True, width=100, color_system=None)
        recorder.print(shown._draw())
        lengths.append(recorder.export_text().count("━"))
    assert lengths == [0, 6, 12]
