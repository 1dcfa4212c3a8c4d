"""Tracking: what a run leaves behind in MLflow. The only package that imports it.

    run          a run that is being recorded: all goes to its spool first
    spool        the outbox of a run on disk (journal: its lines; staged: its files; entries: their fields; spool_folder)
    delivery     the thread that sends what spools hold (sender: an entry as calls to MLflow; saving, served: models)
    outbox       the spools that earlier processes left
    requests     runs that a process only simulates and the courier tracks
    store        runs in MLflow, found and read again (finished: as results; earlier: of the same settings)
    home         the work folder and the target (provenance: tags of code, libraries and machine; logs)
    schema       MLflow's tables (mlflow_private: what it does not document)
    ui           MLflow's page (page_app, short: short addresses; views, questions: saved views; notes: descriptions)

The settings below must stand before MLflow is imported. They are defaults: a variable that the user has set is kept.
No retries inside MLflow: a server that is down would block each call for minutes, and `delivery` retries by itself.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}.items():
    os.environ.setdefault(_name, _value)

from pfl_ops.tracking.home import TrackingTarget, WorkFolder  # noqa: E402
from pfl_ops.tracking.provenance import provenance  # noqa: E402

if TYPE_CHECKING:
    from pfl_ops.tracking.run import Run as Run
    from pfl_ops.tracking.store import RunInfo as RunInfo
    from pfl_ops.tracking.store import Store as Store
    from pfl_ops.tracking.ui import newest_pages as newest_pages
    from pfl_ops.tracking.ui import settle_runs as settle_runs
    from pfl_ops.tracking.ui import ui_command as ui_command

_WHERE = {
    "Run": "run",
    "RunInfo": "store",
    "Store": "store",
    "newest_pages": "ui",
    "settle_runs": "ui",
    "ui_command": "ui",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a trial's process asks where its work folder is, and needs no MLflow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pfl_ops.tracking.{_WHERE[name]}"), name)


__all__ = [
    "Run",
    "RunInfo",
    "Store",
    "TrackingTarget",
    "WorkFolder",
    "newest_pages",
    "provenance",
    "settle_runs",
    "ui_command",
]
