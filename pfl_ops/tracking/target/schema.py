"""MLflow's tables: made whole, or recognised as unfinished, and searched by the right index. The only module that knows
them.

MLflow migrates a new database in place, in steps that SQLite does not undo, and can't go on with one that a kill left
in the middle ("duplicate column name"). What it offers to the outside upgrades only such a database; so the store class
is used to make one, and the list of its tables to recognise an unfinished one. `mlflow_private` has both.
"""

import contextlib
import logging
import sqlite3
import time
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.utils.uri import append_to_uri_path, resolve_uri_if_local

from pfl_ops import databases
from pfl_ops.data.store import cache_folder
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking.home import TrackingTarget
from pfl_ops.tracking.target.mlflow_private import close_connections, latest_revision, make_tables, table_names

log = logging.getLogger("pfl_ops.tracking")

ROWS = {
    "index_metrics_run_uuid": "1000000 10000",
    "index_metrics_run_uuid_key_step": "1000000 10000 100 1",
    "sqlite_autoindex_metrics_1": "1000000 10000 1 1 1 1 1",
}
"""Index of `metrics` -> rows, and rows with one value of its first column, of its first two, ...: of 100 runs with 100
metrics over 100 rounds. SQLite's planner knows no numbers, and takes the index by key for one metric of one run, which
reads the values of all runs: 30 ms among 1,009 runs of 7,900 values, 0.1 ms by run and key."""


def connect(target: TrackingTarget) -> MlflowClient:
    """Return a client of a target, whose tables are made first if it is a database without them.

    Nothing is sent to a tracking server.

    Raises:
        PflOpsError: the database was made by another version of MLflow, can't be made, or refuses the connection.
        ConnectionError: the database's server does not answer.
    """
    if target.server:
        return MlflowClient(target.uri)
    with databases.exclusive(target.uri):
        file = databases.sqlite_file(target.uri)
        if file is not None:
            _make_whole(file, target)
            _guide_planner(file)
            close_connections(target.uri)
        client = MlflowClient(target.uri)
        client.search_experiments(max_results=1)  # on a database server, this makes the tables
        return client


def other_version(target: TrackingTarget) -> PflOpsError:
    """Return the error for a database that another version of MLflow has made."""
    return PflOpsError(
        f"{target.label} was made by another version of MLflow: back it up, then run `mlflow db upgrade {target.label}`"
    )


def _make_whole(file: Path, target: TrackingTarget) -> None:
    if not databases.is_empty(file):
        state = _state(file)
        if state == "older":
            raise other_version(target)
        if state == "whole":
            return
        databases.set_aside(file, "run", log)
    artifacts, now = str(target.artifacts), time.time_ns() // 1_000_000

    def adapt(connection: sqlite3.Connection) -> None:
        """MLflow makes one experiment with the tables, and notes where its artifacts lie, and since when."""
        place = append_to_uri_path(resolve_uri_if_local(artifacts), "0")
        connection.execute(
            "UPDATE experiments SET artifact_location = ?, creation_time = ?, last_update_time = ?", (place, now, now)
        )

    databases.make_aside(file, lambda address: make_tables(address, artifacts), _template(), adapt)


def _guide_planner(file: Path) -> None:
    """Give SQLite's planner `ROWS`, unless the database has statistics. One that can't be written now stays slow."""
    names = databases.tables(file)
    if "metrics" not in names or "sqlite_stat1" in names:
        return
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(file, timeout=1, isolation_level=None)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ANALYZE sqlite_master")  # makes the table of statistics, and no statistics
        connection.executemany("INSERT INTO sqlite_stat1 VALUES ('metrics', ?, ?)", ROWS.items())
        connection.execute("COMMIT")


def _template() -> Path:
    """A new database of this MLflow, kept since one was made: its hundred steps take seconds."""
    return cache_folder() / "databases" / f"mlflow-{mlflow.__version__}.db"


def _state(file: Path) -> str:
    """Return "whole", "unfinished" (MLflow's tables, not all, and no run), or "older" (not all, and runs).

    MLflow itself says whether a whole one with runs is of its version.
    """
    names = databases.tables(file)
    ours = not names or "experiments" in names or names <= {"alembic_version"}
    if not ours or "studies" in names:
        return "whole"  # something else lives there too: as MLflow finds it
    runs = databases.query(file, "SELECT count(*) FROM runs")[0][0] if "runs" in names else 0
    versions = databases.query(file, "SELECT version_num FROM alembic_version") if "alembic_version" in names else []
    if table_names() <= names and versions:
        return "whole" if runs or versions == [(latest_revision(),)] else "unfinished"
    return "older" if runs else "unfinished"
