"""The paired pruner: what it compares, when it stops a trial, and a study on the real engine."""

import statistics

import pytest
from trials_source import open_trials
from tuning_fake import toy, tune

from pfl_ops import runs, spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.studies.paired import PairedPruner, by_group, instances, value_of_stopped
from pfl_ops.tuning.studies.parts import Combination, PartResult, TrialPart
from pfl_ops.tuning.studies.settings import Settings

METRIC = "val/L1/acc"
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")
DIVERGED = Failure("diverged at round 4, client 12, lr 0.4", diverged=True)


def settings(**more):
    return Settings.of(toy(seed=5), SPACE, metric=METRIC, seeds_per_trial=2, scheduler="paired", **more)


def clients(values):
    """A table of clients 0, 1, ... at stages L1 and L2, whose sum of local and global is the value at L1."""
    n = len(values)
    return {
        "client": [*range(n)] * 2,
        "stage": ["L2"] * n + ["L1"] * n,
        "local": [9.0] * n + [value - 0.25 for value in values],
        "global": [9.0] * n + [0.25] * n,
    }


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "paired stops a trial between two of its runs: --seeds-per-trial 2 or more, or --environments"),
        ({"environments": ["iid", "path"], "aggregate": "worst"}, "paired compares means over environments"),
        ({"seeds_per_trial": 2, "metric": "val/L1/local/worst"}, "paired needs a mean over clients, val/L1/acc or"),
        ({"seeds_per_trial": 2, "metric": [METRIC, "val/L1/local/mean"]}, "paired stops trials by one metric"),
    ],
)
def test_what_it_cannot_compare_is_refused(tmp_path, given, message):
    with pytest.raises(PflOpsError) as caught:
        tune(toy(), space=SPACE, home=tmp_path, scheduler="paired", **given)
    assert message in str(caught.value) and not list(tmp_path.glob("checkpoints/*"))


def test_it_belongs_to_the_study():
    paired, plain = settings(), Settings.of(toy(seed=5), SPACE, metric=METRIC, seeds_per_trial=2)
    assert (paired.scheduler, plain.scheduler) == ("paired", "none") and paired.digest(None) != plain.digest(None)
    assert Settings.from_dict(paired.as_dict()) == paired


# -- what is compared -------------------------------------------------------------------------------------------------


def test_groups_are_clients_by_their_last_digit():
    """Clients 0, ..., 11: groups 0 and 1 have two each; a client without a score counts for none."""
    values = [0.5, 0.6, *[0.1] * 7, float("nan"), 0.7, 1.0]
    expected = {"0": 0.6, "1": 0.8, **{str(group): 0.1 for group in range(2, 9)}}
    assert by_group(clients(values), METRIC) == pytest.approx(expected)
    assert by_group(clients([0.5]), "val/L1/local/mean") == {"0": 0.25}
    assert by_group(clients([0.5]), "val/L2/global/mean") == {"0": 9.0} and by_group({}, METRIC) == {}


def test_scores_are_divided_by_fedavg_s():
    parts = (TrialPart(5, "iid"), TrialPart(5, "path"))
    combination = Combination(parts, (METRIC,), ("v",), ("max",), scales={"iid": {METRIC: 2.0}, "path": {METRIC: 4.0}})
    result = PartResult(parts[1], {METRIC: 1.0}, groups={"0": 1.0, "3": 2.0})
    assert instances([result], combination) == {(1, "0"): 0.25, (1, "3"): 0.5}


@pytest.fixture
def source(tmp_path):
    """Open the trials of one study of two seeds; `scores` has each run's clients: (trial, part) -> values."""
    address, scores = str(tmp_path / "s.log"), {}

    def start(missing=3, mode="max"):
        made = open_trials(
            address, settings(mode=mode), missing, 3, pruner=lambda stored: PairedPruner(mode == "max", stored),
            clients_of=lambda number, part: clients(scores[number, part]),
        )  # fmt: skip
        made.scores = scores
        return made

    return start


def end(trials, job, values=(), failure=None):
    """Begin and end a job whose clients have these scores."""
    number, part = divmod(job.number, 2)
    trials.scores[number, part] = list(values)
    trials.take(JobEvent("started", job))
    if failure:
        trials.take(JobEvent("ended", job, report={"round": 3, "samples": 30}, failure=failure))
        return
    report = {"round": 9, METRIC: statistics.fmean(values), "samples": 90, "sent_bytes": 54.0, "done": True}
    trials.take(JobEvent("rounds", job, (), report))
    trials.take(JobEvent("ended", job, report=report))


GOOD = [0.5, 0.9, 0.6, 0.8, 0.7, 0.55]
"""Clients of the best trial. One of six that are all worse has p = 1/2⁶ = 0.016, of three that are, 1/8."""


def test_a_trial_that_is_worse_in_each_pair_is_stopped(source):
    """Clients of trial 1 are worse by 0.02 to 0.03, though they spread over 0.4: it has one run, trial 2 has both."""
    trials = source()
    first, other, third = trials.next(), trials.next(), trials.next()
    assert [job.number for job in (first, other, third)] == [0, 2, 4], "a trial's second run waits for its first"
    assert trials.next() is None
    end(trials, first, GOOD)
    second = trials.next()
    assert second.number == 1
    end(trials, second, GOOD)
    end(trials, other, [value - 0.02 - 0.001 * k for k, value in enumerate(GOOD)])
    assert trials.next() is None and len(trials.forgotten) == 1
    end(trials, third, [value + 0.1 * (-1) ** k for k, value in enumerate(GOOD)])
    last = trials.next()
    assert last.number == 5
    end(trials, last, GOOD)
    table = trials.study_storage.table([METRIC])
    assert table["state"].tolist() == ["complete", "pruned", "complete"] and table["rounds"].tolist() == [9, 4, 9]
    assert table["samples"].tolist() == [180, 90, 180]
    assert table[METRIC][1] == pytest.approx(statistics.fmean(GOOD) - 0.0225)
    assert {key for key in trials.runs} == {(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)}
    assert trials.runs[1, 0].status == "FINISHED", "the run itself is whole"
    assert trials.study_storage.best()[0][0] == 0


@pytest.mark.parametrize(
    ("values", "mode", "stopped"),
    [
        ([value - 0.02 for value in GOOD[:3]], "max", False),  # p = 1/8
        ([value - 0.02 for value in GOOD[:4]], "max", True),  # p = 1/16
        ([value + 0.02 for value in GOOD], "max", False),
        ([value + 0.02 for value in GOOD], "min", True),
        ([value - 0.02 for value in GOOD], "min", False),
        ([], "max", False),
    ],
)
def test_when_a_trial_is_stopped(source, values, mode, stopped):
    """By Wilcoxon's signed-rank test, one-sided, at 0.1; n values that are all worse have p = 2⁻ⁿ."""
    trials = source(missing=2, mode=mode)
    first, other = trials.next(), trials.next()
    end(trials, first, GOOD)
    end(trials, trials.next(), GOOD)
    trials.scores[1, 0] = values
    trials.take(JobEvent("started", other))
    trials.take(JobEvent("ended", other, report={"round": 9, METRIC: 0.5, "samples": 90, "done": True}))
    state = trials.study_storage.table([METRIC])["state"].tolist()
    assert state == ["complete", "pruned" if stopped else "running"] and (trials.next() is None) == stopped


def test_a_study_compares_with_recorded_trials(source):
    """Killed after trial 0 and the first run of trial 1, which was no worse; then trial 2 is."""
    trials = source()
    first, other = trials.next(), trials.next()
    end(trials, first, GOOD)
    end(trials, trials.next(), GOOD)
    end(trials, other, GOOD)
    again = source(missing=2)
    rest, third = again.next(), again.next()
    assert (rest.number, third.number) == (3, 4), "the run that had ended is not run again"
    end(again, rest, GOOD)
    end(again, third, [value - 0.02 for value in GOOD])
    assert again.next() is None
    assert again.study_storage.table([METRIC])["state"].tolist() == ["complete", "complete", "pruned"]


def test_a_driver_that_was_killed_before_it_judged_does_so(source):
    """The run that is worse is recorded, and the end of its trial is not: the second run is not started."""
    trials = source(missing=2)
    first, other = trials.next(), trials.next()
    end(trials, first, GOOD)
    end(trials, trials.next(), GOOD)
    trials.pruner.is_worse = lambda *_: False
    end(trials, other, [value - 0.02 for value in GOOD])
    again = source(missing=1)
    assert again.next() is None and again.study_storage.table([METRIC])["state"].tolist() == ["complete", "pruned"]


def test_a_best_trial_without_scores_by_group_is_passed_over(source):
    """Trial 0 is the best and has none, as if read from an older checkpoint; trial 2 is worse than trial 1."""
    trials = source()
    first, other, third = trials.next(), trials.next(), trials.next()
    trials.scores |= {(0, 0): [], (0, 1): []}
    report = {"round": 9, METRIC: 1.9, "samples": 90, "done": True}
    for next_job in (lambda: first, trials.next):
        job = next_job()
        trials.take(JobEvent("started", job))
        trials.take(JobEvent("ended", job, report=report))
    end(trials, other, GOOD)
    end(trials, trials.next(), GOOD)
    end(trials, third, [value - 0.02 for value in GOOD])
    assert trials.study_storage.table([METRIC])["state"].tolist() == ["complete", "complete", "pruned"]
    assert trials.study_storage.best()[0][0] == 0


def test_a_part_recorded_before_groups_were_is_read():
    record = PartResult(TrialPart(5), {METRIC: 0.5}).as_dict()
    del record["groups"]
    assert PartResult.from_dict(record).groups == {}


def test_value_of_a_stopped_trial_is_the_mean_of_its_divided_scores():
    """1.0 / 2 in one environment and 1.0 / 4 in the other: 0.375."""
    parts = (TrialPart(5, "iid"), TrialPart(5, "path"))
    combination = Combination(parts, (METRIC,), ("v",), ("max",), scales={"iid": {METRIC: 2.0}, "path": {METRIC: 4.0}})
    results = [PartResult(part, {METRIC: 1.0}) for part in parts]
    assert value_of_stopped(results, combination) == 0.375


def test_a_divergence_is_no_comparison(source):
    trials = source(missing=2)
    first, other = trials.next(), trials.next()
    end(trials, first, GOOD)
    end(trials, trials.next(), GOOD)
    trials.children.clients_of = trials.pruner.is_worse = None  # neither is called
    end(trials, other, [value - 0.02 for value in GOOD], failure=DIVERGED)
    assert trials.next() is None and trials.study_storage.table([METRIC])["state"].tolist() == ["complete", "diverged"]


# -- the real engine --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_study_that_stops_a_bad_trial_on_the_real_engine(home):
    """Digits: with a learning rate of 1e-7 nothing is learnt; ten clients are ten groups, and its second seed is left.

    The tables of clients of the trials' runs have the tracked score as their mean.
    """
    experiment = Experiment.of(
        "fedavg", dataset="digits", model="linear", clients=10, rounds=3, seed=3, partition="iid",
        **{"evaluation.subset": 50},
    )  # fmt: skip
    space = spaces.parse("training.lr: {choice: [0.5, 0.0000001]}\nfirst: [{training.lr: 0.5}, {training.lr: 1.0e-7}]")
    study = tune(
        experiment, space=space, home=home, name="paired", trials=2, seeds_per_trial=2, scheduler="paired",
        final_repetitions=0, concurrency=1,
    )  # fmt: skip
    assert study.table["state"].tolist() == ["complete", "pruned"] and study.trial == 0
    assert study.parts["trial"].tolist() == [0, 0, 1] and study.parts["seed"].tolist() == [3, 4, 3]
    good = Settings.of(experiment, space, seeds_per_trial=2).experiment.override({"training.lr": 0.5})
    table = runs.kept_clients(good, home=home, stages=("L1",))
    assert statistics.fmean(by_group(table, METRIC).values()) == pytest.approx(study.parts[METRIC][0])
