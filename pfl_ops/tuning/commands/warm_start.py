"""A warm start: the best configurations of an earlier study, tried first in a new one.

The earlier study may have tuned another method, or on another data set or partition. A value is taken over if the new
space varies its setting and allows the value. The others are those of the space's first point, else the experiment's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from pfl_ops.config.fields import Tree
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.spaces import Point
from pfl_ops.spaces.checking import refusal
from pfl_ops.spaces.space import Parameter, Value, on_step, point_problem, short
from pfl_ops.tuning.studies.environments import tests_apart
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage, point_of

MOST_CONFIGURATIONS = 3  # configurations of an earlier study
TESTS_SEEN = (
    "its trials trained on samples that this study is tested on, since both divide the pooled data, each in another "
    "way: these points know something of the tests"
)


@dataclass(frozen=True)
class WarmStart:
    """The configurations that a new study takes over.

    Attributes:
        study: the earlier one's name. method: that it tuned.
        points: number of its trial -> the new study's point.
        left_out: reason of every value that is not taken over, by "path=value".
        tests_seen: True if the earlier study's trials trained on test samples of the new one.
    """

    study: str
    method: str
    points: Mapping[int, Point]
    left_out: Mapping[str, str]
    tests_seen: bool = False

    def __str__(self) -> str:
        """One line: the points that are tried first, the values that are left out, and what they know of the tests."""
        points = "; ".join(f"trial {number:03d}: {short(point)}" for number, point in self.points.items())
        left = "; ".join(f"{value} ({why})" for value, why in self.left_out.items())
        left = f"; left out: {left}" if left else ""
        seen = f"; {TESTS_SEEN}" if self.tests_seen else ""
        return f"from study '{self.study}' of {self.method}: {points}{left}{seen}"

    def first_in(self, settings: Settings) -> Settings:
        """Return a study's settings with these points before the other first ones."""
        points = list(self.points.values())
        others = [point for point in settings.space.first if point not in points]
        return replace(settings, space=replace(settings.space, first=(*points, *others)))


def warm_start(source: StudyStorage, settings: Settings) -> WarmStart:
    """Return what a study takes over: the earlier one's choice, then its best trials, at most three configurations.

    Args:
        source: the earlier study. settings: the new one's.
    Raises:
        PflOpsError: no trial of it is complete, or no value of its best ones can be taken over.
    """
    chosen, several = source.chosen(), len(source.study.directions) > 1
    if chosen is None:
        raise PflOpsError(f"study '{source.name}' has no complete trial from which to start")
    others = source.best() if several else source.top(MOST_CONFIGURATIONS)
    trials = {number: point_of(trial) for number, trial in [chosen, *others]}
    points: dict[int, Point] = {}
    left_out: dict[str, str] = {}
    for number, configuration in list(trials.items())[:MOST_CONFIGURATIONS]:
        point, problems = _point(settings, configuration)
        left_out |= problems
        if point and point not in points.values():
            points[number] = point
    if not points:
        raise PflOpsError(
            f"study '{source.name}' has no configuration for this study, which varies {', '.join(settings.space.keys)}"
        )
    method = str(source.settings["experiment"]["algorithm"]["name"])
    return WarmStart(source.name, method, points, left_out, _tests_seen(source, settings))


def _tests_seen(source: StudyStorage, settings: Settings) -> bool:
    """True if trials of an earlier study trained on samples that this one is tested on.

    The earlier one's method or partition may be of a plug-in that is not loaded; its environments are not known then.
    """
    try:
        before = _places(Settings.from_dict(source.settings))
    except PflOpsError:
        before = [source.settings["experiment"]]
    here = [*_places(settings), *(one.of(settings.experiment).resolved for one in settings.held_out)]
    return not all(tests_apart(one, other) for one, other in product(before, here))


def _places(settings: Settings) -> list[Tree]:
    """Resolved experiments of a study's trials, one an environment."""
    places = [one.of(settings.experiment) for one in settings.environments] or [settings.experiment]
    return [place.resolved for place in places]


def _point(settings: Settings, configuration: Point) -> tuple[Point | None, dict[str, str]]:
    """Return the point that takes over a configuration's values, and the values that it leaves out, with reasons.

    The point is None if it would take over none, or if a setting has no other value that is allowed.
    """
    usual = {**settings.experiment.flat, **(settings.space.first[0] if settings.space.first else {})}
    point: Point = {}
    left_out = {key: "does not vary here" for key in configuration}
    for parameter in settings.space.parameters:
        key = parameter.key
        if not parameter.active(point):
            continue
        point[key] = usual.get(key)
        if key in configuration:
            value = _in_decimals(configuration[key], parameter)
            if problem := parameter.problem(value):
                left_out[key] = problem
            else:
                point[key] = value
                del left_out[key]
    if len(left_out) < len(configuration):
        problem = point_problem(settings.space.parameters, point)
        if problem is None and (error := refusal(settings.experiment, point)):
            problem = in_a_line(error)
        left_out = dict.fromkeys(configuration, problem) | left_out if problem else left_out
    taken_over = len(left_out) < len(configuration)
    return point if taken_over else None, {short({key: configuration[key]}): why for key, why in left_out.items()}


def _in_decimals(value: Value, parameter: Parameter) -> Value:
    """Return a value on the steps of a range as it is written in decimals, any other as it is.

    Studies of earlier versions have 0.1 + 2 · 0.1 = 0.30000000000000004, another experiment than 0.3.
    """
    if parameter.kind != "float" or not parameter.step:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    near = on_step(value, parameter.low, parameter.step)
    return near if math.isclose(value, near, rel_tol=0.0, abs_tol=1e-9 * parameter.step) else value
