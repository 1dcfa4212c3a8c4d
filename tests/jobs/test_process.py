"""A job's process: what it reports of a run."""

import math

import pytest

from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload
from pfl_ops.jobs.process import JobProcess
from pfl_ops.jobs.report import FAILURE, ROUND, SAMPLES, SENT_BYTES, Failure
from pfl_ops.jobs.resources import ResourceShare


def cost(samples):
    """The tracked costs of a round."""
    rate = {"cost/samples_per_second": samples / 0.3, "cost/train_seconds": 0.3}
    return {**rate, "cost/up_bytes": 10.0, "cost/down_bytes": 5.0}


def reports(records, metric="val/L1/acc", share=1.0):
    """The reports of a trial's process, without Ray, until it is done."""
    process = object.__new__(JobProcess)
    process._iteration, process.failed, process.idle_since, process.losses = 0, False, None, ()
    process.round, process.samples, process.sent_bytes, process.records = 0, 0, 0.0, records
    experiment = {"training": {"rounds": 3}, "participation": {"share": share}}
    process.payload = Payload(experiment, "", "", Execution(), ResourceShare(1.0, 0.0, 1), True, (metric,))
    told = [process.step()]
    while not told[-1]["done"]:
        told.append(process.step())
    return told


def test_samples_of_the_round_that_diverged_are_counted():
    """Rounds of 70 and 30 samples, of which the second diverged: 100 in all, and 15 bytes twice."""

    def run():
        yield Record(0, {"val/L1/acc": 0.1}, 0)
        yield Record(1, {"val/L1/acc": 0.5, **cost(70)}, 1)
        raise Diverged(2, 0.4, 7, cost(30))

    last = reports(run())[-1]
    assert Failure.in_account(last[FAILURE]) == Failure("diverged at round 2, client 7, lr 0.4", diverged=True)
    assert (last[ROUND], last[SAMPLES], last[SENT_BYTES]) == (1, 100, 30.0)
    assert math.isnan(last["val/L1/acc"])


def test_code_that_exits_has_failed():
    """Ray counted the process as dead, and gave the job a second one."""

    def run():
        yield Record(0, {"val/L1/acc": 0.1}, 0)
        raise SystemExit(0)

    last = reports(run())[-1]
    assert Failure.in_account(last[FAILURE]) == Failure("SystemExit: 0")


def test_a_simulation_that_ends_early_names_its_last_round():
    """Of an earlier report."""
    first, last = reports(iter([Record(1, {"val/L1/acc": 0.5}, 0)]))
    assert (first[ROUND], last[ROUND]) == (1, 1)
    assert Failure.in_account(last[FAILURE]) == Failure("RuntimeError: the simulation ended after round 1")


def test_round_without_a_scored_client_in_its_cohort_is_passed_over():
    """L2 is that of a round's cohort. Of 300 clients 200 are scored: the three of round 1 may be none of them."""
    told = reports(iter([Record(1, {}, 0), Record(2, {"val/L2/acc": 0.5}, 0), Record(3, {"val/L2/acc": 0.75}, 0)]),
                   "val/L2/acc", share=0.01)  # fmt: skip
    assert [(report[ROUND], report["val/L2/acc"]) for report in told] == [(2, 0.5), (3, 0.75)]


def test_last_round_without_a_scored_client_says_why():
    (last,) = reports(iter([Record(round_, {}, 0) for round_ in range(4)]), "val/L2/acc", share=0.01)
    failure = Failure.in_account(last[FAILURE])
    assert failure.hopeless and "of which no client with validation samples is scored, or" in failure.line


def test_score_that_all_clients_would_have_fails_at_its_first_round():
    (last,) = reports(iter([Record(round_, {}, 0) for round_ in range(4)]), "val/L2/acc", share=1.0)
    failure = Failure.in_account(last[FAILURE])
    assert failure.hopeless and "(round 1 has no such value)" in failure.line


@pytest.mark.parametrize(
    ("metric", "why"),
    [("val/L1/acc", ": personal() returned no models; mend"), ("val/G/acc", ": round() returned no stage 'G'; mend")],
)
def test_a_stage_that_the_method_does_not_return_is_named(metric, why):
    """A forgotten `return` in personal() ended a study as 'val/L1/acc' is not measured in this experiment."""
    rounds = [Record(round_, {"val/L2/acc": 0.5}, 0) for round_ in range(4)]
    (last,) = reports(iter(rounds), metric)
    assert why in Failure.in_account(last[FAILURE]).line
