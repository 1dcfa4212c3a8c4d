"""A sitting of `reproduce` without Ray: what it does with what its workers say."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from toy_suite import TOY

from pfl_ops import tuning
from pfl_ops.federation.settings import Execution
from pfl_ops.tuning.asked import Asked
from pfl_ops.tuning.pool import Done, simulate
from pfl_ops.tuning.reproducing import Happened, Sitting


def test_a_run_that_cannot_be_kept_is_a_failed_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that its figures or files meet: the other cells go on."""

    def breaks(*_: object) -> None:
        raise ValueError("an axis\nwithout end")

    monkeypatch.setattr(Sitting, "_track", breaks)
    plan = tuning.plan([(TOY, TOY.cells)], "smoke")
    told: list[Happened] = []
    sitting = Sitting(plan, None, None, Execution(), Asked.of(None, None, None), None, None, told.append, simulate)
    sitting._take(Done(plan.wanted[0]))
    assert sitting.failures == {plan.wanted[0].digest: "ValueError: an axis without end"}
    assert [happened.kind for happened in told] == ["failed"] and sitting.over == 1
