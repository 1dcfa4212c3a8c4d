"""A method's answers against the contract, and what becomes of a run whose method fails."""

import random
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from little import Puppet, always, simulation
from pydantic import PrivateAttr
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_ops.algorithms.base import Algorithm
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.checked import CheckedMethod, MethodError, check_models, check_update
from pfl_ops.federation.method.contract import ClientRows, Models, Net, Rows, Share
from pfl_ops.federation.misuse import drawn_from, shared_generators
from pfl_ops.federation.settings import Execution
from pfl_ops.testing import quadratic_round


class Breaks(Puppet):
    """A `Puppet` whose round t, from 0, ends in `answer(update, stages)`."""

    def __init__(self, t: int, answer: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.t, self.answer = t, answer

    def round(self, s: Any, r: Any) -> Any:
        update, stages = super().round(s, r)
        return self.answer(update, stages) if r.t == self.t else (update, stages)


def raises(error: BaseException) -> Callable[[Any, Any], Any]:
    def answer(update: Any, stages: Any) -> Any:
        raise error

    return answer


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "returned None; expected (state, stages)": lambda update, stages: None,
    "returned a tuple of 3": lambda update, stages: (update, stages, {}),
    "returned a dict; expected (state, stages)": lambda update, stages: update,
    "returned None as state; expected a dict": lambda update, stages: (None, stages),
    "returned None as stages; expected a dict": lambda update, stages: (update, None),
    "which init() did not make; it made rounds": lambda update, stages: ({"x": torch.ones(1)}, stages),
    "expected Rows(clients, values)": lambda update, stages: ({"rounds": torch.ones(4)}, stages),
    "rows [2] float64 as state 'rounds'; expected [] float64": lambda update, stages: (
        {"rounds": Rows(torch.arange(2), torch.ones(2, 2, dtype=torch.float64))},
        stages,
    ),
    "rows [] float32 as state 'rounds'; expected [] float64": lambda update, stages: (
        {"rounds": Rows(torch.arange(2), torch.ones(2))},
        stages,
    ),
    "for 3 clients; expected a row each": lambda update, stages: (
        {"rounds": Rows(torch.arange(3), torch.ones(2, dtype=torch.float64))},
        stages,
    ),
    "clients -1 to 1 as state 'rounds'; there are 0 to 3": lambda update, stages: (
        {"rounds": Rows(torch.tensor([1, -1]), torch.ones(2, dtype=torch.float64))},
        stages,
    ),
    "as the clients of state 'rounds'; expected int64 [C]": lambda update, stages: (
        {"rounds": Rows(torch.ones(2), torch.ones(2, dtype=torch.float64))},
        stages,
    ),
    "returned stage 'L3'; expected 'L2' and 'G'": lambda update, stages: (update, {"L3": stages["G"]}),
    "a float64 tensor [9] as stage 'G'; expected Models": lambda update, stages: (update, {"G": stages["G"].params}),
    "expected P = 9 and float64": lambda update, stages: (update, {"G": Models(stages["G"].params.float())}),
    "expected [P], one model for all": lambda update, stages: (update, {"G": Models(stages["L2"].params)}),
    "expected [C, P], a row a client": lambda update, stages: (
        update,
        {"L2": Models(stages["G"].params, torch.arange(9))},
    ),
    "a client twice as state 'rounds'; expected each client once": lambda update, stages: (
        {"rounds": Rows(torch.tensor([1, 1]), torch.ones(2, dtype=torch.float64))},
        stages,
    ),
    "a float64 tensor [9] on meta as stage 'G'; expected them on cpu": lambda update, stages: (
        update,
        {"G": Models(stages["G"].params.to("meta"))},
    ),
    "Models of clients [0, 1, 2] from the function of stage 'G'; expected those asked for, [0, 1, 2, 3]": (
        lambda update, stages: (update, {"G": lambda clients: Models(stages["L2"].params[:3], torch.arange(3))})
    ),
    "expected int64 [4]": lambda update, stages: (update, {"L2": Models(stages["L2"].params, torch.arange(3))}),
    "returned None from the function of stage 'G'": lambda update, stages: (update, {"G": lambda clients: None}),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_answer_in_round_1_leaves_no_folder(message: str, tmp_path: Path) -> None:
    """The message names method, function and line; with exit code 2 the checkpoint of the start goes too."""
    run = simulation(Breaks(0, WRONG[message]), folder=tmp_path / "run", evaluation={"global_every": 1})
    with pytest.raises(MethodError) as caught:
        list(run.run())
    text = str(caught.value)
    line = Breaks.round.__code__.co_firstlineno
    assert text.startswith("method 'Breaks': round() returned ") and text.endswith(f" (test_checked.py:{line})")
    assert message in text and "\n" not in text
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


class Bare(Puppet):
    """A `Puppet` without L1."""

    def personal(self, s: Any, r: Any) -> Any:
        return None


def test_method_without_any_model_to_score_is_refused(tmp_path: Path) -> None:
    """Its run would end with an empty table; with G alone it has one."""

    class Nothing(Bare):
        def round(self, s: Any, r: Any) -> Any:
            return super().round(s, r)[0], {}

    with pytest.raises(
        MethodError, match=r"^method 'Nothing': round\(\) returned no stage and personal\(\) None, "
    ) as e:
        list(simulation(Nothing(), folder=tmp_path / "run").run())
    assert e.value.exit_code == 2 and not (tmp_path / "run").exists()
    assert "test/G/local/mean" in list(simulation(Bare()).run())[-1].metrics


def test_stage_that_the_last_round_lacks_is_named(tmp_path: Path) -> None:
    """G in rounds 1 and 2 of three: the final scores have none, and a line says so, when the run is read too."""

    class Forgets(Puppet):
        def round(self, s: Any, r: Any) -> Any:
            update, stages = super().round(s, r)
            return update, {name: models for name, models in stages.items() if name == "L2" or r.t < 2}

    line = "the last round had no stage G, so the final scores have none; round 2 had one"
    for _ in range(2):
        run = simulation(Forgets(), rounds=3, folder=tmp_path)
        list(run.run())
        assert run.complaints == [line] and "final/test/L1/local/mean" in run.final
    whole = simulation(Puppet(), rounds=3)
    list(whole.run())
    assert whole.complaints == []


def test_start_of_another_length_names_method_and_line() -> None:
    """A start [3] ends within the first parameter, fc.weight."""

    class Short(Algorithm):
        """A method that trains three numbers."""

        def init(self, task: Any) -> Any:
            return {"central": task.initial}

        def round(self, s: Any, r: Any) -> Any:
            return r.train(s["central"][:3])

    line = Short.round.__code__.co_firstlineno + 1
    expected = rf"^method '.*': columns 0:3 cut through a parameter .*r\.layout: .* \(test_checked\.py:{line}\)$"
    with pytest.raises(MethodError, match=expected) as caught:
        list(simulation(Short()).run())
    assert caught.value.exit_code == 2


def test_wrong_answer_later_keeps_finished_rounds(tmp_path: Path) -> None:
    """Round 2 breaks the contract: exit code 1, the start and round 1 are kept, and a mended method goes on."""
    with pytest.raises(MethodError, match=r"round\(\) returned None") as caught:
        list(simulation(Breaks(1, lambda update, stages: None), rounds=3, folder=tmp_path).run())
    assert caught.value.exit_code == 1
    mended = simulation(Breaks(9, raises(ValueError())), rounds=3, folder=tmp_path)
    assert mended.resumed_from == 1
    assert [record.round for record in mended.run()] == [0, 1, 2, 3]


@pytest.mark.parametrize("t", [0, 2])
def test_exception_names_round_and_line_with_exit_code_1(t: int, tmp_path: Path) -> None:
    """The innermost line of the method's own file; the exception is the cause, which --debug shows."""
    with pytest.raises(MethodError) as caught:
        list(simulation(Breaks(t, raises(ZeroDivisionError("by\nzero"))), rounds=3, folder=tmp_path / "run").run())
    assert f"method 'Breaks' failed in round {t + 1}: ZeroDivisionError: by zero (test_checked.py:" in str(caught.value)
    assert caught.value.exit_code == 1 and isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (tmp_path / "run").exists() is (t > 0)


@pytest.mark.parametrize(
    "error",
    [PflOpsError("gamma is 2"), OSError(28, "full"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")],
    ids=lambda error: type(error).__name__,
)
def test_what_says_enough_passes_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        list(simulation(Breaks(0, raises(error))).run())
    assert caught.value is error


def test_init_and_personal_are_checked() -> None:
    class Broken(Puppet):
        def __init__(self, init: Any, personal: Any) -> None:
            super().__init__()
            self.init_, self.personal_ = init, personal

        def init(self, task: Any) -> Any:
            return self.init_(super().init(task))

        def personal(self, s: Any, r: Any) -> Any:
            return self.personal_

    for state, message in {None: r"init\(\) returned None; expected a dict", 3: "an int as state 'x'"}.items():
        with pytest.raises(MethodError, match=message):
            simulation(Broken(lambda made, state=state: state and {"x": state}, None))
    with pytest.raises(MethodError, match=r"personal\(\) returned a tuple of 2; expected Models"):
        list(simulation(Broken(lambda made: made, (1, 2))).run())


def test_own_cohort_that_fails_names_the_method() -> None:
    class Draws(Puppet):
        def cohort(self, s: Any, task: Any, generator: Any) -> Any:
            return {}["nobody"]

    with pytest.raises(MethodError, match=r"method 'Draws' failed in cohort\(\): KeyError: 'nobody' \(test_checked.py"):
        list(simulation(Draws()).run())
    with pytest.raises(AttributeError):
        CheckedMethod(Puppet()).cohort  # noqa: B018  (a method without one has none)


class Writes(Puppet):
    """A `Puppet` with a shared model in its state, of which `round` or `personal` writes into what it is given."""

    def __init__(self, write: Callable[[Any, Any], None], where: str = "round", t: int = 0) -> None:
        super().__init__()
        self.write, self.where, self.t = write, where, t

    def init(self, task: Any) -> Any:
        return {"central": always(0, task.initial), **super().init(task)}

    def round(self, s: Any, r: Any) -> Any:
        if self.where == "round" and r.t == self.t:
            self.write(s, r)
        return super().round(s, r)

    def personal(self, s: Any, r: Any) -> Any:
        if self.where == "personal":
            self.write(s, r)
        return super().personal(s, r)


def bypasses_autograd(s: Any, r: Any) -> None:
    s["central"].data[0] = 7


def through_numpy(s: Any, r: Any) -> None:
    s["central"].numpy()[:] = 7


def replaces(s: Any, r: Any) -> None:
    s["central"] = s["central"] + 1


IN_PLACE: dict[Callable[[Any, Any], Any], str] = {
    lambda s, r: s["central"].add_(1): "state 'central'",
    bypasses_autograd: "state 'central'",
    through_numpy: "state 'central'",
    replaces: "state 'central'",
    lambda s, r: s.update(late=r.task.initial): "state 'late'",
    lambda s, r: s["rounds"].write(r.cohort, r.n): "state 'rounds'",
    lambda s, r: s["rounds"].base.add_(1): "state 'rounds'",
    lambda s, r: r.task.initial.mul_(2): "task.initial",
}


@pytest.mark.parametrize("where", ["round", "personal"])
@pytest.mark.parametrize("write", IN_PLACE, ids=range(len(IN_PLACE)))
def test_state_written_in_place_is_refused_in_round_1(write: Any, where: str, tmp_path: Path) -> None:
    """One line with what was changed, the function and its line; nothing is left in the folder."""
    with pytest.raises(MethodError) as caught:
        list(simulation(Writes(write, where), folder=tmp_path / "run").run())
    text, line = str(caught.value), getattr(Writes, where).__code__.co_firstlineno
    assert text == (
        f"method 'Writes': {where}() changed {IN_PLACE[write]} in place; expected a new tensor in the state that "
        f"round() returns (test_checked.py:{line})"
    )
    assert caught.value.exit_code == 2 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["round", "personal"])
@pytest.mark.parametrize("counts", ["sizes", "class_counts"])
def test_counts_written_in_place_are_refused_in_any_round(counts: str, where: str) -> None:
    """All later rounds read them, and a resumed run has them as they were."""

    def writes(s: Any, r: Any) -> None:
        if r.t == 1:
            getattr(r.task, counts)[0].add_(1)

    with pytest.raises(
        MethodError, match=rf"^method 'Writes': {where}\(\) changed task.{counts} in place; expected a new"
    ):
        list(simulation(Writes(writes, where, t=1)).run())


class Uncaught(BaseException):
    """An error of the author's own class."""


def cry(code: int) -> None:
    raise Uncaught(code)


@pytest.mark.parametrize(("leave", "kind"), [(sys.exit, "SystemExit"), (exit, "SystemExit"), (cry, "Uncaught")])
def test_a_method_that_ends_the_process_has_failed(leave: Callable[[int], None], kind: str) -> None:
    """`run` ended with exit code 0, without a line and a result, or in a traceback."""
    with pytest.raises(MethodError, match=rf"^method 'Writes' failed in round 1: {kind}: 0 \(test_checked.py:\d+\)$"):
        list(simulation(Writes(lambda s, r: leave(0), "round")).run())


def test_a_signal_that_ends_the_process_is_no_fault_of_the_method() -> None:
    """Ray's handler of SIGTERM raises SystemExit while the method's code runs. exit() in a library is no signal."""
    names: dict[str, Any] = {}
    code = "def sigterm_handler():\n    raise SystemExit(1)"  # its frames were read in a worker of Ray's
    exec(compile(code, "/site-packages/ray/_private/worker.py", "exec"), names)
    with pytest.raises(SystemExit):
        list(simulation(Writes(lambda s, r: names["sigterm_handler"](), "round")).run())
    with pytest.raises(MethodError, match="failed in round 1: SystemExit: 1"):
        list(simulation(Writes(lambda s, r: ArgumentParser().exit(1), "round")).run())


def test_reading_the_state_is_no_change() -> None:
    """A mean of rows is kept up to date inside them, NaN equals NaN, and a copy may be written into."""

    def reads(s: Any, r: Any) -> None:
        s["rounds"].mean()
        s["rounds"][r.cohort].add_(1)
        s["central"].clone().add_(1)

    class Holds(Writes):
        def init(self, task: Any) -> Any:
            return {**super().init(task), "none": task.initial * torch.nan, "flag": task.initial > 0}

    assert len(list(simulation(Holds(reads)).run())) == 3
    assert len(list(simulation(Holds(reads, "personal")).run())) == 3


DRAWS: dict[str, Callable[[], Any]] = {
    "PyTorch": lambda: torch.rand(()),
    "NumPy": lambda: np.random.rand(),
}


def test_draws_from_pythons_own_generator_stop_no_run() -> None:
    """Threads of libraries draw from it while a round is computed, for the time until they try again."""

    class Beside(Puppet):
        def round(self, s: Any, r: Any) -> Any:
            random.random()
            return super().round(s, r)

    assert len(list(simulation(Beside()).run())) == 3


@pytest.mark.parametrize("library", DRAWS)
def test_draw_from_a_generator_of_the_process_is_refused(library: str) -> None:
    """In `init`, `round`, `personal` and `cohort`, in any round; the message names the generator to take."""

    class Draws(Puppet):
        def __init__(self, where: str) -> None:
            super().__init__()
            self.where = where

        def init(self, task: Any) -> Any:
            if self.where == "init":
                DRAWS[library]()
            return super().init(task)

        def round(self, s: Any, r: Any) -> Any:
            if self.where == "round" and r.t == 1:
                DRAWS[library]()
            return super().round(s, r)

        def personal(self, s: Any, r: Any) -> Any:
            if self.where == "personal":
                DRAWS[library]()
            return super().personal(s, r)

        def cohort(self, s: Any, task: Any, generator: Any) -> Any:
            if self.where == "cohort":
                DRAWS[library]()
            return torch.arange(task.n_clients)

    mends = {"init": "task.rng", "round": "r.rng", "personal": "r.rng", "cohort": "the generator that it gets"}
    for where, mend in mends.items():
        with pytest.raises(MethodError) as caught:
            list(simulation(Draws(where)).run())
        text = str(caught.value)
        assert text.startswith(f"method 'Draws': {where}() drew from {library}'s global generator (")
        assert f"draw by {mend}" in text and "(test_checked.py:" in text
    seeded = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():  # leaves the process's generator as it was
        torch.manual_seed(0)
        torch.rand(2, generator=seeded)
        assert len(list(simulation(Draws("nowhere")).run())) == 3


def test_each_draw_from_numpys_generator_changes_its_state() -> None:
    """Normal numbers are drawn in pairs: the second one takes no word, and is the only change."""
    kept = np.random.get_state()
    try:
        np.random.seed(0)
        start = shared_generators()
        assert shared_generators() == start
        words = [np.random.get_state()[1:3]]
        for draw in (np.random.randn, np.random.randn, np.random.rand, np.random.randn):
            before = shared_generators()
            draw()
            assert drawn_from(before).startswith("NumPy") and not drawn_from(shared_generators())
            words.append(np.random.get_state()[1:3])
        assert words[1][1] == words[2][1] and (words[1][0] == words[2][0]).all()
        np.random.seed(0)
        assert shared_generators() == start
    finally:
        np.random.set_state(kept)


class Walks(Puppet):
    """A `Puppet` whose round t calls `use(r, start)`, with rows [C, P] to start from."""

    def __init__(self, use: Callable[[Any, Any], Any], t: int = 0) -> None:
        super().__init__()
        self.use, self.t = use, t

    def round(self, s: Any, r: Any) -> Any:
        if r.t == self.t:
            self.use(r, r.task.initial.expand(len(r.cohort), -1))
        return super().round(s, r)


def gives(answer: Any) -> Callable[[Any, Any], Any]:
    """Walk with a step that returns `answer(m)`."""

    def use(r: Any, start: Any) -> Any:
        def step(m: Any, b: Any) -> Any:
            return answer(m)

        return r.walk({"w": start}, step)

    return use


STEP = gives(None).__code__.co_consts  # of `use`, in which `step` is defined
LINE_OF_STEP = next(c.co_firstlineno for c in STEP if hasattr(c, "co_firstlineno"))


def uses_the_round(r: Any, start: Any) -> Any:
    def step(m: Any, b: Any) -> Any:
        return {"w": m["w"] * r.lr}

    return r.walk({"w": start}, step)


def uses_the_round_in_a_loss(r: Any, start: Any) -> Any:
    return r.train(start, loss=partial(lambda net, w, x, y, *, of: of.net(w, x)[:, 0], of=r))


def draws_in_a_step(r: Any, start: Any) -> Any:
    return r.walk({"w": start}, lambda m, b: {"w": m["w"] + torch.randn_like(m["w"])})


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (uses_the_round, r"step\(\) must not use the round \(r\): pass rows through `carry`"),
        (uses_the_round_in_a_loss, r"<lambda>\(\) must not use the round \(r\)"),
        (draws_in_a_step, r"<lambda>\(\) drew from PyTorch's global generator .*; draw by r.rng\(purpose\) before"),
    ],
)
def test_step_that_would_differ_in_another_process_is_refused(use: Any, message: str) -> None:
    with pytest.raises(MethodError, match=rf"method 'Walks': {message}.* \(test_checked.py:"):
        list(simulation(Walks(use)).run())


@pytest.mark.parametrize("attribute", ["previous", "_previous"])
def test_method_that_sets_an_attribute_is_refused(attribute: str) -> None:
    """A resumed run would not know it."""

    class Remembers(Algorithm):
        def init(self, task: Any) -> Any:
            return Puppet().init(task)

        def round(self, s: Any, r: Any) -> Any:
            setattr(self, attribute, r.n)
            return Puppet().round(s, r)

    with pytest.raises(MethodError, match=rf"self.{attribute} is set, .*; what a method remembers belongs into its st"):
        list(simulation(Remembers()).run())
    with pytest.raises(PflOpsError, match="method Private has a private attribute, _kept, which a resumed run"):

        class Private(Remembers):
            _kept: dict[str, Any] = PrivateAttr(default_factory=dict)


MISUSES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "none": (gives(lambda m: None), "step() returned None; expected a dict of the rows that change"),
    "a tensor": (gives(lambda m: m["w"]), "step() returned a float64 tensor [1, 9]; expected a dict"),
    "a name": (gives(lambda m: {"v": m["w"]}), "step() returned 'v', which is not in its carry (w)"),
    "a shape": (
        gives(lambda m: {"w": m["w"][:, 1:]}),
        "step() returned a float64 tensor [1, 8] as 'w'; expected a float64 tensor [1, 9], as in its carry",
    ),
    "a dtype": (gives(lambda m: {"w": m["w"].float()}), "step() returned a float32 tensor [1, 9] as 'w'; expected"),
    "a number": (gives(lambda m: {"w": 1.0}), "step() returned a float as 'w'; expected"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_wrong_step_names_method_and_line_of_the_step(case: str) -> None:
    use, message = MISUSES[case]
    with pytest.raises(MethodError) as caught:
        list(simulation(Walks(use)).run())
    text = str(caught.value)
    assert text.startswith(f"method 'Walks': {message}") and text.endswith(f" (test_checked.py:{LINE_OF_STEP})")
    assert caught.value.exit_code == 2


def short_carry(r: Any, start: Any) -> None:
    r.walk({"w": start[1:]}, lambda m, b: {})


def no_batches(r: Any, start: Any) -> None:
    r.walk({"w": start}, lambda m, b: {}, batches=0)


def notes_twice(r: Any, start: Any) -> None:
    r.note("drift", r.n)
    r.note("drift", r.n)


@pytest.mark.parametrize(
    ("use", "message", "line"),
    [
        (short_carry, "a carry needs one row for each client: 4 clients, got a float64 tensor [3, 9]", 1),
        (no_batches, "batches must be at least 1, got 0", 1),
        (notes_twice, "'drift' was noted already in this round", 2),
    ],
)
def test_wrong_call_of_a_verb_names_method_and_line_of_the_call(use: Any, message: str, line: int) -> None:
    """Exit code 2 in round 1, 1 later, as for a wrong answer."""
    at = use.__code__.co_firstlineno + line
    for t, code in ((0, 2), (1, 1)):
        with pytest.raises(MethodError) as caught:
            list(simulation(Walks(use, t)).run())
        assert str(caught.value) == f"method 'Walks': {message} (test_checked.py:{at})"
        assert caught.value.exit_code == code


ALL_ROWS = "needs one row for each client or one row [Q] for all: 2 clients, got a float64 tensor [3, 1]; take s[...]["
ONE_FOR_EACH = "needs one row for each client: 2 clients, got a float64 tensor [3, 1]; take s[...][r.cohort]"
WRONG_ROWS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "start": (lambda r, rows, one: r.train(rows), f"start {ALL_ROWS}"),
    "shift": (lambda r, rows, one: r.train(one, shift=rows), f"shift {ALL_ROWS}"),
    "anchor": (lambda r, rows, one: r.train(one, pull=(1.0, rows)), f"the anchor of pull {ALL_ROWS}"),
    "context": (lambda r, rows, one: r.train(one, lambda *_: None, ctx={"c": rows}), f"ctx 'c' {ONE_FOR_EACH}"),
    "losses": (lambda r, rows, one: r.losses(rows), f"w {ALL_ROWS}"),
    "gradient": (lambda r, rows, one: r.grad(rows), f"w {ALL_ROWS}"),
    "sums": (lambda r, rows, one: r.sweep(one, lambda *_: None, ctx={"c": rows}), f"ctx 'c' {ONE_FOR_EACH}"),
    "mean": (lambda r, rows, one: r.mean(rows), f"mean {ONE_FOR_EACH}"),
    "strength": (
        lambda r, rows, one: r.train(one, pull=(rows[:, 0], one)),
        "μ of pull needs a number, or one for each client: 2 clients, got a float64 tensor [3]",
    ),
    "no pair": (lambda r, rows, one: r.train(one, pull=0.5), "pull needs a pair (μ, anchor), got a float"),
    "no tensor": (lambda r, rows, one: r.train(2.0), "start needs one row for each client or one row [Q] for all: 2"),
    "shift of one column": (
        lambda r, rows, one: r.train(torch.zeros(2, 3), shift=torch.ones(2, 1)),
        "shift needs rows as long as those of start, 3; got a float32 tensor [2, 1]",
    ),
    "other rows": (
        lambda r, rows, one: r.cross(rows, torch.tensor([[0], [-1]])),
        "who names rows -1 to 0 of models; there are 0 to 2",
    ),
    "clients": (
        lambda r, rows, one: r.over(torch.tensor([-1])),
        "over() got clients -1 to -1; there are 0 to 2",
    ),
    "a mask": (lambda r, rows, one: r.over(torch.tensor([True])), "over() needs client numbers, int64 [M]; got a bool"),
    "optimiser": (lambda r, rows, one: r.train(one, optimiser="Adam"), "optimiser must be 'sgd' or 'adam', got 'Adam'"),
    "momentum": (
        lambda r, rows, one: r.train(one, optimiser="adam", momentum=0.9),
        "momentum belongs to optimiser sgd, not adam; got momentum=0.9",
    ),
    "momentum of 1": (lambda r, rows, one: r.train(one, momentum=1), "momentum must be a number in [0, 1), got 1"),
    "weight decay": (lambda r, rows, one: r.train(one, weight_decay=-1.0), "weight_decay must be 0 or more, got -1.0"),
    "a rate that climbs": (lambda r, rows, one: r.train(one, lr=-0.1), "lr needs one number, 0 or more; got -0.1"),
    "a rate for each": (
        lambda r, rows, one: r.train(one, lr=r.n),
        "lr needs one number, 0 or more; got a float64 tens",
    ),
    "the round's rate": (
        lambda r, rows, one: (setattr(r, "lr", -0.5), r.train(one)),
        "r.lr needs one number, 0 or more; got -0.5",
    ),
    "columns": (lambda r, rows, one: r.train(one, only=[0]), "only needs a slice of r.layout (body, head, top("),
    "half": (lambda r, rows, one: r.train(one, share=0.5), "share needs Share(low, high), got a float"),
    "share": (
        lambda r, rows, one: r.train(one, share=Share(0.5, 0.2)),
        "share needs fractions 0 <= low <= high <= 1, got Share(0.5, 0.2)",
    ),
    "percent": (
        lambda r, rows, one: r.losses(one, share=Share(0, 80)),
        "share needs fractions 0 <= low <= high <= 1, got Share(0, 80)",
    ),
    "PyTorch loss": (
        lambda r, rows, one: r.train(one, F.cross_entropy),
        "a loss is a function loss(net, w, x, y)",
    ),
    "PyTorch layer": (lambda r, rows, one: r.train(one, nn.MSELoss()), "a loss is a function loss(net, w, x, y)"),
    "two lengths": (lambda r, rows, one: r.train(one, epochs=1, steps=1), "give epochs or steps, one of them"),
    "batch": (lambda r, rows, one: r.train(one, batch=0), "batch must be a whole number of at least 1, got 0"),
    "epochs": (lambda r, rows, one: r.steps(epochs=1.5), "epochs must be a whole number of at least 0, got 1.5"),
    "negative traffic": (lambda r, rows, one: r.sent(up=-1), "sent(up=...) needs one number of scalars a client, 0 or"),
    "traffic of each": (lambda r, rows, one: r.sent(down=r.n), "sent(down=...) needs one number of scalars a client"),
    "traffic as text": (lambda r, rows, one: r.sent(up="4"), "sent(up=...) needs one number of scalars a client"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_verb_with_rows_of_other_clients_is_refused(case: str) -> None:
    """Clients 1 and 2 take part. The rows of all three, each at its client's optimum b = (0, 6, 9), would give client 1
    the row of client 0, and so on: losses of ½ 6² and ½ 3² in place of 0."""
    use, message = WRONG_ROWS[case]
    rows = torch.tensor([[0.0], [6.0], [9.0]]).double()
    r = quadratic_round([0.0, 6.0, 9.0], clients=[1, 2])
    assert r.losses(rows[r.cohort]).tolist() == [0.0, 0.0]
    with pytest.raises(PflOpsError, match=f"^{re.escape(message)}"):
        use(r, rows, rows[0])


def test_traffic_may_be_a_tensor_of_one_number() -> None:
    r = quadratic_round([0.0, 6.0])
    r.sent(up=torch.tensor(3), down=0)
    assert (r.traffic.up, r.traffic.down) == (3, 0)


@pytest.mark.parametrize("clients", [[0, 1], [0, 1, 2]])
def test_rows_of_other_clients_than_the_cohort_are_refused(clients: list[int]) -> None:
    """`Rows(torch.arange(C), theta)` wrote the model of client 1 into the row of client 0."""
    r = quadratic_round([0.0, 6.0, 9.0], clients=[1, 2])
    s = {"theta": r.task.rows(r.task.initial)}
    check_update(s, {"theta": Rows(torch.tensor([2]), torch.ones(1, 1, dtype=torch.float64))}, r.cohort)
    wrong = {"theta": Rows(torch.tensor(clients), torch.ones(len(clients), 1, dtype=torch.float64))}
    message = (
        f"Rows of clients {clients} as state 'theta'; expected those of the cohort, [1, 2]: Rows(r.cohort, values)"
    )
    with pytest.raises(PflOpsError, match=re.escape(message)):
        check_update(s, wrong, r.cohort)


def test_rows_of_absent_clients_end_the_run() -> None:
    class Everyone(Algorithm):
        """A method that writes the rows of all clients."""

        def init(self, task: Any) -> Any:
            return {"theta": task.rows(task.initial)}

        def round(self, s: Any, r: Any) -> Any:
            everyone = torch.arange(r.task.n_clients)
            return {"theta": Rows(everyone, s["theta"][everyone])}, {"L2": Models(s["theta"][r.cohort], r.cohort)}

    with pytest.raises(MethodError, match=r"round\(\) returned Rows of clients \[0, 1, 2, 3\] as state 'theta'"):
        list(simulation(Everyone(), share=0.5).run())


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([0, 1], "Models of clients [0, 1] as stage 'L2'; expected those of the cohort, [1, 2]"),
        ([1, 1], "Models of clients [1, 1] as stage 'L2'; expected each client once"),
    ],
)
def test_models_of_other_clients_than_the_cohort_are_refused(clients: list[int], message: str) -> None:
    """`Models(theta, torch.arange(C))` scored the model of client 1 on the test data of client 0."""
    r = quadratic_round([0.0, 6.0, 9.0], clients=[1, 2])
    theta = r.train(r.task.initial)
    check_models(Models(theta, r.cohort), r.task, cohort=r.cohort)
    with pytest.raises(PflOpsError, match=re.escape(message)):
        check_models(Models(theta, torch.tensor(clients)), r.task, "as stage 'L2'", cohort=r.cohort)


def shifted(net: Net, w: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    return net(w, x) + bias


def test_models_with_ctx_that_is_not_read_are_refused() -> None:
    """The scores were those of the network alone."""
    r = quadratic_round([0.0, 6.0, 9.0], clients=[1, 2])
    theta = r.train(r.task.initial)
    line = "Models with ctx bias as stage 'L2' and no predict, which alone reads it; expected both or none"
    for models in (Models(theta, r.cohort, {"bias": theta}), Models(r.task.initial, ctx={"bias": torch.zeros(3)})):
        with pytest.raises(PflOpsError, match=re.escape(line)):
            check_models(models, r.task, "as stage 'L2'")


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (
            torch.zeros(3),
            "Models with a float32 tensor [3] as ctx 'bias' as stage 'L2'; expected a row each for these 2",
        ),
        (torch.tensor(0.0), "Models with a float32 tensor [] as ctx 'bias' as stage 'L2'; expected a row each"),
        (ClientRows(torch.tensor(0.0), 3), "Models with a ClientRows as ctx 'bias' as stage 'L2'; expected a tensor"),
    ],
    ids=["rows of all clients", "one number", "state"],
)
def test_models_with_ctx_of_other_clients_are_refused(bias: Any, message: str) -> None:
    """Rows of all three clients gave client 1 those of client 0, and to each chunk of clients the first ones."""
    r = quadratic_round([0.0, 6.0, 9.0], clients=[1, 2])
    theta = r.train(r.task.initial)
    check_models(Models(theta, r.cohort, {"bias": torch.zeros(3)[r.cohort]}, shifted), r.task, cohort=r.cohort)
    check_models(Models(r.task.initial, ctx={"bias": torch.zeros(3)}, predict=shifted), r.task)
    with pytest.raises(PflOpsError, match=re.escape(message)):
        check_models(Models(theta, r.cohort, {"bias": bias}), r.task, "as stage 'L2'", cohort=r.cohort)


def branches(net: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    values = net(w, x).square().sum(dim=1)
    return values * 2 if bool((y == 0).any()) else values


def draws(net: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return net(w, x).square().sum(dim=1) * torch.rand(())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (branches, r"branches\(\) can't be computed for several clients at once \(PyTorch: .*or use --way loop"),
        (draws, r"draws\(\) drew from PyTorch's global generator .*; draw by r\.rng\(purpose\) before"),
    ],
)
def test_loss_that_can_not_be_stacked_names_its_line(loss: Any, message: str) -> None:
    """Both were PyTorch's text on vmap: "please file an issue", "use the 'same' or 'different' randomness flags"."""

    class Own(Algorithm):
        """A method with a loss of its own."""

        def init(self, task: Any) -> Any:
            return {"central": task.initial}

        def round(self, s: Any, r: Any) -> Any:
            return {"central": r.mean(r.train(s["central"], loss))}, {}

        def personal(self, s: Any, r: Any) -> Any:
            return Models(s["central"])

    line = loss.__code__.co_firstlineno
    with pytest.raises(MethodError, match=rf"^method '.*': {message}.* \(test_checked\.py:{line}\)$"):
        list(simulation(Own(), execution=Execution(device="cpu", way="vmap", chunk=4, workers=1)).run())
    if loss is branches:
        assert len(list(simulation(Own()).run())) == 3


def labels(net: Any, w: Tensor, x: Tensor) -> Tensor:
    return net(w, x).argmax(dim=1)


def fails(net: Any, w: Tensor, x: Tensor) -> Tensor:
    return net(w, x) @ torch.ones(5).to(w)


def noisy(net: Any, w: Tensor, x: Tensor) -> Tensor:
    return net(w, x) + torch.randn(3)


def by_its_bias(net: Any, w: Tensor, x: Tensor) -> Tensor:
    return net(w, x) if float(w.sum()) > 0 else 1 * net(w, x)


def predicts(rule: Any) -> Algorithm:
    """A method whose clients answer by a rule of their own."""

    class Predicts(Algorithm):
        """Own models that never learn."""

        def init(self, task: Any) -> Any:
            return {"theta": task.rows(task.initial)}

        def round(self, s: Any, r: Any) -> Any:
            return {"theta": Rows(r.cohort, s["theta"][r.cohort] + r.cohort[:, None])}, {}

        def personal(self, s: Any, r: Any) -> Any:
            return Models(s["theta"][r.cohort], r.cohort, predict=rule)

    return Predicts()


WAYS = [Execution(device="cpu", way="loop", workers=1), Execution(device="cpu", way="vmap", chunk=4, workers=1)]


@pytest.mark.parametrize("execution", WAYS, ids=["loop", "stacked"])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (labels, r"labels\(\) must return scores \[B, L\] = \[.*, 3\]; got one client's an int64 tensor \[.*\]"),
        (fails, r"fails\(\) failed: RuntimeError: "),
        (noisy, r"noisy\(\) drew from PyTorch's global generator"),
    ],
)
def test_wrong_predict_names_method_and_line(rule: Any, message: str, execution: Execution) -> None:
    """They were internal errors: "The size of tensor a (5) must match the size of tensor b (87)"."""
    line = rule.__code__.co_firstlineno
    with pytest.raises(MethodError, match=rf"^method '.*': {message}.* \(test_checked\.py:{line}\)$"):
        list(simulation(predicts(rule), execution=execution).run())


@pytest.mark.parametrize("execution", WAYS, ids=["loop", "stacked"])
def test_predict_may_branch_on_values(execution: Execution) -> None:
    """Models that can't be asked in one call are asked one after the other; that was an internal error."""
    found = simulation(predicts(by_its_bias), execution=execution)
    plain = simulation(predicts(None), execution=execution)
    key = "test/L1/local/mean"
    assert [one.metrics.get(key) for one in found.run()] == [one.metrics.get(key) for one in plain.run()]


def test_loss_that_returns_no_tensor_names_its_line() -> None:
    def nothing(net: Any, w: Any, x: Any, y: Any) -> Any:
        return None

    at = nothing.__code__.co_firstlineno
    for use in (lambda r, start: r.train(start, nothing), lambda r, start: r.sweep(start, nothing)):
        with pytest.raises(MethodError) as caught:
            list(simulation(Walks(use)).run())
        expected = "nothing() returned None; expected a tensor, one row a sample"
        assert str(caught.value) == f"method 'Walks': {expected} (test_checked.py:{at})"


def test_sweep_of_a_function_that_gives_one_value_a_batch_names_its_line() -> None:
    """The mean over a batch would be counted once a batch, so by clients' sizes."""

    def mean(net: Any, w: Any, x: Any, y: Any) -> Any:
        return net(w, x).mean()

    at = mean.__code__.co_firstlineno
    for function in (mean, lambda net, w, x, y: net(w, x)[:1]):
        with pytest.raises(
            MethodError, match=r"\(\) must give one value a sample, got a .*tensor \[.*\] \(test_checked"
        ) as caught:
            list(simulation(Walks(lambda r, start, f=function: r.sweep(start, f))).run())
        assert function is not mean or str(caught.value).endswith(f"(test_checked.py:{at})")


def test_traceback_has_the_authors_own_frames_only() -> None:
    """The step fails under `walk`, `Trainer.walk` and a round of the engine: three frames of this file are left."""

    def step(m: Any, b: Any) -> Any:
        return {"w": m["w"] @ m["w"]}

    with pytest.raises(MethodError) as caught:
        list(simulation(Walks(lambda r, start: r.walk({"w": start}, step))).run())
    lines = caught.value.details.splitlines()
    assert lines[0] == "Traceback of method 'Walks' (most recent call last):"
    assert lines[-1].startswith("RuntimeError: ") and "mat1 and mat2 shapes cannot be multiplied" in lines[-1]
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 3 and all(__file__ in line for line in files)
    assert [line.rpartition(" in ")[2] for line in files] == ["round", "<lambda>", "step"]
    cause, found = caught.value.__cause__, []
    trace = cause.__traceback__ if cause else None
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert found == [__file__] * 3


def test_wrong_answer_has_no_traceback() -> None:
    """Nothing of the author's was running: the line says which function it was."""
    with pytest.raises(MethodError) as caught:
        list(simulation(Breaks(0, lambda update, stages: None)).run())
    assert caught.value.details == "" and caught.value.__cause__ is None
