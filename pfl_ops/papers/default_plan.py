"""The plan of `pfl-ops reproduce` without names and scale: what two CPU cores run in about a quarter of an hour.

Measured in CPU time of one thread (AMD EPYC Zen 4, one of two cores busy with other work): a run of DRDM's MNIST suites
at full takes 7 s, of which 3 s train and the others score every round; at medium a round of FedAvg takes 14 s and one
of FLIU 22 s, so that a run of 100 rounds takes 23 and 37 minutes. Of FLIU's Table I this plan has the first rounds of
one seed. In all 1,200 s of CPU time, and the starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_ops.papers.suite import ScaleName


@dataclass(frozen=True)
class Selection:
    """A suite, or some of its cells, at a scale.

    Attributes:
        suite: name. only: pattern of cells; "": all. repetitions: n; None: the scale's.
        changes: {path: value} that differ from the scale, as `--set` has them.
    """

    suite: str
    scale: ScaleName
    only: str = ""
    repetitions: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


FIRST_ROUNDS = {"training.rounds": 10}
COLUMN = "path/{fedavg,fliu}"

DEFAULT_PLAN: Sequence[Sequence[Selection]] = (
    (Selection("drdm/table3", "full", repetitions=4), Selection("drdm/fig5", "full", repetitions=4)),
    (
        Selection("fliu/table1", "medium", COLUMN, 1, FIRST_ROUNDS),
        Selection("fliu/fig5", "medium", COLUMN, 1, FIRST_ROUNDS),
    ),
)
"""One call after the other; all selections of a call have one scale, one n and the same changes."""

LARGER = (
    "larger runs: docs/reproduced.md has a table of FLIU Table I (PATH, LSQS; small, n = 3); no finished run comes "
    "with the code"
)
"""A line on results that are committed and that the plan does not run."""
