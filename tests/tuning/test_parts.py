"""Trials of several seeds: the value, the order of runs, divergence, a kill between two of them, and whole studies."""

import json
import math
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from trials_source import open_trials
from tuning_fake import SEED_STEP, benchmark, records_by_seed, toy, tune

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.display import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tracking import Store
from pfl_ops.tuning.commands.terms import settings_of
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.parts import Combination, PartResult, TrialPart
from pfl_ops.tuning.studies.settings import Settings

METRIC = "val/L1/acc"
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")
VIEWS = ("val/L1/local/mean", "val/L1/global/mean")


def settings(seeds=2, **more):
    return Settings.of(toy(seed=5), SPACE, metric=METRIC, seeds_per_trial=seeds, **more)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_one_seed_per_trial_leaves_a_study_as_it_was():
    """Its digest and its record have no trace of the number, so that studies of earlier versions go on."""
    one, two = settings(1), settings(2)
    assert one == Settings.of(toy(seed=5), SPACE, metric=METRIC) and one.combination is None
    assert "seeds_per_trial" not in one.as_dict() and one.scheduler == "asha"
    assert one.digest(None) != two.digest(None)
    assert Settings.from_dict(two.as_dict()) == two and Settings.from_dict(one.as_dict()) == one
    assert two.difference(one) == "--seeds-per-trial 2, not 1"
    assert two.scheduler == "none" and two.combination.parts == (TrialPart(5), TrialPart(6))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds_per_trial": 0}, "--seeds-per-trial must be in [1, 1,000], got 0"),
        ({"seeds_per_trial": 1001}, "got 1001: the confirmation has the seeds from seed + 1000 on"),
        ({"seeds_per_trial": 2, "scheduler": "asha"}, "asha compares trials while they run, and a trial of 2 seeds"),
    ],
)
def test_seeds_that_cannot_be_are_refused(tmp_path, given, message):
    with pytest.raises(PflOpsError) as caught:
        tune(toy(), space=SPACE, home=tmp_path, **given)
    assert message in str(caught.value) and not list(tmp_path.glob("checkpoints/*"))


def test_methods_of_a_benchmark_have_the_same_number_of_seeds():
    found = settings_of([toy(), toy().override({"algorithm.name": "rival"})], SPACE, seeds_per_trial=3)
    assert {each.seeds_per_trial for each in found.values()} == {3}


# -- the value --------------------------------------------------------------------------------------------------------


def result(seed, value, losses=(2.0, 1.0), **more):
    values = {METRIC: value, VIEWS[0]: value - 0.5, VIEWS[1]: 0.5}
    return PartResult(TrialPart(seed), values, {METRIC: 0.03}, losses, 9, 90, 54.0, 2.0, **more)


def test_value_of_a_trial_is_the_mean_over_its_seeds():
    """1.0 and 1.2: mean 1.1, standard deviation sqrt(2 · 0.1²) = 0.1414. Two errors of 0.03: 0.03 sqrt(2)/2. The
    losses are those of the seed that has learnt least: 0.9 of the first round's is left."""
    combination = Combination((TrialPart(5), TrialPart(6)), (METRIC,), (METRIC,), ("max",))
    found = combination.report([result(5, 1.0), result(6, 1.2, losses=(2.0, 1.8))])
    assert found[METRIC] == pytest.approx(1.1) and found[VIEWS[0]] == pytest.approx(0.6) and found[VIEWS[1]] == 0.5
    assert found["stds"] == {METRIC: pytest.approx(0.02**0.5)}
    assert found["errors"] == {METRIC: pytest.approx(0.03 / 2**0.5)}
    assert (found["samples"], found["sent_bytes"], found["round"], found["losses"]) == (180, 108.0, 9, (2.0, 1.8))
    short = combination.report([result(5, 1.0), replace(result(6, 1.2), rounds=4)])  # one seed has gone less far
    assert short["round"] == 4
    exact = [replace(one, errors={}) for one in (result(5, 1.0), result(6, 1.2))]  # all samples were scored
    assert combination.report(exact)["errors"] == {} == combination.report(exact)["scores"]
    unknown = combination.report([result(5, 1.0, losses=()), result(6, 1.2)])
    assert unknown["losses"] == (2.0, 1.0)


def test_result_of_a_part_survives_its_record():
    one = result(5, 1.0)
    assert PartResult.from_dict(json.loads(json.dumps(one.as_dict()))) == one


# -- the source of trials ---------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    """Open the trials of one study of two seeds again and again, as drivers do that are killed."""
    address = str(tmp_path / "s.log")

    def start(missing=2, is_over=lambda: False):
        return open_trials(address, settings(), missing, 2, is_over=is_over)

    return start


def end(source, job, value=0.5, failure=None):
    """Begin and end a job."""
    source.take(JobEvent("started", job))
    report = {"round": 9, METRIC: value, "samples": 90, "sent_bytes": 54.0, "done": True}
    if failure:
        source.take(JobEvent("ended", job, report={"round": 3, "samples": 30}, failure=failure))
        return
    source.take(JobEvent("rounds", job, (), report))
    source.take(JobEvent("ended", job, report=report))


DIVERGED = Failure("diverged at round 4, client 12, lr 0.4", diverged=True)


def test_seeds_of_a_trial_come_before_the_next_trial(source):
    trials = source()
    jobs = [trials.next() for _ in range(4)]
    assert [(job.number, job.experiment.seed) for job in jobs] == [(0, 5), (1, 6), (2, 5), (3, 6)]
    assert trials.next() is None
    for job, value in zip(jobs, (0.5, 0.7, 0.2, 0.6), strict=True):
        end(trials, job, value)
    table = trials.study_storage.table([METRIC])
    assert table[METRIC].tolist() == pytest.approx([0.6, 0.4]) and table["state"].tolist() == ["complete"] * 2
    assert table[f"{METRIC}/std"].tolist() == pytest.approx([0.02**0.5, 0.08**0.5])
    assert table["samples"].tolist() == [180, 180] and table["rounds"].tolist() == [9, 9]
    assert not [key for key in table if key in ("parts", "stds")]
    parts = trials.study_storage.parts_table([METRIC])
    assert parts[["trial", "seed", METRIC]].to_numpy().tolist() == [[0, 5, 0.5], [0, 6, 0.7], [1, 5, 0.2], [1, 6, 0.6]]
    assert parts["samples"].tolist() == [90] * 4 and set(parts["error"]) == {""}
    assert {run.status for run in trials.runs.values()} == {"FINISHED"} and len(trials.runs) == 4
    assert [e.kind for e in trials.events] == ["start", "report", "report", "end"] * 2
    assert [(e.round, e.rounds) for e in trials.events[:4]] == [(0, 9), (9, 18), (18, 18), (9, 9)]
    assert trials.study_storage.best()[0][0] == 0 and not trials.forgotten


def test_table_shows_the_deviation_over_seeds(source):
    trials = source(missing=1)
    for value, job in zip((1.5, 1.7), [trials.next(), trials.next()], strict=True):
        end(trials, job, value)
    shown = tables.trials(trials.study_storage.table([METRIC]), (METRIC,), ("max",), 0, "study s")
    assert shown.title.endswith("mean ± std over seeds") and "160.0 ± 14.1 %" in shown.rows[0]
    assert not any("/std" in cell for cell in shown.rows[0])


def test_seed_that_diverges_makes_its_trial_diverged(source):
    """The second seed has not been given out: it is not run."""
    trials = source()
    end(trials, trials.next(), failure=DIVERGED)
    job = trials.next()
    assert job.number == 2, "the next trial"
    table = trials.study_storage.table([METRIC])
    assert table["state"].tolist() == ["diverged", "running"] and table["samples"].tolist() == [30, 0]
    assert table["rounds"].tolist() == [3, 0]
    assert table["error"][0] == f"seed 5 {DIVERGED.line}"
    assert trials.runs[0, 0].status == "FAILED" and trials.runs[0, 0].known["pfl_ops.trial_state"] == "diverged"
    assert len(trials.forgotten) == 1


def test_divergence_counts_more_than_a_failure(source):
    trials = source()
    first, second = trials.next(), trials.next()
    trials.take(JobEvent("started", first))
    end(trials, second, failure=Failure("its process died twice", died=True))
    assert trials.study_storage.table([METRIC])["state"].tolist() == ["running"]
    end(trials, first, failure=DIVERGED)
    assert trials.study_storage.table([METRIC])["state"].tolist() == ["diverged"]


@pytest.mark.parametrize(
    ("value", "failure", "error"),
    [
        (float("nan"), None, f"seed 6: {METRIC} is nan after round 9"),
        (0.5, Failure("its process died twice", died=True), "seed 6: its process died twice"),
    ],
)
def test_seed_without_a_value_fails_its_trial(source, value, failure, error):
    trials = source()
    first, second = trials.next(), trials.next()
    end(trials, first)
    end(trials, second, value, failure)
    table = trials.study_storage.table([METRIC])
    assert table["state"].tolist() == ["failed"] and table["error"].tolist() == [error]
    assert trials.runs[0, 0].status == "FINISHED" and trials.runs[0, 1].status == "FAILED"


def test_trial_cut_short_between_seeds_goes_on_with_the_rest(source):
    """Killed twice: while the second seed runs, and before the mean is recorded."""
    trials = source()
    first, second = trials.next(), trials.next()
    end(trials, first, 0.5)
    trials.take(JobEvent("started", second))
    again = source(is_over=lambda: True)
    job = again.next()
    assert (job.number, job.experiment.seed) == (1, 6) and again.next() is None, "the first seed is not run again"
    assert again.study_storage.search_samples() == 90
    again.search.end = lambda *_: ("", "running")  # a kill between the record of the part and that of the trial
    end(again, job, 0.7)
    last = source(missing=1)
    assert last.next() is None
    table = last.study_storage.table([METRIC])
    assert table["state"].tolist() == ["complete"] and table[METRIC].tolist() == pytest.approx([0.6])
    assert last.study_storage.search_samples() == 180 and not last.runs


def test_trial_cut_short_within_a_seed_counts_the_seconds_of_both_parts(source):
    """Rounds 1 and 2 took 2 · (30 + 5) s before the kill; the rest takes less than a second."""
    trials = source()
    job = trials.next()
    trials.take(JobEvent("started", job))
    again = source()
    job = again.next()
    again.take(JobEvent("started", job))
    cost = {"cost/train_seconds": 30.0, "cost/eval_seconds": 5.0}
    again.take(JobEvent("rounds", job, tuple(Record(t, cost, 1000) for t in (1, 2)), {"round": 2}))
    later = Record(3, cost, time.time_ns() // 1_000_000 + 1000)  # of the time since the start, which is counted
    again.take(JobEvent("rounds", job, (later,), {"round": 3}))
    end(again, job, 0.5)
    (part,) = again.study_storage.study.trials[-1].user_attrs["parts"]
    assert part["seconds"] == pytest.approx(70, abs=5)


def test_trial_cut_short_after_a_divergence_is_diverged(source):
    trials = source()
    first, second = trials.next(), trials.next()
    trials.take(JobEvent("started", second))
    end(trials, first, failure=DIVERGED)
    again = source(missing=1)
    assert again.next() is None and again.study_storage.table([METRIC])["state"].tolist() == ["diverged"]


# -- whole studies ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_study_of_two_seeds_per_trial_on_the_real_engine(home):
    """Digits: the value of each trial is the mean of its two tracked runs, whose seeds are 3 and 4."""
    few = {"evaluation.subset": 20}
    experiment = Experiment.of("fedavg", model="linear", clients=3, rounds=2, local_steps=2, seed=3, **few)
    given = {"space": spaces.parse("training.lr: {float: [0.01, 0.2]}"), "home": home, "name": "two-seeds"}
    given |= {"trials": 3, "seeds_per_trial": 2, "gpus_per_trial": 0, "final_repetitions": 1, "confirm": 1}
    study = tune(experiment, **given, confirm_top=2)
    assert study.table["state"].tolist() == ["complete"] * 3 and study.confirmation.table["seed"].tolist() == [1003] * 2
    with Store.open(home) as store:
        runs = [run for run in store.runs("two-seeds") if run.tags["pfl_ops.kind"] == "trial"]
        values, errors = {}, {}
        for run in runs:
            values.setdefault(run.tags["pfl_ops.trial"], {})[run.params["seed"]] = run.metrics[METRIC]
            errors.setdefault(run.tags["pfl_ops.trial"], []).append(run.metrics["val/L1/global/se"])
        names = sorted(run.name for run in runs)
        parent = next(run for run in store.runs("two-seeds") if run.name == "study")
    assert {run.tags["pfl_ops.trial"] for run in runs if "pfl_ops.chosen" in run.tags} == {f"trial-{study.trial:03d}"}
    assert sum("pfl_ops.chosen" in run.tags for run in runs) == 2
    assert len(runs) == 6 and {run.status for run in runs} == {"FINISHED"}
    assert names[0].startswith("000 (seed 3) fedavg lr=") and names[1].startswith("000 (seed 4) fedavg lr=")
    assert "seeds_per_trial" not in parent.params
    for row in study.table.to_dict("records"):
        seeds = values[f"trial-{row['trial']:03d}"]
        assert sorted(seeds) == ["3", "4"]
        assert row[METRIC] == pytest.approx(statistics.fmean(seeds.values()))
        assert row[f"{METRIC}/std"] == pytest.approx(statistics.stdev(seeds.values()))
    chosen = errors[f"trial-{study.trial:03d}"]
    assert study.standard_errors == {METRIC: pytest.approx(math.hypot(*chosen) / 2)} and min(chosen) > 0
    told = f"standard error of the evaluation {100 * study.standard_errors[METRIC]:.1f} points, of the mean over new "
    assert study.noise.startswith(f"noise of trial {study.trial:03d}'s value: standard deviation over seeds ")
    assert told in study.noise and parent.tags["pfl_ops.noise"] == study.noise
    assert study.noise in study._repr_html_().replace("&#x27;", "'")
    read = tune(None, name="two-seeds", resume=True, home=home, final_repetitions=1, confirm=1, confirm_top=2)
    assert read.table.equals(study.table) and read.openings == 1
    with pytest.raises(PflOpsError, match="'two-seeds' was begun with --seeds-per-trial 2, not 3"):
        tune(None, name="two-seeds", resume=True, home=home, seeds_per_trial=3)
    with pytest.raises(PflOpsError, match=r"other settings \(now --seeds-per-trial 1, not 2\)"):
        tune(experiment, **{**given, "seeds_per_trial": None, "scheduler": "none"}, resume=True)


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_study_of_seeds_ends_by_samples_within_one_trial(home):
    """A run has 90 samples, a trial of two seeds 180: with 200 the second trial starts and the third does not."""
    given = {"space": SPACE, "home": home, "records": records_by_seed, "name": "seeds-samples", "concurrency": 1}
    study = tune(toy(seed=92), samples=200, seeds_per_trial=2, final_repetitions=0, **given)
    assert study.table["samples"].tolist() == [180, 180] and "360 samples are spent" in study.ended
    assert study.table[f"{METRIC}/std"].tolist() == pytest.approx([SEED_STEP / 2**0.5] * 2)


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_diverging_trial_leaves_the_others_their_means(home):
    points = [
        {"algorithm.x": 0.5, "algorithm.behaviour": "diverge"},
        {"algorithm.x": 0.25, "algorithm.behaviour": "ok"},
    ]
    ranges = "algorithm.x: {float: [0, 1]}\nalgorithm.behaviour: {choice: [ok, diverge]}\n"
    space = spaces.from_dict({**spaces.parse(ranges).as_yaml(), "first": points}, "toy.yaml")
    given = {"records": records_by_seed, "trials": 2, "seeds_per_trial": 2, "final_repetitions": 0, "home": home}
    study = tune(toy(seed=93), space=space, **given)
    assert study.table["state"].tolist() == ["diverged", "complete"] and study.trial == 1
    assert study.table[METRIC][1] == pytest.approx(0.25 + SEED_STEP * 93.5)


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_methods_of_a_benchmark_have_trials_of_the_same_seeds(home):
    """toy scores 0.75 + 0.001 s with the seeds 94 and 95; late joins later and has two seeds too."""
    space = spaces.from_dict({**SPACE.as_yaml(), "first": [{"algorithm.x": 0.75}]})
    given = {"space": space, "trials": 1, "home": home, "records": records_by_seed, "final_repetitions": 0}
    given |= {"name": "both-seeds"}
    one = toy(seed=94)
    benchmark([one], **given, seeds_per_trial=2)
    with pytest.raises(PflOpsError, match="'both-seeds' was begun with --seeds-per-trial 2, not 3"):
        benchmark([one], **given, seeds_per_trial=3)
    made = benchmark([one, one.override({"algorithm.name": "late"})], **given)
    assert made.table["validation"].tolist() == pytest.approx([0.75 + SEED_STEP * 94.5] * 2)
    assert made.table["search_samples"].tolist() == [180, 180] and made.table["trials"].tolist() == [1, 1]
    assert "A trial's validation score is the mean over 2 seeds, the same for all." in made.notes
    assert made.costs[made.costs["cost"] == "samples"]["spent"].tolist() == [180, 180]
    for study in made.studies.values():
        assert study.parts["seed"].tolist() == [94, 95]


def test_noise_of_a_study_of_single_runs_is_that_of_the_sample():
    from pfl_ops.tuning import Study

    table = study_storages.pd.DataFrame({"trial": [0], METRIC: [1.5]})
    study = Study("s", None, SimpleNamespace(), {}, 0, {METRIC: 1.5}, toy(), table)
    assert study.noise == ""
    two = table.assign(**{f"{METRIC}/std": [0.02], "train/loss": [0.5], "train/loss/std": [0.25]})
    several = replace(study, values={METRIC: 1.5, "train/loss": 0.5}, table=two)
    assert several.noise == (
        f"noise of trial 000's value: standard deviation of {METRIC} over seeds 2.0 points; standard deviation of "
        "train/loss over seeds 0.250"
    )
    sampled = replace(study, standard_errors={METRIC: 0.0061})
    assert sampled.noise == (
        "noise of trial 000's value: standard error of the evaluation 0.6 points (Acc(G) is from a sample of the "
        "validation data; all: evaluation.subset=none)"
    )
    in_environments = replace(sampled, baselines=table.iloc[:0])  # the error of the divisors may be ten times as large
    assert in_environments.noise == sampled.noise.replace(
        " (Acc", ", without that of FedAvg's scores, which all trials are divided by (Acc"
    )
