"""Processes of the fork server behave as those that Python starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fork_server
import pytest

pytestmark = pytest.mark.skipif(fork_server.ADDRESS not in os.environ, reason="the fork server runs on Linux only")
IS_FORK = "import sys; 'pfl_ops.runs' in sys.modules or sys.exit('no fork')\n"


def run(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*fork_server.python(), *words], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_environment_of_this_process_gets_a_fork() -> None:
    """Whatever the imports of all tests have set: else commands would start slowly, and no test would fail."""
    done = run("-c", IS_FORK)
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_folder_streams_and_environment_are_handed_on(tmp_path: Path) -> None:
    code = (
        IS_FORK + "import os; print(sys.argv, os.getcwd(), sys.stdin.read(), os.environ['MINE']); sys.stderr.write('e')"
    )
    done = run("-c", code, "a", "b c", cwd=tmp_path, input="text", env={**os.environ, "MINE": "1"})
    assert done.stdout == f"['-c', 'a', 'b c'] {tmp_path} text 1\n" and done.stderr == "e"


def test_open_files_keep_their_numbers(tmp_path: Path) -> None:
    with (tmp_path / "one").open("w") as one, (tmp_path / "two").open("w") as two:
        numbers = [one.fileno(), two.fileno()]
        code = f"import os; [os.write(file, b'%d' % file) for file in {numbers}]; print(os.listdir('/proc/self/fd'))"
        done = run("-c", IS_FORK + code, pass_fds=numbers)
    assert done.returncode == 0, done.stderr
    assert [int((tmp_path / name).read_text()) for name in ("one", "two")] == numbers
    listed = {"0", "1", "2", *map(str, numbers)}
    assert len(set(eval(done.stdout)) - listed) == 1, "the one that lists them"


def test_a_file_is_run_as_the_main_module(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    file = tmp_path / "main.py"
    file.write_text("import sys, beside\nif __name__ == '__main__':\n    print(beside.value, __file__, sys.argv)\n")
    assert run(str(file), "x", cwd="/").stdout == f"7 {file} ['{file}', 'x']\n"


def test_a_module_is_run_as_the_main_module(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    file = tmp_path / "main.py"
    file.write_text("import sys, beside\nprint(__name__, beside.value, sys.argv, 'torch' in sys.modules)\n")
    assert run("-m", "main", "x", cwd=tmp_path).stdout == f"__main__ 7 ['{file}', 'x'] True\n"


def test_children_are_forks_where_that_is_asked_for() -> None:
    child = "import sys; print('torch' in sys.modules)"
    code = f"{IS_FORK}import subprocess; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run("-c", code).stdout == "False\n"
    assert run("-c", code, env=fork_server.with_children(os.environ)).stdout == "True\n"


def test_a_fork_is_in_the_group_of_its_client() -> None:
    """So are a fork's own children: a signal for the group reaches all."""
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = f"{IS_FORK}import os, subprocess; print(os.getpid(), flush=True)\n"
    code += f"subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [*fork_server.python(), "-c", code], env=fork_server.with_children(os.environ),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0,
    ) as process:  # fmt: skip
        assert process.stdout
        forks = [int(process.stdout.readline()) for _ in range(2)]
        assert [os.getpgid(fork) for fork in forks] == [process.pid] * 2
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read() == ""  # no process has it open


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('a reason')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os._exit(7)", 7),
        ("import atexit; atexit.register(print, 'last'); sys.exit(4)", 4),
        ("import threading; threading.Thread(target=print, args=['last']).start()", 0),
    ],
)
def test_ends_as_a_process_of_its_own(code: str, expected: int) -> None:
    """Exit code, output and the last line of the traceback are those of a real process."""
    forked = run("-c", IS_FORK + code)
    real = subprocess.run([sys.executable, "-c", "import sys\n" + code], capture_output=True, text=True, check=False)
    assert forked.returncode == real.returncode == expected
    assert forked.stdout == real.stdout
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]
    assert forked.stderr.count("  File ") == real.stderr.count("  File ")  # Python 3.13 shows the code of `-c` as well


@pytest.fixture
def sigint_not_ignored() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, which processes inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number: int, sigint_not_ignored: None) -> None:
    code = "signal.signal(signal.SIGINT, signal.default_int_handler); print('here', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [*fork_server.python(), "-c", f"{IS_FORK}import signal, time; {code}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout and process.stdout.readline() == "here\n"
        process.send_signal(number)
    assert process.returncode == -number


def test_a_killed_client_takes_its_fork_with_it() -> None:
    """Its output is open as long as the fork lives."""
    code = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    with subprocess.Popen(
        [*fork_server.python(), "-c", IS_FORK + code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        fork, parent = map(int, process.stdout.readline().split())
        assert fork != process.pid and parent == os.getpid()
        process.kill()
        assert process.stdout.read() == ""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{fork}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_other_variable_read_at_import_gets_a_real_process() -> None:
    done = run("-c", "import sys; print('torch' in sys.modules, sys.flags.hash_randomization)",
               env={**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
    assert done.stdout == "False 0\n"


def test_another_copy_of_the_package_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pfl_ops").mkdir()
    (tmp_path / "pfl_ops" / "__init__.py").write_text("copy = True\n")
    code = "import sys; print('torch' in sys.modules, 'pfl_ops.runs' in sys.modules); import pfl_ops; pfl_ops.copy"
    done = run("-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_variables_that_the_package_sets_are_set() -> None:
    names = ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_TIMEOUT")
    code = f"{IS_FORK}import os; print(*(os.environ[name] for name in {names}))"
    done = run("-c", code, env={name: value for name, value in os.environ.items() if name not in names})
    assert done.stdout == "true 10\n", done.stderr


def test_number_of_threads_is_read_by_the_fork() -> None:
    code = IS_FORK + "import torch; print(torch.get_num_threads())"
    assert run("-c", code, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout == "1\n"


def test_each_fork_draws_random_numbers_of_its_own() -> None:
    """Those of Python, NumPy and Ray: two workers of a Ray with the same numbers would take each other's objects."""
    code = "import random, numpy, ray; print(ray.ObjectRef.from_random().hex(), random.random(), numpy.random.rand())"
    first, second = (run("-c", IS_FORK + code).stdout.split() for _ in range(2))
    assert len(first) == 3
    for one, other in zip(first, second, strict=True):
        assert one != other


def test_scripts_are_those_of_the_installation() -> None:
    name = "pfl-ops"
    if not (Path(sys.executable).parent / name).exists():
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([fork_server.scripts() / name, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pfl-ops ")


def test_python_among_the_scripts_starts_a_real_process_for_other_words() -> None:
    python = [fork_server.scripts() / fork_server.PYTHON]
    seen = "import sys; print('torch' in sys.modules)"
    assert subprocess.run([*python, "-c", seen], capture_output=True, text=True, check=True).stdout == "True\n"
    done = subprocess.run([*python, "-X", "utf8", "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    done = subprocess.run([*python, "-"], input=seen, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_workers_of_a_ray_are_forks_that_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's raylet dies first; without the client's care a worker would live on, since it watches the server."""
    code = f"""{IS_FORK}
import os, pathlib, psutil, ray, signal
from pfl_ops.jobs import ray_instance

@ray.remote
class Actor:
    def seen(self):
        return 'mlflow' in sys.modules, os.getpid(), os.environ['MINE'], ray.get_runtime_context().get_job_id()

with ray_instance.started(1, 0):
    actor = Actor.remote()
    warm, pid, mine, job = ray.get(actor.seen.remote())
    assert warm and mine == '1' and job == '{fork_server.FIRST_JOB}'
    worker = psutil.Process(pid)
    (raylet,) = [p for p in psutil.Process().children() if p.name() == 'raylet']
    raylet.kill()
    worker.wait(10)
print('gone')
"""
    monkeypatch.setenv("MINE", "1")
    done = run("-c", code, timeout=100)
    assert done.stdout.endswith("gone\n"), done.stderr
