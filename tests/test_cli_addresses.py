"""Addresses and folders are checked before the measured round, and no password is ever printed."""

import os
import sys
from pathlib import Path

import pytest

from pfl_ops import runs
from pfl_ops.cli import app
from pfl_ops.cli.run import served, ui_hint

SECRET = "s3cret"
COMMANDS = {
    "run": ["run", "fliu"],
    "dry run": ["run", "fliu", "--dry-run"],
    "tune": ["tune", "fliu"],
    "benchmark": ["tune", "fliu,fedavg"],
    "reproduce": ["reproduce", "fliu/table1"],
    "bench": ["bench", "--quick"],
}
ADDRESSES = {
    f"postgresql://me:{SECRET}@db/flow": "needs the Python package psycopg2, which is not installed: "
    "pip install 'pfl-ops[server]'",
    f"postgresql://me:{SECRET}@db:port/flow": "it can't be read; write postgresql://HOST:PORT/DATABASE",
    f"http://me:{SECRET}@[::1": "the host is not a name or an IP address",
    f"http://me:{SECRET}@host:99999": "the port must be a number from 1 to 65535",
    f"htp://me:{SECRET}@host": "did you mean 'http://'?",
    "sqlite:///file/x.db": "file is not a folder",
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
    """Run a command line; returns what it says. Nothing may be measured, printed to stdout, or left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PFL_OPS_HOME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    monkeypatch.setattr(runs, "estimate", None)
    (tmp_path / "file").write_text("")

    def go(*line):
        with pytest.raises(SystemExit) as ended:
            app(list(line))
        out, err = capfd.readouterr()
        assert ended.value.code == 2, err
        assert out == "" and sorted(os.listdir(tmp_path)) == ["file"]
        assert SECRET not in err
        return err

    return go


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize(("address", "message"), ADDRESSES.items(), ids=[a[:12] for a in ADDRESSES])
def test_a_tracking_address_is_checked_first(refused, command, address, message):
    err = refused(*command, "--tracking-uri", address)
    assert err.count("\n") == 1 and err.startswith("pfl-ops: tracking address ") and message in err


@pytest.mark.parametrize("command", [COMMANDS["tune"], COMMANDS["benchmark"]], ids=["tune", "benchmark"])
@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (f"postgresql://me:{SECRET}@db/studies", "'postgresql://db/studies' needs the Python package psycopg2"),
        (f"postgresql://me:{SECRET}@db:port/studies", "'postgresql://db:port/studies': it can't be read"),
        ("file/x.log", "file is not a folder"),
        ("sqlite:///file/x.db", "file is not a folder"),
        ("studies.db", "must be sqlite:///FILE, another SQL address, or FILE.log"),
    ],
)  # fmt: skip
def test_a_storage_address_is_checked_first(refused, command, storage, message):
    err = refused(*command, "--storage", storage)
    assert err.count("\n") == 1 and err.startswith("pfl-ops: study storage ") and message in err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_a_work_folder_is_checked_first(refused, command, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / "file" / "work"))
    err = refused(*command)
    assert err == (
        f"pfl-ops: the work folder {tmp_path}/file/work can't be written ({tmp_path}/file is not a folder); "
        "name another by PFL_OPS_HOME\n"
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize("name", ["file", "a?b", "a%20b"])
def test_work_folder_that_no_address_has_is_refused(refused, command, name, tmp_path, monkeypatch):
    """SQLAlchemy cuts a?b/mlflow.db off at '?', and MLflow keeps the artifacts of a%20b in another folder, 'a b'."""
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / name))
    err = refused(*command)
    assert err.startswith(f"pfl-ops: the work folder {tmp_path}/{name} ") and err.count("\n") == 1
    assert err.endswith("; name another by PFL_OPS_HOME\n")


def test_a_folder_of_reports_is_checked_first(refused, tmp_path):
    err = refused("reproduce", "fliu/table1", "--reports", "file/x")
    assert err.startswith(f"pfl-ops: --reports {tmp_path}/file/x can't be written ({tmp_path}/file is not a folder); ")


def test_a_traceback_shows_no_password(refused):
    err = refused("run", "fliu", "--debug", "--tracking-uri", f"postgresql://me:{SECRET}@db:port/flow")
    assert "Traceback" in err and "ValueError" in err


def test_commands_and_links_that_are_shown_hold_no_password():
    assert ui_hint(f"postgresql://me:{SECRET}@db/flow?a=1&b=2") == (
        "pfl-ops ui --tracking-uri 'postgresql://db/flow?a=1&b=2'"
    )
    assert served(f"https://me:{SECRET}@host/") == "https://host"
    assert ui_hint(f"https://me:{SECRET}@host/", "/#/x") == "https://host/#/x"


def test_an_error_that_nothing_catches_shows_no_password(tmp_path):
    import subprocess

    code = f"""
import logging
from pfl_ops.cli import app
@app.command()
def fail():
    logging.getLogger("alembic").error("at %s", "http://me:{SECRET}@host")
    raise RuntimeError("no answer from postgresql://me:{SECRET}@db/flow")
app(["fail"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 1
    assert "at http://host\n" in done.stderr and "RuntimeError: no answer from postgresql://db/flow" in done.stderr
    assert SECRET not in done.stderr.replace(f'me:{SECRET}@db/flow")', "").replace(f'me:{SECRET}@host")', "")
