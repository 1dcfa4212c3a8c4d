"""Why a job failed is read from text."""

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.jobs.report import Failure, JobFailed, ObjectiveMissing, failing_as_text, has_died

DIED = "its process died twice, perhaps for lack of memory (fewer at once: --concurrency)"


def text_of(error: Exception) -> str:
    """Return the text that Ray writes for an error inside a job."""
    with pytest.raises(JobFailed) as caught, failing_as_text():
        raise error
    return f"Failure # 1 (occurred at 2026-11-22)\nray::JobProcess.train() (pid=7)\nJobFailed: {caught.value}\n"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("loss went\nthrough the\troof"), Failure("ValueError: loss went through the roof")),
        (PflOpsError("mine.npz is not the driver's"), Failure("mine.npz is not the driver's")),
        (ObjectiveMissing("'val/L1/acc' is not measured"), Failure("'val/L1/acc' is not measured", hopeless=True)),
        (ValueError('θ \u2028 "quoted"'), Failure('ValueError: θ "quoted"')),
    ],
)
def test_an_error_in_a_job_arrives_as_its_line(error, failure):
    assert Failure.in_account(text_of(error)) == failure
    assert not has_died(text_of(error))


@pytest.mark.parametrize(
    ("text", "line", "again"),
    [
        ("Failure # 1\nThe actor died unexpectedly before finishing this task.\n\tclass_name: T\n\tpid: 7", DIED, True),
        ("Failure # 1\nThe actor 7f is unavailable: the actor's node is down", DIED, True),
        ("Failure # 1\nTask was killed due to the node running low on memory.\n", DIED, True),
        (
            "Failure # 1\nThe actor died because of an error raised in its creation task, ray::T.__init__()\n"
            "ModuleNotFoundError: No module named 'mine'",
            "the process did not start: ModuleNotFoundError: No module named 'mine'",
            False,
        ),
        (
            "The actor died because of an error raised in its creation task, ray::T.__init__()\n"
            f"JobFailed: {Failure('plug-in mine.py failed')}",
            "the process did not start: plug-in mine.py failed",
            False,
        ),
        ("Failure # 1\nTuneError: something of Ray's own", "TuneError: something of Ray's own", False),
        (f"{Failure.MARK}not JSON", f"{Failure.MARK}not JSON", False),
        ("", "unknown", False),
    ],
)
def test_ends_that_a_job_cannot_state(text, line, again):
    """Only a process that was lost is replaced: what keeps one from starting keeps the next one too."""
    assert Failure.in_account(text) == Failure(line, died=True)
    assert has_died(text) == again
