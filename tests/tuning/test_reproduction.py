"""A call of `reproduce` without Ray: what it does with what its workers say."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from toy_suite import ACC, TOY

from pfl_ops import tag_names, tuning
from pfl_ops.data import download
from pfl_ops.data.npz import DataError
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.papers import Claim, Divergences, KeptRuns, Measure, Suite, find
from pfl_ops.recording import FINISHED
from pfl_ops.results import Result
from pfl_ops.tracking.target.run_info import RunInfo
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.suites.cells import CellEvent, elsewhere
from pfl_ops.tuning.suites.reproduction import Reproduction


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


def test_a_finished_cell_is_not_computed_again_on_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data were replaced before it was tracked: a run on the new ones stood under its name."""
    job = tuning.plan([(TOY, TOY.cells)], "smoke").wanted[0]
    call = SimpleNamespace(data_dir=None, parents={TOY.name: None}, plan=SimpleNamespace(scale="smoke"), store=None)
    monkeypatch.setattr("pfl_ops.tuning.suites.reproduction.runs.run", lambda experiment, **more: experiment)
    call.execution = None
    assert Reproduction._track(call, job) == job.experiment
    with pytest.raises(PflOpsError, match=f"^{job.cell.name}: the data, the partition or the weights were replaced"):
        Reproduction._track(call, replace(job, digest="of the former data"))


def test_diverged_repetitions_are_handed_over_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 0 of the first cell diverged in this call, seed 1 in an earlier one; another one has a result since then."""
    how = "diverged at round 2, lr 0.5"

    def diverges(*_: object) -> None:
        raise Diverged(2, 0.5)

    monkeypatch.setattr(Reproduction, "_track", diverges)
    plan = tuning.plan([(TOY, TOY.cells)], "smoke", repetitions=2)
    (part,) = plan.parts
    first, second = (part.jobs[TOY.cells[i].name] for i in (0, 1))

    def failed(digest: str) -> SimpleNamespace:
        return SimpleNamespace(identity=digest, status="FAILED", tags={tag_names.DIVERGED: how}, metrics={})

    store = SimpleNamespace(reachable=True, runs=lambda: [failed(first[1].digest), failed(second[0].digest)])
    kept = {TOY.name: KeptRuns({second[0].cell.name: [row(0, TOY, 150.0)]}, {})}
    call = Reproduction(
        plan, store, None, Execution(), ResourceRequest.of(None, None, None), None, None, None, kept=kept
    )
    call.missing()
    call.parents = {TOY.name: None}
    call._end(first[0], JobEvent("ended", None, failure=Failure(how, diverged=True)))
    assert call._diverged(part) == {first[0].cell.name: {0: how, 1: how}}


def test_of_another_scale_each_seed_is_shown_once() -> None:
    """A suite that was changed leaves its old runs in the store, oldest first. Substitute data count nowhere, nor runs
    with a file of choices that this call does not have."""

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
        run("chosen", 0, "medium", 1.75, **{tag_names.CHOICES: "mine.yaml"}),
    )
    (found,) = elsewhere(plan.parts[0], "smoke", runs).items()
    assert found[0] == "small"
    assert [(one.seed, one.value(ACC)) for one in found[1]["path/fliu"]] == [(0, 1.5), (1, 1.25)]


def test_plan_without_the_data_advises_smoke_and_no_flag_of_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`reproduce` has no --dataset; at smoke other data take the place of those that are missing."""

    def fetch(name: str) -> None:
        raise DataError("no network")

    monkeypatch.setattr(download, "fetch", fetch)
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))
    suite = find("fedas/fig6b")
    with pytest.raises(PflOpsError, match=r"--data-dir, or take --scale smoke, which uses other data in its place\.$"):
        tuning.plan([(suite, suite.cells)], "small", data_dir=str(tmp_path))


def looked_up(
    kept: dict[str, dict[str, list[Result]]], *suites: Suite, diverged: Divergences | None = None, **changes: float
) -> Reproduction:
    """A call with one seed of all cells, and what is missing of it, by files alone; `diverged`: in the first suite."""
    plan = tuning.plan([(suite, suite.cells) for suite in suites], "smoke", repetitions=1, changes=changes)
    store = SimpleNamespace(reachable=False)
    asked = ResourceRequest.of(None, None, None)
    files = {
        suite.name: KeptRuns(kept.get(suite.name, {}), (suite == suites[0] and diverged) or {}) for suite in suites
    }
    call = Reproduction(plan, store, None, Execution(), asked, None, None, None, kept=files)
    call.missing()
    return call


def test_a_run_whose_records_were_damaged_is_not_finished() -> None:
    """It is run: its job reads the checkpoint, and all records are sent again. It was judged without those it lacks."""
    plan = tuning.plan([(TOY, TOY.cells)], "smoke")
    whole, damaged = (
        RunInfo("1", "", "", "FAILED", {tag_names.IDENTITY: job.digest, **tags}, {}, {FINISHED: 1.0}, 0, 1)
        for job, tags in zip(plan.wanted[:2], ({}, {tag_names.MISSING_RECORDS: "1 records are not here"}), strict=True)
    )
    store = SimpleNamespace(reachable=True, runs=lambda: [whole, damaged], history=lambda *_: None)
    call = Reproduction(plan, store, None, Execution(), ResourceRequest.of(None, None, None), None, None, None)
    assert call.missing() == list(plan.wanted[1:])


def row(seed: int, suite: Suite, value: float) -> Result:
    return Result.of_numbers(seed, {}, measures={measure.key: value for measure in suite.measures})


def test_runs_that_a_results_file_has_are_not_run_again() -> None:
    """Seed 0 of one cell, of a suite of five: four are missing."""
    kept = {TOY.name: {"iid/local": [row(0, TOY, 150.0), row(7, TOY, 1.0)]}}
    for changes in ({}, {"training.lr": 0.5}):  # the file's, too: the command reads that of its changes
        call = looked_up(kept, TOY, **changes)
        assert call.wanted == 4
        found = {cell: [one.value(ACC) for one in each] for cell, each in call._outcomes(call.plan.parts[0]).items()}
        assert found == {"iid/local": [150.0]}


def test_a_run_that_diverged_by_a_results_file_is_not_run_again() -> None:
    """In chaotic training rounding decides whether a run diverges: repeated until it finishes, none ever would."""
    how = "diverged at round 7, client 2, lr 0.05"
    kept = {TOY.name: {"iid/fedavg": [row(0, TOY, 150.0)]}}
    call = looked_up(kept, TOY, diverged={"iid/local": {0: how}, "path/fliu": {1: how}})
    assert call.wanted == 3 and call._diverged(call.plan.parts[0]) == {"iid/local": {0: how}}
    assert "iid/local" not in {job.cell.name for job in call.missing()}
    assert not [one for one in call._open(call.plan.parts[0]) if "iid/local" in one.cells]


def test_networks_that_give_one_answer_under_changed_settings_get_no_seeds() -> None:
    """With three clients of two classes a class has a sixth of the test samples, so that the page judges no claim about
    cells with a sixth right in all seeds; the seeds of --until-decided went to these cells all the same."""
    numbers = {ACC: 150.0, "test/G/global/mean": 100 / 6}
    measures = dict.fromkeys((measure.key for measure in TOY.measures), 1.0) | numbers
    dead = [Result.of_numbers(seed, {}, measures=measures) for seed in range(3)]
    kept = {TOY.name: {"path/fedavg": dead, "path/fliu": [row(seed, TOY, 150.0) for seed in range(3)]}}
    for clients, wants in ((3, False), (6, True)):
        call = looked_up(kept, TOY, **{"partition.clients": clients})
        call.read_further()
        (part,) = call.plan.parts
        assert len(part.jobs["path/fedavg"]) == 3
        assert any("path/fedavg" in one.cells for one in call._open(part)) is wants
    fails = Claim("fails", "path/fedavg:test/G/global/mean < 20", untrained=True)
    suite = replace(TOY, claims=(fails, replace(fails, text="not said of a failure", untrained=False)))
    call = looked_up(kept, suite, **{"partition.clients": 3})
    call.read_further()
    assert [one.claim for one in call._open(call.plan.parts[0])] == [fails], "it is judged there, and got no seeds"


def test_s_accuracy_of_own_data_alone_gets_no_seeds() -> None:
    """Of 10 clients 1 % of the other ones is none, so that no page judges the claim; of 100 it is one."""
    key = "test/L1/synthetic_1/mean"
    suite = replace(
        TOY,
        base={**TOY.base, "evaluation.synthetic": [1]},
        measures=(*TOY.measures, Measure(key, "S-acc. c=1 %")),
        claims=(Claim("S-acc.", f"iid/fedavg:{key} > iid/local:{key}"),),
    )
    kept = {TOY.name: {cell.name: [row(seed, suite, 50.0 + seed) for seed in range(3)] for cell in TOY.cells}}
    for clients, wants in ((10, 0), (100, 1)):
        call = looked_up(kept, suite, **{"partition.clients": clients})
        call.read_further()
        assert len(call._open(call.plan.parts[0])) == wants


def test_further_seeds_that_diverged_are_told() -> None:
    """They ended the reading: the page had the mean of the seeds before as that of all, and not those behind."""
    how = "diverged at round 7, client 2, lr 0.05"
    kept = {TOY.name: {"iid/fedavg": [row(seed, TOY, 150.0) for seed in (0, 2)]}}
    call = looked_up(kept, TOY, diverged={"iid/fedavg": {1: how}, "path/fliu": {2: how}})
    assert call._diverged(call.plan.parts[0]) == {}
    call.read_further()
    (part,) = call.plan.parts
    assert [len(part.jobs[cell]) for cell in ("iid/fedavg", "path/fliu", "iid/local")] == [3, 1, 1]
    assert call._diverged(part) == {"iid/fedavg": {1: how}}
    assert [one.seed for one in call._outcomes(part)["iid/fedavg"]] == [0, 2]
    assert not [one for one in call._open(part) if "iid/fedavg" in one.cells]


def test_finished_further_seeds_that_are_left_out_are_counted() -> None:
    """One seed is planned. Seeds 1 and 2 of a cell, and 1 of another, do not count; one that diverged ends a cell."""
    kept = {
        TOY.name: {
            "iid/local": [row(seed, TOY, 150.0) for seed in (0, 1, 2, 4)],
            "iid/fedavg": [row(seed, TOY, 150.0) for seed in (0, 1, 2)],
        }
    }
    call = looked_up(kept, TOY, diverged={"iid/fedavg": {2: "diverged at round 7"}})
    assert call._uncounted(call.plan.parts[0]) == 3
    call.read_further()
    assert call._uncounted(call.plan.parts[0]) == 0


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_that_says_diverged_stays_beside_a_run_of_the_store_that_finished(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed row was replaced by the numbers of a work folder in which rounding had another end.

    Another suite shows the same runs, and is looked up before this one or after it.
    """
    other = replace(TOY, name="toy/fig1", claims=(), exhibits=())
    suites = [TOY, other] if first == 0 else [other, TOY]
    how = "diverged at round 7, client 2, lr 0.05"
    plan = tuning.plan([(suite, suite.cells) for suite in suites], "smoke", repetitions=1)
    done = [
        RunInfo("1", "", "", "FINISHED", {tag_names.IDENTITY: job.digest}, {}, {FINISHED: 1.0}, 0, 1)
        for job in plan.wanted
    ]
    store = SimpleNamespace(reachable=True, runs=lambda: done, history=lambda *_: None)
    kept = {TOY.name: KeptRuns({}, {"iid/local": {0: how}})}
    told: list[CellEvent] = []
    monkeypatch.setattr("pfl_ops.tuning.suites.reproduction.MANY", 5)
    asked = ResourceRequest.of(None, None, None)
    call = Reproduction(plan, store, None, Execution(), asked, None, None, told.append, kept=kept)
    assert call.missing() == []
    for part in call.plan.parts:
        assert call._diverged(part) == {"iid/local": {0: how}}
        assert sorted(call._outcomes(part)) == sorted({cell.name for cell in TOY.cells} - {"iid/local"})
    assert [(event.kind, event.text) for event in told] == [("read", "5 finished runs are read")]


def test_a_file_without_one_of_the_suites_measures_is_no_finished_run() -> None:
    """It was written before the suite had the measure."""
    kept = {TOY.name: {"iid/local": [Result.of_numbers(0, {}, measures={ACC: 150.0})]}}
    assert looked_up(kept, TOY).wanted == 5


def test_the_file_of_one_suite_is_no_result_of_another_that_shows_the_run() -> None:
    """The other suite shows the same five runs, by another measure: all are run, and only its own file ends that."""
    measure = Measure("test/L1/local/worst@80", "rounds")
    other = replace(TOY, name="toy/fig1", measures=(measure,), published={}, claims=(), exhibits=())
    kept = {TOY.name: {cell.name: [row(0, TOY, 150.0)] for cell in TOY.cells}}
    call = looked_up(kept, TOY, other)
    assert call.wanted == 5
    assert call._outcomes(call.plan.parts[0])["path/fliu"][0].value(ACC) == 150.0
    assert call._outcomes(call.plan.parts[1]) == {}
    both = {**kept, other.name: {cell.name: [row(0, other, 12.0)] for cell in TOY.cells}}
    call = looked_up(both, TOY, other)
    assert call.wanted == 0
    table, figure = (call._outcomes(part)["path/fliu"][0] for part in call.plan.parts)
    assert table.value(ACC) == 150.0 and table.value(measure.key) is None and figure.value(measure.key) == 12.0
