"""Arguments of the functions for notebooks: a wrong one is refused in one line, which says what is right."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.fields import kinds_with
from pfl_ops.config.paths import LIST_SETTINGS
from pfl_ops.errors import PflOpsError, did_you_mean, echo, nearest

P = ParamSpec("P")
T = TypeVar("T")


class ArgumentError(PflOpsError, TypeError):
    """A keyword argument that does not exist, or something else in place of an experiment."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: raise `ArgumentError` for a keyword that the function does not have, or what is no experiment.

    >>> @checked
    ... def load(data_dir=None): ...
    >>> load(datadir="data")
    Traceback (most recent call last):
    pfl_ops.config.arguments.ArgumentError: load() has no argument 'datadir'. Did you mean 'data_dir'?
    >>> load(rounds=3)
    Traceback (most recent call last):
    pfl_ops.config.arguments.ArgumentError: load() has no argument 'rounds'. It is a setting: ...
    >>> @checked
    ... def train(experiment): ...
    >>> train("ditto")
    Traceback (most recent call last):
    pfl_ops.config.arguments.ArgumentError: train() takes an Experiment, got 'ditto': train(Experiment.of("ditto", ...))
    """
    names = inspect.signature(function).parameters
    first = next(iter(names), "")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in names:
                raise ArgumentError(f"{function.__name__}() has no argument '{echo(name)}'.{_hint(name, names)}")
        if first in ("experiment", "experiments"):
            given = args[0] if args else kwargs.get(first)
            if given is not None or names[first].default is not None:
                _check_experiments(function.__name__, first, given)
        _check_execution(function.__name__, kwargs.get("execution"))
        if isinstance(folder := kwargs.get("data_dir"), Path):
            kwargs["data_dir"] = str(folder)
        return function(*args, **kwargs)

    return call


def _check_experiments(function: str, argument: str, given: Any) -> None:
    """Refuse all but experiments: names of methods, say, or a list where one is asked for."""
    from pfl_ops.config.experiment import Experiment

    several = argument == "experiments"
    if several and isinstance(given, (list, tuple)):
        wrong = [one for one in given if not isinstance(one, Experiment)]
    else:
        wrong = [] if isinstance(given, Experiment) and not several else [given]
    for one in wrong[:1]:
        from pfl_ops.federation.misuse import kind  # with torch

        name = f'"{echo(one)}", ' if isinstance(one, str) else ""
        got = f"'{echo(one)}'" if name else f"the class {one.__name__}" if isinstance(one, type) else kind(one)
        wanted, right = "an Experiment", f"Experiment.of({name}...)"
        if several:
            wanted, right = "Experiments", f"[{right}, ...]"
        raise ArgumentError(f"{function}() takes {wanted}, got {got}: {function}({right})")


def _check_execution(function: str, given: Any) -> None:
    """Refuse a device's name, say, in place of an `Execution`."""
    if given is None:
        return
    from pfl_ops.federation.settings import Execution

    if not isinstance(given, Execution):
        from pfl_ops.federation.misuse import kind  # with torch

        got, device = (f"'{echo(given)}'", given) if isinstance(given, str) else (kind(given), "cpu")
        right = f'{function}(..., execution=Execution(device="{echo(device)}"))'
        raise ArgumentError(f"{function}() takes an Execution, got {got}: {right}, of pfl_ops.federation.settings")


def _hint(name: str, names: Iterable[str]) -> str:
    from pfl_ops.config.experiment import FLAGS

    if name in FLAGS:
        return f" It is a setting: Experiment.of(..., {name}=...)"
    return did_you_mean(name, names, otherwise=f" It has: {', '.join(names)}.")


def unknown_setting(algorithm: str, name: str, short: Mapping[str, Any], paths: Iterable[str]) -> ArgumentError:
    """Return the error for a keyword that names no setting of an experiment.

    A setting's last name is enough to find its path ("beta": "algorithm.beta"), of the method before all others.

    Args:
        algorithm: the method. name: the keyword.
        short: short names of settings. paths: of all settings but the method's.
    """
    own = [f"algorithm.{field}" for field in ALGORITHMS.get(algorithm).model_fields if field != "name"]
    found = {path.rpartition(".")[2]: path for path in [*paths, *own]} | {flag: flag for flag in short}
    see = f" (pfl-ops show {algorithm})"
    start = f"no setting named '{echo(name)}'."
    if name not in found and (owners := kinds_with(ALGORITHMS, name)):
        have = "has" if len(owners) == 1 else "have"
        return ArgumentError(f"{start} {algorithm} has no {name}; {', '.join(owners)} {have} it{see}")
    close = name if name in found else nearest(name, found)
    if close is None:
        return ArgumentError(
            f"{start} Short names: {', '.join(short)}; all others are paths ({LIST_SETTINGS}, pfl-ops show {algorithm})"
        )
    path = found[close]
    see = see if path.startswith("algorithm.") else f" ({LIST_SETTINGS})"
    form = f", as **{{'{path}': ...}}" if "." in path else ""
    return ArgumentError(f"{start} Did you mean '{path}'{form}?{see}")
