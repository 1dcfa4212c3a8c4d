"""Imports of every method's file: the base class of its hyper-parameters, `register`, and the engine's contract."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.batch import Batch
from pfl_ops.federation.method.contract import (
    ClientRows,
    Layout,
    Loss,
    Models,
    Net,
    Predict,
    Rows,
    Share,
    Stage,
    StageName,
    Stages,
    State,
    Task,
    Update,
)
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.misuse import MisuseError
from pfl_ops.section import Section

_FUNCTIONS = {"init": ("self", "task"), "round": ("self", "s", "r"), "personal": ("self", "s", "r")}
_REMEMBER = "what a method remembers belongs into its state, which init() makes and round() returns"


class Algorithm(Section, ABC):
    """A method: its hyper-parameters as fields, its equation as `init`, `round` and `personal`.

    A hyper-parameter is `name: type = Field(default, <bounds>, title=<the paper's symbol>, description=<meaning>)`:
    `show`, `--help`, `--set` and the search spaces' check read it from there. The class docstring is what `show`
    prints, so it holds, in this order: one line saying what the method is; the equation of a round in the project's
    notation (Θ, θ_k, v_k, p_k, η, E, J, B); `State:` names, shapes and meaning; `Stages:` what L1, L2, G are; `Sent:`
    models down and up; `Source:` authors, title, venue, number of the algorithm; `Deviations:` what differs, or none.

    Attributes:
        name: how the method is called; set by `register`, and the first key of every dump.
        recommended: {path: value} for the experiment, weaker than presets, files and flags.
        requires: {path: value, or a tuple of values, or ... for anything but none} without which the method is not
            itself; an experiment that differs is refused.
        because: why, in a few words; shown in brackets behind that refusal.
        ignores: paths of the experiment's settings that have no effect on the method; a comparison does not vary them.
            Where these, or `requires`, depend on an option, a method overrides `ignored` or `required`.
        ignores_with_all: paths that have no effect where every client takes part in every round.
        added: {option: value} of options that the method got later, with the value that all runs before had: an
            experiment that has it keeps the hash of these runs (see `code.former.EQUAL`, too).
        own_stage: where a client's own model is scored, which is what tuning looks at. L1 of most methods: the model
            that a client keeps, or starts its next training from. L2 where clients adapt a copy that they drop again
            (fine-tuning, a meta-learning step). G where there are no clients.
    """

    name: ClassVar[str] = ""
    recommended: ClassVar[Mapping[str, Any]] = {}
    requires: ClassVar[Mapping[str, Any]] = {}
    because: ClassVar[str] = ""
    ignores: ClassVar[tuple[str, ...]] = ()
    ignores_with_all: ClassVar[tuple[str, ...]] = ()
    added: ClassVar[Mapping[str, Any]] = {}
    own_stage: ClassVar[StageName] = "L1"

    @abstractmethod
    def init(self, task: Task) -> State:
        """The state before round 1: a dict of tensors and `task.rows(...)`; no key may appear later."""

    @abstractmethod
    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        """One round for the cohort `r.cohort`.

        Args:
            s: the state; never written into.
            r: the engine's verbs for this round (train, walk, sweep, weights, rng, ...).
        Returns:
            what changed, whole tensors or `Rows`, names, shapes and dtypes as in `init`; and the stages "L2" and "G".
            A copy of the new model that clients adapt and drop is L2, as a function clients -> `Models`.
        """

    def personal(self, s: State, r: Round) -> Models | None:
        """L1: what the clients in `r.cohort`, any chunk of all, hold once the round is over; None: no such stage.

        That is the model that a client keeps or starts its next training from. `personal` may train to make it
        (alignment, a learnt mixture), by every verb of `r`; it never changes state, and its draws move no training.
        """
        return None

    def required(self) -> Mapping[str, Any]:
        """Return what the method requires with these hyper-parameters: `requires`, and what an option adds to it."""
        return self.requires

    def ignored(self) -> tuple[str, ...]:
        """Return the paths without effect under these hyper-parameters: `ignores`, unless an option changes them."""
        return self.ignores

    def extra(self, task: Task) -> Mapping[str, tuple[int, ...]]:
        """Blocks added to the layout before `init`: {name: shape} of an extra exit or head."""
        return {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise MisuseError(
                f"self.{name} is set, a hyper-parameter; experiment.override({{'algorithm.{name}': ...}}) returns an "
                f"experiment with another value; {_REMEMBER}"
            )
        raise MisuseError(f"self.{name} is set, which a resumed run does not know; {_REMEMBER}")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__private_attributes__:
            name = next(iter(cls.__private_attributes__))
            raise PflOpsError(
                f"method {cls.__name__} has a private attribute, {name}, which a resumed run does not know; {_REMEMBER}"
            )

    @model_validator(mode="before")
    @classmethod
    def _own_name(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "name" in values:
            if values["name"] != cls.name:
                raise ValueError(f"these are hyper-parameters of '{values['name']}', not of '{cls.name}'")
            return {key: value for key, value in values.items() if key != "name"}
        return values

    @model_serializer(mode="wrap")
    def _name_first(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.name, **dump(self)}


A = TypeVar("A", bound=Algorithm)


def register(name: str) -> Callable[[type[A]], type[A]]:
    """Class decorator: `pfl-ops run <name>` runs the method.

    Raises:
        PflOpsError: the name is taken, the class is no `Algorithm`, or lacks a function or one of its arguments.

    >>> from pfl_ops.testing import quadratic
    >>> @register("example_sgd")
    ... class Example(Algorithm):
    ...     def init(self, task):
    ...         return {"central": task.initial}
    ...     def round(self, s, r):
    ...         return {"central": r.weights @ r.train(s["central"])}, {}
    >>> quadratic(Example(), centres=[0.0, 6.0], sizes=[1, 3], start=2.0, rounds=1)["central"].tolist()
    [3.25]
    """

    def decorate(cls: type[A]) -> type[A]:
        _check_class(name, cls)
        ALGORITHMS.add(name, cls)
        cls.name = name
        return cls

    return decorate


def _check_class(name: str, cls: object) -> None:
    """Refuse what can't be a method, when it is registered: a run would end in an error of Python's own.

    Raises:
        PflOpsError: the class is no `Algorithm`, or lacks a function or one of its arguments.
    """
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        what = getattr(cls, "__name__", repr(cls))
        raise PflOpsError(
            f"register('{name}'): {what} must be a subclass of pfl_ops.algorithms.base.Algorithm; losses, networks and "
            "partitions are registered by pfl_ops.register"
        )
    for function, arguments in _FUNCTIONS.items():
        written = inspect.getattr_static(cls, function)
        right = f"{function}({', '.join(arguments)})"
        if getattr(written, "__isabstractmethod__", False):
            raise PflOpsError(f"method '{name}' has no {function}(); a method needs {right}")
        if not inspect.isfunction(written):
            continue
        signature = inspect.signature(written)
        try:
            signature.bind(*arguments)
        except TypeError:
            raise PflOpsError(f"method '{name}' has {function}{signature}; the engine calls {right}") from None


__all__ = [
    "Algorithm",
    "Batch",
    "ClientRows",
    "Field",
    "Layout",
    "Loss",
    "Method",
    "Models",
    "Net",
    "Predict",
    "Round",
    "Rows",
    "Share",
    "Stage",
    "StageName",
    "Stages",
    "State",
    "Task",
    "Update",
    "register",
]
