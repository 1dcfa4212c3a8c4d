"""The resources of a trial: numbers, auto, or nothing; and the layouts that are measured for it."""

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.tuning.resources import resource_request
from pfl_ops.tuning.resources.resource_request import ResourceRequest


@pytest.fixture
def machine(monkeypatch):
    def make(cores=8, gpus=0):
        monkeypatch.setattr(resource_request.cores, "usable", lambda: cores)
        monkeypatch.setattr(resource_request.torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(resource_request.torch.cuda, "device_count", lambda: gpus)

    return make


def test_numbers_and_their_texts_are_the_same():
    assert ResourceRequest.of("2", "0.25", 3) == ResourceRequest(2.0, 0.25, 3) == ResourceRequest.of(2, 0.25, 3)
    assert ResourceRequest.of("auto", None) == ResourceRequest("auto", None)
    assert ResourceRequest.of(None, 0).number_given and ResourceRequest.of(1).number_given
    assert not ResourceRequest.of("auto", "auto").number_given


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": "foo"}, "--gpus-per-trial must be a share of a GPU, at most 1 (0.25, 0.5), or auto, got 'foo'"),
        ({"gpus": 1.5}, "or auto, got '1.5': a trial computes on one GPU"),
        ({"gpus": 2}, "or auto, got '2': a trial computes on one GPU"),
        ({"gpus": 2, "unit": "cell"}, "--gpus-per-cell must be a share of a GPU, at most 1 (0.25, 0.5), or auto, got"),
        ({"gpus": -1}, "or auto, got '-1'"),
        ({"gpus": "nan"}, "or auto, got 'nan'"),
        ({"cpus": 0}, "--cpus-per-trial must be a number above 0 or auto, got '0'"),
        ({"cpus": "inf"}, "got 'inf'"),
        ({"concurrency": 0}, "--concurrency must be >= 1, got 0"),
        ({"cpus": "auto", "gpus": 0.25}, "--cpus-per-trial auto shares out the cores among trials on the CPU"),
    ],
)
def test_anything_else_is_refused_in_a_line_that_says_what_is_allowed(wrong, message):
    with pytest.raises(PflOpsError) as caught:
        ResourceRequest.of(**wrong)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "gpus", "device", "address", "kind"),
    [
        ({}, 1, "auto", None, "gpu"),  # nothing said: a GPU is measured ...
        ({}, 0, "auto", None, None),  # ... cores are not
        ({}, 1, "cpu", None, None),
        ({}, 1, "auto", "auto", None),
        ({"gpus": "auto"}, 1, "auto", "auto", "gpu"),
        ({"gpus": "auto"}, 0, "auto", None, "cpu"),
        ({"gpus": "auto", "cpus": 1}, 0, "auto", None, None),
        ({"gpus": 0.5}, 1, "auto", None, None),
        ({"gpus": 0, "cpus": "auto"}, 1, "auto", None, "cpu"),
        ({"cpus": "auto"}, 0, "auto", "auto", "cpu"),
        ({"cpus": "auto"}, 1, "auto", None, "gpu"),
        ({"cpus": 2}, 1, "auto", None, "gpu"),
    ],
)
def test_what_is_measured(machine, given, gpus, device, address, kind):
    machine(gpus=gpus)
    assert ResourceRequest.of(**given).kind(device, address) == kind


def test_a_cluster_s_gpu_can_t_be_measured_from_a_machine_without_one(machine):
    machine(gpus=0)
    with pytest.raises(PflOpsError, match="measures on this machine, which has no GPU; give a share"):
        ResourceRequest.of(gpus="auto").kind("auto", "10.0.0.1:6379")


def test_no_more_is_tried_than_trials_are_wanted(machine):
    machine(cores=8, gpus=2)
    assert [lay.trials for lay in ResourceRequest.of("auto").layouts("cpu", trials=12)] == [1, 2, 4, 8]
    assert [lay.trials for lay in ResourceRequest.of("auto", concurrency=2).layouts("cpu", trials=12)] == [1, 2]
    assert [lay.trials for lay in ResourceRequest.of().layouts("gpu", trials=12)] == [1, 2, 4]  # on each of two GPUs
    assert [lay.trials for lay in ResourceRequest.of().layouts("gpu", trials=2)] == [1]
    assert [lay.cpus for lay in ResourceRequest.of("auto", "auto").layouts("gpu", trials=12)] == [4, 2, 1]
