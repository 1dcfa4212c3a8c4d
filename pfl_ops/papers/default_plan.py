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
class PlannedCall:
    """Suites, or some of their cells, at one scale.

    Attributes:
        scale: its name. suites: name -> pattern of cells; "": all. repetitions: n.
        changes: {path: value} that differ from the scale, as `--set` has them.
    """

    scale: ScaleName
    suites: Mapping[str, str]
    repetitions: int
    changes: Mapping[str, Any] = field(default_factory=dict)


COLUMN = "path/{fedavg,fliu}"

DEFAULT_PLAN: Sequence[PlannedCall] = (
    PlannedCall("full", {"drdm/table3": "", "drdm/fig5": ""}, 4),
    PlannedCall("medium", {"fliu/table1": COLUMN, "fliu/fig5": COLUMN}, 1, {"training.rounds": 10}),
)
"""One call after the other."""

KEPT = Path(__file__).parents[2] / "docs" / "results"
"""The results that come with the sources; an installed package has none."""
LARGER = "larger runs, and what explains them: docs/reproduced.md"
"""A line on results that the plan does not run."""
