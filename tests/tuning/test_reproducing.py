"""Suites through Ray: what is finished is never run again, what fails keeps nobody else from running."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from reproducing_work import dies, work
from toy_suite import ACC, TOY

from pfl_ops import runs, tuning
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import Estimate, duration
from pfl_ops.jobs import runner
from pfl_ops.papers import Cell, Level, Measure, Suite
from pfl_ops.tracking import Store
from pfl_ops.tuning.suites.plans import ReproductionPlan, substitute

pytestmark = pytest.mark.slow

METHODS = TOY.axes["method"]
# the same two environments as a figure: its FedAvg cells are the table's
FIGURE = replace(
    TOY,
    name="toy/fig1",
    axes={"environment": TOY.axes["environment"], "method": {"fedavg": TOY.axes["method"]["fedavg"]}},
    published={},
    claims=(),
    absent=(),
)


def planned(*suites: Suite, cells: tuple[Cell, ...] | None = None, **more: object) -> ReproductionPlan:
    return tuning.plan([(suite, cells or suite.cells) for suite in suites], "smoke", **more)


def reproduce(plan: ReproductionPlan, *, work: Callable, **settings: object) -> list[tuning.Reproduced]:
    """Call `tuning.reproduce` with other work for its processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "simulate", work)
        return tuning.reproduce(plan, **settings)


def worked(home: Path) -> dict[str, int]:
    """Return how often each run was begun, by digest."""
    return {file.name: len(file.read_text()) for file in (home / "worked").iterdir()}


@pytest.fixture(scope="module")
def first(one_ray: None, tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]):
    """Both suites, in a home of their own."""
    home = furnish(tmp_path_factory.mktemp("reproduced"))
    told, gathered = [], []
    plan = planned(TOY, FIGURE)
    found = reproduce(
        plan,
        home=home,
        concurrency=2,
        work=work,
        on_event=told.append,
        on_suite=lambda s: gathered.append(s.suite.name),
    )
    return home, plan, found, told, gathered


def test_a_run_that_two_suites_show_is_planned_once(first) -> None:
    _, plan, _, _, _ = first
    assert len(plan.wanted) == 5
    assert sum(1 for part in plan.parts for _ in part.wanted) == 7


def test_all_cells_have_their_outcome_and_the_refused_one_its_reason(first) -> None:
    _, _, (table, figure), _, gathered = first
    assert set(table.outcomes) == {"iid/fedavg", "iid/local", "path/fedavg", "path/fliu"}
    assert table.problems == {"path/local": "refused by the test"}
    assert set(figure.outcomes) == {"iid/fedavg", "path/fedavg"}
    assert not figure.problems
    assert sorted(gathered) == ["toy/fig1", "toy/table1"]
    (one,) = table.outcomes["iid/fedavg"]
    assert 0 < one.value(ACC, "final", 100) <= 200
    assert list(one.by_round("test/L1/local/mean")) == [0, 1, 2]


def test_a_killed_process_is_followed_by_another_that_goes_on(first) -> None:
    home, plan, (table, _), told, _ = first
    fliu = next(job for job in plan.wanted if job.cell.name == "path/fliu")
    assert worked(home)[fliu.digest] == 2
    assert list(table.outcomes["path/fliu"][0].by_round("test/L1/local/mean")) == [0, 1, 2]
    assert {h.kind for h in told} == {"begin", "start", "round", "end", "failed"}
    assert told[-1].done == told[-1].wanted == 5


def test_the_store_has_a_run_a_cell_below_its_suite(first) -> None:
    home, _, (table, _), _, _ = first
    with Store.open(home) as store:
        runs = store.runs("toy-table1-smoke")
        suite = next(run for run in runs if run.name == "toy/table1 smoke")
        cells = {run.name: run for run in runs if run.parent == suite.run_id}
    assert set(cells) == {"iid/fedavg seed 0", "iid/local seed 0", "path/fedavg seed 0", "path/fliu seed 0"}
    tags = cells["path/fliu seed 0"].tags
    assert (tags["pfl_ops.suite"], tags["pfl_ops.cell"], tags["pfl_ops.scale"]) == ("toy/table1", "path/fliu", "smoke")
    assert table.outcomes["path/fliu"][0].run_id == cells["path/fliu seed 0"].run_id


def test_what_is_finished_is_read_and_only_the_rest_is_run(first) -> None:
    home, plan, (before, _), _, _ = first
    count = worked(home)
    told: list = []
    (table,) = reproduce(planned(TOY), home=home, work=work, on_event=told.append)
    refused = next(job for job in plan.wanted if job.cell.name == "path/local")
    assert worked(home) == {**count, refused.digest: 2}  # a failed cell is tried again
    assert told[0].wanted == 1
    assert {c: o[0].value(ACC) for c, o in table.outcomes.items()} == {
        c: o[0].value(ACC) for c, o in before.outcomes.items()
    }
    assert table.outcomes["iid/fedavg"][0].by_round("test/L1/local/mean") == before.outcomes["iid/fedavg"][0].by_round(
        "test/L1/local/mean"
    )


def test_cells_of_an_earlier_call_are_shown_too(first) -> None:
    home, _, _, _, _ = first
    (table,) = reproduce(planned(TOY, cells=(TOY.cell("iid/local"),)), home=home, work=dies)
    assert table.part.chosen == ("iid/local",)
    assert set(table.outcomes) == {"iid/fedavg", "iid/local", "path/fedavg", "path/fliu"}


def test_a_process_that_always_dies_is_a_failed_cell(one_ray: None, tmp_path: Path) -> None:
    (table,) = reproduce(planned(TOY, cells=(TOY.cell("iid/local"),)), home=tmp_path, work=dies)
    assert "its process died twice" in table.problems["iid/local"]
    assert not table.outcomes


def test_a_dry_run_tells_what_it_takes_and_writes_no_run(one_ray: None, tmp_path: Path) -> None:
    told: list = []
    assert not reproduce(planned(TOY), home=tmp_path, dry_run=True, on_event=told.append, work=dies)
    assert told[0].text.startswith("5 runs, ")
    with Store.open(tmp_path) as store:
        assert store.runs() == []


def test_records_of_a_killed_call_are_delivered_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a finished run is planned again, and reports of other scales lack it."""
    monkeypatch.setattr(runs, "estimate", lambda *_, **__: Estimate(100, 0.2, 0, 500, 800, 1))
    calls: list[str] = []
    for name in ("deliver", "runs"):
        called = getattr(Store, name)
        monkeypatch.setattr(Store, name, lambda *a, _n=name, _f=called: (calls.append(_n), _f(*a))[1])
    reproduce(planned(TOY), home=tmp_path, dry_run=True, work=dies)
    assert calls == ["deliver", "runs"]


def test_a_dry_run_makes_no_work_folder(tmp_path: Path) -> None:
    told: list = []
    assert not reproduce(planned(TOY), home=tmp_path / "none", dry_run=True, on_event=told.append, work=dies)
    assert told[0].text.startswith("5 runs, ") and not [*tmp_path.iterdir()]


def test_an_estimate_counts_runs_and_their_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five runs: 100 s of rounds, and 0.7 s beside them."""
    monkeypatch.setattr(runs, "estimate", lambda *_, **__: Estimate(100, 0.2, 0, 500, 800, 1))
    told: list = []
    reproduce(planned(TOY), home=tmp_path, dry_run=True, on_event=told.append, work=dies, concurrency=1)
    assert told[-1].text.startswith(f"5 runs, 1 at once, about {duration(5 * 100.7)}, memory 800 MiB")


def test_a_cell_that_cannot_be_measured_keeps_no_other_from_running(tmp_path: Path) -> None:
    """Digits has fewer images than these clients, which shows when an experiment is built."""
    crowd = {"partition.clients": 5000}
    told: list = []

    def estimate(**methods: Level) -> str:
        suite = replace(TOY, axes={**TOY.axes, "method": {**METHODS, **methods}})
        plan = tuning.plan([(suite, suite.cells)], "small", repetitions=1)
        reproduce(plan, home=tmp_path, dry_run=True, on_event=told.append, work=dies)
        return str(told[-1].text)

    fedavg = METHODS["fedavg"]
    in_iid = replace(fedavg, changes={**fedavg.changes, **crowd})  # path has its own number of clients
    assert "could be measured" not in estimate(fedavg=in_iid)
    said = estimate(fedavg=replace(fedavg, at={"small": crowd}))
    assert said.startswith("5 runs, ") and "without 2 of them, of which no round could be measured" in said
    assert "measured: toy/table1, cell path/fedavg: " in said
    with pytest.raises(PflOpsError, match=r"^toy/table1, cell \w+/\w+: .*5,000 clients"):
        estimate(**{name: replace(level, at={"small": crowd}) for name, level in METHODS.items()})


def test_data_that_are_not_here_are_replaced_at_smoke_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    nowhere = str(tmp_path)
    assert substitute(TOY, "kmnist", "smoke", nowhere) == "digits"
    assert {substitute(TOY, "kmnist", scale, nowhere) for scale in ("small", "medium", "full")} == {None}
    (tmp_path / "fashion_mnist.npz").touch()
    assert substitute(replace(TOY, instead={"kmnist": "fashion_mnist"}), "kmnist", "small", nowhere) == "fashion_mnist"
    assert substitute(TOY, "digits", "smoke", nowhere) is None
    plan = planned(replace(TOY, base={**TOY.base, "data.name": "kmnist"}), data_dir=nowhere)
    assert set(plan.parts[0].stand_ins.values()) == {"digits"}
    assert {job.experiment.data.name for job in plan.wanted} == {"digits"}


def test_a_picture_of_a_partition_needs_no_run(tmp_path: Path) -> None:
    allocation = replace(TOY, name="toy/fig2", measures=(), published={}, claims=(), exhibits=())
    assert not planned(allocation).wanted
    (found,) = reproduce(planned(allocation), home=tmp_path, work=dies)
    assert not found.outcomes
    assert set(found.part.jobs) == {cell.name for cell in allocation.cells}


@pytest.mark.parametrize("measures", [TOY.measures, ()])
def test_nothing_that_can_be_run_or_shown_is_an_error(measures: tuple[Measure, ...]) -> None:
    wrong = replace(TOY, base={**TOY.base, "training.lr": -1.0}, measures=measures)
    with pytest.raises(PflOpsError, match="toy/table1, cell iid/fedavg"):
        planned(wrong, cells=(TOY.cell("iid/fedavg"), TOY.cell("iid/local")))
