"""The log file of a work folder takes what MLflow and its libraries print; nothing else is touched."""

import errno
import logging

import pytest

from pfl_ops.tracking.sending import logs

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
