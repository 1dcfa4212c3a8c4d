"""The log file of a work folder takes what MLflow and its libraries print; nothing else is touched."""

import errno
import logging
import time

import pytest
from mlflow.exceptions import MlflowException

from pfl_ops.tracking import Store, delivery, logs
from pfl_ops.tracking.sender import Sender

NOISY = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "sqlalchemy.pool", "alembic.x", "urllib3.util")]


def make_noise():
    for logger in NOISY:
        try:
            raise ConnectionError("postgresql://user:secret@host:5432/db is gone")
        except ConnectionError:
            logger.error("can't reach http://user:secret@host", exc_info=True)


@pytest.fixture
def before():
    """Handlers and `propagate` of all loggers that must be the same afterwards."""

    def look():
        names = [*logs.LOGGERS, "", "pfl_ops.tracking"]
        return {name: (list(logging.getLogger(name).handlers), logging.getLogger(name).propagate) for name in names}

    return look


def test_noise_goes_to_the_file_and_loggers_come_back(tmp_path, before, capfd):
    was = before()
    logs.open_log(tmp_path)
    logs.open_log(tmp_path)  # two stores of one work folder
    assert before()[""] == was[""] and before()["pfl_ops.tracking"] == was["pfl_ops.tracking"]
    assert logs.hint(tmp_path) == "", "no file before there is something to say"
    make_noise()
    logs.close_log(tmp_path)
    make_noise()
    logs.close_log(tmp_path)
    assert before() == was
    text = (tmp_path / "pfl-ops.log").read_text()
    assert text.count("Traceback") == 8
    assert "secret" not in text and "postgresql://host:5432/db" in text and "http://host" in text
    assert "Traceback" not in capfd.readouterr().err
    assert logs.hint(tmp_path) == f"; details: {tmp_path / 'pfl-ops.log'}"


def test_stores_of_two_folders_both_get_the_lines(tmp_path, before):
    was = before()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        logs.open_log(tmp_path / name)
    make_noise()
    for name in ("a", "b"):
        logs.close_log(tmp_path / name)
        assert (tmp_path / name / "pfl-ops.log").read_text().count("Traceback") == 4
    assert before() == was


def test_the_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST", 10_000)
    logs.open_log(tmp_path)
    for _ in range(50):
        make_noise()
    logs.close_log(tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {"pfl-ops.log", "pfl-ops.log.1"}
    assert all(f.stat().st_size <= 10_000 for f in tmp_path.iterdir())


def test_a_full_disk_prints_nothing(tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    logs.open_log(tmp_path)
    monkeypatch.setattr(logs._File, "_open", full)
    make_noise()
    logs.close_log(tmp_path)
    assert capfd.readouterr().err == ""


def test_an_outage_is_one_line_that_names_the_file(tmp_path, before, monkeypatch, caplog, capfd):
    was = before()
    with Store.open(tmp_path) as store:
        run = store.run("noise", "run", identity="noise")
        assert store.deliver()
        send, tried = Sender.send, []

        def fail(*_):
            tried.append(1)
            make_noise()
            raise MlflowException("API request to http://user:secret@h failed with exception refused")

        monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.01)
        monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.01)
        monkeypatch.setattr(Sender, "send", fail)
        run.tags({"a": 1})
        while len(tried) < 3:
            time.sleep(0.01)
        monkeypatch.setattr(Sender, "send", send)
        assert run.finish()
    assert before() == was
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "pfl_ops.tracking" and record.levelno > 20
    ]
    file = tmp_path / "pfl-ops.log"
    assert line.endswith(f"they are kept and sent later; details: {file}") and "\n" not in line
    assert file.read_text().count("Traceback") >= 12 and "secret" not in file.read_text()
    assert "Traceback" not in capfd.readouterr().err
