"""A study that starts from the best configurations of another one."""

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from tuning_fake import records, toy, tune

from pfl_ops import spaces
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store
from pfl_ops.tuning.commands.warm_start import warm_start
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage

METRIC = "val/L1/acc"
OLD = "algorithm.x: {float: [0, 1]}\ntraining.lr: {float: [0.001, 1], log: true}"


def settings(space: str, **more: Any) -> Settings:
    return Settings.of(toy(**more), spaces.parse(space), metric=METRIC)


@pytest.fixture
def earlier(tmp_path: Path) -> StudyStorage:
    """Trials 0 to 4 with scores 0.1, 0.9, 0.7, 0.5 and none."""
    old = settings(OLD)
    made = StudyStorage(
        "old", study_database.storage(str(tmp_path / "s.log")), old.objective, {**old.as_dict(), "digest": "d"}
    )
    for x, lr, value in ((0.1, 0.1, 0.1), (0.9, 0.5, 0.9), (0.7, 0.01, 0.7), (0.5, 0.01, 0.5), (1.0, 0.2, None)):
        trial = made.study.ask()
        trial.suggest_float("algorithm.x", x, x)
        trial.suggest_float("training.lr", lr, lr)
        made.study.tell(trial, value, TrialState.FAIL if value is None else None)
    return made


def test_the_best_three_come_before_the_space_s_own_first_points(earlier: StudyStorage) -> None:
    new = settings(OLD + "\nfirst: [{algorithm.x: 0.3, training.lr: 0.3}, {algorithm.x: 0.9, training.lr: 0.5}]")
    found = warm_start(earlier, new)
    assert found.points == {
        1: {"algorithm.x": 0.9, "training.lr": 0.5},
        2: {"algorithm.x": 0.7, "training.lr": 0.01},
        3: {"algorithm.x": 0.5, "training.lr": 0.01},
    }
    assert found.left_out == {} and found.first_in(new).space.first == (
        *found.points.values(),
        {"algorithm.x": 0.3, "training.lr": 0.3},
    )
    assert str(found) == (
        "from study 'old' of toy: trial 001: algorithm.x=0.9, training.lr=0.5; trial 002: algorithm.x=0.7, "
        "training.lr=0.01; trial 003: algorithm.x=0.5, training.lr=0.01"
    )


def test_the_confirmed_choice_comes_first(earlier: StudyStorage) -> None:
    earlier.choose(2, [1, 2, 3])
    assert list(warm_start(earlier, settings(OLD)).points) == [2, 1, 3]
    for x in (0.9, 0.6):  # the first one's configuration again, with a better value, and a further choice
        trial = earlier.study.ask()
        trial.suggest_float("algorithm.x", x, x)
        trial.suggest_float("training.lr", 0.5, 0.5)
        earlier.study.tell(trial, x + 0.05)
    earlier.choose(0, [number for number, _ in earlier.top(5)])
    assert list(warm_start(earlier, settings(OLD)).points) == [0, 5, 2]


@pytest.mark.parametrize(("front", "taken"), [(((0.9, 0.9), (0.1, 0.1)), [0]), (((0.9, 0.1), (0.1, 0.9)), [0, 1])])
def test_the_front_of_several_objectives_is_taken_over(tmp_path: Path, front: Any, taken: list[int]) -> None:
    """A front may be a single trial that is the best in all objectives."""
    goals = ["val/L1/local/mean", "val/L1/global/mean"]
    old = Settings.of(toy(), spaces.parse(OLD), metric=goals)
    made = StudyStorage(
        "old", study_database.storage(str(tmp_path / "s.log")), old.objective, {**old.as_dict(), "digest": "d"}
    )
    for x, values in zip((0.2, 0.4), front, strict=True):
        trial = made.study.ask()
        trial.suggest_float("algorithm.x", x, x)
        trial.suggest_float("training.lr", x, x)
        made.study.tell(trial, values)
    assert list(warm_start(made, settings(OLD)).points) == taken


def test_values_that_this_study_does_not_allow_are_left_out(earlier: StudyStorage) -> None:
    """lr of at most 0.1 here: 0.5 is replaced by the first point's 0.05; x does not vary; two of the points are one."""
    new = settings("training.lr: {float: [0.001, 0.1]}\nfirst: [{training.lr: 0.05}]", lr=0.02)
    found = warm_start(earlier, new)
    assert found.points == {2: {"training.lr": 0.01}}
    assert found.left_out == {
        "algorithm.x=0.9": "does not vary here",
        "training.lr=0.5": "0.5 is outside [0.001, 0.1]",
        "algorithm.x=0.7": "does not vary here",
        "algorithm.x=0.5": "does not vary here",
    }
    assert str(found).endswith("trial 002: training.lr=0.01; left out: " + "; ".join(
        f"{value} ({why})" for value, why in found.left_out.items()
    ))  # fmt: skip


def test_values_on_the_steps_are_taken_over_in_decimals(tmp_path: Path) -> None:
    """An older study drew 0.1 + 2 · 0.1 = 0.30000000000000004, which is also above a range to 0.3, and 0.3 itself. Both
    are the run of 0.3. A value between the steps is left out; without steps it is kept as it is."""
    old = settings("algorithm.x: {float: [0, 1]}")
    made = StudyStorage(
        "old", study_database.storage(str(tmp_path / "s.log")), old.objective, {**old.as_dict(), "digest": "d"}
    )
    for x, value in ((0.1 + 2 * 0.1, 0.9), (0.3, 0.8), (0.25, 0.7)):
        trial = made.study.ask()
        trial.suggest_float("algorithm.x", x, x)
        made.study.tell(trial, value)
    found = warm_start(made, settings("algorithm.x: {float: [0.1, 0.3], step: 0.1}"))
    assert list(found.points.values()) == [{"algorithm.x": 0.3}]
    assert found.left_out == {"algorithm.x=0.25": "0.25 is not 0.1 plus a multiple of the step 0.1"}
    assert warm_start(made, old).points[0] == {"algorithm.x": 0.1 + 2 * 0.1}


def test_a_setting_of_which_the_earlier_study_says_nothing_is_the_experiment_s(earlier: StudyStorage) -> None:
    space = OLD + "\ntraining.batch_size: {int: [1, 64]}"
    assert warm_start(earlier, settings(space, batch_size=7)).points[1]["training.batch_size"] == 7


def test_a_configuration_is_left_out_if_another_setting_has_no_usual_value_here(earlier: StudyStorage) -> None:
    """The experiment's batch size, 50, lies outside the range, and there is no first point."""
    with pytest.raises(PflOpsError, match="no configuration for this study"):
        warm_start(earlier, settings(OLD + "\ntraining.batch_size: {int: [1, 8]}"))
    space = (
        OLD + "\ntraining.batch_size: {int: [1, 8]}\nfirst: [{algorithm.x: 0, training.lr: 1, training.batch_size: 8}]"
    )
    assert {point["training.batch_size"] for point in warm_start(earlier, settings(space)).points.values()} == {8}


def test_a_value_keeps_its_own_reason_where_nothing_replaces_it(earlier: StudyStorage) -> None:
    """lr of at most 0.1 here, and the experiment's is 0.7: trial 1 is left out whole, its 0.5 for being too large."""
    found = warm_start(earlier, settings("algorithm.x: {float: [0, 1]}\ntraining.lr: {float: [0.001, 0.1]}", lr=0.7))
    assert list(found.points) == [2, 3]
    assert found.left_out == {
        "algorithm.x=0.9": "training.lr: 0.7 is outside [0.001, 0.1]",
        "training.lr=0.5": "0.5 is outside [0.001, 0.1]",
    }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("training.batch_size: {int: [1, 64]}", "no configuration for this study, which varies training.batch_size"),
        ("algorithm.x: {float: [0, 0.4]}", "no configuration for this study, which varies algorithm.x"),
    ],
)
def test_nothing_to_take_over(earlier: StudyStorage, space: str, message: str) -> None:
    with pytest.raises(PflOpsError, match=message):
        warm_start(earlier, settings(space))


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, False),
        ({"training.batch_size": 7}, False),
        ({"seed": 1}, True),
        ({"partition.clients": 5}, True),
        ({"data.pooled": False}, True),
    ],
)
def test_points_of_a_study_that_trained_on_this_one_s_test_samples_are_named(
    tmp_path: Path, change: dict[str, Any], seen: bool
) -> None:
    """With pooled data each partition has another test set, and without it the data set's own.

    The second study's method is of a plug-in that is not loaded.
    """
    pooled = {"data.pooled": True, "data.test_share": 0.25}
    old, new = settings(OLD, **pooled), settings(OLD, **{**pooled, **change})
    storage, record = study_database.storage(str(tmp_path / "s.log")), {**old.as_dict(), "digest": "d"}
    for method in ("toy", "not_loaded"):
        record = {**record, "experiment": {**record["experiment"], "algorithm": {"name": method}}}
        made = StudyStorage(f"old {method}", storage, old.objective, record)
        trial = made.study.ask()
        trial.suggest_float("algorithm.x", 0.5, 0.5)
        made.study.tell(trial, 0.1)
        found = warm_start(made, new)
        assert (found.method, found.tests_seen) == (method, seen)
        assert ("its trials trained on samples that this study is tested on" in str(found)) is seen
    several = Settings.of(toy(**pooled), spaces.parse(OLD), metric=METRIC, environments=["lsqs", "iid"])
    assert warm_start(made, several).tests_seen, "in the second environment, not in the first one"


def test_a_study_without_a_complete_trial(tmp_path: Path) -> None:
    old = settings(OLD)
    made = StudyStorage(
        "old", study_database.storage(str(tmp_path / "s.log")), old.objective, {**old.as_dict(), "digest": "d"}
    )
    with pytest.raises(PflOpsError, match="study 'old' has no complete trial"):
        warm_start(made, old)


def test_mistakes_are_told_before_anything_is_written(tmp_path: Path) -> None:
    given = {"space": spaces.parse(OLD), "metric": METRIC, "home": tmp_path, "records": records}
    with pytest.raises(PflOpsError, match="no study named 'old'"):
        tune(toy(), name="new", from_study="old", **given)
    with pytest.raises(PflOpsError, match="give an experiment with from_study"):
        tune(None, name="new", resume=True, from_study="old", home=tmp_path)
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_trials_begin_with_the_earlier_choice(home: Path) -> None:
    """The earlier study tried x = 0.75; the new one, of another seed, tries it first, and resumes without its name."""
    given = {"home": home, "records": records, "final_repetitions": 0, "confirm": 0}
    first = spaces.from_dict(
        {**spaces.parse("algorithm.x: {float: [0, 1]}").as_yaml(), "first": [{"algorithm.x": 0.75}]}
    )
    tune(toy(seed=71), space=first, trials=1, name="warm-old", **given)
    plain = spaces.parse("algorithm.x: {float: [0, 1]}")
    study = tune(toy(seed=72), space=plain, trials=2, name="warm-new", from_study="warm-old", **given)
    assert study.table["algorithm.x"][0] == 0.75 and study.table["algorithm.x"][1] != 0.75
    with Store.open(home) as store:
        parent = next(run for run in store.runs("warm-new") if run.name == "study")
    assert parent.tags["pfl_ops.from_study"] == "from study 'warm-old' of toy: trial 000: algorithm.x=0.75"
    again = tune(None, name="warm-new", resume=True, trials=3, **given)
    assert again.table["algorithm.x"][:2].tolist() == study.table["algorithm.x"].tolist() and len(again.table) == 3
