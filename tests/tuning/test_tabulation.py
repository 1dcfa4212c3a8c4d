"""Tables of trials: the plan, the file, runs that are cut short or fail, and one small table with a real Ray."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tuning_fake import toy
from typer.testing import CliRunner

from pfl_ops import runs, spaces
from pfl_ops.cli import app
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import Estimate
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.tables import tabulation
from pfl_ops.tuning.tables.replay import StudyRule, replay
from pfl_ops.tuning.tables.table_plan import TablePlan
from pfl_ops.tuning.tables.tabulation import TabulationInterrupted, record_of, tabulate
from pfl_ops.tuning.tables.trial_table import ABOUT, RunRecord, TrialTable

SPACE = "algorithm.x: {float: [0, 1]}\nfirst: [{algorithm.x: 0.5}]"
CPU = Execution(device="cpu", way="loop", workers=1, threads=1)


def plan(configurations=2, seeds=2, environments=("path", "iid"), metric=None, **settings):
    one = Settings.of(toy(2, **settings), spaces.parse(SPACE), metric=metric, environments=environments)
    return TablePlan.of([one], configurations, seeds)


def score(experiment):
    """x + seed/100 on validation data; 1 less on test data, so that the two are never mixed up."""
    return experiment.algorithm.x + experiment.seed / 100 - (experiment.evaluation.split == "test")


class FakeRunner:
    """Runs jobs in this process, without Ray.

    Attributes:
        ran: names of all jobs that ended, over all instances. stop_after: Ctrl-C after so many.
        failures: name of a job -> its failure.
    """

    ran: ClassVar[list[str]] = []
    stop_after: ClassVar[int | None] = None
    failures: ClassVar[dict[str, Failure]] = {}

    def __init__(self, place, concurrency, on_job):
        self.place, self.on_job = place, on_job

    def run(self, source, folder, name):
        while (job := source.next()) is not None:
            if self.stop_after is not None and len(self.ran) == self.stop_after:
                raise KeyboardInterrupt
            split = "test" if job.experiment.evaluation.split == "test" else "val"
            assert job.payload.sealed == (split == "val")
            failure = self.failures.get(job.name)
            self.on_job(JobEvent("started", job))
            for t in range(2 if failure else 3):
                cost = {"cost/samples_per_second": 20.0, "cost/train_seconds": 0.5} if t else {}
                values = {f"{split}/L1/acc": score(job.experiment) * t / 2, **cost}
                self.on_job(JobEvent("rounds", job, (Record(t, values, 0),)))
            self.ran.append(job.name)
            self.on_job(JobEvent("ended", job, failure=failure))


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """The runner above, for `tabulate`."""

    @contextmanager
    def cluster(address):
        yield tmp_path

    monkeypatch.setattr(tabulation, "Runner", FakeRunner)
    monkeypatch.setattr(tabulation, "cluster", cluster)
    monkeypatch.setattr(tabulation, "share", lambda *_: ResourceShare(1.0, 0.0, 1))
    monkeypatch.setattr(tabulation, "settle", lambda experiment, execution, data_dir, gpus: execution)
    monkeypatch.setattr(FakeRunner, "ran", [])
    monkeypatch.setattr(FakeRunner, "stop_after", None)
    monkeypatch.setattr(FakeRunner, "failures", {})
    return FakeRunner


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_plan_has_the_first_points_then_different_random_ones():
    points = plan(6).points[0]
    assert points[0] == {"algorithm.x": 0.5}
    assert len({point["algorithm.x"] for point in points}) == 6
    assert plan(3).points[0] == points[:3] and plan(6).points[0] == points


def grid_plan(axes, seeds=2, environments=("path", "iid"), own=SPACE, **settings):
    space = spaces.grid_space(axes, spaces.parse(own))
    one = Settings.of(toy(2, **settings), space, environments=environments)
    return TablePlan.of([one], seeds=seeds, axes=axes)


KINDS = "algorithm.kind: {choice: [plain, bent]}\nalgorithm.x: {float: [0, 1], when: {algorithm.kind: bent}}"


def test_plan_of_a_grid_has_all_combinations_in_the_order_given():
    """2 x 2 values, 2 environments, 3 seeds, 2 splits: 48 runs. The first points of the method's space do not count."""
    made = grid_plan({"algorithm.x": [0.5, 0.25], "training.lr": [0.1, 0.01]}, 3)
    assert made.points == (tuple({"algorithm.x": x, "training.lr": lr} for x in (0.5, 0.25) for lr in (0.1, 0.01)),)
    assert len(made.runs) == 48 and len({run.experiment.digest() for run in made.runs}) == 48
    ranges = {p.key: (p.kind, p.low, p.high, p.log) for p in made.settings[0].space.parameters}
    assert ranges == {"algorithm.x": ("float", 0.25, 0.5, False), "training.lr": ("float", 0.01, 0.1, False)}


def test_plan_of_a_grid_leaves_a_field_out_where_it_does_not_exist():
    """x belongs to the kind `bent`: 1 + 2 points of 4 combinations. A range is logarithmic where the method's is."""
    axes = {"algorithm.kind": ["plain", "bent"], "algorithm.x": [0.1, 1.0]}
    assert grid_plan(axes, own=KINDS).points == (
        (
            {"algorithm.kind": "plain"},
            {"algorithm.kind": "bent", "algorithm.x": 0.1},
            {"algorithm.kind": "bent", "algorithm.x": 1.0},
        ),
    )
    logarithmic = grid_plan({"algorithm.x": [0.1, 1.0]}, own="algorithm.x: {float: [0.01, 1], log: true}")
    assert logarithmic.settings[0].space.parameters[0].log


@pytest.mark.parametrize(
    ("axes", "expects"),
    [
        ({"algorithm.x": [0.5, 0.5]}, "--grid algorithm.x has a value twice"),
        ({"algorithm.x": [0.5, 2.0]}, "algorithm.x"),
        ({"algorithm.x": ["a", 0.5]}, "algorithm.x"),
        ({"algorithm.x": [[0.5]]}, "--grid algorithm.x: values are numbers, texts, true, false or null"),
        ({"algorithm.kind": ["plain", "plain "]}, "algorithm.kind"),
        (
            {"training.batch_size": ["none", None]},
            "--grid has one experiment twice: training.batch_size=none;",
        ),
        ({"algorithm.y": [0.5]}, "the experiment has no such field"),
        ({"data.name": ["mnist"]}, "is the same in all trials of a study"),
        ({"algorithm.x": [0.5], "participation.share": [0.5]}, "--grid participation.share is set by an environment"),
        ({"algorithm.x": [i / 1000 for i in range(101)], "training.lr": [i / 100 for i in range(1, 101)]}, "10,100"),
        ({"algorithm.kind": ["plain"], "algorithm.x": [0.5]}, "--grid algorithm.x exists where algorithm.kind is bent"),
    ],
)
def test_grid_refuses_what_can_not_be_in_one_line(axes, expects):
    own = KINDS if "algorithm.kind" in axes else SPACE
    with pytest.raises(PflOpsError) as caught:
        grid_plan(axes, environments=("path", "participation.share=0.5"), own=own)
    assert expects in str(caught.value) and "\n" not in str(caught.value)


def test_plan_of_a_small_space_has_all_of_it():
    one = Settings.of(toy(2), spaces.parse("algorithm.kind: {choice: [plain, bent]}"))
    assert sorted(point["algorithm.kind"] for point in TablePlan.of([one], 40, 1).points[0]) == ["bent", "plain"]


def test_plan_runs_every_configuration_on_both_splits():
    """2 configurations, 2 environments, 3 seeds, 2 splits: 24 runs, all with different hashes."""
    made = plan(2, 3, seed=7)
    assert len(made.runs) == 24 and len({run.experiment.digest() for run in made.runs}) == 24
    assert {run.seed for run in made.runs} == {7, 8, 9}
    one = made.runs[1]
    assert str(one) == "toy configuration 0, path, seed 7, test" and one.metric == "test/L1/acc"
    assert one.experiment.evaluation.split == "test" and one.experiment.partition.kind == "path"
    assert made.runs[0].experiment.evaluation.split == "validation"


def test_plan_test_runs_have_the_partition_of_validation_runs():
    """With pooled data another partition would make validation samples of one run test samples of another."""
    made = plan(1, 3, environments=())
    assert len({run.experiment.partition.seed for run in made.runs}) == 1


@pytest.mark.parametrize(
    ("numbers", "expects"), [((0, 2), "--configurations must be in"), ((2, 0), "--seeds must be in")]
)
def test_plan_refuses_numbers_that_can_not_be(numbers, expects):
    with pytest.raises(PflOpsError, match=expects):
        plan(*numbers)


def test_plan_refuses_several_metrics_and_those_of_no_split():
    for metric, expects in ((["val/L1/acc", "val/G/acc"], "of one metric"), ("train/loss", "on validation data")):
        one = Settings.of(toy(2), spaces.parse(SPACE), metric=metric)
        with pytest.raises(PflOpsError, match=expects):
            TablePlan.of([one])


def test_test_score_of_the_last_round_alone_is_that_of_a_run_scored_in_every_round():
    """The truth is scored once, which is cheaper: evaluation must not change training, nor its sample the score."""
    settings = {"dataset": "digits", "model": "linear", "clients": 4, "rounds": 3, "data.train_size": 200}
    one = Settings.of(Experiment.of("fliu", **settings), None, hold={"partition.kind"})
    run = TablePlan.of([one], 1, 1).runs[1]
    every = run.experiment.override({"evaluation.every": 1, "evaluation.global_every": 1})
    scores = []
    for experiment in (run.experiment, every):
        *_, last = experiment.build(execution=CPU).run()
        scores.append(last.metrics["test/L1/acc"])
    assert scores[0] == scores[1]


# -- the file ---------------------------------------------------------------------------------------------------------


def test_table_has_validation_curves_and_the_truth_apart(fake, tmp_path):
    """x = 0.5 with seed 1: 0, 0.255, 0.51 over the rounds on validation data, and 0.51 − 1 on test data at the end."""
    file = tmp_path / "t.parquet"
    tabulate(plan(), file, execution=CPU)
    table = TrialTable.read(file)
    rows = table.frame.query("configuration == 0 and environment == 'path' and seed == 1")
    assert rows["round"].tolist() == [0, 1, 2] and rows["samples"].tolist() == [0, 10, 20]
    assert rows["val/L1/acc"].tolist() == pytest.approx([0, 0.255, 0.51])
    assert rows["truth/test/L1/acc"].isna().tolist() == [True, True, False]
    assert rows["truth/test/L1/acc"].iloc[-1] == pytest.approx(-0.49)
    assert {json.loads(text)["algorithm.x"] for text in rows["settings"]} == {0.5}
    assert len(table.frame) == 2 * 2 * 2 * 3 and table.frame["hash"].nunique() == 8
    about = json.loads(pq.read_schema(file).metadata[ABOUT])
    assert about["test_openings"] == 8 and about["methods"]["toy"]["metric"] == "val/L1/acc"
    assert not (tmp_path / "t.parquet.runs").exists()


def test_table_gives_the_problems_of_a_replay(fake, tmp_path):
    tabulate(plan(3, 2), tmp_path / "t.parquet", execution=CPU)
    first, second = TrialTable.read(tmp_path / "t.parquet").problems()
    assert (first.environment, second.environment, first.metric, first.larger) == ("path", "iid", "val/L1/acc", True)
    assert (
        first.seeds == (0, 1) and (first.rounds, first.full_every) == (2, 1) and first.space == plan().settings[0].space
    )
    assert first.points == plan(3).points[0]
    for (number, seed), value in first.values.items():
        x = first.points[number]["algorithm.x"]
        assert value == pytest.approx(x + seed / 100) and first.truths[number, seed] == pytest.approx(value - 1)
        assert first.curves[number, seed] == pytest.approx({0: 0, 1: value / 2, 2: value})
        assert first.samples[number, seed] == {0: 0, 1: 10, 2: 20} and first.cost(number, seed) == 20


def test_table_keeps_runs_that_diverged_without_a_result(fake, tmp_path):
    fake.failures = {
        "toy configuration 0, lsqs, seed 0, validation": Failure("diverged at round 2", diverged=True),
        "toy configuration 1, lsqs, seed 1, test": Failure("diverged at round 1", diverged=True),
    }
    tabulate(plan(environments=()), tmp_path / "t.parquet", execution=CPU)
    fake.failures = {}
    (problem,) = TrialTable.read(tmp_path / "t.parquet").problems()
    assert {key for key, value in problem.values.items() if math.isnan(value)} == {(0, 0)}
    assert {key for key, value in problem.truths.items() if math.isnan(value)} == {(1, 1)}
    assert problem.cost(0, 0) == 10 and set(problem.curves[0, 0]) == {0, 1}


def test_table_in_which_every_test_run_diverged_has_no_truth(fake, tmp_path):
    fake.failures = {f"toy configuration 0, lsqs, seed {s}, test": Failure("diverged", diverged=True) for s in (0, 1)}
    tabulate(plan(1, 2, ()), tmp_path / "t.parquet", execution=CPU)
    (problem,) = TrialTable.read(tmp_path / "t.parquet").problems()
    assert all(math.isnan(value) for value in problem.truths.values()) and len(problem.values) == 2


def test_table_in_which_a_run_has_no_score_at_all_is_whole(fake, tmp_path):
    """A run that diverges before its first score has one row, without a score and without cost."""
    made = plan(1, 1, ())
    runs_of = {run: RunRecord(run.experiment.digest(), (), "diverged at round 1") for run in made.runs}
    frame = made.table(runs_of).frame
    assert len(frame) == 1 and frame["round"].item() == 0 and frame["error"].item() == "diverged at round 1"


def test_record_of_a_run_without_a_finite_score_has_an_error():
    found = record_of("val/L1/acc", "h", {0: {"val/L1/acc": 0.1}, 2: {"val/L1/acc": math.nan}})
    assert found.error == "val/L1/acc has no finite value after the last round"
    assert found.rounds[-1] == {"round": 2, "samples": 0, "sent_bytes": 0.0}
    assert record_of("val/L1/acc", "h", {}).error


def test_record_of_a_run_that_diverged_counts_the_round_that_did():
    """10 samples in round 1, 10 in round 2, which diverged and has no record. They were not counted, so that a search
    that replays had runs for nothing: all those that diverge in round 1."""
    cost = {"cost/samples_per_second": 20.0, "cost/train_seconds": 0.5, "cost/up_bytes": 3.0}
    records = {0: {"val/L1/acc": 0.1}, 1: {"val/L1/acc": 0.2, **cost}}
    found = record_of("val/L1/acc", "h", records, "diverged at round 2", {"samples": 20, "sent_bytes": 6.0})
    assert found.rounds[-1] == {"round": 2, "samples": 20, "sent_bytes": 6.0}
    assert found.rounds[:2] == record_of("val/L1/acc", "h", records, "diverged at round 2").rounds
    few = record_of("val/L1/acc", "h", {0: {"val/L1/acc": 0.1}, 1: cost, 2: cost}, "diverged at round 3")
    assert few.rounds[1:] == ({"round": 2, "samples": 20, "sent_bytes": 6.0},), "rounds 1 and 2 were not evaluated"


def test_record_of_a_test_run_has_no_training_loss():
    """The truth is scores on test data; the training loss of that run is none of them."""
    values = {"test/L1/acc": 0.5, "val/L1/acc": 0.4, "train/loss": 0.1}
    assert record_of("test/L1/acc", "h", {2: values}).rounds[0] == {
        "round": 2, "samples": 0, "sent_bytes": 0.0, "test/L1/acc": 0.5,
    }  # fmt: skip
    assert record_of("val/L1/acc", "h", {2: values}).rounds[0]["train/loss"] == 0.1


@pytest.mark.parametrize("content", [None, b"no table", "columns", "version", "about"])
def test_table_read_refuses_other_files_in_one_line(content, fake, tmp_path):
    file = tmp_path / "t.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        made = tabulate(plan(1, 1), file, execution=CPU)
        table = pq.read_table(file)
        if content == "columns":
            table = table.drop_columns(["seed"])
        else:
            about = b'{"version": 99, "methods": {}}' if content == "version" else b'{"version": 1, "methods": {}}'
            table = table.replace_schema_metadata({ABOUT: about})
        pq.write_table(table, file)
        assert len(made.frame)
    expected = {None: "no file '", "columns": "no column seed", "version": "version 99", "about": "little about toy"}
    expects = expected.get(content, "no table of trials")
    with pytest.raises(PflOpsError) as caught:
        TrialTable.read(file)
    assert expects in str(caught.value) and "\n" not in str(caught.value)


EDITS = {
    "samples": (
        lambda frame: frame.assign(samples=frame["samples"].where(frame.index != 4)),
        4,
        "samples must be a whole",
    ),
    "groups": (
        lambda frame: frame.assign(groups=frame["groups"].mask(frame.index == 5, "{0: 1}")),
        5,
        "groups must be",
    ),
    "groups null": (
        lambda frame: frame.assign(groups=frame["groups"].mask(frame.index == 5)),
        5,
        "groups must be a text",
    ),
    "error": (lambda frame: frame.assign(error=None), 0, "error must be a text"),
    "last row": (lambda frame: frame.drop(index=5), 4, "truth/test/L1/acc has no value, but this is the last row of"),
    "row": (lambda frame: frame.drop(index=4), 4, "this run (seed 0) has no row of round 1, which other seeds of this"),
    "twice": (lambda frame: pd.concat([frame, frame.iloc[[3]]]), 24, "a second row of the same run and round"),
    "settings": (
        lambda frame: frame.assign(settings=frame["settings"].mask(frame.index == 7, "{}")),
        7,
        "other settings",
    ),
    "truth": (lambda frame: frame.drop(columns="truth/test/L1/acc"), 2, "truth/test/L1/acc has no value"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_table_is_refused_with_its_file_and_row(edit, fake, tmp_path):
    """NaN and bad groups were internal errors; without a row, its run had the value of an earlier round."""
    change, row, expects = EDITS[edit]
    file = tmp_path / "t.parquet"
    table = tabulate(plan(), file, execution=CPU)
    replace(table, frame=change(table.frame)).write(file)
    with pytest.raises(PflOpsError) as caught:
        TrialTable.read(file)
    assert f"t.parquet', row {row} (from 0): {expects}" in str(caught.value) and "\n" not in str(caught.value)


def test_table_with_shuffled_rows_is_read_in_the_order_of_its_rounds(fake, tmp_path):
    """The value of a run was that of its row that came last in the file."""
    file = tmp_path / "t.parquet"
    table = tabulate(plan(), file, execution=CPU)
    replace(table, frame=table.frame.sample(frac=1, random_state=0)).write(file)
    mixed, whole = ({p.environment: p for p in one.problems()} for one in (TrialTable.read(file), table))
    for name, problem in whole.items():
        assert mixed[name].values == problem.values and mixed[name].truths == problem.truths
        assert mixed[name].points == problem.points and mixed[name].curves == problem.curves


def test_table_without_a_run_is_no_problem_to_replay(fake, tmp_path):
    table = tabulate(plan(), tmp_path / "t.parquet", execution=CPU)
    frame = table.frame.query("not (configuration == 1 and seed == 0 and environment == 'iid')")
    with pytest.raises(PflOpsError, match="no run of toy's configuration 1 in iid with seed 0"):
        TrialTable(frame, table.methods).problems()


# -- going on ---------------------------------------------------------------------------------------------------------


def test_interrupted_table_goes_on_with_the_runs_that_are_missing(fake, tmp_path):
    """Ctrl-C after 5 of 16 runs; a kill in the middle of a line loses that run alone."""
    file, folder = tmp_path / "t.parquet", tmp_path / "t.parquet.runs"
    fake.stop_after = 5
    with pytest.raises(TabulationInterrupted, match=r"stopped: 5 of 16 runs .* the same command goes on") as caught:
        tabulate(plan(), file, execution=CPU)
    assert caught.value.exit_code == 130 and not file.exists()
    journal = folder / tabulation.JOURNAL
    assert len(journal.read_text().splitlines()) == 5
    journal.write_text(journal.read_text()[:-20])
    fake.stop_after = None
    told = []
    tabulate(plan(), file, execution=CPU, on_progress=lambda done, wanted, _: told.append((done, wanted)))
    assert len(fake.ran) == 17 and fake.ran[4] == fake.ran[5] and len(set(fake.ran)) == 16
    assert told[0] == (5, 16) and told[-1] == (16, 16)
    assert len(TrialTable.read(file).frame) == 24 and not folder.exists()


def test_interrupted_table_of_another_metric_gives_none_of_its_records(fake, tmp_path):
    """Its runs had no score of clients with ten samples: "has no finite value" stood in the table of the mean, too."""
    file = tmp_path / "t.parquet"
    fake.stop_after = 5
    with pytest.raises(TabulationInterrupted):
        tabulate(plan(metric="val/L1/local/worst_min10"), file, execution=CPU)
    with pytest.raises(TabulationInterrupted, match=r"stopped: 0 of 16 runs"):
        tabulate(plan(), file, execution=CPU)
    fake.stop_after = 8
    with pytest.raises(TabulationInterrupted, match=r"stopped: 3 of 16 runs"):
        tabulate(plan(), file, execution=CPU)
    fake.stop_after = None
    table = tabulate(plan(), file, execution=CPU)
    assert len(fake.ran) == 5 + 16 and not table.frame["error"].any() and table.frame["val/L1/acc"].notna().all()


def test_runs_come_in_batches_and_each_is_run_once(fake, tmp_path, monkeypatch):
    """16 runs in batches of 5: the last has one; Ctrl-C in the third batch keeps the first twelve."""
    monkeypatch.setattr(tabulation, "BATCH", 5)
    fake.stop_after = 12
    with pytest.raises(TabulationInterrupted, match="12 of 16"):
        tabulate(plan(), tmp_path / "t.parquet", execution=CPU)
    fake.stop_after = None
    tabulate(plan(), tmp_path / "t.parquet", execution=CPU)
    assert len(fake.ran) == 16 == len(set(fake.ran))


def test_finished_table_is_read_and_extended(fake, tmp_path):
    """The same command runs nothing and leaves the file; a seed and a configuration more: 18 − 8 runs."""
    file = tmp_path / "t.parquet"
    first = tabulate(plan(2, 2, ()), file, execution=CPU)
    assert len(fake.ran) == 8
    before = file.read_bytes()
    again = tabulate(plan(2, 2, ()), file, execution=CPU)
    assert len(fake.ran) == 8 and file.read_bytes() == before and again.frame.equals(first.frame)
    larger = tabulate(plan(3, 3, ()), file, execution=CPU)
    assert len(fake.ran) == 18
    kept = larger.frame.query("configuration < 2 and seed < 2").reset_index(drop=True)
    assert np.array_equal(kept["val/L1/acc"], first.frame["val/L1/acc"])
    assert kept["hash"].tolist() == first.frame["hash"].tolist()


def test_finished_table_that_is_asked_for_leaves_an_extension_alone(fake, tmp_path):
    """While a process adds seeds, the command with the old ones reads the file. It removed journal, lock, checkpoints.

    A kill then lost all runs of the extension, and a third process could begin the same ones.
    """
    file, folder = tmp_path / "t.parquet", tmp_path / "t.parquet.runs"
    first = tabulate(plan(2, 2, ()), file, execution=CPU)
    found = []

    def meanwhile(done, wanted, _):
        if done == 9:
            found.append(tabulate(plan(2, 2, ()), file, execution=CPU))
            with pytest.raises(PflOpsError, match=r"another process makes .*t.parquet; wait for it"):
                tabulate(plan(2, 3, ()), file, execution=CPU)
            assert (folder / tabulation.JOURNAL).read_text().count("\n") == 1

    larger = tabulate(plan(2, 3, ()), file, execution=CPU, on_progress=meanwhile)
    assert found[0].frame.equals(first.frame) and len(fake.ran) == 12
    assert TrialTable.read(file).frame.equals(larger.frame) and not folder.exists()


def test_table_that_another_process_has_extended_meanwhile_is_kept(fake, tmp_path, monkeypatch):
    """Two calls at once, for 3 and for 2 seeds; when the second one began there was no file. It replaced the larger."""
    file, seen = tmp_path / "t.parquet", []
    make = tabulation.Tabulation.make

    def late(call):
        if not seen:
            seen.append(True)
            tabulate(plan(2, 3, ()), file, execution=CPU)
        return make(call)

    monkeypatch.setattr(tabulation.Tabulation, "make", late)
    with pytest.raises(PflOpsError, match="4 runs that are not of this table"):
        tabulate(plan(2, 2, ()), file, execution=CPU)
    assert len(TrialTable.read(file).frame) == 2 * 3 * 3 and len(fake.ran) == 12


def test_grid_is_continued_extended_and_replayed(fake, tmp_path):
    """2 values, 3 seeds: 12 runs, of which 5 are made before Ctrl-C. A third value, put between them, adds 6."""
    file = tmp_path / "t.parquet"
    fake.stop_after = 5
    with pytest.raises(TabulationInterrupted, match="5 of 12"):
        tabulate(grid_plan({"algorithm.x": [0.25, 0.75]}, 3, ()), file, execution=CPU)
    fake.stop_after = None
    tabulate(grid_plan({"algorithm.x": [0.25, 0.75]}, 3, ()), file, execution=CPU)
    assert len(fake.ran) == 12
    tabulate(grid_plan({"algorithm.x": [0.25, 0.5, 0.75]}, 3, ()), file, execution=CPU)
    assert len(fake.ran) == 18
    (problem,) = TrialTable.read(file).problems()
    assert [point["algorithm.x"] for point in problem.points] == [0.25, 0.5, 0.75]
    assert problem.values[1, 2] == pytest.approx(0.52)
    study, *_ = replay(problem, StudyRule(trials=3, confirm=1), studies=1)
    assert study.confirm.configuration == 2 and study.confirm.regret == 0


def test_table_of_other_settings_is_not_replaced(fake, tmp_path):
    file = tmp_path / "t.parquet"
    tabulate(plan(2, 2), file, execution=CPU)
    before = file.read_bytes()
    for other in (plan(2, 2, clients=5), plan(1, 2)):
        with pytest.raises(PflOpsError, match=r"that are not of this table .* name another --out"):
            tabulate(other, file, execution=CPU)
    assert file.read_bytes() == before and len(fake.ran) == 16


def test_run_that_failed_is_said_and_run_again(fake, tmp_path):
    file, name = tmp_path / "t.parquet", "toy configuration 1, iid, seed 0, test"
    fake.failures = {name: Failure("its process died twice", died=True)}
    with pytest.raises(PflOpsError, match=f"1 of 16 runs failed, the first: {name}: its process died twice"):
        tabulate(plan(), file, execution=CPU)
    assert not file.exists() and len(fake.ran) == 16
    fake.failures = {}
    tabulate(plan(), file, execution=CPU)
    assert fake.ran[16:] == [name] and file.exists()


def test_finished_run_leaves_no_checkpoint(fake, tmp_path, monkeypatch):
    """Thousands of checkpoints would fill the disk; that of a run which is cut short stays."""
    forgotten = []
    monkeypatch.setattr(
        tabulation,
        "runs",
        SimpleNamespace(
            forget=lambda experiment, **where: forgotten.append((experiment.seed, where["stages"])),
            kept_clients=lambda *_, **__: {},
        ),
    )
    tabulate(plan(1, 1, ()), tmp_path / "t.parquet", execution=CPU)
    assert forgotten == [(0, ("L1",)), (0, None)]


# -- commands ---------------------------------------------------------------------------------------------------------


def command(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize(
    ("words", "expects"),
    [
        (["tabulate", "fedavg"], "--out FILE.parquet is missing"),
        (["tabulate", "--out", "t.parquet"], "name at least one method"),
        (["tabulate", "fedavg", "--out", "t.csv"], "--out takes a file that ends in .parquet"),
        (["tabulate", "fedav", "--out", "t.parquet"], "Did you mean 'fedavg'?"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--seeds", "0"], "--seeds must be in"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--repetitions", "2"], "a table has --seeds, not --repetitions"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--environments", "pathh"], "Did you mean 'path'?"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--metric", "test/L1/acc"], "tuning never sees the test data"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lr"], "--grid needs PATH=V1,V2, as in"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lr="], "--grid needs PATH=V1,V2, as in"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lrr=1"], "Did you mean 'training.lr'?"),
        (["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lr=-1,1"], "must be a number in (0, "),
        (
            ["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lr=1", "--configurations", "3"],
            "leave out --configurations",
        ),
        (
            ["tabulate", "fedavg", "--out", "t.parquet", "--grid", "training.lr=1,2", "--lr", "1"],
            "--grid training.lr is set by a flag, --set or --vary, too",
        ),
        (["replay", "t.parquet"], "no file 't.parquet'"),
        (["replay", "t.parquet", "--scheduler", "ash"], "--scheduler must be one of asha, paired, none"),
        (["replay", "t.parquet", "--sampler", "tp"], "--sampler must be one of tpe, random"),
        (["replay", "t.parquet", "--csv", "t.txt"], "--csv takes a file that ends in .csv"),
    ],
)
def test_bad_command_line_is_one_line_and_leaves_nothing(words, expects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = command(*words)
    assert found.exit_code == 2 and expects in found.stderr and not found.stdout
    assert len(found.stderr.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


def test_values_of_a_file_that_the_space_varies_are_named(tmp_path, monkeypatch):
    """As `tune` does; --grid is said by the user."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("training: {lr: 0.2, rounds: 1}\ndata: {name: digits}\nmodel: {name: linear}\n")
    words = ["tabulate", "fedavg", "--config", "mine.yaml", "--seeds", "1", "--out", "t.parquet", "--dry-run"]
    line = "searched, not held at the value given: training.lr (--config mine.yaml); a flag or --set holds a setting"
    found = command(*words, "--configurations", "1")
    assert found.exit_code == 0 and line in found.stdout.splitlines(), found.output
    for more in (["--lr", "0.2", "--configurations", "1"], ["--grid", "training.lr=0.1,0.3"]):
        found = command(*words, *more)
        assert found.exit_code == 0 and "searched, not" not in found.output, found.output


def test_dry_run_says_the_number_of_runs(tmp_path, monkeypatch):
    """2 methods, 3 configurations, 4 seeds, 2 environments, 2 splits: 96 runs."""
    monkeypatch.chdir(tmp_path)
    digits = ["--dataset", "digits", "--model", "linear", "--train-size", "200", "--rounds", "2", "--device", "cpu"]
    some = ["--configurations", "3", "--seeds", "4", "--environments", "path,dirichlet", "--dry-run"]
    found = command("tabulate", "fedavg,ditto", *digits, *some, "--out", "t.parquet")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("96 runs, half of them on test data (3, 3 configurations, 4 seeds), ")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_a_file_that_is_no_such_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.parquet").write_text("no table")
    words = ["tabulate", "fedavg", "--dataset", "digits", "--rounds", "1", "--out", "t.parquet"]
    found = [command(*words, *dry) for dry in ([], ["--dry-run"])]
    assert [one.exit_code for one in found] == [2, 2] and found[0].stderr == found[1].stderr
    assert "t.parquet" in found[1].stderr and not found[1].stdout


COHORTS = {"clients": 30, "participation": 0.1, "train_size": 600, "partition": "ls", "evaluation.clients": 12}


def test_every_seed_has_a_score_at_l2():
    """3 of 30 clients in the last round, 12 scored: with seeds 0 and 2 none is both.

    Seed 2's runs were in the table, of every configuration without a value.
    """
    one = Experiment.of("fedavg_ft", dataset="digits", model="linear", rounds=2, seed=1, **COHORTS)
    settings = Settings.of(one, limits=StudyLimits(confirm=0))
    TablePlan.of([settings], 1, 1)
    with pytest.raises(PflOpsError, match="3 of 30 clients, and with seed 2 none of these is among the 12"):
        TablePlan.of([settings], 1, 2)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_an_impossible_partition_is_refused_before_ray(dry, tmp_path, monkeypatch):
    """The second environment was met after Ray's start, and t.parquet.runs stayed; a dry run built the first alone."""
    monkeypatch.chdir(tmp_path)
    words = ["tabulate", "fedavg", "--dataset", "digits", "--model", "linear", "--clients", "4", "--rounds", "1"]
    found = command(*words, "--environments", "ls,path", "--out", "t.parquet", *dry)
    line = "pfl-ops: fedavg, path: partition 'path' needs clients * classes_per_client >= 10"
    assert found.exit_code == 2 and found.stderr.startswith(line) and not found.stdout and not [*tmp_path.iterdir()]


def test_a_dry_run_counts_the_runs_that_are_left(tmp_path, monkeypatch):
    """Two configurations and two seeds: 8 runs of 3.7 s one after another. One is in the journal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "estimate", lambda *_, **__: Estimate(3, 0, 0, 1, 800, 1))
    monkeypatch.setattr("pfl_ops.system.machine.process_age", lambda: 0.0)
    monkeypatch.setattr("pfl_ops.federation.loop.estimate.TRACKING_SECONDS", 0.0)
    made = plan(environments=())
    call = tabulation.Tabulation(made, tmp_path / "t.parquet", None, CPU, 1, None)
    estimated = import_module("pfl_ops.cli.tabulate")._estimated
    several = "8 runs, half of them on test data (2 configurations, 2 seeds)"
    assert estimated(made, made.runs, CPU, None, 1) == f"{several}, 1 at once, about 30 s"
    call.folder.mkdir()
    rounds = [{"round": 2, made.runs[0].metric: 1.0}]
    line = {"hash": made.runs[0].experiment.digest(None), "rounds": rounds, "error": ""}
    (call.folder / "runs.jsonl").write_text(json.dumps(line) + "\n")
    missing = tabulation.missing_runs(made, call.path)
    assert estimated(made, missing, CPU, None, 1) == f"{several}; 7 of them are left, 1 at once, about 26 s"
    assert estimated(made, [], CPU, None, 1).startswith(f"{several}, all finished")


@pytest.mark.parametrize("words", [["--search-space", "own.yaml"], ["--grid", "training.local_epochs=1,2,3"]])
def test_epochs_that_a_user_varies_replace_recommended_steps(words, tmp_path, monkeypatch):
    """As in `tune`: pfedme recommends 20 local steps. They were kept, and epochs not varied; drdm needs its steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("training.local_epochs: {int: [1, 3]}\n")
    made = []
    monkeypatch.setattr(import_module("pfl_ops.cli.tabulate"), "_estimated", lambda plan, *_: made.append(plan) or "")
    some = ["--dataset", "digits", "--model", "mlp", "--rounds", "1", "--out", "t.parquet", "--dry-run"]
    found = command("tabulate", "pfedme", *some, *words)
    assert found.exit_code == 0, found.output
    [points] = made[0].points
    assert sorted(point["training.local_epochs"] for point in points) == [1, 2, 3]
    assert {run.experiment.training.local_steps for run in made[0].runs} == {None}
    found = command("tabulate", "drdm", *some, *words)
    assert found.exit_code == 2 and "training.local_epochs: " in found.stderr and "local_steps" in found.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_small_table_with_ray_is_made_and_replayed(tmp_path, monkeypatch):
    """Three seeds: one for the search, one to confirm, one for the truth. Scores are those of `runs.simulate`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tabulation, "BATCH", 8)  # of 12 runs
    digits = ["--dataset", "digits", "--model", "linear", "--train-size", "200", "--rounds", "2", "--clients", "4"]
    some = ["--configurations", "2", "--seeds", "3", "--way", "loop", "--workers", "1", "--device", "cpu"]
    made = command("tabulate", "fedavg", *digits, *some, "--out", "t.parquet")
    assert made.exit_code == 0, made.output
    assert "rows of 12 runs" in made.stdout and "test data were opened 6 times" in made.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    table = TrialTable.read("t.parquet")
    last = table.frame.query("configuration == 1 and seed == 2").iloc[-1]
    settings = {"data.train_size": 200, "seed": 2, **json.loads(last["settings"])}
    one = Experiment.of("fedavg", dataset="digits", model="linear", rounds=2, clients=4).override(settings)
    one = one.override({"partition.seed": table.methods["fedavg"]["experiment"]["partition"]["seed"]})
    for split, column in (("validation", "val/L1/acc"), ("test", "truth/test/L1/acc")):
        *_, record = runs.simulate(one.override({"evaluation.split": split}), home=tmp_path / split, execution=CPU)
        assert record.metrics[column.removeprefix("truth/")] == pytest.approx(last[column])
    (problem,) = table.problems()
    for run, groups in problem.groups.items():  # four clients: each is a group of its own
        assert sum(groups.values()) / 4 == pytest.approx(problem.values[run]) and groups.keys() == set("0123")
    assert problem.groups.keys() == problem.values.keys()
    studies = ["--studies", "2", "--trials", "1", "--confirm", "1", "--confirm-top", "2", "--csv", "s.csv"]
    replayed = command("replay", "t.parquet", *studies)
    assert replayed.exit_code == 0, replayed.output
    assert "mean regret on test data" in replayed.stdout and len((tmp_path / "s.csv").read_text().splitlines()) == 7


def test_table_keeps_the_scores_of_client_groups(fake, tmp_path, monkeypatch):
    """Clients 0 and 10 are group 0: 0.5 + 0.5 and 1 + 0.5, mean 1.25; client 1 has 0.75. Runs on test data have none.
    A table that was made before has none either, and is extended as it is."""
    clients = {"client": [0, 10, 1], "stage": ["L1"] * 3, "local": [0.5, 1.0, 0.25], "global": [0.5, 0.5, 0.5]}
    asked = []

    def kept_clients(experiment, **_):
        asked.append(experiment.evaluation.split)
        return clients

    file = tmp_path / "t.parquet"
    monkeypatch.setattr(tabulation.runs, "kept_clients", kept_clients)
    made = tabulate(plan(1, 2, ()), file, execution=CPU)
    assert asked == ["validation"] * 2
    assert (
        made.frame.groupby("seed")["groups"].apply(lambda texts: [bool(text) for text in texts]).tolist()
        == [[False, False, True]] * 2
    )
    (problem,) = TrialTable.read(file).problems()
    assert problem.groups == {(0, s): {"0": 1.25, "1": 0.75} for s in (0, 1)}
    assert tabulate(plan(2, 2, ()), file, execution=CPU).problems()[0].groups.keys() == problem.values.keys() | {
        (1, 0), (1, 1),
    }  # fmt: skip

    table = pq.read_table(file)
    about = json.loads(table.schema.metadata[ABOUT]) | {"version": 1}
    older = table.drop_columns(["groups"]).replace_schema_metadata({ABOUT: json.dumps(about).encode()})
    pq.write_table(older, file)
    assert TrialTable.read(file).problems()[0].groups == {}
    ran = len(fake.ran)
    (problem,) = tabulate(plan(2, 3, ()), file, execution=CPU).problems()
    assert len(fake.ran) == ran + 4 and problem.groups.keys() == {(0, 2), (1, 2)}


def test_record_survives_the_file(fake, tmp_path):
    """A file keeps of a run what the run left, so that an extended table has the same numbers."""
    made = plan(1, 1, ())
    table = tabulate(made, tmp_path / "t.parquet", execution=CPU)
    kept = TrialTable.read(tmp_path / "t.parquet").records()
    assert kept == table.records() and len(kept) == 2
    first = kept[made.runs[0].experiment.digest()]
    assert isinstance(first, RunRecord) and [one["round"] for one in first.rounds] == [0, 1, 2]
