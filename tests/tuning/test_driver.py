"""Why a trial failed is read from text."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.tuning.driver import Driver, failure_in
from pfl_ops.tuning.trial import Failure, ObjectiveMissing, TrialFailed, failing_as_text

DIED = "the trial's process died, perhaps for lack of memory (fewer at once: --concurrency)"


def text_of(error: Exception) -> str:
    """Return the text that Ray writes for an error inside a trial."""
    with pytest.raises(TrialFailed) as caught, failing_as_text():
        raise error
    return f"Failure # 1 (occurred at 2026-11-22)\nray::FederationTrial.train() (pid=7)\nTrialFailed: {caught.value}\n"


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("loss went\nthrough the\troof"), Failure("ValueError: loss went through the roof")),
        (PflOpsError("mine.npz is not the driver's"), Failure("mine.npz is not the driver's")),
        (ObjectiveMissing("'val/L1/acc' is not measured"), Failure("'val/L1/acc' is not measured", hopeless=True)),
        (ValueError('θ \u2028 "quoted"'), Failure('ValueError: θ "quoted"')),
    ],
)
def test_an_error_in_a_trial_arrives_as_its_line(error, failure):
    assert failure_in(text_of(error)) == failure


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Failure # 1\nThe actor died unexpectedly before finishing this task.\n\tclass_name: T\n\tpid: 7", DIED),
        ("Failure # 1\nThe actor 7f is unavailable: the actor's node is down", DIED),
        ("Failure # 1\nTask was killed due to the node running low on memory.\n", DIED),
        (
            "Failure # 1\nThe actor died because of an error raised in its creation task, ray::T.__init__()\n"
            "ModuleNotFoundError: No module named 'mine'",
            "the trial's process did not start: ModuleNotFoundError: No module named 'mine'",
        ),
        (
            "The actor died because of an error raised in its creation task, ray::T.__init__()\n"
            f"TrialFailed: {Failure('plug-in mine.py failed')}",
            "the trial's process did not start: plug-in mine.py failed",
        ),
        ("Failure # 1\nTuneError: something of Ray's own", "TuneError: something of Ray's own"),
        (f"{Failure.MARK}not JSON", f"{Failure.MARK}not JSON"),
        ("", "unknown"),
    ],
)
def test_ends_that_a_trial_cannot_state(text, line):
    assert failure_in(text) == Failure(line)


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_no_pickled_error_is_read(tmp_path):
    """Ray writes one beside the text, and would read it for its own table at the end."""
    (tmp_path / "error.pkl").write_bytes(pickle.dumps(Trap(tmp_path / "opened")))
    (tmp_path / "error.txt").write_text(text_of(ObjectiveMissing("no such value")))
    metadata = SimpleNamespace(pickled_error_filename="error.pkl")
    trial = SimpleNamespace(
        trial_id="a",
        error_file=str(tmp_path / "error.txt"),
        pickled_error_file=str(tmp_path / "error.pkl"),
        run_metadata=metadata,
    )
    failed = {}
    driver = Driver(SimpleNamespace(fail=failed.__setitem__), 1, None, None)
    driver._end = lambda *_: None
    driver.on_trial_error(0, [], trial)
    assert failed == {"a": "no such value"} and driver.stop_all()
    assert not (tmp_path / "opened").exists() and metadata.pickled_error_filename is None
