"""What the runner makes of what Ray says, without any Ray running; tests/tuning has it with one."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from pfl_ops.jobs import runner
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.runner import TRIES, UNBEGUN, Listed, _Driver, _Search

LOST = "The actor died unexpectedly before finishing this task."
JOBS = [SimpleNamespace(purpose="cell", number=n, name=f"job {n}", payload=n) for n in range(2)]


@pytest.fixture
def ray(tmp_path):
    """A search over two jobs, and a driver whose events are kept."""
    search, events = _Search(Listed(list(JOBS))), []
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
    assert [ray.search.suggest(name) for name in "ab"] == [{"job": 0}, {"job": 1}]
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
    with pytest.raises(runner.Interrupted):
        runner.Runner(None, 1, lambda event: None).run(Listed(list(JOBS)), tmp_path, "cut short")


def test_a_job_whose_process_dies_gets_one_more(ray):
    for attempt in range(TRIES):
        assert ray.search.suggest(f"a{attempt}") == {"job": 0}
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
    assert ray.search.suggest("c") == {"job": 0}


def test_a_job_that_says_why_it_failed_is_not_tried_again(ray):
    ray.search.suggest("a")
    ray.driver.on_trial_error(0, [], trial(ray, "a", f"JobFailed: {Failure('no data')}"))
    (event,) = ray.events
    assert event.failure == Failure("no data") and ray.search.suggest("b") == {"job": 1}


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
