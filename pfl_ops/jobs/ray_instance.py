"""Ray started on this machine, for this process alone, and ended again.

Ray runs any code that it is sent, so no one else may reach it:

- Its processes listen on the loopback interface only. Ray decides this by the node's address, which it replaces by one
  that other machines can reach, except where clusters are switched off (as on macOS, by default).
- Every request needs a token, made anew for each instance. It is handed on in the environment of Ray's processes, which
  the system shows to their owner only, and is never written to a file. All services of Ray check it except gRPC's
  health check; local sockets lie in the folder below.
- Ray opens its own temporary folder for all users (mode 0777). It lies inside a folder that only this user can enter.
- Processes of Ray that serve no job are not started, see `_with_few_processes` and `_without_agents`.

Whatever this package uses of Ray's private parts is in this module, and tests hold it against a running instance.
"""

import contextlib
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import _raylet
from ray._private import ray_constants, services, utils, worker
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from pfl_ops.errors import PflOpsError
from pfl_ops.jobs import no_agent
from pfl_ops.system.attributes import replace_attributes
from pfl_ops.system.scratch import PREFIX, scratch

if TYPE_CHECKING:
    from ray.tune.schedulers import ASHAScheduler  # importing `ray.tune` takes a second

SOCKET_PATH = 107  # bytes that Linux allows
INNER = "r"  # Ray's own folder inside the private one
SOCKET = len("/session_2025-01-01_00-00-00_000000_0000000/sockets/plasma_store")
LONGEST = SOCKET_PATH - SOCKET - len(f"/{PREFIX}12345678/{INNER}")
"""Bytes that the path of the system's temporary folder may have."""
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
"""Options of the raylet: processes that it starts and that live as long as itself."""
AGENT_PORTS = {
    "METRICS_AGENT_PORT_NAME": -1,  # Ray's own number for a service that is not there
    "METRICS_EXPORT_PORT_NAME": -1,
    "DASHBOARD_AGENT_LISTEN_PORT_NAME": -1,
    "RUNTIME_ENV_AGENT_PORT_NAME": 1,  # has to be a port; nothing answers there
}
"""Ports that the agents announce, by the names of Ray's names of the ports."""
TUNE_VARIABLES = ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE")
"""Names of the environment variables that Tune sets for each trial."""


@contextlib.contextmanager
def started(cpus: int, gpus: int) -> Iterator[Path]:
    """Start Ray in this process; stop it and remove its files at the end.

    The user's own settings of Ray's authentication (`RAY_AUTH_*`) do not apply to it, and hold again afterwards.

    Args:
        cpus, gpus: what it may give to trials.
    Yields:
        the private folder, for further files that shall go with Ray.
    """
    with scratch(short_folder()) as folder, _without_agents():
        try:
            on_loopback = replace_attributes(ray_constants, ENABLE_RAY_CLUSTER=False)
            with environment(_settings()), on_loopback, _with_few_processes(), same_sigterm():
                reload_settings()
                ray.init(
                    "local",  # else RAY_ADDRESS would be joined
                    num_cpus=cpus,
                    num_gpus=gpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(folder / INNER),
                )
            yield folder
        finally:
            ray.shutdown()
            handle_sigterm_again()
            reload_settings()


@contextlib.contextmanager
def same_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM while Ray starts or is joined: it ends a study like Ctrl-C.

    `ray.init` would set some that call sys.exit, from its first line on; and Ray's C++ part one that prints the stack
    first and aborts when that takes long.
    """
    connect = worker.connect

    def connect_unseen(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
            return connect(*args, **kwargs)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it waits; no process is started here
        try:
            return connect(*args, **kwargs)
        finally:
            handle_sigterm_again()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    with (
        replace_attributes(utils, set_sigterm_handler=lambda handler: None),
        replace_attributes(worker, connect=connect_unseen),
    ):
        yield


def handle_sigterm_again() -> None:
    """Tell the system again which handler of SIGTERM Python has: Ray's C++ part sets and removes its own."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def reload_settings() -> None:
    """Have Ray read its environment variables, the token among them, again: it does so when it is imported.

    In this order: a request that still waits for its answer would ask for a token that is no longer there.
    """
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def short_folder() -> Path:
    """Return a folder for temporary files whose path is short enough for the paths of Ray's sockets.

    Raises:
        PflOpsError: there is none.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if os.access(parent, os.W_OK) and len(os.fsencode(parent)) <= LONGEST:
            return Path(parent)
    raise PflOpsError("no temporary folder with a short enough path for Ray's sockets; set TMPDIR=/tmp")


def _settings() -> dict[str, str | None]:
    """Return the environment of Ray's processes: a new token, and modules from where this process imports its own."""
    modules = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_TOKEN_PATH": None}
    return {**token, "PYTHONPATH": modules}


@contextlib.contextmanager
def environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: unset) for a while: what is started meanwhile keeps them."""
    before = {name: os.environ.get(name) for name in settings}

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(settings)
    try:
        yield
    finally:
        put(before)


def _with_few_processes() -> AbstractContextManager[None]:
    """Have a Ray that is started meanwhile do without the processes that serve no job on one machine.

    They are the autoscaler's monitor, the one that copies logs to the driver, and the server behind the dashboard,
    which Ray starts even where it is switched off. They are three Python processes of half a second to a second of
    CPU time each, and the server listens.
    """
    unused = ("start_monitor", "start_log_monitor", "start_api_server")
    return replace_attributes(Node, **{name: lambda self, **options: None for name in unused if hasattr(Node, name)})


@contextlib.contextmanager
def _without_agents() -> Iterator[None]:
    """Have a Ray that is started meanwhile do without the two agents of its raylet.

    One serves the dashboard, the other prepares environments for jobs. They are Python processes of half a second of
    CPU time and 90 MiB each, both listen, and Ray's start waits for them. The raylet wants two processes that live as
    long as itself, and reads their ports from files: it gets two that do nothing, and files that say so.

    Tune asks for an environment that sets variables, which Ray's workers have anyway here: they are children of this
    process. Without it, trials run in the workers that Ray starts for its CPUs in advance; with it each trial had to
    wait for one more. A Ray or a Tune with other parts than these is left as it is.
    """
    from ray.tune.execution import class_cache  # takes a second to import, and Tune is used next

    if not all(hasattr(class_cache, name) for name in TUNE_VARIABLES):
        yield
        return
    variables = {name: getattr(class_cache, name) for name in TUNE_VARIABLES}
    start = services.start_ray_process

    def start_without(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET and (changed := without_agents(command)) != command:
            command = changed
            for name in TUNE_VARIABLES:
                setattr(class_cache, name, {})
        return start(command, process_type, *args, **kwargs)

    with replace_attributes(services, start_ray_process=start_without), replace_attributes(class_cache, **variables):
        yield


def without_agents(command: list[str]) -> list[str]:
    """Return the raylet's command line without its agents, whose ports are written; as it is, if it has other parts."""
    options = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    node = re.search(r"--node-id=(\w+)", options.get(AGENTS[0], ""))
    announced = {name for name in dir(_raylet) if name.endswith("_PORT_NAME")} - {"GCS_SERVER_PORT_NAME"}
    if not node or "--session_dir" not in options or AGENTS[1] not in options or announced != set(AGENT_PORTS):
        return command
    for name, port in AGENT_PORTS.items():
        _raylet.persist_port(options["--session_dir"], node[1], getattr(_raylet, name), port)  # type: ignore[attr-defined]
    stub = subprocess.list2cmdline([sys.executable, "-I", "-S", no_agent.__file__])
    return [f"{word}={stub}" if (word := each.split("=", 1)[0]) in AGENTS else each for each in command]


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep Ray's own messages (how Tune would resume, tracebacks, deaths of processes) out of the terminal.

    The runner's events have what they say. Deaths of processes go to standard output whatever Ray's settings are, by a
    private printer.
    """
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with replace_attributes(worker, print_to_stdstream=lambda *_, **__: None):
            yield
    finally:
        logger.setLevel(level)


def rungs(scheduler: "ASHAScheduler") -> list[tuple[float, dict[str, float]]]:
    """Return ASHA's rungs: (round, {trial: value, larger is better}), the last rung first."""
    found: list[tuple[float, dict[str, float]]] = scheduler._brackets[0]._rungs
    return found
