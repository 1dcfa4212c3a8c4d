"""Settings of cells changed by `--set`."""

from dataclasses import replace

import pytest
from toy_suite import TOY

from pfl_ops import tuning
from pfl_ops.config.precedence import assignments
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import Level, overrides
from pfl_ops.papers.overrides import applicable, as_flags, changed, check_changes


def planned(*sets: str, scale: str = "small", suite=TOY):
    """Jobs by cell, of a plan with these changes."""
    plan = tuning.plan([(suite, suite.cells)], scale, changes=assignments(sets))
    return plan.parts[0].jobs


def test_a_change_goes_to_the_cells_that_have_the_path():
    """γ is FLIU's only; the learning rate is everyone's, and FLIU's level had its own."""
    jobs = planned("algorithm.gamma.kind=fixed", "algorithm.gamma.value=0.5", "training.lr=0.2")
    fliu, fedavg = jobs["path/fliu"][0], jobs["path/fedavg"][0]
    assert (fliu.experiment.algorithm.gamma.value, fliu.experiment.training.lr, fedavg.experiment.training.lr) == (
        0.5,
        0.2,
        0.2,
    )
    assert list(fedavg.changes) == ["training.lr"] and len(fliu.changes) == 3


def test_changed_cells_are_other_runs_and_the_others_are_the_same():
    before, after = planned(), planned("algorithm.gamma={kind: fixed, value: 0.5}")
    same = {cell for cell in before if before[cell][0].digest == after[cell][0].digest}
    assert same == set(before) - {"path/fliu"}
    assert not after["path/fedavg"][0].changes


def test_a_value_that_is_there_already_changes_nothing():
    """FLIU has 0.01: its job is no changed one."""
    jobs = planned("training.lr=0.01")
    assert not jobs["path/fliu"][0].changes and jobs["path/fedavg"][0].changes


def test_a_change_is_stronger_than_the_cut_of_smoke():
    assert planned("training.rounds=3", scale="smoke")["iid/fedavg"][0].experiment.training.rounds == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("training.lrr", r"no setting of these cells named 'training.lrr'. Did you mean 'training.lr'\?"),
        ("algorithm.gama", "no setting of these cells named 'algorithm.gama'"),
        ("algorithm.name", "the method is what a cell is named after"),
        ("evaluation.split", "the numbers of a suite are those of its own split"),
        ("repetitions", "give --repetitions"),
        ("seed", "give --repetitions"),
    ],
)
def test_paths_that_cannot_be_set(path, message):
    with pytest.raises(PflOpsError, match=message):
        check_changes([TOY], {path: 0.1})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("evaluation={split: validation}", "--set evaluation.split: the numbers of a suite are those of its own split"),
        ("algorithm={name: ditto}", "--set algorithm.name: the method is what a cell is named after"),
        ("training={}", "--set training changes nothing: it names no setting of the section"),
    ],
)
def test_sections_that_cannot_be_set(given, message):
    """Cells with the split of validation ran and had none of the suite's numbers; {} was shown as a change."""
    with pytest.raises(PflOpsError, match=f"^{message}"):
        check_changes([TOY], assignments([given]))


def test_a_path_of_no_cell_is_refused_beside_one_that_exists():
    with pytest.raises(PflOpsError, match=r"no setting of these cells named 'training\.lrr'"):
        check_changes([TOY], {"training.lr": 0.1, "training.lrr": 0.2})


def test_what_an_axis_varies_cannot_be_set():
    """With lsqs for both, FedAvg on iid and on path would be one experiment; one rate for FLIU and FedAvg is not."""
    with pytest.raises(
        PflOpsError, match=r"makes cells iid/fedavg and path/fedavg of .* one experiment, whatever --only"
    ):
        check_changes([TOY], {"partition.kind": "lsqs"})
    check_changes([TOY], {"training.lr": 0.3})


def test_a_value_that_no_cell_allows_is_an_error():
    with pytest.raises(PflOpsError, match=r"toy/table1, cell iid/fedavg: training.lr \(η\) must be"):
        planned("training.lr=-1")


def test_a_value_that_one_method_refuses_leaves_the_others():
    """FLIU's γ takes no value 3; the cells of other methods run."""
    part = tuning.plan(
        [(TOY, TOY.cells)],
        "small",
        changes=assignments(["algorithm.gamma={kind: fixed, value: 3}", "training.rounds=2"]),
    ).parts[0]
    assert list(part.problems) == ["path/fliu"] and "algorithm.gamma.value" in part.problems["path/fliu"]
    assert part.jobs["iid/local"][0].experiment.training.rounds == 2


def test_an_axis_of_one_level_varies_nothing():
    one = replace(
        TOY,
        axes={**TOY.axes, "environment": {"iid": Level({"partition.kind": "iid"})}},
        absent=(),
        published={},
        claims=(),
    )
    check_changes([one], {"partition.kind": "lsqs"})


def test_local_steps_clear_local_epochs():
    experiment = TOY.experiment(TOY.cell("iid/fedavg"))
    training = changed(experiment, {"training.local_steps": 7}).training
    assert (training.local_steps, training.local_epochs) == (7, None)
    assert changed(experiment, {"algorithm.gamma": 1}) is experiment
    assert applicable(experiment, {}) == {}


def test_changes_in_words():
    assert as_flags(assignments(["training.lr=0.05", "algorithm.h=feddyn", "data.train_size=none"])) == (
        "algorithm.h=feddyn", "data.train_size=none", "training.lr=0.05",
    )  # fmt: skip
    assert overrides.as_flags({}) == ()
