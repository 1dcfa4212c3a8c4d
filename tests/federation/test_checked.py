"""A method's answers against the contract, and what becomes of a run whose method fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from little import Puppet, simulation

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.checked import CheckedMethod, MethodError
from pfl_ops.federation.contract import Models, Rows


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
    assert text.startswith("method 'Breaks': round() returned ") and text.endswith(" (test_checked.py:23)")
    assert message in text and "\n" not in text
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


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

    for state, message in {None: r"init\(\) returned None; expected a dict", 3: "a int as state 'x'"}.items():
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
