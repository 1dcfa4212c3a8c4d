"""The work folder and where tracking goes to."""

import json
from pathlib import Path

import pytest
from filelock import FileLock

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import TrackingTarget, WorkFolder, ui_command


def test_the_work_folder_is_made_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / "deep" / "work"))
    home = WorkFolder.open()
    assert home.root == tmp_path / "deep" / "work"
    assert {f.name for f in home.root.iterdir() if f.is_dir()} == {"artifacts", "checkpoints", "spool"}
    assert home.studies == home.root / "studies.db"


def test_the_default_is_mlruns_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert WorkFolder.open().root == tmp_path / "mlruns"


def test_a_work_folder_that_is_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PflOpsError, match=r"work folder .*file can't be written"):
        WorkFolder.open(tmp_path / "file")


def test_the_target_is_the_argument_then_the_environment_then_the_work_folder(tmp_path, monkeypatch):
    home = WorkFolder.open(tmp_path)
    assert TrackingTarget.of(home).uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org:5000/")
    assert TrackingTarget.of(home) == TrackingTarget("http://example.org:5000", None)
    assert TrackingTarget.of(home).server
    foreign = TrackingTarget.of(home, f"sqlite:///{tmp_path}/x/t.db")
    assert foreign.artifacts == tmp_path / "x" / "artifacts"
    assert not foreign.server


def test_a_relative_database_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TrackingTarget.of(WorkFolder.open(), "sqlite:///x/t.db").uri == f"sqlite:///{tmp_path}/x/t.db"


def test_another_database_keeps_artifacts_in_the_work_folder_and_hides_its_password(tmp_path):
    target = TrackingTarget.of(WorkFolder.open(tmp_path), "postgresql+psycopg2://me:secret@db/flow")
    assert target.artifacts == tmp_path / "artifacts"
    assert target.label == "postgresql+psycopg2://db/flow"


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///tmp/x", "databricks", "sqlite://", "sqlite:///:memory:", "http://"]
)
def test_addresses_that_do_not_work_are_refused(tmp_path, uri):
    with pytest.raises(PflOpsError, match="tracking address"):
        TrackingTarget.of(WorkFolder.open(tmp_path), uri)


def test_two_first_starts_at_once_both_live(tmp_path, python):
    code = """
        import sys
        from pfl_ops.tracking import Store
        sys.stdin.readline()                      # both start the store at the same moment
        with Store.open(sys.argv[1]) as store:
            run = store.run("race", sys.argv[2], identity=sys.argv[2])
            assert run.finish()
            print(run.run_id, flush=True)
    """
    both = [python(code, str(tmp_path / "work"), name, forked=True) for name in ("one", "two")]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        assert not err
        assert len(out.strip()) == 32

    from pfl_ops.tracking import Store

    with Store.open(tmp_path / "work") as store:
        assert {run.name for run in store.runs("race")} == {"one", "two"}


def test_the_page_is_for_this_machine_only(tmp_path):
    argv, env = ui_command(str(tmp_path), port=0)
    line = " ".join(argv)
    assert "--host 127.0.0.1" in line
    assert env["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/mlflow.db"  # it may hold a password
    assert f"--artifacts-destination {tmp_path}/artifacts" in line
    assert "--workers 1" in line
    assert env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert json.dumps(env)
    with pytest.raises(PflOpsError, match="page of its own"):
        ui_command(str(tmp_path), "http://example.org:5000")


def test_a_port_that_is_taken_is_refused(tmp_path: Path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PflOpsError, match="choose another by --port"):
            ui_command(str(tmp_path), port=other.getsockname()[1])


def test_a_folder_with_nothing_in_it_is_left_without_a_trace_and_no_other(tmp_path):
    home = WorkFolder.open(tmp_path / "work")
    (home.checkpoints / ".0123.lock").touch()
    home.leave()
    assert not home.root.exists()
    for name in ("mlflow.db", "checkpoints/0123", "spool/x"):
        home = WorkFolder.open(tmp_path / "work")
        (home.root / name).mkdir()
        home.leave()
        assert (home.root / name).exists()
        (home.root / name).rmdir()


def test_a_folder_that_another_process_uses_is_not_left(tmp_path):
    """Its lock was removed, and the folders with it: two processes could then compute one run at once."""
    home = WorkFolder.open(tmp_path / "work")
    own, other = (home.checkpoints / f".{name}.lock" for name in ("own", "other"))
    with FileLock(own):
        with FileLock(other):
            home.leave(own=own)
            assert other.exists() and home.artifacts.is_dir() and home.spool.is_dir()
        home.leave(own=own)
    assert not home.root.exists()


def test_a_folder_that_is_left_while_another_process_opens_it_is_made_again(tmp_path, monkeypatch):
    home = WorkFolder(tmp_path / "work")
    lock, calls = WorkFolder.lock, []

    def left_meanwhile(self: WorkFolder) -> FileLock:
        calls.append(self)
        if len(calls) == 1:
            raise FileNotFoundError(2, "No such file or directory")  # as a lock that was waited for
        return lock(self)

    monkeypatch.setattr(WorkFolder, "lock", left_meanwhile)
    assert WorkFolder.open(home.root).checkpoints.is_dir() and len(calls) == 2
