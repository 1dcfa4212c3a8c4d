"""Whole studies on a real Ray, with trials that cost nothing."""

import json
import os
import signal
from types import SimpleNamespace

import pandas as pd
import pytest
from tuning_fake import records, toy, tune

from pfl_ops import Experiment, runs, spaces
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.tracking import Store
from pfl_ops.tracking.descriptions.notes import trial_colour
from pfl_ops.tuning.resources import packing
from pfl_ops.tuning.studies.objective import objective

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_ray")]


def space_of(*points, parameters="algorithm.x: {float: [0, 1]}"):
    behaviours = "[ok, raise, nan, diverge, die, die_once, silent, meet, pair]"
    text = f"{parameters}\nalgorithm.behaviour: {{choice: {behaviours}}}\n"
    return spaces.from_dict({**spaces.parse(text).as_yaml(), "first": list(points)}, "toy.yaml")


def at(x, behaviour="ok"):
    return {"algorithm.x": x, "algorithm.behaviour": behaviour}


@pytest.fixture
def run(home):
    """`tune` with the fake parts; the result has the events and the test runs asked for."""

    def go(experiment, space, **settings):
        events, finals = [], []

        def final(experiment, name, *_):
            finals.append((name, experiment))
            return SimpleNamespace(final={"final/test/L1/acc": 1.0 + experiment.seed / 10})

        study = tune(
            experiment, space=space, home=home, records=records, final=final, on_event=events.append, **settings
        )
        return SimpleNamespace(study=study, events=events, finals=finals)

    return go


def test_trial_goes_on_when_its_process_is_killed_once(run, home):
    """From its last round, in another process; every round is tracked once."""
    study = run(toy(seed=77), space_of(at(0.5, "die_once")), trials=1, final_repetitions=0, name="died-once").study
    assert study.table["state"].tolist() == ["complete"] and study.table["rounds"].tolist() == [9]
    with Store.open(home) as store:
        [_, trial] = store.runs("died-once")
        history = store.history(trial.run_id)
    assert trial.status == "FINISHED" and history.index.tolist() == list(range(10))
    assert history["pid"].nunique() == 2 and history["pid"][:3].nunique() == 1


def test_tune_shows_its_progress_if_asked_for(home, capfd):
    settings = {"space": space_of(at(0.5)), "trials": 1, "final_repetitions": 0, "home": home, "records": records}
    tune(toy(seed=79), **settings)
    assert "trial done" not in capfd.readouterr().err
    tune(toy(seed=80), **settings, progress=True, name="shown")
    err = capfd.readouterr().err
    assert "study shown: 0 of 1 trial done\ntrial 000 starts: " in err
    assert "trial 000 complete: " in err


def test_a_trial_that_is_given_a_dead_process_gets_another(home):
    """Trials share processes; this one dies between two trials. Ray itself restarts only what dies on its way."""
    killed = []

    def watch(event):
        if event.kind == "end" and not killed:
            [file] = set((home / "checkpoints").glob("*.json")) - before
            killed.append(int(json.loads(file.read_text())[-1]["metrics"]["pid"]))
            os.kill(killed[0], signal.SIGKILL)

    before = set((home / "checkpoints").glob("*.json"))
    settings = {"trials": 2, "concurrency": 1, "final_repetitions": 0, "on_event": watch}
    study = tune(toy(seed=78), space=space_of(at(0.5), at(0.8)), home=home, records=records, **settings)
    assert killed and study.table["state"].tolist() == ["complete", "complete"]
    assert study.table["algorithm.x"].tolist() == [0.5, 0.8]
    with Store.open(home) as store:
        _, *trials = store.runs(study.name)
        pids = [store.history(trial.run_id)["pid"].unique().tolist() for trial in trials]
    assert pids[0] == killed != pids[1]


def test_a_study_with_every_kind_of_end(run, home, capfd, monkeypatch):
    """One trial at a time: 0.5 sets the rungs, 0.1 falls at the first, three fail in three ways, 0.8 wins."""
    points = [at(0.5), at(0.1), at(0.9, "raise"), at(0.95, "nan"), at(0.9, "die"), at(0.8)]
    space = space_of(*points)
    settings = {"trials": 6, "concurrency": 1}
    forgotten = []
    monkeypatch.setattr(runs, "forget", lambda e, home, stages, **_: forgotten.append((e.algorithm.x, home, stages)))
    done = run(toy(repetitions=2, seed=5), space, **settings)
    study = done.study
    assert forgotten == [(0.1, home, ("L1",))], "the pruned one alone"

    assert study.table["state"].tolist() == ["complete", "pruned", "failed", "failed", "failed", "complete"]
    assert study.table["rounds"].tolist()[:2] == [9, 1]
    errors = study.table["error"].tolist()
    assert errors[2] == "ValueError: loss went through the roof"
    assert errors[3] == "val/L1/acc is nan after round 1"
    assert errors[4].startswith("its process died twice")
    assert (study.best, study.trial, study.values) == (at(0.8), 5, {"val/L1/acc": pytest.approx(0.8)})

    out, err = capfd.readouterr()
    assert out == "" and "Traceback" not in err  # Ray's and Tune's own messages stay out of the terminal

    # the test data are opened once, for the choice, with the seeds 5 and 6
    assert [name for name, _ in done.finals] == ["final-seed5", "final-seed6"]
    tested = done.finals[1][1]
    assert (tested.evaluation.split, tested.algorithm.x, tested.seed, tested.repetitions) == ("test", 0.8, 6, 1)
    assert study.openings == 1

    # who watches sees it all
    ends = [(e.trial, e.state) for e in done.events if e.kind == "end"]
    assert ends == [(0, "complete"), (1, "pruned"), (2, "failed"), (3, "failed"), (4, "failed"), (5, "complete")]
    assert [(e.kind, e.text) for e in done.events[:2]] == [("wait", "opening MLflow's store ..."), ("begin", "")]
    assert max(e.running for e in done.events) == 1
    assert done.events[-1].kind == "final"

    # MLflow has a study with six children, each with all the rounds that it ran
    with Store.open(home) as store:
        parent, *children = store.runs(study.name)
        assert (parent.name, parent.status, parent.run_id) == ("study", "FINISHED", study.run_id)
        assert parent.tags["pfl_ops.best_trial"] == "trial-005" and parent.tags["pfl_ops.test_openings"] == "1"
        assert [c.name for c in children][::5] == ["000 toy x=0.5 behaviour=ok", "005 toy x=0.8 behaviour=ok"]
        assert children[1].tags["mlflow.runColor"] == trial_colour(1)
        assert [c.status for c in children] == ["FINISHED", "FINISHED", "FAILED", "FAILED", "FAILED", "FINISHED"]
        assert all(c.parent == parent.run_id for c in children)
        assert [c.tags["pfl_ops.kind"] for c in (parent, *children)] == ["study", *["trial"] * 6]
        assert [c.tags.get("pfl_ops.chosen") for c in children] == [*[None] * 5, "yes"]
        assert {key: parent.metrics[key] for key in ("val/L1/acc", "score/acc", "score/n", "score/trials")} == {
            "val/L1/acc": pytest.approx(0.8), "score/acc": pytest.approx(1.55), "score/n": 2, "score/trials": 6
        }  # fmt: skip
        assert parent.metrics["score/acc/std"] == pytest.approx(0.1 / 2**0.5)  # of 1.5 and 1.6
        assert "trial 005" in parent.tags["mlflow.note.content"] and "0.8" in parent.tags["mlflow.note.content"]
        assert children[2].tags["pfl_ops.error"] == errors[2]
        assert "tuning_fake.py" in store.download(children[2].run_id, "error.txt").read_text()
        assert children[0].params["algorithm.x"] == "0.5"
        assert children[0].params["evaluation.split"] == "validation"
        assert children[0].tags["pfl_ops.study"] == study.name
        assert store.history(children[5].run_id)["train/loss"].tolist() == pytest.approx(
            [1 - 0.8 * t / 9 for t in range(10)]
        )
        assert len(store.history(children[1].run_id)) == 2
        assert "evaluation:\n" in store.download(parent.run_id, "best.yaml").read_text()
        pids = [c.metrics["pid"] for c in children]
    assert pids[0] == pids[1] == pids[2] and pids[5] != pids[0]  # one process for trials until one dies

    # asked again: it has 3 results of 6, so going on must be meant
    with pytest.raises(PflOpsError, match="exists, 3 of 6 trials have a result; go on with --resume"):
        run(toy(repetitions=2, seed=5), space, **settings)
    # three of three wanted: nothing is run; the same choice is not opened again
    again = run(toy(repetitions=2, seed=5), space, **{**settings, "trials": 3})
    assert not [e for e in again.events if e.kind in ("begin", "start")]
    assert again.study.openings == 1 and again.study.best == study.best
    # another configuration under the same name is another study
    with pytest.raises(PflOpsError, match=r"was begun with other settings \(now seed=6, not 5\)"):
        run(toy(repetitions=2, seed=6), space, name=study.name, resume=True)
    with pytest.raises(PflOpsError, match="another search space"):
        run(toy(repetitions=2, seed=5), space_of(at(0.2)), name=study.name, resume=True)


def test_what_diverges_is_a_result_that_is_never_chosen_and_never_averaged(home):
    """A trial at 0.99 diverges after round 3, where it was ahead; of three test runs the one with seed 42 does."""

    def final(experiment, name, *_):
        if experiment.seed == 42:
            raise Diverged(7, 0.4, 12)
        return SimpleNamespace(final={"final/test/L1/acc": 1.0}, experiment=experiment, rounds=pd.DataFrame())

    settings = {"trials": 2, "concurrency": 1, "scheduler": "none", "final_repetitions": 3, "final": final}
    study = tune(
        toy(seed=41, repetitions=3),
        space=space_of(at(0.5), at(0.99, "diverge")),
        home=home,
        records=records,
        **settings,
    )
    assert study.table["state"].tolist() == ["complete", "diverged"]
    assert study.table["val/L1/acc"].tolist() == pytest.approx([0.5, 0.99 * 3 / 9])
    assert study.table["error"].tolist() == ["", "diverged at round 4, client 12, lr 0.4"]
    assert study.best == at(0.5)
    assert len(study.finals) == 2 and study.diverged == {42: "diverged at round 7, client 12, lr 0.4"}
    with Store.open(home) as store:
        parent, _, trial = store.runs(study.name)
    assert (trial.status, trial.tags["pfl_ops.trial_state"]) == ("FAILED", "diverged")
    assert "score/acc" not in parent.metrics
    assert "Test runs diverged: seed 42 diverged at round 7" in parent.tags["mlflow.note.content"]


def test_four_quarters_of_one_gpu_run_at_once(run):
    """Ray was told of one logical GPU; the machine needs none. Each trial waits for three others to be there."""
    points = [at(0.1 * i, "meet") for i in range(1, 5)]
    shares = {"cpus_per_trial": 0.5, "gpus_per_trial": 0.25}
    done = run(toy(), space_of(*points), trials=4, scheduler="none", final_repetitions=0, **shares)
    assert done.study.table["state"].tolist() == ["complete"] * 4
    assert max(e.running for e in done.events) == 4
    assert done.study.openings == 0 and done.finals == []


@pytest.fixture
def measured(monkeypatch):
    """Measurements by table: those that were asked for, and what they find."""
    asked = []

    def measure(experiment, execution, layouts, *, data_dir, stages):
        asked.append([lay.trials for lay in layouts])
        kind, fit = "gpu" if layouts[0].gpus else "cpu", layouts[:-1] or layouts
        best, rates = fit[-1], {lay.trials: 100.0 * lay.trials if lay in fit else 0.0 for lay in layouts}
        return packing.Packing(kind, packing.machine(kind), best, "loop", None, 1, best.threads, rates, 1 << 20)

    monkeypatch.setattr(packing, "measure", measure)
    monkeypatch.setattr(packing, "cached", lambda key, now: now())
    monkeypatch.setattr(packing, "machine", lambda kind: f"a {kind}")
    monkeypatch.setattr(packing.cores, "usable", lambda: 4)
    return asked


def packings(events):
    return [e.text for e in events if e.kind == "packing"]


def test_cores_are_packed_as_measured_and_a_study_keeps_that_where_it_was_measured(run, home, measured, monkeypatch):
    """Of 1, 2 and 4 trials at once on four cores, four do not fit: two at once, of two threads each, which meet."""
    space, auto = space_of(*(at(0.1 * i, "pair") for i in range(1, 8))), {"cpus_per_trial": "auto", "scheduler": "none"}
    done = run(toy(seed=31), space, trials=4, final_repetitions=0, **auto)
    line = "packing: 2 trials at once, 2 threads each: 200 samples/s together (1: 100, 4: out of memory)"
    assert packings(done.events) == ["packing: trying how many trials to run at once ...", line]
    assert measured == [[1, 2, 4]] and max(e.running for e in done.events) == 2
    with Store.open(home) as store:
        parent = next(r for r in store.runs(done.study.name) if r.name == "study")
        assert parent.tags["pfl_ops.packing"] == line.removeprefix("packing: ")

    more = {"name": done.study.name, "resume": True, "final_repetitions": 0, "scheduler": "none"}
    again = run(toy(seed=31), space, trials=5, **more)
    assert packings(again.events) == [f"{line} (as this study began)"] and len(measured) == 1
    explicit = run(toy(seed=31), space, trials=6, cpus_per_trial=1, **more)
    assert packings(explicit.events) == [] and len(measured) == 1
    monkeypatch.setattr(packing, "machine", lambda kind: f"another {kind}")
    run(toy(seed=31), space, trials=7, cpus_per_trial="auto", **more)
    assert measured[1:] == [[1]]  # never more at once than trials are missing


def test_trials_on_a_gpu_get_the_share_that_was_measured(run, measured, monkeypatch):
    """Ray was told of one logical GPU, PyTorch is here: of 1, 2, 4 and 8 trials four fit. They wait for one another."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    points = [at(0.1 * i, "meet") for i in range(1, 9)]
    settings = {"trials": 8, "scheduler": "none", "final_repetitions": 0, "concurrency": None}
    done = run(toy(seed=33), space_of(*points), **settings)
    assert measured == [[1, 2, 4, 8]]
    assert packings(done.events)[-1].startswith("packing: 4 trials at once on a GPU, 0.25 each: 400 samples/s together")
    assert done.study.table["state"].tolist() == ["complete"] * 8
    assert max(e.running for e in done.events) == 4


def test_a_gpu_that_can_t_be_measured_is_shared_by_four_unless_it_was_asked_for(run, measured, monkeypatch):
    def broken(*_, **__):
        raise PflOpsError("a measuring process died: no kernel image")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(packing, "measure", broken)
    monkeypatch.setattr(
        "pfl_ops.tuning.session.session.settle", lambda experiment, execution, data_dir, gpus: execution
    )
    space, rest = space_of(at(0.3)), {"scheduler": "none", "final_repetitions": 0}
    done = run(toy(seed=34), space, trials=1, **rest)
    assert packings(done.events)[-1].endswith("died: no kernel image); a quarter of a GPU a trial")
    assert done.study.table["state"].tolist() == ["complete"]
    with pytest.raises(PflOpsError, match="no kernel image"):
        run(toy(seed=35), space, trials=1, gpus_per_trial="auto", **rest)


def test_several_objectives_give_a_front_and_stop_nothing(run):
    """L1's accuracy grows with x, G's falls: everything is on the front, and the middle is nearest to the ideal."""
    metrics = ["val/L1/acc", "val/G/global/mean"]
    done = run(toy(), space_of(at(0.1), at(0.5), at(0.9)), trials=3, metric=metrics, concurrency=1)
    assert done.study.table["state"].tolist() == ["complete"] * 3
    assert sorted(done.study.pareto["val/G/global/mean"]) == pytest.approx([0.1, 0.5, 0.9])
    assert done.study.best == at(0.5)


def test_a_metric_at_l1_of_a_method_without_it_is_refused_before_the_start():
    """`centralized` defines no personal(), so a trial would have no value and the study would end after its start."""
    experiment = Experiment.of("centralized", dataset="digits", model="linear")
    with pytest.raises(PflOpsError, match=r"^'val/L1/acc': centralized has no stage L1, .* take --metric val/G/acc$"):
        objective(experiment, "val/L1/acc")
    assert objective(experiment, "val/G/acc").metrics == ("val/G/acc",)


def test_an_objective_that_is_never_measured_ends_the_study_at_once(run):
    with pytest.raises(PflOpsError, match="'val/L1/acc' is not measured in this experiment"):
        run(toy(), space_of(at(0.1, "silent")), trials=9, concurrency=1)


def test_lines_on_a_result_are_those_of_the_last_call(run, home):
    """A search that ended by a budget, without a complete trial; then it has more trials and no such budget."""
    given = {"name": "goes-on", "scheduler": "none", "final_repetitions": 0}
    space = space_of(at(0.5, "nan"), *(at(x / 10) for x in range(5)))
    with pytest.raises(PflOpsError, match="no trial of study 'goes-on' was completed"):
        run(toy(seed=78), space, trials=1, terminate=1, **given)
    with Store.open(home) as store:
        [parent, *_] = store.runs("goes-on")
        assert parent.tags["pfl_ops.error"].startswith("no trial of study 'goes-on' was completed")
    run(toy(seed=78), space, trials=2, terminate=1, resume=True, **given)
    with Store.open(home) as store:
        [parent, *_] = store.runs("goes-on")
        assert not parent.tags["pfl_ops.error"] and "trials: all 2" in parent.tags["pfl_ops.ended"]
        assert "slice" in parent.tags["pfl_ops.pictures"]
    study = run(toy(seed=78), space, trials=5, terminate=0, resume=True, **given).study
    with Store.open(home) as store:
        [parent, *_] = store.runs("goes-on")
        assert not study.ended and not parent.tags["pfl_ops.ended"]
        assert parent.tags["pfl_ops.pictures"] == str(study.pictures) and "slice" not in str(study.pictures)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "val/L1/ac"}, "did you mean 'val/L1/acc'?"),
        ({"trials": 0}, "trials must be in [1, 100,000]"),
        ({"scheduler": "median"}, "scheduler must be asha, paired or none, got 'median'"),
        ({"metric": ["val/L1/acc", "train/loss"], "scheduler": "asha"}, "asha stops trials by one metric"),
        (
            {"space": spaces.parse("training.l: {float: [0, 1]}", "my.yaml")},
            "my.yaml: training.l: the experiment has no",
        ),
        ({"gpus_per_trial": 1.5}, "or auto, got '1.5': a trial computes on one GPU"),
        ({"cpus_per_trial": "fast"}, "--cpus-per-trial must be a number above 0 or auto, got 'fast'"),
        ({"cpus_per_trial": 64}, "no machine of this Ray has 64 CPUs"),
        ({"final_repetitions": -1}, "final repetitions must be >= 0"),
        ({"resume": True, "name": "nobody"}, "no study named 'nobody'"),
        ({"name": "../x"}, "the name of a study has at most 100 letters"),
        ({"storage": "nowhere"}, "must be sqlite:///FILE"),
    ],
)
def test_what_can_t_work_is_refused_before_the_first_trial(home, settings, message):
    def never(point, context):
        raise AssertionError

    with pytest.raises(PflOpsError) as caught:
        tune(toy(seed=99), **{"space": space_of(), "home": home, "records": never, **settings})
    assert message in str(caught.value)


def test_local_steps_are_not_undone_by_a_space_of_epochs():
    from pfl_ops.tuning import Settings

    by_steps = toy(**{"training.local_steps": 8})
    space = spaces.parse("training.lr: {float: [0.1, 1]}\ntraining.local_epochs: {int: [1, 3]}")
    assert [p.key for p in Settings.of(by_steps, space).space.parameters] == ["training.lr"]


def test_a_pooled_data_set_is_split_the_same_way_for_trials_and_test():
    from pfl_ops.tuning import Settings

    pooled = toy(seed=7, **{"data.pooled": True})
    assert Settings.of(pooled, space_of()).experiment.partition.seed == 7
