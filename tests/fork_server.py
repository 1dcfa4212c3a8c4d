"""Commands in forks of a process that has imported everything already: a start takes 0.05 s of CPU time, not 3 to 5.

    [*fork_server.python(), "-c", CODE, *WORDS]   a command line that does what `[sys.executable, "-c", ...]` does
    [*fork_server.python(), "-m", MODULE, *WORDS] one that does what `[sys.executable, "-m", ...]` does
    [*fork_server.python(), FILE, *WORDS]         one that does what `[sys.executable, FILE, ...]` does
    fork_server.xdist()                           what pytest-xdist starts its processes by
    fork_server.scripts()                         a folder for PATH: `pfl-ops`, `mlflow`, `python` start that way
    fork_server.with_children(ENVIRONMENT)        one in which a fork starts its own Python processes that way, too
    fork_server.ray_worker()                      a file by which a Ray of this process starts its workers that way

One server for a test session: `tests/conftest.py` starts it with the session and ends it. It imports at the first
request. The started process is a client (`fork_client.py`), which hands its arguments, folder, environment and open
files to the server, waits for the forked process, and ends as that one ended: with its exit code, or by its signal.
SIGINT and SIGTERM are passed on. A client that dies takes the forked process with it, by SIGKILL.

The fork is a process as Python starts it, with these differences:

- Libraries (`LIBRARIES`) and pfl_ops are imported; modules of the tests are not. Nothing that depends on when a module
  is imported, or on how long that takes, can be tested in it. A fork that would find another copy of pfl_ops on its
  path imports that one.
- Libraries read their environment variables when they are imported. If one that counts (`READ_AT_IMPORT`) differs from
  the server's, or if there is no server, the client starts a real process in its place.
- Hash seeds, resource limits and the mask of new files' modes are those of the server; all forks have the same hash
  seed. The process group is the client's, unless that is of another session. Process number and parent are not those
  of the client, but `os.getppid` returns the client's parent. A test that counts its child processes needs real ones:
  without pytest-xdist, forks are among them.
- `sys.flags`, the command line in /proc, and the peak memory are those of the server.
- Ray's workers are forks too, in commands that are forks, and with `ray_worker`. Ray starts them at a priority of
  their own (nice 15); the forks have that of the server. They end as soon as their Ray does.
- When the program ends, exit handlers run and streams are written, then the process ends: objects that are left are
  not finalised, and PyTorch's kernels are not removed one by one.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib.machinery
import json
import marshal
import os
import pkgutil
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from fork_client import REAL, ask

ADDRESS = "FORK_SERVER_SOCKET"
"""Environment variable of the processes that run tests: the server's socket."""
DEFAULTS = ("pfl_ops.tracking", "pfl_ops.jobs.resources")
"""Modules that set environment variables before they import MLflow and Ray."""
LIBRARIES = (
    *("numpy", "torch", "pandas", "pyarrow.parquet", "sklearn.datasets", "safetensors.torch", "pydantic", "typer"),
    *("mlflow", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "alembic.command"),
    *("ray", "ray.tune", "optuna", "rich.live", "rich.markdown", "typer.rich_utils", "sqlalchemy.dialects.sqlite"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("aiohttp.web", "optuna.storages._rdb.models"),
    *("pytest", "hypothesis.strategies"),  # modules of the tests import them, Ray's workers too
    *("ray._private.arrow_serialization", "pyarrow.json"),  # a worker of Ray imports them with its first object
    "ray.dag",  # Ray imports it when a process ends
)
NOT_IMPORTED = ("pfl_ops.bench", "pfl_ops.testing")
"""Packages and modules of pfl_ops that the server leaves out: commands hardly use them."""
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "MALLOC_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "CUDA_", "TORCH_", "PYTORCH_"),
    *("RAY_", "TUNE_", "MLFLOW_", "MPL", "ARROW_", "LANG", "LC_", "TZ", "HOME"),
)
"""Beginnings of the names of variables that a library, or the interpreter, reads once."""
READ_LATER = {
    *("PYTHONPATH", "PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("MLFLOW_TRACKING_URI", "RAY_CLIENT_MODE", "CUDA_VISIBLE_DEVICES"),
    *("MLFLOW_BACKEND_STORE_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_ENABLE_WORKSPACES"),
    *("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "MLFLOW_SERVER_X_FRAME_OPTIONS"),
    *("MLFLOW_SERVER_SECRETS_CACHE_TTL", "MLFLOW_SERVER_SECRETS_CACHE_MAX_SIZE"),
}
"""Names among those that a fork reads."""
OF_A_SERVER = "_MLFLOW_SERVER_FILE_STORE"
"""Environment variable of MLflow's server: there `mlflow.server`, which is imported with pfl_ops, reads others."""
BLANK = "FORK_BLANK_PICTURES"
"""Environment variable of forks that draw no pictures: each is one blank pixel. Figures are made all the same."""
EXECUTABLE = "FORK_EXECUTABLE"
"""Environment variable of forks whose `sys.executable` is the program that it names."""
SCRIPTS = ("pfl-ops", "mlflow")
PYTHON = "python"
RAY_WORKER = "ray_worker.py"
FIRST_JOB, NO_JOB = "01000000", "ffffffff"
"""Ray's numbers of its first driver and of a driver that comes later. Workers of these are forks: Ray's library reads
the number once, when it is imported."""
RUN_MODULE = "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
MOST_FILES = 64  # that a client hands on
CLIENT = str(Path(__file__).with_name("fork_client.py"))


# -- for the tests -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Run a server. Its address is in the environment of this process, and so of all that it starts."""
    folder = Path(tempfile.mkdtemp(prefix="pfl-ops-fork-"))  # short: the path of a socket has at most 107 bytes
    write_scripts(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        argv = [sys.executable, __file__, "--serve", str(listener.fileno())]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    os.environ[ADDRESS] = str(folder / "socket")
    try:
        yield
    finally:
        del os.environ[ADDRESS]
        assert process.stdin
        process.stdin.close()
        process.wait(60)
        shutil.rmtree(folder)


def python() -> list[str]:
    """Return what starts Python by the server; without one, as ever."""
    return [sys.executable, "-IS", CLIENT, os.environ[ADDRESS]] if ADDRESS in os.environ else [sys.executable]


def with_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for forks that start Python by the server, too, where they start `sys.executable`."""
    server = {EXECUTABLE: str(scripts() / PYTHON)} if ADDRESS in os.environ else {}
    return {**environment, **server}


def xdist() -> str:
    """Return how pytest-xdist starts a process by the server; without one, as ever."""
    if ADDRESS not in os.environ:
        return "popen"
    return f"popen//python={shlex.join(python())}//env:{ADDRESS}={os.environ[ADDRESS]}"


def scripts() -> Path:
    """Return a folder with `SCRIPTS` that are started by the server; without one, where the real ones lie."""
    installed = Path(sys.executable).parent
    return Path(os.environ[ADDRESS]).parent if ADDRESS in os.environ else installed


def ray_worker() -> str:
    """Return the file that starts a Ray's workers by the server, for `ray_constants.SETUP_WORKER_FILENAME`; without a
    server, Ray's own."""
    if ADDRESS not in os.environ:
        return "setup_worker.py"
    subprocess.run([*python(), "-c", ""], check=True)  # it imports now: Ray gives up a worker after 60 s, and waits on
    return str(Path(os.environ[ADDRESS]).parent / RAY_WORKER)


# -- for Ray -----------------------------------------------------------------------------------------------------------


def start_ray_worker(address: str, words: list[str]) -> NoReturn:
    """Start one of Ray's workers, in the place of Ray's setup_worker.py.

    Args:
        words: the environment of its job and its language, for setup_worker.py, then a file and its arguments.
    """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    asked, own = parser.parse_known_args(words)
    wanted = json.loads(asked.serialized_runtime_env_context)
    plain = not wanted.get("command_prefix") and not wanted.get("override_worker_entrypoint")
    if os.environ.get("RAY_JOB_ID") not in (FIRST_JOB, NO_JOB) or not plain:
        (setup,) = Path(own[0]).parent.glob("setup_worker.py")
        os.execv(sys.executable, [sys.executable, str(setup), *words])
    os.environ.update(wanted.get("env_vars", {}))
    die_with_parent = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    ask(address, own, ray=True)


# -- the server --------------------------------------------------------------------------------------------------------


class Server:
    """Answers requests until its standard input is closed.

    Attributes:
        start: variables of READ_AT_IMPORT when it was started. defaults: those that imports set where they are unset.
        own_defaults: all variables that pfl_ops sets where they are unset.
        path: of imports, without PYTHONPATH.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is sent to all processes of a terminal
        self.defaults: dict[str, str] | None = None
        self.own_defaults: dict[str, str] = {}
        self.start = counted(os.environ)
        given = {os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
        self.path = [p for p in sys.path[1:] if p not in given]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self.running: dict[int, tuple[int, socket.socket]] = {}  # process -> (its handle, its client)

    def serve(self) -> dict[str, Any]:
        """Serve. Returns in each fork, with what it was asked to run."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    request = self.receive(connection)
                    if request is not None and self.fork(request, connection):
                        return request
                elif key.data is None:  # standard input
                    for process in self.running:
                        os.kill(process, signal.SIGKILL)
                    os._exit(0)  # nothing is left to be done; taking down what is imported takes seconds
                elif key.data in self.running:
                    self.end(key.data, key.fileobj)

    def receive(self, connection: socket.socket) -> dict[str, Any] | None:
        """Return a request with its open streams; None if the client is gone, or shall start a real process."""
        head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
        size = int.from_bytes(head, "big")
        with connection.makefile("rb") as file:
            data = file.read(size)
        request: dict[str, Any] = {**marshal.loads(data), "received": files} if len(data) == size else {}
        self.defaults = self.warm() if self.defaults is None else self.defaults
        if request and (request["ray"] or self.is_like(request["environment"])):
            return request
        for file in files:
            os.close(file)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{REAL}\n".encode())
        connection.close()
        return None

    def is_like(self, environment: dict[str, str]) -> bool:
        """True if imports see the same variables in an environment as they have seen in the server's."""
        assert self.defaults is not None
        return {**self.defaults, **counted(environment)} == {**self.defaults, **self.start}

    def warm(self) -> dict[str, str]:
        """Import pfl_ops, and libraries in the environment in which it imports them. Returns what that adds to it.

        Garbage is not collected meanwhile: that took a fifth of the time, and found next to nothing.
        """
        gc.disable()
        before = dict(os.environ)
        workers = {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
        os.environ.update(workers)
        for name in DEFAULTS:
            __import__(name)
        self.own_defaults = {k: v for k, v in os.environ.items() if k not in {**before, **workers}}
        with own_random_numbers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in (*LIBRARIES, *own_modules()):
                __import__(name)
            fill_caches()
        for name in workers:
            del os.environ[name]
        leave_kernels_at_exit()
        import ray._private.ray_constants

        ray._private.ray_constants.SETUP_WORKER_FILENAME = str(Path(self.listener.getsockname()).parent / RAY_WORKER)
        added = {name: value for name, value in counted(os.environ).items() if name not in before}
        threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        assert not threads, f"{threads} would not live on in a fork"
        gc.collect()
        gc.freeze()  # else each fork would copy the pages of all objects when it collects
        gc.enable()
        use_huge_pages()
        return added

    def fork(self, request: dict[str, Any], connection: socket.socket) -> bool:
        """Fork a process. Returns True in it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: BLAS has threads; it stops them here
            process = os.fork()
        if process == 0:
            signal.signal(signal.SIGINT, self.interrupt)
            self.selector.close()
            self.listener.close()
            connection.close()
            for handle, client in self.running.values():
                os.close(handle)
                client.close()
            return True
        for file in request["received"]:
            os.close(file)
        self.running[process] = os.pidfd_open(process), connection
        for each in self.running[process]:
            self.selector.register(each, selectors.EVENT_READ, process)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{process}\n".encode())
        return False

    def end(self, process: int, because: Any) -> None:
        """Tell the client that the process ended, or end the process because the client did."""
        handle, connection = self.running.pop(process)
        if because is connection:
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{code}\n".encode())
        for each in (handle, connection):
            self.selector.unregister(each)
        os.close(handle)
        connection.close()


def use_huge_pages() -> None:
    """Collapse this process's memory into pages of 2 MiB: a fork copies a smaller table of pages, 38 ms of CPU time
    instead of 64 for an empty fork. Kernels before Linux 6.1 refuse."""
    collapse, huge = 25, 2 << 20  # MADV_COLLAPSE
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, inode, *name = line.split()
        first, last = (int(edge, 16) for edge in span.split("-"))
        first, last = -(-first // huge) * huge, last // huge * huge
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and last > first:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), collapse)


@contextlib.contextmanager
def own_random_numbers() -> Iterator[None]:
    """Keep Ray from drawing random numbers while it is imported.

    Its generator begins with the first number. Begun in the server, it would give the same numbers in all forks: two
    workers that start at once give their first objects one name, one of the two dies of it, and the start of their Ray
    waits for ever. Importing `ray.tune` decorates classes of actors, each of which gets a random number.
    """
    import ray.actor

    real = ray.actor.ActorClassID
    drawn = types.SimpleNamespace(from_random=lambda: real(os.urandom(real.size())))
    ray.actor.ActorClassID = drawn  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        ray.actor.ActorClassID = real  # type: ignore[misc]


def own_modules() -> Iterator[str]:
    """Yield the names of pfl_ops' modules."""
    import pfl_ops

    for _, name, _ in pkgutil.walk_packages(pfl_ops.__path__, "pfl_ops."):
        if not name.startswith(NOT_IMPORTED) and not name.endswith(".__main__"):
            yield name


def fill_caches() -> None:
    """Do once what each process would do at its first run: digests of the package's own code, a look for the latest
    schema revisions of MLflow and Optuna, the mapping of MLflow's tables, a first drawing of text. It took
    a quarter of a short run's time."""
    import mlflow.store.db.utils
    import optuna.storages._rdb.storage
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    from pfl_ops import figures, registry
    from pfl_ops.federation.loop import engine
    from pfl_ops.figures.files import draw_once
    from pfl_ops.tracking.home import TrackingTarget, WorkFolder
    from pfl_ops.tracking.target.schema import connect
    from pfl_ops.tuning.studies import study_database

    for table in registry._tables:
        assert table._installed is not None  # reads the metadata of all packages
        for name in table.builtin:
            table.digest(name)
    engine.digest()
    mlflow.store.db.utils._get_latest_schema_revision = functools.cache(  # type: ignore[attr-defined]
        mlflow.store.db.utils._get_latest_schema_revision
    )
    with tempfile.TemporaryDirectory(prefix="pfl-ops-fork-") as folder:
        address = f"sqlite:///{folder}/mlflow.db"
        connect(TrackingTarget.of(WorkFolder.open(folder), address))  # makes the tables, or copies the session's
        store = SqlAlchemyStore(address, folder)
        store.search_runs(["0"], "params.a = '1' and tags.b = '2'", 1, 1, ["metrics.c DESC"])
        store.engine.dispose()
        studies = study_database.storage(f"sqlite:///{folder}/studies.db")
        head = studies.get_head_version()
        studies.engine.dispose()
    optuna.storages._rdb.storage._VersionManager.get_head_version = lambda _: head  # type: ignore[method-assign]
    accuracies = {"L1": [0.25, 0.5]}
    for figure in (
        figures.partition([[1, 2], [2, 1]], title="a"),
        figures.curves([(0, {"test/L1/local/mean": 0.25}), (1, {"test/L1/local/mean": 0.5})], title="a"),
        figures.clients(accuracies),
    ):
        draw_once(figure, "png", 150)


def leave_kernels_at_exit() -> None:
    """Keep exit handlers from removing the kernels that PyTorch's 149 libraries have registered in Python: it took a
    quarter of the time of an empty fork."""
    import torch.library

    for handler, found in vars(weakref.finalize)["_registry"].items():
        if found.func is torch.library._del_library:
            handler.atexit = False


def counted(environment: Any) -> dict[str, str]:
    """Return the variables that are read when a library is imported."""
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT) and k not in READ_LATER}


def become(request: dict[str, Any], path: list[str], own_defaults: dict[str, str]) -> types.CodeType:
    """Make this fork the process that was asked for. Returns the code that it is to run."""
    import multiprocessing.process

    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    above = 1 + max([*request["files"], *request["received"]])
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in request["received"]]
    for file in request["received"]:
        os.close(file)
    for number, file in zip(request["files"], moved, strict=True):
        os.dup2(file, number)
        os.close(file)
    if request["session"]:
        os.setsid()
    else:
        with contextlib.suppress(PermissionError, ProcessLookupError):  # of another session; gone
            os.setpgid(0, request["group"])
    os.chdir(request["folder"])
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({name: value for name, value in request["environment"].items() if name != ADDRESS})
    first, *words = request["words"][request["words"][0] == "-u" :]  # execnet's; a fork's streams are as they were
    if first == "-c":
        text, name, sys.argv = words[0], "<string>", ["-c", *words[1:]]
        here = ""
    elif first == "-m":
        text, name, sys.argv = RUN_MODULE.format(words[0]), "<string>", ["-m", *words[1:]]
        here = os.getcwd()
    else:
        text, name, sys.argv = Path(first).read_text(encoding="utf-8"), first, [first, *words]
        here = os.path.dirname(os.path.realpath(first))
    sys.orig_argv = [sys.executable, *request["words"]]
    folders = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [here, *folders, *path]
    found = importlib.machinery.PathFinder.find_spec("pfl_ops")
    if found and found.origin == sys.modules["pfl_ops"].__file__:
        os.environ.update({name: value for name, value in own_defaults.items() if name not in os.environ})
    else:
        for module in [module for module in sys.modules if module.partition(".")[0] == "pfl_ops"]:
            del sys.modules[module]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.executable = os.environ.get(EXECUTABLE, sys.executable)
    if OF_A_SERVER in os.environ:
        for module in [module for module in sys.modules if f"{module}.".startswith("mlflow.server.")]:
            del sys.modules[module]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, **({} if first in ("-c", "-m") else {"__file__": first}))
    sys.modules["__main__"] = main
    os.getppid = functools.partial(_parent, f"/proc/{request['client']}/stat")
    if os.environ.get(BLANK):
        import pfl_ops.figures.files

        pfl_ops.figures.files.draw_once = draw_blank()
    if (threads := os.environ.get("OMP_NUM_THREADS", "")) != before.get("OMP_NUM_THREADS", "") and threads:
        torch.set_num_threads(int(threads))
        threadpool_limits(int(threads))
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    tempfile.tempdir = None
    np.random.seed()  # a process of its own draws numbers of its own
    if request["ray"]:
        os.setpgrp()  # Ray kills a worker's group
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")  # reads its variables again
        AuthenticationTokenLoader.instance().reset_cache()
    return compile(text, name, "exec", dont_inherit=True)


def draw_blank() -> Callable[..., bytes]:
    """Return what draws one white pixel as each PNG, in place of `pfl_ops.figures.files.draw_once`, which takes 0.06 s
    of CPU time."""
    from PIL import Image

    from pfl_ops.figures.files import draw_once

    pixel = BytesIO()
    Image.new("L", (1, 1), 255).save(pixel, "png")
    return lambda figure, kind, *more: pixel.getvalue() if kind == "png" else draw_once(figure, kind, *more)


def _parent(client: str) -> int:
    """Return the parent of a process by its file /proc/N/stat; 1 where the process is gone."""
    try:
        return int(Path(client).read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 1


def run(program: types.CodeType) -> NoReturn:
    """Run the code in this fork and end it as Python does."""
    code: Any = None
    interrupted = False
    try:
        exec(program, sys.modules["__main__"].__dict__)
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    code = int(code or 0) & 0xFF
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def write_scripts(folder: Path) -> None:
    """Write the programs of `scripts`, and that of `ray_worker`."""
    (folder / RAY_WORKER).write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport fork_server\n"
        f"fork_server.start_ray_worker({str(folder / 'socket')!r}, sys.argv[1:])\n"
    )
    forked = f'exec "{sys.executable}" -IS "{CLIENT}" "{folder}/socket"'
    programs = {name: f'{forked} "{Path(sys.executable).parent / name}" "$@"' for name in SCRIPTS}
    programs[PYTHON] = f'case "$1" in -c|-m|*.py) {forked} "$@";; *) exec "{sys.executable}" "$@";; esac'
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o700)


if __name__ == "__main__":
    server = Server(socket.socket(fileno=int(sys.argv[2])))
    asked = server.serve()
    run(become(asked, server.path, server.own_defaults))
