"""Parts of MLflow that it does not document. Tests fail when a release moves one of them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.utils import environment


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


@contextmanager
def without_package_scan() -> Iterator[None]:
    """Keep MLflow from reading the file lists of all installed packages, a second or more, once a process.

    When a model is saved, it compares the model's requirements with the environment that they were just read from.
    """
    scan = environment.warn_dependency_requirement_mismatches
    environment.warn_dependency_requirement_mismatches = lambda requirements: None
    try:
        yield
    finally:
        environment.warn_dependency_requirement_mismatches = scan
