"""The values of a comparison: its lines in groups, which its tables, notes and pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from pfl_ops.comparison import TARGETED, TESTS, Line, Test
from pfl_ops.errors import count
from pfl_ops.results import At

BEST_ROUND = "best/round"
TEST_DESCRIPTIONS: Mapping[Test, str] = {
    "anytime": f"{TESTS['anytime']} over common seeds (higher ones may be added after a look)",
    "t": f"{TESTS['t']} over common seeds (valid only if n was fixed before the runs)",
}
"""The tests in words."""


@dataclass(frozen=True)
class Group:
    """The lines on one data set, partition, network and split. Only within a group there is an order and a best line.

    Attributes:
        title: "digits, lsqs", and what tells it from other groups of this data set and partition.
        lines: by their mean, the highest (or lowest, where smaller is better) first; by name if neither is better, see
            `metric_keys.is_neutral`; those without a value, and unfinished ones, last.
        metric: by which they are ordered and tested.
        fair: False if lines also differ in rounds, participation or scoring, trials stand beside runs, or values are of
            best rounds. Then there is a highest line, and no best one.
        complaints: why these numbers should not be read side by side.
    """

    title: str
    lines: tuple[Line, ...]
    metric: str
    fair: bool = True
    complaints: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """Its numbers of settings and runs, in words."""
        return f"{count(len(self.lines), 'setting')}, {count(sum(len(line.runs) for line in self.lines), 'run')}"


@dataclass(frozen=True)
class ComparisonData:
    """Groups of lines side by side.

    Attributes:
        groups: by title.
        metric: what decides: a tracked key, or the end of one ("acc", "L2/local/worst"). A group of which no run has
            "acc" is ordered by Acc(L), see `Group.metric`.
        at: "final", of the last round; "best", of each run's best.
        target: the value whose first round is counted, as tracked (0.9 is 90 %), or None. target_metric: its metric.
        remarks: what was left out.
        clients: run id -> table of clients, if they were asked for.
        place: the store, in words.
        test: that of the differences: "anytime" (seeds may be added after a look) or "t" (n fixed before the runs).
        with_curves: False: the values of each round were not asked for, and no curves are drawn.
    """

    groups: tuple[Group, ...]
    metric: str
    at: At = "final"
    target: float | None = None
    target_metric: str = TARGETED
    remarks: tuple[str, ...] = ()
    clients: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    place: str = ""
    test: Test = "anytime"
    with_curves: bool = True

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of all groups."""
        return tuple(line for group in self.groups for line in group.lines)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Those of all groups; of several with the group's title in front."""
        several = len(self.groups) > 1
        return tuple(f"{g.title}: {line}" if several else line for g in self.groups for line in g.complaints)
