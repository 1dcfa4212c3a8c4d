"""A real PostgreSQL on loopback: two first starts at once, a kill while tables are made, mistakes, an outage."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from ports import reserved_port

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store, TrackingTarget, WorkFolder
from pfl_ops.tracking.runs.store import ServerUnavailable
from pfl_ops.tracking.target import schema
from pfl_ops.tuning.studies import study_database

pytestmark = pytest.mark.slow
SECRET = "s3cret"


def programs():
    """The folder of PostgreSQL's programs, or None."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in reversed(places) if (place / "postgres").exists()), None)


class PostgreSQL:
    """A cluster of its own in a new folder, with one user that has a password."""

    def __init__(self, folder, port):
        self.folder, self.port, self.programs, self.process = folder, port, programs(), None
        root = os.geteuid() == 0
        self.account = {"user": "nobody", "group": "nogroup", "extra_groups": []} if root else {}  # it refuses root
        if root:
            shutil.chown(folder, "nobody", "nogroup")
        (folder / "password").write_text(SECRET)
        (folder / "password").chmod(0o644)
        argv = [self.programs / "initdb", "-D", folder / "data", "-U", "me", "--auth=scram-sha-256", "--no-sync"]
        argv += ["--pwfile", folder / "password"]
        subprocess.run(argv, check=True, capture_output=True, cwd=folder, **self.account)

    def start(self):
        argv = [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-F"]
        argv += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder, **self.account)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), self.connect():
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    @contextlib.contextmanager
    def connect(self):
        import psycopg2

        try:
            connection = psycopg2.connect(self.address("postgres"))
        except psycopg2.OperationalError as error:
            raise OSError from error
        connection.autocommit = True
        with contextlib.closing(connection):
            yield connection.cursor()

    def address(self, database, password=SECRET):
        return f"postgresql://me:{password}@127.0.0.1:{self.port}/{database}"

    def make(self, database):
        with self.connect() as cursor:
            cursor.execute(f"CREATE DATABASE {database}")
        return self.address(database)

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def postgresql():
    pytest.importorskip("psycopg2")
    if programs() is None:
        pytest.skip("needs PostgreSQL's initdb and postgres, which are not installed")
    folder = Path(tempfile.mkdtemp(prefix="pfl-pg-"))  # pytest's own are closed to other accounts
    with reserved_port() as port:
        server = PostgreSQL(folder, port)
        try:
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)


def test_two_first_starts_at_once_both_live(postgresql, tmp_path, python):
    """MLflow's and Optuna's tables are made by one of two processes, while the other waits."""
    code = """
        import sys
        from pfl_ops.tracking import Store
        from pfl_ops.tuning.studies import study_database
        print("ready", flush=True)
        sys.stdin.readline()                      # both start at the same moment
        study_database.storage(sys.argv[3])
        with Store.open(sys.argv[1], sys.argv[2]) as store:
            assert store.run("race", sys.argv[4], identity=sys.argv[4]).finish()
    """
    addresses = [postgresql.make("race_runs"), postgresql.make("race_studies")]
    both = [python(code, str(tmp_path / "work"), *addresses, name, forked=True) for name in ("one", "two")]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    with Store.open(tmp_path / "work", addresses[0]) as store:
        assert {run.name for run in store.runs("race")} == {"one", "two"}


def test_a_kill_while_tables_are_made_leaves_a_database_that_opens(postgresql, tmp_path, monkeypatch):
    target = TrackingTarget.of(WorkFolder.open(tmp_path), postgresql.make("killed"))
    child = os.fork()
    if child == 0:
        from alembic.operations import Operations

        made = []

        def add_column(self, *args, **kwargs):
            made.append(1)
            if len(made) == 5:
                os._exit(9)
            return usual(self, *args, **kwargs)

        usual = Operations.add_column
        monkeypatch.setattr(Operations, "add_column", add_column)
        schema.connect(target)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with Store.open(tmp_path, target.uri) as store:
        assert store.run("after", "run", identity="after").finish()

    # a wrong password and a database that does not exist are mistakes; neither is shown with the password
    for address in (postgresql.address("killed", f"{SECRET}x"), postgresql.address("nothing")):
        with pytest.raises(PflOpsError, match=r"refuses the connection \(.*FATAL.*\)$") as caught:
            Store.open(tmp_path, address, offline=True)
        assert not isinstance(caught.value, ServerUnavailable) and SECRET not in str(caught.value)
        with pytest.raises(PflOpsError, match=r"^the database postgresql://127") as caught:
            study_database.storage(address)
        assert SECRET not in str(caught.value)

    # the server is down: recording goes on, and what was recorded is sent when it is up
    postgresql.stop()
    try:
        with pytest.raises(PflOpsError, match="does not answer"):
            study_database.storage(target.uri)
        with Store.open(tmp_path / "other", target.uri, offline=True) as store:
            assert not store.run("after", "offline", identity="offline").finish(patience=0)
            store.close(patience=0)
    finally:
        postgresql.start()
    with Store.open(tmp_path / "other", target.uri) as store:
        assert store.deliver()
        assert store.find("offline").status == "FINISHED"
