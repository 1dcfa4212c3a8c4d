"""A call of `reproduce` without Ray: what it does with what its workers say."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from toy_suite import ACC, TOY

from pfl_ops import tuning
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.results import Result
from pfl_ops.tuning.cells import CellEvent, elsewhere
from pfl_ops.tuning.reproduction import Reproduction
from pfl_ops.tuning.resource_request import ResourceRequest


def test_a_run_that_cannot_be_kept_is_a_failed_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that its figures or files meet: the other cells go on."""

    def breaks(*_: object) -> None:
        raise ValueError("an axis\nwithout end")

    monkeypatch.setattr(Reproduction, "_track", breaks)
    plan = tuning.plan([(TOY, TOY.cells)], "smoke")
    told: list[CellEvent] = []
    call = Reproduction(plan, None, None, Execution(), ResourceRequest.of(None, None, None), None, None, told.append)
    call._end(plan.wanted[0], JobEvent("ended", None))
    assert call.failures == {plan.wanted[0].digest: "ValueError: an axis without end"}
    assert [event.kind for event in told] == ["failed"] and call.over == 1


def test_of_another_scale_each_seed_is_shown_once() -> None:
    """A suite that was changed leaves its old runs in the store, oldest first; stand-in data count nowhere."""

    def run(name: str, seed: int, scale: str, acc: float, **tags: str) -> Result:
        where = {"pfl_ops.suite": TOY.name, "pfl_ops.cell": "path/fliu", "pfl_ops.scale": scale, **tags}
        return Result.of_numbers(seed, {f"final/{ACC}": acc}, tags=where, name=name)

    plan = tuning.plan([(TOY, TOY.cells)], "smoke")
    runs = (
        run("old", 0, "small", 1.0),
        run("new", 0, "small", 1.5),
        run("second", 1, "small", 1.25),
        run("here", 0, "smoke", 0.5),
        run("digits", 0, "full", 2.0, **{"pfl_ops.stand_in": "digits"}),
    )
    (found,) = elsewhere(plan.parts[0], "smoke", runs).items()
    assert found[0] == "small"
    assert [(one.seed, one.value(ACC)) for one in found[1]["path/fliu"]] == [(0, 1.5), (1, 1.25)]


def test_runs_that_a_results_file_has_are_not_run_again(tmp_path: Path) -> None:
    """Seed 0 of one cell, of a suite of five: four are missing. Under changed settings, all five."""
    kept = {
        TOY.name: {
            "iid/local": [Result.of_numbers(seed, {}, measures={ACC: acc}) for seed, acc in ((0, 150.0), (7, 1.0))]
        }
    }
    store = SimpleNamespace(reachable=False)
    for changes, missing in (({}, 4), ({"training.lr": 0.5}, 5)):
        plan = tuning.plan([(TOY, TOY.cells)], "smoke", repetitions=1, changes=changes)
        call = Reproduction(
            plan, store, None, Execution(), ResourceRequest.of(None, None, None), None, None, None, kept=kept
        )
        assert len(call.missing()) == missing
        found = {cell: [one.value(ACC) for one in each] for cell, each in call._outcomes(plan.parts[0]).items()}
        assert found == ({"iid/local": [150.0]} if not changes else {})
