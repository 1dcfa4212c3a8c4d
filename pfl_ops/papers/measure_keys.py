"""Measures of a suite, refused where no run can have such a number: a cell without one looks as if it were not run."""

import math
import re
from collections.abc import Iterable, Mapping

from pfl_ops import metric_keys, metrics
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, echo, unknown
from pfl_ops.metric_keys import HIGHEST, TARGET_MARK
from pfl_ops.papers.suite import Measure, Suite
from pfl_ops.units import PERCENT, unit_of

OTHERS = ("train/loss", "train/lr", *metric_keys.COSTS, "cost/clients")
"""Tracked keys that are no scores."""
NOTE = re.compile(r"method/[a-z][a-z0-9_]*/(?:mean|std|min|max|q10|q50|q90|online/mean|stragglers/mean)")
"""The key of a note, see `metrics.noted`."""
KEY = re.compile(rf"(?P<name>[^@#]+)(?:@(?P<target>\d+(?:\.\d+)?)|#(?P<round>\d+|{HIGHEST}))?")
MOST_DIGITS = 10


def check_measures(suite: Suite) -> None:
    """Refuse measures that no cell can have, that are there twice, or whose numbers can't be shown.

    Raises:
        PflOpsError: the first one, with the nearest key.
    """
    keys = [measure.key for measure in suite.measures]
    names = []
    for measure in suite.measures:
        if keys.count(measure.key) > 1:
            raise PflOpsError(f"measure {echo(measure.key)} is there twice")
        if problem := _problem(measure):
            raise PflOpsError(f"measure {echo(measure.key)}: {problem}")
        found = KEY.fullmatch(measure.key)
        if found is None:
            raise PflOpsError(
                f"measure {echo(measure.key)}: behind the key stands @ with a target, # with a round, or #{HIGHEST}"
            )
        names.append(found["name"])
        if found["target"] and (most := bounds(found["name"])[1]) * measure.unit < float(found["target"]):
            raise PflOpsError(
                f"measure {echo(measure.key)}: no {found['name']} reaches {found['target']}: with unit "
                f"{measure.unit:g}, in which the target is, it is at most {most * measure.unit:g}"
            )
        number = found["round"] or HIGHEST
        if number != HIGHEST and all(int(number) > suite.experiment(cell).training.rounds for cell in suite.cells):
            raise PflOpsError(f"measure {echo(measure.key)}: no cell has round {number} at scale full")
    check_tracked(suite, names)


def check_tracked(suite: Suite, names: Iterable[str]) -> None:
    """Refuse keys that no run of a suite's cells can track.

    Raises:
        PflOpsError: the first one, with the nearest key.
    """
    cells = [(suite.stages(cell), _tracked(suite.experiment(cell))) for cell in suite.cells]
    for name in names:
        known = [(metric_keys.tracked_as(name, stages), there) for stages, there in cells]
        if not NOTE.fullmatch(name) and not any(key in there for key, there in known):
            raise unknown("number of a run", *known[0])


def history_keys(key: str, stages: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tracked keys whose history a measure or a curve needs; none for a last value.

    >>> history_keys("test/P/acc@90", {"P": "L2"}), history_keys("test/L1/acc", {})
    (('test/L2/acc',), ())
    """
    name, mark, _ = metric_keys.split_mark(metric_keys.tracked_as(key, stages))
    return metric_keys.parts_of_below(name) or ((name,) if mark else ())


def bounds(key: str) -> tuple[float, float]:
    """Return the least and the largest value that a measure can have, as tracked: an accuracy is a fraction.

    >>> bounds("test/L1/local/mean"), bounds("test/L1/acc#best"), bounds("test/L1/local/std")
    ((0.0, 1.0), (0.0, 2.0), (0.0, 0.5))
    >>> bounds("test/L1/local/mean@90"), bounds("train/loss")
    ((0.0, inf), (-inf, inf))
    """
    name, mark, _ = metric_keys.split_mark(key)
    last = name.rpartition("/")[2]
    if mark == TARGET_MARK or name.startswith("cost/") or last == "clients" or last.startswith(("rho_", "below_")):
        return 0.0, math.inf
    if unit_of(name) is PERCENT:
        return 0.0, {"acc": 2.0, "std": 0.5}.get(last, 1.0)
    return -math.inf, math.inf


def _problem(measure: Measure) -> str:
    unit, digits = measure.unit, measure.digits
    if not isinstance(unit, int | float) or not 0 < unit < math.inf:
        return f"unit must be a number above 0, got {echo(repr(unit))}"
    if not isinstance(digits, int) or not 0 <= digits <= MOST_DIGITS:
        return f"digits must be 0 to {MOST_DIGITS}, got {echo(repr(digits))}"
    if measure.better not in ("high", "low", ""):
        return f"better must be high, low or empty, got {echo(repr(measure.better))}"
    return ""


def _tracked(experiment: Experiment) -> list[str]:
    """The keys that a run of this experiment may track, but for the notes of its method."""
    evaluation = experiment.evaluation
    scores = metric_keys.scores(evaluation.split, evaluation.synthetic, evaluation.eps)
    pooled = [key.removesuffix("mean") for key in scores if key.endswith("/global/mean")]
    counted = [key.replace("/rho_", "/below_") for key in scores if "/rho_" in key]
    errors = [f"{start}{name}" for start in pooled for name in (metrics.SAMPLES, metrics.ERROR)]
    return [*scores, *counted, *errors, *OTHERS]
