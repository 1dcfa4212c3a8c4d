"""The decision table: rates in, choice out."""

from typing import Any

import pytest

from pfl_ops.federation.execution.decide import Choice, Scope, TrainingWork, decide, hint, shares, together
from pfl_ops.federation.execution.timing import Candidate, Timing

Rates = dict[tuple[int | None, int], float]


def timing(rates: Rates, scaling: float = 2.0) -> Timing:
    return Timing({Candidate(*key, "float32"): rate for key, rate in rates.items()}, scaling)


def work(rounds: int = 100, cohort: int = 20) -> TrainingWork:
    return TrainingWork(cohort, rounds, samples=600.0 * cohort, batch=50, walk=12)


def scope(**given: Any) -> Scope:
    return Scope(**{"way": "auto", "chunk": None, "cohort": 20, "threads": 2, "most": 2, **given})


CNN: Rates = {(None, 2): 1778, (None, 1): 1169, (2, 2): 1568, (2, 1): 994}
LINEAR: Rates = {(None, 2): 114e3, (None, 1): 111e3, (10, 2): 408e3, (10, 1): 318e3, (20, 2): 513e3}
CROWDED: Rates = {(None, 2): 783, (None, 1): 76e3, (10, 1): 331e3, (20, 2): 13e3}
"""Two busy cores: each step of two threads waits for the one that has no core."""


@pytest.mark.parametrize(
    ("rates", "scaling", "rounds", "given", "expected"),
    [
        (CNN, 2.0, 100, {}, Choice(None, 2, 2)),  # 675 s alone, 513 s shared
        (CNN, 2.0, 4, {}, Choice(None, 2, 1)),  # 27 s: over before others have started
        (CNN, 1.5, 100, {}, Choice(None, 2, 2)),  # 1,752 a second, within 10 %: no step of it waits for two cores
        (CNN, 1.3, 100, {}, Choice(None, 2, 1)),  # 1,518 a second: two cores that share too much
        (CNN, 2.0, 100, {"most": 1}, Choice(None, 2, 1)),
        ({**CNN, (None, 2): 2100}, 2.0, 100, {"cohort": 3}, Choice(None, 2, 1)),  # one has two of three clients: 1,744
        ({**CNN, (None, 2): 2590}, 2.0, 100, {}, Choice(None, 2, 2)),  # 2,336 are 90.2 %
        ({**CNN, (None, 2): 2600}, 2.0, 100, {}, Choice(None, 2, 1)),  # 89.8 %
        (
            {(None, 1): 1169},
            1.1,
            100,
            {"threads": 1},
            Choice(None, 1, 1),
        ),  # 1.1 times is too vague a promise
        (CNN, 2.0, 1, {"least": 2}, Choice(None, 2, 2)),  # asked for
        (CNN, 2.0, 100, {"fewer": True}, Choice(None, 1, 2)),  # this process leaves them the cores
        (LINEAR, 2.0, 20_000, {}, Choice(10, 2, 2)),  # sharing out 19 ms of work costs 5: 503,000, 98 %
        ({**LINEAR, (10, 1): 270e3}, 2.0, 20_000, {}, Choice(20, 2, 1)),  # 441,000, 86 %
        ({**LINEAR, (10, 1): 480e3}, 2.0, 20_000, {}, Choice(10, 2, 2)),
        ({**LINEAR, (10, 1): 480e3}, 2.0, 100, {}, Choice(20, 2, 1)),
        (CROWDED, 2.0, 100, {"most": 1}, Choice(20, 2, 1)),
        (CROWDED, 2.0, 100, {"most": 1, "fewer": True}, Choice(10, 1, 1)),
        (LINEAR, 2.0, 100, {"fewer": True}, Choice(20, 2, 1)),
        ({(None, 2): 1.1e5, (None, 1): 1.2e5}, 2.0, 100, {"fewer": True}, Choice(None, 2, 1)),  # a tie, nearly
        ({(None, 1): 5.0}, 1.0, 1, {"fewer": True}, Choice(None, 1, 1)),  # there was no time for more
        ({(None, 1): 5.0}, 1.0, 1, {}, Choice(None, 2, 1)),
        ({(None, 1): 5.0}, 1.0, 1, {"threads": 1, "most": 1}, Choice(None, 1, 1)),
    ],
)
def test_the_decision(rates: Rates, scaling: float, rounds: int, given: dict[str, Any], expected: Choice) -> None:
    cohort = given.get("cohort", 20)
    assert decide(timing(rates, scaling), work(rounds, cohort), "float32", scope(**given)) == expected


def test_other_precisions_have_no_say() -> None:
    found = Timing({Candidate(None, 2, "float32"): 100.0, Candidate(5, 2, "bfloat16"): 900.0})
    assert decide(found, work(), "float32", scope(most=1)) == Choice(None, 2)


@pytest.mark.parametrize(
    ("stack", "cohort", "most", "chunk", "expected"),
    [
        (None, 20, 2, None, (1, 2)),
        (None, 20, 16, None, (1, 10)),  # two clients each: six more would save nothing
        (None, 3, 8, None, (1, 3)),
        (20, 50, 2, None, (13, 2)),  # 25 each: 13 and 12 rather than 20 and 5
        (10, 20, 2, None, (10, 2)),
        (100, 20, 4, None, (5, 4)),
        (20, 50, 2, 20, (20, 2)),  # as asked for: 20 and 10 against 20
        (20, 50, 8, 20, (20, 3)),
    ],
)
def test_shares(stack: int | None, cohort: int, most: int, chunk: int | None, expected: tuple[int, int]) -> None:
    size, processes = shares(stack, cohort, scope(cohort=cohort, most=most, chunk=chunk))
    assert (size, processes) == expected
    assert -(-cohort // size) >= processes, "each has a chunk to work on"


@pytest.mark.parametrize(
    ("stack", "cohort", "most", "scaling", "expected"),
    [
        (None, 20, 2, 2.0, 200),
        (None, 20, 2, 1.6, 160),
        (None, 20, 2, 0.8, 100),  # a reading below one core is noise
        (None, 5, 2, 2.0, 200 * 5 / 6),  # three clients and two
        (None, 20, 16, 16.0, 1000),  # ten processes of two clients each
        (None, 20, 16, 5.0, 500),  # that share five cores
        (10, 15, 2, 2.0, 200 * 15 / 16),  # chunks of 8 and 7
    ],
)
def test_what_several_processes_promise(
    stack: int | None, cohort: int, most: int, scaling: float, expected: float
) -> None:
    found = together(100.0, stack, work(cohort=cohort), scope(cohort=cohort, most=most), scaling)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "settled", "lanes"),
    [
        ({}, None, {1: (None, 2, 5, 10), 2: (None, 2, 5, 10, 20)}),
        ({"most": 1}, None, {2: (None, 2, 5, 10, 20)}),
        ({"most": 1, "fewer": True}, None, {1: (None, 2, 5, 10, 20), 2: (None, 2, 5, 10, 20)}),
        ({"least": 2}, None, {1: (None, 2, 5, 10)}),
        ({"threads": 1, "most": 1}, None, {1: (None, 2, 5, 10, 20)}),
        ({"way": "vmap", "cohort": 7}, None, {1: (2, 4), 2: (2, 5, 7)}),
        ({"way": "loop"}, None, {1: (None,), 2: (None,)}),
        ({"way": "loop", "most": 1}, Choice(None, 2), {2: (None,)}),
        ({"way": "loop", "most": 1, "fewer": True}, Choice(None, 2), {1: (None,), 2: (None,)}),
        ({"way": "loop", "least": 2}, Choice(None, 2, 2), {1: (None,)}),
        ({"way": "loop", "least": 2, "fewer": True}, Choice(None, 1, 2), {1: (None,)}),
        ({"way": "vmap", "chunk": 30, "most": 1}, Choice(20, 2), {2: (20,)}),
        ({"way": "vmap", "chunk": 4, "least": 2}, Choice(4, 2, 2), {1: (4,)}),
        ({"way": "vmap", "cohort": 1, "most": 1}, Choice(1, 2), {2: (1,)}),
        ({"cohort": 400, "most": 1}, None, {2: (None, 2, 5, 10, 20, 50, 100)}),
    ],
)
def test_what_is_timed(given: dict[str, Any], settled: Choice | None, lanes: dict[int, Any]) -> None:
    found = scope(**given)
    assert found.settled == settled
    assert {lane.threads: lane.stacks for lane in found.lanes} == lanes


@pytest.mark.parametrize(
    ("bfloat16", "said"), [(1.49, None), (1.51, "precision bfloat16 would train about 1.5 times as fast here")]
)
def test_a_line_for_another_precision(bfloat16: float, said: str | None) -> None:
    rates = {Candidate(None, 2, "float32"): 100.0, Candidate(2, 2, "float32"): 90.0}
    line = hint(Timing({**rates, Candidate(None, 2, "bfloat16"): 100 * bfloat16}), "float32")
    assert line is None if said is None else line is not None and line.startswith(said) and "changes results" in line


def test_the_line_names_the_fastest_and_none_where_nothing_fits() -> None:
    rates = {Candidate(5, 1, p): rate for p, rate in {"float32": 10.0, "tf32": 20.0, "bfloat16": 32.0}.items()}
    assert "bfloat16 would train about 3.2 times" in str(hint(Timing(rates), "float32"))  # type: ignore[arg-type]
    assert hint(Timing({Candidate(5, 1, "float32"): 0.0, Candidate(5, 1, "bfloat16"): 0.0}), "float32") is None
