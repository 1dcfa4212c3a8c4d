"""A study in the terminal: a small table, or one line an event without a terminal."""

import io

import pytest
from rich.console import Console

from pfl_ops.tuning import Event, StudyProgress

POINT = {"algorithm.gamma.kind": "fixed", "training.lr": 0.0123456}
SCORES = {"val/L1/acc": 1.5, "val/L1/local/mean": 0.9, "val/L1/global/mean": 0.6}
BEST = (0, {"val/L1/acc": 1.5})
EVENTS = [
    Event("wait", "s", 3, text="starting Ray ..."),
    Event("packing", "s", 3, text="packing: 2 trials at once"),
    Event("begin", "s", 3),
    Event("start", "s", 3, running=1, trial=0, rounds=9, params=POINT),
    Event("report", "s", 3, running=1, trial=0, round=5, rounds=9, values={"val/L1/acc": 1.25}, params=POINT),
    Event("end", "s", 3, 1, 0, 0, 9, 9, SCORES, "complete", "", POINT, BEST),
    Event("start", "s", 3, 1, 1, trial=1, rounds=9, params=POINT, best=BEST),
    Event("end", "s", 3, 1, 0, 1, 2, 9, {}, "failed", "ValueError: [no]", POINT, BEST),
    Event("start", "s", 3, 1, 1, trial=2, rounds=9, params=POINT, best=BEST),
    Event("test", "s", 3, 1, trial=0),
    Event("final", "s", 3, 1, trial=0),
]


def test_plain_lines_where_the_output_is_no_terminal():
    stream = io.StringIO()
    with StudyProgress(stream) as show:
        for event in EVENTS:
            show(event)
    assert stream.getvalue().splitlines() == [
        "starting Ray ...",
        "packing: 2 trials at once",
        "study s: 0 of 3 trials done",
        "trial 000 starts: kind=fixed lr=0.0123",
        "trial 000 complete: Acc(L)+Acc(G) 150.0 % (90.0 % + 60.0 %) after round 9 "
        "(1 of 3 done, 0 running, best Acc(L)+Acc(G) 150.0 % in trial 000)",
        "trial 001 starts: kind=fixed lr=0.0123",
        "trial 001 failed: ValueError: [no] (1 of 3 done, 0 running, best Acc(L)+Acc(G) 150.0 % in trial 000)",
        "trial 002 starts: kind=fixed lr=0.0123",
        "test run 1 starts",
        "test run 1 is over",
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, ["starting ..."]),
        (1, ["starting Ray ..."]),
        (5, ["0 of 3 done, 1 running", "000", "running", "5/9", "Acc(L)+Acc(G) 125.0 %", "lr=0.0123"]),
        (
            9,
            [
                "1 of 3 done, 1 running, best Acc(L)+Acc(G) 150.0 % in trial 000",
                "complete",
                "ValueError: [no]",
                "0/9",
            ],
        ),
        (10, ["test run 1 starts"]),
    ],
)
def test_a_live_table_in_a_terminal(n, expected):
    stream = io.StringIO()
    show = StudyProgress(stream)
    show.console = Console(file=stream, force_terminal=True, width=100)
    with show:
        for event in EVENTS[:n]:
            show(event)
        plain = Console(width=100, file=io.StringIO(), record=True)
        plain.print(show._draw())
        text = plain.export_text()
    for part in expected:
        assert part in text
    assert len(text.splitlines()) <= 9
    assert "trial 000 starts" not in stream.getvalue()


@pytest.mark.parametrize(
    ("event", "line", "live"),
    [
        (
            Event("confirm", "s", 1, 1, trial=4, text="seed 1000 starts"),
            "confirmation of trial 004, seed 1000 starts",
            "confirmation of trial 004, seed 1000 starts",
        ),
        (Event("baseline", "s", 1, text="path, seed 0 starts"), "FedAvg in path, seed 0 starts", "FedAvg in path"),
        (Event("confirmed", "s", 1, 1, text="s: confirmed: trial 004"), "s: confirmed: trial 004", "1 of 1 done"),
        (Event("test", "s", 1, 1, trial=1), "test run 2 starts", "test run 2 starts"),
        (Event("rounds", "s", 1, 1, trial=1, round=3, rounds=9), "", "test run 2: round 3 of 9"),
        (Event("final", "s", 1, 1, trial=1), "test run 2 is over", "test run 2 is over"),
        (Event("final", "s", 1, 1, trial=1, text="was over before: read"), "test run 2 was over before: read", "read"),
    ],
)
def test_rounds_of_a_test_run_are_shown_live_and_fill_no_log(event, line, live):
    stream = io.StringIO()
    show = StudyProgress(stream)
    assert show.line(event) == line
    show.last = event
    plain = Console(width=100, file=io.StringIO(), record=True)
    plain.print(show._draw())
    assert live in plain.export_text()


def test_studies_of_a_benchmark_are_told_apart():
    """Each line names its method; the live table starts again with each study, and what a study gave stays above."""
    parts = [("fliu", "1 of 2", "b.fliu"), ("ditto", "2 of 2", "b.ditto")]
    events = [
        event
        for method, place, study in parts
        for event in (
            Event("begin", study, 1, method=method, place=place),
            Event("end", study, 1, 1, 0, 0, 9, 9, {"a": 1.5}, "complete", "", POINT, BEST, method=method, place=place),
            Event("study", study, 1, 1, text="all good", method=method, place=place),
        )
    ]
    stream = io.StringIO()
    with StudyProgress(stream) as show:
        for event in events:
            show(event)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "method 1 of 2, fliu: 0 of 1 trial done" and lines[1].startswith("fliu trial 000 complete: ")
    assert lines[2] == "fliu (1 of 2): all good" and lines[4].startswith("ditto trial 000 ")

    stream = io.StringIO()
    show = StudyProgress(stream)
    show.console = Console(file=stream, force_terminal=True, width=100)
    with show:
        for event in events[:4]:
            show(event)
    assert "fliu (1 of 2): all good" in stream.getvalue()
    assert "method 2 of 2  ditto" in stream.getvalue() and not show.ended
