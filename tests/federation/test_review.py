"""A chosen execution beside its first rounds: when another one is chosen, and what a resumed run makes of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from little import simulation, traces

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.federation.execution import choose, review
from pfl_ops.federation.execution.choose import Chosen, Resolved
from pfl_ops.federation.execution.review import Executions, kept
from pfl_ops.federation.loop import simulate
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Checkpoints, Record

CPU = torch.device("cpu")
LOOP = Resolved("cpu", "loop", 1, 1, "float64", torch.__version__)
TWO, FOUR = (replace(LOOP, way="vmap", chunk=chunk) for chunk in (2, 4))
WORKERS = replace(LOOP, workers=2)

Rates = dict[Resolved, float]


def record(round_: int, rate: float, seconds: float = 10.0) -> Record:
    return Record(round_, {"cost/samples_per_second": rate, "cost/train_seconds": seconds}, 0)


def play(promised: Rates, real: Rates, rounds: int = 100, seconds: float = 10.0, free: Any = None) -> Executions:
    """The executions of a run whose rounds are as fast as `real` says, with so many free cores in each."""
    executions = Executions([(0, LOOP)], dict(promised))
    for t in range(rounds):
        executions.review(record(t + 1, real[executions.at(t)], seconds), rounds, 2.0 if free is None else free(t))
    return executions


# -- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promised", "real", "taken"),
    [
        ({LOOP: 100, TWO: 90}, {LOOP: 81}, [(0, LOOP)]),  # wrong by less than a fifth
        ({LOOP: 100, TWO: 90}, {LOOP: 79, TWO: 90}, [(0, LOOP), (2, TWO)]),  # wrong, and the next one is as promised
        ({LOOP: 100, TWO: 90}, {LOOP: 79, TWO: 50}, [(0, LOOP), (2, TWO), (4, LOOP)]),  # it is worse
        ({LOOP: 100, TWO: 90}, {LOOP: 79, TWO: 72}, [(0, LOOP), (2, TWO)]),  # 79 < 1.1 * 72: not worth a change
        ({LOOP: 100, TWO: 86}, {LOOP: 79}, [(0, LOOP)]),  # 86 < 1.1 * 79: nor is this
        ({LOOP: 100, TWO: 90}, {LOOP: 300}, [(0, LOOP)]),  # faster than promised
        ({LOOP: 100, TWO: 90, FOUR: 95}, {LOOP: 50, FOUR: 55, TWO: 60}, [(0, LOOP), (2, FOUR), (4, TWO)]),
        ({LOOP: 100, TWO: 70, FOUR: 95}, {LOOP: 50, FOUR: 70}, [(0, LOOP), (2, FOUR)]),  # as good as a third one
        ({LOOP: 100, TWO: 90, FOUR: 95}, {LOOP: 60, FOUR: 40, TWO: 30}, [(0, LOOP), (2, FOUR), (4, TWO), (6, LOOP)]),
        ({LOOP: 100}, {LOOP: 10}, [(0, LOOP)]),
        ({}, {LOOP: 10}, [(0, LOOP)]),  # nothing was left to choose
        ({LOOP: 100, TWO: 90}, {LOOP: 0}, [(0, LOOP)]),  # no sample is counted
    ],
)
def test_what_is_chosen_again(promised: Rates, real: Rates, taken: Any) -> None:
    assert play(promised, real).taken == taken


def test_the_number_of_trials_follows_the_rounds() -> None:
    """One trial in 20 rounds: of the four that promise more than the real 10, none, one, two or three are tried."""
    ways = [LOOP, TWO, FOUR, WORKERS, replace(TWO, chunk=3)]
    promised = {way: 100.0 - i for i, way in enumerate(ways)}
    for rounds, trials in {19: 0, 20: 1, 39: 1, 40: 2, 60: 3, 1000: 3}.items():
        found = play(promised, {way: 10.0 - 0.1 * i for i, way in enumerate(ways)}, rounds=rounds)
        assert len(found.taken) == 1 + trials, rounds


def test_the_end_of_a_run_is_not_worth_a_trial() -> None:
    """98 rounds are left, of 0.3 s or of 0.31 s: less or more than 30 s."""
    promised, real = {LOOP: 100.0, TWO: 90.0}, {LOOP: 50.0, TWO: 90.0}
    assert len(play(promised, real, seconds=0.3).taken) == 1
    assert len(play(promised, real, seconds=0.31).taken) == 2


def test_the_faster_of_two_rounds_counts() -> None:
    """The first one starts processes."""
    executions = Executions([(0, WORKERS)], {WORKERS: 100.0, LOOP: 90.0})
    for i, rate in enumerate((20.0, 99.0)):
        assert executions.review(record(i + 1, rate), 100, 2.0) is None
    assert executions.promised == {}, "nothing is left to check"


@pytest.mark.parametrize(
    ("free", "taken"),
    [
        (lambda t: 0.8, [(0, LOOP)]),  # no round has a core: after ten of them the check ends
        (lambda t: 0.8 if t < 6 else 1.0, [(0, LOOP), (8, TWO)]),  # rounds 7 and 8 count
        (lambda t: 0.8 if t % 2 else 1.0, [(0, LOOP), (3, TWO)]),  # rounds 1 and 3 do
        (lambda t: 0.8 if t < 10 else 1.0, [(0, LOOP)]),
    ],
)
def test_rounds_under_other_load_do_not_count(free: Callable[[int], float], taken: Any) -> None:
    assert play({LOOP: 100, TWO: 90}, {LOOP: 50, TWO: 90}, free=free).taken == taken


def test_workers_need_as_many_free_cores() -> None:
    executions = Executions([(0, replace(WORKERS, threads=7))], {replace(WORKERS, threads=7): 100.0, LOOP: 90.0})
    for free in (1.7, 1.9, 1.7):
        executions.review(record(1, 10.0), 100, free)
    assert sum(map(len, executions.measured.values())) == 1


def test_the_lines() -> None:
    executions = Executions([(0, WORKERS)], {WORKERS: 100.0, LOOP: 90.0})
    lines = [executions.review(record(i + 1, rate), 100, 2.0) for i, rate in enumerate((60.0, 50.0, 10.0, 20.0))]
    assert lines == [
        None,
        "from round 3 on: one client at a time, 1 thread, since one client at a time, 2 workers trained 0.60 times as "
        "fast as timed",
        None,
        "from round 5 on again: one client at a time, 2 workers",
    ]


# -- on disk ---------------------------------------------------------------------------------------------------------


def test_the_meta_of_a_checkpoint() -> None:
    """The last execution stands where earlier versions have their only one, and theirs is read."""
    for executions in (
        Executions([(0, LOOP)]),
        Executions([(0, LOOP)], {LOOP: 1.5, TWO: 1.0}, {LOOP: [1.0]}),
        Executions([(0, LOOP), (2, TWO), (4, LOOP)]),
    ):
        meta = json.loads(json.dumps(executions.to_meta()))
        assert meta["resolved"] == executions.taken[-1][1].__dict__
        assert kept(meta, Execution(), CPU) == (executions, [])
    assert Executions([(0, LOOP)]).to_meta().keys() == {"resolved"}


# -- in a run --------------------------------------------------------------------------------------------------------

REAL = {LOOP: 0.5, TWO: 0.4, FOUR: 0.8}  # samples/s
EXPECTED = [(0, LOOP), (2, TWO), (4, FOUR)]
Make = Callable[..., Simulation]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes runs of 12 rounds on a machine of known speeds: rounds take 10 s, and six are enough for a trial."""

    def resolve(execution: Execution, *_: Any, **__: Any) -> Chosen:
        return Chosen(LOOP, [], {LOOP: 1.0, TWO: 0.9, FOUR: 0.85})

    def cost(self: Simulation, r: Any, seconds: float) -> dict[str, float]:
        known = {"cost/samples_per_second": REAL[self.resolved], "cost/train_seconds": 10.0}
        return real_cost(self, r, seconds) | known

    real_cost = Simulation._cost
    monkeypatch.setattr(Simulation, "_cost", cost)
    monkeypatch.setattr(choose, "resolve", resolve)
    monkeypatch.setattr(review, "ROUNDS_PER_TRIAL", 6)
    monkeypatch.setattr(simulate, "OtherLoad", lambda: SimpleNamespace(share=lambda: 0.0))

    def run(method: Any = None, **rest: Any) -> Simulation:
        how = {"rounds": 12, "share": 0.5, "execution": Execution(device="cpu"), "adapt": True, **rest}
        return simulation(method or FLIU(), **how)

    return run


def upto(sim: Simulation, round_: int) -> None:
    for found in sim.run():
        if found.round == round_:
            return


def test_a_run_changes_its_execution_and_says_so(make: Make) -> None:
    """The same models and scores as one client at a time gives all the way, but for the last digits of float64."""
    changed, fixed = make(), make(adapt=False)
    list(changed.run()), list(fixed.run())
    assert changed.executions.taken == EXPECTED and fixed.executions.taken == [(0, LOOP)]
    assert [line[:12] for line in changed.complaints] == ["from round 3", "from round 5"] and not fixed.complaints
    assert changed.resolved == FOUR and changed.trainer.chunk == 4
    assert changed.state.keys() == fixed.state.keys()
    one, other = traces(changed), traces(fixed)
    assert one["personal"].allclose(other["personal"], rtol=0, atol=1e-10)
    for mine, theirs in zip(changed.records, fixed.records, strict=True):
        assert mine.metrics.get("test/L1/local/mean") == theirs.metrics.get("test/L1/local/mean")


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("every", [1, 9])
def test_stopped_and_resumed_is_not_stopped(stop: int, every: int, make: Make, tmp_path: Path) -> None:
    """Bit for bit, wherever it stops: before a change, between two of them, and after the last. A change is on disk
    before its first round, however seldom checkpoints are written."""
    execution = Execution(device="cpu", checkpoint_every=every)
    whole = make(execution=execution)
    list(whole.run())
    upto(make(folder=tmp_path, execution=execution), stop)
    found = Checkpoints(tmp_path, "little").latest
    assert found is not None and found.round == (stop if every == 1 else {1: 0, 2: 2, 3: 2}.get(stop, 4))
    taken, _ = kept(found.meta, execution, CPU)
    assert taken.taken == [each for each in EXPECTED if each[0] <= found.round]
    again = make(folder=tmp_path, execution=execution)
    list(again.run())
    assert again.executions.taken == EXPECTED
    same(again, whole)


def test_a_resumed_run_repeats_what_was_recorded(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where all is as promised, and without `adapt`: round t has the execution recorded for t."""
    whole = make()
    list(whole.run())
    upto(make(folder=tmp_path), 7)
    monkeypatch.setitem(REAL, FOUR, 0.01)
    again = make(folder=tmp_path, adapt=False)
    list(again.run())
    assert again.executions.taken == EXPECTED
    same(again, whole)


def test_rounds_that_are_run_again_have_their_own_executions(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the final scores, and no earlier checkpoint is left: all rounds are run again for them."""
    whole, execution = make(), Execution(device="cpu", checkpoint_every=100)
    list(whole.run())
    upto(make(folder=tmp_path, execution=execution), 12)
    monkeypatch.setattr(Checkpoints, "before", lambda self, round_: None)
    again = make(folder=tmp_path, execution=execution)
    assert again.resumed_from == 12 and again.resolved == FOUR
    used, use = [], again._use
    again._use = lambda resolved: (used.append(resolved), use(resolved))[1]  # type: ignore[assignment,func-returns-value,method-assign]
    list(again.run())
    assert used == [LOOP, TWO, FOUR]
    same(again, whole)


def test_what_is_asked_for_is_never_changed(make: Make, tmp_path: Path) -> None:
    """A resumed run that is asked for something else keeps what it has, and is checked no more."""
    upto(make(folder=tmp_path), 1)
    again = make(folder=tmp_path, execution=Execution(device="cpu", way="vmap"))
    list(again.run())
    assert again.executions.taken == [(0, LOOP)]
    assert again.complaints == ["keeps way loop, as it was begun, not vmap; --no-resume starts again"]


def test_a_short_run_is_not_checked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 rounds of two of four clients, at a thousand times the speed: no 30 s of training are promised."""
    assert make().executions.promised and not make(rounds=1).executions.promised


@pytest.mark.parametrize("asked", [{"way": "loop"}, {"way": "vmap", "chunk": 2}, {"workers": 2, "way": "loop"}])
def test_a_fixed_execution_has_nothing_to_check(asked: dict[str, Any]) -> None:
    execution = Execution.model_validate({"device": "cpu", "threads": 1, "workers": 1, **asked})
    with_check = simulation(FedAvg(), execution=execution, adapt=True)
    assert with_check.executions.promised == {}


def same(one: Simulation, other: Simulation) -> None:
    mine, theirs = traces(one), traces(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        fine = (
            torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else repr(value) == repr(theirs[name])
        )
        assert fine, name
