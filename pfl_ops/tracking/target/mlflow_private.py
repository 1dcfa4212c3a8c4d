"""Parts of MLflow that it does not document. Tests fail when a release moves one of them."""

import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from mlflow.tracking._tracking_service.utils import _get_store
from mlflow.utils import environment

from pfl_ops.system.attributes import replace_attributes
from pfl_ops.tracking.target.run_info import RunInfo


def read_runs(address: str, experiments: Mapping[str, str]) -> list[RunInfo]:
    """Read all runs of some experiments that are not deleted, oldest first, in four queries.

    MLflow's own search makes an object of each tag, parameter and metric, and takes some forty times as long.

    Args:
        address: of the database. experiments: their names by id.
    """
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlParam, SqlRun, SqlTag
    from sqlalchemy import select

    wanted = (SqlRun.experiment_id.in_([int(i) for i in experiments]), SqlRun.lifecycle_stage == "active")
    names = ("run_uuid", "name", "experiment_id", "status", "start_time", "end_time", "artifact_uri")
    columns = [getattr(SqlRun, name) for name in names]
    with _get_store(address).ManagedSessionMaker() as session:
        runs = session.execute(select(*columns).where(*wanted).order_by(SqlRun.start_time, SqlRun.run_uuid)).all()

        def read(table: Any, *is_nan: Any) -> dict[str, dict[str, Any]]:
            ids = select(SqlRun.run_uuid).where(*wanted)
            rows = select(table.run_uuid, table.key, table.value, *is_nan).where(table.run_uuid.in_(ids))
            by_run: dict[str, dict[str, Any]] = defaultdict(dict)
            for run, key, value, *nan in session.execute(rows):
                by_run[run][key] = float("nan") if any(nan) else value
            return by_run

        tags, params = read(SqlTag), read(SqlParam)
        metrics = read(SqlLatestMetric, SqlLatestMetric.is_nan)
    return [
        RunInfo(
            run, name, experiments[str(place)], status, tags[run], params[run], metrics[run], start, end, str(place), at
        )
        for run, name, place, status, start, end, at in runs
    ]


def read_history(address: str, run_id: str, keys: Collection[str]) -> list[tuple[str, int, float]]:
    """Read metrics of a run in one query: (key, step, value), those of a key in the order of MLflow's own history.

    Args:
        address: of the database. keys: which metrics.
    """
    from mlflow.store.tracking.dbmodels.models import SqlMetric
    from sqlalchemy import select

    found = (
        select(SqlMetric.key, SqlMetric.step, SqlMetric.value, SqlMetric.is_nan)
        .where(SqlMetric.run_uuid == run_id, SqlMetric.key.in_(keys))
        .order_by(SqlMetric.timestamp, SqlMetric.step, SqlMetric.value)
    )
    with _get_store(address).ManagedSessionMaker() as session:
        return [(key, step, float("nan") if nan else value) for key, step, value, nan in session.execute(found)]


def download(artifacts: str, path: str, into: str, tracking_uri: str) -> str:
    """Return the local path of an artifact below a run's `artifacts`, without asking for the run once more."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return str(get_artifact_repository(artifacts, tracking_uri=tracking_uri).download_artifacts(path, dst_path=into))


def make_tables(address: str, artifacts: str) -> None:
    """Make MLflow's tables in a new database, and close it.

    Args:
        address: of the database, as SQLAlchemy has it. artifacts: of its experiments, a folder or an address.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # heavy, and of no use with a tracking server

    SqlAlchemyStore(address, artifacts).engine.dispose()


def close_connections(address: str) -> None:
    """Close the connections to a database that MLflow keeps for the next use.

    They belong to the file, not to its path: if it was removed since, they read the removed one, and can't write.
    """
    module = sys.modules.get("mlflow.store.tracking.sqlalchemy_store")
    engine = module.SqlAlchemyStore._engine_map.get(address) if module else None
    if engine is not None:
        engine.dispose()


def table_names() -> set[str]:
    """Return the names of all tables of this MLflow."""
    from mlflow.store.db.utils import Base  # with all tables known to Base

    return set(Base.metadata.tables)


def latest_revision() -> str:
    """Return the revision of this MLflow's tables."""
    from mlflow.store.db.utils import _get_latest_schema_revision

    return str(_get_latest_schema_revision())


def without_package_scan() -> AbstractContextManager[None]:
    """Keep MLflow from reading the file lists of all installed packages, a second or more, once a process.

    When a model is saved, it compares the model's requirements with the environment that they were just read from.
    """
    return replace_attributes(environment, warn_dependency_requirement_mismatches=lambda requirements: None)
