"""The terms on which methods are compared: the same data, clients, network, rounds and seeds, and one kind of score."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, echo, for_each
from pfl_ops.federation.settings import Execution
from pfl_ops.spaces import MethodSpace, Space
from pfl_ops.tuning.studies.limits import NO_LIMITS, StudyLimits
from pfl_ops.tuning.studies.settings import Settings

COMMON = ("data.", "partition.", "model.", "participation.", "evaluation.", "seed", "training.rounds", "training.loss")
"""Beginnings of the paths in which methods must agree to be compared."""
SEEDS = "number of seeds per trial"
SCHEDULER = "scheduler"


def settings_of(
    experiments: Sequence[Experiment],
    space: Space | str | Path | None = None,
    limits: StudyLimits = NO_LIMITS,
    metric: str | Sequence[str] | None = None,
    mode: str | None = None,
    scheduler: str | None = None,
    hold: Collection[str] = (),
    begun: Mapping[str, Settings] = {},
    seeds_per_trial: int | None = None,
) -> dict[str, Settings]:
    """The settings of each method's study; one message has the mistakes of all methods.

    The spaces have a common part (`spaces.share`), unless `space` is one for all, or a folder without common.yaml.

    Args:
        seeds_per_trial: of each method's trials, see `tune_study.tune`.
        begun: of methods that are part of the comparison already. Those of `experiments` keep their first points: what
            was recommended by methods that came later is not tried with them, so they are not compared with these by
            a test (`leaderboard.differing`).
    Raises:
        PflOpsError: no such thing as the settings say, no methods to compare, or no single validation score.
    """
    methods = [one.algorithm.name for one in experiments]
    if not methods or len(set(methods)) < len(methods):
        raise PflOpsError(f"a benchmark compares different methods, got {', '.join(methods) or 'none'}")
    if metric is not None and not isinstance(metric, str):
        given = list(metric)
        if len(given) > 1:
            raise PflOpsError(f"a benchmark ranks methods by one metric, got {', '.join(given)}; tune one for a front")
        metric = given[0] if given else None
    if metric is not None and not metric.startswith("val/"):
        raise PflOpsError(f"a benchmark ranks methods by a validation score, such as val/L1/acc, got '{echo(metric)}'")
    common = None if isinstance(space, Space) else spaces.read_common(space)
    several = len({*methods, *begun}) > 1
    as_given = space is not None and not (several and common)
    experiment_of = dict(zip(methods, experiments, strict=True))

    def alone(method: str) -> MethodSpace:
        one = experiment_of[method]
        own = space if isinstance(space, Space) else spaces.read(space, method)
        return MethodSpace(spaces.in_unit_of(own, one, hold) if as_given else one, own)

    own_spaces = list(for_each(methods, alone).values())
    beside = [MethodSpace(each.experiment, each.space) for method, each in begun.items() if method not in methods]
    tuned, shared = spaces.share(own_spaces, common, beside) if several and common else (own_spaces, None)
    part_of = dict(zip(methods, tuned, strict=True))

    def settings(method: str) -> Settings:
        part = part_of[method]
        made = Settings.of(
            part.experiment, part.space, limits, metric, mode, scheduler, hold, shared, seeds_per_trial=seeds_per_trial
        )
        return _as_begun(made, begun.get(method))

    return for_each(methods, settings)


def _as_begun(made: Settings, begun: Settings | None) -> Settings:
    """The settings with the first points with which the study was begun, where nothing else of its space differs."""
    if begun and made.common and replace(made.space, first=begun.space.first).digest == begun.space.digest:
        return replace(made, space=begun.space, common=begun.common)
    return made


def check_fair(settings: Mapping[str, Settings]) -> None:
    """Refuse methods that would not be compared on the same terms.

    Raises:
        PflOpsError: the first setting in which two of them differ.
    """
    (first, mine), *others = ((method, _terms(each)) for method, each in settings.items())
    for method, theirs in others:
        for path in [*mine, *theirs]:
            if path.startswith((*COMMON, SEEDS, SCHEDULER)) and mine.get(path) != theirs.get(path):
                raise PflOpsError(
                    f"methods are compared on the same {path}: {first} has {mine.get(path)}, "
                    f"{method} {theirs.get(path)}"
                )


def _terms(settings: Settings) -> dict[str, Any]:
    return {**settings.experiment.flat, SEEDS: settings.seeds_per_trial, SCHEDULER: settings.scheduler}


def check_build(experiment: Experiment, data_dir: str | None, execution: Execution, label: str) -> None:
    """Refuse what a trial's first step would: data that are missing, an impossible partition or network.

    Args:
        label: begins the message.
    """
    here = execution.model_copy(update={"device": "cpu", "workers": 1, "threads": 1})
    if here.chunk is None:  # nothing is timed
        here = here.model_copy(update={"way": "loop"} if here.way == "auto" else {"chunk": 1})
    try:
        with closing(experiment.build(data_dir=data_dir, execution=here)):
            pass
    except PflOpsError as error:
        raise PflOpsError(f"{label}: {error}") from error
