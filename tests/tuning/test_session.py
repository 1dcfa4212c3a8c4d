"""The execution of all trials of a study: settled once, by the driver."""

from types import SimpleNamespace

import pytest

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.tuning.packing import Packing, PackingLayout
from pfl_ops.tuning.session import Session
from pfl_ops.tuning.settings import Settings

ONE_CPU = ResourceShare(1, 0, 2)


@pytest.fixture
def execution(tmp_path, monkeypatch):
    """Return the execution that trials are given, for a space and a request."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path))

    def make(space="training.lr: {float: [0.1, 1]}", packing=None, share=ONE_CPU, **asked):
        settings = Settings.of(Experiment.of("fedavg", clients=4), spaces.parse(space))
        nothing = SimpleNamespace()
        session = Session(settings, nothing, nothing, nothing, None, Execution(**asked), None, None)
        return session._execution(share, packing)

    return make


def test_nothing_is_left_open_for_trials_to_choose(execution):
    found = execution()
    assert found.way in ("loop", "vmap") and (found.chunk is None) == (found.way == "loop")
    assert (found.device, found.threads, found.workers) == ("cpu", 1, 1)
    assert execution(share=ResourceShare(2, 0, 1)).threads in (1, 2)
    assert execution(way="vmap", chunk=3).chunk == 3


def test_a_space_of_networks_leaves_the_way_to_each_trial(execution):
    """One with dropout could not be stacked, for example."""
    found = execution(space="model.hidden: {choice: [16, 64]}")
    assert (found.way, found.chunk, found.threads) == ("auto", None, 1)


def test_what_was_measured_is_not_timed_again(execution, monkeypatch):
    monkeypatch.setattr("pfl_ops.tuning.session.settle", None)  # would be called
    packing = Packing("cpu", "2 cores", PackingLayout(2, 1), "vmap", 7, 1, 1, {2: 20.0}, 1)
    found = execution(packing=packing)
    assert (found.way, found.chunk, found.threads, found.workers) == ("vmap", 7, 1, 1)
