"""A method whose answers are checked against the contract, and whose exceptions name it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from pfl_ops.errors import PflOpsError, echo, in_a_line, place
from pfl_ops.federation.contract import ClientRows, Method, Models, Rows, StageName, Stages, State, Task, Update
from pfl_ops.federation.memory import out_of_memory
from pfl_ops.federation.round import Round

STAGES = tuple(name for name in get_args(StageName) if name != "L1")  # what `round` may return


class MethodError(PflOpsError):
    """A fault in a method's own code.

    Args:
        message: one line.
        exit_code: of the command; 2: the method can't work at all (a wrong answer in round 1), 1: it failed.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CheckedMethod:
    """The same method for the engine: `init`, `round` and `personal` return what the contract says, or raise.

    Args:
        method: as its author wrote it. Its other attributes (`cohort`, `extra`, hyper-parameters) are read through.
    Raises:
        MethodError: a method returned something else, or raised; the message names method, function, file and line.
            What tells the user something else passes through: a `PflOpsError`, too little memory, a full disk.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.label = str(getattr(method, "name", "") or type(method).__name__)
        try:
            self._file = inspect.getsourcefile(type(method))
        except (TypeError, OSError):  # of a notebook's cell
            self._file = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.method, name)
        if name not in ("cohort", "extra"):
            return value

        @wraps(value)
        def call(*given: Any) -> Any:
            with self._named(f"{name}()"):
                return value(*given)

        return call

    def init(self, task: Task) -> State:
        with self._named("init()"):
            s = self.method.init(task)
        with self._refused("init", 0):
            if not isinstance(s, dict) or not all(isinstance(name, str) for name in s):
                raise _Wrong(f"{_kind(s)}; expected a dict of tensors by name")
            for name, value in s.items():
                if not isinstance(value, Tensor | ClientRows):
                    raise _Wrong(f"{_kind(value)} as state '{echo(name)}'; expected a tensor or task.rows(...)")
        return s

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        with self._named(f"round {r.t + 1}"):
            answer = self.method.round(s, r)
        with self._refused("round", r.t):
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise _Wrong(f"{_kind(answer)}; expected (state, stages)")
            update, stages = answer
            check_update(s, update)
            if not isinstance(stages, Mapping):
                raise _Wrong(f"{_kind(stages)} as stages; expected a dict with 'L2', 'G', or both")
            for stage, models in stages.items():
                if stage not in STAGES:
                    raise _Wrong(f"stage {echo(repr(stage))}; expected {' and '.join(map(repr, STAGES))}")
                if not callable(models):
                    check_models(models, r.task, f"as stage '{stage}'")
        return update, {
            stage: self._stage(models, stage, r) if callable(models) else models for stage, models in stages.items()
        }

    def personal(self, s: State, r: Round) -> Models | None:
        with self._named(f"personal() of round {r.t + 1}"):
            models = self.method.personal(s, r)
        if models is not None:
            with self._refused("personal", r.t):
                check_models(models, r.task)
        return models

    def _stage(self, ask: Callable[[Tensor], Models], stage: str, r: Round) -> Callable[[Tensor], Models]:
        """A stage that is given as a function, whose answers are checked too."""

        def asked(clients: Tensor) -> Models:
            with self._named(f"stage '{stage}' of round {r.t + 1}"):
                models = ask(clients)
            with self._refused("round", r.t):
                check_models(models, r.task, f"from the function of stage '{stage}'")
            return models

        return asked

    @contextmanager
    def _refused(self, function: str, t: int) -> Iterator[None]:
        """Turn what a check found into a message that names the function and its line."""
        try:
            yield
        except _Wrong as wrong:
            code = getattr(getattr(self.method, function), "__code__", None)
            where = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
            message = f"method '{self.label}': {function}() returned {wrong}{where}"
            raise MethodError(message, 1 if t else 2) from None

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn an exception of the method's code into a line with its file and line."""
        try:
            yield
        except (PflOpsError, OSError):
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            message = (
                f"method '{self.label}' failed in {what}: {in_a_line(error)}{place(error, self._file, anywhere=True)}"
            )
            raise MethodError(message, 1) from error


class _Wrong(PflOpsError):
    """A wrong answer: the message says what was returned and what was expected."""


def check_update(s: State, update: object) -> None:
    """Refuse what a round may not change: another name, kind, shape or dtype than `init` made, or unknown clients.

    Args:
        s: the state.
        update: what `round` returned as state.
    """
    if not isinstance(update, Mapping):
        raise _Wrong(f"{_kind(update)} as state; expected a dict of what changed")
    for name, value in update.items():
        old, what = s.get(name), f"as state {echo(repr(name))}"
        if old is None:
            raise _Wrong(f"{_kind(value)} {what}, which init() did not make; it made {', '.join(s) or 'none'}")
        if isinstance(old, ClientRows):
            if not isinstance(value, Rows) or not isinstance(value.values, Tensor):
                raise _Wrong(f"{_kind(value)} {what}; expected Rows(clients, values)")
            who, shape = value.clients, tuple(value.values.shape[1:])
            if not isinstance(who, Tensor) or who.dtype != torch.int64 or who.dim() != 1:
                raise _Wrong(f"{_kind(who)} as the clients of state '{name}'; expected int64 [C]")
            if len(who) and not 0 <= int(who.min()) <= int(who.max()) < old.n:
                raise _Wrong(f"clients {int(who.min())} to {int(who.max())} {what}; there are 0 to {old.n - 1}")
            if value.values.dim() == 0 or len(value.values) != len(who):
                raise _Wrong(f"{_kind(value.values)} {what} for {len(who)} clients; expected a row each")
            if shape != tuple(old.base.shape) or value.values.dtype != old.dtype:
                expected = f"{list(old.base.shape)} {_dtype(old.base)}"
                raise _Wrong(f"rows {list(shape)} {_dtype(value.values)} {what}; expected {expected}, as in init()")
        elif not isinstance(value, Tensor):
            raise _Wrong(f"{_kind(value)} {what}; expected a tensor, as in init()")
        elif value.shape != old.shape or value.dtype != old.dtype:
            raise _Wrong(f"{_kind(value)} {what}; expected {_kind(old)}, as in init()")


def check_models(models: object, task: Task, what: str = "") -> None:
    """Refuse what can't be scored: no `Models`, rows of another length or dtype, clients without a row.

    Args:
        models: what the method gave. task: for the length of a model. what: where it stands, in the message.
    """
    what = f" {what}" if what else ""
    if not isinstance(models, Models):
        raise _Wrong(f"{_kind(models)}{what}; expected Models")
    rows, who = models.params, models.clients
    if not isinstance(rows, Tensor) or rows.dim() != (1 if who is None else 2):
        form = "[P], one model for all" if who is None else "[C, P], a row a client"
        raise _Wrong(f"Models with {_kind(rows)}{what}; expected {form}")
    if who is not None and (not isinstance(who, Tensor) or who.dtype != torch.int64 or who.shape != rows.shape[:1]):
        raise _Wrong(f"Models of {len(rows)} rows with clients {_kind(who)}{what}; expected int64 [{len(rows)}]")
    like = task.initial
    if models.predict is None and (rows.shape[-1] != len(like) or rows.dtype != like.dtype):
        expected = f"P = {len(like)} and {_dtype(like)}"
        raise _Wrong(f"Models with {_kind(rows)}{what}; expected {expected}")


def _kind(value: object) -> str:
    """A value as a message names it: None, a tensor's dtype and shape, or its type."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a {_dtype(value)} tensor {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


__all__ = ["CheckedMethod", "MethodError", "check_models", "check_update"]
