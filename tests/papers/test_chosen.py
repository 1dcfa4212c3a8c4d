"""Suites with a file of choices: their cells, origins and departures, what is refused, and the command."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_suite import TOY
from typer.testing import CliRunner

from pfl_ops import tuning
from pfl_ops.cli import app
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import find, suites
from pfl_ops.papers.chosen import check_values, with_choices, with_file
from pfl_ops.papers.provenance import Departure
from pfl_ops.papers.rules import ChoiceRule, Choices
from pfl_ops.papers.suite import Level, Scale
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.markdown import to_markdown
from pfl_ops.reports.suites.suite import suite_report
from pfl_ops.reports.suites.suites import SuiteSummary, changed_folder
from pfl_ops.results import Result
from pfl_ops.tuning.suites.cells import elsewhere
from pfl_ops.tuning.suites.plans import Part

RULE = ChoiceRule(
    name="toy",
    suites=("toy/table1",),
    cells={"fedavg": "iid/fedavg", "fliu": "path/fliu"},
    shared={"training.lr": {"float": [0.01, 1.0], "log": True}},
    own={"fliu": {"training.local_epochs": {"int": [1, 5]}}},
    metric="val/L1/acc",
    trials=2,
    confirm=0,
    confirm_top=2,
    seed=1000,
    remarks="The ranges are ours.",
)
BEFORE = Departure("Chosen by hand.", of_choice=True)
SUITE = replace(TOY, rule=RULE, departures=(Departure("One."), BEFORE, Departure("Two.")))
CHOICES = Choices(
    rule="toy",
    status="chosen",
    how="a command",
    date="2026-11-24",
    methods={"fedavg": {"training.lr": 0.25}, "fliu": {"training.lr": 0.5}},
    budget=RULE.budget,
)


def test_cells_take_the_settings_and_the_rule_is_their_origin() -> None:
    """`local` has none in the file; the statement of fliu's rate, 0.01, is about another value and gives way."""
    suite = with_choices(SUITE, CHOICES)
    check_values(suite, CHOICES)
    for name, rate in (("iid/fedavg", 0.25), ("path/fedavg", 0.25), ("path/fliu", 0.5)):
        cell = suite.cell(name)
        assert suite.experiment(cell).training.lr == rate
        source = suite.sources_of(cell)["training.lr"]
        assert source is not None and (source.kind, source.reason) == ("assumption", CHOICES.origin)
    local = suite.cell("iid/local")
    assert suite.experiment(local) == SUITE.experiment(local)
    assert suite.sources_of(local) == SUITE.sources_of(local)
    assert SUITE.experiment(SUITE.cell("path/fliu")).training.lr == 0.01


def test_a_source_is_about_the_label_and_not_about_all_cells_of_the_method() -> None:
    """Two labels of one method, of which one has another setting: the other keeps its own origin."""
    fast = Level({"algorithm.name": "fedavg", "training.lr": 0.9}, "FedAvg, fast")
    suite = replace(SUITE, axes={**SUITE.axes, "method": {**SUITE.axes["method"], "fast": fast}})
    suite = with_choices(suite, CHOICES)
    source = suite.sources_of(suite.cell("iid/fast"))["training.lr"]
    assert source is not None and source.reason == "chosen for the test"
    other = Level({"algorithm.name": "local", "training.lr": 0.25}, "CLT")  # the rate that was chosen for FedAvg
    suite = with_choices(
        replace(SUITE, axes={**SUITE.axes, "method": {**SUITE.axes["method"], "local": other}}), CHOICES
    )
    source = suite.sources_of(suite.cell("iid/local"))["training.lr"]
    assert source is not None and source.reason == "chosen for the test"


def test_choices_of_a_scale_leave_what_else_a_level_sets_there() -> None:
    """They have no budget to compare if they were made by hand."""
    fliu = replace(SUITE.axes["method"]["fliu"], at={"medium": {"training.rounds": 7}})
    suite = replace(SUITE, axes={**SUITE.axes, "method": {**SUITE.axes["method"], "fliu": fliu}})
    suite = with_choices(suite, replace(CHOICES, scale="medium", status="looked", budget=""))
    training = suite.experiment(suite.cell("path/fliu"), "medium").training
    assert (training.rounds, training.lr) == (7, 0.5)


@pytest.mark.parametrize("status", ["chosen", "looked"])
def test_the_departure_says_how_the_settings_were_found(status: Any) -> None:
    """It stands where the one before stood. Of status "looked" nothing may sound like a choice by the rule."""
    choices = replace(CHOICES, status=status)
    one, told, two = with_choices(SUITE, choices).departures
    assert (one.text, two.text) == ("One.", "Two.")
    by_hand = "by hand after a look at test data"
    assert (by_hand in told.text, by_hand in choices.origin) == (status == "looked",) * 2
    assert (RULE.budget in told.text, "The ranges are ours." in told.text) == (status == "chosen",) * 2
    assert ("on validation data by rule toy" in choices.origin) == (status == "chosen")
    again = with_choices(with_choices(SUITE, choices), choices)
    assert again.departures == (one, told, two)
    without = replace(SUITE, departures=(Departure("One."),))
    assert [departure.text for departure in with_choices(without, choices).departures] == ["One.", told.text]


def test_choices_of_one_scale_are_for_it_alone() -> None:
    """Experiments of other scales, and so their hashes, stay; a file for all scales replaces those of single ones."""
    at_medium = replace(CHOICES, scale="medium")
    suite = with_choices(SUITE, at_medium)
    check_values(suite, at_medium)
    for cell in suite.cells:
        assert all(suite.experiment(cell, at) == SUITE.experiment(cell, at) for at in ("full", "small", "smoke"))
    assert suite.experiment(suite.cell("path/fliu"), "medium").training.lr == 0.5
    assert suite.sources == SUITE.sources
    assert suite.departures_at("full") == suite.departures_at("small") == SUITE.departures
    one, two, told = suite.departures_at("medium")
    assert (one.text, two.text) == ("One.", "Two.") and told.text.startswith("At scale medium settings of which")
    fliu = {"training.lr": 0.75, "training.local_epochs": 2}
    again = with_choices(suite, replace(at_medium, methods={**CHOICES.methods, "fliu": fliu}))
    assert again.departures == suite.departures
    assert again.experiment(again.cell("path/fliu"), "medium").training.lr == 0.75

    whole = with_choices(again, CHOICES)
    assert whole.departures == with_choices(SUITE, CHOICES).departures
    for cell in whole.cells:
        assert whole.experiment(cell, "medium") == with_choices(SUITE, CHOICES).experiment(cell, "medium")


def test_a_page_has_the_choice_of_its_scale() -> None:
    suite = with_choices(SUITE, replace(CHOICES, scale="medium"))
    at_medium, elsewhere = (to_markdown(suite_report(SuiteRun(suite, scale, {}))) for scale in ("medium", "full"))
    assert "At scale medium settings" in at_medium and "Chosen by hand." not in at_medium
    assert "At scale medium settings" not in elsewhere and "Chosen by hand." in elsewhere


def test_a_file_of_another_scale_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chosen.yaml").write_text(replace(CHOICES, scale="medium").to_yaml())
    assert with_file([SUITE], tmp_path / "chosen.yaml", "medium")[0].choices == "chosen.yaml"
    with pytest.raises(PflOpsError, match="made at scale medium, and for it alone: give --scale medium"):
        with_file([SUITE], tmp_path / "chosen.yaml", "full")
    smoke: Any = "smoke"
    with pytest.raises(PflOpsError, match="it: scale must be one of small, medium, full"):
        Choices.from_yaml(replace(CHOICES, scale=smoke).to_yaml(), "it")


REFUSED: dict[str, tuple[Choices, str]] = {
    "another rule": (replace(CHOICES, rule="ours"), "the choices are of rule ours, and toy/table1 has rule toy"),
    "another budget": (
        replace(CHOICES, budget="1 trial"),
        "toy was changed after these choices were made: they had 1 trial, it has 2 trials",
    ),
    "a method is missing": (
        replace(CHOICES, methods={"fedavg": {"training.lr": 0.1}}),
        "the choices have no settings of fliu, a method of toy/table1",
    ),
    "a method too many": (
        replace(CHOICES, methods={**CHOICES.methods, "local": {"training.lr": 0.1}}),
        "no method of rule toy named 'local'",
    ),
    "another setting": (
        replace(CHOICES, methods={**CHOICES.methods, "fedavg": {"training.local_epochs": 2}}),
        "no setting of fedavg that rule toy chooses named 'training.local_epochs'",
    ),
}


@pytest.mark.parametrize(("choices", "message"), REFUSED.values(), ids=REFUSED)
def test_choices_that_do_not_fit_are_refused(choices: Choices, message: str) -> None:
    with pytest.raises(PflOpsError, match=message):
        with_choices(SUITE, choices)


def test_a_suite_without_a_rule_takes_no_choices() -> None:
    with pytest.raises(PflOpsError, match="toy/table1 has no rule of choice"):
        with_choices(TOY, CHOICES)


def test_a_value_that_a_cell_cannot_have_or_does_not_take_is_refused() -> None:
    bad = replace(CHOICES, methods={**CHOICES.methods, "fedavg": {"training.lr": -1.0}})
    with pytest.raises(PflOpsError, match=r"cell iid/fedavg: .*training\.lr"):
        check_values(with_choices(SUITE, bad), bad)
    overruled = with_choices(replace(SUITE, exceptions={"path/fedavg": {"training.lr": 0.7}}), CHOICES)
    with pytest.raises(PflOpsError, match=r"cell path/fedavg at scale full: .*0\.7 and not the chosen 0\.25"):
        check_values(overruled, CHOICES)


def test_a_value_that_the_scale_of_the_call_sets_otherwise_is_refused(tmp_path: Path) -> None:
    """The cells of small ran at the scale's rate, on a page that said that rates were chosen by the rule."""
    suite = replace(SUITE, small=Scale({"training.lr": 0.03}))
    file = tmp_path / "chosen.yaml"
    fliu = {"training.lr": 0.5, "training.local_epochs": 4}  # smoke has one epoch
    file.write_text(replace(CHOICES, methods={**CHOICES.methods, "fliu": fliu}).to_yaml())
    for scale in ("full", "medium", "smoke"):
        assert with_file([suite], file, scale)
    with pytest.raises(PflOpsError, match=r"cell iid/fedavg at scale small: training\.lr is 0\.03 and not the chosen"):
        with_file([suite], file, "small")


def test_a_suite_of_the_package_takes_a_file_of_its_rule(tmp_path: Path) -> None:
    """Kuzushiji-MNIST's rule was not run here; with a file, its four suites have no defaults left."""
    rule = find("drdm/table1").rule
    assert rule is not None
    methods = {label: {path: 0.5 for path in rule.ranges(label) if path != "first"} for label in rule.cells}
    file = tmp_path / "chosen.yaml"
    file.write_text(Choices(rule.name, "chosen", "a command", "2026-11-24", methods, rule.budget).to_yaml())
    found = with_file(suites(), file, every=True)
    assert [suite.name for suite in found] == list(rule.suites)
    assert {suite.choices for suite in found} == {"chosen.yaml"}
    for suite in found:
        for cell in suite.cells:
            experiment, sources = suite.experiment(cell), suite.sources_of(cell)
            for path in methods[cell.labels["method"]]:
                source = sources[path]
                assert experiment.get(path) == 0.5 and source is not None and "rule drdm_kmnist" in source.reason
    with pytest.raises(PflOpsError, match=r"--choices .*chosen\.yaml: .* drdm/table3 has rule drdm_mnist"):
        with_file([find("drdm/table3")], file)
    with pytest.raises(PflOpsError, match="no suite has rule drdm_kmnist"):
        with_file([find("fliu/table1")], file, every=True)


def test_a_report_with_choices_is_kept_apart_and_says_so() -> None:
    suite = replace(with_choices(SUITE, CHOICES), choices="my choices.yaml")
    run = SuiteRun(suite, "full", {}, changes={"training.rounds": 3})
    assert run.command == (
        "pfl-ops reproduce toy/table1 --choices 'my choices.yaml' --scale full --set training.rounds=3"
    )
    assert run.altered == SuiteSummary.of_run(run).changes == ("choices=my choices.yaml", "training.rounds=3")
    assert changed_folder(run).startswith("full-choices=my_choices.yaml,training.rounds=3-")
    assert SuiteRun(SUITE, "full", {}).altered == ()


def test_runs_with_choices_are_none_of_the_suite_at_another_scale() -> None:
    """Nor are the suite's own runs those of the suite with choices; a file is known by its name."""
    tags = {"pfl_ops.suite": "toy/table1", "pfl_ops.cell": "iid/fedavg", "pfl_ops.scale": "small"}
    plain, chosen = (Result.of_numbers(0, {}, tags={**tags, **more}) for more in ({}, {"pfl_ops.choices": "a.yaml"}))
    for name, mine in (("", plain), ("a.yaml", chosen), ("b.yaml", None)):
        found = elsewhere(Part(replace(SUITE, choices=name), (), {}), "full", [plain, chosen])
        tags_of = {scale: [one.tags for one in of["iid/fedavg"]] for scale, of in found.items()}
        assert tags_of == ({"small": [mine.tags]} if mine else {})


def _call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> tuple[Any, list[Any]]:
    """Call `reproduce` up to the point where it would run; return the result and the plans."""
    plans: list[Any] = []
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / "mlruns"))
    monkeypatch.setattr(tuning, "reproduce", lambda plan, **_: plans.append(plan) or [])
    return CliRunner().invoke(app, ["reproduce", *words, "--dry-run"]), plans


def test_the_command_plans_the_cells_with_the_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rule = find("drdm/fig3").rule
    assert rule is not None
    methods = {label: {path: 0.5 for path in rule.ranges(label) if path != "first"} for label in rule.cells}
    file = tmp_path / "chosen.yaml"
    file.write_text(Choices(rule.name, "chosen", "a command", "2026-11-24", methods, rule.budget).to_yaml())
    result, plans = _call(monkeypatch, tmp_path, "drdm/fig3", "--choices", str(file), "--scale", "smoke")
    assert result.exit_code == 0, result.output
    (part,) = plans[0].parts
    assert part.suite.choices == "chosen.yaml"
    assert {job.experiment.training.lr for job in part.wanted} == {0.5}
    result, plans = _call(monkeypatch, tmp_path, "--choices", str(file), "--scale", "smoke")
    assert result.exit_code == 0 and [part.suite.name for part in plans[0].parts] == list(rule.suites)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drdm/fig3", "--choices", "a.yaml"], "can't read a.yaml: No such file or directory"),
        (["drdm/fig3", "--choices", "a.yaml", "--choose", "b.yaml"], "give one of them"),
        (["drdm/fig3", "--choices", "a.yaml", "--scale", "full", "--results", "r"], "put the choices into it first"),
    ],
)
def test_what_does_not_go_with_choices_is_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result, plans = _call(monkeypatch, tmp_path, *words)
    assert (result.exit_code, plans) == (2, []) and message in result.stderr
    assert not [*tmp_path.iterdir()]
