"""The terms on which methods are compared: the same data, clients, network, rounds and seeds, and one kind of score."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pfl_ops.algorithms.base import Algorithm
from pfl_ops.errors import PflOpsError, echo, together
from pfl_ops.experiment import Experiment
from pfl_ops.spaces import Space
from pfl_ops.tuning.begin import Means
from pfl_ops.tuning.settings import Settings

COMMON = ("data.", "partition.", "model.", "participation.", "evaluation.", "seed", "training.rounds", "training.loss")
"""Beginnings of the paths in which methods must agree to be compared."""


def settings_of(
    experiments: Sequence[Experiment],
    space: Space | str | Path | None = None,
    trials: int | None = None,
    metric: str | Sequence[str] | None = None,
    mode: str | None = None,
    scheduler: str | None = None,
    hold: Collection[str] = (),
) -> dict[str, Settings]:
    """The settings of each method's study; the mistakes of all methods are told together.

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
    found: dict[str, Settings] = {}
    wrong: dict[str, str] = {}
    for one, method in zip(experiments, methods, strict=True):
        try:
            made = Settings.of(one, space, trials, metric, mode, scheduler, hold)
            if made.objective.stages == ("L1",) and type(one.algorithm).personal is Algorithm.personal:
                raise PflOpsError(f"{made.objective.metrics[0]}: {method} leaves no model with clients")
            found[method] = made
        except PflOpsError as error:
            wrong[method] = str(error)
    if wrong:
        raise together(wrong)
    return found


def check_fair(settings: Mapping[str, Settings]) -> None:
    """Refuse methods that would not be compared on the same terms.

    Raises:
        PflOpsError: the first setting in which two of them differ.
    """
    (first, mine), *others = ((method, each.experiment.flat) for method, each in settings.items())
    for method, theirs in others:
        for path in [*mine, *theirs]:
            if path.startswith(COMMON) and mine.get(path) != theirs.get(path):
                raise PflOpsError(
                    f"methods are compared on the same {path}: {first} has {mine.get(path)}, "
                    f"{method} {theirs.get(path)}"
                )


def check_builds(settings: Settings, means: Means) -> None:
    """Refuse what a trial's first step would: data that are missing, an impossible partition or network."""
    here = means.execution.model_copy(update={"device": "cpu", "workers": 1, "threads": 1})
    here = here.model_copy(update={"way": "loop" if here.way == "auto" else here.way, "chunk": here.chunk or 1})
    try:
        with closing(settings.experiment.build(data_dir=means.data_dir, execution=here)):
            pass
    except PflOpsError as error:
        raise PflOpsError(f"{settings.experiment.algorithm.name}: {error}") from error
