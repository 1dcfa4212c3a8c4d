"""A target that does not answer at the start: recording goes on, reading is refused, mistakes are refused at once."""

import http.server
import json
import logging
import os
import shutil
import threading

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Run, Store
from pfl_ops.tracking.runs import store as stores
from pfl_ops.tracking.runs.store import ServerUnavailable

DOWN = "http://me:s3cret@127.0.0.1:9"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    Store.open(folder).close()
    return folder


def waiting(store):
    return [folder for folder in store.home.spool.iterdir() if folder.is_dir()]


@pytest.mark.parametrize("address", [DOWN, "postgresql://me:s3cret@127.0.0.1:9/flow"], ids=["server", "database"])
def test_recording_goes_on_and_reading_is_refused(tmp_path, rounds, caplog, address):
    if address.startswith("postgresql"):
        pytest.importorskip("psycopg2")
    with pytest.raises(ServerUnavailable, match=r"//127\.0\.0\.1:9.* does not answer") as caught:
        Store.open(tmp_path, address)
    assert "s3cret" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        store = Store.open(tmp_path, address, offline=True)
        assert [r.getMessage() for r in caplog.records] == [
            f"the tracking server {store.target.label} does not answer: records wait in {tmp_path}/spool and are sent "
            "by the next pfl-ops command that uses it"
        ]
        run = store.run("offline", "run", identity="offline")
        run.log(rounds(0, 20))
        assert run.run_id is None and not store.reachable
        assert not run.finish(patience=0)
        with pytest.raises(ServerUnavailable, match="does not answer"):
            store.runs()
        assert not store.close(patience=0)
    assert len(waiting(store)) == 1
    text = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"s3cret" not in text and b"s3cret" not in caplog.text.encode()


def test_records_of_an_outbox_that_was_removed_wait_nowhere(tmp_path, rounds, caplog):
    """The next command was said to send them."""
    store = Store.open(tmp_path, DOWN, offline=True)
    store.run("offline", "run", identity="offline").log(rounds(0, 20))
    shutil.rmtree(store.home.spool)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert not store.close(patience=0)
    # beside what the thread that sends may note of the outage meanwhile
    line = f"{tmp_path}/spool was removed, and the records that waited in it: repeat the command"
    assert line in [record.getMessage() for record in caplog.records]
    assert "are sent by the next" not in caplog.text


class Answering(http.server.BaseHTTPRequestHandler):
    status, body = 200, ""

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body.encode())

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    """The address of a server that answers everything in one way."""
    servers = []

    def start(status, body):
        handler = type("Handler", (Answering,), {"status": status, "body": body})
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "goes_on"),
    [
        (503, "try later", True),
        (502, "<html>bad gateway</html>", True),
        (503, json.dumps({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "no database"}), True),
        (404, "not found", False),
        (404, json.dumps({"detail": "Not Found"}), False),
        (401, "who are you?", False),
        (403, json.dumps({"error_code": "PERMISSION_DENIED", "message": "no"}), False),
    ],
)
def test_a_server_that_is_busy_is_waited_for_and_one_that_refuses_is_not(tmp_path, answering, status, body, goes_on):
    address = answering(status, body)
    if goes_on:
        Store.open(tmp_path, address, offline=True).close(patience=0)
    else:
        with pytest.raises(PflOpsError) as caught:
            Store.open(tmp_path, address, offline=True)
        assert not isinstance(caught.value, ServerUnavailable) and "\n" not in str(caught.value)


def test_a_host_that_does_not_exist_is_refused_at_once(tmp_path, monkeypatch):
    def unknown(address):
        raise PflOpsError("no host named 'mlfow' exists")

    monkeypatch.setattr(stores, "probe", unknown)
    with pytest.raises(PflOpsError, match="no host named 'mlfow' exists"):
        Store.open(tmp_path, "http://mlfow.invalid:5000", offline=True)


def test_a_run_killed_before_its_first_entry_does_not_stay_running(work, monkeypatch):
    """The run is made in MLflow first, so that its id can be shown; then the process dies."""
    child = os.fork()
    if child == 0:
        store = Store.open(work)
        monkeypatch.setattr(Run, "append", lambda *_: os._exit(9))
        store.run("first", "run", identity="first")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with Store.open(work) as store:
        assert store.deliver()
        assert store.find("first").status == "KILLED"
        assert not waiting(store)


def test_the_page_shows_no_run_of_a_dead_process_as_running(work, monkeypatch):
    from mlflow import MlflowClient

    from pfl_ops.tracking import settle_runs

    child = os.fork()
    if child == 0:
        store = Store.open(work)
        store.run("page", "run", identity="page").log([])
        store._delivery.wait()
        os._exit(9)
    os.waitpid(child, 0)
    client = MlflowClient(f"sqlite:///{work}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("page").experiment_id])
    assert run.info.status == "RUNNING"
    settle_runs(str(work))
    assert client.get_run(run.info.run_id).info.status == "KILLED"


def test_a_choice_that_is_sent_before_its_trial_marks_it(work, monkeypatch):
    """Records made while the target is down are sent parents first."""
    with monkeypatch.context() as patch:
        patch.setattr("pfl_ops.tracking.sending.sender.connect", _no_answer)
        store = Store.open(work, offline=True)
        study = store.run("choice", "study", identity="study")
        trials = [store.run("choice", f"trial-{i}", identity=f"t{i}", parent=study) for i in range(2)]
        for trial in trials:
            trial.finish(patience=0)
        study.choose("t1")
        study.finish(patience=0)
        store.close(patience=0)
    with Store.open(work) as store:
        assert store.deliver()
        found = {run.name: run for run in store.runs("choice")}
        assert {name: run.tags.get("pfl_ops.chosen") for name, run in found.items()} == {
            "study": None, "trial-0": None, "trial-1": "yes"
        }  # fmt: skip
        assert {run.status for run in found.values()} == {"FINISHED"}
        assert found["trial-1"].parent == found["study"].run_id


def _no_answer(target):
    raise ConnectionError("no answer")


def test_what_mlflow_refuses_is_kept_without_the_password_of_its_address(work, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST

    from pfl_ops.tracking.sending.sender import Sender

    def refuse(*_):
        raise MlflowException("bad request to http://me:s3cret@h:5000/api", error_code=BAD_REQUEST)

    monkeypatch.setattr(Sender, "_params", refuse)
    with Store.open(work) as store:
        run = store.run("refused", "run", identity="refused", params={"lr": 1})
        assert run.finish()
    kept = (run.spool.folder / "refused.jsonl").read_text()
    assert "http://h:5000/api" in kept and "http://h:5000/api" in caplog.text
    assert "s3cret" not in kept + caplog.text
