"""The settings of a suite's methods by its rule: what is tuned, on which data, and the file that is written."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from toy_suite import TOY

from pfl_ops import tuning
from pfl_ops.cli import app
from pfl_ops.errors import PflOpsError
from pfl_ops.papers import find
from pfl_ops.papers.chosen import check_values, with_choices
from pfl_ops.papers.drdm.rule import MNIST_RULE, RULES
from pfl_ops.papers.rules import ChoiceRule, Choices
from pfl_ops.papers.suite import Scale
from pfl_ops.tracking import Store
from pfl_ops.tuning.commands import choosing
from pfl_ops.tuning.session.confirm import Confirmation
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.settings import Settings

RATE = {"float": [0.01, 1.0], "log": True}
TOY_RULE = ChoiceRule(
    name="toy",
    suites=("toy/table1",),
    cells={"fedavg": "iid/fedavg", "fliu": "path/fliu"},
    shared={"training.lr": RATE},
    own={},
    metric="val/L1/local/worst",
    trials=2,
    confirm=0,
    confirm_top=2,
    seed=1000,
    before={"fedavg": {"training.lr": 0.02}, "fliu": {"training.lr": 0.01}},
)


def test_a_study_begins_at_the_settings_before_the_rule() -> None:
    """So that running the rule again gives the same studies, whatever the file of choices has by then."""
    suite = find("drdm/table3")
    for label in MNIST_RULE.cells:
        experiment = choosing.experiment_of(suite, MNIST_RULE, label)
        assert all(experiment.get(path) == value for path, value in MNIST_RULE.before[label].items())
        assert (experiment.seed, experiment.repetitions, experiment.partition.alpha) == (1000, 1, 0.1)
        assert experiment.training.rounds == 150 and experiment.training.local_steps == 10
        assert experiment.evaluation.every == 150


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
@pytest.mark.parametrize("label", MNIST_RULE.cells)
def test_the_ranges_are_a_search_space_of_the_method(label: str, rule: ChoiceRule) -> None:
    space = choosing.spaces.from_dict(rule.ranges(label), rule.name)
    experiment = choosing.experiment_of(find(rule.suites[0]), rule, label)
    settings = Settings.of(experiment, space, StudyLimits(trials=16), rule.metric, None, "none")
    assert settings.experiment.evaluation.split == "validation"
    assert settings.space.first == (rule.before[label],)


def test_each_method_has_a_study_with_the_same_budget_and_no_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The score is the mean over the confirmation's seeds: (0.7 + 0.9) / 2, not the search's 0.95."""
    asked: list[dict[str, Any]] = []

    def tune(experiment: Any, **given: Any) -> Any:
        asked.append({"method": experiment.algorithm.name, **given})
        values = {3: {2000: 0.7, 2001: 0.9}, 1: {2000: 0.1, 2001: 0.1}}
        confirmed = SimpleNamespace(winner=3, lost={1: "diverged"}, values=values)
        return SimpleNamespace(
            best={"training.lr": 0.0123456}, values={MNIST_RULE.metric: 0.95},
            confirmation=confirmed if experiment.algorithm.name == "fedavg" else None,
        )  # fmt: skip

    monkeypatch.setattr(choosing, "tune", tune)
    monkeypatch.setattr(choosing, "cluster", lambda _: tmp_path_context())
    monkeypatch.setattr(choosing, "recorded", lambda _: {"toy.fliu": {}})
    found = choosing.choose(TOY, TOY_RULE, home=tmp_path)
    assert [(one["method"], one["name"], one["resume"]) for one in asked] == [
        ("fedavg", "toy.fedavg", False), ("fliu", "toy.fliu", True),
    ]  # fmt: skip
    for one in asked:
        assert (one["trials"], one["confirm"], one["confirm_top"], one["metric"]) == (2, 0, None, "val/L1/local/worst")
        assert (one["final_repetitions"], one["scheduler"]) == (0, "none")
    assert found.methods == {"fedavg": {"training.lr": 0.0123456}, "fliu": {"training.lr": 0.0123456}}
    assert Choices.from_yaml(found.to_yaml(), "a file").methods == found.methods  # the scores are of these numbers
    assert found.scores == {"fedavg": 0.8, "fliu": 0.95} and found.status == "chosen"
    assert "2 trials" in found.budget and found.how == "pfl-ops reproduce toy/table1 --choose FILE"

    asked.clear()
    suite = replace(TOY, medium=Scale({"training.rounds": 3}))
    choosing.choose(suite, replace(TOY_RULE, confirm=2, confirm_top=4), home=tmp_path)
    assert [(one["confirm"], one["confirm_top"]) for one in asked] == [(2, 4), (2, 4)]
    asked.clear()
    found = choosing.choose(suite, TOY_RULE, scale="medium", home=tmp_path)
    assert [one["name"] for one in asked] == ["toy-medium.fedavg", "toy-medium.fliu"]
    assert [choosing.experiment_of(suite, TOY_RULE, "fliu", at).training.rounds for at in ("full", "medium")] == [50, 3]
    assert Choices.from_yaml(found.to_yaml(), "a file").scale == "medium"
    assert found.how == "pfl-ops reproduce toy/table1 --scale medium --choose FILE"


def tmp_path_context() -> Any:
    from contextlib import nullcontext

    return nullcontext()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fliu/table1", "--choose", "a.yaml"], "fliu/table1 has no rule of choice; drdm/table3 has one"),
        (["drdm/table3", "--choose", "a.csv"], "--choose takes a file that ends in .yaml or .yml"),
        (["drdm", "--choose", "a.yaml"], "--choose goes with one suite"),
        (["drdm/table3", "--choose", "a.yaml", "--only", "*/*"], "--choose goes with one suite"),
        (
            ["drdm/table3", "--choose", "a.yaml", "--scale", "smoke"],
            "the experiments of scale full, or of --scale medium",
        ),
        (["--choose", "a.yaml"], "--choose goes with one suite"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code == 2 and message in result.stderr and not result.stdout
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / "mlruns"))
    chosen = Choices(
        "drdm_mnist", "chosen", "a command", "2026-11-23", {"drdm": {"training.lr": 0.05}}, "1", {"drdm": 0.9}
    )
    monkeypatch.setattr(choosing, "choose", lambda *_, **__: chosen)
    file = tmp_path / "choices.yaml"
    result = CliRunner().invoke(app, ["reproduce", "drdm/table3", "--choose", str(file)])
    assert result.exit_code == 0, result.output
    assert "drdm: val/L1/local/worst 0.9000 with training.lr 0.05" in result.stdout
    assert Choices.from_yaml(file.read_text(), "it") == chosen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rule_is_run_on_validation_data(one_ray: None, tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    """Two methods, two trials each on digits, through real Ray; called again, the finished studies are read."""
    home = furnish(tmp_path / "mlruns")
    suite = replace(TOY, base={**TOY.base, "training.rounds": 2, "training.local_epochs": 1, "partition.clients": 4})
    rule = replace(TOY_RULE, cells={"fedavg": "iid/fedavg", "local": "iid/local"},
                   before={label: {"training.lr": 0.02} for label in ("fedavg", "local")})  # fmt: skip
    found = choosing.choose(suite, rule, home=home, concurrency=1)
    assert set(found.methods) == {"fedavg", "local"}
    assert all(0.01 <= settings["training.lr"] <= 1.0 for settings in found.methods.values())
    with Store.open(home) as store:
        runs = store.runs()
        trials = [run for run in runs if run.tags.get("pfl_ops.kind") == "trial"]
        assert len(trials) == 4
        assert not [key for run in runs for key in run.metrics if "test/" in key]
    with_them = with_choices(replace(suite, rule=rule), found)
    check_values(with_them, found)
    assert with_them.experiment(with_them.cell("path/local")).training.lr == found.methods["local"]["training.lr"]
    again = choosing.choose(suite, rule, home=home, concurrency=1)
    assert (again.methods, again.scores) == (found.methods, found.scores)
    assert tuning.recorded("toy.fedavg", home=home).trials == 2


def test_a_study_whose_configurations_all_diverged_again_chooses_nothing() -> None:
    """It ended in an internal error: the mean of no value."""
    lost = Confirmation("val/L1/acc", True, {3: {}}, {3: "seed 1000: NaN"}, 3, ())
    study: Any = SimpleNamespace(name="toy.fedavg", confirmation=lost)
    with pytest.raises(PflOpsError, match=r"^toy\.fedavg: not confirmed: every configuration diverged"):
        choosing.score(study, TOY_RULE)
