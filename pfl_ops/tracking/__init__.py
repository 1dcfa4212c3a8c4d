"""Tracking: what a run leaves behind in MLflow. The only package that imports it.

The settings below must stand before MLflow is imported. They are defaults: whoever sets the variables keeps their own.
No retries inside MLflow: a server that is down would block each call for minutes, and `delivery` retries by itself.
"""

import os

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

from pfl_ops.tracking.home import Home, Target  # noqa: E402
from pfl_ops.tracking.provenance import provenance  # noqa: E402
from pfl_ops.tracking.run import Run  # noqa: E402
from pfl_ops.tracking.store import RunInfo, Store  # noqa: E402
from pfl_ops.tracking.ui import ui_command  # noqa: E402

__all__ = ["Home", "Run", "RunInfo", "Store", "Target", "provenance", "ui_command"]
