"""The faults of `make chaos` are judged by folders that are read whole; the faults themselves take an hour."""

from pathlib import Path

import fork_server
import pytest

from tests.chaos import checks, jobs


@pytest.mark.slow
def test_a_run_without_any_fault_is_read_whole_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A courier brings the run after its process has ended."""
    monkeypatch.setattr(jobs, "PYTHON", fork_server.python())
    for name, value in fork_server.with_children({}).items():
        monkeypatch.setenv(name, value)
    job = jobs.run_job("fliu", "memory")
    with jobs.place(tmp_path / "case", "whole", None, tmp_path / "cache") as there:
        assert jobs.finish(there.start(job.arguments)) == 0, there.said()
        found, verdict = checks.read(there), checks.Verdict()
        checks.compare(found, found, verdict)
        checks.leftovers(there, verdict)
    assert verdict.survived, verdict
    assert list(found.statuses.values()) == [["FINISHED"]] and found.points and found.files
    # another run of the same command has other times and another peak of memory
    assert not [name for name in found.points if "second" in name or "peak" in name]
