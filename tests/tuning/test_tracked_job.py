"""A job of a study and its run in MLflow: opened once, closed once."""

import pytest
from fake_run import FakeRun

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.report import FAILURE
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.session import tracked_job
from pfl_ops.tuning.session.tracked_job import TrackedJob


@pytest.fixture
def opened():
    """Runs that were opened."""
    return []


@pytest.fixture
def job(opened):
    def open_run():
        opened.append(FakeRun())
        return opened[-1]

    return TrackedJob(open_run)


def test_its_run_is_opened_when_it_starts_and_once(job, opened):
    assert not opened and not job.begun
    job.take(JobEvent("started", None))
    job.take(JobEvent("started", None))  # again, after its process died
    job.end("", "", {"state": "complete"})
    (run,) = opened
    assert job.begun and run.status == "FINISHED" and run.known == {"state": "complete"} and run.texts == {}
    job.cut_short()
    assert run.status == "FINISHED", "a finished run stays as it is"


def test_a_process_that_died_before_it_began_leaves_a_failed_run(job, opened):
    job.end("its process died twice", "at length")
    (run,) = opened
    assert (run.status, run.known) == ("FAILED", {"pfl_ops.error": "its process died twice"})
    assert run.texts == {"error.txt": "at length"}


def test_a_job_that_is_cut_short_is_to_be_continued(job, opened):
    job.cut_short()
    assert not opened
    job.take(JobEvent("started", None))
    job.cut_short()
    assert opened[0].status == "KILLED"


def test_last_record_and_report_are_kept_beyond_a_failure(job):
    record = Record(3, {"a": 1.0}, 0)
    job.take(JobEvent("rounds", None, (record,), {"round": 3}))
    job.take(JobEvent("rounds", None, (), {FAILURE: "x"}))
    assert job.last is record and job.report == {"round": 3}


def test_time_of_rounds_before_the_start_counts_once(job, monkeypatch):
    """A kill cut the job short after two rounds of 4 s; then its process dies, and all rounds follow once more."""
    now = [100.0]
    monkeypatch.setattr(tracked_job.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tracked_job.time, "time_ns", lambda: int(1e9 * now[0]))
    cost = {"cost/train_seconds": 3.0, "cost/eval_seconds": 1.0}
    before = tuple(Record(t, cost, 50_000 + t) for t in (1, 2))
    for _ in range(2):
        job.take(JobEvent("started", None))
        job.take(JobEvent("rounds", None, before, {"round": 2}))
        now[0] += 5
        job.take(JobEvent("rounds", None, (Record(3, cost, int(1000 * now[0])),), {"round": 3}))
    assert (job.seconds_before, job.seconds) == (8.0, 18.0)


def test_time_counts_from_the_first_start(job, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(tracked_job.time, "monotonic", lambda: now[0])
    job.take(JobEvent("started", None))
    now[0] = 107.0
    job.take(JobEvent("started", None))
    assert job.seconds == 7.0
