"""The part of the search that compared methods share: who varies what, what is tried first, and who can't follow."""

from pathlib import Path

import optuna
import pytest

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.spaces import MethodSpace
from pfl_ops.tuning import Settings, tune
from pfl_ops.tuning.commands.terms import settings_of
from pfl_ops.tuning.studies.limits import StudyLimits

RATES = """
training.optimiser: {choice: [sgd, adam]}
training.lr:
  - {float: [0.01, 0.5], log: true, when: {training.optimiser: sgd}}
  - {float: [1.0e-4, 0.1], log: true, when: {training.optimiser: adam}}
first:
  - {training.optimiser: adam, training.lr: 0.001}
"""


def settings(*methods, space=None, hold=(), begun=None, **flags):
    flags = {"dataset": "digits", **flags}
    return settings_of([Experiment.of(method, **flags) for method in methods], space, hold=hold, begun=begun or {})


def common_part(found):
    return {key: list(map(str, found.space.of(key))) for key in found.space.keys if not key.startswith("algorithm.")}


def firsts(found, *keys):
    return [tuple(point[key] for key in keys) for point in found.space.first]


# -- options that decide what varies -----------------------------------------------------------------------------------


def test_fedrep_by_steps_varies_the_number_of_steps():
    """A method that counts steps beside it: both are searched over the same ranges, and no restriction is silent."""
    experiments = [
        Experiment.of("fedrep", dataset="digits", **{"algorithm.schedule": "steps", "training.local_steps": 4}),
        Experiment.of("fedavg2rep", dataset="digits"),
    ]
    found = settings_of(experiments, None, hold=("algorithm.schedule",), begun={})
    assert ["training.local_steps" in one.space.keys for one in found.values()] == [True, True]


# -- several ranges of one key -----------------------------------------------------------------------------------------


def test_a_key_has_the_range_of_its_condition():
    space = spaces.parse(RATES)
    assert [p.name for p in space.parameters] == ["training.optimiser", "training.lr@sgd", "training.lr@adam"]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(space.encoded(space.first[0]))
    study.optimize(lambda trial: float(len(space(trial))), n_trials=30)
    assert study.trials[0].params == {"training.optimiser": "adam", "training.lr@adam": 0.001}
    for trial in study.trials:
        point = spaces.decoded(trial.params)
        low, high = (0.01, 0.5) if point["training.optimiser"] == "sgd" else (1e-4, 0.1)
        assert set(point) == set(space.keys) and low <= point["training.lr"] <= high
        assert space.encoded(point) == trial.params
    assert min(t.params.get("training.lr@adam", 1.0) for t in study.trials) < 0.01


def test_several_ranges_survive_yaml_and_a_held_condition():
    space = spaces.parse(RATES)
    assert spaces.from_dict(space.as_yaml()).parameters == space.parameters
    held = spaces.hold(space, ["training.optimiser"], Experiment.of("fedavg", optimiser="adam"))
    assert [(p.name, p.low, p.high, p.when) for p in held.parameters] == [("training.lr", 1e-4, 0.1, ())]
    assert held.first == ({"training.lr": 0.001},)
    assert spaces.from_dict(held.as_yaml()).parameters == held.parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RATES.replace("optimiser: adam}}", "optimiser: [sgd, adam]}}"), "training.lr: two of its ranges may hold at"),
        (RATES.replace(", when: {training.optimiser: adam}", ""), "training.lr: two of its ranges may hold at once"),
        ("training.lr: []", "training.lr: needs a range"),
        ("training.lr: {float: [0.1, 1], own: 1}", "training.lr: own is true or false, got 1"),
        (RATES + "  - {training.optimiser: sgd, training.lr: 0.001}", r"training.lr: 0.001 is outside \[0.01, 0.5\]"),
        (
            RATES + "training.momentum: {float: [0, 0.9], when: {training.lr: 0.1}}",
            "training.momentum: `when` names 'training.lr', which has several ranges",
        ),
    ],
)
def test_ranges_that_can_not_be_told_apart_are_refused(text, message):
    with pytest.raises(PflOpsError, match=message):
        spaces.parse(text)


# -- what methods share ------------------------------------------------------------------------------------------------


def test_methods_share_the_ranges_of_what_is_not_their_own():
    found = settings("fedavg", "fliu")
    fedavg, fliu = (common_part(found[method]) for method in ("fedavg", "fliu"))
    assert fedavg.pop("participation.weighting") == ["samples or uniform"]  # FLIU has no use for it
    assert fedavg == fliu
    assert fliu["training.optimiser"] == ["sgd or adam"] and fliu["training.local_epochs"] == ["1 to 5"]
    assert len(fliu["training.lr"]) == 2
    assert "algorithm.gamma.kind" in found["fliu"].space.keys
    assert {method: each.restrictions for method, each in found.items()} == {"fedavg": {}, "fliu": {}}


def test_every_method_is_tried_with_what_any_of_them_recommends_its_own_first():
    """FLIU recommends Adam at 0.001 and its space the paper's 0.01; FedAvg the default, SGD at 0.05."""
    found = settings("fedavg", "fliu")
    rates = [firsts(each, "training.optimiser", "training.lr") for each in found.values()]
    assert rates == [
        [("sgd", 0.05), ("adam", 0.001), ("adam", 0.01)],
        [("adam", 0.001), ("adam", 0.01), ("sgd", 0.05)],
    ]
    assert firsts(found["fliu"], "algorithm.gamma.kind") == [("adaptive",)] * 3


def test_own_setting_that_exists_by_a_common_one_is_in_first_points(tmp_path):
    """mu exists with Adam alone. Both recommendations of FedProx, and FedAvg's and FLIU's, are tried; those with Adam
    have the first point's mu, which was missing, so that they were left out."""
    (tmp_path / "fedprox.yaml").write_text(
        """
        training.optimiser: {choice: [sgd, adam]}
        training.lr: {float: [0.001, 0.5], log: true}
        algorithm.mu: {float: [0.001, 1.0], log: true, when: {training.optimiser: adam}}
        first:
          - {training.optimiser: adam, training.lr: 0.01, algorithm.mu: 0.2}
          - {training.optimiser: sgd, training.lr: 0.1}
        """
    )
    prox = MethodSpace(Experiment.of("fedprox", dataset="digits"), spaces.read(tmp_path, "fedprox"))
    beside = MethodSpace(Experiment.of("fliu", dataset="digits"), spaces.read(None, "fliu"))
    ((found,), _) = spaces.share([prox], spaces.read_common(None), [beside])
    tried = [(p["training.optimiser"], p["training.lr"], p.get("algorithm.mu")) for p in found.space.first]
    assert tried == [("sgd", 0.05, None), ("adam", 0.01, 0.2), ("sgd", 0.1, None), ("adam", 0.001, 0.2)]


def test_what_a_method_requires_stays_and_is_said():
    found = settings("fedavg", "scaffold", "fliu")
    scaffold = found["scaffold"]
    assert scaffold.restrictions == {"training.optimiser": "sgd"}
    assert common_part(scaffold)["training.lr"] == ["0.001 to 0.5 (log)"]
    assert "training.optimiser" not in scaffold.space.keys
    assert firsts(scaffold, "training.lr") == [(0.05,)]  # the two recommended rates for Adam are none of SGD


def test_a_condition_of_the_methods_own_stays_and_steps_are_the_unit_of_all():
    """pFedMe needs η λ < 1, and recommends a number of steps."""
    found = settings("fedavg", "pfedme")
    assert common_part(found["fedavg"])["training.local_steps"] == ["1 to 40 (log)"]
    assert not any("training.local_epochs" in each.space.keys for each in found.values())
    assert found["fedavg"].experiment.training.local_steps == 20
    assert found["pfedme"].restrictions == {"training.optimiser": "sgd", "training.lr": "0.001 to 0.06 (log)"}
    assert firsts(found["fedavg"], "training.lr", "training.local_steps") == [(0.05, 20), (0.005, 20)]
    assert firsts(found["pfedme"], "training.lr", "training.local_steps") == [(0.005, 20), (0.05, 20)]


def test_what_has_no_effect_on_a_method_is_not_varied():
    found = settings("fedavg", "fedrep")
    assert "training.local_epochs" in found["fedavg"].space.keys
    assert "training.local_epochs" not in found["fedrep"].space.keys and found["fedrep"].restrictions == {}


def test_a_flag_holds_a_setting_for_all():
    found = settings("fedavg", "fliu", hold=["training.optimiser"], optimiser="adam")
    for each in found.values():
        assert common_part(each)["training.lr"] == ["0.0001 to 0.1 (log)"]
        assert "training.optimiser" not in each.space.keys and each.restrictions == {}
        assert each.experiment.training.optimiser == "adam"


def test_a_preset_is_the_first_trial():
    found = settings("fedavg", "fliu", preset="paper")
    keys = ("training.lr", "training.lr_decay", "training.local_epochs")
    assert firsts(found["fliu"], *keys)[0] == firsts(found["fedavg"], *keys)[0] == (0.01, 0.99, 5)


def test_one_method_alone_has_its_own_space():
    alone = settings("fliu")["fliu"]
    assert alone.common is None and alone.space == spaces.read(None, "fliu") and alone.restrictions == {}


def test_a_users_spaces_are_taken_as_they_are_unless_they_have_a_common_one(tmp_path):
    for method in ("fedavg", "fliu"):
        (tmp_path / f"{method}.yaml").write_text("training.lr: {float: [0.01, 0.1]}\n")
    found = settings("fedavg", "fliu", space=tmp_path)
    assert all(each.common is None and each.space.keys == ("training.lr",) for each in found.values())
    (tmp_path / "common.yaml").write_text(
        "training.lr: {float: [0.02, 0.3]}\ntraining.weight_decay: {choice: [0.0, 0.1]}\n"
    )
    found = settings("fedavg", "fliu", space=tmp_path)
    assert common_part(found["fedavg"]) == {"training.lr": ["0.02 to 0.3"], "training.weight_decay": ["0.0 or 0.1"]}
    assert common_part(found["fliu"]) == common_part(found["fedavg"]) and found["fliu"].restrictions == {}
    with pytest.raises(PflOpsError, match=r"fliu: .*momentum belongs to optimiser sgd, not adam"):
        (tmp_path / "common.yaml").write_text("training.momentum: {choice: [0.0, 0.9]}\n")
        settings("fedavg", "fliu", space=tmp_path)


def test_a_users_range_of_epochs_is_varied_where_a_method_recommends_steps(tmp_path):
    """One file, or space, for both methods: pfedme's 20 recommended steps give way to its epochs."""
    file = tmp_path / "mine.yaml"
    file.write_text("training.lr: {float: [0.001, 0.05]}\ntraining.local_epochs: {int: [1, 5]}\n")
    several = [settings("fedavg", "pfedme", space=space) for space in (file, spaces.read(file, "pfedme"))]
    alone = Settings.of(Experiment.of("pfedme", dataset="digits"), file)
    for found in (*several[0].values(), *several[1].values(), alone):
        assert found.space.keys == ("training.lr", "training.local_epochs")
        assert found.experiment.training.local_steps is None
    by_steps = Experiment.of("pfedme", dataset="digits", local_steps=20)
    held = Settings.of(by_steps, file, hold=["training.local_steps"])
    assert held.space.keys == ("training.lr",) and held.experiment.training.local_steps == 20
    with pytest.raises(PflOpsError, match=r"mine\.yaml: training\.local_epochs: drdm needs training\.local_steps set"):
        Settings.of(Experiment.of("drdm", dataset="digits"), file)
    with pytest.raises(PflOpsError, match=r"in Python: training\.local_epochs: drdm needs training\.local_steps set"):
        tune(
            Experiment.of("drdm", dataset="digits"),
            space=spaces.parse("training.local_epochs: {int: [1, 5]}", "in Python"),
            home=tmp_path,
        )


def test_settings_with_a_common_part_are_read_as_they_were_recorded():
    for each in settings("fedavg", "scaffold", "fliu").values():
        again = Settings.from_dict(each.as_dict())
        assert again.space.parameters == each.space.parameters and again.common.parameters == each.common.parameters
        assert again.restrictions == each.restrictions and again.digest(None) == each.digest(None)


def test_tests_of_one_comparison_have_one_tag():
    tags = [each.tags for each in settings("fedavg", "scaffold", "fliu").values()]
    assert tags[0]["pfl_ops.common"].endswith(
        ", 20 trials, 3 new seeds of 2: training.optimiser training.lr training.lr_decay training.local_epochs "
        "participation.weighting"
    )
    without = settings("fedavg", "scaffold", "fliu")["fedavg"].limited(StudyLimits(confirm=0))
    assert without.tags["pfl_ops.common"] == tags[0]["pfl_ops.common"].replace(", 3 new seeds of 2", "")
    turned = settings("fliu", "scaffold", "fedavg").values()
    assert tags[0] == tags[1] == tags[2] == next(iter(turned)).tags and settings("fliu")["fliu"].tags == {}


def test_a_method_that_comes_later_knows_the_recommendations_of_those_before_and_moves_nothing():
    before = settings("fedavg", "fedprox")
    later = settings("fedavg", "fedprox", "fliu", begun=before)
    assert [later[m].digest(None) for m in before] == [each.digest(None) for each in before.values()]
    assert ("adam", 0.001) not in firsts(later["fedavg"], "training.optimiser", "training.lr")
    assert all(later[m].common.first == before[m].common.first for m in before)
    assert later["fliu"].common.first != before["fedavg"].common.first
    assert later["fliu"].tags != later["fedavg"].tags == before["fedavg"].tags
    alone = settings("fliu", begun=before)["fliu"]
    assert ("sgd", 0.05) in firsts(alone, "training.optimiser", "training.lr")
    assert common_part(alone) == common_part(later["fliu"])


def test_a_space_that_is_edited_is_no_longer_the_one_that_was_begun(tmp_path):
    before = settings("fedavg", "fedprox")
    (tmp_path / "fedavg.yaml").write_text("training.lr: {float: [0.01, 0.1]}\n")
    (tmp_path / "fedprox.yaml").write_text("algorithm.mu: {float: [0.01, 0.1]}\n")
    (tmp_path / "common.yaml").write_text("training.lr: {float: [0.01, 0.1]}\n")
    later = settings("fedavg", "fedprox", begun=before, space=tmp_path)
    assert all(later[m].digest(None) != before[m].digest(None) for m in before)


def test_share_leaves_what_it_is_given_alone():
    method = MethodSpace(Experiment.of("fliu"), spaces.read(None, "fliu"))
    digest = method.space.digest
    spaces.share([method, MethodSpace(Experiment.of("pfedme"), spaces.read(None, "pfedme"))], spaces.read_common(None))
    assert method.space.digest == digest and method.experiment.training.local_steps is None


def test_the_guide_shows_the_common_space_as_it_is():
    page = (Path(__file__).parents[1] / "docs" / "search-spaces.md").read_text()
    shown = page.split("<!-- file: common.yaml -->\n```yaml\n")[1].split("```")[0]
    assert spaces.parse(shown).digest == spaces.read_common(None).digest
