"""What is known of a finished repetition of a cell, wherever it was read from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pfl_ops import metrics

if TYPE_CHECKING:
    import pandas as pd


HIGHEST = "best"
"""After the # of a measure's key: the highest value over the scored rounds."""


@dataclass(frozen=True)
class Outcome:
    """One repetition of a cell, finished.

    Attributes:
        seed: its own. run_id, experiment_id: MLflow's, for a link; None while the server was never reached.
        metrics: last value of each tracked key, `final/…` and `best/…` among them.
        history: a row a round, a column a tracked key. Empty: curves were not asked for.
        seconds: it took. tags: of its run: versions, machine.
        stages: stage of a measure's key -> the tracked one, where they differ; see `suite.Level`.
    """

    seed: int
    metrics: Mapping[str, float]
    history: "pd.DataFrame | None" = None
    run_id: str | None = None
    experiment_id: str | None = None
    seconds: float = math.nan
    tags: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str, at: str = "final", unit: float = 1.0) -> float | None:
        """Return a measure: last or best; "…@90": first round with 90 or more; "…#20": round 20; "…#best": highest.

        Args:
            key: the measure's. at: "final" or "best". unit: tracked values are multiplied by it; targets are in it.
        Returns:
            None: not tracked; for a round that was never reached, infinity.
        """
        if "@" in key:
            name, _, target = key.partition("@")
            curve = self.curve(name)
            if not curve:
                return None
            reached = metrics.rounds_to(curve, float(target) / unit)
            return math.inf if reached is None else float(reached)
        if "#" in key:
            name, _, number = key.partition("#")
            curve = self.curve(name)
            value = max(curve.values(), default=None) if number == HIGHEST else curve.get(int(number))
            return None if value is None else value * unit
        name = tracked_as(key, self.stages)
        found = self.metrics.get(f"{at}/{name}", self.metrics.get(name))
        return None if found is None or math.isnan(found) else found * unit

    def curve(self, key: str) -> dict[int, float]:
        """{round: value} where it was evaluated; "…/below_95" is counted from the scored clients and rho_95."""
        key = tracked_as(key, self.stages)
        stem, _, last = key.rpartition("/")
        if last.startswith("below_"):
            scored, above = self.curve(f"{stem}/clients"), self.curve(f"{stem}/{last.replace('below', 'rho')}")
            return {t: scored[t] - above[t] for t in above if t in scored}
        if self.history is None or key not in self.history:
            return {}
        column: Any = self.history[key].dropna()
        return {int(t): float(v) for t, v in column.items()}


Outcomes = Mapping[str, list[Outcome]]
"""Name of the cell -> its repetitions that are finished."""


def tracked_as(key: str, stages: Mapping[str, str]) -> str:
    """The tracked key that a measure's means where stages have names of the suite's own: "test/P/local/mean" with
    {"P": "L2"} is "test/L2/local/mean"."""
    parts = key.split("/")
    return "/".join(stages.get(part, part) if i == 1 else part for i, part in enumerate(parts))


def tracked_keys(key: str, stages: Mapping[str, str] | None = None) -> list[str]:
    """The tracked keys whose history a measure or a curve needs; none for a last value."""
    name, mark, _ = tracked_as(key, stages or {}).replace("#", "@").partition("@")
    stem, _, last = name.rpartition("/")
    if last.startswith("below_"):
        return [f"{stem}/clients", f"{stem}/{last.replace('below', 'rho')}"]
    return [name] if mark else []
