"""A gap between two phases of jobs, in a real Ray."""

import gap_work
import pytest
from ray.tune.execution.experiment_state import _ExperimentCheckpointManager as Record

from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs import runner
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.registry import packed_plugins

pytestmark = pytest.mark.slow

LOOKS = 30  # that Ray takes at the source during the gap; without a job for it, a process is ended within three


class Phases:
    """Jobs 0 and 1, and 2 and 3 once these have ended; 1 may end when Ray has looked for a job long enough."""

    def __init__(self, folder) -> None:
        self.folder, self.looks, self.ended = folder, 0, 0
        self.jobs = [self.job(seed) for seed in range(4)]
        self.given = 0

    def job(self, seed: int) -> Job:
        experiment = Experiment.of("fedavg", dataset="digits", model="linear", clients=4, rounds=2, seed=seed)
        part, how = ResourceShare(1.0, 0.0, 2), Execution(device="cpu", way="loop", workers=1, threads=1)
        return Job.of("cell", f"job {seed}", seed, experiment, None, how, part)

    def next(self):
        if self.given == 2 and self.ended < 2:
            self.looks += self.ended
            if self.looks == LOOKS:
                (self.folder / "open").touch()
            return None
        if self.given == 4:
            return None
        self.given += 1
        return self.jobs[self.given - 1]

    def take(self, event) -> None:
        assert event.failure is None, event.account
        self.ended += event.kind == "ended"


def test_processes_outlive_the_gap_between_two_phases(one_ray, tmp_path, monkeypatch):
    """Tune alone ends the process of job 0 while only job 1 is left: jobs 2 and 3 would have one of the two.

    Jobs 2 and 3 wait for each other, so both processes are there at once.
    """
    monkeypatch.setattr(runner, "simulate", gap_work.in_phases)
    records, made = [], Record.__init__
    monkeypatch.setattr(
        Record, "__init__", lambda self, *args, **how: (records.append(self), made(self, *args, **how))[1]
    )
    source = Phases(tmp_path)
    place = SharedPaths(str(tmp_path), None, False, packed_plugins())
    runner.Runner(place, 2, source.take).run(source, tmp_path / "ray", "gap")
    assert source.ended == 4
    first, second = ({(tmp_path / f"begun-{seed}").read_text() for seed in pair} for pair in ((0, 1), (2, 3)))
    assert len(first) == 2 and second == first
    assert [record._checkpoint_period for record in records] == [1e9]  # seconds between two of Tune's own records
