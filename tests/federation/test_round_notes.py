"""Notes: what a method says of its clients for the curves, and that nothing comes back."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from little import LOOP, clients, network
from torch import Tensor

from pfl_ops.algorithms.base import Models, Round, Rows, Stages, State, Task, Update
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop import cohort
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.notes import Notes
from pfl_ops.federation.settings import Evaluation, StragglerParticipation, Training

LATE = StragglerParticipation(share=0.75, stragglers=0.5, chance=0.5)


class Counter:
    """Counts its rounds, notes 10 t + k of client k in round t from 1, and keeps what it noted at hand."""

    def __init__(self) -> None:
        self.held: list[Tensor] = []

    def init(self, task: Task) -> State:
        return {"rounds": task.rows(task.initial[0] * 0)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        values = 10.0 * (r.t + 1) + r.cohort
        r.note("number", values)
        values += 100  # what was noted is a copy
        return {"rounds": Rows(r.cohort, s["rounds"][r.cohort] + 1)}, {"L2": self.models(r)}

    def personal(self, s: State, r: Round) -> Models:
        r.note("number", torch.full((len(r.cohort),), 1e6))  # a round that is only looked at
        return self.models(r)

    def models(self, r: Round) -> Models:
        return Models(r.task.initial.expand(len(r.cohort), -1), r.cohort)


def simulation(participation: Any = LATE, folder: Path | None = None, rounds: int = 4) -> Simulation:
    how = Training(rounds=rounds, batch_size=3, precision="float64")
    return Simulation(
        network(), Counter(), clients(), how, participation, Evaluation(), execution=LOOP, folder=folder, identity="n"
    )


def noted(sim: Simulation) -> list[dict[str, float]]:
    return [{k: v for k, v in record.metrics.items() if k.startswith("method/")} for record in sim.records]


def test_every_round_has_the_statistics_of_its_cohort_and_of_its_stragglers() -> None:
    """Three of four clients take part; who is there, and who of them is a straggler, is drawn here once more."""
    sim = simulation()
    list(sim.run())
    late = cohort.stragglers(LATE, 4, 0)
    assert late is not None and late.sum() == 2
    for t, found in enumerate(noted(sim)[1:]):
        who = cohort.draw(sim.method, sim.state, sim.task, sim._probabilities, t).tolist()
        values = {k: 10.0 * (t + 1) + k for k in who}
        assert found["method/number/mean"] == pytest.approx(sum(values.values()) / 3)
        assert (found["method/number/min"], found["method/number/max"]) == (min(values.values()), max(values.values()))
        assert found["method/number/q50"] == sorted(values.values())[1]
        for group, is_late in (("online", False), ("stragglers", True)):
            own = [value for k, value in values.items() if late[k] == is_late]
            assert found[f"method/number/{group}/mean"] == pytest.approx(sum(own) / len(own))
    assert noted(sim)[0] == {}, "before the first round there is nothing to note"
    assert not any("method/" in key for key in sim.final), "notes are no scores: they have no final and no best"


def test_where_nobody_is_a_straggler_there_are_no_groups() -> None:
    sim = simulation(LATE.model_copy(update={"chance": 0.0, "share": 0.5}))  # both stragglers always absent
    list(sim.run())
    assert all("method/number/online/mean" in found for found in noted(sim)[1:])
    assert not any("method/number/stragglers/mean" in found for found in noted(sim))


def test_a_resumed_run_has_them_all(tmp_path: Path) -> None:
    whole, first = simulation(), simulation(folder=tmp_path)
    list(whole.run())
    for record in first.run():
        if record.round == 2:
            break
    again = simulation(folder=tmp_path)
    list(again.run())
    assert again.resumed_from == 2 and noted(again) == noted(whole)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Weight", [1.0, 2], "a note's name is small letters, digits and underscores, got 'Weight'"),
        ("a/b", [1.0, 2], "got 'a/b'"),
        ("weight", [1.0], "a note has one value a client, [2]; 'weight' is a float32 tensor [1]"),
        ("weight", [[1.0], [2]], "'weight' is a float32 tensor [2, 1]"),
        ("trace", [1.0, 2], "'trace' was noted already in this round"),
    ],
)
def test_what_can_not_be_noted(name: str, values: Any, message: str) -> None:
    notes = Notes(2)
    notes.add("trace", torch.tensor([1.0, 2]))
    with pytest.raises(PflOpsError, match=re.escape(message)):
        notes.add(name, torch.tensor(values))
    notes.values()["trace"].zero_()
    assert notes.values()["trace"].tolist() == [1, 2]
