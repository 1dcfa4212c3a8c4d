"""Beginning a study is idempotent: whatever a kill cut short is done by the next start."""

from dataclasses import replace
from types import SimpleNamespace

import optuna
import pytest
from tuning_fake import toy

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.federation.settings import Execution
from pfl_ops.tracking import Store
from pfl_ops.tuning.commands import tune_study
from pfl_ops.tuning.commands.planning import begun_studies, benchmark_plans, study_plan
from pfl_ops.tuning.commands.terms import check_build, check_fair
from pfl_ops.tuning.session.begin import PreparedStudy, StudyOptions, recorded_settings
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.settings import Settings

FIRST = [{"algorithm.x": 0.25}, {"algorithm.x": 0.75}]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def plan():
    space = spaces.from_dict({**spaces.parse("algorithm.x: {float: [0, 1]}").as_yaml(), "first": FIRST}, "toy.yaml")
    experiment = toy()
    return PreparedStudy(experiment, Settings.of(experiment, space, StudyLimits(trials=3)), "s", 1)


@pytest.mark.parametrize(
    ("limits", "seeds", "finals", "highest", "words"),
    [
        (StudyLimits(confirm=3), 1, 1, 2**32 - 1 - 1002, "3 seeds of the confirmation, from seed + 1000 on"),
        (StudyLimits(confirm=0), 4, 1, 2**32 - 4, "4 seeds per trial"),
        (StudyLimits(confirm=0), 1, 5, 2**32 - 5, "5 test runs"),
        (StudyLimits(confirm=0), 1, 0, 2**32 - 1, ""),
    ],
)
def test_a_seed_too_large_for_the_last_run_is_refused_at_once(limits, seeds, finals, highest, words):
    """Seeds are below 2³². The last one is seed + n - 1, in the confirmation seed + 1000 + n - 1."""

    def prepare(seed):
        experiment = toy(seed=seed)
        settings = Settings.of(experiment, spaces.parse("algorithm.x: {float: [0, 1]}"), limits, seeds_per_trial=seeds)
        return PreparedStudy(experiment, settings, "s", finals)

    prepare(highest)
    with pytest.raises(PflOpsError) as caught:
        prepare(highest + 1)
    if words:
        line = f"seed must be <= {highest} with {words} (seeds are at most 4294967295), got {highest + 1}"
        assert str(caught.value) == line


@pytest.mark.parametrize("resume", [False, True], ids=["the same command", "resume"])
@pytest.mark.parametrize(
    ("method", "call"),
    [("create_study", 1), ("set_user_attr", 1), ("enqueue_trial", 1), ("enqueue_trial", 2), ("nothing", 1)],
)
def test_a_study_killed_while_it_begins_has_its_first_points(tmp_path, monkeypatch, plan, method, call, resume):
    """Killed right before the given call; then begun again."""
    address = str(tmp_path / "s.log")
    place = optuna if method == "create_study" else optuna.Study
    calls = []

    def write(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise Killed
        return usual(*args, **kwargs)

    with monkeypatch.context() as patch:
        if method != "nothing":
            usual = getattr(place, method)
            patch.setattr(place, method, write)
        try:
            plan.begin(SimpleNamespace(data_dir=None, studies=study_database.storage(address)), False)
        except Killed:
            assert len(calls) == call
    again = SimpleNamespace(data_dir=None, studies=study_database.storage(address))
    if method == "create_study" and resume:
        with pytest.raises(PflOpsError, match="no study named 's'"):
            plan.begin(again, True)
        return
    for _ in range(2):
        study_storage = plan.begin(again, resume)
        assert [t.system_attrs["fixed_params"] for _, t in study_storage.trials()] == FIRST
        assert study_storage.settings["digest"] == plan.settings.digest(None)


def test_a_study_is_not_gone_on_with_under_other_code(tmp_path, monkeypatch, plan):
    means = SimpleNamespace(data_dir=None, studies=study_database.storage(str(tmp_path / "s.log")))
    plan.begin(means, False)
    digest = ALGORITHMS.digest
    monkeypatch.setattr(ALGORITHMS, "digest", lambda name: digest(name)[::-1])
    with pytest.raises(PflOpsError) as caught:
        plan.begin(means, True)
    assert str(caught.value) == (
        "study 's' was begun with other code (method), so its trials are not comparable with new ones; "
        "choose another --name"
    )


@pytest.mark.parametrize("own", [False, True], ids=["cross_entropy", "own loss"])
def test_a_loss_that_only_the_space_names_is_part_of_the_study(tmp_path, monkeypatch, own):
    """The study's own experiment has the cross-entropy. Trials with the loss before its edit would not compare."""
    name = "mine" if own else "cross_entropy"
    monkeypatch.setattr(LOSSES, "get", lambda name: None)
    monkeypatch.setattr(LOSSES, "digest", lambda name: "before")
    space = spaces.from_dict({"training.loss": {"choice": ["cross_entropy", name][: 1 + own]},
                              "algorithm.x": {"float": [0, 1]}})  # fmt: skip
    plan = PreparedStudy(toy(), Settings.of(toy(), space), "s", 1)
    means = SimpleNamespace(data_dir=None, studies=study_database.storage(str(tmp_path / "s.log")))
    plan.begin(means, False)
    monkeypatch.setattr(LOSSES, "digest", lambda name: "after")
    if own:
        with pytest.raises(PflOpsError, match="study 's' was begun with other code or data; choose another --name"):
            plan.begin(means, True)
    else:
        plan.begin(means, True)


def test_another_search_of_a_name_is_a_run_of_its_own(home, tmp_path, plan, caplog):
    """studies.db was deleted, and MLflow kept the study: its run had the trials of both searches."""

    def search(file, trials, status="FINISHED"):
        resume = (tmp_path / file).exists()
        means = SimpleNamespace(data_dir=None, studies=study_database.storage(str(tmp_path / file)))
        with Store.open(home) as store:
            study_storage = plan.begin(means, resume)
            run = tune_study._parent(store, plan, study_storage, means, None)
            for number in trials:
                store.run(run.experiment, f"trial {number}", identity=f"{file}:trial-{number:03d}", parent=run).finish()
            run.finish(status)
            return run.run_id

    def left():
        with Store.open(home) as store:
            found = store.runs(plan.name)
        return {run.run_id for run in found if not run.parent}, [run.identity for run in found if run.parent]

    plan = replace(plan, name="twice")
    first = search("a.log", [0, 1])
    assert search("a.log", [1, 2]) == first and not caplog.messages
    second = search("b.log", [0], "KILLED")
    assert second != first and [m[:40] for m in caplog.messages] == ["MLflow has study 'twice' of another sear"]
    assert left() == ({first, second}, [*(f"a.log:trial-00{n}" for n in range(3)), "b.log:trial-000"])
    assert search("b.log", [1]) == second and len(caplog.messages) == 1
    assert left() == ({second}, ["b.log:trial-000", "b.log:trial-001"])


def test_a_command_that_is_suggested_holds_no_password():
    means = SimpleNamespace(storage="postgresql://me:s3cret@h/d?sslmode=require&application_name=x")
    assert StudyOptions.repeated(means, 1).split(" --plugin")[0] == (
        " --storage 'postgresql://h/d?sslmode=require&application_name=x'"
    )


@pytest.mark.parametrize(("recorded", "expected"), [({"random_start": 3}, 3), ({}, 5)])
def test_a_study_keeps_the_random_start_that_it_began_with(plan, recorded, expected):
    """Records of earlier versions have none: it was 5. A new study has 8."""
    known = {key: value for key, value in plan.settings.as_dict().items() if key != "random_start"} | recorded
    study_storage = SimpleNamespace(settings=known, remember=lambda **_: None)
    assert plan.wanting(study_storage, StudyLimits()).settings.random_start == expected
    assert Settings.from_dict(known).random_start == expected
    assert plan.settings.as_dict()["random_start"] == 8


def test_a_study_keeps_the_number_of_test_runs(tmp_path, plan):
    """`--name NAME --resume` alone tested the choice once, however many tests the study was begun with."""
    studies = study_database.storage(str(tmp_path / "s.log"))
    means = SimpleNamespace(data_dir=None, studies=studies)
    plan = replace(plan, finals=5)
    study_storage = plan.begin(means, False)
    assert plan.wanting(study_storage, StudyLimits()).settings.finals == 5
    assert recorded_settings("s", studies).finals == 5
    replace(plan, finals=0).wanting(study_storage, StudyLimits())
    assert recorded_settings("s", studies).finals == 0
    earlier = {key: value for key, value in study_storage.settings.items() if key != "finals"}
    assert Settings.from_dict(earlier).finals == 1


def test_running_study_is_not_told_to_go_on_with_resume(tmp_path, monkeypatch, plan):
    """The command line said "exists, 0 of 3 trials have a result; go on with --resume" of a study that ran."""
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path))
    storage = str(tmp_path / "s.log")
    study_storage = plan.begin(SimpleNamespace(data_dir=None, studies=study_database.storage(storage)), False)
    study_storage.study.ask()
    given = {
        "limits": StudyLimits(), "name": "s", "resume": False, "storage": storage, "data_dir": None,
        "execution": Execution(), "address": None,
    }  # fmt: skip
    with study_database.lock(tmp_path, "s"), pytest.raises(PflOpsError, match=r"study 's' is running \(process "):
        study_plan(plan.experiment, plan.settings, 1, **given)
    with pytest.raises(PflOpsError, match="exists, 0 of 3 trials have a result; go on with --resume"):
        study_plan(plan.experiment, plan.settings, 1, **given)
    benchmark = [replace(plan, name="b.toy", benchmark="b")]
    with study_database.lock(tmp_path, "b"), pytest.raises(PflOpsError, match="study 'b' is running"):
        begun_studies(benchmark, study_database.storage(storage), None, False)


def test_methods_of_a_benchmark_have_one_scheduler(plan):
    one, other = plan.settings, replace(plan.settings, scheduler="none")
    check_fair({"a": one, "b": one})
    with pytest.raises(PflOpsError, match="compared on the same scheduler: a has asha, b none"):
        check_fair({"a": one, "b": other})


@pytest.mark.parametrize("asked", [{"chunk": 5}, {"way": "vmap"}, {"way": "vmap", "chunk": 5}])
def test_a_first_build_takes_the_stacks_that_were_asked_for(asked):
    """`tune a,b --chunk 5` said that it contradicts a `--way loop` that was not given."""
    check_build(toy(), None, Execution(**asked), "toy")


def test_a_refused_confirm_top_leaves_no_study(tmp_path):
    storage = str(tmp_path / "s.log")
    space = spaces.parse("algorithm.x: {float: [0, 1]}")
    with pytest.raises(PflOpsError, match="--confirm-top has no effect: nothing is confirmed"):
        tune_study.tune(toy(), space=space, name="s", confirm=0, confirm_top=3, storage=storage, home=tmp_path / "home")
    assert study_database.storage(storage).get_all_studies() == []


@pytest.mark.parametrize(
    ("name", "value"), [("metric", "val/G/acc"), ("scheduler", "none"), ("hold", ["training.lr"]), ("mode", "min")]
)
def test_what_a_study_keeps_is_refused_where_it_goes_on(tmp_path, plan, name, value):
    """In Python they were taken without a word, and the recorded ones used."""
    storage = str(tmp_path / "s.log")
    studies = study_database.storage(storage)
    plan.begin(SimpleNamespace(data_dir=None, studies=studies), False)
    with pytest.raises(PflOpsError, match=f"a study keeps the {name} that it was begun with: leave it out, or give"):
        tune_study.tune(name="s", resume=True, storage=storage, home=tmp_path / "home", **{name: value})
    settings = {"studies": studies, "data_dir": None, "limits": StudyLimits(), "name": "both"}
    replace(plan, name="both.toy", benchmark="both").begin(SimpleNamespace(data_dir=None, studies=studies), False)
    with pytest.raises(PflOpsError, match=f"a benchmark keeps the {name} that it was begun with"):
        benchmark_plans(None, resume=True, **settings, **{name: value})
