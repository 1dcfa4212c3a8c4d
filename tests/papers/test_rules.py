"""Rules of choice and files of choices, and what DRDM's MNIST suites take from theirs."""

from dataclasses import replace

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.papers import find, suites
from pfl_ops.papers.chosen import check_values
from pfl_ops.papers.drdm.rule import FASHION_RULE, KMNIST_RULE, MNIST_RULE, RULES
from pfl_ops.papers.rules import Choices, load_choices
from pfl_ops.papers.sources.drdm import LOOKED

MNIST_CHOICES = load_choices("drdm_mnist")
RULED = [suite for suite in suites("drdm") if suite.rule is MNIST_RULE]


@pytest.mark.parametrize("data", RULES)
def test_every_suite_of_a_data_set_has_its_rule(data):
    names = [suite.name for suite in suites("drdm") if suite.base["data.name"] == data]
    assert sorted(names) == sorted(RULES[data].suites)
    assert all(find(name).rule is RULES[data] for name in names)


@pytest.mark.parametrize("rule", [KMNIST_RULE, FASHION_RULE], ids=lambda rule: rule.name)
def test_a_rule_that_was_not_run_begins_at_what_the_cells_have(rule):
    """It differs from MNIST's in nothing but where η begins, and the pages say that it was not run."""
    for label in rule.cells:
        ours, of_mnist = rule.ranges(label), MNIST_RULE.ranges(label)
        assert {**ours, "first": 0} == {**of_mnist, "first": 0}
    for suite in map(find, rule.suites):
        for cell in suite.cells:
            experiment = suite.experiment(cell)
            assert all(experiment.get(path) == v for path, v in rule.before[cell.labels["method"]].items())
        assert [one for one in suite.departures_at("full") if one.of_choice] == [LOOKED]


def test_medium_of_fashion_mnist_has_the_choices_that_were_made_there():
    choices = load_choices("drdm_fashion_mnist_medium")
    assert choices.scale == "medium" and set(choices.methods) == set(FASHION_RULE.cells)
    for suite in map(find, FASHION_RULE.suites):
        check_values(suite, choices)
        (told,) = (one for one in suite.departures_at("medium") if one.of_choice)
        assert told.text.startswith("At scale medium") and choices.budget in told.text
        for cell in suite.cells:
            network = suite.experiment(cell, "medium").model
            assert (network.name, network.pretrained, network.size) == ("resnet18_head", False, 64)


def test_every_method_of_the_tables_is_tuned_both_readings_among_them():
    for name in ("drdm/table3", "drdm/table4", "drdm/fig5", "drdm/fig6"):
        assert set(find(name).axes["method"]) == set(MNIST_RULE.cells) == set(MNIST_CHOICES.methods)
    suite = find("drdm/table3")
    readings = [suite.experiment(suite.cell(MNIST_RULE.cells[label])).algorithm.h for label in ("drdm", "drdm_feddyn")]
    assert readings == ["dual", "feddyn"]


def test_every_method_has_the_same_range_of_the_shared_setting_and_one_budget():
    """Both readings have the same ranges; the paths of a method's choice are those of its ranges."""
    spaces = {label: MNIST_RULE.ranges(label) for label in MNIST_RULE.cells}
    assert len({str(space["training.lr"]) for space in spaces.values()}) == 1
    assert {key: spaces["drdm"][key] for key in spaces["drdm"] if key != "first"} == {
        key: spaces["drdm_feddyn"][key] for key in spaces["drdm_feddyn"] if key != "first"
    }
    for label, space in spaces.items():
        assert {*space} - {"first"} == set(MNIST_CHOICES.methods[label]) == set(MNIST_RULE.before[label])


def test_no_repetition_of_a_suite_has_a_seed_of_the_rule():
    """Suites count from 0; repetitions until decided end at 1000."""
    from pfl_ops.tuning.suites.deciding import MOST_SEEDS

    assert all(suite.first_seed == 0 for suite in suites("drdm")) and MNIST_RULE.seed >= MOST_SEEDS


def test_a_file_of_choices_comes_back():
    assert Choices.from_yaml(MNIST_CHOICES.to_yaml(), "it") == MNIST_CHOICES
    assert load_choices("drdm_mnist") is MNIST_CHOICES
    with pytest.raises(PflOpsError, match="it is no file of choices"):
        Choices.from_yaml("rule: a\n", "it")
    with pytest.raises(PflOpsError, match="status must be chosen or looked"):
        Choices.from_yaml(replace(MNIST_CHOICES, status="guessed").to_yaml(), "it")

    for methods in (["fedavg"], {"fedavg": 0.1}):
        with pytest.raises(PflOpsError, match="it: methods must have the settings of each method"):
            Choices.from_yaml(f"{{rule: a, status: chosen, how: b, date: c, methods: {methods}}}", "it")


def test_cells_have_the_settings_of_the_file():
    for suite in RULED:
        for cell in suite.cells:
            experiment, sources = suite.experiment(cell), suite.sources_of(cell)
            for path, value in MNIST_CHOICES.methods[cell.labels["method"]].items():
                assert experiment.get(path) == value
                assert sources[path].reason == MNIST_CHOICES.origin
        (told,) = (one for one in suite.departures if one.of_choice)
        assert MNIST_CHOICES.budget in told.text and "docs/reproduced.md" in told.text
