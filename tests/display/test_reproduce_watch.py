"""The progress of `reproduce`: bars on a terminal, a line a job elsewhere."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pfl_ops.cli import reproduce_watch
from pfl_ops.cli.reproduce_watch import ReproduceProgress
from pfl_ops.tuning.suites.cells import CellEvent


def job(name: str, rounds: int = 4) -> Any:
    training = SimpleNamespace(training=SimpleNamespace(rounds=rounds))
    return SimpleNamespace(suite=SimpleNamespace(name="toy/table1"), name=name, digest=name, experiment=training)


def watched(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> tuple[ReproduceProgress, io.StringIO]:
    stream = io.StringIO()

    def err() -> Console:  # as the real one, a new console at each call
        return Console(file=stream, force_terminal=terminal, width=100, color_system=None)

    monkeypatch.setattr(reproduce_watch, "err", err)
    return ReproduceProgress(), stream


EVENTS = (
    CellEvent("begin", 0, 3, text="3 runs, 2 at once"),
    CellEvent("start", 0, 3, job("iid/fedavg seed 0")),
    CellEvent("round", 0, 3, job("iid/fedavg seed 0"), round=2),
    CellEvent("start", 0, 3, job("iid/fliu seed 0")),
    CellEvent("end", 1, 3, job("iid/fedavg seed 0")),
    CellEvent("claim", 1, 5, text="more seeds for: a claim"),
    CellEvent("failed", 2, 5, job("iid/fliu seed 0"), text="it died"),
)


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stream = watched(monkeypatch, terminal=False)
    with watch:
        for event in EVENTS:
            watch(event)
    lines = stream.getvalue().splitlines()
    assert [line.partition("  about")[0] for line in lines] == [
        "3 runs, 2 at once",
        "1 of 3  toy/table1 iid/fedavg seed 0",
        "more seeds for: a claim",
        "2 of 5  toy/table1 iid/fliu seed 0  failed: it died",
    ]
    assert all("left" in lines[i] for i in (1, 3))


def test_bars_follow_the_jobs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stream = watched(monkeypatch, terminal=True)
    drawn = Console(file=io.StringIO(), width=100)

    def rows() -> list[list[str]]:
        with drawn.capture() as captured:
            drawn.print(watch._draw())
        return [[word for word in line.split() if set(word) - set("━╸╺ ")] for line in captured.get().splitlines()]

    with watch:
        for event in EVENTS[:4]:
            watch(event)
        watch(CellEvent("start", 0, 3, job("iid/fedavg seed 0")))  # its process died: another begins where it was
        assert rows() == [
            ["all", "runs", "0/3"],
            ["toy/table1", "iid/fedavg", "seed", "0", "2/4"],
            ["toy/table1", "iid/fliu", "seed", "0", "0/4"],
        ]
        for event in EVENTS[4:6]:
            watch(event)
        assert rows()[0][:3] == ["all", "runs", "1/5"] and rows()[0][-1] == "left" and len(rows()) == 2
        watch(EVENTS[6])
        assert len(rows()) == 1
    assert watch.picture is None
    said = stream.getvalue()
    assert "more seeds for: a claim" in said and "failed: it died" in said and "1 of 3" not in said


def test_an_estimate_alone_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, stream = watched(monkeypatch, terminal=True)
    monkeypatch.setattr(reproduce_watch, "out", lambda: Console(file=stream, width=100))
    dry = ReproduceProgress(dry_run=True)
    with dry:
        dry(CellEvent("begin", 0, 3, text="3 runs, 2 at once"))
        assert dry.picture is None
    with watch:
        watch(CellEvent("begin", 0, 0))
        assert watch.picture is None
    assert "everything is finished already; the reports are written again" in stream.getvalue()
