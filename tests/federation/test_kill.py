"""Real processes killed by SIGKILL and started again end bit for bit like one that was left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import pytest

HERE = Path(__file__).parent


def nursery(what: str, folder: Path, **variables: str) -> dict[str, Any]:
    """Run kill_script.py; gives what it says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [*fork_server.python(), str(HERE / "kill_script.py"), what, str(folder)],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.slow
def test_killed_while_it_saves(tmp_path: Path) -> None:
    """At random moments, bases that replace what was there included: what was said to be kept is there, bit for bit."""
    found = nursery("saves", tmp_path / "run")
    assert found["wrong"] == []
    assert found["reached"] == sorted(found["reached"]) and found["reached"][-1] > 20, found
    assert any(kind.startswith(".") for kind in found["kinds"]), "none was killed while it wrote"


@pytest.mark.slow
def test_tracked_runs(tmp_path: Path) -> None:
    """Killed at random moments: rounds, final scores, table, models, and what MLflow has of it, are the same.

    And a second process on a run that is going on gets one clear line; the first is not disturbed.
    """
    found = nursery("tracked", tmp_path)
    assert found["differing"] == [] and found["tracked"] == 7
    assert found["kills"] >= 2 and len(set(found["reached"])) >= 2, found
    two = found["two"]
    assert two["first"] == two["second"] == 0
    assert two["told"].startswith("this run (fliu-digits-") and "\n" not in two["told"]
    assert "going on in another process" in two["told"]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PFL_OPS_HOME", raising=False)
