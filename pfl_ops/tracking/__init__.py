"""Tracking: what a run leaves behind in MLflow. The only package that imports it.

Its rooms; each imports only those below it:

    page           MLflow's own page on the local store
    runs           runs in MLflow: recorded, found, and read again
    sending        from the spools to MLflow
    spools         what MLflow is to hold of a run, on disk until it has been sent
    descriptions   names, texts and saved views on MLflow's page; beside `spools`
    target         the inside of MLflow: its tables, a network as it loads it; beside `spools`
    home           the work folder and the target (provenance: tags of code, libraries and machine)

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
    from pfl_ops.tracking.page.ui import newest_pages as newest_pages
    from pfl_ops.tracking.page.ui import settle_runs as settle_runs
    from pfl_ops.tracking.page.ui import ui_command as ui_command
    from pfl_ops.tracking.runs.run import Run as Run
    from pfl_ops.tracking.runs.store import Store as Store
    from pfl_ops.tracking.target.run_info import RunInfo as RunInfo

_WHERE = {
    "Run": "runs.run",
    "RunInfo": "target.run_info",
    "Store": "runs.store",
    "newest_pages": "page.ui",
    "settle_runs": "page.ui",
    "ui_command": "page.ui",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a trial's process asks where its work folder is, and needs no MLflow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pfl_ops.tracking.{_WHERE[name]}"), name)


__all__ = ["TrackingTarget", "WorkFolder", "provenance", *_WHERE]
