"""The share of the machine that the test runs of a choice get."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.tuning.session import finals as module
from pfl_ops.tuning.session.finals import LONG, Finals, run_final

TRIALS = Execution(device="cpu", way="vmap", chunk=3, threads=1, workers=1)


@pytest.mark.parametrize(
    ("seconds", "missing", "part", "cpus"),
    [
        (LONG + 1, 1, ResourceShare(1, 0, 4), 4),
        (LONG + 1, 2, ResourceShare(1, 0, 4), 2),
        (LONG + 1, 3, ResourceShare(1, 0, 4), 1),
        (LONG + 1, 9, ResourceShare(1, 0, 4), 1),
        (LONG - 1, 1, ResourceShare(1, 0, 4), 1),  # a new process of another share would take longer than it saves
        (LONG + 1, 1, ResourceShare(1, 0.25, 4), 1),
        (LONG + 1, 1, ResourceShare(1, 0, 12), 4),  # three machines: no job can have the CPUs of two
    ],
)
def test_tests_of_long_trials_share_all_that_the_trials_had(seconds, missing, part, cpus, monkeypatch):
    chosen = (0, SimpleNamespace(duration=timedelta(seconds=seconds), user_attrs={}))
    session = SimpleNamespace(study_storage=SimpleNamespace(chosen=lambda: chosen), execution=Execution(way="loop"))
    monkeypatch.setattr(module, "most_cpus", lambda: 4.0)
    finals = Finals(session, part, TRIALS)
    finals.missing.extend(range(missing))
    finals._widen(part)
    assert (finals.share.cpus, finals.share.gpus) == (cpus, part.gpus)
    wide = Execution(device="cpu", way="loop", threads=cpus)  # as the user has it; the rest is timed there
    assert finals.execution == (wide if cpus > 1 else TRIALS)


def test_a_finished_test_run_is_not_computed_again_on_other_data(monkeypatch):
    """Its data were replaced before it was tracked: a run on the new ones was the test of the choice."""

    def replaced():
        raise PflOpsError("the data were replaced")

    monkeypatch.setattr(module.runs, "run", pytest.fail)
    settings, study_storage = SimpleNamespace(tags={}), SimpleNamespace(name="s")
    session = SimpleNamespace(check_same=replaced, store=SimpleNamespace(home=SimpleNamespace(root="")), data_dir=None,
                              execution=None, parent=None, settings=settings, study_storage=study_storage)  # fmt: skip
    with pytest.raises(PflOpsError, match="replaced"):
        run_final(None, "final-seed0", session, True)
