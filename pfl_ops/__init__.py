"""pfl-ops: which personalised federated method, with which settings, serves these clients best, and is that claim true?

The door for notebooks and scripts; every name is imported when it is first used:

    from pfl_ops import Experiment, run, repeat, tune, benchmark, compare, register

    result = run(Experiment.of("fliu", dataset="digits", partition="path"))
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment as Experiment
    from pfl_ops.jobs.repeat import repeat as repeat
    from pfl_ops.reports.comparison.compare import compare as compare
    from pfl_ops.runs import run as run
    from pfl_ops.tuning import tune as tune
    from pfl_ops.tuning.commands.benchmark import benchmark as benchmark

    __version__: str

T = TypeVar("T")

_WHERE = {
    "Experiment": "pfl_ops.config.experiment",
    "run": "pfl_ops.runs",
    "tune": "pfl_ops.tuning",
    "benchmark": "pfl_ops.tuning.commands.benchmark",
    "repeat": "pfl_ops.jobs.repeat",
    "compare": "pfl_ops.reports.comparison.compare",
}


def register(name: str) -> Callable[[T], T]:
    """Decorator: a method, a network, a loss or a partition of your own is known by `name` from now on.

    A subclass of `algorithms.base.Algorithm` is a method, an `nn.Module` class a network (`models.register` says what
    it must have), a function of four arguments a loss (`federation.losses.register`), one of two a partition
    (`data.partition.partition`).

        @register("halves")
        def halves(labels, n_clients, *, rng): ...

        @register("squared")
        def squared(net, w, x, y):
            return (net(w, x)[:, 0] - y).square()

    Raises:
        PflOpsError: the name is taken, or the thing is none of the four.
    """

    def decorate(thing: T) -> T:
        kind: Callable[[str], Callable[[Any], Any]] | None = None
        if isinstance(thing, type):
            from torch import nn

            from pfl_ops.algorithms import base
            from pfl_ops.models import register as network

            if issubclass(thing, base.Algorithm):
                kind = base.register
            elif issubclass(thing, nn.Module):
                kind = network
        elif callable(thing):
            from pfl_ops.data.partition import partition
            from pfl_ops.federation import losses

            arguments = losses.positional(thing)
            kind = losses.register if arguments == 4 else partition if arguments <= 2 else None
        if kind is None:
            from pfl_ops.errors import PflOpsError

            what = getattr(thing, "__name__", repr(thing))
            raise PflOpsError(
                f"register('{name}'): {what} is no Algorithm, no nn.Module class, no loss(net, w, x, y) and no "
                "partition(labels, n_clients)"
            )
        registered: T = kind(name)(thing)
        return registered

    return decorate


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("pfl-ops")
        except PackageNotFoundError:  # the checkout itself, not installed
            value = "0+source"
    else:
        raise AttributeError(f"module 'pfl_ops' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_WHERE, "register", "__version__"]


__all__ = ["Experiment", "__version__", "benchmark", "compare", "register", "repeat", "run", "tune"]
