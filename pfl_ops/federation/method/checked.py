"""A method whose answers are checked against the contract, and whose exceptions name it."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import torch
from torch import Tensor

import pfl_ops
from pfl_ops.errors import PflOpsError, echo, ended_by_signal, frames, in_a_line, place
from pfl_ops.federation.method.contract import ClientRows, Models, Rows, StageName, Stages, State, Task, Update
from pfl_ops.federation.method.method import Method
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.misuse import MisuseError, beyond, defined, drawn_from, dtype, kind, shared_generators
from pfl_ops.system.memory import out_of_memory

ROUNDING = 1e-4  # of a round that is run again: the norm of the difference, by that of the values
STAGES = tuple(name for name in get_args(StageName) if name != "L1")  # what `round` may return


class MethodError(PflOpsError):
    """A fault in a method's own code.

    Args:
        message: one line.
        exit_code: of the command; 2: the method can't work at all (a wrong answer in round 1), 1: it failed.
        details: the traceback of the author's own frames; "": no exception was raised, or in no file of the author's.
    """

    def __init__(self, message: str, exit_code: int = 2, details: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.details = exit_code, details


def _values(value: Tensor | Rows) -> Tensor:
    return value.values if isinstance(value, Rows) else value


def _differ(one: Tensor, other: Tensor) -> bool:
    """True if two tensors differ by more than rounding; False if the difference is not finite.

    >>> [_differ(torch.ones(2), torch.tensor([1.0, 1.0 + gap])) for gap in (1e-6, 0.01)]
    [False, True]
    """
    a, b = one.double(), other.double()
    return a.shape != b.shape or float((a - b).norm()) > ROUNDING * float(a.norm())


class CheckedMethod:
    """The same method for the engine: `init`, `round` and `personal` return what the contract says, or raise.

    Round 1 also refuses a method that writes into the state or into `task.initial`; every round refuses draws from a
    generator of the process.

    Args:
        method: as its author wrote it. Its other attributes (`cohort`, `extra`, hyper-parameters) are read through.
    Raises:
        MethodError: a method returned something else, called a verb wrongly, or raised; the message names method,
            function, file and line. An exception of the method's code is the cause, and its traceback is cut to the
            author's own frames. What tells the user something else passes through: a `PflOpsError`, too little memory,
            a full disk.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.label = str(getattr(method, "name", "") or type(method).__name__)
        self._drew_cohort = False
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
            first = name == "cohort" and not self._drew_cohort
            self._drew_cohort = self._drew_cohort or first
            before = _copies(*given[:2]) if first else None
            instead = "the generator that it gets" if name == "cohort" else "task.rng(purpose)"
            with self._calling(name, f"{name}()", instead=instead):
                answer = value(*given)
            if first:
                with self._refused(name, 0):
                    _check_unchanged(before, *given[:2])
            return answer

        return call

    def init(self, task: Task) -> State:
        with self._calling("init", "init()", instead="task.rng(purpose)"):
            s = self.method.init(task)
        with self._refused("init", 0):
            if not isinstance(s, dict) or not all(isinstance(name, str) for name in s):
                raise _Wrong(f"{kind(s)}; expected a dict of tensors by name")
            for name, value in s.items():
                if not isinstance(value, Tensor | ClientRows):
                    raise _Wrong(f"{kind(value)} as state '{echo(name)}'; expected a tensor or task.rows(...)")
        return s

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        answer = self._ask("round", f"round {r.t + 1}", s, r)
        with self._refused("round", r.t):
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise _Wrong(f"{kind(answer)}; expected (state, stages)")
            update, stages = answer
            check_update(s, update, r.cohort)
            if not isinstance(stages, Mapping):
                raise _Wrong(f"{kind(stages)} as stages; expected a dict with 'L2', 'G', or both")
            for stage, models in stages.items():
                if stage not in STAGES:
                    raise _Wrong(f"stage {echo(repr(stage))}; expected {' and '.join(map(repr, STAGES))}")
                if not callable(models):
                    check_models(models, r.task, f"as stage '{stage}'", cohort=r.cohort)
        return update, {
            stage: self._stage(models, stage, r) if callable(models) else models for stage, models in stages.items()
        }

    def personal(self, s: State, r: Round) -> Models | None:
        models: Models | None = self._ask("personal", f"personal() of round {r.t + 1}", s, r)
        if models is not None:
            with self._refused("personal", r.t):
                check_models(models, r.task, clients=r.cohort)
        return models

    def check_repeats(self, updates: Sequence[Update]) -> None:
        """Refuse updates of one round, run twice from one state, that differ by more than rounding.

        Raises:
            MethodError: such a method's runs have no result of their own, and no run goes on as it was begun.
        """
        first = {name: _values(value) for name, value in updates[0].items()}
        for name, value in ((name, _values(value)) for update in updates[1:] for name, value in update.items()):
            if name in first and _differ(first[name], value):
                raise MethodError(
                    f"method '{self.label}': round() gave another '{name}' when the same round was run again; draw by "
                    "r.rng(purpose), not by random or an own generator, and keep what changes in the state, not in a "
                    "global variable"
                )

    def _ask(self, function: str, what: str, s: State, r: Round) -> Any:
        """Return what a function of the method gives for a round, once it has written into nothing that it read."""
        before, counts = _copies(s, r.task) if r.t == 0 else None, _versions(r.task)
        with self._calling(function, what, r.t):
            answer = getattr(self.method, function)(s, r)
        with self._refused(function, r.t):
            _check_unchanged(before, s, r.task)
            _check_counts(counts, r.task)
        return answer

    def _stage(self, ask: Callable[[Tensor], Models], stage: str, r: Round) -> Callable[[Tensor], Models]:
        """A stage that is given as a function, whose answers are checked too."""

        def asked(clients: Tensor) -> Models:
            with self._calling("round", f"stage '{stage}' of round {r.t + 1}", r.t):
                models = ask(clients)
            with self._refused("round", r.t):
                check_models(models, r.task, f"from the function of stage '{stage}'", clients)
            return models

        return asked

    @contextmanager
    def _refused(self, function: str, t: int) -> Iterator[None]:
        """Turn what a check found into a message that names the function and its line."""
        try:
            yield
        except _Wrong as wrong:
            where = defined(getattr(self.method, function))
            message = f"method '{self.label}': {function}() {wrong.did} {wrong}{where}"
            raise MethodError(message, 1 if t else 2) from None

    @contextmanager
    def _calling(self, function: str, what: str, t: int = 0, instead: str = "r.rng(purpose)") -> Iterator[None]:
        """Turn an exception of the method's code into a line with its file and line, and refuse draws from a generator
        of the process: no seed of the run repeats them, and a resumed run has others.

        Args:
            function: of the method. what: is called, in the line. instead: the generator to take.
        """
        before = shared_generators()
        try:
            yield
        except MisuseError as error:
            where = "" if error.located else place(error, self._file, anywhere=True)
            raise MethodError(f"method '{self.label}': {error}{where}", 1 if t else 2, self._own(error)) from error
        except (PflOpsError, OSError):
            raise
        except BaseException as error:
            if out_of_memory(error) or ended_by_signal(error):
                raise
            message = (
                f"method '{self.label}' failed in {what}: {in_a_line(error)}{place(error, self._file, anywhere=True)}"
            )
            raise MethodError(message, 1, self._own(error)) from error
        if whose := drawn_from(before):
            with self._refused(function, t):
                raise _Wrong(f"from {whose}, which the run's seed does not set; draw by {instead}", "drew")

    def _own(self, error: BaseException) -> str:
        """Cut the error's traceback to frames of the author's code, and return it as text; "": there are none."""
        own = [frame for frame in frames(error) if self._is_own(frame.filename)]
        if not own:
            return ""
        error.__traceback__ = _only(error.__traceback__, self._is_own)
        header = f"Traceback of method '{self.label}' (most recent call last):\n"
        return header + "".join(traceback.format_list(own)) + in_a_line(error)

    def _is_own(self, file: str) -> bool:
        """True for the method's own file, and for any that is neither ours nor Python's nor of an installed package."""
        return file == self._file or not (file.startswith("<frozen ") or file.startswith(_foreign()))


@cache
def _foreign() -> tuple[str, ...]:
    """Beginnings of the paths of the package, of installed packages and of Python itself."""
    installed = sysconfig.get_paths()
    folders = {str(Path(str(pfl_ops.__file__)).parent), *(installed[k] for k in ("stdlib", "purelib", "platlib"))}
    return tuple(f"{folder}/" for folder in folders)


def _only(trace: TracebackType | None, wanted: Callable[[str], bool]) -> TracebackType | None:
    """A traceback with the frames of wanted files alone."""
    if trace is None:
        return None
    rest = _only(trace.tb_next, wanted)
    if not wanted(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class _Wrong(PflOpsError):
    """A wrong answer: the message says what was returned (or what else was `did`) and what was expected."""

    def __init__(self, message: str, did: str = "returned") -> None:
        super().__init__(message)
        self.did = did


def _copies(s: State, task: Task) -> dict[str, list[Tensor]]:
    """Copies of all that a method might write into, by name. Before the second round hardly any row is written."""
    return {name: [tensor.clone() for tensor in tensors] for name, tensors in _tensors(s, task).items()}


def _tensors(s: State, task: Task) -> dict[str, list[Tensor]]:
    found = {
        f"state '{name}'": [value.base, value.written] if isinstance(value, ClientRows) else [value]
        for name, value in s.items()
    }
    return {**found, "task.initial": [task.initial]}


def _check_unchanged(before: Mapping[str, list[Tensor]] | None, s: State, task: Task) -> None:
    """Refuse a state that was written into.

    Args:
        before: `_copies` of it; None: nothing is compared.
    """
    if before is None:
        return
    now = _tensors(s, task)
    for name in [*before, *now]:
        if name not in now or name not in before or not all(map(_same, before[name], now[name])):
            raise _Wrong(f"{name} in place; expected a new tensor in the state that round() returns", "changed")


def _versions(task: Task) -> dict[str, int]:
    """PyTorch's count of writes into each of the task's counts, which all later rounds read; no copy is made."""
    return {"task.sizes": task.sizes._version, "task.class_counts": task.class_counts._version}


def _check_counts(before: Mapping[str, int], task: Task) -> None:
    """Refuse counts of the task that were written into: a resumed run has them as they were."""
    for name, version in _versions(task).items():
        if version != before[name]:
            raise _Wrong(f"{name} in place; expected a new tensor", "changed")


def _same(one: Tensor, other: Tensor) -> bool:
    """True if no entry differs; NaN equals NaN."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def check_update(s: State, update: object, cohort: Tensor | None = None) -> None:
    """Refuse what a round may not change: another name, kind, shape, dtype or device than `init` made, other clients.

    Args:
        s: the state.
        update: what `round` returned as state.
        cohort: the only clients whose rows may change, [C]; None: any of the federation.
    """
    if not isinstance(update, Mapping):
        raise _Wrong(f"{kind(update)} as state; expected a dict of what changed")
    for name, value in update.items():
        old, what = s.get(name), f"as state {echo(repr(name))}"
        if old is None:
            raise _Wrong(f"{kind(value)} {what}, which init() did not make; it made {', '.join(s) or 'none'}")
        if isinstance(old, ClientRows):
            if not isinstance(value, Rows) or not isinstance(value.values, Tensor):
                raise _Wrong(f"{kind(value)} {what}; expected Rows(clients, values)")
            who, shape = value.clients, tuple(value.values.shape[1:])
            if not isinstance(who, Tensor) or who.dtype != torch.int64 or who.dim() != 1:
                raise _Wrong(f"{kind(who)} as the clients of state '{name}'; expected int64 [C]")
            if wrong := beyond(who, old.n):
                raise _Wrong(f"clients {wrong} {what}; there are 0 to {old.n - 1}")
            if len(who.unique()) < len(who):
                raise _Wrong(f"a client twice {what}; expected each client once")
            if cohort is not None and not bool(torch.isin(who, cohort.to(who.device)).all()):
                expected = f"expected those of the cohort, {echo(cohort.tolist())}: Rows(r.cohort, values)"
                raise _Wrong(f"Rows of clients {echo(who.tolist())} {what}; {expected}")
            if value.values.dim() == 0 or len(value.values) != len(who):
                raise _Wrong(f"{kind(value.values)} {what} for {len(who)} clients; expected a row each")
            if shape != tuple(old.base.shape) or value.values.dtype != old.dtype:
                expected = f"{list(old.base.shape)} {dtype(old.base)}"
                raise _Wrong(f"rows {list(shape)} {dtype(value.values)} {what}; expected {expected}, as in init()")
        elif not isinstance(value, Tensor):
            raise _Wrong(f"{kind(value)} {what}; expected a tensor, as in init()")
        elif (value.shape, value.dtype, value.device) != (old.shape, old.dtype, old.device):
            raise _Wrong(f"{kind(value)} {what}; expected {kind(old)}, as in init()")


def check_models(
    models: object, task: Task, what: str = "", clients: Tensor | None = None, cohort: Tensor | None = None
) -> None:
    """Refuse what can't be scored: no `Models`, rows of another length, dtype or device, clients without a row.

    `ctx` must have a row for each client, in the order of the models: rows of all N clients would be taken by position.

    Args:
        models: what the method gave. task: for the length of a model. what: where it stands, in the message.
        clients: who was asked for, [C]. cohort: the models belong to some of these clients, [C]; another number would
            score a model on another client's data.
    """
    what = f" {what}" if what else ""
    if not isinstance(models, Models):
        raise _Wrong(f"{kind(models)}{what}; expected Models")
    rows, who = models.params, models.clients
    if not isinstance(rows, Tensor) or rows.dim() != (1 if who is None else 2):
        form = "[P], one model for all" if who is None else "[C, P], a row a client"
        raise _Wrong(f"Models with {kind(rows)}{what}; expected {form}")
    if who is not None and (not isinstance(who, Tensor) or who.dtype != torch.int64 or who.shape != rows.shape[:1]):
        raise _Wrong(f"Models of {len(rows)} rows with clients {kind(who)}{what}; expected int64 [{len(rows)}]")
    if who is not None and clients is not None and sorted(who.tolist()) != sorted(clients.tolist()):
        expected = f"expected those asked for, {echo(clients.tolist())}"
        raise _Wrong(f"Models of clients {echo(who.tolist())}{what}; {expected}")
    if who is not None and cohort is not None and not set(who.tolist()) <= set(cohort.tolist()):
        expected = f"expected those of the cohort, {echo(cohort.tolist())}"
        raise _Wrong(f"Models of clients {echo(who.tolist())}{what}; {expected}")
    if who is not None and len(who.unique()) < len(who):
        raise _Wrong(f"Models of clients {echo(who.tolist())}{what}; expected each client once")
    for name, value in models.ctx.items():
        if not isinstance(value, Tensor):
            raise _Wrong(f"Models with {kind(value)} as ctx {echo(repr(name))}{what}; expected a tensor")
        if who is not None and value.shape[:1] != rows.shape[:1]:
            each = f"a row each for these {len(rows)} clients: s[...][r.cohort]"
            raise _Wrong(f"Models with {kind(value)} as ctx {echo(repr(name))}{what}; expected {each}")
    if models.predict is None and models.ctx:
        names = ", ".join(models.ctx)
        raise _Wrong(f"Models with ctx {echo(names)}{what} and no predict, which alone reads it; expected both or none")
    like = task.initial
    if models.predict is None and (rows.shape[-1] != len(like) or rows.dtype != like.dtype):
        raise _Wrong(f"Models with {kind(rows)}{what}; expected P = {len(like)} and {dtype(like)}")
    if rows.device != like.device:
        raise _Wrong(f"Models with {kind(rows)}{what}; expected them on {like.device}")
