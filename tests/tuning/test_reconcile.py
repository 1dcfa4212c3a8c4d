"""A kill between Optuna's end of a trial and MLflow's: the next start brings the two together."""

from types import SimpleNamespace

import pytest
from optuna.trial import TrialState
from tuning_fake import toy

from pfl_ops import runs, spaces, tag_names
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.tracking import Store
from pfl_ops.tuning.session.reconcile import reconcile
from pfl_ops.tuning.session.session import Session
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.parts import PartResult, TrialPart
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import DIVERGED, ERROR, PARTS, StudyStorage

METRIC = "val/L1/acc"


@pytest.fixture
def study_session(home, tmp_path, request):
    """Open a session on one study again and again, as processes do that are killed one after the other."""
    space = spaces.parse("algorithm.x: {float: [0, 1]}")
    address = str(tmp_path / "s.log")
    opened = []

    def start(seeds=1, environments=()):
        settings = Settings.of(toy(), space, metric=METRIC, seeds_per_trial=seeds, environments=environments)
        for store in opened:
            store.close()  # the runs that are open become KILLED, as those of a dead process
        study_storage = StudyStorage("s", study_database.storage(address), settings.objective, {"digest": "d"})
        opened.append(Store.open(home))
        parent = opened[-1].run(request.node.name, "study", identity=request.node.name)
        return Session(settings, study_storage, opened[-1], parent, None, Execution(), None, None)

    yield start
    for store in opened:
        store.close()


def make(session, x, state, last=9, error=""):
    """A trial that ends in the study after round `last`; returns its number and point."""
    trial = session.study_storage.study.ask()
    point = {"algorithm.x": trial.suggest_float("algorithm.x", x, x)}
    for step in range(last + (state is not TrialState.COMPLETE)):
        trial.report(x * step / 9, step)
    trial.set_user_attr("rounds", last)
    if error:
        trial.set_user_attr(ERROR, error)
    session.study_storage.study.tell(trial, x if state is TrialState.COMPLETE else None, state)
    return trial.number, point


def rounds(last, x):
    return [
        Record(t, {METRIC: x * t / 9, "train/loss": 1 - x * t / 9, "train/lr": 0.1}, 1_700_000_000_000 + t)
        for t in range(last + 1)
    ]


def children(session):
    session.store.deliver()
    found = session.store.runs(session.parent.experiment, parent=session.parent)
    return {str(run.identity).rpartition(":")[2]: run for run in found}


def test_runs_of_ended_trials_are_finished_with_all_their_rounds(study_session, monkeypatch):
    """Killed between Optuna and MLflow: complete, pruned, failed, and one whose run was never opened."""
    session = study_session()
    ends = [
        (0.5, TrialState.COMPLETE, 9, ""),
        (0.25, TrialState.PRUNED, 3, ""),
        (0.75, TrialState.FAIL, 4, "ValueError: no"),
        (1.0, TrialState.COMPLETE, 9, ""),
    ]
    for x, state, last, error in ends:
        number, point = make(session, x, state, last, error)
        if number < 3:
            session.children.trial(number, point).open().log(rounds(2, x))
    session = study_session()  # and now MLflow says KILLED
    assert {run.status for run in children(session).values()} == {"KILLED"}

    kept = {x: rounds(9, x) for x, *_ in ends}
    monkeypatch.setattr(runs, "kept_records", lambda experiment, **_: kept[experiment.algorithm.x])
    forgotten = []
    monkeypatch.setattr(runs, "forget", lambda experiment, **_: forgotten.append(experiment.algorithm.x))
    assert reconcile(session) == [0, 1, 2, 3]
    found = children(session)
    assert {name: (run.status, run.tags[tag_names.TRIAL_STATE]) for name, run in found.items()} == {
        "trial-000": ("FINISHED", "complete"),
        "trial-001": ("FINISHED", "pruned"),
        "trial-002": ("FAILED", "failed"),
        "trial-003": ("FINISHED", "complete"),
    }
    assert found["trial-002"].tags["pfl_ops.error"] == "ValueError: no"
    lengths = {name: session.store.history(run.run_id)["train/loss"].index.tolist() for name, run in found.items()}
    assert {name: len(steps) for name, steps in lengths.items()} == {
        "trial-000": 10, "trial-001": 4, "trial-002": 10, "trial-003": 10
    }  # fmt: skip
    assert all(steps == list(range(len(steps))) for steps in lengths.values())
    assert forgotten == [0.25], "the pruned one's checkpoint goes, as it would have gone"
    before = {run.run_id for run in found.values()}
    assert reconcile(session) == [] and reconcile(study_session()) == []
    assert {run.run_id for run in children(session).values()} == before


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_trial_whose_checkpoint_is_gone_is_a_new_run(study_session, monkeypatch, is_kept):
    """It was cut short. Else its run would have rounds of two computations."""
    session = study_session()
    trial, begun = session.children.trial(0, {"algorithm.x": 0.5}), rounds(4, 0.5)
    trial.open().log(begun)
    session = study_session()
    kept = begun[:3] if is_kept else []
    monkeypatch.setattr(runs, "kept_records", lambda *_, **__: kept)
    new = [Record(r.round, {**r.metrics, "train/loss": 0.0}, r.time + 99) for r in rounds(9, 0.5)]
    run = session.children.trial(0, {"algorithm.x": 0.5}).open()
    run.log([*kept, *new[len(kept) :]])
    run.finish()
    found = session.store.runs(session.parent.experiment, parent=session.parent, superseded=True)
    assert [one.tags.get("pfl_ops.superseded") for one in found] == ([None] if is_kept else [run.run_id, None])
    losses = list(session.store.history(run.run_id)["train/loss"])
    assert losses == ([r.metrics["train/loss"] for r in begun] + [0.0] * 5 if is_kept else [0.0] * 10)


def test_a_run_with_a_new_seed_is_finished_with_all_its_rounds(study_session, monkeypatch):
    """Killed between the study's record and MLflow: one that has a value, one that diverged, one never opened."""
    session = study_session()
    ends = [(1000, 0.5, ""), (1001, None, "diverged at round 4"), (1002, 0.5, "")]
    for seed, value, error in ends:
        session.study_storage.confirm(trial=0, params={"algorithm.x": 0.5}, seed=seed, value=value, error=error)
        if seed < 1002:
            session.children.confirmation(0, {"algorithm.x": 0.5}, TrialPart(seed)).open().log(rounds(2, 0.5))
    make(session, 0.5, TrialState.COMPLETE)
    kept = {1000: rounds(9, 0.5), 1001: rounds(4, 0.5), 1002: rounds(9, 0.5), 0: rounds(9, 0.5)}
    monkeypatch.setattr(runs, "kept_records", lambda experiment, **_: kept[experiment.seed])
    session = study_session()
    assert reconcile(session) == [0]
    session.store.deliver()
    store = session.store
    found = {r.params["seed"]: r for r in store.runs(session.parent.experiment, parent=session.parent)}
    assert {seed: run.status for seed, run in found.items()} == {
        "0": "FINISHED", "1000": "FINISHED", "1001": "FAILED", "1002": "FINISHED"
    }  # fmt: skip
    assert found["1001"].tags["pfl_ops.error"] == "diverged at round 4"
    lengths = {seed: len(store.history(run.run_id)) for seed, run in found.items()}
    assert lengths == {"0": 10, "1000": 10, "1001": 5, "1002": 10}
    before = {run.run_id for run in found.values()}
    assert reconcile(session) == [] and reconcile(study_session()) == []
    assert {run.run_id for run in children(session).values()} <= before


def test_a_diverged_trial_stays_failed(study_session, monkeypatch):
    """Killed before MLflow knew; and at each later start."""
    session = study_session()
    trial = session.study_storage.study.ask()
    trial.suggest_float("algorithm.x", 0.5, 0.5)
    trial.report(0.1, 3)
    for name, value in {"rounds": 3, ERROR: "diverged at round 4", DIVERGED: True}.items():
        trial.set_user_attr(name, value)
    session.study_storage.study.tell(trial, state=TrialState.PRUNED)
    session.children.trial(0, dict(trial.params)).open()
    monkeypatch.setattr(runs, "kept_records", lambda experiment, **_: rounds(3, 0.5))
    monkeypatch.setattr(runs, "forget", lambda experiment, **_: None)
    session = study_session()
    assert reconcile(session) == [0]
    found = children(session)["trial-000"]
    assert (found.status, found.tags[tag_names.TRIAL_STATE]) == ("FAILED", "diverged")
    assert reconcile(session) == [] and reconcile(study_session()) == []


def test_runs_of_seeds_are_finished_while_their_trial_waits(study_session, monkeypatch):
    """Killed after the study's record of three seeds: one of a trial that goes on, two of one that diverged."""
    session = study_session(seeds=2)
    for x, errors in ((0.5, ("",)), (0.25, ("", "diverged at round 4"))):
        trial = session.study_storage.study.ask()
        point = {"algorithm.x": trial.suggest_float("algorithm.x", x, x)}
        results = [PartResult(TrialPart(i), error=error).as_dict() for i, error in enumerate(errors)]
        trial.set_user_attr(PARTS, results)
        session.children.trial(trial.number, point, 0).open().log(rounds(2, x))
    trial.set_user_attr(DIVERGED, True)
    session.study_storage.study.tell(trial, state=TrialState.PRUNED)
    monkeypatch.setattr(runs, "kept_records", lambda experiment, **_: rounds(9 - 5 * experiment.seed, 0.5))
    forgotten = []
    monkeypatch.setattr(
        runs, "forget", lambda experiment, **_: forgotten.append((experiment.algorithm.x, experiment.seed))
    )
    session = study_session(seeds=2)
    session.study_storage.recover()
    assert reconcile(session) == [0, 1]
    session.store.deliver()
    found = {
        (run.tags["pfl_ops.trial"], run.params["seed"]): (run.status, run.tags[tag_names.TRIAL_STATE])
        for run in session.store.runs(session.parent.experiment, parent=session.parent)
    }
    assert found == {
        ("trial-000", "0"): ("FINISHED", "complete"),
        ("trial-001", "0"): ("FINISHED", "complete"),
        ("trial-001", "1"): ("FAILED", "diverged"),
    }
    assert forgotten == [(0.25, 0), (0.25, 1)], "checkpoints of the trial that diverged"
    assert reconcile(session) == [] and reconcile(study_session(seeds=2)) == []


def test_runs_in_environments_are_finished_after_a_kill(study_session, monkeypatch):
    """Killed after the study's records of FedAvg and of a configuration with a new seed, in one of two environments."""
    both = ["path", "iid"]
    session = study_session(environments=both)
    session.study_storage.keep_baseline(environment="path", seed=0, values={METRIC: 0.5}, samples=90, seconds=1.0)
    record = {"trial": 0, "params": {"algorithm.x": 0.5}, "seed": 1000, "environment": "iid", "value": 0.5, "error": ""}
    session.study_storage.confirm(**record)
    session.children.baseline(TrialPart(0, "path")).open().log(rounds(2, 0.5))
    session.children.baseline(TrialPart(0, "iid")).open().log(rounds(2, 0.5))
    session.children.confirmation(0, {"algorithm.x": 0.5}, TrialPart(1000, "iid")).open().log(rounds(2, 0.5))
    monkeypatch.setattr(runs, "kept_records", lambda experiment, **_: rounds(9, 0.5))
    session = study_session(environments=both)
    assert reconcile(session) == []
    session.store.deliver()
    store = session.store
    found = {run.name: run for run in store.runs(session.parent.experiment, parent=session.parent)}
    assert {name: (run.status, len(store.history(run.run_id))) for name, run in found.items()} == {
        "baseline-seed0 path": ("FINISHED", 10),
        "baseline-seed0 iid": ("KILLED", 3),
        "confirm-000-seed1000 iid": ("FINISHED", 10),
    }
    assert found["baseline-seed0 path"].params["algorithm.name"] == "fedavg"
    assert found["baseline-seed0 path"].tags["pfl_ops.environment"] == "path"


def test_without_a_checkpoint_the_study_s_own_values_are_tracked(study_session):
    session = study_session()
    number, point = make(session, 0.5, TrialState.COMPLETE)
    session.children.trial(number, point).open()
    session = study_session()
    assert reconcile(session) == [0]
    history = session.store.history(children(session)["trial-000"].run_id)
    assert history[METRIC].tolist() == pytest.approx([0.5 * t / 9 for t in range(9)] + [0.5])


def test_a_trial_that_goes_on_is_left_alone(study_session):
    session = study_session()
    trial = session.study_storage.study.ask()
    trial.suggest_float("algorithm.x", 0.5, 0.5)
    session.children.trial(0, dict(trial.params)).open()
    session = study_session()
    session.study_storage.recover()  # told FAIL and queued again: no trial of its own
    assert reconcile(session) == []
    assert children(session)["trial-000"].status == "KILLED"


def test_a_server_that_is_down_leaves_it_to_the_next_start(study_session, monkeypatch):
    session = study_session()
    make(session, 0.5, TrialState.COMPLETE)
    down = SimpleNamespace(reachable=False, deliver=lambda: True, runs=None)
    monkeypatch.setattr(session, "store", down)
    assert reconcile(session) == []


def test_kept_records_are_those_of_the_checkpoint(tmp_path):
    from pfl_ops.config.experiment import Experiment

    experiment = Experiment.of("fedavg", clients=4, rounds=2, train_size=200).override(
        {"evaluation.split": "validation"}
    )
    assert runs.kept_records(experiment, home=tmp_path, stages=("L1",)) == []
    records = list(runs.simulate(experiment, home=tmp_path, sealed=True, stages=("L1",)))
    assert len(records) == 3
    assert runs.kept_records(experiment, home=tmp_path, stages=("L1",)) == records
    for file in tmp_path.glob("checkpoints/*/*/*.json"):
        file.write_text("{")
    assert runs.kept_records(experiment, home=tmp_path, stages=("L1",)) == []


def test_a_trial_whose_run_has_another_name_is_found_again(study_session):
    """Earlier versions named runs "trial-000", and MLflow's page can rename them: identity is the tag."""
    session = study_session()
    number, point = make(session, 0.5, TrialState.COMPLETE)
    old = session.children.trial(number, point).open()
    session.store.deliver()
    session.store._sender.client.update_run(old.run_id, name="trial-000")
    again = study_session()
    assert reconcile(again) == [number]
    (run,) = children(again).values()
    assert (run.run_id, run.status, run.name) == (old.run_id, "FINISHED", "000 toy x=0.5")
