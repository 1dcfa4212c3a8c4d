"""The plan of `pfl-ops reproduce` without names and scale: what two CPU cores run in about a quarter of an hour.

Measured from the shell prompt to the result (AMD EPYC, two cores, little other work): 12 min 3 s on 2026-11-24, and
16 min 12 s on a slower day. The FLIU part is ten rounds of FLIU and of FedAvg, of the 100 that a run has at medium.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_ops.papers.suite import ScaleName


@dataclass(frozen=True)
class PlannedSuite:
    """A suite, or some of its cells, at a scale.

    Attributes:
        suite, scale: names. only: pattern of cells; "": all. repetitions: n; None: the scale's.
        changes: {path: value} that differ from the scale, as `--set` has them.
    """

    suite: str
    scale: ScaleName
    only: str = ""
    repetitions: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


FIRST_ROUNDS = {"training.rounds": 10}
COLUMN = "path/{fedavg,fliu}"

DEFAULT_PLAN: Sequence[Sequence[PlannedSuite]] = (
    (PlannedSuite("drdm/table3", "full", repetitions=4), PlannedSuite("drdm/fig5", "full", repetitions=4)),
    (
        PlannedSuite("fliu/table1", "medium", COLUMN, 1, FIRST_ROUNDS),
        PlannedSuite("fliu/fig5", "medium", COLUMN, 1, FIRST_ROUNDS),
    ),
)
"""One call after the other; all selections of a call have one scale, one n and the same changes."""

KEPT = Path(__file__).parents[2] / "docs" / "results"
"""The results that come with the sources; an installed package has none."""
LARGER = "larger runs, and what explains them: docs/reproduced.md"
"""A line on results that the plan does not run."""
