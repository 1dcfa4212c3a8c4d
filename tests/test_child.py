"""Child processes end with their parent, in the middle of their work too."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from pfl_ops.federation.execution.processes import Processes
from pfl_ops.system import child
from pfl_ops.system.hosting import HostedProcess

PATIENCE = 60.0  # seconds; a deadline for a busy machine, not a measurement

GRANDCHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@contextmanager
def parent_of(code: str, number: int) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """A process that runs some code; and it with its descendants, once there are so many."""
    start = f"import subprocess, sys; sys.path[:] = {sys.path!r}; from pfl_ops.system import child\n"
    parent = subprocess.Popen([sys.executable, "-c", start + code])
    family: list[psutil.Process] = []
    try:
        wait_until(lambda: len(psutil.Process(parent.pid).children(recursive=True)) == number)
        family = psutil.Process(parent.pid).children(recursive=True)
        yield parent, family
    finally:
        for process in (*family, parent):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        parent.wait()


def wait_until(true) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("subprocess.run(child.command('time.sleep', 600))", 1),
        (f"subprocess.run(child.guarded([sys.executable, '-c', {GRANDCHILD!r}]))", 3),
    ],
    ids=["a function", "a program and its own child"],
)
def test_children_of_a_killed_parent_end(code, number):
    """The function sleeps in one call; the program knows nothing of its parent."""
    with parent_of(code, number) as (parent, family):
        parent.kill()
        parent.wait()
        wait_until(lambda: all(map(gone, family)))


def test_a_parent_that_died_before_is_noticed():
    """This process is not the child of the process with the number 0."""
    code = "import time; from pfl_ops.system.child import end_with; end_with(0); time.sleep(600)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == 1


def test_a_guarded_program_gives_its_exit_code():
    argv = child.guarded([sys.executable, "-c", "import sys; sys.exit(7)"])
    assert subprocess.run(argv, timeout=PATIENCE).returncode == 7


def test_a_guarded_program_gets_sigterm():
    code = "subprocess.run(child.guarded([sys.executable, '-c', 'import time; time.sleep(600)']))"
    with parent_of(code, 2) as (_, (guard, program)):
        guard.send_signal(signal.SIGTERM)
        wait_until(lambda: gone(program))
        wait_until(lambda: gone(guard))


def test_a_guard_passes_on_sigterm_that_comes_while_it_starts_the_program():
    """Here as soon as the program is there, before `Popen` has returned."""
    code = """if 1:
        import os, signal, subprocess
        from pfl_ops.system import child

        def early(argv, start=subprocess.Popen):
            program = start(argv)
            signal.raise_signal(signal.SIGTERM)
            return program

        subprocess.Popen = early
        child.guard(os.getppid())
    """
    argv = [sys.executable, "-c", code, sys.executable, "-c", "import time; time.sleep(600)"]
    assert subprocess.run(argv, timeout=PATIENCE).returncode == 256 - signal.SIGTERM  # sys.exit(-15)


@pytest.mark.slow
def test_a_worker_in_the_middle_of_a_long_job_ends(tmp_path):
    """A real worker process, which reads its pipe between jobs only."""
    code = f"""
import pathlib, time
from pfl_ops.federation.execution.processes import Processes
def long(held, part, outs):
    pathlib.Path({str(tmp_path)!r}, "begun").touch()
    time.sleep(600)
Processes(1, {{}}).ask(long, [None], {{}}, {{}})
"""
    with parent_of(code, 1) as (parent, family):
        wait_until((tmp_path / "begun").exists)
        parent.kill()
        parent.wait()
        wait_until(lambda: all(map(gone, family)))


class Seen(Exception):
    """Raised instead of a start."""


@pytest.mark.parametrize(
    "start",
    [
        Processes(1, {}).start,
        lambda: HostedProcess("builtins.dict"),
    ],
    ids=["workers", "hosted"],
)
def test_every_host_starts_its_processes_so(start, monkeypatch):
    def popen(argv, **_):
        raise Seen(argv[2])

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Seen, match=r"end_with\(\d+\)"):
        start()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel that does not group by session")
@pytest.mark.parametrize("own_session", [True, False])
def test_lower_priority_is_of_the_own_session(own_session):
    """Of two busy processes in two sessions the one of niceness 10 had half of a core; now it has a tenth."""
    code = "lower_priority(7); print(os.nice(0), open('/proc/self/autogroup').read())"
    command = [sys.executable, "-c", f"import os, sys; sys.path[:] = {sys.path!r}; "
               f"from pfl_ops.system.child import lower_priority; {code}"]  # fmt: skip
    before = Path("/proc/self/autogroup").read_text()
    found = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=own_session).stdout
    niceness, _, group = found.partition(" ")
    assert int(niceness) == min(os.nice(0) + 7, 19)  # the tests may run under nice
    assert group.endswith(" nice 7\n\n") if own_session else group == f"{before}\n"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel that does not group by session")
@pytest.mark.parametrize("grouped", [True, False])
def test_a_session_gets_the_priority_of_the_one_that_waits_for_it(grouped, monkeypatch):
    """A process of the first session since the start of the system has no group; its file is empty."""
    mine = Path("/proc/self/autogroup").read_text() if grouped else ""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from pfl_ops.system.child import lower_priority; lower_priority(9); "
        "print('low', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "low\n"
        group = Path(f"/proc/{process.pid}/autogroup")
        assert group.read_text().endswith(" nice 9\n")
        time.sleep(0.15)  # without privileges a priority is changed ten times a second at most
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, **_: mine)
            child.restore_priority(process.pid)
        assert group.read_text().split()[-1] == (mine.split() or ["0"])[-1]
        process.stdin.close()
    child.restore_priority(process.pid)  # one that is gone
