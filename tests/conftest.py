"""Shared by all tests: their distribution over processes, skips for missing data sets, and one real study."""

import contextlib
import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fork_server
import pytest

if TYPE_CHECKING:
    from end_to_end import Tuned


os.environ.setdefault("PFL_OPS_COURIER", "off")
"""Commands track their runs themselves; tests/test_courier.py has the courier."""

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads that wait for one another give their core to the other processes. PyTorch reads it when it is imported."""

gc.set_threshold(50_000, 20, 100)
"""Collect garbage seldom: at Python's own 700 objects it took a fifth of the CPU time of quick tests."""

TOGETHER = (
    ("one_ray", "test_benchmark.py", "test_killed.py", "test_gaps.py", "test_budget.py"),
    ("tuned", "test_end_to_end.py", "test_ui.py"),
    (
        *("one_ray", "test_study.py", "test_confirm.py", "test_engine.py", "test_ray_instance.py"),
        *("test_environments.py", "test_warm_start.py"),
    ),
    (
        *("one_ray", "test_reproducing.py", "test_deciding.py", "test_repeat.py", "test_choosing.py"),
        *("test_parts.py", "test_tabulation.py", "test_paired.py"),
    ),
)
"""(a fixture that takes long to make, files that use it and run in one process), what takes longest first."""

FIRST = "test_cluster.py"
"""It joins a Ray, which a process that has joined `one_ray` can not."""


MEMORY_FOLDER = Path("/dev/shm")
"""Linux keeps its files in memory. A commit of SQLite took 0.6 ms there, and 36 ms on a busy disk."""

FREE_BYTES = 4 << 30
"""Free space that the memory folder must have, so that the tests' temporary folders fill a part of it only."""


def can_hold_temporary_folders(folder: Path) -> bool:
    """True if a folder exists, has space for the temporary folders of all tests, and lets programs run."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= FREE_BYTES and not found.f_flag & os.ST_NOEXEC


def pytest_configure(config: pytest.Config) -> None:
    """Once for all processes of pytest-xdist: temporary folders in memory, an empty cache folder, and the fork server.

    In the user's own cache lie compiled kernels and timings, which the tests' results would depend on.
    """
    config.add_cleanup(gc.unfreeze)  # else libraries report objects that they take for leaked
    if not hasattr(config, "workerinput"):
        if can_hold_temporary_folders(MEMORY_FOLDER):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))
        cache = tempfile.TemporaryDirectory(prefix="pfl-ops-cache-")
        config.add_cleanup(cache.cleanup)
        os.environ["PFL_OPS_CACHE"] = cache.name
    if sys.platform == "linux" and not hasattr(config, "workerinput"):
        with contextlib.ExitStack() as stack:
            stack.enter_context(fork_server.running())
            config.add_cleanup(stack.pop_all().close)
        config.option.tx = [fork_server.xdist() if p == "popen" else p for p in getattr(config.option, "tx", ())]
        if config.option.tx and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            rewrite_assertions(config)


def rewrite_assertions(config: pytest.Config) -> None:
    """Compile all tests that have changed: each of pytest-xdist's processes would do it, 6 s for all (in a new clone).

    The fork server imports meanwhile.
    """
    from _pytest.assertion import rewrite

    started = subprocess.Popen([*fork_server.python(), "-c", ""])
    for file in Path(__file__).parent.rglob("*.py"):
        compiled = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        is_test = file.name == "conftest.py" or file.name.startswith("test_")
        if not is_test or sys.dont_write_bytecode or not rewrite.try_makedirs(compiled.parent):
            continue
        if rewrite._read_pyc(file, compiled) is None:
            status, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, status, compiled)
    started.wait()


_shared = contextlib.ExitStack()


@pytest.fixture(scope="session")
def shared() -> contextlib.ExitStack:
    """A stack of all that files of `TOGETHER` share, until the last of them has run in this process."""
    return _shared


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what files share after the last of them: an idle Ray took a fortieth of a core until all tests had run."""
    if nextitem is None or group(nextitem.path.name) != group(item.path.name):
        _shared.close()


def group(file: str) -> str:
    """Return the name of a test file's group, or its own: files of a group run in one process, one after the other."""
    return next((f"group {number}" for number, (_, *files) in enumerate(TOGETHER) if file in files), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes longest first, so that no process is left alone with it at the end."""
    rank = {file: place for place, (_, *files) in enumerate(TOGETHER) for file in files}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        for fixture in {fixture for fixture, *_ in TOGETHER} & set(getattr(item, "fixturenames", ())):
            if not any(fixture == shared and item.path.name in files for shared, *files in TOGETHER):
                raise pytest.UsageError(f"{item.path.name} uses {fixture}: name it in TOGETHER of tests/conftest.py")
    items.sort(key=lambda i: (i.path.name != FIRST, rank.get(i.path.name, len(TOGETHER)), i.path not in slow))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run a file's tests in one process, so that its fixtures are made once, and files that share more in the same.

    Groups of its own (`--dist loadgroup`) do nothing under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(Path(nodeid.partition("::")[0]).name)

    config.option.loadscopereorder = False  # the order is the one above
    return Files(config, log)


def keep_modules_out_of_garbage_collection() -> None:
    """Exempt all objects that exist now, after many imports, from garbage collection.

    A collection of all objects takes 0.35 s with all libraries in memory; measurements of memory call `gc.collect`.
    """
    global _frozen_modules
    if len(sys.modules) >= _frozen_modules + 100:
        gc.collect()
        gc.freeze()
        forget_loggers_of_pytorch()
        _frozen_modules = len(sys.modules)


_frozen_modules = 0


def forget_loggers_of_pytorch() -> None:
    """Remove PyTorch's loggers from logging's list: pytest walks the list six times a test, and adds a handler to each
    logger that does not pass its records on. PyTorch keeps the loggers themselves.
    """
    loggers = logging.root.manager.loggerDict
    for name in [name for name in loggers if name.partition(".")[0] == "torch"]:
        del loggers[name]


def forget_plugins_without_a_file() -> None:
    """Forget plug-ins of earlier tests, whose folders are gone: jobs and requests would ask for their files."""
    module = sys.modules.get("pfl_ops.registry")
    loaded = module._plugins if module else {}
    for digest in [digest for digest, path in loaded.items() if not path.exists()]:
        del loaded[digest]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compute in one thread, whatever an earlier test has asked for: in small networks threads only wait for one
    another, and the cores are shared by several processes.

    `@pytest.mark.needs_data("mnist")`: run only where a folder of PFL_OPS_DATA has mnist.npz. A name with a dot is a
    file's own.
    """
    keep_modules_out_of_garbage_collection()
    forget_plugins_without_a_file()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    folders = [Path(f) for f in os.environ.get("PFL_OPS_DATA", "").split(os.pathsep) if f]
    for mark in item.iter_markers("needs_data"):
        for name in mark.args:
            file = name if "." in name else f"{name}.npz"
            if not any((folder / file).is_file() for folder in folders):
                where = f"in {os.environ['PFL_OPS_DATA']}" if folders else "because PFL_OPS_DATA is not set"
                pytest.skip(f"needs {file}, which is not found {where}")


@pytest.fixture(scope="session")
def furnish(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Put an MLflow database without runs into a folder, which is made and given back: MLflow needs seconds for one."""
    from pfl_ops.tracking import Store

    empty = tmp_path_factory.mktemp("empty")
    Store.open(empty, f"sqlite:///{empty}/mlflow.db").close()

    def copied(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(empty / "mlflow.db", folder)
        return folder

    return copied


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of `pfl_ops.system.child` by the fork server."""
    from pfl_ops.system import child

    real = child._python
    monkeypatch.setattr(child, "_python", lambda code: [*fork_server.python(), *real(code)[1:]])


@pytest.fixture
def blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a pixel as each PNG, here and in forks: no assertion looks at the pictures of these runs.

    Not in a test with `@pytest.mark.real_pictures`.
    """
    if request.node.get_closest_marker("real_pictures"):
        return
    monkeypatch.setenv(fork_server.BLANK, "1")
    monkeypatch.setattr("pfl_ops.figures.files.draw_once", fork_server.draw_blank())


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a Ray that `one_ray` has started in this process: a user's command begins without one."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> "Tuned":
    """A small study, run once for all slow tests that look at it; they may add runs of other methods than FedAvg."""
    from end_to_end import Tuned

    return Tuned(tmp_path_factory.mktemp("study"))
