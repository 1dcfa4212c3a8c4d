"""A work folder whose database a kill left unfinished is made good; one with runs is never touched."""

import contextlib
import logging
import os
import re
import sqlite3

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store, TrackingTarget, WorkFolder
from pfl_ops.tracking.target import schema


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """MLflow's database without a run: making one takes seconds."""
    folder = tmp_path_factory.mktemp("whole")
    Store.open(folder).close()
    return (folder / "mlflow.db").read_bytes()


@pytest.fixture
def quick(monkeypatch, whole):
    """Make databases by copying that one; returns how many were made."""
    made = []

    def copy(address, artifacts):
        made.append(address)
        with open(address.removeprefix("sqlite:///"), "wb") as file:
            file.write(whole)

    monkeypatch.setattr(schema, "make_tables", copy)
    monkeypatch.setattr(schema, "_template", lambda: None)
    return made


def test_a_database_from_the_template_is_the_one_that_mlflow_makes(tmp_path, monkeypatch):
    """All rows, the place of the artifacts included, but for the time at which it was made."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    own, copied = tmp_path / "own", tmp_path / "copied"
    Store.open(own).close()  # keeps the template
    monkeypatch.setattr(schema, "make_tables", None)  # would be called
    Store.open(copied).close()

    def rows(home):
        with sqlite3.connect(home / "mlflow.db") as connection:
            text = "\n".join(connection.iterdump()).replace(str(home), "HOME")
        connection.close()
        return re.sub(r"\b1\d{12}\b", "TIME", text)

    assert rows(own) == rows(copied) and "HOME/artifacts/0" in rows(copied)
    with Store.open(copied) as store:
        assert store.run("e", "run", identity="i").finish()


def test_a_database_that_was_removed_is_made_anew_in_the_same_process(tmp_path, quick):
    """As a notebook does that deletes its results and runs once more."""
    for _ in range(3):
        with Store.open(tmp_path) as store:
            assert store.runs() == []
            assert store.run("e", "run", identity="i").finish()
        with Store.open(tmp_path) as store:
            assert [run.identity for run in store.runs()] == ["i"]
        (tmp_path / "mlflow.db").unlink()


def change(file, *statements):
    connection = sqlite3.connect(file)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


RUN = "INSERT INTO runs (run_uuid, experiment_id, status, lifecycle_stage) VALUES ('r', 0, 'FINISHED', 'active')"
BEHIND = "UPDATE alembic_version SET version_num = '451aebb31d03'"  # its next step adds a column that is there already
LOST = "DROP TABLE trace_info"
HALF = {
    "killed between two steps": [LOST, BEHIND],
    "killed in the last step": [BEHIND],
    "killed before the first step": [LOST, "DROP TABLE alembic_version"],
    "killed before a version was written": ["DELETE FROM alembic_version"],
}


def test_mlflow_itself_can_not_go_on_with_a_half_made_database(tmp_path, whole):
    """Why databases are made aside; if this fails, MLflow has learnt it."""
    (tmp_path / "mlflow.db").write_bytes(whole)
    change(tmp_path / "mlflow.db", *HALF["killed between two steps"])
    with pytest.raises(Exception, match=r"duplicate column name|already exists"):
        schema.make_tables(f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path))


@pytest.mark.parametrize("statements", HALF.values(), ids=list(HALF))
def test_a_half_made_database_without_runs_is_made_again(tmp_path, whole, quick, statements, caplog):
    file = tmp_path / "mlflow.db"
    file.write_bytes(whole)
    change(file, *statements)
    broken = file.read_bytes()
    (tmp_path / ".mlflow-0123abcd.db").write_bytes(b"left by a kill")
    (tmp_path / ".mlflow-0123abcd.db-journal").write_bytes(b"left by a kill")
    with caplog.at_level(logging.WARNING), Store.open(tmp_path) as store:
        assert store.runs() == []
        assert store.run("after", "run", identity="after").finish()
    assert [r.getMessage() for r in caplog.records if r.name == "pfl_ops.tracking"] == [
        f"the database {file} was left unfinished by an earlier start and holds no run; it is kept as "
        "mlflow.unfinished.db, and a new one is made"
    ]
    assert (tmp_path / "mlflow.unfinished.db").read_bytes() == broken
    assert not list(tmp_path.glob(".mlflow-*"))
    with Store.open(tmp_path) as store:
        assert store.find("after").status == "FINISHED"
    assert len(quick) == 1


@pytest.mark.parametrize("statements", [HALF["killed between two steps"], HALF["killed in the last step"]])
def test_an_older_database_with_runs_is_refused_and_stays_as_it_is(tmp_path, whole, quick, statements):
    file = tmp_path / "mlflow.db"
    file.write_bytes(whole)
    change(file, RUN, *statements)
    before = file.read_bytes()
    with pytest.raises(PflOpsError, match=rf"run `mlflow db upgrade sqlite:///{file}`$"):
        Store.open(tmp_path)
    assert file.read_bytes() == before and quick == []


def test_an_empty_file_is_replaced_and_a_foreign_database_is_not(tmp_path, quick, caplog):
    (tmp_path / "mlflow.db").touch()
    Store.open(tmp_path).close()
    assert len(quick) == 1
    change(tmp_path / "accounts.db", "CREATE TABLE accounts (x)", "INSERT INTO accounts VALUES (1)")
    assert schema._state(tmp_path / "accounts.db") == "whole"
    change(tmp_path / "studies.db", "CREATE TABLE studies (x)", "CREATE TABLE experiments (x)")
    assert schema._state(tmp_path / "studies.db") == "whole"
    assert not caplog.records


def test_a_database_is_whole_as_soon_as_it_has_its_name(tmp_path, monkeypatch):
    """The real thing, killed right before the renaming; then made. MLflow's tables are those that are expected."""
    target = TrackingTarget.of(WorkFolder.open(tmp_path))
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "replace", lambda *_: os._exit(9))
        schema.connect(target)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "mlflow.db").exists() and len(list(tmp_path.glob(".mlflow-*.db"))) == 1
    schema.connect(target)
    assert schema._state(tmp_path / "mlflow.db") == "whole"
    assert sorted(p.name for p in tmp_path.glob("*mlflow*")) == [".mlflow.db.lock", "mlflow.db"]


def plan(file):
    """Return the index by which SQLite finds one metric of one run."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        steps = connection.execute("EXPLAIN QUERY PLAN SELECT * FROM metrics WHERE run_uuid = 'r' AND key = 'k'")
        return next(re.search(r"INDEX (\w+) \((.*)\)", step[3]).groups() for step in steps)


def test_one_metric_of_one_run_is_found_without_reading_those_of_all_runs(tmp_path, whole):
    """SQLite without statistics takes the index whose first column is the key."""
    new, old = tmp_path / "new", tmp_path / "old"
    Store.open(new).close()
    old.mkdir()
    file = old / "mlflow.db"
    file.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE sqlite_stat1")  # a database of an earlier version
        connection.commit()
    assert plan(file)[1] == "key=?"
    Store.open(old).close()
    assert plan(new / "mlflow.db") == plan(file) == ("index_metrics_run_uuid_key_step", "run_uuid=? AND key=?")


def test_statistics_that_are_there_stay_and_a_database_in_use_is_no_error(tmp_path, whole):
    file = tmp_path / "mlflow.db"
    file.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM sqlite_stat1")
        connection.commit()
        Store.open(tmp_path).close()
        assert connection.execute("SELECT count(*) FROM sqlite_stat1").fetchone() == (0,)
        connection.execute("DROP TABLE sqlite_stat1")
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")
        schema._guide_planner(file)
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchone() == (0,)
