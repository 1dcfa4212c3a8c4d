"""Collections of garbage: rare while a process starts, none when it ends, usual while it computes."""

import gc
import subprocess
import sys

import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.figures import canvas
from pfl_ops.system import child
from pfl_ops.system.collector import USUAL, WHILE_IMPORTING, collect_as_usual

CYCLE = """
class Loop:
    def __del__(self): print("collected")
loop = Loop()
loop.itself = loop
"""
RARELY = "from pfl_ops.system.collector import collect_rarely; collect_rarely()\n"


@pytest.fixture
def rare():
    """The threshold that `collect_rarely` sets, in this process, for a test."""
    gc.set_threshold(WHILE_IMPORTING)
    yield
    gc.unfreeze()
    gc.set_threshold(*USUAL)


@pytest.mark.parametrize(
    ("start", "printed"),
    [("", "collected\n"), (RARELY, ""), (f"{RARELY}sys.modules['triton'] = sys\n", "collected\n")],
    ids=["as usual", "rarely", "beside Triton"],
)
def test_garbage_at_the_end_is_left_to_the_system(start, printed):
    """A cycle that is alive when Python ends: Python itself collects it, and so has to look at all objects.

    Triton prints the objects that are left of its own, and is loaded by PyTorch's count of operations (`bench`).
    """
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{start}{CYCLE}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == printed


def test_our_child_processes_start_with_rare_collections():
    """A function of a fresh process sees the threshold; the module that calls it is imported under it, too."""
    command = child.lasting_command("builtins.exec", "import gc; print(gc.get_threshold()[0])")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{WHILE_IMPORTING}\n"


@pytest.mark.usefixtures("rare")
def test_collect_as_usual_leaves_out_what_is_there():
    frozen = gc.get_freeze_count()
    collect_as_usual()
    assert gc.get_threshold() == USUAL
    assert gc.get_freeze_count() > frozen


def test_collect_as_usual_changes_nothing_of_a_users_own():
    gc.set_threshold(4321)
    try:
        frozen = gc.get_freeze_count()
        collect_as_usual()
        assert gc.get_threshold()[0] == 4321
        assert gc.get_freeze_count() == frozen
    finally:
        gc.set_threshold(*USUAL)


@pytest.mark.usefixtures("rare")
def test_figures_are_collected_as_usual():
    """120 pictures of a report, with their pixels, took 377 MiB at most in place of 105."""
    canvas.blank(2, 1)
    assert gc.get_threshold() == USUAL


@pytest.mark.usefixtures("rare")
def test_a_run_collects_as_usual():
    """A method may leave cycles that hold large tensors: they must not wait for a million objects."""
    experiment = Experiment.of("local", dataset="digits", clients=4, rounds=1)
    experiment.build(execution=Execution(way="loop", threads=1, workers=1)).close()
    assert gc.get_threshold() == USUAL
