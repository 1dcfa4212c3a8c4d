"""What a study says in the terminal: a small table, or one line an event where nobody looks."""

import io

import pytest
from rich.console import Console

from pfl_ops.tuning import Event, Show

POINT = {"algorithm.gamma.kind": "fixed", "training.lr": 0.0123456}
BEST = (0, {"val/L1/acc": 1.5})
EVENTS = [
    Event("packing", "s", 3, text="packing: 2 trials at once"),
    Event("begin", "s", 3),
    Event("start", "s", 3, running=1, trial=0, rounds=9, params=POINT),
    Event("report", "s", 3, running=1, trial=0, round=5, rounds=9, values={"val/L1/acc": 1.25}, params=POINT),
    Event("end", "s", 3, 1, 0, 0, 9, 9, {"val/L1/acc": 1.5}, "complete", "", POINT, BEST),
    Event("start", "s", 3, 1, 1, trial=1, rounds=9, params=POINT, best=BEST),
    Event("end", "s", 3, 1, 0, 1, 2, 9, {}, "failed", "ValueError: [no]", POINT, BEST),
    Event("start", "s", 3, 1, 1, trial=2, rounds=9, params=POINT, best=BEST),
    Event("test", "s", 3, 1, trial=0),
    Event("final", "s", 3, 1, trial=0),
]


def test_plain_lines_where_the_output_is_no_terminal():
    stream = io.StringIO()
    with Show(stream) as show:
        for event in EVENTS:
            show(event)
    assert stream.getvalue().splitlines() == [
        "packing: 2 trials at once",
        "study s: 0 of 3 trials done",
        "trial 000 starts: kind=fixed lr=0.0123",
        "trial 000 complete: val/L1/acc 1.5000 after round 9 "
        "(1 of 3 done, 0 running, best val/L1/acc 1.5000 (trial 000))",
        "trial 001 starts: kind=fixed lr=0.0123",
        "trial 001 failed: ValueError: [no] (1 of 3 done, 0 running, best val/L1/acc 1.5000 (trial 000))",
        "trial 002 starts: kind=fixed lr=0.0123",
        "test run 1 starts",
        "test run 1 is over",
    ]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, ["starting Ray"]),
        (4, ["0 of 3 done, 1 running", "000", "running", "5/9", "1.2500", "lr=0.0123"]),
        (8, ["1 of 3 done, 1 running, best val/L1/acc 1.5000 (trial 000)", "complete", "ValueError: [no]", "0/9"]),
        (9, ["test run 1 starts"]),
    ],
)
def test_a_live_table_in_a_terminal(n, expected):
    stream = io.StringIO()
    show = Show(stream)
    show.console = Console(file=stream, force_terminal=True, width=100)
    with show:
        for event in EVENTS[:n]:
            show(event)
        plain = Console(width=100, file=io.StringIO(), record=True)
        plain.print(show._picture())
        text = plain.export_text()
    for part in expected:
        assert part in text
    assert len(text.splitlines()) <= 9
    assert "trial 000 starts" not in stream.getvalue()
