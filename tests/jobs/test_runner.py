"""The runner's events for Ray's reports, without any Ray running; tests/tuning has it with one."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from pfl_ops.errors import PflOpsError
from pfl_ops.jobs import runner
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.runner import TRIES, UNBEGUN, JobList, JobSearcher, _Driver

LOST = "The actor died unexpectedly before finishing this task."
JOBS = [
    SimpleNamespace(purpose="cell", number=n, name=f"job {n}", payload=SimpleNamespace(share="a core"))
    for n in range(2)
]


@pytest.fixture
def ray(tmp_path):
    """A search over two jobs, and a driver whose events are kept."""
    search, events = JobSearcher(JobList(list(JOBS))), []
    driver = _Driver(search, events.append, lambda: False)
    return SimpleNamespace(search=search, driver=driver, events=events, folder=tmp_path)


def trial(ray, name, account=""):
    """Ray's trial; its account of a failure lies in a file."""
    file = ray.folder / f"{name}.txt"
    file.write_text(account)
    return SimpleNamespace(
        trial_id=name, error_file=str(file), last_result={}, run_metadata=SimpleNamespace(pickled_error_filename="x")
    )


def test_jobs_are_given_out_and_the_search_ends_with_the_last_of_them(ray):
    assert [ray.search.suggest(name) for name in "ab"] == [{"job": job.payload} for job in JOBS]
    assert ray.search.suggest("c") is None  # one of them may yet need another process
    for name in "ab":
        ray.driver.on_trial_complete(0, [], trial(ray, name))
    assert not ray.search.finished
    assert ray.search.suggest("d") == Searcher.FINISHED and ray.search.finished
    assert [(event.kind, event.job, event.failure) for event in ray.events] == [
        ("ended", JOBS[0], None),
        ("ended", JOBS[1], None),
    ]


@pytest.mark.parametrize("given", [0, 1])
def test_ray_that_stops_between_two_jobs_was_interrupted(given, monkeypatch, tmp_path):
    """Ctrl-C ends Ray's loop in silence; no job runs at that moment, and one was never given out."""

    class Tuner:
        def __init__(self, trainable, tune_config, run_config):
            self.search, (self.driver,) = tune_config.search_alg, run_config.callbacks

        def fit(self):
            for name in "ab"[:given]:
                self.search.suggest(name)
                self.driver.on_trial_complete(0, [], SimpleNamespace(trial_id=name, last_result={}))

    monkeypatch.setattr(runner.tune, "Tuner", Tuner)
    with pytest.raises(KeyboardInterrupt):
        runner.Runner(None, 1, lambda event: None).run(JobList(list(JOBS)), tmp_path, "cut short")


def test_a_source_that_fails_ends_the_call_after_its_jobs(monkeypatch, tmp_path):
    """Ray would wrap the error, and end the job that runs; the source is not asked again."""
    events, asked = [], []

    class Failing(JobList):
        def next(self):
            asked.append(len(self.jobs))
            if len(self.jobs) == 1:
                raise PflOpsError("no data")
            return super().next()

    class Tuner:
        def __init__(self, trainable, tune_config, run_config):
            self.search, (self.driver,) = tune_config.search_alg, run_config.callbacks

        def fit(self):
            assert self.search.suggest("a") == {"job": JOBS[0].payload}
            assert self.search.suggest("b") is None and not events
            self.driver.on_trial_complete(0, [], SimpleNamespace(trial_id="a", last_result={}))
            assert self.search.suggest("c") == Searcher.FINISHED

    monkeypatch.setattr(runner.tune, "Tuner", Tuner)
    with pytest.raises(PflOpsError, match="no data"):
        runner.Runner(None, 1, events.append).run(Failing(list(JOBS)), tmp_path, "failing")
    assert [event.kind for event in events] == ["ended"] and asked == [2, 1]


def test_a_job_whose_process_dies_gets_one_more(ray):
    for attempt in range(TRIES):
        assert ray.search.suggest(f"a{attempt}") == {"job": JOBS[0].payload}
        ray.driver.on_trial_start(0, [], trial(ray, f"a{attempt}"))
        ray.driver.on_trial_error(0, [], trial(ray, f"a{attempt}", LOST))
    *_, last = ray.events
    assert [event.kind for event in ray.events] == ["started"] * TRIES + ["ended"]
    assert last.failure.died and "died twice" in last.failure.line


def test_a_process_that_was_dead_before_the_job_began_is_no_try(ray):
    for attempt in range(UNBEGUN - 1):
        ray.search.suggest(f"u{attempt}")
        ray.driver.on_trial_error(0, [], trial(ray, f"u{attempt}", LOST))
    assert ray.events == []
    ray.search.suggest("b")
    ray.driver.on_trial_start(0, [], trial(ray, "b"))
    ray.driver.on_trial_error(0, [], trial(ray, "b", LOST))
    assert [event.kind for event in ray.events] == ["started"]  # and it is tried once more
    assert ray.search.suggest("c") == {"job": JOBS[0].payload}


def test_a_job_that_says_why_it_failed_is_not_tried_again(ray):
    ray.search.suggest("a")
    ray.driver.on_trial_error(0, [], trial(ray, "a", f"JobFailed: {Failure('no data')}"))
    (event,) = ray.events
    assert event.failure == Failure("no data") and ray.search.suggest("b") == {"job": JOBS[1].payload}


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_no_pickled_error_is_read(ray):
    """Ray writes one beside the text, and would read it for its own table at the end."""
    (ray.folder / "error.pkl").write_bytes(pickle.dumps(Trap(ray.folder / "opened")))
    ray.search.suggest("a")
    failed = trial(ray, "a", str(Failure("no such value", hopeless=True)))
    failed.pickled_error_file = str(ray.folder / "error.pkl")
    ray.driver.on_trial_error(0, [], failed)
    assert ray.events[0].failure.hopeless
    assert not (ray.folder / "opened").exists() and failed.run_metadata.pickled_error_filename is None


class Phases:
    """A source whose second phase is empty until it is opened."""

    def __init__(self) -> None:
        self.first, self.second, self.open = list(JOBS), [], False

    def next(self):
        now = self.second if self.open else self.first
        return now.pop(0) if now else None


@pytest.fixture
def gap(tmp_path):
    """Two jobs of a first phase have begun; the first has ended, and there is none until the second phase."""
    source, events = Phases(), []
    search = JobSearcher(source)
    driver = _Driver(search, events.append, lambda: False)
    ray = SimpleNamespace(source=source, search=search, driver=driver, events=events, folder=tmp_path)
    for name in "ab":
        search.suggest(name)
    for name in "ab":
        driver.on_trial_start(0, [], trial(ray, name))
    driver.on_trial_complete(0, [], trial(ray, "a"))
    return ray


def test_a_process_without_a_job_is_kept_until_there_is_one(gap):
    """Its idle trial has the last job's share, ends at the next report, and no event tells of it."""
    told = len(gap.events)
    assert gap.search.suggest("i") == {"idle": "a core"}
    gap.driver.on_trial_start(0, [], trial(gap, "i"))
    for _ in range(3):
        assert not gap.driver("i", {})
        gap.driver.on_trial_result(0, [], trial(gap, "i"), {"done": False})
    gap.source.open, gap.source.second = True, [JOBS[0]]
    assert gap.driver("i", {})
    gap.driver.on_trial_complete(0, [], trial(gap, "i"))
    assert len(gap.events) == told
    assert gap.search.suggest("c") == {"job": JOBS[0].payload}


def test_an_idle_trial_ends_with_the_last_job(gap):
    gap.search.suggest("i")
    gap.driver.on_trial_start(0, [], trial(gap, "i"))
    assert not gap.driver("b", {})  # a job's own end is its own
    gap.driver.on_trial_complete(0, [], trial(gap, "b"))
    assert gap.driver("i", {})
    gap.driver.on_trial_complete(0, [], trial(gap, "i"))
    assert gap.search.suggest("c") == Searcher.FINISHED and gap.search.finished


def test_no_more_processes_are_kept_than_there_are(gap):
    """Ray would start one for each further idle trial; one that died is none."""
    assert gap.search.suggest("i") == {"idle": "a core"}
    assert gap.search.suggest("j") is None
    gap.driver.on_trial_start(0, [], trial(gap, "i"))
    assert gap.search.suggest("j") is None
    gap.driver.on_trial_error(0, [], trial(gap, "i", LOST))
    assert gap.search.suggest("j") is None


def test_a_free_process_is_for_the_job_that_waits_for_its_own(gap):
    """Ray gives it to that job, if nothing else takes it; and an idle trial makes room for that job, once."""
    gap.source.open, gap.source.second = True, [JOBS[0]]
    assert gap.search.suggest("c") == {"job": JOBS[0].payload}  # and has not begun
    assert gap.search.suggest("i") is None
    gap.driver.on_trial_start(0, [], trial(gap, "c"))
    gap.driver.on_trial_complete(0, [], trial(gap, "c"))
    assert gap.search.suggest("i") == {"idle": "a core"}
    gap.driver.on_trial_start(0, [], trial(gap, "i"))
    gap.source.second = [JOBS[1]]
    assert gap.search.suggest("d") == {"job": JOBS[1].payload}  # Ray asked before the idle trial said anything
    assert gap.driver("i", {})
    gap.search.suggest("j")
    assert not gap.driver("j", {})


def test_a_job_that_is_to_be_tried_again_takes_an_idle_process(gap):
    gap.search.suggest("i")
    gap.driver.on_trial_start(0, [], trial(gap, "i"))
    gap.driver.on_trial_error(0, [], trial(gap, "b", LOST))
    assert gap.driver("i", {})
    gap.driver.on_trial_complete(0, [], trial(gap, "i"))
    assert gap.search.suggest("c") == {"job": JOBS[1].payload} and not gap.search.finished
