"""Budgets of a search: when it ends, the reason that is given, and what a kill leaves; methods at equal cost."""

import datetime
import math
from types import SimpleNamespace

import pandas as pd
import pytest
from optuna.trial import TrialState
from trials_source import FakeChildren
from tuning_fake import records, toy, tune

from pfl_ops import spaces
from pfl_ops.display import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import RUN_SECONDS, Estimate
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.findings import costs
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.session.session import _Phases
from pfl_ops.tuning.session.trials import Trials
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.budget import Clock, affordable, ending, left_of, spent
from pfl_ops.tuning.studies.limits import MOST_TRIALS, StudyLimits
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage

METRIC = "val/L1/acc"
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")
START = datetime.datetime(2026, 1, 1)


def settings_of(**budget):
    return Settings.of(toy(), SPACE, StudyLimits(**budget), METRIC)


@pytest.fixture
def study_storage(tmp_path):
    return opened(tmp_path)


@pytest.fixture(params=["{}/s.log", "sqlite:///{}/s.db"])
def any_storage(tmp_path, request):
    """A study in each kind of storage: Optuna caches an SQL database."""
    address = request.param.format(tmp_path)
    return StudyStorage("s", study_database.storage(address), settings_of().objective, {"digest": "d"})


def opened(tmp_path, name="s", **settings):
    goal = settings_of().objective
    return StudyStorage(name, study_database.storage(str(tmp_path / "s.log")), goal, settings or {"digest": "d"})


def ended_trial(study_storage, value=None, samples=0, state=None):
    trial = study_storage.study.ask()
    trial.suggest_float("algorithm.x", 0, 1)
    trial.set_user_attr(study_storages.SAMPLES, samples)
    study_storage.study.tell(trial, value, state=state)


# -- when a search ends -----------------------------------------------------------------------------------------------


def test_budget_first_spent_ends_the_search(study_storage):
    """Two trials of 60 samples: 120 of 100; one of 60 is not enough."""
    settings = settings_of(trials=3, hours=2, samples=100)
    ended_trial(study_storage, 0.5, 60)
    assert spent(settings, study_storage, seconds=7199) is None and ending(settings, study_storage) == ""
    assert spent(settings, study_storage, seconds=7200) == "hours"
    ended_trial(study_storage, 0.6, 60)
    assert spent(settings, study_storage, seconds=10) == "samples"
    study_storage.set_search_seconds(1800)
    assert ending(settings, study_storage) == "search ended by --samples 100: 120 samples are spent (2 trials, 0.5 h)"
    assert spent(settings.limited(StudyLimits(samples=121)), study_storage) is None
    ended_trial(study_storage, 0.6)
    assert spent(settings, study_storage, seconds=7200) == "trials"
    assert ending(settings, study_storage) == "search ended by --trials: all 3 are done (0.5 h, 120 samples)"
    fewer = settings.limited(StudyLimits(trials=2))  # of a call that goes on: it said that all 2 are done
    assert ending(fewer, study_storage) == "search ended by --trials 2: 3 trials are done (0.5 h, 120 samples)"
    assert ending(settings_of(trials=3), study_storage) == ""  # the only budget
    for other in ({"hours": 2}, {"samples": 500}, {"terminate": 9}):
        assert ending(settings_of(trials=3, **other), study_storage) == ending(settings, study_storage)


def test_reason_that_was_recorded_stays_until_its_budget_changes(study_storage):
    """A trial that was running when the samples were spent ends later, when the hours are spent too."""
    settings = settings_of(hours=1, samples=100)
    ended_trial(study_storage, 0.5, 100)
    study_storage.end("samples", 100)
    study_storage.set_search_seconds(4000)
    assert spent(settings, study_storage) == "samples"
    assert spent(settings.limited(StudyLimits(samples=200)), study_storage) == "hours"
    assert spent(settings.limited(StudyLimits(hours=2, samples=200)), study_storage) is None


def test_terminate_counts_trials_that_ended_after_the_best_one(study_storage):
    """The best value, 0.9, is that of the second trial; later: a pruned one, a worse one and an equal one. A failed
    trial says nothing, and the 0.95 of a round before its last one does not make the pruned trial the best."""
    settings = settings_of(trials=20, terminate=3)
    assert study_storage.since_best() == 0
    for value in (0.5, 0.9):
        ended_trial(study_storage, value)
    pruned = study_storage.study.ask()
    pruned.report(0.95, 1)
    study_storage.study.tell(pruned, state=TrialState.PRUNED)
    ended_trial(study_storage, 0.1)
    ended_trial(study_storage, state=TrialState.FAIL)
    assert study_storage.since_best() == 2 and spent(settings, study_storage, 0) is None
    ended_trial(study_storage, 0.9)
    assert spent(settings, study_storage, 0) == "terminate"
    study_storage.set_search_seconds(90)
    line = "search ended by --terminate 3: 3 trials have not raised the best value (5 trials, 90 s, 0 samples)"
    assert ending(settings, study_storage) == line
    assert spent(settings.limited(StudyLimits(terminate=0)), study_storage, 0) is None


def test_samples_of_a_trial_that_was_cut_short_count_once(study_storage):
    """40 before the kill; its continuation reports 30 so far, then 90 in all."""
    cut = study_storage.study.ask()
    cut.set_user_attr(study_storages.SAMPLES, 40)
    assert study_storage.cut_short()
    study_storage.recover()
    assert study_storage.search_samples() == 40 and study_storage.cut_short()
    again = study_storage.study.ask()
    again.set_user_attr(study_storages.SAMPLES, 30)
    assert study_storage.search_samples() == 40
    again.set_user_attr(study_storages.SAMPLES, 90)
    study_storage.study.tell(again, 0.5)
    assert study_storage.search_samples() == 90 and not study_storage.cut_short()


def test_left_of_a_search_is_its_budget_less_what_is_done(study_storage):
    """3 of 10 trials, 0.25 of 1 h and 40 of 100 samples are done; of spent samples the trial that a kill cut short."""
    settings = settings_of(trials=10, hours=1.0, samples=100)
    for samples in (10, 10, 20):
        ended_trial(study_storage, 0.5, samples=samples)
    study_storage.set_search_seconds(900)
    left = left_of(settings, study_storage)
    assert (left.trials, left.hours, left.samples) == (7, 0.75, 60)
    study_storage.study.ask().set_user_attr(study_storages.SAMPLES, 60)
    study_storage.recover()
    left = left_of(settings, study_storage)
    assert (left.trials, left.hours, left.samples) == (1, None, None)
    assert left_of(settings.limited(StudyLimits(trials=3)), study_storage).trials == 0


def test_seconds_of_a_study_are_those_of_its_record(study_storage):
    """The time of its trials does not count: they may have run side by side."""
    ended_trial(study_storage, 0.5)
    assert study_storage.search_seconds() == 0
    study_storage.set_search_seconds(25)
    assert study_storage.search_seconds() == 25


def test_clock_goes_on_from_the_seconds_of_earlier_calls(study_storage):
    """100 s from before; a kill after 29 s loses the 9 s since the last record."""
    study_storage.set_search_seconds(100)
    time = [1000.0]
    clock = Clock(study_storage, now=lambda: time[0])
    clock.start()
    for later in (5, 20, 29):
        time[0] = 1000.0 + later
        clock.save()
    assert clock.seconds == 129 and study_storage.search_seconds() == 120
    clock.save(0)
    assert study_storage.search_seconds() == 129


def test_clock_counts_from_the_first_run_of_a_call(study_storage):
    """A process takes 12 s to start, and a run of FedAvg before the trials 15 s. The clock counted all 27 s."""
    time = [1000.0]
    clock = Clock(study_storage, now=lambda: time[0])
    none = SimpleNamespace(take=lambda event: None)
    phases = _Phases(none, none, none, clock, none)
    recorded = []
    for now, kind in (
        (1012.0, "started"),
        (1013.0, "started"),
        (1023.0, "rounds"),
        (1026.0, "rounds"),
        (1027.0, "ended"),
    ):
        time[0] = now
        phases.take(SimpleNamespace(kind=kind, failure=None, job=SimpleNamespace(purpose="baseline")))
        recorded.append(study_storage.search_seconds())
    assert clock.seconds == 15 and recorded == [0, 0, 11, 11, 15]


# -- the source of trials ---------------------------------------------------------------------------------------------


def source_of(study_storage, is_over, missing=9):
    settings = settings_of()
    search = Search(study_storage, SPACE, settings.objective, 9, 0)
    children, share = FakeChildren(settings), ResourceShare(1.0, 0.0, 2)
    return Trials(search, missing, missing, children, share, Execution(), is_over=is_over)


def test_no_trial_starts_once_a_budget_is_spent_and_those_that_run_end(study_storage):
    over = [False]
    source = source_of(study_storage, lambda: over[0])
    first, second = source.next(), source.next()
    over[0] = True
    assert source.next() is None and set(source.running) == {0, 1}
    for job in (first, second):
        source.take(JobEvent("ended", job, report={"round": 9, METRIC: 0.5, "samples": 10, "sent_bytes": 6.0}))
    assert source.next() is None and not source.running and study_storage.done() == 2
    assert study_storage.table([METRIC])[["samples", "sent_bytes"]].to_numpy().tolist() == [[10, 6], [10, 6]]


def test_trial_that_was_cut_short_goes_on_after_its_budget_is_spent(any_storage):
    """It waits behind a first point of the space, which is not tried."""
    cut = any_storage.study.ask()
    x = cut.suggest_float("algorithm.x", 0, 1)
    any_storage.study.enqueue_trial({"algorithm.x": 0.25}, {study_storages.FIRST: 0})
    any_storage.recover()
    source = source_of(any_storage, lambda: True)
    job = source.next()
    assert job is not None and source.running[0].point == {"algorithm.x": x} and source.next() is None
    source.take(JobEvent("ended", job, report={"round": 9, METRIC: 0.5}))
    assert source.next() is None and [t.state for _, t in any_storage.trials()] == [
        TrialState.COMPLETE,
        TrialState.WAITING,
    ]


def test_trial_that_was_cut_short_comes_before_first_points(any_storage):
    """Two trials of three first points: both were cut short, and the third point must not take the place of one."""
    any_storage.enqueue([{"algorithm.x": x} for x in (0.25, 0.5, 0.75)])
    for _ in range(2):
        any_storage.study.ask().suggest_float("algorithm.x", 0, 1)
    any_storage.recover()
    source = source_of(any_storage, lambda: False, missing=2)
    jobs = source.next(), source.next()
    assert [now.point["algorithm.x"] for now in source.running.values()] == [0.25, 0.5]
    for job in jobs:
        source.take(JobEvent("ended", job, report={"round": 9, METRIC: 0.5}))
    assert source.next() is None
    assert [(number, t.state) for number, t in any_storage.trials()] == [
        (0, TrialState.COMPLETE),
        (1, TrialState.COMPLETE),
        (2, TrialState.WAITING),
    ]


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        *[({"hours": h}, "--hours must be above 0 and at most 1,000,000") for h in (0, -1, math.nan, math.inf)],
        *[({"samples": n}, "--samples must be a whole number") for n in (0, -1, 2.5, math.nan, math.inf)],
        *[({"trials": n}, "trials must be in [1, 100,000], got") for n in (0, -1, 100_001)],
        ({"terminate": -1}, "--terminate must be in [0, 100,000] trials, got -1"),
    ],
)
def test_budget_that_cannot_be_is_refused(tmp_path, budget, message):
    with pytest.raises(PflOpsError) as caught:
        tune(toy(), space=SPACE, home=tmp_path, **budget)
    assert message in str(caught.value) and not list(tmp_path.iterdir())


def test_terminate_needs_one_objective():
    with pytest.raises(PflOpsError, match="several objectives has no best value"):
        Settings.of(toy(), SPACE, StudyLimits(terminate=5), [METRIC, "train/loss"])


def test_hours_or_samples_alone_do_not_limit_trials_and_are_recorded():
    assert settings_of(terminate=5).trials == 20 and settings_of(hours=1, trials=7).trials == 7
    settings = settings_of(hours=0.5, samples=2e6)
    assert settings.trials == MOST_TRIALS and settings.budget_text == "0.5 h, 2,000,000 samples"
    again = Settings.from_dict(settings.as_dict())
    assert (again.hours, again.samples, again.terminate, again.trials) == (0.5, 2_000_000, 0, MOST_TRIALS)
    old = {key: value for key, value in settings.as_dict().items() if key not in ("hours", "samples", "terminate")}
    assert Settings.from_dict({**old, "trials": 12}).budget_text == "12 trials"
    assert Settings.from_dict({**old, "trials": 1}).budget_text == "1 trial"
    assert settings.digest(None) == settings_of().digest(None)


def test_trials_that_fit_are_known_from_the_cost_of_one():
    """Half an hour, trials of 600 s: three one after another; two at once: six. 1000 samples at 300 each: the fourth
    starts with 900 spent."""
    one = Estimate(600, 1, 1, 9, 1, 1, samples=300)
    assert affordable(settings_of(hours=0.5), one, 1) == 3 and affordable(settings_of(hours=0.5), one, 2) == 6
    assert affordable(settings_of(samples=1000), one, 1) == 4
    assert affordable(settings_of(samples=1000, hours=0.5, trials=2), one, 1) == 2


def test_trials_that_fit_come_after_fedavg_in_environments():
    """3,000 samples, three environments, runs of 480: FedAvg's have 1,440, the second trial starts with 2,880 spent. A
    third one, which would start with 4,320, was said to fit. Of sixteen runs at once nineteen start before the other
    1,560 are spent: seven trials. 1,440 samples, and half an hour, are FedAvg's alone."""
    run = Estimate(600 - RUN_SECONDS, 1, 1, 9, 1, 1, samples=480)
    trial = before = run.of_runs(3)

    def fit(at_once, scheduler=None, **budget):
        given = {"environments": ["path", "iid", "ls"], "scheduler": scheduler}
        settings = Settings.of(toy(), SPACE, StudyLimits(**budget), METRIC, **given)
        return affordable(settings, trial, at_once, before)

    assert [fit(at_once, samples=3000) for at_once in (1, 2, 16)] == [2, 2, 7]
    assert fit(16, "paired", samples=3000) == 2 + 15  # one run of each trial at a time
    assert fit(2, samples=1000) == fit(1, samples=1440) == fit(1, hours=0.5) == 0
    assert fit(1, hours=1) == 1 and fit(1, hours=1.01) == 2 and fit(3, hours=1) == 5


def test_trials_of_next_to_no_time_do_not_all_fit():
    """18 s; a trial of three runs whose rounds take 0.02 s is recorded three times."""
    trial = Estimate(0.02, 0.01, 0.01, 1, 1, 1, samples=300).of_runs(3)
    assert (trial.samples, trial.memory_mib) == (900, 1) and trial.seconds == pytest.approx(3 * (0.02 + RUN_SECONDS))
    assert affordable(settings_of(hours=18 / 3600), trial, 1) == math.ceil(18 / trial.seconds) < 20


# -- methods at equal cost --------------------------------------------------------------------------------------------


def search(method, *trials, larger=True, share=1.0):
    """A method whose trials ended one after another: (value or None if pruned, samples, bytes, seconds).

    share: of the clients, behind its scores.
    """
    ended, clock = [], START
    for number, (value, samples, sent, seconds) in enumerate(trials):
        clock += datetime.timedelta(seconds=seconds)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        known = {} if sent is None else {study_storages.SENT_BYTES: sent}
        trial = SimpleNamespace(state=state, values=[value], user_attrs={study_storages.SAMPLES: samples, **known})
        trial.datetime_complete, trial.duration = clock, datetime.timedelta(seconds=seconds)
        ended.append((number, trial))
    return SimpleNamespace(
        plan=SimpleNamespace(
            method=method, settings=SimpleNamespace(scored_clients=SimpleNamespace(share=share, difference=""))
        ),
        study_storage=SimpleNamespace(trials=lambda: ended),
        larger=larger,
    )


CHEAP = search("cheap", (0.5, 100, 10.0, 1.0), (0.6, 100, 10.0, 1.0), (None, 50, 5.0, 0.5), (0.7, 100, 10.0, 1.0))
DEAR = search("dear", (0.55, 300, 5.0, 8.0), (0.8, 300, 5.0, 8.0))


def test_methods_are_ranked_within_the_smallest_budget_that_all_spent():
    """Trials: 2 of each, 0.6 < 0.8. Samples: 350, cheap all four, 0.7, dear its first, 0.55. Bytes: 10, cheap one, 0.5,
    dear both, 0.8. Seconds: 3.5, cheap all, dear none."""
    table = costs.equal_cost([CHEAP, DEAR]).set_index(["cost", "method"])
    assert table["budget"].xs("cheap", level="method").to_dict() == {
        "trials": 2, "samples": 350, "sent_bytes": 10, "seconds": 3.5
    }  # fmt: skip
    assert table["validation"].xs("cheap", level="method").tolist() == [0.6, 0.7, 0.5, 0.7]
    assert table["validation"].xs("dear", level="method").tolist()[:3] == [0.8, 0.55, 0.8]
    assert table["rank"].xs("cheap", level="method").tolist() == [2, 1, 2, 1]
    assert table["trials"].xs("dear", level="method").tolist() == [2, 1, 2, 0]
    assert math.isnan(table["validation"]["seconds", "dear"]) and table["rank"]["seconds", "dear"] is pd.NA
    assert table["spent"]["samples", "dear"] == 600
    told = costs.notes(table.reset_index())[0]
    assert told.endswith("at equal trials: dear, cheap; samples: cheap, dear; sent bytes: dear, cheap; seconds: cheap.")
    shown = tables.equal_cost(table.reset_index(), METRIC)
    assert shown.heads[1:] == (
        "equal trials: 2",
        "equal samples: 350",
        "equal sent bytes: 10 bytes",
        "equal seconds: 3.5 s",
    )
    assert shown.rows[1] == (
        "dear",
        "1.  80.0 %  (2 trials)",
        "2.  55.0 %  (1 trial)",
        "1.  80.0 %  (2 trials)",
        "–  (0 trials)",
    )


def test_scores_of_other_clients_have_no_ranks_at_equal_cost():
    table = costs.equal_cost([search("all", (0.5, 10, 1.0, 1.0)), search("cohort", (0.9, 10, 1.0, 1.0), share=0.1)])
    assert table["rank"].isna().all() and not costs.notes(table)
    assert tables.equal_cost(table, METRIC).rows[1][1] == "90.0 %  (1 trial)"


def test_equal_values_share_a_rank_and_small_ones_win_where_smaller_is_better():
    best = (("a", 0.4), ("b", 0.3), ("c", 0.1 + 0.2), ("d", 0.4))  # b and c differ by rounding
    each = [search(name, (0.5, 5, 1.0, 1.0), (v, 5, 1.0, 1.0), larger=False) for name, v in best]
    table = costs.equal_cost(each)
    assert table[table["cost"] == "trials"]["rank"].tolist() == [3, 1, 1, 3]
    assert "trials: b = c, a = d;" in costs.notes(table)[0] and not costs.notes(costs.equal_cost(each[:1]))


def test_trials_count_in_the_order_in_which_they_ended():
    """Of two at once the second one ended first: it alone is within the other method's one trial."""
    several = search("several", (0.9, 10, 1.0, 2.0), (0.5, 10, 1.0, 1.0))
    (_, slow), (_, fast) = several.study_storage.trials()
    slow.datetime_complete, fast.datetime_complete = fast.datetime_complete, slow.datetime_complete
    table = costs.equal_cost([several, search("one", (0.7, 10, 1.0, 1.0))])
    assert table[table["cost"] == "trials"]["validation"].tolist() == [0.5, 0.7]


def test_method_that_sends_nothing_sets_no_budget_of_bytes():
    """Bytes: 20, the smallest total above 0. The silent method has all its trials within it."""
    silent = search("silent", (0.6, 100, 0.0, 1.0), (0.7, 100, 0.0, 1.0))
    sends = search("sends", (0.8, 100, 10.0, 1.0), (0.9, 100, 10.0, 1.0))
    table = costs.equal_cost([silent, sends, search("more", *[(0.5, 1, 10.0, 1.0)] * 3)])
    sent = table[table["cost"] == "sent_bytes"].set_index("method")
    assert set(sent["budget"]) == {20} and sent["trials"].to_dict() == {"silent": 2, "sends": 2, "more": 2}
    assert sent["validation"].to_dict() == {"silent": 0.7, "sends": 0.9, "more": 0.5}
    assert "sent_bytes" not in set(costs.equal_cost([silent])["cost"])


def test_method_without_a_complete_trial_sets_no_budget_and_an_unknown_cost_is_left_out():
    """Bytes of a trial of an earlier version are not known."""
    old = search("old", (0.4, 200, None, 2.0))
    table = costs.equal_cost([CHEAP, old, search("failed"), search("pruned", (None, 1, 1.0, 0.1))])
    assert table["cost"].unique().tolist() == ["trials", "samples", "seconds"]
    assert table["budget"].unique().tolist() == [1, 200, 2]
    assert table[table["cost"] == "samples"].set_index("method")["trials"].to_dict() == {
        "cheap": 2, "old": 1, "failed": 0, "pruned": 1
    }  # fmt: skip


# -- a whole study ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_study_ends_by_samples_is_read_and_goes_on_with_more(home):
    """A trial has nine rounds of 10 samples. 100: the second starts with 90 spent, the third does not. 250: with 180
    the third starts, and it ends with 270."""
    events = []
    given = {"space": SPACE, "home": home, "records": records, "scheduler": "none", "name": "by-samples"}
    given |= {"concurrency": 1, "final_repetitions": 0, "on_event": events.append}
    study = tune(toy(seed=91), samples=100, hours=5, **given)
    line = "search ended by --samples 100: 180 samples are spent (2 trials, "
    assert study.table["samples"].tolist() == [90, 90] and study.table["sent_bytes"].tolist() == [54, 54]
    assert study.ended.startswith(line)
    assert [event.text.startswith(line) for event in events if event.kind == "ended"] == [True]
    assert events[-1].wanted == MOST_TRIALS and not any("100000" in event.text for event in events)

    read = tune(toy(seed=91), **given)  # finished: neither --resume nor the budgets are needed
    assert read.ended == study.ended and len(read.table) == 2
    more = tune(None, samples=250, **{**given, "space": None, "scheduler": None, "resume": True})
    assert more.table["samples"].tolist() == [90] * 3 and "--samples 250: 270 samples" in more.ended
    ended = tune(None, trials=3, **{**given, "space": None, "scheduler": None, "resume": True})
    assert ended.ended.startswith("search ended by --trials: all 3 are done")
