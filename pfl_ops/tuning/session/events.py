"""The events of a study, for who watches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pfl_ops.spaces import Point

SearchKind: TypeAlias = Literal["packing", "begin", "start", "report", "end", "ended", "baseline"]
ChoiceKind: TypeAlias = Literal["confirm", "confirmed", "test", "rounds", "final"]


@dataclass(frozen=True)
class Event:
    """A change in the state of a study.

    Attributes:
        kind: wait (something slow starts); packing (how many trials run at once is tried, is found); begin (the study,
            or its resumption); start, report, end (of a trial); ended (a budget of the search is spent, no further
            trial starts); baseline (a run of FedAvg in an environment starts, is over); confirm (a run with a new seed
            starts, is over); confirmed (the choice is made); test, rounds, final (a test run starts, has finished
            rounds, is over); study (of a benchmark, is over).
        study: its name. wanted, done, running: numbers of trials.
        trial: the reader's number of the trial, or of the test run.
        round, rounds: finished, and of a whole trial. values: of the objective, by metric, with `metric_keys.summands`.
        state: complete, pruned, diverged or failed. error: why it has no result. params: the trial's point.
        best: (trial, values) of the best so far; None: none yet, or several objectives.
        text: what is waited for, what a packing is, or how a run with a new seed, a confirmation, a search or a study
            ended, in one line.
        method, place: of a benchmark's study, "fliu" and "2 of 4"; "": it is no part of one.
    """

    kind: Literal["wait", "study"] | SearchKind | ChoiceKind
    study: str
    wanted: int
    done: int = 0
    running: int = 0
    trial: int | None = None
    round: int = 0
    rounds: int = 0
    values: dict[str, float] = field(default_factory=dict)
    state: str = ""
    error: str = ""
    params: Point = field(default_factory=dict)
    best: tuple[int, dict[str, float]] | None = None
    text: str = ""
    method: str = ""
    place: str = ""


OnEvent: TypeAlias = Callable[[Event], None]
