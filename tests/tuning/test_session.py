"""The execution of all trials of a study: settled once, by the driver."""

from types import SimpleNamespace

import numpy as np
import pytest

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tuning.commands.terms import settings_of
from pfl_ops.tuning.resources.packing import Packing, PackingLayout
from pfl_ops.tuning.session.session import Session, _Phases
from pfl_ops.tuning.studies.settings import Settings

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


def test_the_choice_is_tested_as_it_was_tried():
    """scaff_pd counts 5 local steps, so that fedavg's trials have 5 too; its own experiment has one epoch."""
    fedavg = Experiment.of("fedavg", repetitions=3, **{"evaluation.stages": ["L1"]})
    methods = [fedavg, Experiment.of("scaff_pd", repetitions=3)]
    settings = settings_of(methods, hold=["training.local_steps"])["fedavg"]
    point = {"training.lr": 0.1, "training.optimiser": "sgd", "training.lr_decay": 1.0}
    storage = SimpleNamespace(chosen=lambda: (0, SimpleNamespace(params=point)))
    session = Session(settings, storage, None, None, None, Execution(), None, None)
    chosen = session.chosen(fedavg)
    assert settings.experiment.training.local_steps == chosen.training.local_steps == 5
    assert (chosen.training.lr, chosen.evaluation.split) == (0.1, "test")
    assert (chosen.evaluation.stages, chosen.repetitions) == (("L1",), 3)


def test_no_job_is_begun_once_the_data_were_replaced(tmp_path):
    """Trials of two data sets would be ranked in one study, though --resume refuses such data."""
    file = tmp_path / "mine.npz"

    def write(value):
        x, y = np.full((6, 2), value, np.float32), np.arange(6) % 2
        np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)

    write(1.0)
    experiment = Experiment.of("fedavg", dataset=str(file), partition="iid", clients=2)
    settings = Settings.of(experiment, spaces.parse("training.lr: {float: [0.1, 1]}"))
    storage = SimpleNamespace(name="s1", settings={"digest": settings.digest(None)})
    session = Session(settings, storage, None, None, None, Execution(), None, None)
    given = SimpleNamespace(next=lambda: "a job", over=True)
    phases = _Phases(given, given, check=session.check_same)
    assert phases.next() == "a job"
    write(2.0)
    with pytest.raises(PflOpsError, match="study 's1' stopped: the data, the partition or the weights were replaced"):
        phases.next()


@pytest.mark.parametrize("purpose", ["trial", "confirmation", "test"])
def test_job_that_met_replaced_data_is_cut_short(purpose):
    """Its process refused them before the driver looked: the trial counted as done, and --resume never ran it again. A
    test run was done again in the driver, on the new data."""
    told, replaced = [], [False]

    def check():
        if replaced[0]:
            raise PflOpsError("the data were replaced")

    phase = SimpleNamespace(take=told.append)
    phases = _Phases(phase, phase, phase, check=check)

    def ended(failure):
        event = JobEvent("ended", SimpleNamespace(purpose=purpose), failure=failure)
        phases.take(event)
        return event

    taken = [ended(None), ended(Failure("mine.npz is not the driver's"))]
    replaced[0] = True
    ended(Failure("mine.npz is not the driver's"))
    taken += [ended(None), ended(Failure("diverged at round 2", diverged=True))]
    assert told == taken


def test_what_is_settled_fits_into_the_share_of_a_trial(execution, monkeypatch):
    """Stacks that were timed on the whole of a GPU may be more than a trial's quarter of it holds."""
    shares = []

    def settled(experiment, execution, data_dir, gpus):
        shares.append(gpus)
        return execution

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pfl_ops.tuning.session.session.settle", settled)
    execution(share=ResourceShare(1, 0.25, 4))
    execution(share=ONE_CPU)
    assert shares == [0.25, 0]


def test_what_was_measured_is_not_timed_again(execution, monkeypatch):
    monkeypatch.setattr("pfl_ops.tuning.session.session.settle", None)  # would be called
    packing = Packing("cpu", "2 cores", PackingLayout(2, 1), "vmap", 7, 1, 1, {2: 20.0}, 1)
    found = execution(packing=packing)
    assert (found.way, found.chunk, found.threads, found.workers) == ("vmap", 7, 1, 1)
