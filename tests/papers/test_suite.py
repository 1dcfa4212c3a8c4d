"""A suite's grid, its sizes, and how its claims stand."""

import re
from dataclasses import replace

import pandas as pd
import pytest
from toy_suite import ACC, TOY

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import Level, Scale, Suite, all_suites, find
from pfl_ops.papers.measure_keys import history_keys
from pfl_ops.papers.substitute import BATCH, CLIENTS, ROUNDS, SAMPLES, cut, moved
from pfl_ops.papers.suite import differences
from pfl_ops.results import Result

MERGED_AT_SMOKE = {"drdm/fig3", "drdm/fig4", "fedavg2rep/table3", "fedavg2rep/table4", "fedavg2rep/fig7", "fedas/fig7"}


def grid(*sizes, absent=()):
    """A suite of nothing but a grid: axes a, b, ... with levels a0, a1, ..."""
    axes = {name: {f"{name}{i}": Level() for i in range(n)} for name, n in zip("abc", sizes, strict=False)}
    return Suite("toy/grid", "", "", axes, (), (), absent=absent)


def test_cells_are_the_grid_without_its_holes():
    assert [cell.name for cell in TOY.cells] == ["iid/fedavg", "iid/local", "path/fedavg", "path/local", "path/fliu"]


def test_no_cell_of_that_name():
    with pytest.raises(PflOpsError, match=r"no cell of toy/table1 named 'path/flui'\. Did you mean 'path/fliu'"):
        TOY.cell("path/flui")


@pytest.mark.parametrize(
    ("suite", "n"),
    [(grid(5, 8), 8), (grid(3, 2, 4), 4), (grid(1, 1), 1), (grid(3, 3, absent=("a0/b0", "a1/b1")), 3)],
)
def test_a_sample_has_every_level_and_few_cells(suite, n):
    sample = suite.sample()
    for axis, levels in suite.axes.items():
        assert {cell.labels[axis] for cell in sample} == set(levels)
    assert len(sample) == n
    assert not {cell.name for cell in sample} & set(suite.absent)


def test_levels_add_to_the_base_in_order():
    experiment = TOY.experiment(TOY.cell("path/fliu"))
    assert experiment.algorithm.name == "fliu"
    assert experiment.partition.kind == "path"
    assert (experiment.training.lr, experiment.training.rounds, experiment.repetitions) == (0.01, 50, 3)


def test_a_scale_changes_what_it_says_and_a_level_adds_to_it():
    small = TOY.experiment(TOY.cell("path/fedavg"), "small")
    assert (small.training.rounds, small.repetitions, small.partition.clients) == (4, 2, 12)
    assert (small.training.local_steps, small.training.local_epochs) == (3, None)  # steps go before the base's epochs
    assert TOY.experiment(TOY.cell("iid/fedavg"), "small").partition.clients == 20


@pytest.mark.parametrize("name", [suite.name for suite in all_suites()])
def test_claims_and_numbers_are_of_cells_that_the_suite_has(name):
    suite = find(name)
    for claim in suite.claims:
        claim.check(suite.labels, [cell.name for cell in suite.cells], [measure.key for measure in suite.measures])
    assert len(list(suite.numbers())) == len(suite.published)


@pytest.mark.parametrize("name", [suite.name for suite in all_suites()])
def test_each_cell_is_an_experiment_of_its_own(name):
    """At scale `smoke` alone, several numbers of local steps or epochs become one."""
    suite = find(name)
    for scale in ("small", "medium", "full"):
        assert len({str(suite.experiment(cell, scale)) for cell in suite.cells}) == len(suite.cells)
    smoke = [suite.experiment(cell, "smoke") for cell in suite.cells]
    assert all(experiment.training.rounds == 2 for experiment in smoke)
    assert (len(set(map(str, smoke))) < len(smoke)) == (name in MERGED_AT_SMOKE)


def differences_at(suite, cell, scale):
    return differences(suite.experiment(cell), suite.experiment(cell, scale))


@pytest.mark.parametrize("name", [suite.name for suite in all_suites()])
def test_medium_changes_nothing_but_networks(name):
    """Every cell has the paper's data, clients, rounds, epochs and repetitions; a change has its reason.

    Settings that no paper states may be those that the suite's rule chose for this network.
    """
    suite = find(name)
    changed = {path for cell in suite.sample() for path in differences_at(suite, cell, "medium")}
    chosen = any(one.of_choice and one.scale == "medium" for one in suite.departures)
    of_rule = suite.rule.paths if suite.rule is not None and chosen else ()
    assert all(path.startswith("model.") or path in of_rule for path in changed)
    assert suite.scale("medium").repetitions == suite.repetitions
    assert bool(changed) == bool(suite.medium.changes)
    assert suite.medium.note or not changed


def test_medium_has_the_repetitions_of_full():
    suite = replace(TOY, medium=Scale({"model.name": "mlp"}))
    medium = suite.experiment(suite.cell("path/fliu"), "medium")
    assert (medium.repetitions, medium.training.rounds, medium.model.name) == (3, 50, "mlp")
    assert TOY.experiment(TOY.cell("path/fliu"), "medium") == TOY.experiment(TOY.cell("path/fliu"))


@pytest.mark.parametrize("name", [suite.name for suite in all_suites() if suite.claims])
def test_no_claim_is_left_with_one_seed(name):
    """Nothing is decided by one seed: where a paper has one run, or names no number, five are run."""
    suite = find(name)
    assert min(suite.scale(scale).repetitions for scale in ("medium", "full")) >= 3


@pytest.mark.parametrize("name", [suite.name for suite in all_suites()])
def test_claims_that_are_ours_are_marked(name):
    """The remark says that a claim is derived, or that its threshold is ours; `derived` counts it apart."""
    for claim in find(name).claims:
        assert claim.derived == bool(re.search(r"\b(ours|derived)\b", claim.remark)), claim.text


def test_differences_are_told_by_path():
    cell = TOY.cell("iid/fedavg")
    assert differences_at(TOY, cell, "small") == {
        "training.rounds": (50, 4),
        "training.local_epochs": (5, None),
        "training.local_steps": (None, 3),
    }
    assert differences_at(TOY, cell, "full") == {}


def test_smoke_is_cut_by_itself():
    smoke = TOY.experiment(TOY.cell("path/fliu"), "smoke")
    assert (smoke.data.train_size, smoke.partition.clients, smoke.training.rounds) == (SAMPLES, CLIENTS, ROUNDS)
    assert (smoke.training.local_epochs, smoke.training.batch_size, smoke.repetitions) == (1, BATCH, 1)
    assert smoke.training.lr == 0.01


def test_what_is_small_already_stays():
    suite = replace(TOY, base={**TOY.base, "partition.clients": 3, "training.batch_size": 5})
    smoke = suite.experiment(suite.cell("iid/fedavg"), "smoke")
    assert (smoke.partition.clients, smoke.training.batch_size) == (3, 5)


def test_smoke_cuts_what_is_all_and_keeps_five_samples_a_class():
    """CIFAR-100's classes need 500; "none" is all samples, or a full batch."""
    small = cut(Experiment.of("fedavg", dataset="cifar100", repetitions=3).override({"training.batch_size": None}))
    assert (small.data.train_size, small.training.batch_size, small.repetitions) == (500, BATCH, 1)


def test_natural_clients_become_others_on_digits():
    """Their texts have no classes of digits; a client of PATH has ten of these at most."""
    natural = moved(Experiment.of("fedavg", dataset="shakespeare", partition="natural"), "digits")
    assert (natural.partition.kind, natural.partition.clients) == ("lsqs", CLIENTS)
    path = Experiment.of("fedavg", dataset="cifar100", partition="path").override({"partition.classes_per_client": 30})
    assert moved(path, "digits").get("partition.classes_per_client") == 10


def test_a_cut_cohort_still_averages():
    suite = replace(TOY, base={**TOY.base, "partition.clients": 100, "participation.share": 0.1})
    assert suite.experiment(suite.cell("iid/fedavg"), "smoke").participation.share == 2 / CLIENTS


def test_other_data_bring_their_own_network():
    suite = replace(TOY, base={**TOY.base, "data.name": "cifar10", "model.name": "cnn_cifar"})
    moved = suite.experiment(suite.cell("iid/fedavg"), "smoke", data="digits")
    assert (moved.data.name, moved.model.name) == ("digits", "cnn_tiny")


def test_an_impossible_cell_names_itself():
    suite = replace(TOY, base={**TOY.base, "training.lr": -1.0})
    with pytest.raises(PflOpsError, match=r"toy/table1, cell iid/fedavg: .*training\.lr"):
        suite.experiment(suite.cell("iid/fedavg"))


def test_claims_stand_twice():
    """In the paper's numbers 185.6 < 197.46 and 118.69 < 171.57; FLIU's is lost. In ours: 2 seeds."""
    assert [verdict.status for verdict in TOY.judged()] == ["holds", "not run"]

    def runs(*values):
        return [Result.of_numbers(seed, {f"final/{ACC}": value}) for seed, value in enumerate(values)]

    ours = {
        "iid/fedavg": runs(1.9, 1.91), "iid/local": runs(1.8, 1.81),
        "path/fedavg": runs(1.2, 1.2), "path/local": runs(1.3, 1.31), "path/fliu": runs(1.25),
    }  # fmt: skip
    below, above = TOY.judged(ours)
    assert [i.agrees for i in below.instances] == [True, False]
    assert below.instances[0].detail == "180.5 < 190.5 (n = 2)"  # in the paper's unit
    assert (below.status, above.status) == ("undecided", "undecided")
    assert below.needed == above.needed == (80.0, 80.0)  # 2 claims, for and against, at 0.05


def test_the_highest_round_of_a_curve():
    """Of 0.2, 0.7, 0.4 in percent; without a curve there is none."""
    history = pd.DataFrame({"test/L1/local/mean": [0.2, 0.7, 0.4]}, index=[1, 2, 3])
    assert Result.of_numbers(0, {}, history=history).value("test/L1/local/mean#best", unit=100.0) == pytest.approx(70.0)
    assert Result.of_numbers(0, {}).value("test/L1/local/mean#best") is None
    assert history_keys("test/L1/local/mean#best", {}) == ("test/L1/local/mean",)


def test_every_published_number_has_its_cell_and_measure():
    assert [cell.name for cell, _, _ in TOY.numbers()] == [name for name, _ in TOY.published]
