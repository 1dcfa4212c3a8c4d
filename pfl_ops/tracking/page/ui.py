"""MLflow's own web page on the local store."""

import os
import socket
import sys
import sysconfig
from pathlib import Path

import pfl_ops
from pfl_ops.databases import sqlite_file
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking.home import TrackingTarget, WorkFolder

PLUGIN = Path(__file__).with_name("mlflow_app")  # its entry point makes `page_app` known to `mlflow server`


def ui_command(
    home: str | None = None, tracking_uri: str | None = None, port: int = 5000
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts MLflow's web page, reachable from this machine only.

    One worker and no job runner: two processes instead of fifteen. It also serves the addresses of `short`.

    Args:
        home: the work folder; none: `PFL_OPS_HOME` or ./mlruns.
        tracking_uri: a database to show instead of the work folder's.
        port: port on 127.0.0.1.
    Returns:
        the command line, and the environment to run it with.
    Raises:
        PflOpsError: the address is a server, which has a page of its own; or the port is taken.
    """
    target = TrackingTarget.of(WorkFolder.at(home), tracking_uri)
    if target.server:
        raise PflOpsError(f"{target.label} is a tracking server with a page of its own: open it in a browser")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PflOpsError(f"port {port} is taken ({error.strerror}); choose another by --port") from error
    WorkFolder.open(home)
    argv = [sys.executable, "-m", "mlflow", "server"]
    argv += ["--artifacts-destination", str(target.artifacts), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--workers", "1", "--app-name", "pfl-ops"]
    package = Path(pfl_ops.__file__).parents[1]
    source = [] if package == Path(sysconfig.get_path("purelib")) else [str(package)]  # a checkout, not installed
    path = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")]), *source]
    env = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONPATH": os.pathsep.join(path),
        "MLFLOW_BACKEND_STORE_URI": target.uri,  # all users can read a command line
    }
    env.pop("MLFLOW_TRACKING_URI", None)
    return argv, env


def settle_runs(home: str | None = None, tracking_uri: str | None = None) -> None:
    """Make the database if there is none, and mark the runs of processes that were killed, before a page shows them.

    Raises:
        PflOpsError: the database can't be used.
    """
    from pfl_ops.tracking.runs.store import Store

    with Store.open(home, tracking_uri) as store:
        store.deliver(patience=5)


def newest_pages(home: str | None = None, tracking_uri: str | None = None) -> list[tuple[str, str]]:
    """(experiment, short address of its saved view) of the three experiments with the newest runs."""
    from mlflow import MlflowClient

    from pfl_ops.tracking.descriptions.views import FIRST, TAG
    from pfl_ops.tracking.page.short import short_address

    target = TrackingTarget.of(WorkFolder.at(home), tracking_uri)
    file = sqlite_file(target.uri)
    if file is not None and not file.exists():
        return []  # asking would make it
    client = MlflowClient(target.uri)
    experiments = client.search_experiments(order_by=["creation_time DESC"])
    names = {e.experiment_id: str(e.name) for e in experiments if any(TAG + view in e.tags for view in FIRST)}
    found: list[tuple[str, str]] = []
    while names and len(found) < 3:  # an experiment's last_update_time stays as it is when a run is added
        newest = client.search_runs(list(names), order_by=["start_time DESC"], max_results=1)
        name = names.pop(newest[0].info.experiment_id if newest else next(iter(names)))
        found.append((name, short_address("experiment", name)))
    return found
