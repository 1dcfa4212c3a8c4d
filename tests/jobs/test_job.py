"""Jobs of experiments whose files change while a command runs."""

import numpy as np
import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.resources import ResourceShare


def test_a_job_of_other_data_than_planned_is_refused(tmp_path):
    """Its result would have the hash that was planned, and stand beside results on the former data."""
    file = tmp_path / "mine.npz"

    def write(value):
        x, y = np.full((6, 2), value, np.float32), np.arange(6) % 2
        np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)

    def job(planned):
        how, part = Execution(), ResourceShare(1, 0, 1)
        return Job.of("cell", "a/b seed 0", 0, experiment, None, how, part, planned=planned)

    write(1.0)
    experiment = Experiment.of("fedavg", dataset=str(file), partition="iid", clients=2)
    planned = experiment.digest()
    assert job(planned).digest == planned
    write(2.0)
    with pytest.raises(PflOpsError, match=r"^a/b seed 0: the data, the partition or the weights were replaced since"):
        job(planned)
    assert job(None).digest != planned
